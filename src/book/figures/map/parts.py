"""What the map of a Transformer shows: parts, arrows, and where both lie in two sizes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """What is written on a part's box, and the section that measures the part."""

    label: str
    shape: str  # of what comes out
    formula: str
    start: str
    page: str
    anchor: str
    under: str = ""  # on the box, instead of the shape

    @property
    def back(self) -> str:
        """What the backward pass does here."""
        return BACK[next(name for name, part in PARTS.items() if part is self)]

    @property
    def chapter(self) -> str:
        """Its number, or an arrow to a page without one."""
        return self.page[:2].lstrip("0") if self.page[0] == "0" else "→"


ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN, EIGHT, LIBRARIES = (
    "01_embeddings",
    "02_positions",
    "03_queries_keys_values",
    "04_attention_weights",
    "05_many_heads",
    "06_backprop",
    "07_initialization",
    "08_depth",
    "implementations",
)
WIDTH, HEADS = "(tokens, d_model)", "(heads, tokens, d_k)"
PAIRS, WORDS = "(heads, tokens, tokens)", "(tokens, vocab)"
GLOROT, UNIT = "Glorot-uniform", "γ = 1, β = 0"
NORM = "γ · (x − mean) / deviation + β, for each token"
# fmt: off
PARTS = {
    "ids": Part("token ids", "(tokens,)", "numbers of tokens in the vocabulary", "–",
        ONE, "a-row-for-each-token-and-its-size"),
    "embedding": Part("embedding × √d", WIDTH,
        "√d_model · E[ids], E is (vocab, d_model)", "normal, variance 1/d_model",
        ONE, "what-a-head-can-tell-apart-at-first"),
    "position": Part("position", WIDTH, "P: sines and cosines of each position",
        "fixed", TWO, "five-ways-to-say-where"),
    "sum": Part("embedding + position", WIDTH, "x = √d_model · E[ids] + P", "–",
        TWO, "adding-or-concatenating"),
    "norm": Part("LayerNorm", WIDTH, NORM, UNIT,
        EIGHT, "which-scheme-for-which-architecture"),
    "attention": Part("attention", WIDTH, "merge(softmax(Q Kᵀ / √d_k) V) · W_O",
        GLOROT, FOUR, "where-the-root-comes-from"),
    "add": Part("residual addition", WIDTH, "stream + branch", "–",
        EIGHT, "what-does-a-block-add"),
    "feed_forward": Part("feed-forward", WIDTH, "ReLU(x W_1 + b_1) W_2 + b_2",
        f"{GLOROT}, biases 0", EIGHT, "the-feed-forward-branch"),
    "final_norm": Part("final norm", WIDTH, NORM, UNIT,
        EIGHT, "how-does-the-stream-grow"),
    "output": Part("output layer", WORDS, "x Eᵀ: the embedding's table again (tied)",
        "as the embedding", ONE, "the-other-end-tied-weights-and-the-first-loss"),
    "logits": Part("logits", WORDS, "one number for each token that may come next", "–",
        ONE, "the-other-end-tied-weights-and-the-first-loss"),
    "loss": Part("loss", "()", "mean of −ln softmax(logits)[target]", "–",
        SIX, "the-loss-and-a-table-that-is-used-twice", "one number"),
    "backward": Part("backward pass", "as each matrix", "∂loss/∂W of each matrix W",
        "–", SIX, "one-loss-one-backward-pass", "all gradients"),
    "query": Part("W_Q", WIDTH, "Q = x W_Q", GLOROT,
        THREE, "qkv-layers", "queries"),
    "key": Part("W_K", WIDTH, "K = x W_K", GLOROT,
        THREE, "qkv-layers", "keys"),
    "value": Part("W_V", WIDTH, "V = x W_V", GLOROT,
        THREE, "qkv-layers", "values"),
    "split": Part("split into heads", HEADS, "d_model = heads · d_k", "–",
        FIVE, "cutting-view-and-transpose"),
    "scores": Part("Q Kᵀ / √d_k", PAIRS, "S = Q Kᵀ / √d_k: attention's logits", "–",
        FOUR, "where-the-root-comes-from"),
    "mask": Part("mask", PAIRS, "S_ij = −∞ where i may not attend to j, in every head", "–",
        FOUR, "aw-masks"),
    "softmax": Part("softmax", PAIRS, "A = softmax(S): each row sums to one", "–",
        FOUR, "what-large-logits-do-to-a-row"),
    "mean": Part("weighted means A V", HEADS, "row i: the sum over j of A_ij · v_j", "–",
        FOUR, "where-the-root-comes-from"),
    "merge": Part("merge heads", WIDTH, "the heads' rows side by side", "–",
        FIVE, "merging-what-w-o-does"),
    "out": Part("W_O", WIDTH, "merged heads · W_O", GLOROT, FIVE, "merging-what-w-o-does"),
    "initial": Part("initial W", "", "how the four matrices are drawn", GLOROT,
        SEVEN, "twelve-initializations", "random"),
    "library": Part("libraries", "", "what each library does by default", "differs",
        LIBRARIES, "at-a-glance", "defaults"),
}
# fmt: on

