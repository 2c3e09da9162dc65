"""What chapter 13's checks say beside naming typical mistakes, and other right answers."""

import numpy as np

from book.exercises.chapter_13 import check_longest, check_merged

longest, merged = check_longest.correct, check_merged.correct

RIGHT = [
    ("longest", lambda *given: np.int64(longest(*given))),
    ("longest", lambda n, *sizes: n / np.prod(sizes) // 2),
    ("merged", lambda *given: list(merged(*given))),
]

MISTAKES = [
    ("longest", lambda n, *sizes: round(n / np.prod(sizes) / 2), "rounds up"),
    ("longest", lambda n, *sizes: n / np.prod(sizes) / 2, "should be 260, got 260.9"),
    ("merged", lambda *given: None, r"must return three tensors, \(m, l, o\), got NoneType"),
    ("merged", lambda *given: (*merged(*given), 1), r"got tuple of 4 \(Tensor, int\)"),
    ("merged", lambda *given: dict(zip("mlo", merged(*given), strict=True)), "got dict"),
    ("merged", lambda *given: (*merged(*given)[:2], "o"), "merged: o must be a tensor, got str"),
]
