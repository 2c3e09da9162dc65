"""What all checks share: an exercise with its typical mistakes, each written once, as a function.

A check runs the reader's function and the correct one. Where they differ, it runs the mistaken
ones, too. A wrong result that equals one of theirs is named; any other is shown next to the correct
one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import InitVar, dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

Function = Callable[..., Any]


class MistakeError(AssertionError):
    """The reader's function does not do what the exercise asks; the message says what it does."""

    def _render_traceback_(self) -> list[str]:
        # In a notebook the message is all that helps; the traceback would only show this file.
        return [f"✗ {self}"]


@dataclass(eq=False, repr=False)
class Exercise:
    """A function to write, and what readers write instead; called with a reader's, it checks it.

    Attributes:
        name: The function's name in messages.
        doc: What the check says of itself.
        correct: A function that does what is asked.
        mistakes: For each message, a function that does what the message says. The first one that
            gives the reader's result is named.
        cases: Gives what the functions are run on, the arguments by a few words about them.
        run: What is compared: given a function and the arguments, a tensor, a number, or several
            of them by name. It may raise a ``MistakeError`` itself.
        hint: If given, an error in the reader's function is shown as a mistake, with this hint.
        tolerance: How far numbers may be apart, relative to their size.
        also: Is called with a function that is correct in all cases, and may raise, too.
    """

    name: str
    doc: InitVar[str]
    correct: Function
    mistakes: Mapping[str, Function]
    cases: Callable[[], Mapping[str, tuple[Any, ...]]]
    run: Function = lambda function, *arguments: function(*arguments)
    hint: str | None = None
    tolerance: float = 1e-6
    also: Callable[[Function], None] = lambda function: None

    def __post_init__(self, doc: str) -> None:
        self.__name__, self.__doc__ = f"check_{self.name}", doc

    def __call__(self, function: Function) -> None:
        """Say that the function is correct, or raise a ``MistakeError``."""
        if not callable(function):
            raise MistakeError(f"{self.name}: give the function itself, got {kind(function)}")
        self.examine(function)
        self.also(function)
        passed(self.name)

    def examine(self, function: Function) -> None:
        """Raise a ``MistakeError`` that names the mistake, unless the function is correct."""
        for case, arguments in self.cases().items():
            try:
                result = self.run(function, *deepcopy(arguments))
            except (IndexError, RuntimeError, ValueError) as error:
                if self.hint is None:
                    raise
                message = f"{self.name}: {case}, raises an error: {error}{self.hint}"
                raise MistakeError(message) from None
            self.compare(result, case, arguments)

    def compare(self, result: Any, case: str, arguments: tuple[Any, ...]) -> None:
        """Raise a ``MistakeError`` unless the result is that of the correct function."""
        right = self.run(self.correct, *deepcopy(arguments))
        for part in right if isinstance(right, dict) else ("",):
            ours, theirs = _part(result, part), _part(right, part)
            wrong = self._mistaken(part, arguments)
            compare(self.name, ours, theirs, wrong, case, part, self.tolerance)

    def _mistaken(self, part: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        for mistake, function in self.mistakes.items():
            with suppress(Exception):  # some make no sense in this case: shapes do not fit
                yield mistake, _part(self.run(function, *deepcopy(arguments)), part)


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
        must = f"{name}: {part} must be" if part else f"{name} must return"
        expected = "tensor" if right.ndim else "number"
        raise MistakeError(f"{must} a {expected}, got {kind(result)}")
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


def parts(name: str, result: object, n: int, expected: str) -> list[Any]:
    """What a function returns, if it is so many, in a tuple, a list, a tensor or an array."""
    stacked = isinstance(result, Tensor | np.ndarray) and result.ndim > 0
    several = list(result) if stacked else result  # type: ignore[call-overload]
    if not isinstance(several, tuple | list) or len(several) != n:
        raise MistakeError(f"{name} must return {expected}, got {kind(result)}")
    return list(several)


def tensors(name: str, result: object, n: int) -> list[Tensor]:
    """What a function returns, if it is so many tensors."""
    several = parts(name, result, n, f"{n} tensors")
    if isinstance(result, Tensor) or not all(isinstance(each, Tensor) for each in several):
        raise MistakeError(f"{name} must return {n} tensors, got {kind(result)}")
    return several


def kind(thing: object) -> str:
    """What a thing is, in a few words."""
    name = type(thing).__name__
    if isinstance(thing, Tensor | np.ndarray):
        return f"{name} of shape {tuple(thing.shape)}"
    if isinstance(thing, tuple | list):
        kinds = dict.fromkeys(type(each).__name__ for each in thing)
        return f"{name} of {len(thing)} ({', '.join(kinds)})" if thing else f"empty {name}"
    return name


def _part(result: Any, part: str) -> Any:
    """One of several by its name, or the only one; a number as a tensor."""
    one = result[part] if part else result
    if isinstance(one, np.ndarray) and not one.ndim:
        one = one.item()
    return torch.tensor(float(one), dtype=torch.float64) if isinstance(one, Real) else one
