"""Right modules of libraries raise no error. (Others: `specimens.right`, `test_specimens`.)"""

from collections.abc import Iterator

import pytest
import torch

from benchmarks.doctor.libraries import LIBRARIES, report
from benchmarks.doctor.specimens.museum import Make, healthy

LIKE_OTHERS = (
    *("Llama", "Mistral", "GPTNeoX", "Bloom", "Gemma", "Gemma2", "Qwen2", "Phi", "Phi3", "Mixtral"),
    *("Cohere", "DeepseekV3", "Roberta", "Albert", "RoFormer", "T5", "Marian"),
)
"""What is much like another one: slow."""
IN_LIBRARIES = [
    pytest.param(
        make,
        id=f"{library} {name}",
        marks=[pytest.mark.slow] if name.split(":")[0] in LIKE_OTHERS else [],
    )
    for library, designs in LIBRARIES.items()
    for name, make in designs.items()
]


@pytest.fixture(autouse=True)
def single_precision(numerics: None) -> Iterator[None]:
    """As readers have it, and where rounding is largest."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("make", IN_LIBRARIES)
def test_library_is_healthy(make: Make, request: pytest.FixtureRequest) -> None:
    said = report(make, claimed=True)
    if "GptOss" in request.node.name:  # a sink beside the keys hides its heads
        assert said.untested == ("n_heads",)
        assert not said.errors
    else:
        healthy(said)


@pytest.mark.slow
@pytest.mark.parametrize("make", IN_LIBRARIES)
def test_library_is_healthy_without_claims(make: Make) -> None:
    healthy(report(make, claimed=False))
