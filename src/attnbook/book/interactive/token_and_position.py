"""Which part of the first logits decides, the words' or the positions' (chapter 1)."""

import math
from typing import Any

import torch

from attnbook.attention import attention_logits
from attnbook.book.figures import BLUE, INK, ORANGE
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    group,
    mark,
    number,
    pick,
    text,
    words,
)
from attnbook.book.interactive.figure import Choice, Figure, Guess, Slider, Switch
from attnbook.initialization import draw_
from attnbook.positions import sinusoidal_positions

WIDTHS = (64, 128, 256, 512, 1024)
D_HEAD = 64
TEXT = "the cat saw the dog and the dog saw the cat but the bird saw neither"
SENTENCE = TEXT.split()
N = len(SENTENCE)
VOCABULARY = list(dict.fromkeys(SENTENCE))
SHARE = "Words cause {percent:.1f} % of what differs within a row of logits:"
VERDICTS = (  # the words' share up to which each holds; the last one above
    (0.05, "The word drowns."),
    (0.2, "The position counts for most."),
    (0.8, "Both count."),
    (0.97, "The word counts for most, but the position counts, too."),
    (1, "The position drowns."),
)


def parts(d: int, seed: int) -> list[int]:
    """A random head's logits in thousandths, for words of RMS 1: four tables in a row.

    Word with word, word with position, position with word, position with position: the query's part
    comes first.
    """
    torch.manual_seed(seed)
    table = torch.randn(len(VOCABULARY), d, dtype=torch.float64)
    word = table[[VOCABULARY.index(each) for each in SENTENCE]]
    position = sinusoidal_positions(N, d).double()
    query, key = (
        draw_(torch.empty(d, D_HEAD, dtype=torch.float64), "glorot", fan_in=d, fan_out=d)
        for _ in range(2)
    )
    tables = [
        attention_logits(asks @ query, answers @ key)
        for asks in (word, position)
        for answers in (word, position)
    ]
    return (torch.stack(tables) * 1000).round().int().flatten().tolist()


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Sizes, the words' share of a row's variance, and who decides in each cell of the map."""
    d = settings["d"]
    std = {"small": d**-0.5, "gpt2": 0.02, "unit": 1.0}[settings["table"]]
    size = std * (math.sqrt(d) if settings["scaled"] else 1)
    share = size**2 / (size**2 + data["v"][str(d)])
    tables = torch.tensor(data["parts"][str(d)], dtype=torch.float64).view(4, N, N) / 1000
    tables = tables - tables.mean(-1, keepdim=True)  # what a softmax sees
    of_words = size**2 * tables[0] + size * tables[2]
    of_positions = size * tables[1] + tables[3]
    whole = (of_words + of_positions).abs()
    mine = of_words.abs() > of_positions.abs()
    larger = max(size, 0.5**0.5)
    return {
        "size": size,
        "word_bar": size / larger,
        "position_bar": 0.5**0.5 / larger,
        "share": share,
        "percent": 100 * share,
        "strength": (whole / whole.max()).sqrt().flatten().tolist(),
        "mine": mine.flatten().tolist(),
        "n_words": int(mine.sum()),
        "measured": data["measured"],
        "case": sum(share >= most for most, _ in VERDICTS[:-1]),
    }


def marks() -> list[Drawing]:
    """Two bars, the share, and the map."""
    bars = [
        part
        for y, name, path, colour in (
            (6, "a word", "word", BLUE),
            (28, "a position", "position", ORANGE),
        )
        for part in (
            words(82, y + 13, name, "end"),
            mark("rect", x=88, y=y, width=number(f"{path}_bar", 270), height=16, fill=colour),
        )
    ]
    left, top, wide, high = 76.0, 142.0, 21.5, 15.0
    cells = [
        mark("rect", x=left + wide * j, y=top + high * i, width=wide - 1, height=high - 1,
             fill=pick(f"mine.{N * i + j}", ORANGE, BLUE),
             fill_opacity=number(f"strength.{N * i + j}", 0.95, 0.05))
        for i in range(N) for j in range(N)
    ]  # fmt: skip
    names = [
        part
        for i, word in enumerate(SENTENCE)
        for part in (
            words(left - 5, top + high * i + 11.5, word, "end", font_size=12),
            words(0, 0, word, font_size=12,
                  transform=f"translate({left + wide * i + 8} {top - 5}) rotate(-45)"),
        )
    ]  # fmt: skip
    edge = {"stroke": INK, "stroke_opacity": 0.25}
    frames = [
        mark("rect", x=x, y=y, width=across, height=down, fill="none", **edge)
        for x, y, across, down in (
            (12, 75, 408, 14),
            (left - 1, top - 1, N * wide + 1, N * high + 1),
        )
    ]
    return [
        *bars,
        *frames,
        words(364, 19, text("{size:.2f}")),
        words(364, 41, "0.71"),
        group(
            words(12, 68, text(SHARE)),
            mark("rect", x=12, y=75, width=408, height=14, fill=ORANGE),
            mark("rect", x=12, y=75, width=number("share", 408), height=14, fill=BLUE),
            *cells,
            data_answer="",
        ),
        *names,
    ]


token_and_position = Figure(
    name="token_and_position",
    title="Does the word drown, or the position?",
    description=(
        "Width 512, a small table, no factor. Two bars: the entries of a word's vector have the "
        "size 0.04, those of a position 0.71. Below, a bar that is orange but for 1 percent: "
        "positions cause nearly all of what differs within a row of logits. Below, a map of 16 by "
        "16 logits of one head: nearly all cells are orange, the position's part is the larger one."
    ),
    size=(432, 386),
    compute=compute,
    marks=marks(),
    says={
        str(case): f"{verdict} Words cause {{percent:.1f}} % of the differences, averaged over "
        "heads that read 64 tokens; the map shows one head and 16 tokens."
        for case, (_, verdict) in enumerate(VERDICTS)
    },
    table={
        "size of a word's entries": "{size:.3f}",
        "size of a position's entries": "0.707",
        "share of the words among 64 tokens, σ²/(σ² + v)": "{percent:.2f} %",
        "of the map's 256 logits (one head, 16 tokens), the word's part is larger in": "{n_words}",
    },
    controls=(
        Slider("d", "Width d", 512, values=WIDTHS),
        Choice("table", "Table", "small", {
            "small": "N(0, 1/d)", "gpt2": "N(0, 0.02²)", "unit": "N(0, 1)",
        }),
        Switch("scaled", "multiply by √d"),
    ),
    guess=Guess(
        "Width 512, table N(0, 1/d), no factor: a word's entries are 16 times smaller than a "
        "position's. What share of what differs within a row of logits do words cause?",
        answer="share",
        reply="You said {guess} %. Over 300 heads of width 512 we measured {measured}, without "
        "the factor.",
    ),
    data={
        "parts": {str(d): parts(d, 0) for d in WIDTHS},
        "v": {str(d): sinusoidal_positions(64, d).double().var(dim=0).mean().item()
              for d in WIDTHS},
        "measured": "1.1 %",
    },
    examples=(
        {"scaled": True},
        {"table": "unit", "scaled": True},
        {"d": 64},
        {"d": 1024, "table": "gpt2", "scaled": True},
        {"d": 1024, "table": "unit", "scaled": True},
    ),
)  # fmt: skip
