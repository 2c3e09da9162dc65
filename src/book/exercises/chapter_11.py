"""Exercises of chapter 11."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from book.exercises.mistakes import Exercise


def _same(ids: Tensor) -> Tensor:
    return (ids[:, :, None] == ids[:, None]).tril(-1)


def _lookup_score(weights: Tensor, ids: Tensor, after: int) -> Tensor:
    same = _same(ids)
    places = F.pad(same, (after, 0))[..., : ids.shape[1]]
    return (weights * places).sum(-1)[same.any(-1)].mean()


def _every_query(weights: Tensor, ids: Tensor, after: int) -> Tensor:
    places = F.pad(_same(ids), (after, 0))[..., : ids.shape[1]]
    return (weights * places).sum(-1).mean()


def _last_alone(weights: Tensor, ids: Tensor, after: int) -> Tensor:
    same = _same(ids)
    last = same & (same.flip(-1).cumsum(-1).flip(-1) == 1)
    places = F.pad(last, (after, 0))[..., : ids.shape[1]]
    return (weights * places).sum(-1)[same.any(-1)].mean()


def _before(weights: Tensor, ids: Tensor, after: int) -> Tensor:
    same = _same(ids)
    places = F.pad(same, (0, after))[..., after:]
    return (weights * places).sum(-1)[same.any(-1)].mean()


def _lookups() -> dict[str, tuple[Tensor, Tensor, int]]:
    draws = Generator().manual_seed(11)
    ids = torch.randint(4, (3, 9), generator=draws)
    logits = torch.randn(3, 9, 9, generator=draws, dtype=torch.float64)
    weights = logits.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
    return {f"{after} after": (weights, ids, after) for after in (1, 3)}


check_lookup_score = Exercise(
    "lookup_score",
    "Check ``lookup_score(weights, ids, after)`` of chapter 11.",
    _lookup_score,
    {
        "is the mean over all queries; only those count whose word stood before": _every_query,
        "looks before the earlier places and not after them": _before,
        "looks after the last earlier place alone; there may be several": _last_alone,
        "looks at the earlier places themselves": (
            lambda weights, ids, after: _lookup_score(weights, ids, 0)
        ),
        "looks one word too far": (
            lambda weights, ids, after: _lookup_score(weights, ids, after + 1)
        ),
    },
    _lookups,
)


def _written(weights: Tensor, values: Tensor, output: Tensor) -> Tensor:
    size: Tensor = (values @ output).norm(dim=-1)
    return weights * size


def _writings() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    draws = Generator().manual_seed(12)
    weights, values, output = (
        torch.randn(*shape, generator=draws, dtype=torch.float64)
        for shape in ((3, 5), (5, 2), (2, 4))
    )
    return {"3 queries, 5 keys": (weights.softmax(-1), values, output)}


check_written = Exercise(
    "written",
    "Check ``written(weights, values, output)`` of chapter 11.",
    _written,
    {
        "leaves W_O out: a value's size before it": (
            lambda weights, values, output: weights * values.norm(dim=-1)
        ),
        "leaves the weights out": (
            lambda weights, values, output: (values @ output).norm(dim=-1).expand_as(weights)
        ),
        "squares the sizes": (
            lambda weights, values, output: weights * (values @ output).square().sum(-1)
        ),
        "is the share of all that is written to a query; the size was asked for": (
            lambda *given: _written(*given) / _written(*given).sum(-1, keepdim=True)
        ),
        "is the size of the sum over keys": (
            lambda weights, values, output: (weights @ values @ output).norm(dim=-1)
        ),
    },
    _writings,
)
