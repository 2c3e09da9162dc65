"""Is a hand-derived gradient right? A check that names the tensor whose gradient is not."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STEP = 1e-5


class GradientError(AssertionError):
    """Some gradient is not the one that finite differences give."""


def numerical_gradient(
    function: Callable[[Array], float], x: Array, *, step: float = STEP
) -> Array:
    r"""Central finite differences, one entry after another.

    .. math:: \frac{\partial f}{\partial x_i} \approx \frac{f(x + h e_i) - f(x - h e_i)}{2h}

    Args:
        function: from an array to a number.
        x: where; two evaluations for each of its entries.
        step: :math:`h`, times the larger of 1 and the entry's size.

    Example:
        >>> numerical_gradient(lambda x: float((x**2).sum()), np.array([1.0, 3.0])).round(6)
        array([2., 6.])
    """
    moved = np.array(x, dtype=np.float64)
    result = np.empty_like(moved)
    for i in np.ndindex(*moved.shape):
        before = float(moved[i])
        h = step * max(1.0, abs(before))
        moved[i] = before + h
        above = float(function(moved.copy()))  # it may keep or change what it gets
        moved[i] = before - h
        result[i] = (above - float(function(moved.copy()))) / (2.0 * h)
        moved[i] = before
    return result


def check_gradient(
    forward: Callable[..., Array],
    backward: Callable[..., Mapping[str, Array]],
    /,
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
    **tensors: Array,
) -> dict[str, float]:
    r"""Compare a backward pass with finite differences, for every tensor.

    It draws a random :math:`G` of the output's shape and differentiates
    :math:`L = \sum_{ij} G_{ij}\, \text{forward}_{ij}`, so that every entry of the Jacobian counts.
    A gradient of zeros, of ones or of the right sum does not pass, unless the right one is as small
    as ``tolerance`` says.

    Args:
        forward: takes the tensors by name and returns an array.
        backward: takes G and the tensors by name and returns the gradient of each, by name.
        tolerance: on the largest difference, relative to the tensor's largest gradient (but to no
            less than a thousandth of the largest of all: that of a bias on the keys is zero). If
            all gradients are zero but for the rounding of the differences, so must those given be.
        seed: of G.
        tensors: the point at which both are compared; choose all dimensions different.

    Returns:
        The error of each tensor's gradient, relative to what ``tolerance`` is relative to.

    Raises:
        ValueError: if what ``forward`` returns is not finite, there or near by.
        TypeError: if ``forward`` returns a tuple, or ``backward`` no gradients by name.
        GradientError: names every tensor whose gradient is missing, has another shape or is wrong,
            and where it is wrong most.

    Example:
        >>> def forward(x, weight):
        ...     return x @ weight
        >>> def backward(gradient, x, weight):
        ...     return {"x": gradient @ weight, "weight": x.T @ gradient}
        >>> x, weight = np.arange(6.0).reshape(2, 3), np.arange(9.0).reshape(3, 3)
        >>> check_gradient(forward, backward, x=x, weight=weight)
        Traceback (most recent call last):
        attnbook.backprop.checking.GradientError: x: at [...] the gradient is ...
    """
    tensors = {name: np.array(tensor, dtype=np.float64) for name, tensor in tensors.items()}

    def output_of(**changed: Array) -> Array:
        """Neither function can spoil what the other gets."""
        result = forward(**{name: x.copy() for name, x in (tensors | changed).items()})
        if isinstance(result, tuple):
            raise TypeError("forward must return an array, got a tuple: return its first, perhaps")
        return np.asarray(result)

    output = output_of()
    if not np.isfinite(output).all():
        raise ValueError("forward returns numbers that are not finite: choose another point")
    upstream = np.random.default_rng(seed).standard_normal(output.shape)
    given = backward(upstream.copy(), **{name: tensor.copy() for name, tensor in tensors.items()})
    if not isinstance(given, Mapping):
        raise TypeError(f"backward must return gradients by name, got a {type(given).__name__}")
    expected = {}
    for name, tensor in tensors.items():

        def loss(moved: Array, name: str = name) -> float:
            return float((upstream * output_of(**{name: moved})).sum())

        expected[name] = numerical_gradient(loss, tensor)
        if not np.isfinite(expected[name]).all():
            raise ValueError(f"forward is not finite near {name}: choose another point")
    overall = max((np.abs(e).max(initial=0.0) for e in expected.values()), default=0.0)
    rounding = 100 * np.finfo(float).eps * float(np.linalg.norm(upstream * output)) / STEP
    # A gradient that is exactly zero is compared with the noise of the differences.
    least = 1e-3 * overall if overall > rounding else rounding / tolerance
    errors, complaints = {}, []
    for name, numerical in expected.items():
        if name not in given:
            complaints.append(f"{name}: no gradient was returned")
            continue
        ours = np.asarray(given[name])
        if ours.shape != numerical.shape:
            complaints.append(
                f"{name}: its gradient has shape {ours.shape}, the tensor {numerical.shape}"
            )
            continue
        largest = max(np.abs(numerical).max(initial=0.0), least, np.finfo(float).tiny)
        difference = np.nan_to_num(np.abs(ours - numerical), nan=np.inf)
        errors[name] = float(difference.max(initial=0.0) / largest)
        if errors[name] > tolerance:
            where = np.unravel_index(difference.argmax(), difference.shape)
            complaints.append(
                f"{name}: at [{', '.join(map(str, where))}] the gradient is {ours[where]:.6g}, "
                f"finite differences give {numerical[where]:.6g}"
            )
    if complaints:
        raise GradientError("; ".join(complaints))
    return errors
