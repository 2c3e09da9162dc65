"""What a model of the reader's own sizes costs (chapter 13)."""

import json
from dataclasses import dataclass
from html import escape
from typing import Any

from attnbook.config import ModelConfig
from attnbook.costs import (
    activation_bytes,
    cache_bytes,
    crossing,
    decoding_bytes,
    forward_operations,
    state_bytes,
)
from book.figures.colours import BLUE, COLOURS, FRAME, KEY, MUTED, OLIVE, ROSE
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    line,
    mark,
    number,
    points,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Slider

VOCAB, D_HEAD = 50257, 64
WIDTHS = (256, 512, 768, 1024, 2048, 4096, 8192)
LAYERS = (2, 4, 8, 12, 24, 32, 48, 80)
TOKENS = tuple(2**n for n in range(7, 18))
BATCHES = (1, 8, 64, 512)
SHARED = {"1": 1, "4": 4, "all": None}  # query heads that share a key head
MACHINES = {"H100": (989e12, 3.35e12), "laptop": (2e11, 5e10)}
"""Operations and bytes a second."""
SIZES = {  # width, layers and the longest text of two models, for buttons
    "GPT-2": {"d_model": 768, "layers": 12, "tokens": 1024},
    "Llama 7B": {"d_model": 4096, "layers": 32, "tokens": 2048},
}
LEFT, WIDE, TOP, HIGH = 54, 358, 32, 118  # of the curve
BAR = 424


@dataclass(frozen=True)
class Preset(Slider):
    """A slider; before it, a button for each model that sets several."""

    def html(self, figure: str) -> str:
        """The buttons, and the slider."""
        buttons = "".join(
            f'<button type="button" data-sets="{escape(json.dumps(sets))}">{escape(name)}</button>'
            for name, sets in SIZES.items()
        )
        return f'<span class="choice">Sizes of {buttons} or yours:</span>{super().html(figure)}'


def config_of(settings: Numbers) -> ModelConfig:
    """Pre-norm, rotary, heads of 64, tied, GELU between 4d: no biases."""
    heads = settings["d_model"] // D_HEAD
    return ModelConfig(
        VOCAB,
        d_model=settings["d_model"],
        n_heads=heads,
        n_kv_heads=heads // (SHARED[settings["shared"]] or heads),
        n_layers=settings["layers"],
        norm="pre",
        norm_kind="rms",
        position="rotary",
        activation="gelu",
        feed_forward_bias=False,
    )


def readable(name: str, count: float) -> dict[str, Any]:
    """A number below 1,000 and the letter that stands for the rest."""
    letters = ["", "k", "M", "G", "T", "P", "E"]
    while count >= 1000 and len(letters) > 1:
        count /= 1000
        letters.pop(0)
    return {name: float(count), f"{name}_letter": letters[0]}


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Operations, bytes and the least time of a token."""
    config, tokens, batch = config_of(settings), settings["tokens"], settings["batch"]
    forward = forward_operations(config, tokens)
    others = (forward["projections"] + forward["feed-forward"]) / tokens
    one = forward["attention"] / tokens**2
    crossings = crossing(config)
    parts = ["projections", "attention", "feed-forward", "output"]
    states = state_bytes(config).total
    kept = activation_bytes(config, tokens, batch, itemsize=2).total
    read = decoding_bytes(config, tokens, batch, itemsize=2)
    held = cache_bytes(config, tokens, batch, itemsize=2)
    step = forward_operations(config, 1, batch, n_seen=tokens).total
    peak, bandwidth = MACHINES[settings["machine"]]
    seconds = {"reading": read.total / bandwidth, "computing": step / peak}
    least = max(seconds.values())
    found: dict[str, Any] = {
        "at": TOKENS.index(tokens),
        "curve": [one * n / (one * n + others) for n in TOKENS],
        "share": one * tokens / (one * tokens + others),
        "equal": crossings["projections"],
        "half": crossings["block"],
        "pieces": [forward[part] / forward.total for part in parts],
        "begins": [sum(forward[p] for p in parts[:i]) / forward.total for i in range(4)],
        "kept_share": kept / (kept + states),
        "states_share": states / (kept + states),
        "cache_share": read["cache"] / read.total,
        "weights_share": read["weights"] / read.total,
        "ms": 1000 * least,
        "slower": "reading" if seconds["reading"] >= seconds["computing"] else "computing",
    }
    for name, count in (
        ("operations", forward.total),
        ("states", states),
        ("kept", kept),
        ("trained", states + kept),
        ("read", read.total),
        ("weights", read["weights"]),
        ("cache", held),
        ("rate", batch / least),
    ):
        found |= readable(name, count)
    return found


def bar(y: float, title: str, pieces: list[tuple[str, str, str]], said: str) -> list[Drawing]:
    """A title, a bar of shares (begin, width, colour), and what the pieces are."""
    return [
        words(8, y, text(title), font_weight="bold"),
        *(
            mark(
                "rect",
                x=8 if begin == "" else number(begin, BAR, 8),
                y=y + 6,
                width=number(share, BAR),
                height=14,
                fill=colour,
                fill_opacity=0.8,
            )
            for begin, share, colour in pieces
        ),
        words(8, y + 35, text(said), font_size=12),
    ]


def marks() -> list[Drawing]:
    """The curve of attention's share; three bars; the least time of a token."""
    floor, step = TOP + HIGH, WIDE / (len(TOKENS) - 1)
    here = number("at", step, LEFT)
    halo = {"stroke": COLOURS["page"][0], "stroke_width": 4, "paint_order": "stroke"}
    return [
        words(8, 16, "Attention’s share of a block’s operations", font_weight="bold"),
        *(
            words(LEFT - 6, floor - HIGH * share + 4, f"{100 * share:.0f}\xa0%", "end")
            for share in (0, 0.5, 1)
        ),
        line(LEFT, floor - HIGH / 2, LEFT + WIDE, floor - HIGH / 2, stroke_dasharray="2 4"),
        line(LEFT, floor, LEFT + WIDE, floor),
        *(
            words(
                LEFT + step * i,
                floor + 16,
                f"{TOKENS[i]:,}",
                "end" if i == 10 else "middle",
                font_size=12,
            )
            for i in (0, 2, 4, 6, 10)
        ),
        mark("line", x1=here, x2=here, y1=TOP, y2=floor, stroke=MUTED, stroke_width=2),
        mark(
            "polyline",
            points=points("curve", -HIGH, floor, x_scale=step, x_offset=LEFT),
            fill="none",
            stroke=ROSE,
            stroke_width=2.5,
        ),
        mark("circle", cx=here, cy=number("share", -HIGH, floor), r=5, fill=ROSE),
        words(430, floor - 26, text("as the projections at {equal:,} tokens,"), "end", **halo),
        words(430, floor - 9, text("as all the rest of a block at {half:,}"), "end", **halo),
        *bar(
            196,
            "Whole forward pass: {operations:.1f} {operations_letter} operations, of which",
            [
                ("begins.0", "pieces.0", BLUE),
                ("begins.1", "pieces.1", ROSE),
                ("begins.2", "pieces.2", OLIVE),
                ("begins.3", "pieces.3", FRAME),
            ],
            "Q, K, V, O {pieces.0:.0%} · attention {pieces.1:.0%} · FFN {pieces.2:.0%}"
            " · output {pieces.3:.0%}",
        ),
        *bar(
            254,
            "Memory of training: {trained:.1f} {trained_letter}B, of which",
            [("", "states_share", BLUE), ("states_share", "kept_share", ROSE)],
            "weights, gradients, Adam {states:.1f} {states_letter}B · activations "
            "{kept:.1f} {kept_letter}B",
        ),
        *bar(
            312,
            "Read for one new token: {read:.1f} {read_letter}B, of which",
            [("", "weights_share", BLUE), ("weights_share", "cache_share", KEY)],
            "weights {weights:.1f} {weights_letter}B · cache {cache:.1f} {cache_letter}B",
        ),
    ]


