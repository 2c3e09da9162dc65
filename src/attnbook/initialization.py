"""Initial values: every scheme of the package in one table."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor


@dataclass(frozen=True)
class Scheme:
    """How the entries of one matrix are drawn: independent, with mean zero.

    A matrix takes ``fan_in`` numbers to ``fan_out`` numbers. An embedding table is the matrix
    that a one-hot vector is multiplied with, so its fan-in is the vocabulary and its fan-out is
    ``d_model``.
    """

    distribution: Literal["normal", "uniform"]
    std: Callable[[int, int], float]
    """Standard deviation as a function of (fan_in, fan_out)."""
    formula: str
    """The same in words, for tables."""
    source: str
    """Who starts so."""


SCHEMES: dict[str, Scheme] = {
    "inverse_sqrt": Scheme(
        "normal",
        lambda fan_in, fan_out: fan_out**-0.5,
        "N(0, 1/fan_out)",
        "embeddings of tensor2tensor and fairseq (fan_out = d_model)",
    ),
    "unit": Scheme(
        "normal",
        lambda fan_in, fan_out: 1.0,
        "N(0, 1)",
        "torch.nn.Embedding; embeddings of Dive into Deep Learning",
    ),
    "small": Scheme(
        "normal",
        lambda fan_in, fan_out: 0.02,
        "N(0, 0.02²)",
        "embeddings and matrices of BERT and GPT-2",
    ),
    "glorot": Scheme(
        "uniform",
        lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
        "U, variance 2/(fan_in + fan_out)",
        "Glorot and Bengio 2010, eq. 16; matrices of tensor2tensor, and with them the embeddings "
        "of the Annotated Transformer",
    ),
}
"""The table by name, with these standard deviations.

``"inverse_sqrt"`` 1/sqrt(fan_out), ``"unit"`` 1, ``"small"`` 0.02 and ``"glorot"``
sqrt(2/(fan_in + fan_out)); the last one uniform, the others normal.

:meta hide-value:
"""


def initialize_(
    weight: Float[Tensor, "..."],
    scheme: str,
    *,
    fan_in: int,
    fan_out: int,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    r"""Redraw ``weight`` in place by the named row of :data:`SCHEMES`.

    Every entry is drawn with mean 0 and the standard deviation
    :math:`\sigma(\text{fan\_in}, \text{fan\_out})` of the table: from
    :math:`\mathcal N(0, \sigma^2)`, or from
    :math:`\mathcal U(-\sqrt3\,\sigma, \sqrt3\,\sigma)`, whose variance is :math:`\sigma^2` too.

    Args:
        weight: the matrix, in any layout: ``nn.Linear`` stores (fan_out, fan_in), an embedding
            (fan_in, fan_out), so the fans are said and not guessed.
        scheme: a key of :data:`SCHEMES`.
        fan_in: how many numbers the matrix takes.
        fan_out: how many it gives.
        generator: source of randomness; torch's global one if none is given.

    Returns:
        ``weight`` itself.

    Raises:
        ValueError: if the scheme is unknown.

    Example:
        >>> weight = initialize_(torch.empty(1000, 100), "inverse_sqrt", fan_in=1000, fan_out=100)
        >>> round(weight.std().item(), 2)   # 1/sqrt(100)
        0.1
    """
    row = get_scheme(scheme)
    std = row.std(fan_in, fan_out)
    with torch.no_grad():
        if row.distribution == "normal":
            return weight.normal_(0.0, std, generator=generator)
        bound = math.sqrt(3) * std
        return weight.uniform_(-bound, bound, generator=generator)


def get_scheme(name: str) -> Scheme:
    """The row of the table with this name; ``ValueError`` with the known names if there is none."""
    if name not in SCHEMES:
        raise ValueError(f"unknown initialization {name!r}; known: {', '.join(SCHEMES)}")
    return SCHEMES[name]
