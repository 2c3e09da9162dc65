"""The loss as a ruler, and what a language model writes on its way down (chapter 10)."""

import re
from typing import Any

from book.figures.colours import BLUE, LANE, MUTED
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    mark,
    number,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Slider

STEPS = (0, 10, 30, 100, 200, 400, 800, 1500)
"""At which the chapter's study keeps what the model writes."""
LINES, WIDTH = 5, 44  # of the text
FIRST, LAST, PER_NAT = 6.4, 2.4, 104  # losses at the ends of the ruler, pixels for each nat
TABLES = ("guess", "unigram", "bigram", "5-gram")


def visible(what: str) -> str:
    """A text with ¶ for new lines and ¤ for what is not ASCII: all as wide as a letter."""
    return re.sub("[^\n -~]", "¤", what).replace("\n", "¶")


def wrapped(what: str) -> list[str]:
    r"""Five lines of at most 44 characters; spaces are seen where there are several.

    Example:
        >>> wrapped("The class:\n    self")
        ['The class:¶····self', '', '', '', '']
    """
    dotted = re.sub("  +", lambda run: "·" * len(run[0]), visible(what))
    lines = re.findall(f".{{1,{WIDTH}}}$|.{{0,{WIDTH - 1}}}[ ¶]|.{{{WIDTH}}}", dotted)
    return [*lines, *[""] * LINES][:LINES]


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """What was measured at this step: the chapter passes its study's numbers."""
    at = data["shown"].index(settings["step"])
    loss, tables = data["losses"][at], data["tables"]
    return {
        "tables": tables,
        "depths": data["depths"],
        "loss": loss,
        "lines": data[settings["how"]][at],
        "case": "less" if loss >= tables[1] else "single" if loss >= tables[2] else "pairs",
    }


def at(path: str, beside: float = 0) -> Any:
    """Where a loss lies on the ruler."""
    return number(path, -PER_NAT, 12 + beside + PER_NAT * FIRST)


def marks() -> list[Drawing]:
    """Above, the ruler; below, the text."""
    drawn = [
        words(12, 16, "Loss on text that it has not read", font_weight="bold"),
        words(428, 16, text("{step} steps: {loss:.2f} nats"), "end"),
        mark("rect", x=12, y=62, width=416, height=18, fill=LANE),
        mark("line", x1=at("tables.0"), x2=at("loss"), y1=71, y2=71, stroke=BLUE, stroke_width=18),
    ]
    for i, table in enumerate(TABLES):
        x = at(f"tables.{i}")
        drawn += [
            mark("line", x1=x, x2=x, y1=58, y2=86, stroke=MUTED, stroke_width=2),
            mark("text", table, x=x, y=38, text_anchor="middle"),
            mark("text", text(f"{{tables.{i}:.2f}}"), x=x, y=53, text_anchor="middle"),
        ]
    drawn += [
        mark("line", x1=at(x), x2=at(x), y1=80, y2=92, stroke=MUTED, stroke_width=1)
        for x in ("depths.0", "depths.1", "depths.2")
    ]
    drawn += [
        mark("text", "1 layer", x=at("depths.0", -4), y=105, text_anchor="end"),
        mark("text", "2, 4 layers", x=at("depths.2", 4), y=105),
        words(428, 121, "after 512 steps", "end"),
        words(12, 105, "nats per token, fewer to the right"),
        words(12, 134, text("What it writes after {step} steps"), font_weight="bold"),
        mark("rect", x=12, y=141, width=416, height=17 * LINES + 8, fill=LANE),
        mark("rect", x=14, y=144, width=28, height=17, fill=BLUE, fill_opacity=0.2),
        *(
            words(16, 157 + 17 * i, text(f"{{lines.{i}}}"), font_family="monospace", font_size=15)
            for i in range(LINES)
        ),
    ]
    return drawn


text_scrubber = Figure(
    name="text_scrubber",
    title="The loss as a ruler",
    description=(
        "A ruler of losses from a guess among 512 tokens, 6.24 nats, on the left, to the best on "
        "the right, with marks for unigram, bigram and 5-gram tables and for models of one, two "
        "and four layers. A bar reaches from the left to the loss of a model after 1500 steps, "
        "almost as far as the 5-gram, counted on the same windows. Below, what it writes when "
        "given “The”."
    ),
    size=(440, 240),
    compute=compute,
    marks=marks(),
    says={
        "less": "One model, on the tables’ 24 windows: {loss:.2f} nats. Counting how often each "
        "token occurs (unigram) predicts better.",
        "single": "One model, on the tables’ 24 windows: {loss:.2f} nats. It predicts better than "
        "the unigram; the bigram, a table of pairs, is better.",
        "pairs": "One model, on the tables’ 24 windows: {loss:.2f} nats. It predicts better than "
        "the bigram, a table of which token follows which.",
    },
    table={
        "loss of this model on 24 windows, nats per token": "{loss:.3f}",
        "guess, unigram": "{tables.0:.3f}, {tables.1:.3f}",
        "bigram, 5-gram": "{tables.2:.3f}, {tables.3:.3f}",
        "models of 1, 2, 4 layers, other windows": "{depths.0:.3f}, {depths.1:.3f}, {depths.2:.3f}",
    },
    controls=(
        Slider("step", "Steps", STEPS[-1], values=STEPS),
        Choice("how", "Next token", "drawn", {
            "drawn": "drawn, temperature 0.8", "greedy": "the likeliest (greedy)",
        }),
    ),
    examples=(
        {"step": 0},
        {"step": 0, "how": "greedy"},
        {"step": 100, "how": "greedy"},
        {"step": 200},
        {"step": 400},
        {"how": "greedy"},
    ),
)  # fmt: skip
