"""How fast a layer learns from W_Q and W_K of some size at initialization (chapter 7)."""

import math
from typing import Any

from book.figures.colours import BLUE, KEY, MUTED, ROSE
from book.figures.moving.drawing import (
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
from book.figures.moving.figure import Figure, Slider

SIZES = (0.01, 0.0333, 0.1, 0.1667, 0.3333, 0.5, 0.7071, 1.0, 1.4142, 2.0, 2.8284, 4.0)
"""Of W_Q and W_K, times Glorot's."""
MODELS, LIMIT = 8, 300
ONE, PER_DECADE = 330, 138  # where size 1 lies across
FLOOR, PER_STEP = 196, 0.55


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """What was measured at this size, and from it on (from Glorot's on at the latest)."""
    size = settings["size"]
    at = SIZES.index(size)
    begin = min(at, SIZES.index(1.0))  # the chapter passes its study's numbers
    done = [steps < LIMIT for steps in data["steps"][at]]
    return {
        "asked": size >= 1,
        "place": math.log10(size),
        "places": [math.log10(each) for each in SIZES[begin:]],
        "curve": data["medians"][begin:],
        "median": data["medians"][at],
        "steps": data["steps"][at],
        "keys": data["keys"][at],
        "done": done,
        "n_done": sum(done),
        "case": "glorot" if size == 1 else "small" if size < 1 else "large",
    }


def marks() -> list[Drawing]:
    """Steps by size, with the median's line; the models at the marker; the keys they begin with."""
    here = number("place", PER_DECADE, ONE)
    top = FLOOR - PER_STEP * LIMIT
    return [
        words(4, 14, "Steps until a model has learned", font_weight="bold"),
        *(words(40, FLOOR - PER_STEP * n + 5, f"{n}" + "+" * (n == LIMIT), "end")
          for n in (0, 100, 200, LIMIT)),
        line(46, top, 424, top, stroke_dasharray="2 4"),
        line(46, FLOOR, 424, FLOOR),
        line(ONE, top, ONE, FLOOR, stroke_dasharray="5 4"),
        *(words(ONE + PER_DECADE * math.log10(size), FLOOR + 18, name, "middle")
          for size, name in ((0.01, "1/100"), (0.1, "1/10"), (1, "Glorot’s size"), (4, "4 times"))),
        group(words(180, 110, "And smaller? Where does the line go?", "middle", fill=MUTED),
              words(180, 130, "Guess, then move the slider to the left.", "middle", fill=MUTED),
              visibility=shown("asked")),
        mark("line", x1=here, x2=here, y1=top, y2=FLOOR, stroke=MUTED, stroke_width=2),
        mark("polyline", points=points("curve", -PER_STEP, FLOOR, xs="places",
             x_scale=PER_DECADE, x_offset=ONE), fill="none", stroke=BLUE, stroke_width=2.5),
        *(mark("circle", cx=here, cy=number(f"steps.{i}", -PER_STEP, FLOOR), r=4,
               fill=pick(f"done.{i}", ROSE, BLUE), fill_opacity=0.75) for i in range(MODELS)),
        words(4, 248, text("Keys that a query attends to at first: {keys:.1f} of 8"),
              font_weight="bold"),
        mark("rect", x=46, y=258, height=16, width=number("keys", 47), fill=KEY,
             fill_opacity=0.75),
        *(mark("rect", x=46 + 47 * i, y=258, width=47, height=16, fill="none", stroke=MUTED)
          for i in range(8)),
    ]  # fmt: skip


plateau = Figure(
    name="plateau",
    title="How large may the matrices of queries and keys be at first?",
    description=(
        "Steps until a model has learned, over the size of W_Q and W_K at initialization. At "
        "Glorot's size eight models need about 60. From there the curve of their median rises, "
        "slowly at first, to about 270 at four times that size. Below, a strip: at Glorot's size a "
        "query attends to 5 of 8 keys at first. Towards smaller sizes the curve is still to be "
        "drawn: it stays as low, and the strip fills."
    ),
    size=(440, 280),
    compute=compute,
    marks=marks(),
    says={
        "small": "At {size:.2f} times Glorot’s size a query begins with {keys:.1f} of 8 keys. "
        "{n_done} of 8 models learn within 300 steps, the median in {median:.0f}. "
        "About as fast here.",
        "glorot": "At Glorot’s size a query begins with {keys:.1f} of 8 keys. {n_done} of 8 models "
        "learn within 300 steps, the median in {median:.0f}.",
        "large": "At {size:.2f} times Glorot’s size a query begins with {keys:.1f} of 8 keys. "
        "{n_done} of 8 models learn within 300 steps, the median in {median:.0f}. "
        "Large is slower here.",
    },
    table={
        "keys that a query attends to at first, of 8": "{keys:.2f}",
        "models that learn within 300 steps, of 8": "{n_done}",
        "median of their steps": "{median:.1f}",
    },
    controls=(
        Slider("size", "Size of both matrices", 1.0, values=SIZES, shown="{size:.2f} × Glorot’s"),
    ),
    examples=({"size": 4.0}, {"size": 1.4142}, {"size": 2.0}, {"size": 0.01}, {"size": 0.0333}),
)
