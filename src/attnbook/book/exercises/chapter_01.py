"""Exercises of chapter 01."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attnbook.book.exercises.mistakes import MistakeError, compare, passed
from attnbook.embedding import TokenEmbedding
from attnbook.positions import sinusoidal_positions


def check_embed(embed: Callable[[Tensor, Tensor, bool], Tensor]) -> None:
    """Check ``embed(ids, table, scaled)`` of chapter 01: look up, and multiply if scaled.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_embed(lambda ids, table, scaled: table[ids] * (table.shape[1] ** 0.5) ** scaled)
        ✓ embed is right
    """
    generator = Generator().manual_seed(0)
    table = torch.randn(6, 4, generator=generator)
    vocab_size, d_model = table.shape
    ids = torch.tensor([[5, 0, 0], [2, 1, 5]])
    found = table[ids]
    for scaled in (False, True):
        factor = math.sqrt(d_model)
        module = TokenEmbedding(vocab_size, d_model, scaled=scaled).to(table.dtype)
        with torch.no_grad():
            module.weight.copy_(table)
            right = module(ids)
        mistakes = (
            {
                "scaled=True changes nothing: what is looked up is not multiplied": found,
                "multiplies by d_model; it is the square root of d_model": found * d_model,
                "divides by sqrt(d_model); the factor multiplies": found / factor,
                "multiplies by the root of the vocabulary's size; it is that of d_model, "
                "table.shape[1]": found * math.sqrt(vocab_size),
                "multiplies by the root of the sequence's length; it is that of d_model, "
                "table.shape[1]": found * math.sqrt(ids.shape[-1]),
            }
            if scaled
            else {
                "multiplies although scaled=False": found * factor,
                "divides although scaled=False": found / factor,
            }
        )
        compare("embed", embed(ids, table.clone(), scaled), right, mistakes, f"scaled={scaled}")
    passed("embed")


def check_sinusoids(sinusoids: Callable[[int, int], Tensor]) -> None:
    """Check ``sinusoids(n_positions, d_model)`` of chapter 01.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_sinusoids(sinusoidal_positions)
        ✓ sinusoids is right
    """
    n_positions, d_model = 7, 8
    right = sinusoidal_positions(n_positions, d_model)
    longer = sinusoidal_positions(n_positions + 1, d_model)
    sine, cosine = right[:, 0::2], right[:, 1::2]
    position = torch.arange(n_positions, dtype=right.dtype)[:, None]

    def with_exponent(exponent: Tensor) -> Tensor:
        angle = position * 10000.0**-exponent
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)

    pair = torch.arange(d_model // 2, dtype=right.dtype)
    column = torch.arange(d_model, dtype=right.dtype)
    every = position * 10000.0 ** (-column / d_model)
    mistakes = {
        "all sines come first and all cosines after them; here they alternate": torch.cat(
            [sine, cosine], dim=-1
        ),
        "sine and cosine have changed places: column 0 is a sine": torch.stack(
            [cosine, sine], dim=-1
        ).flatten(-2),
        "counts positions from 1; the first one is 0": longer[1:],
        "the exponent of pair i is i/d_model; it is 2i/d_model": with_exponent(pair / d_model),
        "the exponent of pair i is 4i/d_model: 2i was doubled again": with_exponent(
            4 * pair / d_model
        ),
        "the two columns of a pair have different frequencies; both use exponent 2i/d_model": (
            torch.where(column % 2 == 0, every.sin(), every.cos())
        ),
        "the frequencies grow with the column; the exponent has a minus": with_exponent(
            -2 * pair / d_model
        ),
        "is transposed: rows are positions": right.T,
    }
    result = sinusoids(n_positions, d_model)
    compare("sinusoids", result, right, mistakes, f"{n_positions} positions, d_model {d_model}")
    passed("sinusoids")


def check_content_share(content_share: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Check ``content_share(queries, content_keys, position_keys)`` of chapter 01.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def content_share(queries, content_keys, position_keys):
        ...     content = queries @ content_keys.T
        ...     logits = content + queries @ position_keys.T
        ...     content = content - content.mean(-1, keepdim=True)
        ...     logits = logits - logits.mean(-1, keepdim=True)
        ...     return content.pow(2).mean() / logits.pow(2).mean()
        >>> check_content_share(content_share)
        ✓ content_share is right
    """
    generator = Generator().manual_seed(0)
    queries = torch.randn(9, 4, generator=generator) + 1.0
    content_keys = torch.randn(6, 4, generator=generator) + 0.7
    position_keys = 0.5 * torch.randn(6, 4, generator=generator) - 0.4
    content, position = queries @ content_keys.T, queries @ position_keys.T

    def share(part: Tensor, whole: Tensor, dim: int | None) -> Tensor:
        if dim is not None:
            part, whole = (x - x.mean(dim, keepdim=True) for x in (part, whole))
        return part.pow(2).mean() / whole.pow(2).mean()

    right = share(content, content + position, -1)
    mistakes = {
        "the rows are not centred: subtract from each row its mean, which the softmax ignores": (
            share(content, content + position, None)
        ),
        "the columns are centred (over the queries); the softmax runs over the keys": share(
            content, content + position, 0
        ),
        "gives the share of the position; the content was asked for": share(
            position, content + position, -1
        ),
        "is a ratio of standard deviations; a share of the variance is its square": right.sqrt(),
        "divides content by position and not by the whole": share(content, position, -1),
        "one mean of the whole table is subtracted; each row has its own": (
            (content - content.mean()).pow(2).mean()
            / (content + position - (content + position).mean()).pow(2).mean()
        ),
    }
    result = content_share(queries, content_keys, position_keys)
    if isinstance(result, float):
        result = torch.tensor(result)
    compare("content_share", result, right, mistakes, "9 queries and 6 keys")
    passed("content_share")


