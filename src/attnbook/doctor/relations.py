"""Two calls that must agree on some rows: how they are compared, and what is said if they don't."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from torch import Tensor

from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results
from attnbook.doctor.report import Finding, Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, changed

ROUNDING = 10 * DIFFERENT
"""How far outputs may differ if they are computed in other shapes, or in another order."""


@dataclass(frozen=True)
class Pair:
    """The outputs, (batch, tokens, …), of two calls that must agree.

    Args:
        done: what was done between the two.
        left: the output of one call.
        right: the output of the other.
        why: the cause if they differ, or a function that finds it, with the place.
        rows: the index of the rows that must agree.
        tolerance: how far they may differ, relative to the largest output.
        level: of the finding.
    """

    done: str
    left: Tensor
    right: Tensor
    why: str | Callable[[], tuple[str, str]]
    rows: Any = ...
    tolerance: float = DIFFERENT
    level: Level = "error"

    @property
    def difference(self) -> float:
        """The largest difference of these rows, relative to the largest output."""
        return float(changed(self.left, self.right)[self.rows].max())

    @property
    def agrees(self) -> bool:
        """True if the rows differ by no more than the tolerance."""
        return self.difference <= self.tolerance

    def cause(self) -> tuple[str, str]:
        """Why the rows differ, and where."""
        return (self.why, "") if isinstance(self.why, str) else self.why()


@dataclass(frozen=True)
class Relation:
    """A check that is made of pairs of calls.

    Args:
        pairs: yields the pairs; what can't be said by a pair, as it is.
        found: what is said of a pair that differs; may name ``{off}`` and ``{where}``.
        right: what is expected instead.
    """

    pairs: Callable[[Subject], Iterator[Pair | Finding | NotJudged]]
    found: str
    right: str

    def __call__(self, subject: Subject) -> Results:
        """The finding of the first pair that differs, and what else the check says before it."""
        for pair in self.pairs(subject):
            if not isinstance(pair, Pair):
                yield pair
            elif not pair.agrees:
                yield self.finding(pair)
                return

    def finding(self, pair: Pair) -> Finding:
        """What is said of a pair that differs."""
        cause, where = pair.cause()
        found = self.found.format(off=f"{pair.difference:.1e}", where=where)
        return finding(cause, pair.done, found, self.right, pair.level)


Pairs = Iterator[Pair | Finding | NotJudged]


def relation(found: str, right: str) -> Callable[[Callable[[Subject], Pairs]], Relation]:
    """Make a relation of the generator of its pairs, as a decorator."""
    return lambda pairs: Relation(pairs, found, right)


def rows(subject: Subject, inputs: Inputs) -> Tensor:
    """The output of a call, (batch, tokens, …)."""
    return subject.by_token(subject.run(inputs))


def rows_if_possible(subject: Subject, inputs: Inputs) -> Tensor | None:
    """The output of a call, unless it raises: some modules take one length only."""
    try:
        return rows(subject, inputs)
    except Exception:
        return None


def other_tokens(
    subject: Subject, inputs: Inputs, name: str, sequence: int, tokens: list[int]
) -> Inputs:
    """The same inputs but for some tokens of one sequence."""
    return reduce(lambda x, token: subject.replaced(x, name, sequence, token), tokens, inputs)


def differ(one: Tensor, other: Tensor) -> bool:
    """True if two tensors differ by more than rounding."""
    return one.shape != other.shape or relative(one, other) > DIFFERENT


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest number."""
    if not one.is_floating_point():
        return float((one != other).float().max())
    return float(changed(one.reshape(1, 1, -1), other.reshape(1, 1, -1)).max())
