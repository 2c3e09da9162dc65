"""Exercises of chapter 02."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attnbook.book.exercises.mistakes import compare, passed
from attnbook.positions import Rotary, alibi_bias, alibi_slopes, convert_rotary_weight


def check_alibi(alibi: Callable[[int, int], Tensor]) -> None:
    """Check ``alibi(n_heads, n_tokens)`` of chapter 02: the causal bias.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_alibi(alibi_bias)
        ✓ alibi is right
    """
    n_heads, n_tokens = 4, 6
    right = alibi_bias(n_heads, n_tokens)
    distance = right / -alibi_slopes(n_heads)[:, None, None]

    def with_slopes(exponents: Tensor) -> Tensor:
        return -(2.0**-exponents)[:, None, None] * distance

    head = torch.arange(n_heads, dtype=right.dtype)
    mistakes = {
        "the sign is wrong: the bias is a penalty, below the diagonal it is negative": -right,
        "falls to both sides: that is the form for encoders": alibi_bias(
            n_heads, n_tokens, bidirectional=True
        ),
        "is m·j: the same weights, but the exercise asks for −m(i − j), 0 on the diagonal": (
            right - right[:, :, :1]
        ),
        "counts heads from 0: the first slope is 2^(−8/H) and not 1": with_slopes(
            8 * head / n_heads
        ),
        "the slopes are 2^(−h); the exponent is 8h/H, whatever the number of heads": with_slopes(
            head + 1
        ),
        "the heads are in the opposite order: the first has the steepest slope": right.flip(0),
        "all heads have one slope; each has its own": right[:1].expand_as(right),
        "has the heads last; the shape is (heads, queries, keys)": right.movedim(0, -1),
        "is masked above the diagonal; that is the mask's part, and the exercise asks for the "
        "bias alone": right.masked_fill(distance < 0, -torch.inf),
        "is cut off above the diagonal; −m(i − j) is positive there": right.tril(),
    }
    compare("alibi", alibi(n_heads, n_tokens), right, mistakes, "4 heads, 6 tokens")
    passed("alibi")


def check_half_split_shift(half_split_shift: Callable[[int, int], Tensor]) -> None:
    """Check ``half_split_shift(k, d_model)`` of chapter 02: P[p + k] = P[p] R.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def half_split_shift(k, d_model):
        ...     angle = k * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
        ...     cos, sin = angle.cos().diag(), angle.sin().diag()
        ...     return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
        >>> check_half_split_shift(half_split_shift)
        ✓ half_split_shift is right
    """
    k, d_model = 3, 8

    def shift(k: int, exponent: float = 2.0) -> Tensor:
        pair = torch.arange(d_model // 2, dtype=torch.get_default_dtype())
        angle = k * 10000.0 ** (-exponent * pair / d_model)
        cos, sin = angle.cos().diag(), angle.sin().diag()
        return torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])

    right = shift(k)
    half = d_model // 2
    alternate = torch.arange(d_model).view(2, half).T.flatten()  # 0, 4, 1, 5, …
    mistakes = {
        "moves k positions back: it is transposed, or made for cosines that come first": shift(-k),
        "is for interleaved sinusoids; here all sines come before all cosines": right[alternate][
            :, alternate
        ],
        "moves by one position whatever k is": shift(1),
        "the exponent of pair i is i/d_model; it is 2i/d_model": shift(k, 1.0),
    }
    result = half_split_shift(k, d_model)
    compare("half_split_shift", result, right, mistakes, f"k = {k}, d_model {d_model}")
    passed("half_split_shift")


def check_rotate(rotate: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check ``rotate(x, positions)`` of chapter 02: rotary positions, half-split.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_rotate(Rotary("half_split").rotate)
        ✓ rotate is right
    """
    generator = Generator().manual_seed(0)
    n_tokens, d_head = 5, 8
    x = torch.randn(n_tokens, d_head, generator=generator)
    positions = torch.tensor([7, 2, 3, 9, 4])
    right = Rotary("half_split").rotate(x, positions)
    pair = torch.arange(d_head // 2, dtype=x.dtype)

    def with_angle(angle: Tensor, b_sign: int = -1) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat([b_sign * b, a], dim=-1) * angle.sin()

    def angle(exponent: Tensor) -> Tensor:
        return positions[:, None] * 10000.0**-exponent

    theta = angle(2 * pair / d_head)
    mistakes = {
        "pairs neighbours (interleaved); the exercise asks for (m, m + d_head/2)": Rotary(
            "interleaved"
        ).rotate(x, positions),
        "turns the other way: with these signs a position p is turned by −p": Rotary(
            "half_split"
        ).rotate(x, -positions),
        "pairs (m, m + d_head/2), but repeats the angles for neighbours: the two of a pair must "
        "be turned by the same angle": with_angle(theta.repeat_interleave(2, dim=-1)),
        "the exponent of pair m is m/d_head; it is 2m/d_head": with_angle(
            angle(pair / d_head).repeat(1, 2)
        ),
        "counts the tokens 0, 1, 2, …; the positions are given": Rotary("half_split").rotate(
            x, torch.arange(n_tokens)
        ),
        "both parts are added; the first of a pair is a·cos − b·sin": with_angle(
            theta.repeat(1, 2), 1
        ),
        "adds sinusoids; rotary positions multiply": x + torch.cat([theta.sin(), theta.cos()], -1),
    }
    compare("rotate", rotate(x.clone(), positions), right, mistakes, "5 tokens, d_head 8")
    passed("rotate")


def check_to_half_split(to_half_split: Callable[[Tensor, int], Tensor]) -> None:
    """Check ``to_half_split(weight, n_heads)`` of chapter 02: reorder the rows of W_Q or W_K.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_to_half_split(lambda w, n: convert_rotary_weight(w, n, to="half_split"))
        ✓ to_half_split is right
    """
    n_heads, d_model = 2, 16
    weight = torch.randn(d_model, d_model, generator=Generator().manual_seed(0))
    right = convert_rotary_weight(weight, n_heads, to="half_split")
    mistakes = {
        "changes nothing": weight,
        "goes from half-split to interleaved: the other way": convert_rotary_weight(
            weight, n_heads, to="interleaved"
        ),
        "reorders all outputs as one head; each head is reordered by itself": (
            convert_rotary_weight(weight, 1, to="half_split")
        ),
        "reorders the columns (inputs); the outputs are the rows": convert_rotary_weight(
            weight.T, n_heads, to="half_split"
        ).T,
        "takes odd entries first; entry 2m goes to m": convert_rotary_weight(
            weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1), n_heads, to="half_split"
        ),
    }
    result = to_half_split(weight.clone(), n_heads)
    compare("to_half_split", result, right, mistakes, "2 heads, d_model 16")
    passed("to_half_split")
