"""Exercises of chapter 02."""

from functools import partial

import torch
from torch import Generator, Tensor

from attnbook.positions import Rotary, alibi_bias, convert_rotary_weight
from book.exercises.mistakes import Exercise


def _alibi(n_heads: int, n_tokens: int, *, first: int = 1, largest: float = 8.0) -> Tensor:
    slopes = 2.0 ** (-largest * torch.arange(first, n_heads + first) / n_heads)
    position = torch.arange(n_tokens)
    return -slopes[:, None, None] * (position[:, None] - position)


check_alibi = Exercise(
    "alibi",
    "Check ``alibi(n_heads, n_tokens)`` of chapter 02: the causal bias.",
    alibi_bias,
    {
        "the sign is wrong: the bias is a penalty, below the diagonal it is negative": (
            lambda h, n: -_alibi(h, n)
        ),
        "falls to both sides: that is the form for encoders": (
            lambda h, n: alibi_bias(h, n, bidirectional=True)
        ),
        "is m·j: the same weights, but the exercise asks for −m(i − j), 0 on the diagonal": (
            lambda h, n: _alibi(h, n) - _alibi(h, n)[:, :, :1]
        ),
        "counts heads from 0: the first slope is 2^(−8/H) and not 1": partial(_alibi, first=0),
        "the slopes are 2^(−h); the exponent is 8h/H, whatever the number of heads": (
            lambda h, n: _alibi(h, n, largest=h)
        ),
        "the heads are in the opposite order: the first has the steepest slope": (
            lambda h, n: _alibi(h, n).flip(0)
        ),
        "all heads have one slope; each has its own": lambda h, n: _alibi(h, n)[:1].repeat(h, 1, 1),
        "has the heads last; the shape is (heads, queries, keys)": (
            lambda h, n: _alibi(h, n).movedim(0, -1)
        ),
        "is masked above the diagonal; that is the mask's part, and the exercise asks for the "
        "bias alone": lambda h, n: _alibi(h, n).masked_fill(_alibi(h, n) > 0, -torch.inf),
        "is cut off above the diagonal; −m(i − j) is positive there": (
            lambda h, n: _alibi(h, n).tril()
        ),
    },
    lambda: {f"{h} heads, {n} tokens": (h, n) for h, n in ((4, 6), (2, 5))},
)


def _half_split_shift(k: int, d_model: int, *, exponent: float = 2.0) -> Tensor:
    angle = k * 10000.0 ** (-exponent * torch.arange(d_model // 2) / d_model)
    cos, sin = angle.cos().diag(), angle.sin().diag()
    return torch.cat([torch.cat([cos, -sin], dim=1), torch.cat([sin, cos], dim=1)])


def _interleaved_shift(k: int, d_model: int) -> Tensor:
    alternate = torch.arange(d_model).view(2, -1).T.flatten()  # 0, 4, 1, 5, …
    return _half_split_shift(k, d_model)[alternate][:, alternate]


check_half_split_shift = Exercise(
    "half_split_shift",
    "Check ``half_split_shift(k, d_model)`` of chapter 02: P[p + k] = P[p] R.",
    _half_split_shift,
    {
        "moves k positions back: it is transposed, or made for cosines that come first": (
            lambda k, d: _half_split_shift(-k, d)
        ),
        "is for interleaved sinusoids; here all sines come before all cosines": _interleaved_shift,
        "moves by one position whatever k is": lambda k, d: _half_split_shift(1, d),
        "the exponent of pair i is i/d_model; it is 2i/d_model": (
            partial(_half_split_shift, exponent=1.0)
        ),
    },
    lambda: {f"k = {k}, d_model {d}": (k, d) for k, d in ((3, 8), (5, 6))},
)


def _rotate_cases() -> dict[str, tuple[Tensor, Tensor]]:
    x = torch.randn(5, 8, generator=Generator().manual_seed(0))
    positions = torch.tensor([7, 2, 3, 9, 4])
    return {
        f"{n} tokens, d_head {d_head}": (x[:n, :d_head], positions[:n])
        for n, d_head in ((5, 8), (3, 6))
    }


def _angle(x: Tensor, positions: Tensor, exponent: float = 2.0) -> Tensor:
    pair = torch.arange(x.shape[-1] // 2)
    return positions[:, None] * 10000.0 ** (-exponent * pair / x.shape[-1])


def _turn(x: Tensor, angle: Tensor, b_sign: int = -1) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * angle.cos() + torch.cat([b_sign * b, a], dim=-1) * angle.sin()


check_rotate = Exercise(
    "rotate",
    "Check ``rotate(x, positions)`` of chapter 02: rotary positions, half-split.",
    lambda x, p: Rotary("half_split").rotate(x, p),
    {
        "pairs neighbours (interleaved); the exercise asks for (m, m + d_head/2)": (
            lambda x, p: Rotary("interleaved").rotate(x, p)
        ),
        "turns the other way: with these signs a position p is turned by −p": (
            lambda x, p: _turn(x, _angle(x, -p).repeat(1, 2))
        ),
        "pairs (m, m + d_head/2), but repeats the angles for neighbours: the two of a pair must "
        "be turned by the same angle": (
            lambda x, p: _turn(x, _angle(x, p).repeat_interleave(2, dim=-1))
        ),
        "the exponent of pair m is m/d_head; it is 2m/d_head": (
            lambda x, p: _turn(x, _angle(x, p, exponent=1.0).repeat(1, 2))
        ),
        "counts the tokens 0, 1, 2, …; the positions are given": (
            lambda x, p: _turn(x, _angle(x, torch.arange(len(p))).repeat(1, 2))
        ),
        "both parts are added; the first of a pair is a·cos − b·sin": (
            lambda x, p: _turn(x, _angle(x, p).repeat(1, 2), b_sign=1)
        ),
        "adds sinusoids; rotary positions multiply": (
            lambda x, p: x + torch.cat([_angle(x, p).sin(), _angle(x, p).cos()], dim=-1)
        ),
    },
    _rotate_cases,
)


def _to_half_split(weight: Tensor, n_heads: int) -> Tensor:
    return convert_rotary_weight(weight, n_heads, to="half_split")


check_to_half_split = Exercise(
    "to_half_split",
    "Check ``to_half_split(weight, n_heads)`` of chapter 02: reorder the rows of W_Q or W_K.",
    _to_half_split,
    {
        "changes nothing": lambda weight, n_heads: weight,
        "goes from half-split to interleaved: the other way": (
            lambda weight, n_heads: convert_rotary_weight(weight, n_heads, to="interleaved")
        ),
        "reorders all outputs as one head; each head is reordered by itself": (
            lambda weight, n_heads: _to_half_split(weight, 1)
        ),
        "reorders the columns (inputs); the outputs are the rows": (
            lambda weight, n_heads: _to_half_split(weight.T, n_heads).T
        ),
        "takes odd entries first; entry 2m goes to m": (
            lambda weight, n_heads: _to_half_split(
                weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1), n_heads
            )
        ),
    },
    lambda: {
        f"{n_heads} heads, d_model {d}": (
            torch.randn(d, d, generator=Generator().manual_seed(0)),
            n_heads,
        )
        for n_heads, d in ((3, 24), (2, 12))
    },
)
