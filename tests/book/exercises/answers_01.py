"""What chapter 01's checks say beside naming typical mistakes."""

import math

import numpy as np
import torch

from book.exercises import chapter_01


def embed(ids, table, scaled):
    return table[ids] * (math.sqrt(table.shape[1]) if scaled else 1)


def scaled_in_place(ids, table, scaled):
    return table.mul_(math.sqrt(table.shape[1]) if scaled else 1)[ids]


share, rates = chapter_01.check_content_share.correct, chapter_01.check_matching_rates.correct

RIGHT = [
    ("content_share", lambda *given: share(*given).item()),
    ("content_share", lambda *given: share(*given).numpy()),
    ("content_share", lambda *given: share(*given).numpy()[()]),
    ("matching_rates", lambda *given: list(rates(*given))),
    ("matching_rates", lambda *given: torch.tensor(rates(*given))),
    ("matching_rates", lambda *given: np.array(rates(*given))),
    ("matching_rates", lambda *given: np.array(rates(*given), np.float32)),
]

MISTAKES = [
    ("embed", scaled_in_place, "scaled=True, .* changes what it is given: compute a new tensor"),
    ("embed", lambda *given: embed(*given)[0], "expected shape"),
    ("embed", lambda *given: None, "must return a tensor, got NoneType"),
    ("embed", lambda ids, table, scaled: 3 * table[ids], r"entry \(0, 1, 0\) should be"),
    ("embed", lambda *given: embed(*given) > 0, "must return real numbers, got torch.bool"),
    ("embed", lambda *given: embed(*given) + 1j, "must return real numbers, got torch.complex128"),
    ("embed", lambda *given: embed(*given) * math.nan, "got nan"),
    ("content_share", lambda *given: 3.0, "6 keys, it should be"),
    ("content_share", lambda *given: None, "must return a number, got NoneType"),
    ("matching_rates", lambda d, rate: (7.0, d * rate), "Adam's rate should be 2, got 7"),
    ("matching_rates", lambda d, rate: d**0.5 * rate, "must return .*Adam's rate.* got float"),
    ("matching_rates", lambda d, rate: [1.0, 2.0, 3.0], r"got list of 3 \(float\)"),
    ("matching_rates", lambda d, rate: ("a", "b"), "Adam's rate must be a number, got str"),
    ("embed", lambda ids, table, scaled: table[ids] * (2 if scaled else 1), "should be"),
    ("embed", lambda ids, table, scaled: table[ids] * (len(ids) if scaled else 1), "should be"),
    ("embed", lambda *given: {"": embed(*given)}, "must return a tensor, got dict"),
]
