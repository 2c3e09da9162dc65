"""Exercises of chapter 01."""

import math
from functools import partial

import torch
from torch import Generator, Tensor

from attnbook.embedding import TokenEmbedding
from attnbook.positions import sinusoidal_positions
from book.exercises.mistakes import Exercise, Function, parts


def _embed_cases() -> dict[str, tuple[Tensor, Tensor, bool]]:
    generator = Generator().manual_seed(0)
    ids = torch.tensor([[5, 0, 0], [2, 1, 5]])
    return {
        f"scaled={scaled}, a table of {rows} × {width}": (
            ids[:, :length],
            torch.randn(rows, width, generator=generator),
            scaled,
        )
        for rows, width, length in ((7, 5, 3), (6, 3, 2))
        for scaled in (False, True)
    }


def _embed(ids: Tensor, table: Tensor, scaled: bool) -> Tensor:
    module = TokenEmbedding(*table.shape, scaled=scaled).to(table.dtype)
    with torch.no_grad():
        module.weight.copy_(table)
        found: Tensor = module(ids)
    return found


def _times(factor: Function) -> Function:
    """Multiplies what is looked up, if scaled, by a factor computed from ids and table."""
    return lambda ids, table, scaled: table[ids] * (factor(ids, table) if scaled else 1)


check_embed = Exercise(
    "embed",
    "Check ``embed(ids, table, scaled)`` of chapter 01: look up, and multiply if scaled.",
    _embed,
    {
        "scaled=True changes nothing: what is looked up is not multiplied": _times(lambda *_: 1),
        "multiplies by d_model; it is the square root of d_model": _times(
            lambda ids, table: table.shape[1]
        ),
        "divides by sqrt(d_model); the factor multiplies": _times(
            lambda ids, table: table.shape[1] ** -0.5
        ),
        "multiplies by the root of the vocabulary's size; it is that of d_model, table.shape[1]": (
            _times(lambda ids, table: table.shape[0] ** 0.5)
        ),
        "multiplies by the root of the sequence's length; it is that of d_model, table.shape[1]": (
            _times(lambda ids, table: ids.shape[-1] ** 0.5)
        ),
        "multiplies although scaled=False": (
            lambda ids, table, scaled: table[ids] * table.shape[1] ** 0.5
        ),
        "divides although scaled=False": (
            lambda ids, table, scaled: table[ids] / table.shape[1] ** 0.5
        ),
    },
    _embed_cases,
)


