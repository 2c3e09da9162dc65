"""Arguments that several rooms refuse in the same words."""

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


def check_dropout(dropout: float) -> None:
    """Refuse what is no probability below one.

    Raises:
        ValueError: names what was given.

    Example:
        >>> check_dropout(1.0)
        Traceback (most recent call last):
        ValueError: dropout must be in [0, 1), got 1.0
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")
