"""What temperature, top-k and top-p do to the distribution of the next token (chapter 10)."""

import math
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from book.figures.colours import BLUE, ROSE
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    line,
    mark,
    number,
    pick,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Slider
from book.figures.moving.text_scrubber import visible
from book.figures.style import INK

ROWS = 12  # tokens with a bar; one more bar is for all others
VOCABULARY = 512
WIDTH = 42  # characters of the prompt that are shown


def recorded(prompt: str, logits: Tensor, tokenizer: Tokenizer) -> dict[str, Any]:
    """One of the figure's contexts: the end of a prompt, and what the model predicts after it."""
    ordered, ids = logits.double().sort(descending=True)
    likeliest = [tokenizer.decode([token]) for token in ids[:ROWS].tolist()]
    return {
        "text": "…" * (len(prompt) > WIDTH) + visible(prompt[-WIDTH:]) + "▁",
        "tokens": [shortened(visible(token).replace(" ", "·")) for token in likeliest],
        "logits": [round(each, 3) for each in ordered.tolist()],
    }


def shortened(token: str) -> str:
    """So that it fits beside its bar."""
    return token if len(token) <= 11 else f"{token[:10]}…"


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """The distribution that ``attnbook.sample`` draws from; logits are sorted, largest first."""
    context = data["contexts"][int(settings["prompt"])]
    logits = torch.tensor(context["logits"], dtype=torch.float64)
    top_k, top_p = settings["top_k"], settings["top_p"]
    before = logits.softmax(-1)
    hot = logits / settings["temperature"]
    kept = hot[:top_k].softmax(-1)
    if top_p < 1:
        beyond = kept.cumsum(-1) - kept >= top_p  # enough without this one
        kept = kept[~beyond]
    left = len(kept)
    after = torch.zeros_like(before)
    after[:left] = kept / kept.sum()
    why = [0 if i < left else 2 if i < top_k else 1 for i in range(ROWS + 1)]
    drawn = rows(after)
    return {
        "text": context["text"],
        "tokens": context["tokens"],
        "left": left,
        "why": why,
        "before": rows(before),
        "after": drawn,
        "bars": [p if w else q for p, q, w in zip(rows(hot.softmax(-1)), drawn, why, strict=True)],
        "entropy": entropy(after),
        "own": entropy(before),
        "lost": before[left:].sum().item(),
        "case": "all" if left == VOCABULARY else "several" if left > 1 else "one",
    }


def rows(probabilities: Tensor) -> list[float]:
    """Of the likeliest tokens, and of all others together."""
    return [*probabilities[:ROWS].tolist(), probabilities[ROWS:].sum().item()]


def entropy(probabilities: Tensor) -> float:
    """Entropy of a distribution, in bits."""
    return float(torch.special.entr(probabilities).sum()) / math.log(2)


LEFT, TOP, ROW, LONG = 100, 62, 19, 224


def marks() -> list[Drawing]:
    """For each token a bar of what is drawn from, inside an outline of the model's own."""
    drawn = []
    for i in range(ROWS + 1):
        y, why = TOP + ROW * i, f"why.{i}"
        said = f"{{before.{i}:.1%}} → {{after.{i}:.1%}}"
        cut = [f"{{before.{i}:.1%}} ✗ {knob}" for knob in ("top-k", "top-p")]
        drawn += [
            words(LEFT - 6, y + 13, text(f"{{tokens.{i}}}") if i < ROWS else "all others", "end",
                  **{"font_family": "monospace"} if i < ROWS else {}),
            mark("rect", x=LEFT, y=y + 3, height=12, width=number(f"bars.{i}", LONG),
                 fill=pick(why, BLUE, ROSE, ROSE),
                 fill_opacity=pick(why, "0.9", "0.25", "0.25"),
                 stroke=pick(why, "none", ROSE, ROSE), stroke_dasharray="3 2"),
            mark("rect", x=LEFT, y=y + 1, height=16, width=number(f"before.{i}", LONG),
                 fill="none", stroke=INK, stroke_width=1.4),
            *(
                words(434, y + 13, text(what), "end",
                      visibility=pick(why, *("visible" if k == j else "hidden" for k in range(3))))
                for j, what in enumerate((said, *cut))
            ),
        ]  # fmt: skip
    bottom = TOP + ROW * (ROWS + 1) + 4
    return [
        words(8, 17, text("{text}"), font_family="monospace", font_size=15),
        words(8, 44, "Likeliest next", font_weight="bold"),
        mark("rect", x=LEFT + 20, y=33, width=16, height=14, fill="none", stroke=INK,
             stroke_width=1.4),
        words(LEFT + 40, 44, "the model"),
        mark("rect", x=LEFT + 118, y=34, width=16, height=12, fill=BLUE, fill_opacity=0.9),
        words(LEFT + 138, 44, "drawn from"),
        mark("rect", x=LEFT + 218, y=34, width=16, height=12, fill=ROSE, fill_opacity=0.25,
             stroke=ROSE, stroke_dasharray="3 2"),
        words(LEFT + 238, 44, "✗ cut off"),
        *drawn,
        line(LEFT, TOP - 2, LEFT, bottom),
        line(LEFT, bottom, LEFT + LONG, bottom),
        words(LEFT, bottom + 16, "0", "middle"),
        words(LEFT + LONG / 2, bottom + 16, "50 %", "middle"),
        words(LEFT + LONG, bottom + 16, "100 %", "middle"),
    ]  # fmt: skip