def check_matching_rates(matching_rates: Callable[[int, float], tuple[float, float]]) -> None:
    """Check ``matching_rates(d_model, rate)`` of chapter 01: the rates for Adam and for SGD.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_matching_rates(lambda d_model, rate: (d_model ** 0.5 * rate, d_model * rate))
        ✓ matching_rates is right
    """
    for d_model, rate in ((16, 0.5), (100, 0.01)):
        root = math.sqrt(d_model)
        result = matching_rates(d_model, rate)
        if not isinstance(result, tuple) or len(result) != 2:
            raise MistakeError(f"matching_rates must return (Adam's rate, SGD's), got {result!r}")
        for name, given, right, mistakes in (
            (
                "Adam",
                result[0],
                root * rate,
                {
                    rate: "is left as it was, but the entries are sqrt(d_model) times larger",
                    rate / root: "is divided: larger entries need larger steps",
                    d_model * rate: "is multiplied by d_model: that is SGD's; Adam divides "
                    "the gradient's size out",
                },
            ),
            (
                "SGD",
                result[1],
                d_model * rate,
                {
                    rate: "is left as it was, but entries grew and gradients shrank",
                    root * rate: "is multiplied by sqrt(d_model): that makes up for the larger "
                    "entries, but the gradient is sqrt(d_model) times smaller too",
                    rate / root: "is divided: larger entries need larger steps",
                    rate / d_model: "is divided: larger entries need larger steps",
                },
            ),
        ):
            if math.isclose(given, right, rel_tol=1e-9):
                continue
            for wrong, words in mistakes.items():
                if math.isclose(given, wrong, rel_tol=1e-9):
                    raise MistakeError(f"matching_rates: {name}'s rate {words}")
            raise MistakeError(
                f"matching_rates: for d_model {d_model} and rate {rate}, {name}'s should be "
                f"{right:g}, got {given:g}"
            )
    passed("matching_rates")
