"""How many keys W_Q and W_K of a size begin with, and how fast they learn (chapter 7)."""

import math
from typing import Any

from attnbook.book.figures import BLUE, INK, ORANGE, VERMILLION
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
from attnbook.book.interactive.figure import Figure, Guess, Slider

SIZES = (0.01, 0.0333, 0.1, 0.1667, 0.3333, 0.5, 0.7071, 1.0, 1.4142, 2.0, 2.8284, 4.0)
"""Of W_Q and W_K, times the standard (Xavier's)."""
MODELS, LIMIT = 8, 300


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """What was measured at this size, and at all sizes: the chapter passes its study's numbers."""
    at, limit = SIZES.index(settings["size"]), LIMIT
    steps, curves = data["steps"][at], data["losses"][at]
    done = [each < limit for each in steps]
    usual = data["steps"][SIZES.index(1.0)]
    learned = [each for each in steps if each < limit]
    return {
        "place": math.log10(settings["size"]),
        "places": [math.log10(size) for size in SIZES],
        "keys": data["keys"],
        "keys_here": data["keys"][at],
        "by_model": [list(each) for each in zip(*data["steps"], strict=True)],
        "steps": steps,
        "done": done,
        "curves": curves,
        "times": [[data["every"] * (i + 0.5) for i in range(len(curve))] for curve in curves],
        "last": [curve[-1] for curve in curves],
        "n_done": sum(done),
        "first": min(learned, default=limit),
        "slowest": max(learned, default=limit),
        "usual_first": min(usual),
        "usual_span": max(usual) - min(usual),
        "usual_slowest": max(usual),
        "measured": data["measured"],
        "longer": data["longer"],
        "case": "all" if len(learned) == MODELS else "some",
    }


X, PER_DECADE = 56, 138  # size 1/100 stands at X
LEFT, PER_STEP = 56, 1.2


def colour(i: int) -> Any:
    """Of a model: blue if it learned."""
    return pick(f"done.{i}", VERMILLION, BLUE)


def marks() -> list[Drawing]:
    """Keys by size; steps by size, a line for each model; the loss of each model at this size."""
    here = number("place", PER_DECADE, X + 2 * PER_DECADE)
    by_size: dict[str, Any] = {
        "xs": "places",
        "x_scale": PER_DECADE,
        "x_offset": X + 2 * PER_DECADE,
    }
    thin: dict[str, Any] = {"fill": "none", "stroke_width": 1.2, "stroke_opacity": 0.75}
    sizes = [
        words(X + PER_DECADE * (2 + math.log10(size)), 238, name, "middle")
        for size, name in ((0.01, "1/100"), (0.1, "1/10"), (1, "1"), (4, "4"))
    ]
    return [
        words(8, 16, "Keys that a query attends to before training", font_weight="bold"),
        words(46, 36, "8", "end"),
        words(46, 90, "0", "end"),
        line(X - 4, 86, 424, 86),
        *(
            mark("line", x1=here, x2=here, y1=top, y2=bottom, stroke=ORANGE, stroke_width=2)
            for top, bottom in ((26, 86), (124, 222))
        ),
        mark("polyline", points=points("keys", -6.75, 86, **by_size), fill="none",
             stroke=BLUE, stroke_width=2),
        mark("circle", cx=here, cy=number("keys_here", -6.75, 86), r=5, fill=ORANGE),
        words(8, 114, "Steps until eight models have learned", font_weight="bold"),
        words(46, 136, "300+", "end"),
        words(46, 222, "0", "end"),
        line(X - 4, 222, 424, 222),
        group(
            *(
                mark("polyline", points=points(f"by_model.{i}", -0.3, 222, **by_size),
                     stroke=BLUE, **thin)
                for i in range(MODELS)
            ),
            *(
                mark("circle", cx=here, cy=number(f"steps.{i}", -0.3, 222), r=3.6, fill=colour(i))
                for i in range(MODELS)
            ),
            data_answer="",
        ),
        *sizes,
        words(240, 256, "size of W_Q and W_K, times Xavier", "middle"),
        words(8, 284, "Their loss at this size", font_weight="bold"),
        words(428, 284, text("{n_done} of 8 learn"), "end", data_answer=""),
        mark("rect", x=number("usual_first", PER_STEP, LEFT), y=300, height=70, fill=INK,
             width=number("usual_span", PER_STEP), fill_opacity=0.1, data_answer=""),
        words(428, 306, "grey: where Xavier's size learns", "end", data_answer=""),
        words(46, 311, "2", "end"),
        words(46, 374, "0", "end"),
        line(LEFT - 4, 370, 424, 370),
        group(
            *(
                mark("polyline", points=points(f"curves.{i}", -32, 370, xs=f"times.{i}",
                     x_scale=PER_STEP, x_offset=LEFT), stroke=colour(i), **thin)
                for i in range(MODELS)
            ),
            *(
                mark("circle", cx=number(f"steps.{i}", PER_STEP, LEFT), r=3.6, fill=BLUE,
                     cy=number(f"last.{i}", -32, 370), visibility=shown(f"done.{i}"))
                for i in range(MODELS)
            ),
            data_answer="",
        ),
        *(words(LEFT + PER_STEP * n, 386, f"{n}", "middle") for n in (0, 100, 200)),
        words(430, 386, "300 steps", "end"),
    ]  # fmt: skip


plateau = Figure(
    name="plateau",
    title="How large may W_Q and W_K be at initialization?",
    description=(
        "At a hundredth of Xavier's size. Above, the number of keys that a query attends to: 8 of "
        "8 for small matrices, 5 at Xavier's size, 1.2 at four times that. In the middle, the "
        "steps until each of eight models has learned: about 60 from a hundredth to Xavier's size, "
        "a plateau; from twice the size on they rise steeply, and at four times three models need "
        "more than 300. Below, the loss of the eight models: all fall as fast as from Xavier."
    ),
    size=(440, 394),
    compute=compute,
    marks=marks(),
    says={
        "all": "{size:.2f} times Xavier: a query starts with {keys_here:.1f} of 8 keys, and all "
        "eight models learn, after {first} to {slowest} steps (Xavier: {usual_first} to "
        "{usual_slowest}).",
        "some": "{size:.2f} times Xavier: a query starts with {keys_here:.1f} of 8 keys, and "
        "{n_done} of eight models learn within 300 steps, after {first} to {slowest} (Xavier: "
        "{usual_first} to {usual_slowest}).",
    },
    table={
        "keys that a query attends to, of 8": "{keys_here:.2f}",
        "models that learn within 300 steps, of 8": "{n_done}",
        "steps of the fastest": "{first}",
        "steps of the slowest that learns": "{slowest}",
    },
    controls=(
        Slider("size", "Size of W_Q and W_K", 0.01, values=SIZES, shown="{size:.2f} × Xavier"),
    ),
    guess=Guess(
        "W_Q and W_K start 100 times smaller than Xavier's. How much longer does the layer take "
        "to learn?",
        answer="longer",
        reply="You said {guess} % longer. Over 48 models it took {longer:.0f} % longer: "
        "{measured}.",
        high=500,
        step=5,
        value=100,
        shown="{guess} % longer",
    ),
    examples=({"size": 1.0}, {"size": 1.4142}, {"size": 2.0}, {"size": 4.0}, {"size": 0.0333}),
)
