"""``same_as`` says whether two modules are one function, and where they part."""

import copy

import pytest
import torch
from torch import nn

from attnbook.doctor import diagnose
from tests.doctor.specimens.museum import bug, right


@pytest.mark.parametrize(
    "name", ["attentions: separate: by the number of heads", "attentions: functional: none"]
)
def test_the_first_stage_that_differs_is_named(name: str) -> None:
    module, example, _ = bug(name).make()
    other, *_ = right(*name.split(": ")[:2])
    other.load_state_dict(module.state_dict())
    report = diagnose(module, *example, same_as=other)
    assert report.has("differs from the other")
    assert "the logits of attention 0" in str(report)


class Cut(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


def test_a_gradient_that_is_cut_off_is_a_difference() -> None:
    one, other = Cut(8, 8), nn.Linear(8, 8)
    other.load_state_dict(one.state_dict())
    errors = diagnose(one, torch.randn(2, 6, 8), same_as=other).errors
    assert "this one gives zeros" in next(e.found for e in errors if e.check == "same as")


def test_a_copy_is_the_same_function_and_is_left_alone() -> None:
    module, example, _ = right("attentions", "separate")
    other = copy.deepcopy(module)
    before = copy.deepcopy(other.state_dict())
    report = diagnose(module, *example, same_as=other)
    assert "same as" in report.passed
    assert not report.untested
    assert all(torch.equal(x, before[name]) for name, x in other.state_dict().items())
