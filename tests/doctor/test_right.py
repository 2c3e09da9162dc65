"""Right modules raise no error: libraries, and unusual designs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from attnbook.doctor import diagnose
from tests.doctor import held_out_attention, held_out_models, unseen
from tests.doctor.libraries import LIBRARIES
from tests.doctor.test_planted import healthy
from tests.doctor.unusual import UNUSUAL, Design
from tests.doctor.unusual_more import MORE

LIKE_OTHERS = (
    *("Llama", "Mistral", "GPTNeoX", "Bloom", "Gemma", "Gemma2", "Qwen2", "Phi", "Phi3", "Mixtral"),
    *("Cohere", "DeepseekV3", "Roberta", "Albert", "RoFormer", "T5", "Marian"),
)
"""What is in `unusual`, or much like another one: slow."""
IN_LIBRARIES = [
    pytest.param(
        design,
        id=f"{library} {design.name}",
        marks=[pytest.mark.slow] if design.name.split(":")[0] in LIKE_OTHERS else [],
    )
    for library, designs in LIBRARIES.items()
    for design in designs
]


@pytest.fixture(autouse=True)
def single_precision(numerics: None) -> Iterator[None]:
    """As readers have it, and where rounding is largest."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def test_no_design_twice() -> None:
    names = [design.name for design in (*UNUSUAL, *MORE)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("design", IN_LIBRARIES)
def test_library_is_healthy(design: Design) -> None:
    healthy(design.report(claimed=True))


@pytest.mark.slow
@pytest.mark.parametrize("design", IN_LIBRARIES)
def test_library_is_healthy_without_claims(design: Design) -> None:
    healthy(design.report(claimed=False))


@pytest.mark.parametrize("design", [*UNUSUAL, *MORE], ids=lambda design: design.name)
def test_unusual_design_is_healthy(design: Design) -> None:
    healthy(design.report(claimed=True))


@pytest.mark.slow
@pytest.mark.parametrize("design", [*UNUSUAL, *MORE], ids=lambda design: design.name)
def test_unusual_design_is_healthy_without_claims(design: Design) -> None:
    healthy(design.report(claimed=False))


RIGHT = [
    pytest.param(make, id=f"{written.__name__.split('.')[-1]} {name}")
    for written in (held_out_attention, held_out_models, unseen)
    for name, make in written.RIGHT
]
"""Designs that strangers to the doctor thought odd."""
UNTESTED = {
    "held_out_attention sparsemax": ("scale",),  # no softmax to scale
    "held_out_attention retention": ("scale",),
    "held_out_models two tokens ahead": ("position",),  # two predictions of each token, one loss
}
"""What some of these claim and the doctor can not test: it says so, and calls nothing healthy."""


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("make", RIGHT)
def test_odd_design_is_healthy(
    make: Callable[[int], Any], claimed: bool, request: pytest.FixtureRequest
) -> None:
    module, example, claims = make(0)
    kept = claims if claimed else {k: v for k, v in claims.items() if k == "keywords"}
    report = diagnose(module, *example, **kept)
    name = request.node.callspec.id.removesuffix(f"-{claimed}")
    if untested := UNTESTED.get(name) if claimed else None:
        assert [said.split(" (")[0] for said in report.untested] == list(untested)
        assert not report.errors, report
    else:
        healthy(report)
