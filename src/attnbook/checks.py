"""Arguments that several rooms refuse in the same words."""

import math
from numbers import Integral, Real

import torch
from torch import Tensor


def check_boolean(mask: Tensor) -> None:
    """Refuse a mask of another type: 0/-inf and True-means-blocked are other libraries' ways.

    Raises:
        TypeError: if the mask is not a boolean tensor.

    Example:
        >>> check_boolean(torch.zeros(3, dtype=torch.int64))
        Traceback (most recent call last):
        TypeError: a mask is boolean (True = may attend), got a tensor of torch.int64
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"a mask is a boolean tensor, got a {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"a mask is boolean (True = may attend), got a tensor of {mask.dtype}"
            + ("; of 0 and -inf, pass mask == 0" if mask.is_floating_point() else "")
        )


def check_integer(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor of integers; booleans are none.

    Raises:
        TypeError: names the argument and the type.

    Example:
        >>> check_integer("ids", torch.zeros(3))
        Traceback (most recent call last):
        TypeError: ids must be integers, got a tensor of torch.float32
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be an integer tensor, got a {type(tensor).__name__}")
    kind = tensor.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        raise TypeError(f"{name} must be integers, got a tensor of {kind}")


def check_kind(name: str, given: object, kind: type) -> None:
    """Refuse an object of another class.

    Raises:
        TypeError: names the argument and both classes.

    Example:
        >>> check_kind("x", [1.0, 2.0], Tensor)
        Traceback (most recent call last):
        TypeError: x must be a Tensor, got a list
    """
    if not isinstance(given, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got a {type(given).__name__}")


def check_floating(name: str, tensor: Tensor, width: int | None = None) -> None:
    """Refuse what is no tensor of floating type, or not of this width.

    Raises:
        TypeError: names the argument and the type.
        ValueError: names the argument and both shapes.

    Example:
        >>> check_floating("x", torch.zeros(3, 5), 4)
        Traceback (most recent call last):
        ValueError: x must have shape (…, 4), got (3, 5)
    """
    check_kind(name, tensor, Tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be of floating type, got a tensor of {tensor.dtype}")
    if width is not None and tensor.shape[-1:] != (width,):
        raise ValueError(f"{name} must have shape (…, {width}), got {tuple(tensor.shape)}")


def check_sizes(**sizes: int) -> None:
    """Refuse what is no size: a number of heads, a width.

    Raises:
        ValueError: names the first that is not positive, or no integer.

    Example:
        >>> check_sizes(d_model=8, n_heads=0)
        Traceback (most recent call last):
        ValueError: n_heads must be a positive integer, got 0
    """
    for name, size in sizes.items():
        if not is_integer(size) or size < 1:
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def check_count(name: str, count: int) -> None:
    """Refuse what is no number of things: of keys, of positions.

    Raises:
        ValueError: if it is negative, or no integer.

    Example:
        >>> check_count("n_keys", -1)
        Traceback (most recent call last):
        ValueError: n_keys must be an integer, 0 or more, got -1
    """
    if not is_integer(count) or count < 0:
        raise ValueError(f"{name} must be an integer, 0 or more, got {count!r}")


def is_integer(number: object) -> bool:
    """Python's, NumPy's, or a size that ``torch.export`` leaves open; ``True`` is none.

    Example:
        >>> is_integer(3), is_integer(3.0), is_integer(True)
        (True, False, False)
    """
    return isinstance(number, Integral | torch.SymInt) and not isinstance(number, bool)


def check_dropout(dropout: float) -> None:
    """Refuse what is no probability below one.

    Raises:
        ValueError: names what was given.

    Example:
        >>> check_dropout(1.0)
        Traceback (most recent call last):
        ValueError: dropout must be in [0, 1), got 1.0
    """
    if not isinstance(dropout, Real) or not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")


def check_finite(**numbers: float) -> None:
    """Refuse NaN, what is infinite, and what is no number.

    Raises:
        ValueError: names the first of them.

    Example:
        >>> check_finite(scale=float("nan"))
        Traceback (most recent call last):
        ValueError: scale must be a finite number, got nan
    """
    for name, number in numbers.items():
        if not isinstance(number, Real) or isinstance(number, bool) or not math.isfinite(number):
            raise ValueError(f"{name} must be a finite number, got {number!r}")


def check_flags(**flags: bool) -> None:
    """Refuse what is neither true nor false: ``"no"`` would count as true.

    Raises:
        TypeError: names the first of them.

    Example:
        >>> check_flags(causal=True, scaled=False)
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, got a {type(flag).__name__}")
