"""Embedding look-up and positions: forward, and backward by hand."""

import numpy as np
from jaxtyping import Float, Integer

from attnbook.backprop.checks import check_integers, check_shape


def embedding(
    ids: Integer[np.ndarray, "..."],
    weight: Float[np.ndarray, "vocab d_model"],
    *,
    factor: float = 1.0,
) -> Float[np.ndarray, "... d_model"]:
    """The rows of ``weight`` that ``ids`` name, times ``factor``.

    Raises:
        TypeError: if ``ids`` is not an array of integers.
        ValueError: if an id is outside the vocabulary.

    Example:
        >>> embedding(np.array([1, 1]), np.array([[1.0, 2.0], [3.0, 4.0]]))
        array([[3., 4.],
               [3., 4.]])
    """
    _check_ids(ids, len(weight))
    return weight[ids] * factor


def embedding_backward(
    gradient: Float[np.ndarray, "... d_model"],
    ids: Integer[np.ndarray, "..."],
    vocab_size: int,
    *,
    factor: float = 1.0,
) -> Float[np.ndarray, "vocab d_model"]:
    r"""The gradient of the matrix: each row gets the sum over the places where it was looked up.

    .. math:: dE_v = \text{factor} \sum_{t:\ \text{ids}_t = v} dY_t

    Rows that were not looked up get zeros.

    Example:
        >>> embedding_backward(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2, 0]), 4)
        array([[4.],
               [0.],
               [2.],
               [0.]])
    """
    _check_ids(ids, vocab_size)
    check_shape("gradient", gradient, (*ids.shape, gradient.shape[-1]))
    result = np.zeros((vocab_size, gradient.shape[-1]))
    np.add.at(result, ids, gradient)
    result *= factor
    return result


def sinusoidal_positions(n_positions: int, d_model: int) -> Float[np.ndarray, "positions d_model"]:
    r"""Sines and cosines, interleaved, as :func:`attnbook.positions.sinusoidal_positions`.

    They are added and not trained: the gradient passes through the sum unchanged.

    Raises:
        ValueError: if ``d_model`` is not positive and even.

    Example:
        >>> sinusoidal_positions(50, 64).shape
        (50, 64)
    """
    if d_model < 2 or d_model % 2:
        raise ValueError(
            f"positions pair a sine with a cosine: the width must be even, got {d_model}"
        )
    frequency = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angle = np.arange(n_positions)[:, None] * frequency
    table = np.empty((n_positions, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)
    return table


def _check_ids(ids: np.ndarray, vocab_size: int) -> None:
    check_integers("ids", ids)
    if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
        raise ValueError(f"ids must be in 0 … {vocab_size - 1}, got {ids.min()} to {ids.max()}")
