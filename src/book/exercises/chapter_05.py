"""Exercises of chapter 05."""

from functools import partial
from math import prod

import torch
from torch import Generator, Tensor

from book.exercises.mistakes import Exercise, Function, MistakeError


def _counted(*shape: int) -> Tensor:
    return torch.arange(prod(shape), dtype=torch.float64).view(shape)


def _split_heads(x: Tensor, n_heads: int) -> Tensor:
    return x.view(*x.shape[:-1], n_heads, -1).transpose(1, 2)


check_split_heads = Exercise(
    "split_heads",
    "Check ``split_heads(x, n_heads)`` of chapter 05.",
    _split_heads,
    {
        "views as (batch, heads, tokens, d_head) at once: head 0 holds whole tokens and not the "
        "first columns of every token; view as (batch, tokens, heads, d_head), then transpose": (
            lambda x, n_heads: x.view(len(x), n_heads, x.shape[1], -1)
        ),
        "is (batch, tokens, heads, d_head): the transpose is missing": (
            lambda x, n_heads: x.unflatten(-1, (n_heads, -1))
        ),
        "gives head h every n_heads-th column; it is the h-th run of neighbouring columns": (
            lambda x, n_heads: x.unflatten(-1, (-1, n_heads)).permute(0, 3, 1, 2)
        ),
        "transposes the last two sizes: it is (batch, heads, d_head, tokens)": (
            lambda x, n_heads: _split_heads(x, n_heads).mT
        ),
        "lets batch and heads change places: it is (heads, batch, tokens, d_head)": (
            lambda x, n_heads: _split_heads(x, n_heads).transpose(0, 1)
        ),
        "numbers the heads from the end": lambda x, n_heads: _split_heads(x, n_heads).flip(1),
    },
    lambda: {
        f"{n} tokens of width 12, {n_heads} heads": (_counted(2, n, 12), n_heads)
        for n, n_heads in ((6, 3), (5, 2))
    },
)


check_merge_heads = Exercise(
    "merge_heads",
    "Check ``merge_heads(heads)`` of chapter 05.",
    lambda heads: heads.transpose(1, 2).flatten(-2),
    {
        "reshapes without transposing back: a row then holds several tokens of one head": (
            lambda heads: heads.reshape(len(heads), heads.shape[2], -1)
        ),
        "transposes but does not put the heads side by side": lambda heads: heads.transpose(1, 2),
        "mixes the columns of the heads: head 0's columns come first, then head 1's": (
            lambda heads: heads.permute(0, 2, 3, 1).flatten(-2)
        ),
        "adds the heads up; they are put side by side, and W_O adds": lambda heads: heads.sum(1),
        "takes the mean of the heads; they are put side by side": lambda heads: heads.mean(1),
    },
    lambda: {
        f"{n_heads} heads of {d_head} numbers, {n} tokens": (_counted(2, n_heads, n, d_head),)
        for n_heads, d_head, n in ((3, 4, 6), (2, 3, 5))
    },
)


check_shared_as_full = Exercise(
    "shared_as_full",
    "Check ``shared_as_full(block, n_heads)`` of chapter 05.",
    lambda block, n: torch.block_diag(*[block] * n),
    {
        "repeats the block everywhere: a slice must not reach the other heads, so there are zeros "
        "outside the diagonal": lambda block, n: block.repeat(n, n),
        "stacks the blocks side by side: that gives d_head outputs, each a sum over all heads' "
        "slices; each head has d_head outputs of its own": (lambda block, n: block.repeat(1, n)),
        "stacks the blocks below each other: that takes d_head inputs, the same for all heads; "
        "each head has a slice of d_head of its own": (lambda block, n: block.repeat(n, 1)),
        "transposes the block: both weights are (out, in)": (
            lambda block, n: torch.block_diag(*[block.T] * n)
        ),
        "spreads each number of the block over the heads: the heads' columns are neighbours": (
            lambda block, n: torch.kron(block, torch.eye(n))
        ),
        "fills one block of the diagonal and leaves the other heads zero": (
            lambda block, n: torch.block_diag(block, *[0 * block] * (n - 1))
        ),
    },
    lambda: {
        f"a block of {d_head} × {d_head}, {n_heads} heads": (
            torch.randn(d_head, d_head, generator=Generator().manual_seed(0)),
            n_heads,
        )
        for d_head, n_heads in ((2, 3), (4, 2))
    },
)


def _ordered(order: Tensor, weight: Tensor) -> Tensor:
    """The heads of a weight, as many as the order is long, in that order."""
    return weight.view(len(order), -1, weight.shape[1])[order].flatten(0, 1)


def _run_from_tiled(from_tiled: Function, weight: Tensor, *numbers: int) -> object:
    result = from_tiled(weight, *numbers)
    if isinstance(result, Tensor) and result.ndim == 3:
        raise MistakeError("from_tiled: the heads are not put below each other again")
    return result


check_from_tiled = Exercise(
    "from_tiled",
    "Check ``from_tiled(weight, n_heads, n_kv_heads)`` of chapter 05.",
    lambda weight, n, n_kv: _ordered(torch.arange(n).view(-1, n_kv).T.flatten(), weight),
    {
        "leaves the heads as they are": lambda weight, n, n_kv: weight,
        "goes the other way, from neighbours to tiled": (
            lambda weight, n, n_kv: _ordered(torch.arange(n).view(n_kv, -1).T.flatten(), weight)
        ),
        "moves single rows; a head is d_head rows, which stay together": (
            lambda weight, n, n_kv: weight[torch.arange(len(weight)).view(-1, n_kv).T.flatten()]
        ),
        "turns the order of the heads round": (
            lambda weight, n, n_kv: _ordered(torch.arange(n).flip(0), weight)
        ),
    },
    lambda: {
        f"{n} heads, {n_kv} sets of keys and values": (_counted(2 * n, 5), n, n_kv)
        for n, n_kv in ((6, 2), (6, 3), (8, 2))
    },
    _run_from_tiled,
)


def _cache_bytes(*sizes: int, kept: int = 2, without: int | None = None) -> int:
    return kept * prod(size for i, size in enumerate(sizes) if i != without)


check_cache_bytes = Exercise(
    "cache_bytes",
    "Check ``cache_bytes(n_layers, n_tokens, n_kv_heads, d_head, bytes_each)`` of chapter 05.",
    _cache_bytes,
    {
        "counts the keys or the values; both are kept": partial(_cache_bytes, kept=1),
        "counts queries too; a token's query is used once and not kept": (
            partial(_cache_bytes, kept=3)
        ),
        "counts one layer": partial(_cache_bytes, without=0),
        "counts one token": partial(_cache_bytes, without=1),
        "counts one set of keys and values": partial(_cache_bytes, without=2),
        "leaves d_head out": partial(_cache_bytes, without=3),
        "counts numbers; bytes were asked for": partial(_cache_bytes, without=4),
        "grows with the square of the tokens: the table of attention weights is not kept": (
            lambda *sizes: sizes[1] * _cache_bytes(*sizes)
        ),
        "counts bits; bytes were asked for": partial(_cache_bytes, kept=16),
    },
    lambda: {
        "{} layers, {} tokens, {} sets of {} numbers, {} bytes each".format(*sizes): sizes
        for sizes in ((3, 7, 5, 11, 13), (4, 10, 3, 5, 2))
    },
)
