"""Right answers to the exercises of chapter 02, and typical mistakes."""

import torch

from attnbook import Rotary, alibi_bias, convert_rotary_weight


def alibi(n_heads, n_tokens, *, first=1, scale=8.0):
    slopes = 2.0 ** (-scale * torch.arange(first, n_heads + first) / n_heads)
    position = torch.arange(n_tokens)
    return -slopes[:, None, None] * (position[:, None] - position)


def half_split_shift(k, d, *, exponent=2.0):
    angle = k * 10000.0 ** (-exponent * torch.arange(d // 2) / d)
    cos, sin = angle.cos().diag(), angle.sin().diag()
    return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])


def interleaved_shift(k, d):
    angle = k * 10000.0 ** (-torch.arange(0, d, 2) / d)
    return torch.block_diag(
        *(torch.tensor([[a.cos(), -a.sin()], [a.sin(), a.cos()]]) for a in angle)
    )


def rotate(x, positions, *, exponent=2.0, sign=-1, spread=lambda angle: angle.repeat(1, 2)):
    d = x.shape[-1]
    angle = spread(positions[:, None] * 10000.0 ** (-exponent * torch.arange(d // 2) / d))
    a, b = x.chunk(2, dim=-1)
    return x * angle.cos() + torch.cat([sign * b, a], dim=-1) * angle.sin()


def to_half_split(weight, n_heads, *, first=0):
    heads = weight.unflatten(0, (n_heads, -1))
    return torch.cat([heads[:, first::2], heads[:, 1 - first :: 2]], dim=1).flatten(0, 1)


RIGHT = [
    ("alibi", alibi),
    ("half_split_shift", half_split_shift),
    ("rotate", rotate),
    ("to_half_split", to_half_split),
]

MISTAKES = [
    ("alibi", lambda h, n: -alibi(h, n), "sign is wrong"),
    ("alibi", lambda h, n: alibi(h, n).mT, "sign is wrong"),
    ("alibi", lambda h, n: alibi_bias(h, n, bidirectional=True), "both sides"),
    ("alibi", lambda h, n: alibi(h, n) - alibi(h, n)[:, :, :1], "the same weights"),
    ("alibi", lambda h, n: alibi(h, n, first=0), "counts heads from 0"),
    ("alibi", lambda h, n: alibi(h, n, scale=h), "exponent is 8h/H"),
    ("alibi", lambda h, n: alibi(h, n).flip(0), "opposite order"),
    ("alibi", lambda h, n: alibi(h, n)[:1].repeat(h, 1, 1), "each has its own"),
    ("alibi", lambda h, n: alibi(h, n).movedim(0, -1), "heads last"),
    ("alibi", lambda h, n: alibi(h, n).masked_fill(alibi(h, n) > 0, -torch.inf), "the mask's part"),
    ("alibi", lambda h, n: alibi(h, n).tril(), "cut off above"),
    ("alibi", lambda h, n: 2 * alibi(h, n), "should be"),
    ("alibi", lambda h, n: alibi(h, n)[0], "expected shape"),
    ("half_split_shift", lambda k, d: half_split_shift(k, d).T, "positions back"),
    ("half_split_shift", lambda k, d: half_split_shift(-k, d), "positions back"),
    ("half_split_shift", interleaved_shift, "for interleaved"),
    ("half_split_shift", lambda k, d: half_split_shift(1, d), "whatever k is"),
    ("half_split_shift", lambda k, d: half_split_shift(k, d, exponent=1.0), "it is 2i/d_model"),
    ("half_split_shift", lambda k, d: torch.eye(d), "should be"),
    ("rotate", Rotary("interleaved").rotate, "pairs neighbours"),
    ("rotate", lambda x, p: rotate(x, -p), "turns the other way"),
    (
        "rotate",
        lambda x, p: rotate(x, p, spread=lambda a: a.repeat_interleave(2, dim=-1)),
        "repeats the angles for neighbours",
    ),
    ("rotate", lambda x, p: rotate(x, p, exponent=1.0), "it is 2m/d_head"),
    ("rotate", lambda x, p: rotate(x, torch.arange(len(p))), "the positions are given"),
    ("rotate", lambda x, p: rotate(x, p, sign=1), "both parts are added"),
    (
        "rotate",
        lambda x, p: (
            x + rotate(torch.cat([torch.zeros_like(x[:, :4]), torch.ones_like(x[:, :4])], -1), -p)
        ),
        "rotary positions multiply",
    ),
    ("rotate", lambda x, p: x, "should be"),
    ("rotate", lambda x, p: None, "must return a tensor, got NoneType"),
    ("to_half_split", lambda w, n: w, "changes nothing"),
    (
        "to_half_split",
        lambda w, n: convert_rotary_weight(w, n, to="interleaved"),
        "the other way",
    ),
    ("to_half_split", lambda w, n: to_half_split(w, 1), "each head"),
    ("to_half_split", lambda w, n: to_half_split(w.T, n).T, "the outputs are the rows"),
    ("to_half_split", lambda w, n: to_half_split(w, n, first=1), "odd entries first"),
    ("to_half_split", lambda w, n: w.flip(0), "should be"),
    ("to_half_split", lambda w, n: w[:8], "expected shape"),
]
