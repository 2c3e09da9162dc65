"""Right answers to the exercises of chapter 01, and typical mistakes."""

import math

import torch


def right_embed(ids, table, scaled):
    return table[ids] * (math.sqrt(table.shape[1]) if scaled else 1)


def right_sinusoids(n, d, *, exponent=2.0, start=0, base=10000.0):
    pair = torch.arange(d // 2)
    angle = torch.arange(start, start + n)[:, None] * base ** (-exponent * pair / d)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)


def one_frequency_a_column(n, d):
    angle = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(d) / d)
    even = torch.arange(d) % 2 == 0
    return torch.where(even, angle.sin(), angle.cos())


def content_share(queries, content_keys, position_keys, *, center=-1, pick="content", power=2):
    content, position = queries @ content_keys.T, queries @ position_keys.T
    parts = {"content": content, "position": position, "whole": content + position}
    if center is not None:
        parts = {key: x - x.mean(center, keepdim=True) for key, x in parts.items()}
    share = parts[pick].pow(2).mean() / parts["whole"].pow(2).mean()
    return share ** (power / 2)


RIGHT = [
    ("embed", right_embed),
    ("sinusoids", right_sinusoids),
    ("content_share", content_share),
    ("content_share", lambda *a: content_share(*a).item()),
    ("matching_rates", lambda d, rate: (math.sqrt(d) * rate, d * rate)),
]

MISTAKES = [
    ("embed", lambda ids, table, scaled: table[ids], "not multiplied"),
    (
        "embed",
        lambda ids, table, scaled: table[ids] * math.sqrt(table.shape[1]),
        "although scaled=False",
    ),
    (
        "embed",
        lambda ids, table, scaled: table[ids] / math.sqrt(table.shape[1]),
        "divides although scaled=False",
    ),
    (
        "embed",
        lambda ids, table, scaled: table[ids] * (table.shape[1] if scaled else 1),
        "square root",
    ),
    (
        "embed",
        lambda ids, table, scaled: table[ids] / (math.sqrt(table.shape[1]) if scaled else 1),
        "the factor multiplies",
    ),
    (
        "embed",
        lambda ids, table, scaled: table[ids] * (math.sqrt(table.shape[0]) if scaled else 1),
        "vocabulary",
    ),
    (
        "embed",
        lambda ids, table, scaled: table[ids] * (math.sqrt(ids.shape[-1]) if scaled else 1),
        "sequence",
    ),
    ("embed", lambda ids, table, scaled: right_embed(ids, table, scaled)[0], "expected shape"),
    ("embed", lambda ids, table, scaled: None, "must return a tensor, got NoneType"),
    ("embed", lambda ids, table, scaled: 3 * table[ids], "should be"),
    ("embed", lambda *a: right_embed(*a) > 0, "must return real numbers, got torch.bool"),
    ("embed", lambda *a: right_embed(*a) + 1j, "must return real numbers, got torch.complex128"),
    (
        "embed",
        lambda ids, table, scaled: table[ids] * math.nan,
        "got nan",
    ),
    (
        "sinusoids",
        lambda n, d: torch.cat([right_sinusoids(n, d)[:, ::2], right_sinusoids(n, d)[:, 1::2]], -1),
        "alternate",
    ),
    (
        "sinusoids",
        lambda n, d: right_sinusoids(n, d).unflatten(-1, (-1, 2)).flip(-1).flatten(-2),
        "changed places",
    ),
    ("sinusoids", lambda n, d: right_sinusoids(n, d, start=1), "counts positions from 1"),
    ("sinusoids", lambda n, d: right_sinusoids(n, d, exponent=1.0), "it is 2i/d_model"),
    ("sinusoids", lambda n, d: right_sinusoids(n, d, exponent=4.0), "doubled again"),
    ("sinusoids", lambda n, d: right_sinusoids(n, d, exponent=-2.0), "has a minus"),
    ("sinusoids", one_frequency_a_column, "different frequencies"),
    ("sinusoids", lambda n, d: right_sinusoids(n, d).T, "rows are positions"),
    ("sinusoids", lambda n, d: right_sinusoids(n, d, base=1000.0), "should be"),
    ("content_share", lambda *a: content_share(*a, center=None), "not centred"),
    ("content_share", lambda *a: content_share(*a, center=0), "columns are centred"),
    ("content_share", lambda *a: content_share(*a, center=(0, 1)), "each row has its own"),
    ("content_share", lambda *a: content_share(*a, pick="position"), "share of the position"),
    ("content_share", lambda *a: content_share(*a, power=1), "standard deviations"),
    (
        "content_share",
        lambda *a: content_share(*a) / content_share(*a, pick="position"),
        "not by the whole",
    ),
    ("content_share", lambda *a: content_share(*a) + 0.1, "6 keys, it should be"),
    ("content_share", lambda *a: None, "must return a tensor, got NoneType"),
    ("matching_rates", lambda d, rate: (rate, d * rate), "Adam's rate is left as it was"),
    ("matching_rates", lambda d, rate: (d * rate, d * rate), "that is SGD's"),
    ("matching_rates", lambda d, rate: (rate / d**0.5, d * rate), "Adam's rate is divided"),
    ("matching_rates", lambda d, rate: (d**0.5 * rate, rate), "SGD's rate is left as it was"),
    (
        "matching_rates",
        lambda d, rate: (d**0.5 * rate, d**0.5 * rate),
        r"gradient is sqrt\(d_model\) times smaller too",
    ),
    ("matching_rates", lambda d, rate: (d**0.5 * rate, rate / d), "SGD's rate is divided"),
    ("matching_rates", lambda d, rate: (d**0.5 * rate, rate / d**0.5), "SGD's rate is divided"),
    ("matching_rates", lambda d, rate: (7.0, d * rate), "got 7"),
    ("matching_rates", lambda d, rate: d**0.5 * rate, "must return"),
]
