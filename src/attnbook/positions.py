"""Where a token is: tables to add, rotations of queries and keys, biases on the logits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from attnbook.initialization import Roles

# Which entries of a vector belong to one frequency: neighbours (2i, 2i+1), or (i, i + d/2).
Layout = Literal["interleaved", "half_split"]
Ramp = Literal["turns", "pairs", "whole pairs"]


def sinusoidal_positions(
    n_positions: int,
    d_model: int,
    *,
    base: float = 10000.0,
    layout: Layout = "interleaved",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "n_positions d_model"]:
    r"""Sinusoidal position encodings.

    .. math::
        P_{p,\,2i} = \sin\!\big(p \cdot \text{base}^{-2i/d}\big), \qquad
        P_{p,\,2i+1} = \cos\!\big(p \cdot \text{base}^{-2i/d}\big)

    The paper interleaves sines and cosines. ``"half_split"`` has all sines first, then all cosines:
    the same columns in another order. (tensor2tensor has that order and other wavelengths: its
    exponents are i/(d/2 − 1).)

    Because :math:`\sin^2 + \cos^2 = 1`, every row has the length :math:`\sqrt{d/2}`, which is a
    root mean square of :math:`1/\sqrt2` per entry, whatever ``d_model``.

    Args:
        n_positions: positions 0 … n_positions − 1.
        d_model: width, an even number.
        base: the longest wavelength is ``2π · base ** (1 - 2 / d_model)`` tokens.
        layout: ``"interleaved"`` or ``"half_split"``.
        dtype: of the table, which is computed in float64; torch's default if not given.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> sinusoidal_positions(50, 64).pow(2).mean().sqrt().item()   # 1/sqrt(2)
        0.707...
    """
    angle = _angles(torch.arange(n_positions), _frequencies(d_model, base))
    table = _join(angle.sin(), angle.cos(), layout)
    return table.to(torch.get_default_dtype() if dtype is None else dtype)


class SinusoidalPositions(nn.Module):
    """The first rows of :func:`sinusoidal_positions`: a buffer, never trained, in no file.

    ``double()``, ``to_empty()`` and the like compute it anew, so that it is exact in every type.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> SinusoidalPositions(100, 16)(torch.tensor([7, 8, 9])).shape
        torch.Size([3, 16])
    """

    table: Tensor

    def __init__(self, max_tokens: int, d_model: int) -> None:
        super().__init__()
        table = sinusoidal_positions(max_tokens, d_model)
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Integer[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """The row of each position."""
        return _rows(self.table, positions)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SinusoidalPositions":
        before = self.table
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.table is not before:
            exact = sinusoidal_positions(*self.table.shape, dtype=self.table.dtype)
            self.table = exact.to(self.table.device)
        return self


class LearnedPositions(nn.Module):
    r"""One trained vector for each position, and nothing beyond the last.

    The table is the parameter ``table``, (max_tokens, d_model). It starts as N(0, 0.02²), as in
    transformers' BERT and GPT-2. (OpenAI's own GPT-2 starts it as N(0, 0.01²).)

    Source: Gehring et al. 2017, section 3.1; Devlin et al. 2019, section 3.

    Example:
        >>> LearnedPositions(100, 16)(torch.tensor([7, 8, 9])).shape
        torch.Size([3, 16])
        >>> LearnedPositions(100, 16)(torch.tensor([99, 100]))
        Traceback (most recent call last):
        ValueError: the table has positions 0 … 99, got 99 … 100
    """

    roles: ClassVar[Roles] = {"table": "positions"}

    def __init__(self, max_tokens: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_tokens, d_model) * 0.02)

    def forward(self, positions: Integer[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """The row of each position.

        Raises:
            ValueError: if a position is beyond the table.
        """
        return _rows(self.table, positions)


def count_positions(
    padding_mask: Bool[Tensor, "batch ... keys"] | None, n_keys: int, device: torch.device
) -> Integer[Tensor, "*batch keys"]:
    """The position of each key among the real ones: padding may come first.

    Example:
        >>> count_positions(torch.tensor([[False, False, True, True]]), 4, torch.device("cpu"))
        tensor([[0, 0, 0, 1]])
    """
    if padding_mask is None:
        return torch.arange(n_keys, device=device)
    real = padding_mask.flatten(1)
    if real.shape[1] != n_keys:  # a mask of one token would broadcast
        raise ValueError(
            f"padding_mask must be of all {n_keys} tokens, the cached ones too, got {real.shape[1]}"
        )
    return (real.cumsum(dim=-1) - 1).clamp(min=0)


class Position:
    """How an attention is told where its tokens are: override one method, or both.

    This one does nothing. Positions count tokens, as integers: of shape (tokens,), or (batch,
    tokens) where there is padding. One with parameters is an ``nn.Module``, too. In a whole model
    it takes the place of ``"none"``: ``block.attention.position = T5(n_heads)``.

    Source: the two ways that are in use: Su et al. 2021 (RoFormer) turn queries and keys, Shaw et
    al. 2018, Raffel et al. 2020 (T5) and Press et al. 2022 (ALiBi) add to the logits.

    Example:
        >>> from attnbook import MultiHeadAttention
        >>> class T5(nn.Module, Position):
        ...     def __init__(self, n_heads, furthest=8):
        ...         super().__init__()
        ...         self.offsets = nn.Parameter(torch.zeros(n_heads, furthest + 1))
        ...     def bias(self, n_heads, query_positions, key_positions, dtype):
        ...         distance = query_positions[..., :, None] - key_positions[..., None, :]
        ...         near = distance.abs().clamp(max=self.offsets.shape[1] - 1)  # (…, queries, keys)
        ...         return self.offsets[:, near].movedim(0, -3)  # (…, heads, queries, keys)
        >>> attention = MultiHeadAttention(16, 2, position=T5(2))
        >>> attention(torch.randn(1, 5, 16), causal=True).shape
        torch.Size([1, 5, 16])
    """

    needs_causal = False
    """Whether an attention without a causal mask is an error."""

    def rotate(
        self,
        x: Float[Tensor, "... tokens d_head"],
        positions: Integer[Tensor, "*batch tokens"],
    ) -> Float[Tensor, "... tokens d_head"]:
        """Queries or keys, changed according to their positions."""
        return x

    def rotate_both(
        self,
        query: Float[Tensor, "... tokens d_head"],
        key: Float[Tensor, "... tokens d_head"],
        positions: Integer[Tensor, "*batch tokens"],
    ) -> tuple[Float[Tensor, "... tokens d_head"], Float[Tensor, "... tokens d_head"]]:
        """Queries and keys of the same tokens: for what the two can share."""
        return self.rotate(query, positions), self.rotate(key, positions)

    def bias(
        self,
        n_heads: int,
        query_positions: Integer[Tensor, "*batch queries"],
        key_positions: Integer[Tensor, "*batch keys"],
        dtype: torch.dtype,
    ) -> Float[Tensor, "*batch heads queries keys"] | None:
        """What is added to the logits, heads before queries, a batch before heads."""
        return None


@dataclass(frozen=True)
class RotaryScaling:
    r"""Lower frequencies for rotary positions, so that a model reads longer sequences.

    .. math::
        \theta'_i = s_i\,\theta_i + (1 - s_i)\,\theta_i / \text{factor}, \qquad
        s_i = \operatorname{clamp}\!\Big(
            \frac{\text{original} \cdot \theta_i / 2\pi - \text{low}}{\text{high} - \text{low}},
            0, 1\Big)

    Without ``original_tokens`` all frequencies are divided: :math:`s_i = 0`. This is linear in the
    turns, as in Llama 3. YaRN's code is linear in the number of the pair: :math:`s_i` falls from 1
    at the pair that turns ``high`` times, rounded down, to 0 at that which turns ``low`` times,
    rounded up. It also makes all logits larger.

    Args:
        factor: how much lower the low frequencies become.
        original_tokens: length that the model was trained for.
        low: turns within that length below which a frequency is divided.
        high: turns above which it stays.
        ramp: what :math:`s_i` is linear in: ``"turns"`` (Llama 3), ``"whole pairs"`` (YaRN), or
            ``"pairs"``, without rounding (``truncate=False``).
        attention_factor: on rotated queries and keys: YaRN's is ``0.1 * log(factor) + 1``.

    Source: Chen et al. 2023, section 2.3 (linear); Peng et al. 2023 (YaRN), sections 3.2 and 3.4;
    transformers 5.23.0, ``modeling_rope_utils.py`` (``_compute_llama3_parameters``,
    ``_compute_yarn_parameters``).

    Example:
        >>> RotaryScaling(8.0).apply(torch.tensor([1.0, 0.5]))
        tensor([0.1250, 0.0625])
    """

    factor: float
    original_tokens: int | None = None
    low: float = 1.0
    high: float = 4.0
    ramp: Ramp = "turns"
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what would give angles that are infinite, NaN or turned around."""
        if self.ramp not in get_args(Ramp):
            raise ValueError(f"ramp must be one of {get_args(Ramp)}, got {self.ramp!r}")
        lowest = -math.inf if self.ramp == "turns" else 0.0  # the others need its logarithm
        if not (self.factor > 0 and lowest < self.low < self.high):
            raise ValueError(
                "factor must be positive and low below high, got "
                f"factor={self.factor}, low={self.low} and high={self.high}"
            )

    def apply(
        self, frequencies: Float[Tensor, "half"], base: float = 10000.0
    ) -> Float[Tensor, "half"]:
        """The frequencies that take the place of these, which are powers of ``base``."""
        if self.original_tokens is None:
            return frequencies / self.factor
        turns = self.original_tokens * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        if self.ramp != "turns":
            kept = self._kept_pairs(len(frequencies), self.original_tokens, base)
        return kept * frequencies + (1 - kept) * frequencies / self.factor

    def _kept_pairs(self, half: int, original: int, base: float) -> Float[Tensor, "half"]:
        first, last = (
            half * math.log(original / (2 * math.pi * turns)) / math.log(base)
            for turns in (self.high, self.low)
        )
        if self.ramp == "whole pairs":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half - 1)
        last += 0.001 * (first == last)
        pairs = torch.arange(half, dtype=torch.float64, device="cpu")
        return 1 - ((pairs - first) / (last - first)).clamp(0, 1)