BACK = {
    "ids": "nothing: numbers of tokens are not learned",
    "embedding": "each token adds √d_model · dx to its row; the output layer adds to all rows",
    "position": "nothing for sines and cosines; a learned P gets dx",
    "sum": "dx goes unchanged to both",
    "norm": "dx = γ · dy without its mean and its part along x − mean, over the deviation",
    "attention": "dx: the sum of what comes back through Q, K and V",
    "add": "the gradient is copied: to the stream and to the branch",
    "feed_forward": "dW_2 = hᵀ dy; dW_1 = xᵀ dh, zero where the ReLU was closed",
    "final_norm": "dx = γ · dy without its mean and its part along x − mean, over the deviation",
    "output": "dx = dlogits · E, and dE = dlogitsᵀ x",
    "logits": "dlogits = (softmax(logits) − 1 at the target) / number of targets",
    "loss": "1: here the backward pass starts",
    "backward": "∂loss/∂W of each matrix, in one pass from the loss to the embedding",
    "query": "dW_Q = xᵀ dQ",
    "key": "dW_K = xᵀ dK",
    "value": "dW_V = xᵀ dV",
    "split": "the heads' gradients side by side",
    "scores": "dQ = dS K / √d_k and dK = dSᵀ Q / √d_k",
    "mask": "0 where i may not attend to j",
    "softmax": "dS = A ∘ (dA − the row's sum of A ∘ dA)",
    "mean": "dV = Aᵀ dO and dA = dO Vᵀ",
    "merge": "the gradient is cut into heads",
    "out": "dW_O = (merged heads)ᵀ dy",
    "initial": "where the first step starts from",
    "library": "the same in all of them",
}
"""Part -> its line of the backward pass; dy stands for the gradient at what comes out, dx at what
went in."""

# A box inside a form is called by form, part and number; "@" marks a point on a line.
ARROWS = {
    "branch": """position sum
        @pre1 pre.norm1 | pre.norm1 pre.attention | pre.attention pre.add1
        @pre2 pre.norm2 | pre.norm2 pre.feed_forward | pre.feed_forward pre.add2
        @post1 post.attention | post.attention post.add1
        @post2 post.feed_forward | post.feed_forward post.add2
        @in @x | @x query | @x key | @x value | query split | key split | value split
        split scores | @values mean | scores mask | mask softmax | softmax mean | mean merge
        merge out | out inside.add""",
    "stream": """ids embedding | embedding sum | sum @fork | @fork @pre1 | @fork @post1
        @pre1 pre.add1 | pre.add1 @pre2 | @pre2 pre.add2 | pre.add2 final_norm
        @post1 post.add1 | post.add1 post.norm1 | post.norm1 @post2 | @post2 post.add2
        post.add2 post.norm2 | final_norm @join | post.norm2 @join | @join output
        output logits | logits loss""",
}


def arrows() -> Iterator[tuple[str, str, str]]:
    """Kind, from, to."""
    for kind, listed in ARROWS.items():
        for pair in re.split(r"[|\n]", listed):
            start, end = pair.split()
            yield kind, start, end


def part_of(box: str) -> str:
    """``pre.norm1`` is a ``norm``."""
    return (box.partition(".")[2] or box).rstrip("12")


@dataclass(frozen=True)
class Box:
    """A rectangle by its left edge and middle; lines enter and leave it at ``port``."""

    x: float
    y: float
    width: float
    height: float
    port: float


