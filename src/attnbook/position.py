"""Where a token stands: tables to add, rotations of queries and keys, biases on the logits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from attnbook.checks import (
    check_count,
    check_flags,
    check_floating,
    check_integer,
    check_kind,
    check_sizes,
    is_integer,
)

# Which entries of a vector belong to one frequency: neighbours (2i, 2i+1), or (i, i + d/2).
Layout = Literal["interleaved", "half_split"]


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

    That is the paper's layout, sines and cosines interleaved. ``"half_split"`` holds all sines,
    then all cosines: the same columns in another order. (tensor2tensor has that order, and other
    wavelengths: its exponents are i/(d/2 − 1).)

    Because :math:`\sin^2 + \cos^2 = 1`, every row has the same length :math:`\sqrt{d/2}`, that is
    a root mean square of :math:`1/\sqrt2` per entry, whatever ``d_model``.

    Args:
        n_positions: positions 0 … n_positions − 1.
        d_model: width, an even number.
        base: the wider the table, the nearer its longest wavelength is to ``2π · base`` tokens: it
            is ``2π · base ** (1 - 2 / d_model)``.
        layout: ``"interleaved"`` or ``"half_split"``.
        dtype: type of the table; torch's default type if not given. It is computed in float64.

    Raises:
        TypeError: if ``dtype`` is no floating type.
        ValueError: if ``d_model`` is not positive and even, ``n_positions`` is negative, ``base``
            is not positive or ``layout`` is neither of the two.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> sinusoidal_positions(50, 64).pow(2).mean().sqrt().item()   # 1/sqrt(2)
        0.707...
    """
    check_count("n_positions", n_positions)
    _check_layout(layout)
    positions = torch.arange(n_positions)
    angle = _angles(positions, d_model, base)
    table = _join(angle.sin(), angle.cos(), layout)
    return table.to(positions.device, _floating_type(dtype))


class SinusoidalPositions(nn.Module):
    """The first rows of :func:`sinusoidal_positions`, kept as a buffer and never trained.

    No file holds them. ``double()`` and the like compute them anew, so that they are exact in every
    type, and so does ``to_empty()``: a model made on the meta device needs it, also if its weights
    are loaded with ``assign=True``.

    Args:
        max_tokens: number of rows.
        d_model: width, an even number.

    Raises:
        ValueError: as :func:`sinusoidal_positions`.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> SinusoidalPositions(100, 16)(3, offset=7).shape   # positions 7, 8, 9
        torch.Size([3, 16])
    """

    table: Tensor

    def __init__(self, max_tokens: int, d_model: int) -> None:
        super().__init__()
        table = sinusoidal_positions(max_tokens, d_model)
        self.register_buffer("table", table, persistent=False)

    def forward(self, n_tokens: int, *, offset: int = 0) -> Float[Tensor, "tokens d_model"]:
        """Rows ``offset … offset + n_tokens − 1``.

        Raises:
            TypeError: if one of the two is no integer: the embeddings are added outside.
            ValueError: where there are no such rows.
        """
        return _rows(self.table, n_tokens, offset)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SinusoidalPositions":
        before = self.table
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.table
        if after is not before:
            table = sinusoidal_positions(*after.shape, dtype=after.dtype)
            self.table = table.to(after.device)
        return self


class LearnedPositions(nn.Module):
    r"""One trained vector for each position, and nothing beyond the last.

    Args:
        max_tokens: number of positions.
        d_model: width.

    The table is the parameter ``table``, (max_tokens, d_model). It starts as N(0, 0.02²), as in
    transformers' BERT and GPT-2. (OpenAI's own GPT-2 starts it with half the deviation,
    N(0, 0.01²).)

    Raises:
        ValueError: if a size is not positive.

    Source: Gehring et al. 2017, section 3.1; Devlin et al. 2019, section 3.

    Example:
        >>> LearnedPositions(100, 16)(3, offset=7).shape   # positions 7, 8, 9
        torch.Size([3, 16])
        >>> LearnedPositions(100, 16)(3, offset=98)
        Traceback (most recent call last):
        ValueError: the table has positions 0 … 99, got positions 98 … 100
    """

    def __init__(self, max_tokens: int, d_model: int) -> None:
        super().__init__()
        check_sizes(max_tokens=max_tokens, d_model=d_model)
        self.table = nn.Parameter(torch.randn(max_tokens, d_model) * 0.02)

    def forward(self, n_tokens: int, *, offset: int = 0) -> Float[Tensor, "tokens d_model"]:
        """Rows ``offset … offset + n_tokens − 1``.

        Raises:
            TypeError: if one of the two is no integer: the embeddings are added outside.
            ValueError: where there are no such rows.
        """
        return _rows(self.table, n_tokens, offset)


