"""A word's row, a position and their sum, and which of the two drowns (chapter 1)."""

import math
from typing import Any

import torch

from attnbook.positions import sinusoidal_positions
from book.figures.colours import BLUE, OLIVE, STREAM
from book.figures.moving.drawing import (
    Bound,
    Drawing,
    Numbers,
    line,
    mark,
    points,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Slider, Switch

D, SHOWN = 512, 24  # the width, and how many entries are drawn
SMALL = D**-0.5
SIZES = (0.02, SMALL, 0.1, 0.2, 0.5, 1)
LEFT, CELL, HEIGHT = 98, 10.8, 38
LIMIT = 2  # where bars are cut, so that the scale stays when the factor is switched
NAMES = ("cat", "dog", "mat")
FURTHER = 6  # positions, of the last row
SAYS = (  # the words' share up to which each holds; the last one above
    (0.1, "The word drowns: at one place “{word}” and “{other}” look the same."),
    (0.3, "The word comes up; the position still says more."),
    (0.9, "Word and position both count: all three sums differ."),
    (0.98, "The word says more, and the position goes under."),
    (1, "The position drowns: “{word}” looks the same at both places."),
)
SUMS = ("= “{word}” at {position}", "“{other}” at {position}", "“{word}” at {further}")


def drawn() -> dict[str, Any]:
    """Entries of three words of size 1, and how much positions vary."""
    torch.manual_seed(0)
    entries = torch.randn(len(NAMES), D, dtype=torch.float64)[:, :SHOWN].mul(1000).round().div(1000)
    return {
        "words": dict(zip(NAMES, entries.tolist(), strict=True)),
        "v": sinusoidal_positions(64, D).double().var(dim=0).mean().item(),
    }


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Heights of the bars, and the words' share of what differs within a row of logits."""
    size = settings["entry"] * (math.sqrt(D) if settings["scaled"] else 1)
    share = size**2 / (size**2 + data["v"])
    word, position = settings["word"], settings["position"]
    other, further = "cat" if word == "dog" else "dog", position + FURTHER
    entries = {name: [size * x for x in row] for name, row in data["words"].items()}
    table = sinusoidal_positions(further + 1, D, dtype=torch.float64)[:, :SHOWN].tolist()
    rows = [entries[word], table[position]]
    rows += [
        [a + b for a, b in zip(entries[w], table[p], strict=True)]
        for w, p in ((word, position), (other, position), (word, further))
    ]
    bars = [[max(-1, min(1, x / LIMIT)) for x in row] for row in rows]
    return {
        "other": other,
        "further": further,
        "size": size,
        "share": share,
        "case": sum(share >= most for most, _ in SAYS[:-1]),
        # Each bar goes from zero to its height and back.
        "heights": [[y for x in row for y in (0, x, x, 0)] for row in bars],
        "across": [i + x for i in range(SHOWN) for x in (0.1, 0.1, 0.9, 0.9)],
    }


def strip(row: int, y: float, name: Bound, colour: str, **label: str) -> list[Drawing]:
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
        *strip(0, 0, text("“{word}”"), BLUE, font_weight="bold"),
        *strip(1, 42, text("position {position}"), OLIVE),
        line(8, 84, LEFT + SHOWN * CELL, 84),
        *(
            part
            for row, name in enumerate(SUMS)
            for part in strip(2 + row, 88 + 46 * row, text(name), STREAM)
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
        Choice("word", "Word", "cat", {name: name for name in NAMES}),
        Slider("position", "Position", 3, low=0, high=63, step=1),
        Slider("entry", "Table entries", SMALL, values=SIZES, shown="{entry:.2f}"),
        Switch("scaled", "× √d, about 23"),
    ),
    data=drawn(),
    examples=(
        {"scaled": True},
        {"word": "dog", "position": 0},
        {"word": "mat", "position": 63, "entry": 0.5},
        {"entry": 1, "scaled": True},
        {"entry": 0.2},
        {"entry": 0.02, "scaled": True},
    ),
)
