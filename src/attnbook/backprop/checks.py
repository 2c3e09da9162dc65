"""What several functions of this package refuse, in the same words."""

import numpy as np


def check_shape(name: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    """Refuse another shape: NumPy would broadcast it, and the numbers would be wrong.

    Raises:
        ValueError: names the argument and both shapes.

    Example:
        >>> check_shape("gradient", np.ones(3), (2, 3))
        Traceback (most recent call last):
        ValueError: gradient has shape (3,), expected (2, 3)
    """
    if np.shape(array) != expected:
        raise ValueError(f"{name} has shape {np.shape(array)}, expected {expected}")


def check_boolean(name: str, mask: np.ndarray) -> None:
    """Refuse a mask of another type: 0 and -inf, or 1 and 0, would be read the wrong way round.

    Raises:
        TypeError: names the argument and the type.

    Example:
        >>> check_boolean("mask", np.zeros(3))
        Traceback (most recent call last):
        TypeError: mask must be boolean, got an array of float64
    """
    if np.asarray(mask).dtype != bool:
        raise TypeError(f"{name} must be boolean, got an array of {np.asarray(mask).dtype}")


def check_integers(name: str, ids: np.ndarray) -> None:
    """Refuse what is not an array of integers; booleans are not integers.

    Raises:
        TypeError: names the argument and the type.

    Example:
        >>> check_integers("ids", np.zeros(3))
        Traceback (most recent call last):
        TypeError: ids must be an array of integers, got one of float64
    """
    if not isinstance(ids, np.ndarray):
        raise TypeError(f"{name} must be an array of integers, got a {type(ids).__name__}")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"{name} must be an array of integers, got one of {ids.dtype}")


def check_broadcast(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Refuse what does not broadcast to a shape, or goes beyond it.

    Raises:
        ValueError: names the argument and both shapes.

    Example:
        >>> check_broadcast("mask", np.ones((4, 3), dtype=bool), (1, 3))
        Traceback (most recent call last):
        ValueError: mask of shape (4, 3) does not broadcast to (1, 3)
    """
    given = np.shape(array)
    fits = zip(reversed(given), reversed(shape), strict=False)
    if len(given) > len(shape) or any(have not in (1, want) for have, want in fits):
        raise ValueError(f"{name} of shape {given} does not broadcast to {shape}")