@dataclass(frozen=True)
class Rotary:
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
        base: the wider a head, the nearer the longest wavelength is to ``2π · base`` tokens: it
            is ``2π · base ** (1 - 2 / d_head)``.

    Raises:
        ValueError: if ``base`` is not positive or ``layout`` is neither of the two.

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

    def __post_init__(self) -> None:
        """Check both settings."""
        _check_layout(self.layout)
        _check_base(self.base)

    def rotate(
        self, x: Float[Tensor, "... tokens d_head"], positions: Integer[Tensor, "tokens"]
    ) -> Float[Tensor, "... tokens d_head"]:
        """Turn each token's vector according to its position.

        Args:
            x: queries or keys.
            positions: the position of each token: any integers, not only 0, 1, 2, …

        Raises:
            TypeError: if ``positions`` are not integers, or ``x`` is not of floating type.
            ValueError: if ``x`` has fewer than two dimensions, d_head is odd, or there are more or
                fewer positions than tokens.
        """
        return self._turn(x, *self._tables(x, positions))

    def rotate_both(
        self,
        query: Float[Tensor, "... queries d_head"],
        key: Float[Tensor, "... queries d_head"],
        positions: Integer[Tensor, "queries"],
    ) -> tuple[Float[Tensor, "... queries d_head"], Float[Tensor, "... queries d_head"]]:
        """Turn queries and keys of the same tokens: :meth:`rotate`, with the angles computed once.

        Raises:
            TypeError: if ``positions`` are not integers, or query and key not of one floating type.
            ValueError: as in :meth:`rotate`, or if query and key differ in tokens or width.

        Example:
            >>> query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)   # grouped heads
            >>> turned, _ = Rotary().rotate_both(query, key, torch.arange(6))
            >>> torch.equal(turned, Rotary().rotate(query, torch.arange(6)))
            True
        """
        check_floating("query", query)
        check_floating("key", key)
        if key.dtype != query.dtype:
            raise TypeError(f"query is {query.dtype} but key is {key.dtype}")
        if key.shape[-2:] != query.shape[-2:]:
            raise ValueError(
                f"query and key must be of the same tokens and width, got {tuple(query.shape)} and "
                f"{tuple(key.shape)}"
            )
        cos, sin = self._tables(query, positions)
        return self._turn(query, cos, sin), self._turn(key, cos, sin)

    def _tables(
        self, x: Float[Tensor, "... tokens d_head"], positions: Integer[Tensor, "tokens"]
    ) -> tuple[Float[Tensor, "tokens d_head"], Float[Tensor, "tokens d_head"]]:
        """For each entry the cosine of its angle, and the sine with the sign of the matrix."""
        check_integer("positions", positions)
        check_floating("x", x)
        if x.dim() < 2:
            raise ValueError(f"x needs a shape (…, tokens, d_head), got {tuple(x.shape)}")
        if positions.shape != x.shape[-2:-1]:
            raise ValueError(
                f"x has {x.shape[-2]} tokens but positions have shape {tuple(positions.shape)}"
            )
        angle = _angles(positions, x.shape[-1], self.base)
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        return _join(cos, cos, self.layout), _join(-sin, sin, self.layout)

    def _turn(
        self,
        x: Float[Tensor, "... tokens d_head"],
        cos: Float[Tensor, "tokens d_head"],
        sin: Float[Tensor, "tokens d_head"],
    ) -> Float[Tensor, "... tokens d_head"]:
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

    Raises:
        TypeError: if ``weight`` is no tensor.
        ValueError: if ``n_heads`` does not divide the outputs into heads of even width, or ``to``
            is neither layout.

    Source: Hugging Face transformers 5.23.0, ``models/llama/convert_llama_weights_to_hf.py``
    (``permute``), does this to Meta's weights.

    Example:
        >>> weight = torch.arange(8.0)[:, None]           # one head, d_head 8
        >>> convert_rotary_weight(weight, 1, to="half_split")[:, 0]
        tensor([0., 2., 4., 6., 1., 3., 5., 7.])
    """
    _check_layout(to, "to")
    check_kind("weight", weight, Tensor)
    if weight.dim() < 1:
        raise ValueError(f"weight needs a shape (outputs, …), got {tuple(weight.shape)}")
    outputs = weight.shape[0]
    if not is_integer(n_heads) or n_heads < 1 or outputs % (2 * n_heads):
        raise ValueError(f"{outputs} outputs are not {n_heads} heads of an even width")
    other: Layout = "interleaved" if to == "half_split" else "half_split"
    heads = weight.unflatten(0, (n_heads, -1)).movedim(1, -1)  # (heads, …, d_head)
    return _join(*_split(heads, other), to).movedim(-1, 1).flatten(0, 1)


@dataclass(frozen=True)
class ALiBi:
    r"""Attention with linear biases: each head prefers near keys, by its own slope.

    .. math:: S_{ij} \leftarrow S_{ij} + B_{hij}

    with :math:`B` from :func:`alibi_bias`. The causal form is meant to stand under a causal mask,
    and :class:`attnbook.attention.MultiHeadAttention` refuses it without ``causal=True``; there
    the two forms are the same.

    Args:
        bidirectional: the bias falls to both sides of the query.

    Raises:
        TypeError: if ``bidirectional`` is neither ``True`` nor ``False``.

    Source: Press et al. 2022, section 3; the symmetric form for encoders is by the same authors,
    in their repository's issue 5.

    Example:
        >>> ALiBi().bias(8, 3)[0]        # the first of 8 heads: slope 1/2
        tensor([[ 0.0000,  0.5000,  1.0000],
                [-0.5000,  0.0000,  0.5000],
                [-1.0000, -0.5000,  0.0000]])
    """

    bidirectional: bool = False

    def __post_init__(self) -> None:
        """Check the setting."""
        check_flags(bidirectional=self.bidirectional)

    def bias(
        self,
        n_heads: int,
        n_queries: int,
        n_keys: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Float[Tensor, "heads queries keys"]:
        """:func:`alibi_bias` in this form; it raises what that does."""
        return alibi_bias(
            n_heads,
            n_queries,
            n_keys,
            bidirectional=self.bidirectional,
            dtype=dtype,
            device=device,
        )


def alibi_slopes(n_heads: int) -> Float[Tensor, "heads"]:
    r"""ALiBi's slope of each head.

    .. math:: m_h = 2^{-8h/H}, \qquad h = 1 \dots H

    when :math:`H` is a power of two. Otherwise the slopes of the next lower power of two come
    first, then every other one of twice as many heads.

    Args:
        n_heads: number of heads.

    Raises:
        ValueError: if ``n_heads`` is not positive.

    Source: Press et al. 2022, section 3; for other numbers of heads, ``get_slopes`` in the
    authors' code (ofirpress/attention_with_linear_biases).

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    return _slopes(n_heads).to(torch.get_default_dtype()).to(torch.get_default_device())


