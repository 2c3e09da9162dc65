"""How the residual stream grows, and how similar tokens become, block by block (chapter 8)."""

import math
from typing import Any

import numpy as np

from attnbook.book.figures import BLUE, GREEN, ORANGE, PURPLE
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    group,
    line,
    mark,
    number,
    pick,
    points,
    shown,
    text,
    words,
)
from attnbook.book.interactive.figure import Choice, Figure, Guess, Slider

DEPTHS = (2, 4, 6, 12, 24, 48)
GPT2 = 0.02**2 * 768  # width times variance
SCHEMES = {
    "plain": "pre-norm without the factor",
    "output": "pre-norm with W_O alone divided by √N",
    "both": "pre-norm with W_O and W_2 divided by √(2N)",
    "post": "post-norm without the factor",
}


def overlaps(variance: float) -> list[list[float]]:
    """P and p' as polynomials in √(1 - cosine), lowest power first: 32 tokens, heads of 16.

    Args:
        variance: of the logits in a row, where tokens are unrelated.
    """
    rng = np.random.default_rng(0)
    queries, keys = rng.standard_normal((2, 400, 1, 16)), rng.standard_normal((400, 32, 16))
    first, other = math.sqrt(variance) * (queries * keys).sum(-1) / 4  # (400, 32) each
    roots, found = (1 - np.cos(np.linspace(0, math.pi, 34)[1:])) / 2, []
    for root in roots:
        rho = 1 - root**2
        a, b = (np.exp(root * s) for s in (first, rho * first + math.sqrt(1 - rho**2) * other))
        a, b = (x / x.sum(-1, keepdims=True) for x in (a, b))
        found.append([(a * a).sum(-1).mean(), (a * b).sum(-1).mean()])
    table = (np.array(found) - 1 / 32) / roots[:, None]  # equal tokens: uniform weights
    rows = np.polynomial.polynomial.polyfit(roots, table, 9).T
    return [[1 / 32, *(float(f"{x:.10g}") for x in row)] for row in rows]


