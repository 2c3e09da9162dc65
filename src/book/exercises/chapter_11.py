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


def _mean_place(weights: Tensor, ids: Tensor, after: int) -> Tensor:
    places = F.pad(_same(ids), (after, 0))[..., : ids.shape[1]]
    return weights[places].mean()


def _rolled(weights: Tensor, ids: Tensor, after: int) -> Tensor:
    same = _same(ids)
    return (weights * same.roll(after, -1)).sum(-1)[same.any(-1)].mean()


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
    cases = {}
    for n, after in ((9, 1), (9, 3), (7, 2)):
        ids = torch.randint(4, (3, n), generator=draws)
        logits = torch.randn(3, n, n, generator=draws, dtype=torch.float64)
        weights = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
        cases[f"{n} words, {after} after"] = weights, ids, after
    return cases


check_lookup_score = Exercise(
    "lookup_score",
    "Check ``lookup_score(weights, ids, after)`` of chapter 11.",
    _lookup_score,
    {
        "is the mean over all queries; only those count whose word stood before, and a query's "
        "own place does not: tril(-1)": _every_query,
        "is the mean over the places; a query's places are added up": _mean_place,
        "rolls: the places that leave on the right come in again on the left": _rolled,
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
    length: Tensor = (values @ output).norm(dim=-1)
    return weights * length


def _writings() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    draws = Generator().manual_seed(12)
    weights, values, output = (
        torch.randn(*shape, generator=draws, dtype=torch.float64)
        for shape in ((3, 5), (5, 2), (2, 4))
    )
    return {
        f"{n} queries, {m} keys": (weights[:n, :m].softmax(-1), values[:m], output[:, :d_model])
        for n, m, d_model in ((3, 5, 4), (2, 4, 3))
    }


check_written = Exercise(
    "written",
    "Check ``written(weights, values, output)`` of chapter 11.",
    _written,
    {
        "leaves W_O out: a value's length before it": (
            lambda weights, values, output: weights * values.norm(dim=-1)
        ),
        "leaves the weights out": (
            lambda weights, values, output: (values @ output).norm(dim=-1).expand_as(weights)
        ),
        "squares the lengths": (
            lambda weights, values, output: weights * (values @ output).square().sum(-1)
        ),
        "squares the weights, too: the square of a length was not asked for": (
            lambda *given: _written(*given).square()
        ),
        "squares the weights": lambda weights, *given: _written(weights.square(), *given),
        "is the root mean square of the entries; a length is the root of the sum of squares": (
            lambda *given: _written(*given) / given[-1].shape[-1] ** 0.5
        ),
        "adds up absolute values; a length is the root of the sum of squares": (
            lambda weights, values, output: weights * (values @ output).abs().sum(-1)
        ),
        "is the share of all that is written to a query; the length was asked for": (
            lambda *given: _written(*given) / _written(*given).sum(-1, keepdim=True)
        ),
        "is the length of the sum over keys": (
            lambda weights, values, output: (weights @ values @ output).norm(dim=-1)
        ),
    },
    _writings,
)