def _slopes(n_heads: int) -> Float[Tensor, "heads"]:
    """In float64, and so on the CPU: not every device has it."""
    check_sizes(n_heads=n_heads)
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
    device: torch.device | None = None,
) -> Float[Tensor, "heads queries keys"]:
    r"""ALiBi's bias on the logits.

    .. math::
        B_{hij} = -m_h\,(p_i - j) \quad\text{(causal)}, \qquad
        B_{hij} = -m_h\,|p_i - j| \quad\text{(bidirectional)}

    with :math:`p_i = i + n_\text{keys} - n_\text{queries}`, aligned to the end as
    :func:`attnbook.masks.causal_mask` is. Up to the query's own position the two are equal; beyond
    it the causal form *grows*, so it needs a causal mask. Since a softmax does not see what a row
    has in common, :math:`m_h\,j` alone gives the same weights: the form that Press et al. use.

    Args:
        n_heads: number of heads.
        n_queries: number of queries.
        n_keys: number of keys; as many as queries if not given.
        bidirectional: the bias falls to both sides.
        dtype: of the result, computed in float64; torch's default if not given.
        device: of the result.

    Raises:
        TypeError: if ``dtype`` is no floating type.
        ValueError: if ``n_heads`` is not positive, a size is negative, or there are fewer keys than
            queries.

    Source: Press et al. 2022, section 3.

    Example:
        >>> alibi_bias(8, 1, 4)[0]       # one query at the end, slope 1/2
        tensor([[-1.5000, -1.0000, -0.5000,  0.0000]])
    """
    n_keys = n_queries if n_keys is None else n_keys
    check_count("n_queries", n_queries)
    check_count("n_keys", n_keys)
    if n_keys < n_queries:
        raise ValueError(
            f"ALiBi needs at least as many keys as queries, got {n_queries} queries and "
            f"{n_keys} keys"
        )
    # One row of all distances; each query sees a stretch of it, the last query the first stretch.
    ahead = torch.arange(1 - n_keys, n_queries + 1, device="cpu")
    line = _slopes(n_heads)[:, None] * (-ahead.abs() if bidirectional else ahead)
    line = line.to(_floating_type(dtype))
    line = line.to(torch.get_default_device() if device is None else device)
    return line.as_strided((n_heads, n_queries, n_keys), (line.stride(0), 1, 1)).flip(1)


