"""What chapter 05's checks say beside naming typical mistakes."""

import numpy as np
import torch

from book.exercises.chapter_05 import check_from_tiled

RIGHT = [
    ("cache_bytes", lambda *sizes: 2 * np.prod(sizes)),
    ("cache_bytes", lambda *sizes: torch.tensor(sizes).prod() * 2),
]

MISTAKES = [
    (
        "merge_heads",
        lambda heads: heads.transpose(1, 2).view(len(heads), heads.shape[2], -1),
        r"raises RuntimeError: view size .*; .* \.contiguous\(\), or use \.reshape",
    ),
    ("shared_as_full", lambda block, n: torch.cat([block] * n, 1), "each a sum over all heads'"),
    (
        "from_tiled",
        lambda *given: check_from_tiled.correct(*given).unflatten(0, (given[1], -1)),
        "below each other again",
    ),
    ("cache_bytes", lambda *given: 5, "should be 30030, got 5"),
    ("cache_bytes", lambda *given: "many", "must return a number, got str"),
]