@dataclass(frozen=True)
class Rotary(Position):
    r"""Rotary positions: turn each pair of a query's or key's entries by an angle.

    .. math::
        \begin{pmatrix} x'_a \\ x'_b \end{pmatrix} =
        \begin{pmatrix} \cos p\theta_i & -\sin p\theta_i \\
                        \sin p\theta_i & \phantom{-}\cos p\theta_i \end{pmatrix}
        \begin{pmatrix} x_a \\ x_b \end{pmatrix},
        \qquad \theta_i = \text{base}^{-2i/d_\text{head}}

    Pair :math:`i` is :math:`(a, b) = (2i,\, 2i{+}1)` when interleaved (the paper, Meta's Llama)
    and :math:`(i,\, i + d_\text{head}/2)` when half-split (GPT-NeoX, Hugging Face's Llama).
    Queries and keys are turned, values are not, so a score depends on the two positions through
    their difference alone.

    Args:
        layout: ``"half_split"`` or ``"interleaved"``.
        base: the longest wavelength is ``2π · base ** (1 - 2 / d_head)`` tokens.
        fraction: share of each head's entries that are turned, the first ones; they count as
            :math:`d_\text{head}` above (GPT-NeoX's ``rotary_pct``).
        scaling: lower frequencies for longer sequences.

    Source: Su et al. 2021 (RoFormer), section 3.2.2, eq. 15.

    Example:
        >>> query, key = torch.randn(1, 8), torch.randn(1, 8)
        >>> def score(i, j):
        ...     turned = Rotary().rotate(query, torch.tensor([i]))
        ...     return (turned @ Rotary().rotate(key, torch.tensor([j])).mT).item()
        >>> abs(score(3, 1) - score(103, 101)) < 1e-4
        True
    """

    layout: Layout = "half_split"
    base: float = 10000.0
    fraction: float = 1.0
    scaling: RotaryScaling | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown layout, a base whose angles are NaN, and a share that is none."""
        if self.layout not in get_args(Layout):
            raise ValueError(f"layout must be 'interleaved' or 'half_split', got {self.layout!r}")
        if self.base == 1 and self.scaling is not None and self.scaling.ramp != "turns":
            raise ValueError("base must not be 1 where a scaling counts pairs: all are equal")
        if not (self.base > 0 and 0 < self.fraction <= 1):
            raise ValueError(
                "base must be positive, and fraction above 0 and at most 1, got "
                f"base={self.base} and fraction={self.fraction}"
            )

    def rotate(
        self,
        x: Float[Tensor, "... tokens d_head"],
        positions: Integer[Tensor, "*batch tokens"],
    ) -> Float[Tensor, "... tokens d_head"]:
        """Turn each token's vector according to its position, any integer."""
        return self.turn(x, *self.tables(x, positions))

    def rotate_both(
        self,
        query: Float[Tensor, "... tokens d_head"],
        key: Float[Tensor, "... tokens d_head"],
        positions: Integer[Tensor, "*batch tokens"],
    ) -> tuple[Float[Tensor, "... tokens d_head"], Float[Tensor, "... tokens d_head"]]:
        """Turn queries and keys of the same tokens: the angles are computed once."""
        cos, sin = self.tables(query, positions)
        return self.turn(query, cos, sin), self.turn(key, cos, sin)

    def tables(
        self,
        x: Float[Tensor, "... tokens d_head"],
        positions: Integer[Tensor, "*batch tokens"],
    ) -> tuple[Float[Tensor, "... tokens d_turned"], Float[Tensor, "... tokens d_turned"]]:
        """For each entry the cosine of its angle, and the sine with the sign of the matrix."""
        frequencies = _frequencies(int(self.fraction * x.shape[-1]), self.base)
        if self.scaling is not None:
            frequencies = self.scaling.apply(frequencies, self.base)
        angle = _angles(positions, frequencies)  # (tokens, d/2) or (batch, tokens, d/2)
        if positions.dim() > 1:
            angle = angle.unsqueeze(-3)  # (batch, 1, tokens, d/2): the same in all heads
        factor = 1.0 if self.scaling is None else self.scaling.attention_factor
        cos, sin = (factor * angle.cos()).to(x), (factor * angle.sin()).to(x)
        return _join(cos, cos, self.layout), _join(-sin, sin, self.layout)

    def turn(
        self,
        x: Float[Tensor, "... tokens d_head"],
        cos: Float[Tensor, "... tokens d_turned"],
        sin: Float[Tensor, "... tokens d_turned"],
    ) -> Float[Tensor, "... tokens d_head"]:
        """Turn each token's vector by angles from :meth:`tables`."""
        width = cos.shape[-1]
        if width < x.shape[-1]:
            return torch.cat([self.turn(x[..., :width], cos, sin), x[..., width:]], dim=-1)
        first, second = _split(x, self.layout)
        return torch.addcmul(x * cos, _join(second, first, self.layout), sin)