what_it_costs = Figure(
    name="what_it_costs",
    title="What would it cost?",
    description=(
        "A curve of attention's share of a block's operations over the number of tokens, for a "
        "model 768 wide with 12 layers. It rises from 1 % at 128 tokens and reaches half at 4,608. "
        "At 1,024 tokens it is 18 %. Below, three bars: of the operations of a forward pass, 40 % "
        "are the feed-forward networks' and 13 % attention's; in training, weights, gradients "
        "and Adam's states are four fifths of the memory; and for one new token 87 % of "
        "what is read are weights."
    ),
    size=(440, 356),
    compute=compute,
    marks=marks(),
    says="With {tokens:,} tokens attention is {share:.0%} of a block’s operations, {pieces.1:.0%} "
    "of the whole pass. If the memory holds it all, one more token of each text takes at least "
    "{ms:.3f} ms, for {slower}: at most {rate:.1f}{rate_letter} tokens "
    "a second in all.",
    table={
        "operations of a forward pass": "{operations:.2f} {operations_letter}",
        "attention's share of them": "{pieces.1:.3f}",
        "read for a token, in bytes": "{read:.2f} {read_letter}B",
        "weights, in bytes": "{weights:.2f} {weights_letter}B",
        "cache, in bytes": "{cache:.2f} {cache_letter}B",
        "training: states, in bytes": "{states:.2f} {states_letter}B",
        "training: kept, in bytes": "{kept:.2f} {kept_letter}B",
        "least time of a token, in ms": "{ms:.3f}",
    },
    controls=(
        Preset("d_model", "Width d", 768, values=WIDTHS, shown="{d_model:,}"),
        Slider("layers", "Layers", 12, values=LAYERS),
        Slider("tokens", "Tokens T", 1024, values=TOKENS, shown="{tokens:,}"),
        Slider("batch", "Texts at once", 1, values=BATCHES),
        Choice(
            "shared",
            "Keys and values",
            "1",
            {"1": "of each head", "4": "of four heads", "all": "of all heads"},
        ),
        Choice(
            "machine",
            "Machine",
            "H100",
            {"H100": "H100: 989 T, 3.35 TB/s", "laptop": "laptop: 0.2 T, 0.05 TB/s"},
        ),
    ),
    examples=(
        {"d_model": 4096, "layers": 32, "tokens": 131072, "shared": "4"},
        {"batch": 512, "shared": "all", "machine": "laptop"},
        {"d_model": 256, "layers": 2, "tokens": 128},
    ),
)
