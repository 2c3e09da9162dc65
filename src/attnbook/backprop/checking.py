"""Is a hand-derived gradient right? A check that names the tensor whose gradient is not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

STEP = 1e-5
EPSILON = float(np.finfo(np.float64).eps)


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
    moved = _floats("x", x)
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
        tolerance: on the difference of each entry, relative to its size, but to no less than a
            thousandth of the tensor's largest, nor a millionth of the largest of all: the gradient
            of a bias on the keys is zero. If all gradients are zero but for the rounding of the
            differences, so must those given be.
        seed: of G.
        tensors: the point at which both are compared; choose all dimensions different.

    Returns:
        The largest error of each tensor's gradient, relative to the tensor's largest gradient, or
        to a thousandth of the largest of all.

    Raises:
        ValueError: if finite differences can't tell: ``forward`` is not finite, there or near by,
            not deterministic, has a kink or a jump at the point, or computes in float32.
        TypeError: if ``forward`` returns a tuple or something else than float64, ``backward`` no
            gradients by name, or a tensor is not of floating-point numbers (ids, a mask).
        GradientError: names every tensor whose gradient is missing, has another shape or is wrong,
            and an entry that is far off and not near 0.

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
    _check_options(tensors, tolerance=tolerance, seed=seed)
    point = _Point(forward, {name: _floats(name, x) for name, x in tensors.items()}, seed)
    given = backward(point.upstream.copy(), **{name: x.copy() for name, x in point.tensors.items()})
    if not isinstance(given, Mapping):
        raise TypeError(f"backward must return gradients by name, got a {type(given).__name__}")
    expected = {name: point.numerical(name) for name in tensors}
    overall = max(np.abs(numerical).max(initial=0.0) for numerical in expected.values())
    rounding = 100 * EPSILON * float(np.linalg.norm(point.upstream * point.output)) / STEP
    # A gradient that is exactly zero is compared with the noise of the differences.
    least = 1e-3 * overall if overall > rounding else rounding / tolerance
    errors, complaints = {}, []
    for name, numerical in expected.items():
        complaint = _misfit(name, given, numerical)
        if not complaint:
            ours = np.asarray(given[name])
            errors[name], complaint = point.compare(name, ours, numerical, least, tolerance)
        complaints += complaint
    if complaints:
        raise GradientError("; ".join(complaints))
    return errors


def _check_options(tensors: Mapping[str, Array], *, tolerance: float, seed: int) -> None:
    for option, value in (("tolerance", tolerance), ("seed", seed)):
        if np.ndim(value):
            raise TypeError(f"{option} is an option, not a tensor: give the tensor another name")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance}")
    if not tensors:
        raise ValueError("no tensors are given whose gradients could be checked")


def _misfit(name: str, given: Mapping[str, Any], numerical: Array) -> list[str]:
    """What forbids to compare a gradient, if anything does."""
    if name not in given:
        return [f"{name}: no gradient was returned"]
    if (shape := np.shape(given[name])) != numerical.shape:
        return [f"{name}: its gradient has shape {shape}, the tensor {numerical.shape}"]
    return []


class _Point:
    """A forward pass at the point where its gradients are checked."""

    def __init__(
        self, forward: Callable[..., Array], tensors: Mapping[str, Array], seed: int
    ) -> None:
        self.forward, self.tensors = forward, dict(tensors)
        self.output = self.at()
        if not np.isfinite(self.output).all():
            raise ValueError("forward returns numbers that are not finite: choose another point")
        if not all(np.array_equal(self.at(), self.output) for _ in range(5)):
            raise ValueError(
                "forward is not deterministic: at the same point it returns other numbers; draw "
                "random ones (a dropout's mask) before, or from a generator of the same seed"
            )
        self.upstream = np.random.default_rng(seed).standard_normal(self.output.shape)

    def at(self, **changed: Array) -> Array:
        """The output there, or where some tensors are others; no function spoils another's."""
        result = self.forward(**{name: x.copy() for name, x in (self.tensors | changed).items()})
        if isinstance(result, tuple):
            raise TypeError("forward must return an array, got a tuple: return its first, perhaps")
        array = np.array(result)  # forward may use its own again
        if array.dtype != np.float64:
            raise TypeError(f"forward must compute in float64, it returns {array.dtype}")
        return array

    def numerical(self, name: str) -> Array:
        """The gradient of the loss with respect to a tensor, by finite differences."""
        gradient = numerical_gradient(
            lambda moved: float((self.upstream * self.at(**{name: moved})).sum()),
            self.tensors[name],
        )
        if not np.isfinite(gradient).all():
            raise ValueError(f"forward is not finite near {name}: choose another point")
        return gradient

    def compare(
        self, name: str, ours: NDArray[Any], numerical: Array, least: float, tolerance: float
    ) -> tuple[float, list[str]]:
        """The largest error of a gradient, and a telling entry if that is wrong."""
        largest = max(np.abs(numerical).max(initial=0.0), least, np.finfo(float).tiny)
        difference = np.nan_to_num(np.abs(ours - numerical), nan=np.inf, posinf=np.inf)
        allowed = tolerance * np.maximum(np.abs(numerical), 1e-3 * largest)
        wrong = {}  # a complaint: its entry, or how far it is off if that is less, and how far
        for where in map(tuple, np.argwhere(difference > allowed).tolist()):
            off, numbers = self.judge(
                name,
                where,
                ours[where],
                allowed[where],
                matters=bool(difference[where] > tolerance * largest),
            )
            if numbers:
                place = f"{name}: at [{', '.join(map(str, where))}]"
                wrong[f"{place} the gradient is {numbers}"] = min(off, abs(numerical[where])), off
            elif difference[where] > tolerance * largest:
                difference[where] = off
        error = float(difference.max(initial=0.0) / largest)
        return error, [max(wrong, key=lambda complaint: wrong[complaint])] if wrong else []

    def judge(
        self, name: str, where: tuple[int, ...], ours: complex, allowed: float, *, matters: bool
    ) -> tuple[float, str]:
        """How far an entry is off, and both numbers if it is wrong."""

        def along(move: float) -> Array:
            moved = self.tensors[name].copy()
            moved[where] += move
            return self.at(**{name: moved})

        steps = np.array([1.0, 0.1]) * STEP * max(1.0, abs(self.tensors[name][where]))
        slopes = [_slopes(along, self.upstream, self.output, step) for step in steps]
        off, verdict = _judged(ours, slopes, allowed)
        place = f"{name}: at [{', '.join(map(str, where))}]"
        if verdict == "kink":
            raise ValueError(f"{place} forward has a kink: choose another point")
        if verdict == "unclear" and matters:
            raise ValueError(
                f"{place} forward jumps, or computes in float32: finite differences of "
                f"{steps[0]:.1g} and {steps[1]:.1g} give {slopes[0][0]:.6g} and {slopes[1][0]:.6g}"
            )
        if verdict != "wrong":
            return off, ""
        digits = 6 if f"{ours:.6g}" != f"{slopes[0][0]:.6g}" else 12  # enough to tell them apart
        return off, f"{ours:.{digits}g}, finite differences give {slopes[0][0]:.{digits}g}"


