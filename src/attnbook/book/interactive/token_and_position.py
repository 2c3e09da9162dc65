"""A word's row, a position and their sum, and which of the two drowns (chapter 1)."""

import math
from typing import Any

import torch

from attnbook.book.colours import BLUE, OLIVE, STREAM
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    line,
    mark,
    points,
    words,
)
from attnbook.book.interactive.figure import Figure, Slider, Switch
from attnbook.positions import sinusoidal_positions

D, SHOWN = 512, 24  # the width, and how many entries are drawn
SMALL = D**-0.5
SIZES = (0.02, SMALL, 0.1, 0.2, 0.5, 1)
LEFT, CELL, HEIGHT = 98, 10.8, 38
LIMIT = 2  # where bars are cut, so that the scale stays when the factor is switched
SAYS = (  # the words' share up to which each holds; the last one above
    (0.1, "The word drowns: at one place “cat” and “dog” look the same."),
    (0.3, "The word comes up; the position still says more."),
    (0.9, "Word and position both count: all three sums differ."),
    (0.98, "The word says more, and the position goes under."),
    (1, "The position drowns: “cat” looks the same at both places."),
)
SUMS = {"“cat” at 3": (0, 0), "“dog” at 3": (1, 0), "“cat” at 9": (0, 1)}


def drawn() -> dict[str, Any]:
    """Entries of two words of size 1, of two positions, and how much positions vary."""
    torch.manual_seed(0)
    table = sinusoidal_positions(64, D).double()
    return {
        "words": torch.randn(2, D, dtype=torch.float64)[:, :SHOWN].mul(1000).round().div(1000)
        .tolist(),
        "positions": table[[3, 9], :SHOWN].mul(1000).round().div(1000).tolist(),
        "v": table.var(dim=0).mean().item(),
    }  # fmt: skip


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Heights of the bars, and the words' share of what differs within a row of logits."""
    size = settings["entry"] * (math.sqrt(D) if settings["scaled"] else 1)
    share = size**2 / (size**2 + data["v"])
    word = [[size * x for x in row] for row in data["words"]]
    rows = [word[0], data["positions"][0]]
    rows += [
        [a + b for a, b in zip(word[w], data["positions"][p], strict=True)]
        for w, p in SUMS.values()
    ]
    bars = [[max(-1, min(1, x / LIMIT)) for x in row] for row in rows]
    return {
        "size": size,
        "share": share,
        "case": sum(share >= most for most, _ in SAYS[:-1]),
        # Each bar goes from zero to its height and back.
        "heights": [[y for x in row for y in (0, x, x, 0)] for row in bars],
        "across": [i + x for i in range(SHOWN) for x in (0.1, 0.1, 0.9, 0.9)],
    }


def strip(row: int, y: float, name: str, colour: str, **label: str) -> list[Drawing]:
    """A row's entries, as bars up or down from its middle."""
    middle = y + HEIGHT / 2
    return [
        words(LEFT - 8, middle + 4.5, name, "end", **label),
        mark("polygon", fill=colour, points=points(
            f"heights.{row}", -HEIGHT / 2, middle, xs="across", x_scale=CELL, x_offset=LEFT)),
        line(LEFT, middle, LEFT + SHOWN * CELL, middle),
    ]  # fmt: skip


token_and_position = Figure(
    name="token_and_position",
    title="A word's row, its position, and their sum",
    description=(
        "Bars up and down for the first 24 of 512 entries. The row of the word cat is nearly flat, "
        "that of position 3 has tall waves. Their sum looks like the position alone; dog at 3 "
        "looks the same, cat at 9 does not. The word drowns. Bars are cut at plus and minus 2."
    ),
    size=(360, 244),
    compute=compute,
    marks=[
        *strip(0, 0, "“cat”", BLUE, font_weight="bold"),
        *strip(1, 42, "+ position 3", OLIVE, font_weight="bold"),
        line(8, 84, LEFT + SHOWN * CELL, 84),
        *(
            part
            for row, name in enumerate(SUMS)
            for part in strip(2 + row, 88 + 46 * row, f"= {name}" if not row else name, STREAM)
        ),
        words(LEFT, 240, "one scale for all; bars are cut at ±2", font_size=12),
    ],
    says={
        str(case): f"{what} The word’s entries are {{size:.2f}} in size, the position’s 0.71."
        for case, (_, what) in enumerate(SAYS)
    },
    table={
        "size of a word's entries": "{size:.3f}",
        "size of a position's entries": "0.707",
        "share of the words in what differs within a row of logits, 64 tokens": "{share:.1%}",
    },
    controls=(
        Slider("entry", "Table entries", SMALL, values=SIZES, shown="{entry:.2f}"),
        Switch("scaled", "× √d, about 23"),
    ),
    data=drawn(),
    examples=(
        {"scaled": True},
        {"entry": 1, "scaled": True},
        {"entry": 0.2},
        {"entry": 0.02, "scaled": True},
    ),
)
