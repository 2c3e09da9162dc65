"""``same_as`` says whether two modules are one function, and where they part."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnbook.doctor import diagnose
from benchmarks.doctor.specimens.museum import bug, edited, right


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


class ByHand(nn.Module):
    """Causal attention by torch's function or by hand, with a parameter that may be unused."""

    def __init__(self, *, fused: bool, scale: float = 8**-0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.unused = nn.Parameter(torch.ones(16))
        self.fused, self.scale = fused, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            logits = (q @ k.mT * self.scale).masked_fill(later, -torch.inf)
            y = logits.softmax(-1) @ v + 0 * self.unused.mean()
        return y.transpose(1, 2).flatten(2)


def test_what_has_no_gradient_or_rounding_alone_is_no_difference() -> None:
    one, other = ByHand(fused=True), ByHand(fused=False)
    other.q.weight.requires_grad_(False)  # the names that are trained differ
    assert "same as" in diagnose(one, torch.randn(2, 6, 16), same_as=other).passed


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ("mlp: nn.GELU() → nn.ReLU()", "first in what blocks.0.ff.1 gives"),
        ("self.head(self.norm(x)[:, 0]) → 2 * …", "nothing differs inside"),
    ],
)
def test_a_difference_outside_the_attention_is_placed(edit: str, place: str) -> None:
    (one, example, _), (other, *_) = edited("encoders", "vit", edit), right("encoders", "vit")
    other.load_state_dict(one.state_dict())
    assert place in str(diagnose(one, *example, same_as=other)).replace("\n            ", " ")


def test_a_fused_attention_scales_its_queries_and_that_is_no_difference() -> None:
    report = diagnose(
        ByHand(fused=True), torch.randn(2, 6, 16), same_as=ByHand(fused=False, scale=1.0)
    )
    assert "first in the logits of attention 0, by a factor of 0.3536" in str(report).replace(
        "\n            ", " "
    )