@dataclass(frozen=True)
class Layout:
    """A size of the map. Heights are counted in rows, widths in units of the drawing."""

    width: float
    rows: float
    pitch: float
    height: float  # of a box
    streams: dict[str, float]
    gap: float  # from the stream to the boxes of its branches
    column: float
    block: float  # row of the first norm
    panel: tuple[float, float, float]  # left edge, row and width of what is inside attention
    ends: dict[str, tuple[float, float, float]]  # left edge, row and width of what is outside
    boxes: dict[str, Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Place every box and point."""
        for name, (x, row, width) in self.ends.items():
            self.put(name, x, row, width)
        for form, stream in self.streams.items():
            pre = form == "pre"
            self.put(f"@{form}1", stream, self.block - 0.53 if pre else self.block + 0.47)
            self.put(f"@{form}2", stream, self.block + (2.32 if pre else 3.32))
            for row, norm, name, add in (
                (self.block, "norm1", "attention", "add1"),
                (self.block + 2.85, "norm2", "feed_forward", "add2"),
            ):
                self.put(f"{form}.{name}", stream + self.gap, row + 1, self.column)
                self.put(f"{form}.{add}", stream, row + 1.9)
                if pre:
                    self.put(f"pre.{norm}", stream + self.gap, row, self.column)
                else:
                    self.on_stream(f"post.{norm}", stream, row + 2.85)
        self.on_stream("final_norm", self.streams["pre"], self.block + 5.7)
        x, row, width = self.panel
        gap = 8
        third = (width - 2 * gap) / 3
        for i, name in enumerate(("query", "key", "value")):
            self.put(name, x + i * (third + gap), row, third)
        for i, name in enumerate(("split", "scores", "mask", "softmax", "mean", "merge", "out"), 1):
            wide = width if name in ("split", "mean") else 2 * third + gap
            self.put(name, x, row + 0.9 * i, wide, x + third + gap / 2)
        for i, name in ((6, "library"), (7, "initial")):
            self.put(name, x + 2 * (third + gap), row + 0.9 * i, third)
        for name, down in (("@in", -0.72), ("@x", -0.53)):
            self.put(name, x + width / 2, row + down)
        self.put("@values", self.boxes["value"].port, row + 0.9)
        self.put("inside.add", x + third + gap / 2, row + 7.07)

    def on_stream(self, name: str, stream: float, row: float) -> None:
        """A box through which the stream itself goes."""
        self.put(name, stream - self.gap / 2, row, self.column, stream)

    def put(self, name: str, x: float, row: float, width: float = 0, port: float = 0) -> None:
        """A box; without a width a point, or the circle of a sum."""
        height = self.height if width else 0
        if part_of(name) in ("add", "sum"):
            width = height = 0.6 * self.height
            x -= width / 2
        self.boxes[name] = Box(x, self.y(row), width, height, port or x + width / 2)

    def y(self, row: float) -> float:
        """The middle of a row."""
        return 14 + self.height / 2 + row * self.pitch


# fmt: off
LAYOUTS = {
    "wide": Layout(
        width=688, rows=10.5, pitch=52, height=36,
        streams={"pre": 34, "post": 212}, gap=22, column=124, block=2.5, panel=(396, 2.5, 268),
        ends={
            "ids": (20, 0, 84), "embedding": (124, 0, 134), "sum": (288, 0, 0),
            "position": (318, 0, 124), "backward": (540, 0, 124), "@fork": (288, 0.95, 0),
            "@join": (178, 9.5, 0), "output": (118, 10.5, 120), "logits": (288, 10.5, 120),
            "loss": (458, 10.5, 120),
        },
    ),
    "narrow": Layout(
        width=344, rows=20.3, pitch=52, height=36,
        streams={"pre": 24, "post": 184}, gap=18, column=122, block=3.5, panel=(22, 13.2, 300),
        ends={
            "ids": (14, 0, 84), "embedding": (118, 0, 132), "sum": (184, 1, 0),
            "position": (30, 1, 122), "backward": (203, 1, 123), "@fork": (184, 1.95, 0),
            "@join": (80, 10.25, 0), "output": (30, 11, 100), "logits": (142, 11, 98),
            "loss": (252, 11, 74),
        },
    ),
}
# fmt: on
