"""What chapter 01's checks say beside naming typical mistakes."""

import math

from book.exercises import chapter_01


def embed(ids, table, scaled):
    return table[ids] * (math.sqrt(table.shape[1]) if scaled else 1)


RIGHT = [("content_share", lambda *given: chapter_01.CONTENT_SHARE.correct(*given).item())]

MISTAKES = [
    ("embed", lambda *given: embed(*given)[0], "expected shape"),
    ("embed", lambda *given: None, "must return a tensor, got NoneType"),
    ("embed", lambda ids, table, scaled: 3 * table[ids], r"entry \(0, 1, 0\) should be"),
    ("embed", lambda *given: embed(*given) > 0, "must return real numbers, got torch.bool"),
    ("embed", lambda *given: embed(*given) + 1j, "must return real numbers, got torch.complex128"),
    ("embed", lambda *given: embed(*given) * math.nan, "got nan"),
    ("content_share", lambda *given: 3.0, "6 keys, it should be"),
    ("content_share", lambda *given: None, "must return a number, got NoneType"),
    ("matching_rates", lambda d, rate: (7.0, d * rate), "Adam's rate should be 2, got 7"),
    ("matching_rates", lambda d, rate: d**0.5 * rate, "must return"),
]
