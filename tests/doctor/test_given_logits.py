"""Losses that are functions of logits and ids."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnbook.doctor import diagnose


def shifted(by: int) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-by].flatten(0, 1), ids[:, by:].flatten())

    return loss


def ahead(*weights: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss of several predictions: of the next token, of the one after it, and so on."""
    return lambda logits, ids: sum(
        weight * shifted(by)(logits, ids) for by, weight in enumerate(weights, 1)
    )  # type: ignore[return-value]


def ignoring(*ids: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss of the next token that leaves out targets with these ids."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        left_out = torch.isin(targets, torch.tensor(ids))
        return F.cross_entropy(logits[:, :-1].mT, targets.masked_fill(left_out, -100)[:, 1:])

    return loss


def smoothed(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        logp = logits.log_softmax(-1)
        each = -0.9 * logp.gather(-1, targets[..., None]).squeeze(-1) - 0.1 * logp.mean(-1)
        real = (targets != 0).float()
        count = real.sum() if kind == "right" else each.numel()
        return each.mean() if kind == "all" else (each * real).sum() / count

    return loss


COUNTED = ("padding counts in the loss",)


@pytest.mark.parametrize(
    ("loss", "claims", "causes"),
    [
        (shifted(1), {}, ()),
        (shifted(2), {}, ("loss shifted twice",)),
        (ahead(1, 1), {}, ()),
        (ahead(1, 3), {}, ()),
        (ignoring(0), {"padding_id": 0}, ()),
        (ignoring(0, 2), {"padding_id": 0}, ("real targets are ignored",)),
        (smoothed("right"), {"padding_id": 0}, ()),
        (smoothed("all"), {"padding_id": 0}, COUNTED),
        (smoothed("divided by all"), {"padding_id": 0}, COUNTED),
    ],
)
def test_loss(loss: Any, claims: dict[str, Any], causes: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(3, 7, 23), torch.randint(1, 23, (3, 7))
    assert diagnose(loss, logits, ids, **claims).causes == causes
