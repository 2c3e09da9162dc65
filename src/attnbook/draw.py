"""Initial values of one matrix: every distribution of the package, by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from attnbook.checks import check_floating, check_sizes

Distribution = Literal["normal", "uniform"]


@dataclass(frozen=True)
class Draw:
    """How the entries of one matrix are drawn: independent, with mean zero.

    A matrix takes ``fan_in`` numbers to ``fan_out`` numbers. An embedding table is the matrix
    that a one-hot vector is multiplied with, so its fan-in is the vocabulary and its fan-out is
    ``d_model``.
    """

    distribution: Distribution
    std: Callable[[int, int], float]
    """Standard deviation as a function of (fan_in, fan_out)."""
    formula: str
    """The same in words, for tables."""
    source: str
    """Who starts so."""


DRAWS: dict[str, Draw] = {
    "inverse_sqrt": Draw(
        "normal",
        lambda fan_in, fan_out: fan_out**-0.5,
        "N(0, 1/fan_out)",
        "embeddings of tensor2tensor and fairseq (fan_out = d_model)",
    ),
    "unit": Draw(
        "normal",
        lambda fan_in, fan_out: 1.0,
        "N(0, 1)",
        "torch.nn.Embedding; embeddings of Dive into Deep Learning",
    ),
    "gpt2": Draw(
        "normal",
        lambda fan_in, fan_out: 0.02,
        "N(0, 0.02²)",
        "embeddings and matrices of BERT and GPT-2",
    ),
    "glorot": Draw(
        "uniform",
        lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
        "U, variance 2/(fan_in + fan_out)",
        "Glorot and Bengio 2010, eq. 16; matrices of tensor2tensor, and with them the embeddings "
        "of the Annotated Transformer",
    ),
    "glorot_normal": Draw(
        "normal",
        lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
        "N(0, 2/(fan_in + fan_out))",
        "Glorot and Bengio 2010, eq. 12; matrices of DeepNet",
    ),
    "he": Draw(
        "normal",
        lambda fan_in, fan_out: math.sqrt(2 / fan_in),
        "N(0, 2/fan_in)",
        "He et al. 2015, eq. 10",
    ),
    "lecun": Draw(
        "normal",
        lambda fan_in, fan_out: fan_in**-0.5,
        "N(0, 1/fan_in)",
        "LeCun et al. 1998, section 4.6",
    ),
    "torch_linear": Draw(
        "uniform",
        lambda fan_in, fan_out: (3 * fan_in) ** -0.5,
        "U(±1/sqrt(fan_in)), variance 1/(3 fan_in)",
        "torch.nn.Linear",
    ),
}
"""The table by name, with these standard deviations.

``"inverse_sqrt"`` 1/sqrt(fan_out), ``"unit"`` 1, ``"gpt2"`` 0.02, ``"glorot"`` and
``"glorot_normal"`` sqrt(2/(fan_in + fan_out)), ``"he"`` sqrt(2/fan_in), ``"lecun"``
1/sqrt(fan_in), ``"torch_linear"`` 1/sqrt(3 fan_in). ``"glorot"`` and ``"torch_linear"`` are
uniform, the others normal.

:meta hide-value:
"""


def draw_(
    weight: Float[Tensor, "..."],
    name: str,
    *,
    fan_in: int,
    fan_out: int,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    r"""Redraw ``weight`` in place by the named row of :data:`DRAWS`.

    Every entry is drawn with mean 0 and the standard deviation
    :math:`\sigma(\text{fan\_in}, \text{fan\_out})` of the table: from
    :math:`\mathcal N(0, \sigma^2)`, or from
    :math:`\mathcal U(-\sqrt3\,\sigma, \sqrt3\,\sigma)`, whose variance is :math:`\sigma^2` too.
    (In bfloat16 torch's own uniform numbers lean to the lower side, by about 1/256 of the bound:
    draw in float32, and cast then.)

    Args:
        weight: the matrix, in any layout: ``nn.Linear`` stores (fan_out, fan_in), an embedding
            (fan_in, fan_out), so the fans are said and not guessed.
        name: a key of :data:`DRAWS`.
        fan_in: how many numbers the matrix takes.
        fan_out: how many it gives.
        generator: source of randomness; torch's global one if none is given.

    Returns:
        ``weight`` itself.

    Raises:
        TypeError: if ``weight`` is no tensor of floating type.
        ValueError: if the name is unknown, or a fan is not positive.

    Source: that of each draw stands in its row of :data:`DRAWS`.

    Example:
        >>> weight = draw_(torch.empty(1000, 100), "inverse_sqrt", fan_in=1000, fan_out=100)
        >>> round(weight.std().item(), 2)   # 1/sqrt(100)
        0.1
    """
    row = get_draw(name)
    check_sizes(fan_in=fan_in, fan_out=fan_out)
    return fill_(weight, row.distribution, row.std(fan_in, fan_out), generator)


def fill_(
    weight: Float[Tensor, "..."],
    distribution: Distribution,
    std: float,
    generator: Generator | None = None,
) -> Float[Tensor, "..."]:
    """Redraw ``weight`` in place with mean 0 and the given standard deviation; zeros if that is 0.

    Raises:
        TypeError: if ``weight`` is no tensor of floating type.
        ValueError: if the distribution is neither of the two.

    Example:
        >>> fill_(torch.empty(2), "uniform", 0.0)
        tensor([0., 0.])
    """
    check_floating("weight", weight)
    if distribution not in get_args(Distribution):
        raise ValueError(f"distribution must be 'normal' or 'uniform', got {distribution!r}")
    with torch.no_grad():
        if std == 0:
            return weight.zero_()
        if distribution == "normal":
            return weight.normal_(0.0, std, generator=generator)
        bound = math.sqrt(3) * std
        return weight.uniform_(-bound, bound, generator=generator)


def get_draw(name: str) -> Draw:
    """The row of the table with this name; ``ValueError`` with the known names if there is none."""
    if not isinstance(name, str) or name not in DRAWS:
        raise ValueError(f"unknown initialization {name!r}; known: {', '.join(DRAWS)}")
    return DRAWS[name]
