"""What training puts where: a slider over the checkpoints of two small models (chapter 11)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from book.figures.colours import BLUE, FRAME, LANE, MUTED, OLIVE, ROSE, STREAM, WEIGHT
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    fill,
    group,
    line,
    mark,
    move,
    number,
    path,
    points,
    text,
    words,
)
from book.figures.moving.figure import Figure, Slider
from book.figures.style import INK

WORDS, TOKENS = 40, 16  # at most
SIDE, GAP, TOP = 226, 21, 62  # of a panel; between panels; where the drawings begin
CELLS, FROM = SIDE - 18, 18  # side of the table of weights; room for the names of its tokens
HALF, MIDDLE = 92, SIDE / 2  # of the plane, in pixels: its points reach from -1 to 1
FLOOR, TALL = TOP + 186, 178  # of the losses
WIDTH = 3 * SIDE + 2 * GAP
STACK, SCALE = (0, 750, 1500), 2.4  # where the panels begin on a phone, and how large they are


def packed(
    *,
    steps: Sequence[int],
    x: Any,
    y: Any,
    words: Sequence[str],
    interchangeable: tuple[int, int],
    collocated: tuple[int, int],
    cosines: Any,
    tokens: Sequence[str],
    weights: Any,
    right: Sequence[tuple[int, int]],
    words_loss: Any,
    heads_loss: Any,
    start: int | None = None,
) -> dict[str, Any]:
    """What a chapter measured as the figure keeps it: rounded, points and labels in their places.

    Args:
        steps: of training, one for each checkpoint.
        x: of each word in the plane; (steps, words), at most 40 words.
        y: likewise.
        words: their names.
        interchangeable: two of them that stand in the same places, but never together.
        collocated: two of them that stand together.
        cosines: of the two pairs of embeddings; (2, steps).
        tokens: names of one or two letters, at most 16.
        weights: of one causal head; (steps, queries, keys).
        right: cells (query, key) where the head has to look.
        words_loss: of the model of words; (steps,).
        heads_loss: of the model with the head; (steps,).
        start: the step that is shown first; by default the one in the middle.
    """
    plane, table = np.array([x, y], dtype=float), np.array(weights, dtype=float)
    low, high = plane.min((1, 2), keepdims=True), plane.max((1, 2), keepdims=True)
    plane = (2 * plane - low - high) / (high - low).max()
    pairs = [int(k) for k in (*interchangeable, *collocated)]
    names = [words[k] for k in pairs]
    looked = sum(table[:, query, key] for query, key in right) / len({query for query, _ in right})
    return {
        "steps": [int(step) for step in steps],
        "start": int(steps[len(steps) // 2] if start is None else start),
        "x": plane[0].round(3).tolist(),
        "y": plane[1].round(3).tolist(),
        "pairs": pairs,
        "names": names,
        "labels": [labels(names, *each) for each in plane[:, :, pairs].transpose(1, 0, 2)],
        "cosines": np.array(cosines, dtype=float).round(3).tolist(),
        "tokens": list(tokens),
        "weights": [
            [row[: i + 1] for i, row in enumerate(each)] for each in table.round(3).tolist()
        ],
        "right": [list(map(int, cell)) for cell in right],
        "looked": np.array(looked).round(3).tolist(),
        "words_loss": np.array(words_loss, dtype=float).round(3).tolist(),
        "heads_loss": np.array(heads_loss, dtype=float).round(3).tolist(),
    }


def labels(names: Sequence[str], x: Any, y: Any) -> list[list[float]]:
    """Where the names of two pairs stand, in pixels: above the upper word of each, below the lower.

    Names that would touch are pushed apart, downwards.

    Example:
        >>> labels(["tea", "mug", "ink", "pen"], [0, 0, 0.1, 0.1], [0, 0.2, 0.21, -0.4])
        [[113.0, 130.0], [113.0, 98.7], [122.2, 84.7], [122.2, 166.8]]
    """
    wide = [7 * len(name) + 4 for name in names]
    places = []
    for k in range(4):
        below = (y[k], k) < (y[k ^ 1], k ^ 1)
        across = min(SIDE - wide[k] / 2, max(wide[k] / 2, MIDDLE + HALF * x[k]))
        places.append([across, MIDDLE - HALF * y[k] + (17 if below else -9)])
    placed: list[int] = []
    for k in sorted(range(4), key=lambda k: places[k][1]):
        for i in placed:
            touch = 2 * abs(places[k][0] - places[i][0]) < wide[k] + wide[i]
            if touch and places[k][1] < places[i][1] + 14:
                places[k][1] = places[i][1] + 14
        placed.append(k)
    return [[round(float(each), 1) for each in place] for place in places]


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """What was measured at this step."""
    at, n, last = data["steps"].index(settings["step"]), len(data["tokens"]), len(data["steps"]) - 1
    x, y = data["x"][at], data["y"][at]
    top = ceil(max(data["words_loss"] + data["heads_loss"]))
    return {
        "x": [*x, *[9] * (WORDS - len(x))],  # out of sight
        "y": [*y, *[9] * (WORDS - len(y))],
        "pair_x": [x[k] for k in data["pairs"]],
        "pair_y": [y[k] for k in data["pairs"]],
        "line_x": [[x[k] for k in data["pairs"][i : i + 2]] for i in (0, 2)],
        "line_y": [[y[k] for k in data["pairs"][i : i + 2]] for i in (0, 2)],
        "names": data["names"],
        "labels": data["labels"][at],
        "cosines": [each[at] for each in data["cosines"]],
        "n": n,
        "places": [(i + 0.5) * CELLS / n for i in range(TOKENS)],
        "tokens": [*data["tokens"], *[""] * (TOKENS - n)],
        "weights": [
            [*each, *[0] * (TOKENS - len(each))]
            for each in [*data["weights"][at], *[[]] * (TOKENS - n)]
        ],
        "right": [*data["right"], *[[99, 99]] * (TOKENS - len(data["right"]))],
        "looked": data["looked"][at],
        "words_loss": data["words_loss"][at],
        "heads_loss": data["heads_loss"][at],
        "curves": [[loss / top for loss in data[of]] for of in ("words_loss", "heads_loss")],
        "across": [i / last for i in range(last + 1)],
        "now": [at / last, data["words_loss"][at] / top, data["heads_loss"][at] / top],
        "top": top,
        "ticks": [[i / last, data["steps"][i]] for i in (round(last / 3), round(2 * last / 3))],
        "ends": [data["steps"][0], data["steps"][last]],
    }


def plane() -> list[Drawing]:
    """The words as points, two pairs of them with names and a line."""
    dots = [
        mark(
            "circle",
            r=3,
            fill=MUTED,
            fill_opacity=0.45,
            transform=move(f"x.{k}", f"y.{k}", HALF, MIDDLE, MIDDLE),
        )
        for k in range(WORDS)
    ]
    pairs: list[Drawing] = []
    for i, colour in enumerate((BLUE, ROSE)):
        pairs.append(
            mark("path", fill="none", stroke=colour, stroke_width=1.5,
                 d=path(f"line_y.{i}", -HALF, MIDDLE, xs=f"line_x.{i}", x_scale=HALF,
                        x_offset=MIDDLE))
        )  # fmt: skip
        pairs += [
            group(
                symbol(i, colour),
                transform=move(f"pair_x.{k}", f"pair_y.{k}", HALF, MIDDLE, MIDDLE),
            )
            for k in (2 * i, 2 * i + 1)
        ]
    names = [
        group(
            words(0, 0, text(f"{{names.{k}}}"), "middle", stroke=LANE, stroke_width=3,
                  paint_order="stroke", stroke_linejoin="round"),
            transform=move(f"labels.{k}.0", f"labels.{k}.1", 1, y_scale=1),
        )
        for k in range(4)
    ]  # fmt: skip
    return [
        words(0, 15, "1 Words as points", font_weight="bold"),
        *(
            part
            for i, colour in enumerate((BLUE, ROSE))
            for part in (
                group(symbol(i, colour), transform=f"translate(6 {31.5 + 18 * i})"),
                words(16, 36 + 18 * i, text(
                    f"{{names.{2 * i}}}, {{names.{2 * i + 1}}}: cosine {{cosines.{i}:.2f}}"
                )),
            )
        ),
        mark("svg", mark("rect", width=SIDE, height=SIDE, fill=LANE), *dots, *pairs, *names,
             y=TOP, width=SIDE, height=SIDE),
    ]  # fmt: skip


def symbol(i: int, colour: str) -> Drawing:
    """A word of the first pair is a disc, of the second a square."""
    return (
        mark("rect", x=-4.5, y=-4.5, width=9, height=9, fill=colour)
        if i
        else mark("circle", r=5, fill=colour)
    )


def pattern() -> list[Drawing]:
    """The weights of a head: cells as dark as the weight, and outlines where it has to look."""
    # A cell is one wide and one high; how many of them are seen, the view box says.
    cells = [
        mark("rect", x=j, y=i, width=1, height=1, fill=WEIGHT,
             fill_opacity=number(f"weights.{i}.{j}", 0.9, 0.03))
        for i in range(TOKENS)
        for j in range(i + 1)
    ]  # fmt: skip
    edges = [
        mark("rect", x=0.06, y=0.06, width=0.88, height=0.88, fill="none", stroke=OLIVE,
             stroke_width=0.12, transform=move(f"right.{k}.1", f"right.{k}.0", 1, y_scale=1))
        for k in range(TOKENS)
    ]  # fmt: skip
    names = [
        part
        for k in range(TOKENS)
        for part in (
            mark("text", text(f"{{tokens.{k}}}"), x=number(f"places.{k}", 1, FROM), y=TOP + 11,
                 text_anchor="middle", fill=INK),
            mark("text", text(f"{{tokens.{k}}}"), x=FROM - 5, y=number(f"places.{k}", 1, TOP + 22),
                 text_anchor="end", fill=INK),
        )
    ]  # fmt: skip
    return [
        words(0, 15, "2 Who looks where", font_weight="bold"),
        words(0, 36, "rows attend to columns"),
        mark("rect", x=1.5, y=45, width=9, height=9, fill="none", stroke=OLIVE, stroke_width=2),
        words(16, 54, text("what followed it before: {looked:.0%}")),
        *names,
        mark("svg", mark("rect", width=TOKENS, height=TOKENS, fill=LANE), *cells, *edges,
             x=FROM, y=TOP + FROM, width=CELLS, height=CELLS, viewBox=text("0 0 {n} {n}")),
    ]  # fmt: skip


def losses() -> list[Drawing]:
    """Two losses over the checkpoints, and where the slider stands."""
    curves = [
        mark("polyline", fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dashes,
             points=points(f"curves.{i}", -TALL, FLOOR, xs="across", x_scale=SIDE - 24,
                           x_offset=18))
        for i, (colour, dashes) in enumerate(((STREAM, "none"), (OLIVE, "5 3")))
    ]  # fmt: skip
    here = [
        mark("circle", r=4.5, fill=colour,
             transform=move("now.0", f"now.{i + 1}", SIDE - 24, 18, FLOOR, y_scale=-TALL))
        for i, colour in enumerate((STREAM, OLIVE))
    ]  # fmt: skip
    ticks: list[Drawing] = [
        mark("text", text(f"{{ticks.{i}.1:,}}"), x=number(f"ticks.{i}.0", SIDE - 24, 18),
             y=FLOOR + 17, text_anchor="middle", fill=INK)
        for i in range(2)
    ]  # fmt: skip
    return [
        words(0, 15, "3 Loss in nats", font_weight="bold"),
        *(
            part
            for i, (colour, dashes, what) in enumerate((
                (STREAM, "none", "words: {words_loss:.2f}"),
                (OLIVE, "5 3", "head, second half: {heads_loss:.2f}"),
            ))
            for part in (
                line(0, 31.5 + 18 * i, 18, 31.5 + 18 * i, stroke=colour, stroke_width=2,
                     stroke_opacity=1, stroke_dasharray=dashes),
                words(24, 36 + 18 * i, text(what)),
            )
        ),
        mark("rect", x=18, y=TOP, width=SIDE - 18, height=FLOOR - TOP, fill=LANE),
        line(18, FLOOR - TALL, SIDE, FLOOR - TALL, stroke=FRAME, stroke_opacity=1),
        line(18, FLOOR, SIDE, FLOOR),
        words(13, FLOOR - TALL + 4, text("{top}"), "end"),
        words(13, FLOOR + 4, "0", "end"),
        mark("line", y1=TOP, y2=FLOOR, stroke=INK, stroke_opacity=0.6,
             transform=move("now.0", "now.0", SIDE - 24, 18, 0, y_scale=0)),
        *curves,
        *here,
        words(18, FLOOR + 17, text("{ends.0:,}")),
        *ticks,
        words(SIDE, FLOOR + 17, text("{ends.1:,}"), "end"),
        words(18 + (SIDE - 18) / 2, FLOOR + 36, "training step", "middle"),
    ]  # fmt: skip


def marks() -> list[Drawing]:
    """Three panels beside each other; on a phone they stand below each other."""
    left = (WIDTH - SCALE * SIDE) / 2
    return [
        group(
            *panel(),
            transform=f"translate({(SIDE + GAP) * i} 0)",
            style=f"--stacked:translate({left:g}px,{down}px) scale({SCALE:g})",
        )
        for i, (panel, down) in enumerate(zip((plane, pattern, losses), STACK, strict=True))
    ]


DESCRIPTION = (
    "Three panels at step {step:,}, between {ends.0:,} and {ends.1:,}. First, words as points of a "
    "plane; “{names.0}” and “{names.1}” are discs joined by a line, cosine {cosines.0:.2f}, "
    "“{names.2}” and “{names.3}” squares, cosine {cosines.1:.2f}, all others small dots. Second, a "
    "table of {n} by {n} cells, as dark as a head's attention weights; {looked:.0%} of the "
    "attention that can look back is in the outlined cells. Third, two falling curves of the loss, "
    "with a dot at this step: words {words_loss:.2f}, head {heads_loss:.2f}."
)


@dataclass(frozen=True, repr=False)
class TrainingScrubber(Figure):
    """A figure whose slider has the steps that a chapter measured at."""

    def __post_init__(self) -> None:
        """Take slider, description and examples from the data."""
        if not self.data:
            return
        steps = self.data["steps"]
        slider = Slider("step", "Step", self.data["start"], values=steps,
                        shown="{step:,}", plays=0.45)  # fmt: skip
        object.__setattr__(self, "controls", (slider,))
        object.__setattr__(self, "examples", [{"step": step} for step in (*steps[:2], *steps[-2:])])
        object.__setattr__(self, "description", fill(DESCRIPTION, self.numbers()))

    def with_data(self, **data: Any) -> Figure:
        """The same figure with what a chapter measured: the arguments of :func:`packed`."""
        return replace(self, data=packed(**data))


training_scrubber = TrainingScrubber(
    name="training_scrubber",
    title="What training puts where",
    description="",
    size=(WIDTH, TOP + SIDE + 2),
    stacked=2200,
    compute=compute,
    marks=marks(),
    says="After {step:,} steps: “{names.0}” and “{names.1}” have cosine {cosines.0:.2f}, "
    "“{names.2}” and “{names.3}” {cosines.1:.2f}. Of a repeated token's attention, {looked:.0%} "
    "goes to what followed it before.",
    table={
        "cosine of two words that share contexts": "{cosines.0:.3f} ({names.0}, {names.1})",
        "cosine of two words that stand together": "{cosines.1:.3f} ({names.2}, {names.3})",
        "attention in the outlined cells": "{looked:.1%}",
        "loss of the words": "{words_loss:.3f}",
        "loss of the head, second half": "{heads_loss:.3f}",
    },
    controls=(),
)
