"""A logit is pushed, in a row of large logits and in the same row divided (chapter 4)."""

import math
from typing import Any

import torch

from attnbook.attention import attention_weights
from book.figures.colours import KEY, MUTED, WEIGHT
from book.figures.moving.drawing import Drawing, Numbers, line, mark, number, text, words
from book.figures.moving.figure import Figure, Slider

KEYS, WIDTH, PUSHED = 6, 1024, 1
TALL, APART = 70, 58  # pixels of a weight of 1, and from key to key
FEET = {"divided": 112, "plain": 250}  # where the bars stand


def products(seed: int) -> list[float]:
    """A random query times six random keys of 1,024 numbers."""
    torch.manual_seed(seed)
    query, *keys = torch.randn(1 + KEYS, WIDTH, dtype=torch.float64)
    return [round((query @ key).item(), 1) for key in keys]


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Of both rows: logits and weights, before and after the push, and the norm of J before it."""
    found: dict[str, Any] = {}
    for name, divisor in (("plain", 1.0), ("divided", math.sqrt(WIDTH))):
        logits = torch.tensor(data["products"], dtype=torch.float64) / divisor
        before = attention_weights(logits[None])[0]
        logits[PUSHED] += settings["push"]
        after = attention_weights(logits[None])[0]
        jacobian = before.diag() - torch.outer(before, before)
        found |= {
            f"{name}_logits": logits.tolist(),
            f"{name}_before": before.tolist(),
            f"{name}_after": after.tolist(),
            f"{name}_norm": jacobian.norm().item(),
        }
    return found


def half(name: str, title: str) -> list[Drawing]:
    """Weights as bars with their logits below, and, as outlines, those before the push."""
    foot = FEET[name]
    drawn = [
        words(6, foot - TALL - 24, title, font_weight="bold"),
        words(354, foot - TALL - 24, text(f"norm of J {{{name}_norm:.4f}}"), "end"),
        line(6, foot, 354, foot),
    ]
    for j in range(KEYS):
        x, own = 6 + APART * j + 9, KEY if j == PUSHED else WEIGHT
        drawn += [
            mark("rect", x=x, width=40, y=number(f"{name}_{when}.{j}", -TALL, foot),
                 height=number(f"{name}_{when}.{j}", TALL), **look)
            for when, look in (
                ("after", {"fill": own, "fill_opacity": 0.75 if j == PUSHED else 0.4}),
                ("before", {"fill": "none", "stroke": MUTED, "stroke_dasharray": "3 2"}),
            )
        ]  # fmt: skip
        bold = {"font_weight": "bold", "fill": KEY} if j == PUSHED else {}
        drawn.append(words(x + 20, foot + 16, text(f"{{{name}_logits.{j}:.1f}}"), "middle", **bold))
    return drawn


dead_row = Figure(
    name="dead_row",
    title="A logit is pushed in a live row and in a dead one",
    description=(
        "Two rows of six bars, the weights of the same six products: divided by the root of 1,024, "
        "and as they are. The logit of the second key is pushed by 2. Divided, its bar rises from "
        "0.20 to 0.65, and the others sink. Undivided, the third key keeps a bar of the whole "
        "height, and nothing moves. The norm of J is 0.39 above and 0.0000 below."
    ),
    size=(360, 274),
    compute=compute,
    marks=[*half("divided", "Divided: alive"), *half("plain", "As they are: dead")],
    says="Pushed by {push:.1f}, the second key goes from {divided_before.1:.0%} of the weight to "
    "{divided_after.1:.0%} where logits are divided, and from {plain_before.1:.0%} to "
    "{plain_after.1:.0%} where they are not.",
    table={
        "weight of the second key, divided": "{divided_before.1:.4f}, then {divided_after.1:.4f}",
        "weight of the second key": "{plain_before.1:.4f}, then {plain_after.1:.4f}",
        "norm of J, divided": "{divided_norm:.4f}",
        "norm of J": "{plain_norm:.4f}",
    },
    controls=(
        Slider("push", "Push its logit by", 2, low=-4, high=4, step=0.5, shown="{push:.1f}"),
    ),
    data={"products": products(0)},
    examples=({"push": -4}, {"push": 0}, {"push": 4}),
)
