"""Exercises of chapter 13."""

import torch
from torch import Generator, Tensor

from book.exercises.mistakes import Exercise, parts

Part = tuple[Tensor, Tensor, Tensor]


def _part(logits: Tensor, values: Tensor) -> Part:
    m = logits.amax(dim=1)
    e = (logits - m[:, None]).exp()
    return m, e.sum(dim=1), e @ values


def _halves() -> dict[str, tuple[Part, Part]]:
    draws = Generator().manual_seed(13)
    cases = {}
    for name, scale in (("small logits", 1.0), ("logits of size 500", 500.0)):
        logits = scale * torch.randn(5, 8, generator=draws, dtype=torch.float64)
        values = torch.randn(8, 3, generator=draws, dtype=torch.float64)
        cases[name] = _part(logits[:, :3], values[:3]), _part(logits[:, 3:], values[3:])
    return cases


def _weighted(first: Part, second: Part, a: Tensor, b: Tensor, m: Tensor) -> Part:
    return (
        m,
        a * first[1] + b * second[1],
        a[:, None] * first[2] + b[:, None] * second[2],
    )


def _merged(first: Part, second: Part) -> Part:
    m = torch.maximum(first[0], second[0])
    return _weighted(first, second, (first[0] - m).exp(), (second[0] - m).exp(), m)


def _unscaled(first: Part, second: Part) -> Part:
    one = torch.ones_like(first[0])
    return _weighted(first, second, one, one, torch.maximum(first[0], second[0]))


def _turned(first: Part, second: Part) -> Part:
    m = torch.maximum(first[0], second[0])
    return _weighted(first, second, (m - first[0]).exp(), (m - second[0]).exp(), m)


def _without_maximum(first: Part, second: Part) -> Part:
    zero = torch.zeros_like(first[0])
    return _weighted(first, second, first[0].exp(), second[0].exp(), zero)


def _divided(first: Part, second: Part) -> Part:
    m, total, o = _merged(first, second)
    return m, total, o / total[:, None]


check_merged = Exercise(
    "merged",
    "Check ``merged(first, second)`` of chapter 13.",
    _merged,
    {
        "adds sums that are relative to two different m": _unscaled,
        "grows where it should shrink: the factor is exp(m of the part − m)": _turned,
        "takes the maximum out: correct for small logits, infinite for large": _without_maximum,
        "divides o already; that is done once, at the end": _divided,
    },
    _halves,
    run=lambda merged, *given: dict(
        zip("mlo", parts("merged", merged(*given), 3, "three tensors, (m, l, o)"), strict=True)
    ),
)


def _longest(
    n_bytes: int, n_layers: int, n_kv_heads: int, d_head: int, batch: int, itemsize: int
) -> int:
    return n_bytes // (2 * n_layers * n_kv_heads * d_head * batch * itemsize)


check_longest = Exercise(
    "longest",
    "Check ``longest(n_bytes, n_layers, n_kv_heads, d_head, batch, itemsize)`` of chapter 13.",
    _longest,
    {
        "counts keys and no values": lambda n, *sizes: _longest(2 * n, *sizes),
        "counts one layer": lambda n, layers, *sizes: _longest(n, 1, *sizes),
        "counts one text": lambda n, layers, heads, d_head, batch, itemsize: _longest(
            n, layers, heads, d_head, 1, itemsize
        ),
        "counts numbers and not bytes": lambda n, layers, heads, d_head, batch, itemsize: _longest(
            n, layers, heads, d_head, batch, 1
        ),
        "leaves one byte free: a cache of exactly n_bytes fits": (
            lambda n, *sizes: _longest(n - 1, *sizes)
        ),
        "rounds up: the last token does not fit": lambda n, *sizes: _longest(n, *sizes) + 1,
    },
    lambda: {
        "a small model": (1_002_000, 3, 2, 16, 5, 4),  # 260.9 tokens
        "a large one": (17_000_000_000, 32, 8, 128, 8, 2),  # 16,212.5
        "a cache that is full": (7_680_000, 3, 2, 16, 5, 4),  # 2,000
    },
)