def _sinusoids(n_positions: int, d_model: int, *, exponent: float = 2.0, first: int = 0) -> Tensor:
    pair = torch.arange(d_model // 2)
    position = torch.arange(first, first + n_positions)[:, None]
    angle = position * 10000.0 ** (-exponent * pair / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


def _one_frequency_a_column(n_positions: int, d_model: int) -> Tensor:
    column = torch.arange(d_model)
    angle = torch.arange(n_positions)[:, None] * 10000.0 ** (-column / d_model)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


check_sinusoids = Exercise(
    "sinusoids",
    "Check ``sinusoids(n_positions, d_model)`` of chapter 01.",
    sinusoidal_positions,
    {
        "all sines come first and all cosines after them; here they alternate": (
            lambda n, d: _sinusoids(n, d).unflatten(-1, (-1, 2)).mT.flatten(-2)
        ),
        "sine and cosine have changed places: column 0 is a sine": (
            lambda n, d: _sinusoids(n, d).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        ),
        "counts positions from 1; the first one is 0": partial(_sinusoids, first=1),
        "the exponent of pair i is i/d_model; it is 2i/d_model": partial(_sinusoids, exponent=1.0),
        "the exponent of pair i is 4i/d_model: 2i was doubled again": (
            partial(_sinusoids, exponent=4.0)
        ),
        "the two columns of a pair have different frequencies; both use exponent 2i/d_model": (
            _one_frequency_a_column
        ),
        "the frequencies grow with the column; the exponent has a minus": (
            partial(_sinusoids, exponent=-2.0)
        ),
        "is transposed: rows are positions": lambda n, d: _sinusoids(n, d).T,
    },
    lambda: {f"{n} positions, d_model {d}": (n, d) for n, d in ((7, 8), (4, 6))},
)


def _content_share_cases() -> dict[str, tuple[Tensor, ...]]:
    generator = Generator().manual_seed(0)
    queries = torch.randn(9, 4, generator=generator) + 1.0
    content_keys = torch.randn(6, 4, generator=generator) + 0.7
    position_keys = 0.5 * torch.randn(6, 4, generator=generator) - 0.4
    return {
        "9 queries and 6 keys": (queries, content_keys, position_keys),
        "5 queries and 4 keys": (queries[4:], content_keys[2:], position_keys[:4]),
    }


def _content_share(
    queries: Tensor,
    content_keys: Tensor,
    position_keys: Tensor,
    *,
    center: tuple[int, ...] = (-1,),
    share: str = "content",
    of: str = "logits",
) -> Tensor:
    content, position = queries @ content_keys.T, queries @ position_keys.T
    parts = {"content": content, "position": position, "logits": content + position}
    if center:
        parts = {name: part - part.mean(center, keepdim=True) for name, part in parts.items()}
    return parts[share].pow(2).mean() / parts[of].pow(2).mean()


check_content_share = Exercise(
    "content_share",
    "Check ``content_share(queries, content_keys, position_keys)`` of chapter 01.",
    _content_share,
    {
        "the rows are not centred: subtract from each row its mean, which the softmax ignores": (
            partial(_content_share, center=())
        ),
        "the columns are centred (over the queries); the softmax runs over the keys": (
            partial(_content_share, center=(0,))
        ),
        "gives the share of the position; the content was asked for": (
            partial(_content_share, share="position")
        ),
        "is a ratio of standard deviations; a share of the variance is its square": (
            lambda *given: _content_share(*given).sqrt()
        ),
        "divides content by position and not by the whole": partial(_content_share, of="position"),
        "divides by the sum of both parts' mean squares; the parts are added before squaring": (
            lambda *given: 1 / (1 + 1 / _content_share(*given, of="position"))
        ),
        "is in percent; a share is from 0 to 1": lambda *given: 100 * _content_share(*given),
        "is the mean of the rows' shares; divide the mean squares of the whole tables": (
            lambda queries, *keys: torch.stack([_content_share(q, *keys) for q in queries]).mean()
        ),
        "one mean of the whole table is subtracted; each row has its own": (
            partial(_content_share, center=(0, 1))
        ),
    },
    _content_share_cases,
)


def _two_rates(matching_rates: Function, d_model: int, rate: float) -> dict[str, object]:
    result = matching_rates(d_model, rate)
    adam, sgd = parts("matching_rates", result, 2, "(Adam's rate, SGD's)")
    return {"Adam's rate": adam, "SGD's rate": sgd}


check_matching_rates = Exercise(
    "matching_rates",
    "Check ``matching_rates(d_model, rate)`` of chapter 01: the rates for Adam and for SGD.",
    lambda d, rate: (math.sqrt(d) * rate, d * rate),
    {
        "Adam's rate is left as it was, but the entries are sqrt(d_model) times larger": (
            lambda d, rate: (rate, d * rate)
        ),
        "Adam's rate is divided: larger entries need larger steps": (
            lambda d, rate: (rate / math.sqrt(d), d * rate)
        ),
        "Adam's rate is multiplied by d_model: that is SGD's; Adam divides the gradient's size "
        "out": lambda d, rate: (d * rate, d * rate),
        "SGD's rate is left as it was, but entries grew and gradients shrank": (
            lambda d, rate: (math.sqrt(d) * rate, rate)
        ),
        "SGD's rate is multiplied by sqrt(d_model): that makes up for the larger entries, but the "
        "gradient is sqrt(d_model) times smaller too": (
            lambda d, rate: (math.sqrt(d) * rate, math.sqrt(d) * rate)
        ),
        "SGD's rate is divided by sqrt(d_model): larger entries need larger steps": (
            lambda d, rate: (math.sqrt(d) * rate, rate / math.sqrt(d))
        ),
        "SGD's rate is divided by d_model: larger entries need larger steps": (
            lambda d, rate: (math.sqrt(d) * rate, rate / d)
        ),
    },
    lambda: {f"d_model {d} and rate {rate}": (d, rate) for d, rate in ((16, 0.5), (100, 0.01))},
    _two_rates,
)
