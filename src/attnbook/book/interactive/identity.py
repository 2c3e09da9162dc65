"""Who finds whom with W_Q = W_K = I, with one matrix for both, and with two (chapter 3)."""

from typing import Any

import torch

from attnbook.attention import attention_logits, attention_weights
from attnbook.book.figures import BLUE, GREEN, INK, ORANGE, PURPLE
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    arrow,
    line,
    mark,
    number,
    text,
    words,
)
from attnbook.book.interactive.figure import Choice, Figure, Handle, Slider

TOKENS = {"a": BLUE, "b": ORANGE, "c": GREEN, "d": PURPLE}
TURN = [[0.0, 1.0], [-1.0, 0.0]]  # by a quarter, counterclockwise
SQUEEZE = [[1.0, 0.3], [0.3, 0.5]]
SAME = [[1.0, 0.0], [0.0, 1.0]]


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Queries, keys, logits and weights of four tokens in the plane."""
    moved = [[settings["ax"], settings["ay"]], [settings["bx"], settings["by"]]]
    x = torch.tensor([*moved, *data["fixed"]], dtype=torch.float64)
    w_q, w_k = torch.tensor(data["matrices"][settings["kind"]], dtype=torch.float64)
    query, key = x @ w_q, x @ w_k
    logits = attention_logits(query, key)
    others = logits.masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf)
    selves = logits.diagonal() > others.amax(dim=1)  # a tie does not count
    return {
        "x": x.tolist(),
        "query": query.tolist(),
        "key": key.tolist(),
        "S": logits.tolist(),
        "A": attention_weights(logits).tolist(),
        "n_selves": int(selves.sum()),
        "case": settings["kind"],
    }


def plane(title: str, left: int, scale: int, name: str, tips: str) -> list[Drawing]:
    """An arrow for each token's ``name``, and a disc with its letter at its ``tips``."""
    x, y = left + 100, 116
    drawn = [
        words(left, 16, title, font_weight="bold"),
        mark("rect", x=left + 8, y=y - 92, width=184, height=184, fill="none", stroke=INK,
             stroke_opacity=0.3),
        line(left + 8, y, left + 192, y),
        line(x, y - 92, x, y + 92),
    ]  # fmt: skip
    for i, (token, colour) in enumerate(TOKENS.items()):
        tip = {"x": number(f"{tips}.{i}.0", scale, x), "y": number(f"{tips}.{i}.1", -scale, y)}
        held = {"data_handle": token} if tips == "x" and i < 2 else {}
        ring = {"stroke": colour, "stroke_width": 2, "fill_opacity": 0.25}
        if tips == "x" and not held:
            ring["stroke_width"] = 0
        drawn += [
            mark("polygon", points=arrow(("", ""), (f"{name}.{i}.0", f"{name}.{i}.1"),
                 scale, x, y), fill=colour),
            mark("circle", cx=tip["x"], cy=tip["y"], r=10, fill=colour, **ring, **held),
            mark("text", token, **tip, dy="0.33em", text_anchor="middle", fill=INK,
                 font_weight="bold", pointer_events="none"),
        ]  # fmt: skip
        if name == "query":
            drawn.append(
                mark("text", token, x=number(f"query.{i}.0", 0.55 * scale, x + 8),
                     y=number(f"query.{i}.1", -0.55 * scale, y + 12), font_size=11, fill=INK)
            )  # fmt: skip
    return drawn