def _angles(
    positions: Integer[Tensor, "tokens"], width: int, base: float
) -> Float[Tensor, "tokens half"]:
    """Position times frequency, in float64: float32 would be off by 1e-3 at position 10,000.

    On the positions' device, or on the CPU if that one (MPS) has no float64.
    """
    if width < 2 or width % 2:
        raise ValueError(
            f"positions pair a sine with a cosine: the width must be even, got {width}"
        )
    _check_base(base)
    if positions.device.type == "mps":
        positions = positions.cpu()
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    return positions[:, None] * base**-exponent


def _split(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """First and second entry of each pair."""
    if layout == "interleaved":
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


def _join(first: Tensor, second: Tensor, layout: Layout) -> Tensor:
    """Undo :func:`_split`."""
    if layout == "interleaved":
        return torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([first, second], dim=-1)


def _rows(table: Tensor, n_tokens: int, offset: int) -> Tensor:
    if not is_integer(n_tokens) or not is_integer(offset):
        given = ", ".join(f"a {type(one).__name__}" for one in (n_tokens, offset))
        raise TypeError(f"n_tokens and offset must be integers, got {given}")
    if n_tokens < 0 or offset < 0 or offset + n_tokens > len(table):
        raise ValueError(
            f"the table has positions 0 … {len(table) - 1}, got positions {offset} … "
            f"{offset + n_tokens - 1}"
        )
    # A copy, so that what is done to the rows in place does not reach the table.
    return table[offset : offset + n_tokens].clone()


def _floating_type(dtype: torch.dtype | None) -> torch.dtype:
    """Torch's default type if there is none."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    check_kind("dtype", dtype, torch.dtype)
    if not dtype.is_floating_point:  # of integers, hardly more than zeros would be left
        raise TypeError(f"dtype must be a floating type, got {dtype}")
    return dtype


def _check_layout(layout: str, name: str = "layout") -> None:
    if layout not in get_args(Layout):
        raise ValueError(f"{name} must be 'interleaved' or 'half_split', got {layout!r}")


def _check_base(base: float) -> None:
    if not isinstance(base, Real) or not 0 < base < math.inf:
        raise ValueError(f"base must be positive and finite, got {base!r}")
