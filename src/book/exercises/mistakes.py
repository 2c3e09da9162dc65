"""What all checks share: an exercise with its typical mistakes, each written once, as a function.

A check runs the reader's function and the correct one. Where they differ, it runs the mistaken
ones, too. A wrong result that equals one of theirs is named; any other is shown next to the correct
one. All run with float64 as torch's default, whatever the notebook has set.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import InitVar, dataclass, field
from numbers import Real
from textwrap import shorten
from traceback import extract_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.reader import reads

Function = Callable[..., Any]

# What to say where the message of an error has this pattern.
HINTS = {
    "view size is not compatible": (
        "a transposed tensor must be copied first, by .contiguous(), or use .reshape"
    )
}
SHAPES = "(?i)raises .*(shape|size|dim|subscript)"


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
        hints: What to add to the message of an error in the reader's function, by a pattern in it.
        tolerance: How far numbers may be apart, relative to their size.
        in_place: Whether the function is to change the tensors that it is given.
        also: Is called with a function that is correct in all cases, and may raise, too.
    """

    name: str
    doc: InitVar[str]
    correct: Function
    mistakes: Mapping[str, Function]
    cases: Callable[[], Mapping[str, tuple[Any, ...]]]
    run: Function = lambda function, *arguments: function(*arguments)
    hints: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-6
    in_place: bool = False
    also: Callable[[Function], None] = lambda function: None

    def __post_init__(self, doc: str) -> None:
        self.__name__, self.__doc__ = f"check_{self.name}", doc

    def __call__(self, function: Function) -> None:
        """Say that the function is correct, or raise a ``MistakeError``."""
        with verdict(self.name), double_precision():
            if not callable(function):
                raise MistakeError(f"{self.name}: give the function itself, got {kind(function)}")
            self.examine(function)
            self.also(function)

    def examine(self, function: Function) -> None:
        """Raise a ``MistakeError`` that names the mistake, unless the function is correct."""
        for case, arguments in self.cases().items():
            self.examine_case(self.guarded(function, case), case, arguments)

    def examine_case(self, function: Function, case: str, arguments: tuple[Any, ...]) -> None:
        """Raise a ``MistakeError`` that names the mistake, unless the result is correct."""
        self.compare(self.run(function, *deepcopy(arguments)), case, arguments)

    def guarded(self, function: Function, case: str) -> Function:
        """The reader's function, of which an error is a ``MistakeError``."""
        return guarded(self.name, function, case, self.hints, self.in_place)

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


@contextmanager
def verdict(name: str) -> Iterator[None]:
    """Say that an answer is correct; where a reader runs the notebook, say a mistake and go on."""
    try:
        yield
    except MistakeError as error:
        if not reads():
            raise
        print(f"✗ {error}")
    else:
        print(f"✓ {name} is correct")


@contextmanager
def double_precision() -> Iterator[None]:
    """In here torch makes float64 where no type is given."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def guarded(
    name: str,
    function: Function,
    case: str,
    hints: Mapping[str, str] = {},
    in_place: bool = False,
) -> Function:
    """The reader's function: an error or a changed input is a ``MistakeError``.

    What it yields is a tuple.
    """

    def called(*given: Any) -> Any:
        before = _contents(given)
        try:
            result = function(*given)
            result = tuple(result) if isinstance(result, Iterator) else result
        except Exception as error:
            what = shorten(f"{type(error).__name__}: {error}", 300, placeholder=" …")
            message = f"{name}: {case}, raises {what.rstrip('.')}"
            all_hints = [*HINTS.items(), *hints.items()]
            found = [hint for pattern, hint in all_hints if re.search(pattern, message)]
            _, *frames = extract_tb(error.__traceback__)  # the first is this function's
            lines = [each.line for each in frames if each.filename == frames[0].filename]
            where = f"\n  in: {lines[-1]}" if lines and lines[-1] else ""
            raise MistakeError("; ".join([message, *found[:1]]) + where) from None
        if not in_place and not all(map(torch.equal, before, _contents(given))):
            raise MistakeError(
                f"{name}: {case}, changes what it is given: compute a new tensor, or work on a copy"
            )
        return result

    return called


def _contents(given: Iterable[Any]) -> list[Tensor]:
    """Copies of the tensors and arrays among the arguments."""
    return [
        torch.as_tensor(each).detach().clone()
        for each in given
        if isinstance(each, Tensor | np.ndarray)
    ]


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
    result = tensor(name, result, part, "tensor" if right.ndim else "number")
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
    # Far off, and not near 0 where it can be, since there a reader sees a factor or a sign.
    telling = torch.minimum(difference, right.abs())
    worst = int((telling if telling.any() else difference).argmax())
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    what = f"entry ({place})" + (f" of {part}" if part else "") if place else part or "it"
    numbers = right.flatten()[worst].item(), result.flatten()[worst].item()
    should, got = apart(*numbers, digits=6 if place else 10)
    raise MistakeError(f"{name}: {case}, {what} should be {should}, got {got}")


def apart(a: float, b: float, digits: int) -> tuple[str, str]:
    """Two different numbers, with at least so many digits and as many as tell them apart."""
    shown = [(f"{a:.{n}g}", f"{b:.{n}g}") for n in range(digits, 18)]
    return next(pair for pair in shown if pair[0] != pair[1])


def same(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    """Equal up to rounding."""
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=tolerance, atol=1e-9)


def tensor(name: str, result: object, part: str = "", expected: str = "tensor") -> Tensor:
    """What a function returns, or a part of it, if it is a tensor."""
    if not isinstance(result, Tensor):
        must = f"{name}: {part} must be" if part else f"{name} must return"
        raise MistakeError(f"{must} a {expected}, got {kind(result)}")
    return result


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
