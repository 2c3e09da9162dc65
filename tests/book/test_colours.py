"""The house's colours are read easily, and told apart by those who are colour-blind."""

from itertools import combinations

import numpy as np
import pytest
from contrast import contrast, linear
from numpy.typing import NDArray

from book.figures.colours import COLOURS
from book.figures.workbench.picture import tint

SERIES = ("blue", "olive", "rose")
THEMES = pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
# Machado, Oliveira and Fernandes 2009, severity 1: what reaches the eye, in linear light.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.3039],
        ]
    ),
}


def rgb(name: str, theme: int) -> NDArray[np.float64]:
    code = COLOURS[name][theme]
    return np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def on(
    ground: NDArray[np.float64], colour: NDArray[np.float64], part: float
) -> NDArray[np.float64]:
    return (1 - part) * ground + part * colour


def lab(colour: NDArray[np.float64], sight: str) -> NDArray[np.float64]:
    """CIE L*a*b* of what reaches the eye."""
    seen = np.clip(SIGHT[sight] @ linear(colour), 0, 1)
    xyz = (
        np.array(
            [
                [0.4124564, 0.3575761, 0.1804375],
                [0.2126729, 0.7151522, 0.072175],
                [0.0193339, 0.119192, 0.9503041],
            ]
        )
        @ seen
        / [0.95047, 1, 1.08883]
    )
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@THEMES
def test_marks_and_letters_are_seen(theme):
    grounds = [rgb(name, theme) for name in ("page", "lane", "cell")]
    for ground in grounds:
        for name in ("stream", "query", "key", "value", "weight", "gradient", *SERIES):
            assert contrast(rgb(name, theme), ground) >= 3, name
        for name in ("ink", "muted", "zero", "query", "key", "value-letter", "stream", "gradient"):
            assert contrast(rgb(name, theme), ground) >= 4.5, name


@THEMES
@pytest.mark.parametrize("gradient", [False, True])
def test_digits_are_read_on_their_tints(theme, gradient):
    ink, cell = rgb("ink", theme), rgb("cell", theme)
    for x in np.linspace(0.01, 9, 300):
        for name in ("stream", "query", "key", "value", "gradient"):
            strength = tint("Q", x, gradient=gradient)
            assert contrast(ink, on(cell, rgb(name, theme), strength)) >= 4.5, (name, x)
    for a in np.linspace(0.01, 1, 100):
        strength = tint("A", a, gradient=False)
        digit = rgb("on-weight", theme) if strength > 0.5 else ink
        assert contrast(digit, on(cell, rgb("weight", theme), strength)) >= 4.5, a


@THEMES
@pytest.mark.parametrize("sight", SIGHT)
def test_query_key_and_value_are_told_apart(theme, sight):
    for pair in combinations(("query", "key", "value"), 2):
        a, b = (lab(rgb(name, theme), sight) for name in pair)
        assert np.linalg.norm(a - b) >= 40, pair
    for name in ("query", "key", "value"):  # the stream has a place and a thickness of its own, too
        assert np.linalg.norm(lab(rgb("stream", theme), sight) - lab(rgb(name, theme), sight)) >= 15


@THEMES
@pytest.mark.parametrize("sight", SIGHT)
def test_lines_that_are_compared_are_told_apart(theme, sight):
    for pair in combinations((*SERIES, "stream"), 2):
        a, b = (lab(rgb(name, theme), sight) for name in pair)
        assert np.linalg.norm(a - b) >= 18, pair