def convert_rotary_weight(
    weight: Float[Tensor, "outputs ..."], n_heads: int, *, to: Layout
) -> Float[Tensor, "outputs ..."]:
    r"""Reorder the outputs of W_Q or W_K, head by head, from one rotary layout to the other.

    Entry :math:`2i` of each head moves to :math:`i`, and entry :math:`2i+1` to
    :math:`i + d_\text{head}/2` (``to="half_split"``), or back (``to="interleaved"``). Rotated in
    its own layout, each pair then gives the same scores.

    Args:
        weight: as ``nn.Linear`` stores it, (n_heads · d_head, d_model); or a bias, (n_heads ·
            d_head,).
        n_heads: heads in ``weight``: for W_K the number of key heads.
        to: the layout of the result; ``weight`` is in the other one.

    Source: Hugging Face transformers 5.23.0, ``models/llama/convert_llama_weights_to_hf.py``
    (``permute``), does this to Meta's weights.

    Example:
        >>> weight = torch.arange(8.0)[:, None]           # one head, d_head 8
        >>> convert_rotary_weight(weight, 1, to="half_split")[:, 0]
        tensor([0., 2., 4., 6., 1., 3., 5., 7.])
    """
    other: Layout = "interleaved" if to == "half_split" else "half_split"
    heads = weight.unflatten(0, (n_heads, -1)).movedim(1, -1)  # (heads, …, d_head)
    return _join(*_split(heads, other), to).movedim(-1, 1).flatten(0, 1)