def square(title: str, left: int, path: str, **more: Any) -> list[Drawing]:
    """A table of four by four; the two cells of a and b are framed."""
    drawn = [words(left, 236, title, font_weight="bold")]
    for i, token in enumerate(TOKENS):
        drawn += [
            words(left + 42 + 42 * i, 255, token, "middle", **more),
            words(left + 10, 282 + 32 * i, token, "middle", **more),
        ]
        for j in range(4):
            at = {"x": left + 21 + 42 * j, "y": 261 + 32 * i, "width": 42, "height": 32}
            shade = number(f"A.{i}.{j}", 0.65) if path == "A" else 0
            drawn += [
                mark("rect", **at, fill=BLUE, fill_opacity=shade, stroke=INK,
                     stroke_opacity=0.35, **more),
                words(left + 42 + 42 * j, 282 + 32 * i, text(f"{{{path}.{i}.{j}:.2f}}"), "middle",
                      **more),
            ]  # fmt: skip
    for i, j in ((0, 1), (1, 0)):
        drawn.append(
            mark("rect", x=left + 23 + 42 * j, y=263 + 32 * i, width=38, height=28, fill="none",
                 stroke=INK, stroke_width=1.5, stroke_dasharray="3 2", **more)
        )  # fmt: skip
    return drawn


def slider(name: str, value: float) -> Slider:
    """A coordinate of a token."""
    label = f"{name[0]}, {'across' if name[1] == 'x' else 'up'}"
    return Slider(name, label, value, low=-3, high=3, step=0.1, shown=f"{{{name}:.1f}}")


identity = Figure(
    name="identity",
    title="Four tokens: who attends to whom",
    description=(
        "Four tokens as arrows of equal length in a plane, a and b a quarter turn apart or less. "
        "W_Q and W_K are the identity, so each query points at its own key. Two tables of four by "
        "four: the logits, symmetric and largest on the diagonal, and the weights: each token "
        "gives itself 95 to 98 percent."
    ),
    size=(432, 392),
    compute=compute,
    marks=[
        *plane("Tokens (drag a and b)", 8, 28, "x", "x"),
        *plane("Queries →, keys ○", 232, 22, "query", "key"),
        *square("Logits", 8, "S"),
        *square("Weights", 232, "A"),
    ],
    says={
        "identity": "The identity: {n_selves} of 4 tokens attend most to themselves. a gives "
        "itself {A.0.0:.0%}.",
        "one": "One matrix: the logits of a for b and of b for a are both {S.0.1:.2f}. Each row "
        "has its own sum, so a gives b {A.0.1:.0%}, and b gives a {A.1.0:.0%}.",
        "two": "Two matrices: a gives b {A.0.1:.0%}, and b gives a {A.1.0:.0%}. Their logits are "
        "{S.0.1:.2f} and {S.1.0:.2f}.",
    },
    table={
        "logits of a": "{S.0.0:.2f}, {S.0.1:.2f}, {S.0.2:.2f}, {S.0.3:.2f}",
        "logits of b": "{S.1.0:.2f}, {S.1.1:.2f}, {S.1.2:.2f}, {S.1.3:.2f}",
        "weights of a": "{A.0.0:.2f}, {A.0.1:.2f}, {A.0.2:.2f}, {A.0.3:.2f}",
        "weights of b": "{A.1.0:.2f}, {A.1.1:.2f}, {A.1.2:.2f}, {A.1.3:.2f}",
        "tokens that attend most to themselves": "{n_selves}",
    },
    controls=(
        Choice(
            "kind",
            "Matrices",
            "identity",
            {"identity": "identity", "one": "one: W_Q = W_K", "two": "two: W_Q and W_K"},
        ),
        slider("ax", 2.4),
        slider("ay", 0.7),
        slider("bx", 0.0),
        slider("by", 2.5),
    ),
    handles=(
        Handle("a", "ax", "ay", 28, 108, 116),
        Handle("b", "bx", "by", 28, 108, 116),
    ),
    data={
        "fixed": [[-2.4, -0.7], [0.7, -2.4]],
        "matrices": {"identity": [SAME, SAME], "one": [SQUEEZE, SQUEEZE], "two": [TURN, SAME]},
    },
    examples=(
        {"kind": "one"},
        {"kind": "two"},
        {"kind": "two", "ax": 3, "ay": -3, "bx": -3},
        {"kind": "one", "ax": 0, "ay": 0},
        {"ax": 0, "ay": 2.5},
        {"ax": -3, "ay": 3, "bx": 0.1, "by": 0.1},
    ),
)
