"""How wide the residual stream becomes, and how similar its tokens, block by block (chapter 8)."""

import math
from typing import Any

import numpy as np

from book.figures.colours import COLOURS, STREAM
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    mark,
    move,
    path,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Slider

DEPTHS = (2, 4, 6, 12, 24, 48)
PLACES = 48
LEFT, LONG = 12, 416  # where the stream enters, and how long it is drawn
MIDDLE, PIXELS = 92, 9.5  # its height, and pixels for a spread of 1


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """The band's outline from the measured variances, angles from the measured cosines."""
    n = int(settings["n"])
    measured = data["measured"][settings["norm"]][settings["factor"]][str(n)]
    spread = [1.0, *(math.sqrt(v) for v in measured["variance"])]
    cosines = [0.0, *measured["cosine"]]
    # At 48 places for every depth, so that one outline glides into another: N divides 48.
    spread = np.interp(np.arange(PLACES + 1) * n / PLACES, range(n + 1), spread).tolist()
    places = [i / PLACES for i in range(PLACES + 1)]
    angles = [math.degrees(math.acos(min(c, 1.0))) / 2 for c in cosines]
    return {
        "edge": spread + [-s for s in spread[::-1]],
        "across": places + places[::-1],
        "gap": LONG / n - 1,
        "variance": measured["variance"][-1],
        "longer": spread[-1],
        "cosines": cosines,
        "up": [-a for a in angles],
        "down": angles,
        "cosine": cosines[-1],
    }


def marks() -> list[Drawing]:
    """The band with a line between blocks; below it two tokens at three places."""
    band = path("edge", -PIXELS, MIDDLE, xs="across", x_scale=LONG, x_offset=LEFT)
    drawn = [
        words(LEFT, 16, "The residual stream", font_weight="bold"),
        words(LEFT + LONG, 16, text("variance {variance:.1f} after {n} blocks"), "end"),
        mark("path", d=band, fill=STREAM),
        mark("line", x1=LEFT, y1=MIDDLE, x2=LEFT + LONG, y2=MIDDLE, stroke=COLOURS["page"][0],
             stroke_width=140, stroke_opacity=0.45, stroke_dasharray=text("1 {gap:.2f}")),
        words(LEFT, 186, "Two of its tokens", font_weight="bold"),
        words(LEFT + LONG, 186, "at the entry, halfway and at the end", "end"),
    ]  # fmt: skip
    for i, x in enumerate((12, 158, 304)):
        drawn += [
            mark("path", d="M0 -1.2h34v-3.5l9 4.7l-9 4.7v-3.5h-34z", fill=STREAM,
                 transform=move("n", "n", 0, x, 226, angle=f"{way}.{i}", y_scale=0))
            for way in ("up", "down")
        ]  # fmt: skip
        drawn.append(words(x + 48, 231, text(f"cosine {{cosines.{i}:.2f}}")))
    return drawn


stream = Figure(
    name="stream",
    title="The residual stream through N blocks",
    description=(
        "A band, the residual stream, through 48 pre-norm blocks from Glorot initialization, as "
        "wide as its entries spread. Without the factor it opens like a horn, from a variance of 1 "
        "to one of 53. Below, two tokens as arrows: perpendicular at the entry, at an angle of 34 "
        "degrees after 24 blocks and 23 degrees after 48."
    ),
    size=(440, 262),
    compute=compute,
    marks=marks(),
    says="After {n} untrained blocks the variance is {variance:.1f}, so vectors are {longer:.1f} "
    "times as long as at the entry. Two tokens have a mean cosine of {cosine:.2f}.",
    table={
        "variance": "{variance:.3f}",
        "spread (its root)": "{longer:.3f}",
        "mean cosine halfway": "{cosines.1:.3f}",
        "mean cosine at the end": "{cosines.2:.3f}",
    },
    controls=(
        Slider("n", "Blocks N", 48, values=DEPTHS, plays=0.8),
        Choice("factor", "Divided", "none", {
            "none": "nothing", "output": "Wₒ by √N", "both": "Wₒ and W₂ by √(2N)"}),
        Choice("norm", "Block", "pre", {"pre": "pre-norm", "post": "post-norm"}),
    ),
    data={},
    examples=(
        {"n": 2},
        {"n": 12, "factor": "both"},
        {"n": 24, "factor": "output", "norm": "post"},
        {"n": 48, "norm": "post"},
    ),
)  # fmt: skip
