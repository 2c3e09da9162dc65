"""What every right module keeps, tried by changing its inputs.

Each check takes a :class:`Subject` and yields findings, or what it could not judge.
"""

from attnbook.doctor.invariants.cached import cache
from attnbook.doctor.invariants.calls import (
    deterministic,
    finite,
    half_precision,
    memory,
    seeds,
    untouched,
)
from attnbook.doctor.invariants.learning import dropout, gradients, train_and_eval
from attnbook.doctor.invariants.padded import empty_rows, padding
from attnbook.doctor.invariants.reach import (
    batch,
    future,
    mixing,
    order,
    order_of_sequences,
    prefix,
)

__all__ = [
    "batch",
    "cache",
    "deterministic",
    "dropout",
    "empty_rows",
    "finite",
    "future",
    "gradients",
    "half_precision",
    "memory",
    "mixing",
    "order",
    "order_of_sequences",
    "padding",
    "prefix",
    "seeds",
    "train_and_eval",
    "untouched",
]