def follow(n: int, start: str, scheme: str, data: Numbers) -> tuple[list[float], list[float]]:
    """Variance and mean cosine after 0, 1, …, n blocks: v ← v + v_f, c ← c + c_f."""
    attention, feed_forward = data["gains"][start]
    if scheme == "output":
        attention /= n
    if scheme == "both":
        attention, feed_forward = attention / (2 * n), feed_forward / (2 * n)
    v, c = 1.0, 0.0
    variances, cosines = [v], [c]
    for _ in range(n):
        for part in "af":
            rho = min(c / v, 1.0)
            if part == "a":  # what tokens share passes, what tells them apart is averaged
                v_f, c_f = (
                    attention
                    * (rho + (1 - rho) * sum(a * (1 - rho) ** (k / 2) for k, a in enumerate(row)))
                    for row in data["overlaps"][start]
                )
            else:  # the arc-cosine kernel
                v_f = feed_forward / 2
                angle = rho * (math.pi - math.acos(rho))
                c_f = feed_forward * (math.sqrt(1 - rho**2) + angle) / (2 * math.pi)
            v, c = v + v_f, c + c_f
            if scheme == "post":
                v, c = 1.0, c / v
        variances.append(v)
        cosines.append(c / v)
    return variances, cosines


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Lines by the recursion, dots as measured."""
    n, start = settings["n"], settings["start"]
    runs = [follow(n, start, scheme, data) for scheme in data["names"]]
    dots: list[list[list[float]]] = []
    seen: list[list[list[bool]]] = []
    for scheme in data["names"]:
        found = data["measured"][start][scheme]
        same = scheme in ("plain", "post")  # the first 12 of 48 blocks are a stack of 12
        dots.append([[x or 0 for x in row] for row in found])
        seen.append([
            [x is not None and (depth <= n if same else depth == n)
             for x, depth in zip(row, data["depths"], strict=True)]
            for row in found
        ])  # fmt: skip
    chosen = [scheme == settings["scheme"] for scheme in data["names"]]
    ends = [[row[-1] for row in run] for run in runs]
    mine = chosen.index(True)
    variance, cosine = ends[mine]
    return {
        "runs": [list(run) for run in runs],
        "ends": ends,
        "dots": dots,
        "seen": seen,
        "chosen": chosen,
        "name": data["names"][settings["scheme"]],
        "variance": variance,
        "cosine": cosine,
        "measured_48": data["measured"]["glorot"]["output"][0][5],
        "case": "dots" if any(any(row) for row in seen[mine]) else "lines",
    }


def panel(what: int, scale: float, low: float, places: str) -> list[Drawing]:
    """Lines, dots and values of the variance (0) or the cosine (1)."""
    lines, dots, values = [], [], []
    labels = ("no factor", "W_O alone", "W_O and W_2", "post-norm")
    for i, (label, colour, dash) in enumerate(
        zip(labels, (BLUE, ORANGE, GREEN, PURPLE), ("none", "7 3", "2 3", "9 3 2 3"), strict=True)
    ):
        style = {"stroke": colour, "stroke_dasharray": dash, "fill": "none",
                 "stroke_width": pick(f"chosen.{i}", "1.6", "3.4")}  # fmt: skip
        heights = points(f"runs.{i}.{what}", -scale, low, x_scale=5, x_offset=36)
        lines.append(mark("polyline", points=heights, **style))
        dots += [
            mark("circle", cx=36 + 5 * depth, cy=number(f"dots.{i}.{what}.{j}", -scale, low),
                 r=3.6, fill=colour, visibility=shown(f"seen.{i}.{what}.{j}"))
            for j, depth in enumerate(DEPTHS)
        ]  # fmt: skip
        y = low - 100 + 26 * i
        values.append(mark("line", x1=287, y1=y - 4, x2=306, y2=y - 4, **style))
        said = text(f"{label}: {{ends.{i}.{what}:{places}}}")
        values.append(words(311, y, said, font_weight=pick(f"chosen.{i}", "normal", "bold")))
    return [group(*lines, *dots, *values, data_answer="")]


def marks() -> list[Drawing]:
    """Two panels above each other."""
    drawn = [
        words(8, 16, "Variance of the stream, as predicted", font_weight="bold"),
        words(8, 196, "Mean cosine of two tokens, as predicted", font_weight="bold"),
        words(156, 362, "blocks", "middle"),
    ]
    for low, scale, ticks in ((166, 140 / 60, (0, 20, 40, 60)), (322, 110, (0, 0.5, 1))):
        drawn += [line(36, low, 280, low), line(36, low, 36, low - scale * ticks[-1])]
        for tick in ticks:
            drawn.append(words(31, low + 4 - scale * tick, f"{tick:g}", "end"))
    drawn += [words(36 + 5 * n, 342, f"{n}", "middle") for n in (0, 12, 24, 36, 48)]
    return [*drawn, *panel(0, 140 / 60, 166, ".1f"), *panel(1, 110, 322, ".2f")]


stream = Figure(
    name="stream",
    title="The residual stream, block by block",
    description=(
        "Two panels over 48 blocks from Glorot, lines as predicted, dots as measured. Above, the "
        "variance of the stream: without the factor it rises to 54, faster and faster; with W_O "
        "alone divided, to 17; with W_O and W_2 divided it stays at 1.2, in post-norm at 1. "
        "Below, the mean cosine of two tokens: post-norm reaches 1 within 12 blocks, pre-norm "
        "without the factor 0.93, with W_O alone divided 0.53, with both divided 0.07."
    ),
    size=(440, 370),
    compute=compute,
    marks=marks(),
    says={
        "dots": "After {n} blocks, {name}: predicted are a variance of {variance:.1f} and a mean "
        "cosine of {cosine:.2f}. Dots are measured.",
        "lines": "After {n} blocks, {name}: predicted are a variance of {variance:.1f} and a mean "
        "cosine of {cosine:.2f}. This case was not measured.",
    },
    table={
        label: f"variance {{ends.{i}.0:.3f}}, cosine {{ends.{i}.1:.3f}}"
        for i, label in enumerate(SCHEMES.values())
    },
    controls=(
        Slider("n", "Blocks N", 48, low=1, high=48, step=1),
        Choice("scheme", "Scheme", "plain", {
            "plain": "pre-norm, no factor",
            "output": "pre-norm, W_O alone ÷ √N",
            "both": "pre-norm, W_O and W_2 ÷ √(2N)",
            "post": "post-norm, no factor",
        }),
        Choice("start", "Matrices", "glorot", {
            "glorot": "Glorot (Xavier)", "gpt2": "GPT-2, smaller"}),
    ),
    guess=Guess(
        "Pre-norm, Glorot, 48 blocks: W_O alone is divided by √48. The stream enters with "
        "variance 1. How large is its variance at the end?",
        answer="measured_48",
        reply="You said {guess}. Measured: {measured_48:.1f}, the mean of eight initializations.",
        low=1,
        high=80,
        value=2,
        shown="{guess}",
    ),
    data={
        "depths": DEPTHS,
        "names": SCHEMES,
        "gains": {"glorot": [1, 0.64], "gpt2": [GPT2**2, 4 * GPT2**2]},
        "overlaps": {"glorot": overlaps(1), "gpt2": overlaps(GPT2**2)},
    },
    examples=(
        {"n": 1},
        {"n": 12, "scheme": "both"},
        {"n": 24, "scheme": "output", "start": "gpt2"},
        {"n": 48, "scheme": "post"},
        {"n": 6, "scheme": "both", "start": "gpt2"},
    ),
)  # fmt: skip
