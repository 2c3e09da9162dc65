"""Where view, transpose and flatten put each number, and what follows for a mask (chapter 5)."""

from typing import Any

import torch
from torch import Tensor

from attnbook.attention import scaled_dot_product_attention
from book.figures.colours import BLUE, FRAME, OLIVE, ROSE
from book.figures.moving.drawing import (
    Bound,
    Drawing,
    Numbers,
    group,
    line,
    mark,
    move,
    pick,
    text,
    words,
)
from book.figures.moving.figure import Figure, Grid, Switch
from book.figures.style import INK

SPLITS = {"right": "view, then transpose", "wrong": "view alone"}
MERGES = {"right": "transpose back, flatten", "wrong": "flatten alone"}
CALLED = {"right": "ok", "wrong": "wrong"}
VERDICTS = (
    "does not depend on it, as it should be: it comes later",
    "depends on it, as it should",
    "depends on it, though it comes later",
    "does not depend on it, though it should",
)
FILLS = ("none", BLUE, ROSE, "none")  # by what VERDICTS says
MOVES = "@media (prefers-reduced-motion: no-preference) { .flies { transition: transform 0.7s } }"


def split_heads(x: Tensor, how: str) -> Tensor:
    """(4 tokens, 4) to (2 heads, 4 tokens, 2), correctly or not."""
    return x.view(4, 2, 2).transpose(0, 1) if how == "right" else x.view(2, 4, 2)


def merge_heads(heads: Tensor, how: str) -> Tensor:
    """(2 heads, 4 tokens, 2) to (4 tokens, 4), correctly or not."""
    return (heads.transpose(0, 1) if how == "right" else heads).reshape(4, 4)