@dataclass(frozen=True)
class ALiBi(Position):
    r"""Attention with linear biases: each head prefers near keys, by its own slope.

    .. math::
        B_{hij} = -m_h\,(p_i - p_j) \quad\text{(causal)}, \qquad
        B_{hij} = -m_h\,|p_i - p_j| \quad\text{(bidirectional)}

    with the slopes :math:`m_h` from :func:`alibi_slopes`. Up to the query's own position the two
    are equal. Beyond it the causal form *grows*, so it needs a causal mask. A softmax does not see
    what a row has in common, so :math:`m_h\,p_j` alone gives the same weights: the form that Press
    et al. use.

    Args:
        bidirectional: the bias falls to both sides of the query.

    Source: Press et al. 2022, section 3; the symmetric form for encoders is by the same authors,
    in their repository's issue 5.

    Example:
        >>> ALiBi().bias(8, torch.arange(3), torch.arange(3), torch.float32)[0]   # slope 1/2
        tensor([[ 0.0000,  0.5000,  1.0000],
                [-0.5000,  0.0000,  0.5000],
                [-1.0000, -0.5000,  0.0000]])
    """

    bidirectional: bool = False

    @property
    def needs_causal(self) -> bool:  # type: ignore[override]
        """The causal form favours what lies ahead."""
        return not self.bidirectional

    def bias(
        self,
        n_heads: int,
        query_positions: Integer[Tensor, "*batch queries"],
        key_positions: Integer[Tensor, "*batch keys"],
        dtype: torch.dtype,
    ) -> Float[Tensor, "*batch heads queries keys"]:
        """The bias on the logits, computed in float32 or better."""
        ahead = key_positions[..., None, :] - query_positions[..., :, None]  # (…, queries, keys)
        distance = (-ahead.abs() if self.bidirectional else ahead)[..., None, :, :]
        wide = torch.promote_types(dtype, torch.float32)
        slopes = _slopes(n_heads).to(device=distance.device, dtype=wide)
        return (slopes[:, None, None] * distance).to(dtype)


