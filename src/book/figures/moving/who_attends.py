"""Masks are missing edges: a table of weights and the same weights as a graph (chapter 4)."""

from typing import Any

import torch

from attnbook.attention import attention_weights
from attnbook.masks import causal_mask, padding_mask, sliding_window_mask
from book.figures.colours import ROSE, STREAM, VALUE, WEIGHT
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    bare,
    group,
    mark,
    number,
    pick,
    shown,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Grid
from book.figures.style import INK

NAMES = ["the", "cat", "sat", "down", "and", "slept"]
REAL = 4  # tokens before the padding
POWERS = [  # e to the power of each logit: rows attend, columns are attended to
    [1, 2, 1, 1, 1, 1],
    [3, 2, 2, 1, 1, 1],
    [1, 2, 1, 1, 1, 2],
    [1, 1, 4, 2, 1, 1],
    [1, 1, 4, 1, 2, 3],
    [1, 4, 1, 2, 1, 1],
]
N = len(NAMES)
WHO, LEFT, TOP, WIDE, HIGH, NODE = 45, 49, 62, 32, 38, 354
PADDING = padding_mask(torch.tensor([REAL]), N)[0, 0].expand(N, N)
MASKS = {
    "none": torch.ones(N, N, dtype=torch.bool),
    "causal": causal_mask(N),
    "window": sliding_window_mask(N, before=1),
    "padding": PADDING,
    "both": PADDING & PADDING.T,
}


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Weights of all edges that mask and reader leave, and what the chosen row says."""
    mask, row, column = MASKS[settings["mask"]], settings["row"], settings["column"]
    cut = torch.tensor(settings["cut"]).view(N, N) & mask  # what is masked cannot be cut
    logits = torch.tensor(data["powers"], dtype=torch.float64).log()
    a = attention_weights(logits, mask & ~cut)  # a row without an edge: zeros
    if settings["empty"] == "mean":
        a = logits.masked_fill(~(mask & ~cut), -1e9).softmax(-1)
    alone = ~(mask & ~cut).any(-1)
    names = list(data["names"])
    if settings["mask"] in ("padding", "both"):
        names[REAL:] = ["pad", "pad"]
    not_a_number = alone & (settings["empty"] == "nan")
    sums = a.sum(-1).masked_fill(not_a_number, torch.nan)
    mine = torch.arange(N) == row
    return {
        "names": names,
        "weights": a.flatten().tolist(),
        "written": [bare(weight) for weight in a.flatten().tolist()],
        "edge": (a > 0).flatten().tolist(),
        "lit": ((a > 0) & mine[:, None]).flatten().tolist(),
        "gone": (~mask & ~not_a_number[:, None]).flatten().tolist(),
        "crossed": (cut & ~not_a_number[:, None]).flatten().tolist(),
        "mine": mine.tolist(),
        "nan": not_a_number.tolist(),
        "sums": [f"{total:.0f}".replace("nan", "NaN") for total in sums.tolist()],
        "idle": {"empty": not alone.any().item()},
        "case": settings["empty"] if alone[row] else "some",
        "who": names[row],
        "whom": names[column],
        "here": "NaN" if not_a_number[row] else a[row, column].item(),
        "why": (", cut. Click or Enter puts it back" if cut[row, column]
                else ". Click or Enter removes this edge" if mask[row, column] else ", masked"),
        "most": names[int(a[row].argmax())],
        "largest": a[row].max().item(),
        "n": int((a[row] > 0).sum()),
        "edges": int((a > 0).sum()),
        "n_cut": int(cut.sum()),
        "fixed": (~mask).flatten().tolist(),
    }  # fmt: skip


def arc(i: int, j: int) -> tuple[str, str]:
    """Path of the edge from j to i, and its head: right of the nodes if j is earlier, else left."""
    side = 1 if j < i else -1
    x = NODE + 25 * side
    if i == j:
        y = TOP + HIGH * (i + 0.5)
        return f"M{x} {y + 6}a9 6 0 1 1 0 -12", f"{x},{y - 6} {x - 7},{y - 10} {x - 6},{y - 2}"
    start, end = (TOP + HIGH * (k + 0.5) for k in (j, i))
    start, end = start + 4 * side, end - 4 * side
    across, up = 8 + 9 * abs(i - j), abs(end - start) / 2
    path = f"M{x} {start}A{across} {up} 0 0 1 {x + 4 * side} {end}"
    return path, f"{x},{end} {x + 8 * side},{end - 5} {x + 8 * side},{end + 5}"


def marks() -> list[Drawing]:
    """The table; right of it, at the height of its rows, the nodes, and an arc for each edge."""
    drawn = [
        words(LEFT, 18, "Rows attend to columns", font_weight="bold"),
        words(NODE, 18, "The same, as a graph", "middle", font_weight="bold"),
        words(LEFT + WIDE * N + 18, TOP - 8, "sum", "middle", font_size=12),
    ]
    for i in range(N):
        y = TOP + HIGH * i
        drawn += [
            words(LEFT + WIDE * (i + 0.5), TOP - 8, text(f"{{names.{i}}}"), "middle", font_size=12),
            words(WHO, y + 23, text(f"{{names.{i}}}"), "end",
                  font_weight=pick(f"mine.{i}", "normal", "bold")),
            words(LEFT + WIDE * N + 18, y + 23, text(f"{{sums.{i}}}"), "middle", font_size=12,
                  font_weight=pick(f"mine.{i}", "normal", "bold")),
        ]  # fmt: skip
        for j in range(N):
            k, x = N * i + j, LEFT + WIDE * j
            drawn.append(group(
                mark("rect", x=x + 1, y=y + 2, width=WIDE - 2, height=HIGH - 4, fill=WEIGHT,
                     fill_opacity=number(f"weights.{k}", 0.4, 0.06)),
                *(
                    words(x + WIDE / 2, y + 23, what, "middle", font_size=12,
                          visibility=shown(f"{when}.{k}"))
                    for what, when in ((text(f"{{written.{k}}}"), "edge"), ("×", "crossed"),
                                       ("·", "gone"))
                ),
                data_cell=f"{i},{j}",
            ))  # fmt: skip
        bad = [
            words(LEFT + WIDE * (j + 0.5), y + 23, "NaN", "middle", font_size=12, fill=ROSE)
            for j in range(N)
        ]
        drawn += [
            group(*bad, visibility=shown(f"nan.{i}"), pointer_events="none"),
            mark("rect", x=LEFT - 1, y=y, width=WIDE * N + 2, height=HIGH, fill="none",
                 stroke=STREAM, stroke_width=2, visibility=shown(f"mine.{i}"),
                 pointer_events="none"),
        ]  # fmt: skip
    for i in range(N):
        for j in range(N):
            k, (path, head) = N * i + j, arc(i, j)
            drawn.append(group(
                mark("path", d=path, fill="none", stroke=pick(f"lit.{k}", INK, VALUE),
                     stroke_width=number(f"weights.{k}", 4 if i == j else 8, 0.8)),
                mark("polygon", points=head, fill=VALUE, visibility=shown(f"lit.{k}")),
                opacity=pick(f"lit.{k}", "0.25", "1"), visibility=shown(f"edge.{k}"),
                data_cell=f"{i},{j}",
            ))  # fmt: skip
    for i in range(N):
        centre = TOP + HIGH * (i + 0.5)
        drawn += [
            mark("rect", x=NODE - 24, y=centre - 11, width=48, height=22, rx=11, fill=STREAM,
                 fill_opacity=pick(f"mine.{i}", "0.12", "0.4")),
            words(NODE, centre + 4.5, text(f"{{names.{i}}}"), "middle"),
        ]  # fmt: skip
    return drawn


who_attends = Figure(
    name="who_attends",
    title="Who attends to whom",
    description=(
        "Left, a table of attention weights of six words under a causal mask: rows attend, columns "
        "are attended to, the upper right is empty, and each row sums to one. Right, the same as a "
        "graph: an arc from each word to each that attends to it, as wide as the weight. The row "
        "of “down” is lit: an eighth each from “the” and “cat”, half from “sat”, a quarter from "
        "itself."
    ),
    size=(440, TOP + HIGH * N + 6),
    compute=compute,
    marks=marks(),
    says={
        "some": "“{who}” attends to {n} of 6 tokens, most to “{most}” ({largest:.2f}). The weights "
        "that are left sum to one. The graph has {edges} of 36 edges; cut by hand: {n_cut}.",
        "zeros": "“{who}” has no edge left. With zeros it receives nothing, and all stays finite.",
        "nan": "“{who}” has no edge left. −∞ in its whole row makes 0/0: NaN.",
        "mean": "“{who}” has no edge left. −10⁹ in its whole row gives it the mean of all values, "
        "the forbidden ones included.",
    },
    table={
        name: " ".join(f"{{weights.{N * i + j}:.2f}}" for j in range(N)) + f", sum {{sums.{i}}}"
        for i, name in enumerate(["the", "cat", "sat", "down", "and or pad", "slept or pad"])
    },
    controls=(
        Choice("mask", "Mask", "causal", {
            "none": "none",
            "causal": "causal",
            "window": "causal, window of two",
            "padding": "padding (keys)",
            "both": "padding, queries too",
        }),
        Choice("empty", "A row with no edge left gets", "zeros", {
            "zeros": "zeros",
            "nan": "NaN (−∞)",
            "mean": "the mean (−10⁹)",
        }),
    ),
    grid=Grid(
        "Weights: rows attend, columns are attended to. Enter removes an edge.",
        rows=N, columns=N, row="row", column="column", toggles="cut",
        says="“{who}” to “{whom}”: {here:.2f}{why}.",
    ),
    settings={"row": 3, "column": 2, "cut": [False] * N * N},
    data={"powers": POWERS, "names": NAMES},
    examples=(
        {"mask": "none", "row": 0, "column": 5},
        {"mask": "window", "row": 5, "column": 0, "cut": [k % 5 == 1 for k in range(N * N)]},
        {"mask": "padding", "row": 4, "column": 5},
        {"mask": "both", "row": 4, "empty": "nan"},
        {"mask": "both", "row": 5, "empty": "mean"},
        {"mask": "causal", "row": 0, "column": 0, "cut": [k in (0, 14) for k in range(N * N)]},
    ),
)  # fmt: skip