def kinds(split: str, merge: str) -> Tensor:
    """For each output of a causal attention and each token, the number of its verdict."""

    def attend(x: Tensor) -> Tensor:
        heads = split_heads(x, split)
        return merge_heads(scaled_dot_product_attention(heads, heads, heads, causal=True), merge)

    x = torch.arange(1.0, 17, dtype=torch.float64).sqrt().view(4, 4)
    slopes: Tensor = torch.autograd.functional.jacobian(attend, x)
    depends = slopes.abs().amax(dim=(1, 3)) > 0
    allowed = torch.ones_like(depends).tril()
    return torch.where(allowed, torch.where(depends, 1, 3), torch.where(depends, 2, 0))


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Where each of the 16 numbers goes, which reach an output, what each output depends on."""
    split, merge = (("right", "wrong")[settings[key]] for key in ("split", "merge"))
    row, column = settings["row"], settings["column"]
    names = torch.arange(16).view(4, 4)
    heads = split_heads(names, split)
    merged = merge_heads(heads, merge)
    kind = kinds(split, merge)
    # The heads' rows that this output is made of, and those above them.
    made_of = torch.isin(heads, merged[row]).all(dim=2)
    reached = made_of.flip(1).cummax(dim=1).values.flip(1)
    in_heads, in_outputs = heads.flatten().argsort(), merged.flatten().argsort()
    return {
        **data,
        "heads": (heads + 6 * (heads // 4)).flatten().tolist(),  # 10 for a token, 1 for a column
        "heads_x": (156 + 66 * (in_heads // 8) + 26 * (in_heads % 2)).tolist(),
        "heads_y": (30 + 22 * (in_heads % 8 // 2)).tolist(),
        "outputs_x": (324 + 26 * (in_outputs % 4)).tolist(),
        "outputs_y": (30 + 22 * (in_outputs // 4)).tolist(),
        "used": torch.isin(names, heads[reached]).flatten().tolist(),
        "kind": kind.tolist(),
        "leaks": int((kind == 2).sum()),
        "lost": int((kind == 3).sum()),
        "verdict": data["verdicts"][kind[row, column]],
        "split_wrong": int(split == "wrong"),
        "merge_wrong": int(merge == "wrong"),
        "case": int(split == "wrong") + 2 * int(merge == "wrong"),
    }


def entry(n: int, opacity: Bound | str, **at: Any) -> Drawing:
    """A number in the colour of the head that it belongs to."""
    return group(
        mark("rect", width=26, height=22, stroke=FRAME, fill=(BLUE, OLIVE)[n % 4 // 2],
             fill_opacity=0.4),
        words(13, 15.5, f"{n + 6 * (n // 4)}", "middle"),
        opacity=opacity,
        **at,
    )  # fmt: skip


def frame(width: float, height: float, at: Bound) -> Drawing:
    """Round what is chosen."""
    style: dict[str, Any] = {"fill": "none", "stroke": INK, "stroke_width": 2.5}
    return mark("rect", width=width, height=height, transform=at, **style)


def tables() -> list[Drawing]:
    """Tokens, heads, outputs; what does not reach the chosen output is faint."""
    drawn = [mark("style", MOVES)]
    for n in range(16):
        used = pick(f"used.{n}", "0.4", "1")
        drawn.append(entry(n, used, transform=f"translate({12 + n % 4 * 26} {30 + n // 4 * 22})"))
        for table, opacity in (("heads", used), ("outputs", "1")):
            to = text(f"transform:translate({{{table}_x.{n}}}px,{{{table}_y.{n}}}px)")
            drawn.append(entry(n, opacity, style=to, class_="flies"))
    for x, what in ((64, "tokens"), (182, "head 0"), (248, "head 1"), (376, "outputs")):
        drawn.append(words(x, 20, what, "middle", font_weight="bold"))
    for x in (150, 316):
        drawn += [line(x - 28, 74, x, 74), line(x - 6, 69, x, 74), line(x - 6, 79, x, 74)]
    return [
        *drawn,
        frame(106, 24, move("column", "column", 0, 11, 29, 22)),
        frame(106, 24, move("row", "row", 0, 323, 29, 22)),
        words(136, 137, pick("split_wrong", *SPLITS.values()), "middle"),
        words(316, 137, pick("merge_wrong", *MERGES.values()), "middle"),
    ]


def maps() -> list[Drawing]:
    """What each output depends on: the chosen combination large, and all four small."""
    drawn: list[Drawing] = []
    edge: dict[str, Any] = {"stroke": FRAME, "fill_opacity": 0.6}
    for i in range(4):
        drawn.append(words(66, 217 + 29 * i, f"output {i}", "end"))
        drawn.append(words(86.5 + 29 * i, 328, f"{i}", "middle"))
        for j in range(4):
            path = f"kind.{i}.{j}"
            x, y, sign = 72 + 29 * j, 198 + 29 * i, pick(path, "", "", "!", "×")
            drawn += [
                mark("rect", x=x, y=y, width=29, height=29, fill=pick(path, *FILLS), **edge,
                     pointer_events="all", data_cell=f"{i},{j}"),
                words(x + 14.5, y + 19.5, sign, "middle", font_weight="bold",
                      pointer_events="none"),
            ]  # fmt: skip
    drawn.append(frame(25, 25, move("column", "row", 29, 74, 200, 29)))
    drawn.append(words(130, 345, "token", "middle"))
    for i, split in enumerate(SPLITS):
        drawn.append(words((298, 385)[i], 188, f"merge {CALLED[split]}", "middle"))
        drawn.append(words(264, 230 + 66 * i, f"split {CALLED[split]}", "end"))
        for j, merge in enumerate(MERGES):
            for at, kind in enumerate(kinds(split, merge).flatten().tolist()):
                x, y = 276 + 76 * j + 13 * (at % 4), 200 + 66 * i + 13 * (at // 4)
                drawn.append(mark("rect", x=x, y=y, width=13, height=13, fill=FILLS[kind], **edge))
                if kind > 1:
                    drawn.append(words(x + 6.5, y + 10.5, " !×"[kind - 1], "middle", font_size=11))
    drawn.append(frame(60, 60, move("merge_wrong", "split_wrong", 76, 272, 196, 66)))
    for x, kind, symbol, what in (
        (12, 1, "", "as it should be"),
        (150, 2, "!", "a later token"),
        (280, 3, "×", "missing"),
    ):
        drawn += [
            mark("rect", x=x, y=360, width=13, height=13, fill=FILLS[kind], **edge),
            words(x + 6.5, 371, symbol, "middle", font_size=12, font_weight="bold"),
            words(x + 19, 371, what),
        ]
    return drawn


reshape = Figure(
    name="reshape",
    title="Split into heads, and back",
    description=(
        "Above, four tokens of four numbers become two heads with four rows of two numbers, then "
        "four outputs: head 0 holds columns 0 and 1 of every token, head 1 columns 2 and 3, and "
        "each output is its token again. Below, maps of the tokens that each output depends on. "
        "Both steps right: a full lower triangle. One of them wrong: three pairs with a later "
        "token. Both wrong: none such, but "
        "outputs 2 and 3 have lost tokens 0 and 1."
    ),
    size=(440, 382),
    compute=compute,
    marks=[
        *tables(),
        words(12, 170, "What each output depends on, under a causal mask", font_weight="bold"),
        group(*maps()),
    ],
    says={
        "0": "Both steps are correct: each output depends on its token and those before it.",
        "1": "The split is wrong. Future pairs that leak: {leaks} of 6. Allowed pairs that "
        "are missing: {lost} of 10.",
        "2": "The merge is wrong. Future pairs that leak: {leaks} of 6. Allowed pairs that "
        "are missing: {lost} of 10.",
        "3": "Both steps are wrong, and nothing leaks: a test of causality passes. Allowed pairs "
        "that are missing: {lost} of 10.",
    },
    table={
        "head 0": "{heads.0} {heads.1}, {heads.2} {heads.3}, {heads.4} {heads.5}, "
        "{heads.6} {heads.7}",
        "head 1": "{heads.8} {heads.9}, {heads.10} {heads.11}, {heads.12} {heads.13}, "
        "{heads.14} {heads.15}",
        "future pairs that leak, of 6": "{leaks}",
        "allowed pairs that are missing, of 10": "{lost}",
        "the framed pair": "output {row} and token {column}: it {verdict}",
    },
    controls=(
        Switch("split", "Break the split"),
        Switch("merge", "Break the merge"),
    ),
    grid=Grid(
        "Map of outputs and tokens; move with the arrow keys",
        rows=4,
        columns=4,
        row="row",
        column="column",
        says="Output {row} and token {column}: it {verdict}.",
    ),
    settings={"row": 0, "column": 2},
    data={"verdicts": VERDICTS},
    examples=(
        {"split": True},
        {"merge": True, "row": 2, "column": 3},
        {"split": True, "merge": True, "row": 3, "column": 0},
        {"split": True, "row": 3, "column": 1},
        {"merge": True, "row": 1, "column": 2},
        {"split": True, "merge": True},
        {"merge": True},
    ),
)
