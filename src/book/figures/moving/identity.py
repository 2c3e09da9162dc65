"""Whom a query finds with W_Q = W_K = I, with one matrix for both, and with two (chapter 3)."""

from typing import Any

import torch

from attnbook.attention import attention_logits, attention_weights
from book.figures.colours import FRAME, KEY, QUERY, WEIGHT
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    arrow,
    group,
    line,
    mark,
    move,
    number,
    shown,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Handle, Slider
from book.figures.style import INK

TOKENS = "abcd"
SAME = [[1, 0], [0, 1]]
TURN, TURN_BACK = [[0.28, 0.96], [-0.96, 0.28]], [[0.28, -0.96], [0.96, 0.28]]
SQUEEZE, STRETCH = [[1, 0.25], [0.25, 0.75]], [[12 / 11, -4 / 11], [-4 / 11, 16 / 11]]
SCALE, X, Y = 30, 112, 136  # pixels for one of a plane, and where its zero lies


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Queries, keys, logits and weights of four tokens, of which a is where its query asks for."""
    w_q, w_k, back = torch.tensor(data["matrices"][settings["kind"]], dtype=torch.float64)
    asked = torch.tensor([[settings["qx"], settings["qy"]]], dtype=torch.float64)
    x = torch.cat([asked @ back, torch.tensor(data["fixed"], dtype=torch.float64)])
    query, key = x @ w_q, x @ w_k
    logits = attention_logits(query, key)
    weights = attention_weights(logits).tolist()
    return {
        "x": x.tolist(),
        "query": query.tolist(),
        "key": key.tolist(),
        "S": logits.tolist(),
        "A": weights,
        "rank": [
            sum(v > w or (v == w and i < j) for i, v in enumerate(weights[0]))
            for j, w in enumerate(weights[0])
        ],
        "apart": settings["kind"] == "two",  # else both logits of a pair are equal
        "case": settings["kind"],
    }


def plane() -> list[Drawing]:
    """An arrow for each query and a disc for each key; those of a are stronger."""
    drawn = [
        mark("rect", x=8, y=32, width=208, height=208, fill="none", stroke=FRAME),
        line(8, Y, 216, Y),
        line(X, 32, X, 240),
    ]
    for i in (1, 2, 3, 0):
        drawn.append(
            mark("polygon", points=arrow(("", ""), (f"query.{i}.0", f"query.{i}.1"), SCALE, X, Y,
                 1.5 if i else 3), fill=QUERY, fill_opacity=0.4 if i else 1)
        )  # fmt: skip
    for i, token in enumerate(TOKENS):
        at = {"x": number(f"key.{i}.0", SCALE, X), "y": number(f"key.{i}.1", -SCALE, Y)}
        drawn += [
            mark(
                "circle",
                cx=at["x"],
                cy=at["y"],
                r=11,
                fill=KEY,
                fill_opacity=0.15,
                stroke=KEY,
                stroke_width=2,
            ),
            mark("text", token, **at, dx=14, dy=-8, fill=KEY, font_weight="bold"),
        ]
    # What is dragged is the arrow's tip, a disc; round it, room for a finger.
    tip = {"cx": number("qx", SCALE, X), "cy": number("qy", -SCALE, Y)}
    drawn.append(group(mark("circle", **tip, r=20, fill=QUERY, fill_opacity=0),
                       mark("circle", **tip, r=6, fill=QUERY), data_handle="a"))  # fmt: skip
    return drawn


def ranking() -> list[Drawing]:
    """A bar for each key, the best on top: its share of a's weight, and both logits."""
    return [
        group(
            mark("circle", cx=0, cy=0, r=10, fill=KEY, fill_opacity=0.3, stroke=KEY),
            words(0, 4.3, token, "middle"),
            mark("rect", x=18, y=-9, height=18, width=number(f"A.0.{j}", 130), fill=WEIGHT,
                 fill_opacity=0.4),
            mark("text", text(f"{{A.0.{j}:.0%}}"), x=number(f"A.0.{j}", 130, 24), y=4.5, fill=INK),
            words(18, 25, text(f"logit {{S.0.{j}:.2f}}"), font_size=12),
            words(106, 25, text(f"back {{S.{j}.0:.2f}}"), font_size=12, visibility=shown("apart")),
            transform=move("qx", f"rank.{j}", 0, 246, 52, 51),
        )
        for j, token in enumerate(TOKENS)
    ]  # fmt: skip


identity = Figure(
    name="identity",
    title="Whom the query of a finds",
    description=(
        "Left a plane with four keys as rings, a to d, and four queries as arrows. W_Q and W_K are "
        "the identity, so each arrow ends at its own key. Right the keys as bars, the best on top: "
        "a gives itself nearly nine tenths of its weight, b a tenth, and c and d almost nothing."
    ),
    size=(440, 252),
    compute=compute,
    marks=[
        words(8, 20, "Queries →, keys ○ (drag the tip of a)", font_weight="bold"),
        *plane(),
        words(432, 20, "Weights of a", "end", font_weight="bold"),
        *ranking(),
    ],
    says={
        "identity": "The identity: the key of a lies where its query ends. a gives itself "
        "{A.0.0:.0%} of its weight.",
        "one": "One matrix: the key of a still lies where its query ends, and each logit is as "
        "large as the one back. a gives itself {A.0.0:.0%} of its weight.",
        "two": "Two matrices: the key of a lies elsewhere. a gives b {A.0.1:.0%} of its weight, "
        "and b gives a {A.1.0:.0%}.",
    },
    table={
        "logits of a": "{S.0.0:.2f}, {S.0.1:.2f}, {S.0.2:.2f}, {S.0.3:.2f}",
        "logits back": "{S.0.0:.2f}, {S.1.0:.2f}, {S.2.0:.2f}, {S.3.0:.2f}",
        "weights of a": "{A.0.0:.2f}, {A.0.1:.2f}, {A.0.2:.2f}, {A.0.3:.2f}",
    },
    controls=(
        Choice(
            "kind",
            "Matrices",
            "identity",
            {"identity": "identity", "one": "one matrix", "two": "two matrices"},
        ),
        Slider("qx", "Query of a, across", 2.8, low=-3, high=3, step=0.1, shown="{qx:.1f}"),
        Slider("qy", "up", 1, low=-3, high=3, step=0.1, shown="{qy:.1f}"),
    ),
    handles=(Handle("a", "qx", "qy", SCALE, X, Y),),
    data={
        "fixed": [[1, 2.8], [-2.6, 1.5], [-1.9, -2.3]],
        "matrices": {
            "identity": [SAME, SAME, SAME],
            "one": [SQUEEZE, SQUEEZE, STRETCH],
            "two": [TURN, SAME, TURN_BACK],
        },
    },
    examples=(
        {"kind": "one"},
        {"kind": "two"},
        {"kind": "two", "qx": 3, "qy": -3},
        {"kind": "one", "qx": 0, "qy": 0},
        {"kind": "one", "qx": 0.8, "qy": 1},
        {"qx": -3, "qy": 3},
    ),
)
