"""Distances that rotary positions take for each other (chapter 2)."""

from typing import Any

import torch

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
from attnbook.book.interactive.figure import Choice, Figure, Slider
from attnbook.positions import Rotary

WIDTH, HANDS = 16, 2  # a head's entries; how many of its pairs are looked at, the fastest
TRAINED, LONGEST = 16, 64
FRIEND = 0.75
MOST = 5  # friends that are marked
TITLE = "Similarity of each distance to “{asked}” (two fastest hands)"
ASKED = {"1": "one back", "3": "three back"}
CURVES = (
    (10000, "1", 1, VERMILLION, ("base 10,000",), (46, 61)),
    (1000, "1", 1, BLUE, ("base 1000",), (46, 97)),
    (10000, "3", 3, ORANGE, ("three back,", "base 10,000"), (46, 29)),
)
X, STEP = 34, 6  # of position 0; from one to the next


def likeness(base: float, back: int) -> list[float]:
    """Of the distances 1, 2, … 64 to ``back``: mean cosine of the fastest pairs' angles."""
    hands = torch.zeros(LONGEST, WIDTH, dtype=torch.float64)
    hands[:, :HANDS] = 1  # half-split: the first entries of the fastest pairs
    rotary = Rotary("half_split", base=base)
    there = rotary.rotate(hands, torch.arange(1, LONGEST + 1))
    asked = rotary.rotate(hands, torch.full((LONGEST,), back))
    return ((there * asked).sum(dim=-1) / HANDS).tolist()


def friends_among(similar: list[float]) -> list[int]:
    """Peaks above ¾ at distances that training never showed."""
    return [
        k
        for k in range(TRAINED, LONGEST)
        if similar[k - 1] > max(FRIEND, similar[k - 2], similar[k])
    ]


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """How similar each distance is to the one asked for, the false friends, measured curves."""
    base, back = settings["base"], settings["back"]
    similar = likeness(base, int(back))
    friends = friends_among(similar)
    on = [base == curve[0] and back == curve[1] for curve in CURVES]
    return {
        "similar": similar,
        "heights": [max(0.0, s) for s in similar],
        "friends": friends,
        "peaks": (friends + [0] * MOST)[:MOST],
        "has": [i < len(friends) for i in range(MOST)],
        "fell": [i < len(friends) and any(on) for i in range(MOST)],
        "friendly": [k in friends for k in range(1, LONGEST + 1)],
        "listed": ", ".join(map(str, friends)),
        "asked": ASKED[back],
        "on": on,
        "unknown": not any(on),
        "case": "measured" if any(on) else "unknown",
        "curves": data["curves"],
    }


def axis(y: float, name: str) -> Drawing:
    """Ticks below a panel."""
    ticks = [
        words(X + STEP * k, y + 15, str(k), "middle", font_size=11) for k in (1, 15, 32, 48, 64)
    ]
    return group(
        line(X, y, X + STEP * 64.6, y),
        *ticks,
        words(X + STEP * 32, y + 31, name, "middle", font_size=12),
    )


def trained(top: float, bottom: float) -> Drawing:
    """The part that training showed."""
    return mark(
        "rect", x=X + STEP * 0.5, y=top, width=STEP * 15, height=bottom - top, fill=INK,
        fill_opacity=0.09,
    )  # fmt: skip


def marks() -> list[Drawing]:
    """Above, a bar for each distance; below, measured curves, with lines where one must fall."""
    bars = [
        mark("rect", x=X + STEP * k - 2.1, width=4.2, y=number(f"heights.{k - 1}", -100, 156),
             height=number(f"heights.{k - 1}", 100),
             fill=pick(f"friendly.{k - 1}", BLUE, VERMILLION))
        for k in range(1, LONGEST + 1)
    ]  # fmt: skip
    friends = [
        part
        for i in range(MOST)
        for part in (
            mark("line", x1=number(f"peaks.{i}", STEP, X), x2=number(f"peaks.{i}", STEP, X),
                 y1=232, y2=368, stroke=VERMILLION, stroke_width=1.5, stroke_dasharray="4 4",
                 visibility=shown(f"fell.{i}")),
            mark("text", text(f"{{peaks.{i}}}"), x=number(f"peaks.{i}", STEP, X), y=48,
                 text_anchor="middle", font_weight="bold", fill=INK,
                 visibility=shown(f"has.{i}")),
        )
    ]  # fmt: skip
    curves = [
        group(
            mark("polyline", points=points(f"curves.{i}", -1.3, 368, x_scale=STEP,
                                   x_offset=X + STEP * start),
                 fill="none", stroke=colour, stroke_width=pick(f"on.{i}", "1.5", "3.5"),
                 stroke_opacity=pick(f"on.{i}", "0.45", "1")),
            *(words(X + STEP * at[0], 362 - 1.3 * at[1] + 13 * row, name, font_size=12,
                    fill=colour, font_weight=pick(f"on.{i}", "400", "700"))
              for row, name in enumerate(names)),
        )
        for i, (_, _, start, colour, names, at) in enumerate(CURVES)
    ]  # fmt: skip
    return [
        words(4, 18, text(TITLE), font_weight="bold"),
        trained(54, 156),
        words(X + STEP * 8, 48, "trained", "middle", font_size=11),
        *bars,
        line(X + STEP * 15.5, 81, X + STEP * 64.6, 81, stroke_dasharray="2 3"),
        words(X - 5, 60, "1", "end", font_size=11),
        words(X - 5, 160, "0", "end", font_size=11),
        axis(156, "distance (tokens back)"),
        words(4, 220, "Measured: right answers", font_weight="bold"),
        trained(238, 368),
        *curves,
        *friends,
        words(X - 5, 242, "100", "end", font_size=11),
        words(X - 5, 372, "0 %", "end", font_size=11),
        words(X + STEP * 22, 356, "We trained no model for this.", "middle",
              visibility=shown("unknown")),
        axis(368, "position"),
    ]  # fmt: skip


rotary = Figure(
    name="rotary",
    title="Rotary's false friends",
    description=(
        "Above, a bar for each distance from 1 to 64: how similar it is to distance 1, for base "
        "10,000. The bar of distance 1 is full; among the distances that training never showed, "
        "three stand out, at 20, 39 and 58. Below, right answers by position: the curve of this "
        "base is at 100 percent up to position 19 and falls at 20, 39 and 58, where dashed lines "
        "come down from the three bars; the curve of base 1000 stays near 90 percent."
    ),
    size=(430, 402),
    compute=compute,
    marks=marks(),
    says={
        "measured": "Base {base:,}: {listed} back look like {asked} to the two fastest hands. The "
        "measured curve falls where they come into reach.",
        "unknown": "Base {base:,}: {listed} back look like {asked} to the two fastest hands. We "
        "trained no model for this.",
    },
    table={
        "false friends (tokens back)": "{listed}",
        "similarity of 20 back": "{similar.19:.2f}",
        "similarity of 32 back": "{similar.31:.2f}",
        "similarity of 39 back": "{similar.38:.2f}",
        "similarity of 45 back": "{similar.44:.2f}",
        "similarity of 58 back": "{similar.57:.2f}",
    },
    controls=(
        Slider(
            "base", "Base", 10000, values=(100, 300, 1000, 3000, 10000, 30000, 100000, 1000000),
            shown="{base:,}",
        ),
        Choice("back", "Asked for the token", "1", ASKED),
    ),
    examples=({"base": 1000}, {"back": "3"}, {"base": 100, "back": "3"}, {"base": 1000000}),
)  # fmt: skip
