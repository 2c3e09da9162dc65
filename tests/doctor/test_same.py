"""``same_as`` says whether two modules are one function, and where they part."""

import copy

import torch

from attnbook.doctor import diagnose
from tests.doctor.specimens.museum import bug, right


def test_the_first_stage_that_differs_is_named() -> None:
    module, example, _ = bug("attentions: separate: by the number of heads").make()
    other, *_ = right("attentions", "separate")
    other.load_state_dict(module.state_dict())
    report = diagnose(module, *example, same_as=other)
    assert report.has("differs from the other")
    assert "the logits of attention 0" in str(report)


def test_a_copy_is_the_same_function_and_is_left_alone() -> None:
    module, example, _ = right("attentions", "separate")
    other = copy.deepcopy(module)
    before = copy.deepcopy(other.state_dict())
    report = diagnose(module, *example, same_as=other)
    assert "same as" in report.passed
    assert not report.untested
    assert all(torch.equal(x, before[name]) for name, x in other.state_dict().items())