def _floats(name: str, given: ArrayLike) -> Array:
    """A copy in float64; differences of ids, masks and complex numbers would mean nothing."""
    array = np.asarray(given)
    if array.dtype.kind != "f":
        raise TypeError(
            f"{name} must be of floating-point numbers, got {array.dtype}: ids and masks have no "
            "gradient, so let forward and backward know them without handing them over"
        )
    return array.astype(np.float64)


def _slopes(
    along: Callable[[float], Array], upstream: Array, output: Array, step: float
) -> tuple[float, float, float]:
    """The mean of both sides' slopes, their difference, and how far rounding may take the mean.

    Outputs that do not move cancel exactly, however large they are.
    """
    above, below = along(step), along(-step)
    right = float((upstream * (above - output)).sum()) / step
    left = float((upstream * (output - below)).sum()) / step
    moved = upstream * np.where(above == below, 0.0, output)
    rounding = 100 * EPSILON * float(np.linalg.norm(moved)) / step
    return (right + left) / 2, abs(right - left), rounding


def _judged(
    ours: complex, slopes: list[tuple[float, float, float]], allowed: float
) -> tuple[float, str]:
    """How far a gradient is off, and why, by the slopes at a step and at a tenth of it.

    A tenth of the step makes a tenth of the difference of both sides where the function is smooth,
    the same at a kink or none beside it, and more where the function jumps or rounds.
    """
    (central, bend, _), (finer, finer_bend, _) = slopes
    for slope, _, rounding in slopes:
        if abs(ours - slope) <= allowed + rounding:
            return abs(ours - slope), "right"
    off, apart = float(np.nan_to_num(abs(ours - central), nan=np.inf)), abs(central - finer)
    steps_agree = off > 10 * apart
    if bend >= off and (finer_bend < bend / 30 or (steps_agree and finer_bend > bend / 3)):
        return off, "kink"
    return off, "wrong" if steps_agree else "unclear"