next_token = Figure(
    name="next_token",
    title="What each knob does to the distribution of the next token",
    description=(
        "Below the end of a prompt, one bar for each of the twelve likeliest next tokens and one "
        "for all others. Outlines show the model's own probabilities, filled bars those that are "
        "drawn from at temperature 0.7, top-k 10 and top-p 0.9: the likeliest have grown. Tokens "
        "that top-k or top-p cuts off have a cross and a dashed bar."
    ),
    size=(440, 332),
    compute=compute,
    marks=marks(),
    says={
        "all": "All 512 tokens are left. Their entropy is {entropy:.1f} bits (the model: "
        "{own:.1f}); the likeliest has {after.0:.0%} (the model: {before.0:.0%}).",
        "several": "{left} of 512 tokens are left. Their entropy is {entropy:.1f} bits instead of "
        "{own:.1f}; the likeliest has {after.0:.0%} instead of {before.0:.0%}. To the tokens that "
        "are cut off the model gives {lost:.0%}.",
        "one": "One token of 512 is left, so nothing is drawn: this is greedy. To the tokens that "
        "are cut off the model gives {lost:.0%}.",
    },
    table={
        "tokens left, of 512": "{left}",
        "entropy in bits, of the model's own distribution": "{own:.3f}",
        "entropy in bits, of what is drawn from": "{entropy:.3f}",
        "the likeliest, in the model and drawn from": "{tokens.0} {before.0:.1%}, {after.0:.1%}",
        "the next": "{tokens.1} {before.1:.1%}, {after.1:.1%}",
        "the third": "{tokens.2} {before.2:.1%}, {after.2:.1%}",
        "all but the twelve likeliest": "{before.12:.1%}, {after.12:.1%}",
        "the model's probability of what is cut off": "{lost:.1%}",
    },
    controls=(
        Choice("prompt", "After", "1", {
            "0": "a sure place", "1": "an open one", "2": "one between",
        }),
        Slider("temperature", "Temperature", 0.7, low=0.1, high=2, step=0.1,
               shown="{temperature:.1f}"),
        Slider("top_k", "top-k", 10, values=(1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, VOCABULARY),
               shown="{top_k} of 512"),
        Slider("top_p", "top-p", 0.9, low=0.05, high=1, step=0.05, shown="{top_p:.2f}"),
    ),
    examples=(
        {"temperature": 1.0, "top_k": 512, "top_p": 1.0},
        {"temperature": 0.1, "top_k": 512, "top_p": 1.0},
        {"temperature": 2.0, "top_k": 512, "top_p": 0.95},
        {"temperature": 2.0, "top_k": 40, "top_p": 1.0},
        {"temperature": 1.3, "top_k": 7, "top_p": 0.6},
        {"temperature": 0.5, "top_k": 1, "top_p": 0.05},
        {"prompt": "0", "temperature": 0.1, "top_k": 512, "top_p": 1.0},
        {"prompt": "0", "temperature": 2.0},
        {"prompt": "2", "top_p": 0.5},
    ),
)  # fmt: skip