def alibi_slopes(n_heads: int) -> Float[Tensor, "heads"]:
    r"""ALiBi's slope of each head.

    .. math:: m_h = 2^{-8h/H}, \qquad h = 1 \dots H

    when :math:`H` is a power of two. Otherwise the slopes of the next lower power of two come
    first, then every other one of twice as many heads.

    Source: Press et al. 2022, section 3; for other numbers of heads, ``get_slopes`` in the
    authors' code (ofirpress/attention_with_linear_biases).

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    return _slopes(n_heads).to(torch.get_default_device(), torch.get_default_dtype())


def _slopes(n_heads: int) -> Float[Tensor, "heads"]:
    """In float64, and so on the CPU: not every device has it."""
    power = 2 ** int(math.log2(n_heads))
    exponents = [8 * h / power for h in range(1, power + 1)]
    exponents += [4 * h / power for h in range(1, 2 * power, 2)]
    return 2.0 ** -torch.tensor(exponents[:n_heads], dtype=torch.float64, device="cpu")


def alibi_bias(
    n_heads: int,
    n_queries: int,
    n_keys: int | None = None,
    *,
    bidirectional: bool = False,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "heads queries keys"]:
    r""":class:`ALiBi`'s bias for queries at the end of the keys, as in a causal mask.

    .. math:: B_{hij} = -m_h\,(p_i - j), \qquad p_i = i + n_\text{keys} - n_\text{queries}

    Source: Press et al. 2022, section 3.

    Example:
        >>> alibi_bias(8, 1, 4)[0]       # one query at the end, slope 1/2
        tensor([[-1.5000, -1.0000, -0.5000,  0.0000]])
    """
    n_keys = n_queries if n_keys is None else n_keys
    positions = torch.arange(n_keys)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return ALiBi(bidirectional).bias(n_heads, positions[n_keys - n_queries :], positions, dtype)


def _frequencies(width: int, base: float) -> Float[Tensor, "half"]:
    if width % 2:
        raise ValueError(
            f"positions pair a sine with a cosine: the width must be even, got {width}"
        )
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)


def _angles(
    positions: Integer[Tensor, "*batch tokens"], frequencies: Float[Tensor, "half"]
) -> Float[Tensor, "*batch tokens half"]:
    """In float64: float32 would be off by 1e-3 at position 10,000. MPS has none: on the CPU."""
    positions = positions.cpu() if positions.device.type == "mps" else positions
    return positions[..., None] * frequencies.to(positions.device)


def _split(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """First and second entry of each pair."""
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


def _join(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """Undo :func:`_split`."""
    if layout not in get_args(Layout):
        raise ValueError(f"layout must be 'interleaved' or 'half_split', got {layout!r}")
    if layout == "interleaved":
        return torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([first, second], dim=-1)


def _rows(
    table: Float[Tensor, "positions d_model"], positions: Integer[Tensor, "..."]
) -> Float[Tensor, "... d_model"]:
    try:
        return F.embedding(positions, table)
    except IndexError:
        first, last = positions.min().item(), positions.max().item()
        raise ValueError(
            f"the table has positions 0 … {len(table) - 1}, got {first} … {last}"
        ) from None
