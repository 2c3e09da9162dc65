"""How well one colour is seen on another; colours are red, green and blue from 0 to 1."""

import numpy as np
from numpy.typing import NDArray


def linear(colour: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def contrast(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """As WCAG 2 defines it."""
    dark, light = sorted(float(linear(x) @ [0.2126, 0.7152, 0.0722]) for x in (a, b))
    return (light + 0.05) / (dark + 0.05)
