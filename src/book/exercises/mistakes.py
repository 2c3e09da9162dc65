"""What all checks share: an exercise with its typical mistakes, each written once, as a function.

A check runs the reader's function and the correct one. Where they differ, it runs the mistaken
ones, too. A wrong result that equals one of theirs is named; any other is shown next to the correct
one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


class MistakeError(AssertionError):
    """The reader's function does not do what the exercise asks; the message says what it does."""

    def _render_traceback_(self) -> list[str]:
        # In a notebook the message is all that helps; the traceback would only show this file.
        return [f"✗ {self}"]


@dataclass(frozen=True)
class Exercise:
    """A function to write, and what readers write instead.

    Attributes:
        name: The function's name in messages.
        correct: A function that does what is asked.
        mistakes: For each message, a function that does what the message says. The first one that
            gives the reader's result is named.
        cases: Gives what the functions are run on, the arguments by a few words about them.
        run: What is compared: given a function and the arguments, a tensor, a number, or several
            of them by name. It may raise a ``MistakeError`` itself.
        hint: If given, an error in the reader's function is shown as a mistake, with this hint.
        tolerance: How far numbers may be apart, relative to their size.
    """

    name: str
    correct: Function
    mistakes: Mapping[str, Function]
    cases: Callable[[], Mapping[str, tuple[Any, ...]]]
    run: Function = lambda function, *arguments: function(*arguments)
    hint: str | None = None
    tolerance: float = 1e-6

    def check(self, function: Function) -> None:
        """Say that the function is correct, or raise a ``MistakeError``."""
        self.examine(function)
        passed(self.name)

    def examine(self, function: Function) -> None:
        """Raise a ``MistakeError`` that names the mistake, unless the function is correct."""
        for case, arguments in self.cases().items():
            try:
                results = self.results(function, arguments)
            except (RuntimeError, ValueError) as error:
                if self.hint is None:
                    raise
                message = f"{self.name}: {case}, raises an error: {error}{self.hint}"
                raise MistakeError(message) from None
            self.compare(results, case, arguments)

    def results(self, function: Function, arguments: tuple[Any, ...]) -> dict[str, object]:
        """What is compared, by name, and without one where there is only one."""
        results = self.run(function, *deepcopy(arguments))
        return results if isinstance(results, dict) else {"": results}

    def compare(self, results: Mapping[str, object], case: str, arguments: tuple[Any, ...]) -> None:
        """Raise a ``MistakeError`` unless results are those of the correct function."""
        for part, right in self.results(self.correct, arguments).items():
            wrong = self._mistaken(part, arguments)
            result, right = _number(results[part]), _number(right)
            compare(self.name, result, right, wrong, case, part, self.tolerance)

    def _mistaken(self, part: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        for mistake, function in self.mistakes.items():
            with suppress(Exception):  # some make no sense in this case: shapes do not fit
                yield mistake, _number(self.results(function, arguments)[part])


def compare(
    name: str,
    result: object,
    right: Tensor,
    mistakes: Iterable[tuple[str, Tensor]],
    case: str,
    part: str = "",
    tolerance: float = 1e-6,
) -> None:
    """Raise a ``MistakeError`` that names the mistake, unless the result is correct."""
    if not isinstance(result, Tensor):
        kind = "tensor" if right.ndim else "number"
        raise MistakeError(f"{name} must return a {kind}, got {type(result).__name__}")
    if result.is_complex() or result.dtype == torch.bool:
        raise MistakeError(f"{name} must return real numbers, got {result.dtype}")
    if same(result, right, tolerance):
        return
    for mistake, wrong in mistakes:
        if same(result, wrong, tolerance):
            raise MistakeError(f"{name}: {mistake}")
    if result.shape != right.shape:
        raise MistakeError(
            f"{name}: {case}, expected shape {tuple(right.shape)}, got {tuple(result.shape)}"
        )
    if result.dtype != right.dtype and torch.allclose(result.to(right.dtype), right, rtol=1e-4):
        raise MistakeError(
            f"{name}: {case}, correct but for rounding: compute in {right.dtype}, "
            f"got {result.dtype}"
        )
    difference = (result - right).abs().nan_to_num(math.inf).masked_fill(result == right, 0)
    worst = int(difference.argmax())
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    what = f"entry ({place})" + (f" of {part}" if part else "") if place else part or "it"
    digits = 6 if place else 10
    raise MistakeError(
        f"{name}: {case}, {what} should be {right.flatten()[worst]:.{digits}g}, "
        f"got {result.flatten()[worst]:.{digits}g}"
    )


def same(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    """Equal up to rounding."""
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=tolerance, atol=1e-9)


def passed(name: str) -> None:
    """Say so."""
    print(f"✓ {name} is correct")


def _number(result: Any) -> Any:
    """A Python number as a tensor."""
    return torch.tensor(result, dtype=torch.float64) if isinstance(result, int | float) else result
