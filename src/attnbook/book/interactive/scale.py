"""What 1/√d_k does to the weights of a row, and to what the row can learn (chapter 4)."""

import math
from typing import Any

import torch

from attnbook.attention import attention_logits, attention_weights
from attnbook.book.figures import BLUE, INK, ORANGE
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    group,
    line,
    mark,
    number,
    pick,
    text,
    words,
)
from attnbook.book.interactive.figure import Figure, Guess, Slider, Switch

ROWS = KEYS = 64
DEAD = 1e-3  # norm of a row's Jacobian


def random_logits(seed: int) -> list[list[int]]:
    """Scaled logits of 64 random queries and keys of width 1024, in thousandths."""
    torch.manual_seed(seed)
    query, key = torch.randn(2, ROWS, 1024, dtype=torch.float64)
    return (attention_logits(query, key) * 1000).round().int().tolist()


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Weights of one row, and the norm of each row's Jacobian, ∂ weights / ∂ logits."""
    factor = 1.0 if settings["scaled"] else math.sqrt(settings["d_k"])
    logits = factor * torch.tensor(data["logits"], dtype=torch.float64) / 1000
    a = attention_weights(logits)
    # diag(a) - a aᵀ, whose rows sum to zero: the diagonal without cancellation
    products = a[..., None] * a[..., None, :] * (1 - torch.eye(KEYS, dtype=a.dtype))
    norms = torch.linalg.matrix_norm(torch.diag_embed(products.sum(-1)) - products)
    weights, dead = a[settings["row"] - 1], norms < DEAD
    return {
        "weights": weights.tolist(),
        "norms": norms.tolist(),
        "dead": dead.tolist(),
        "places": norms.clamp(min=1e-8).log10().tolist(),
        "largest": weights.max().item(),
        "effective": 1 / weights.pow(2).sum().item(),
        "norm": norms[settings["row"] - 1].item(),
        "measured": data["measured"],
        "n_dead": int(dead.sum()),
        "share_dead": dead.double().mean().item(),
        "mine": [i == settings["row"] - 1 for i in range(ROWS)],
    }


def marks() -> list[Drawing]:
    """Bars of the row's weights; below, a dot for each row at the norm of its Jacobian."""
    bars = [
        mark("rect", x=12 + 6.5 * j, width=5, y=number(f"weights.{j}", -100, 130),
             height=number(f"weights.{j}", 100), fill=BLUE)
        for j in range(KEYS)
    ]  # fmt: skip
    dots = [
        mark("circle", cx=number(f"places.{i}", 50, 416), cy=216 + 9 * (i % 8), r=3.2,
             fill=pick(f"dead.{i}", BLUE, ORANGE), fill_opacity=0.75,
             stroke=INK, stroke_width=pick(f"mine.{i}", "0", "2"))
        for i in range(ROWS)
    ]  # fmt: skip
    ticks = [
        words(416 - 50 * k, 308, f"10⁻{'⁰¹²³⁴⁵⁶'[k]}" if k else "1", "middle")
        for k in range(0, 7, 2)
    ]
    return [
        words(12, 18, "Weights of one row: 64 keys", font_weight="bold"),
        words(428, 18, text("largest: {largest:.0%}"), "end"),
        *bars,
        line(8, 130, 432, 130),
        words(12, 170, "What each of 64 rows passes back", font_weight="bold"),
        words(428, 170, text("dead: {n_dead} of 64"), "end", data_answer=""),
        mark("rect", x=16, y=180, width=250, height=110, fill=ORANGE, fill_opacity=0.12),
        words(20, 197, "dead: norm below 0.001"),
        group(*dots, data_answer=""),
        line(8, 290, 432, 290),
        *ticks,
        words(2, 308, "≤ 10⁻⁸"),
        words(220, 328, "norm of the row's Jacobian, ∂ weights / ∂ logits", "middle"),
    ]


scale = Figure(
    name="scale",
    title="What 1/√d_k does to a row of weights",
    description=(
        "Without the factor, at width 1024: above, 64 bars, nearly all of the weight on one key. "
        "Below, one dot for each of 64 rows at the norm of its Jacobian, on an axis of powers of "
        "ten: more than half lie in the shaded part, below 0.001, where hardly any gradient "
        "passes; the others reach up to a half. With the factor all dots lie together near 0.18."
    ),
    size=(440, 336),
    compute=compute,
    marks=marks(),
    says="d_k = {d_k}: this row attends to {effective:.1f} effective keys. Hardly any "
    "gradient passes through {n_dead} of the 64 rows ({share_dead:.0%}).",
    table={
        "largest weight of the row": "{largest:.3f}",
        "effective keys of the row": "{effective:.2f}",
        "norm of the row's Jacobian": "{norm:.6f}",
        "dead rows, of 64": "{n_dead}",
    },
    controls=(
        Slider("d_k", "Width d_k", 1024, values=(8, 16, 32, 64, 128, 256, 512, 1024)),
        Switch("scaled", "divide by √d_k"),
        Slider("row", "Row", 5, low=1, high=ROWS, step=1),
    ),
    guess=Guess(
        "At width 1024 and without the factor: through what percentage of the rows can "
        "hardly any gradient pass?",
        answer="share_dead",
        reply="You said {guess} %. Over 80 tables we measured {measured}; in this one it is "
        "{share_dead:.0%}.",
    ),
    data={"logits": random_logits(5), "measured": "57 %"},
    examples=({"scaled": True}, {"d_k": 8}, {"d_k": 64, "row": 17}, {"d_k": 256, "row": 64}),
)
