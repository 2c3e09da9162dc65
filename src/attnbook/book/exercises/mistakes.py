"""What all checks share: comparing a result with the right one and with those of typical mistakes.

A check computes the right answer, and beside it the answers that typical mistakes give. A wrong
result that equals one of those is named; any other is shown next to the right one.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class MistakeError(AssertionError):
    """The reader's function does not do what the exercise asks; the message says what it does."""

    def _render_traceback_(self) -> list[str]:
        # In a notebook the message is all that helps; the traceback would only show this file.
        return [f"✗ {self}"]


def compare(
    name: str, result: object, right: Tensor, mistakes: Mapping[str, Tensor], case: str
) -> None:
    """Raise a ``MistakeError`` that names the mistake, unless the result is right."""
    if not isinstance(result, Tensor):
        raise MistakeError(f"{name} must return a tensor, got {type(result).__name__}")
    if result.is_complex() or result.dtype == torch.bool:
        raise MistakeError(f"{name} must return real numbers, got {result.dtype}")
    if same(result, right):
        return
    for mistake, wrong in mistakes.items():
        if same(result, wrong):
            raise MistakeError(f"{name}: {mistake}")
    if result.shape != right.shape:
        raise MistakeError(
            f"{name}: {case}, expected shape {tuple(right.shape)}, got {tuple(result.shape)}"
        )
    if result.dtype != right.dtype and torch.allclose(result.to(right.dtype), right, rtol=1e-4):
        raise MistakeError(
            f"{name}: {case}, right but for rounding: compute in {right.dtype}, got {result.dtype}"
        )
    worst = int((result - right).abs().nan_to_num(math.inf).argmax())
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    what = f"entry ({place})" if place else "it"
    raise MistakeError(
        f"{name}: {case}, {what} should be {right.flatten()[worst]:.6g}, "
        f"got {result.flatten()[worst]:.6g}"
    )


def same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding."""
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=1e-6, atol=1e-9)


def passed(name: str) -> None:
    """Say so."""
    print(f"✓ {name} is right")
