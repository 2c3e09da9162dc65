"""What 1/√d_k does to the logits of a row, and so to its weights (chapter 4)."""

import math
from typing import Any

import torch

from attnbook.attention import attention_weights
from book.figures.colours import KEY, WEIGHT
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    line,
    mark,
    move,
    number,
    text,
    words,
)
from book.figures.moving.figure import Figure, Slider

KEYS, WIDTHS = 64, (4, 8, 16, 32, 64, 128, 256, 512, 1024)
MIDDLE, PIXELS = 220, 1.9  # where a logit of 0 lies, and pixels for each of a logit
WHERE = {"plain": 0, "divided": 128}  # how far down


def products(seed: int) -> dict[str, list[float]]:
    """A random query times 64 random keys: of the first d_k numbers of each, for every width."""
    torch.manual_seed(seed)
    query, *keys = torch.randn(1 + KEYS, max(WIDTHS), dtype=torch.float64)
    return {str(d): [round((query[:d] @ key[:d]).item(), 2) for key in keys] for d in WIDTHS}


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Logits and shares, as they are and divided; shares from the largest to the smallest."""
    root = math.sqrt(settings["d_k"])
    found: dict[str, Any] = {"root": root}
    for name, divisor in (("plain", 1.0), ("divided", root)):
        logits = torch.tensor(data["products"][str(settings["d_k"])], dtype=torch.float64) / divisor
        shares = attention_weights(logits[None])[0].sort(descending=True).values
        found |= {
            f"{name}_logits": logits.tolist(),
            f"{name}_shares": shares.tolist(),
            f"{name}_starts": (shares.cumsum(0) - shares).tolist(),
            f"{name}_top": logits.max().item(),
            f"{name}_largest": shares[0].item(),
            f"{name}_size": logits.pow(2).mean().sqrt().item(),
        }
    return found


def half(name: str, title: str) -> list[Drawing]:
    """Logits as dots on an axis, and their shares as pieces of a bar."""
    down = WHERE[name]

    def x(path: str) -> Any:
        return number(f"{name}_{path}", PIXELS, MIDDLE)

    dots = [
        mark("circle", cx=x(f"logits.{j}"), cy=down + 30 + 4 * (j * 5 % 8), r=2.6,
             fill=WEIGHT, fill_opacity=0.45)
        for j in range(KEYS)
    ]  # fmt: skip
    pieces = [
        mark("rect", x=number(f"{name}_starts.{j}", 416, 12), y=down + 88, height=20,
             width=number(f"{name}_shares.{j}", 416), fill=KEY if j == 0 else WEIGHT,
             fill_opacity=(0.85, 0.3, 0.16)[0 if j == 0 else 1 + j % 2])
        for j in range(KEYS)
    ]  # fmt: skip
    ticks = [
        words(MIDDLE + PIXELS * tick, down + 81, f"{tick}".replace("-", "−"), "middle")
        for tick in (-100, -50, 0, 50, 100)
    ]
    return [
        words(12, down + 16, title, font_weight="bold"),
        words(
            428,
            down + 16,
            text(f"typical size {{{name}_size:.0f}}, largest share {{{name}_largest:.0%}}"),
            "end",
        ),
        *dots,
        mark(
            "path",
            d=f"M0 {down + 60}l5 9h-10z",
            fill=KEY,
            transform=move(f"{name}_top", f"{name}_top", PIXELS, MIDDLE, y_scale=0),
        ),
        line(12, down + 64, 428, down + 64),
        *ticks,
        *pieces,
    ]


scale = Figure(
    name="scale",
    title="What dividing by √dₖ does to 64 dot products",
    description=(
        "A random query times 64 random keys of 16 numbers: dots on an axis from −100 to 100, and "
        "a bar below, cut into their shares. Wider vectors move the dots apart, and the bar "
        "becomes nearly all one piece. Divided by the root of the width the dots lie together "
        "near zero, and the bar has 64 pieces."
    ),
    size=(440, 244),
    compute=compute,
    marks=[
        *half("plain", "Dot products"),
        *half("divided", "Divided by √dₖ"),
    ],
    says="Width {d_k}: √dₖ is {root:.0f}, and these 64 dot products have a typical size of "
    "{plain_size:.0f}; the best key gets {plain_largest:.0%} of the weight. Divided, it gets "
    "{divided_largest:.0%}.",
    table={
        "root of the width": "{root:.2f}",
        "root mean square of the products": "{plain_size:.2f}",
        "root mean square, divided": "{divided_size:.2f}",
        "largest share": "{plain_largest:.4f}",
        "largest share, divided": "{divided_largest:.4f}",
    },
    controls=(Slider("d_k", "Width dₖ", 16, values=WIDTHS, plays=0.5, once=True),),
    data={"products": products(8)},
    examples=({"d_k": 4}, {"d_k": 512}, {"d_k": 1024}),
)
