"""What the bench shows: the numbers of a model of one block, and the gradient of its loss."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnbook.attention import attention_logits, attention_weights

Matrix = list[list[float]]

WORDS = ("the", "cat", "sat", "down")
COLUMNS = ("article", "noun", "verb", "noun seen", "down")
"""What the columns of the stream say; a head has the first four, so that its root is 2."""
NAMELESS = ("1", "2", "3", "4", "5")
"""What they are called where training made the numbers."""


def matrix(rows: int, columns: int, *entries: tuple[int, int, float]) -> Matrix:
    """Zeros but for the entries (row, column, number)."""
    made = [[0.0] * columns for _ in range(rows)]
    for i, j, value in entries:
        made[i][j] = float(value)
    return made


def by_content() -> dict[str, Matrix]:
    """Stored numbers of the default: a verb looks for a noun, wherever it stands."""
    return {
        "E": matrix(4, 5, (0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 4, 1)),  # a word -> its columns
        "W_Q": matrix(5, 4, (2, 1, 2)),  # a verb asks for nouns
        "W_K": matrix(5, 4, (1, 1, 2)),  # a noun can be found as one
        "W_V": matrix(5, 4, (0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)),  # what a word is
        "W_O": matrix(4, 5, (1, 3, 1)),  # a noun that was found is "noun seen"
        "W_1": matrix(5, 1, (2, 0, 1), (3, 0, 1)),  # a verb, and a noun seen?
        "b": matrix(1, 1, (0, 0, -1)),
        "W_2": matrix(1, 5, (0, 4, 1)),  # then "down"
        "U": matrix(5, 4, (4, 3, 4)),  # columns -> logits of the next word
    }


def by_place() -> dict[str, Matrix]:
    """The second head: each word looks at the one before it, whatever that is.

    With positions every query points east in the first place and every key north; with each place
    both turn a quarter to the left, so a query points where the key of the word before does.
    """
    words = (0, 1, 2, 4)  # the columns of which each word has one
    return by_content() | {
        "W_Q": matrix(5, 4, *((row, 0, 3) for row in words)),
        "W_K": matrix(5, 4, *((row, 2, 2) for row in words)),
    }


TEXTS = tuple(product(range(3), repeat=3))
"""All texts of three words out of "the", "cat" and "sat"."""


def following(text: tuple[int, ...]) -> int:
    """What comes after a text: "down" after "sat" if a cat came before, and "the" otherwise.

    Example:
        >>> [WORDS[following(text)] for text in ((0, 1, 2), (0, 2, 2), (1, 2, 1))]
        ['down', 'the', 'the']
    """
    return 3 if text[-1] == 2 and 1 in text[:-1] else 0


def learn(seed: int, steps: int = 120) -> dict[str, Matrix]:
    """Stored numbers that begin at random and learn what follows each of :data:`TEXTS`."""
    generator = torch.Generator().manual_seed(seed)
    numbers = {
        name: (
            torch.randn(len(rows), len(rows[0]), generator=generator, dtype=torch.float64)
            * (0.0 if name == "b" else 0.5 if name == "E" else 0.5 / len(rows) ** 0.5)
        ).requires_grad_()
        for name, rows in by_content().items()
    }
    ids = torch.tensor(TEXTS)
    target = torch.tensor([following(text) for text in TEXTS])
    adam = torch.optim.Adam(numbers.values(), lr=0.02)
    for _ in range(steps):
        adam.zero_grad()
        F.cross_entropy(run(dict(numbers), ids)["L"][:, -1], target).backward()
        adam.step()
    return {name: number.tolist() for name, number in numbers.items()}


def by_training() -> dict[str, Matrix]:
    """Stored numbers of :func:`learn`, seed 3, to two digits."""
    kept: dict[str, Matrix] = json.loads(Path(__file__).with_name("trained.json").read_text())
    return kept


@dataclass(frozen=True)
class Settings:
    """What a reader can change.

    Args:
        stored: the stored numbers, name -> rows.
        columns: what the columns of the stream are called.
        asks: what those of queries and keys are called.
        pinned: computed numbers that are set by hand, ("Q", row, column) -> number.
        ids: the words read.
        aim: the word that comes next.
        edges: whether a word (row) may look at a word (column).
        scaled: divide logits by the root of a head's width.
        identity: the identity in place of W_Q, W_K and W_V.
        same: W_Q in place of W_K.
        rooted: multiply rows of E by the root of the stream's width.
        turned: positions, as quarter turns of queries and keys in their first and third column.
        normed: what a part reads from the stream is normed before.
        every: the loss of all words and not of the last one.
    """

    stored: Mapping[str, Matrix] = field(default_factory=by_content)
    columns: tuple[str, ...] = COLUMNS
    asks: tuple[str, ...] = COLUMNS[:4]
    pinned: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    ids: tuple[int, ...] = (0, 1, 2)
    aim: int = 3
    edges: tuple[tuple[bool, ...], ...] = ((True, False, False), (True, True, False), (True,) * 3)
    scaled: bool = True
    identity: bool = False
    same: bool = False
    rooted: bool = False
    turned: bool = False
    normed: bool = False
    every: bool = False


def run(
    numbers: dict[str, Tensor], ids: Tensor, settings: Settings | None = None
) -> dict[str, Tensor]:
    r"""Add to stored numbers all computed ones, for one text or for many.

    .. math::
        X = E_\text{ids}, \quad A = \operatorname{softmax}(QK^\top/\sqrt{d_k}), \quad
        Y = X + A V W_O, \quad Z = Y + \operatorname{relu}(Y W_1 + b)\, W_2

    The computed ones: rows X; Q, K, V; logits S; weights A; mix O; D = O W_O; Y; unit H;
    F = H W_2; Z; logits L of the next word; NX, NY and NZ, the normed copies of the stream.

    Args:
        numbers: the stored ones.
        ids: the words, (..., 3).
        settings: the switches; the stored numbers and words in it are not used.
    """
    settings = settings or Settings()

    def keep(name: str, computed: Tensor) -> Tensor:
        """Put in what is pinned, and keep the result and its gradient."""
        for (of, i, j), value in settings.pinned.items():
            if of == name:
                chosen = torch.zeros_like(computed, dtype=torch.bool)
                chosen[..., i, j] = True
                computed = torch.where(chosen, value, computed)
        if computed.requires_grad:
            computed.retain_grad()
        numbers[name] = computed
        return computed

    def read(name: str, x: Tensor) -> Tensor:
        """What a part reads from the stream."""
        return keep(f"N{name}", F.layer_norm(x, x.shape[-1:])) if settings.normed else x

    def place(x: Tensor) -> Tensor:
        """Each row turned by as many quarters as words stand before it: (a, c) -> (-c, a)."""
        rows = list(x.unbind(-2))
        for i in range(len(rows) if settings.turned else 0):
            for _ in range(i):
                a, b, c, d = rows[i].unbind(-1)
                rows[i] = torch.stack([-c, b, a, d], -1)
        return torch.stack(rows, -2)

    w = dict(numbers)
    root = w["E"].shape[1] ** 0.5 if settings.rooted else 1.0
    x = keep("X", w["E"][ids] * root)
    own = read("X", x)
    q, k, v = (own @ w[f"W_{name}"] for name in "QKV")
    q, k, v = keep("Q", place(q)), keep("K", place(k)), keep("V", v)
    s = keep("S", attention_logits(q, k, scale=None if settings.scaled else 1.0))
    a = keep("A", attention_weights(s, torch.tensor(settings.edges)))
    y = keep("Y", x + keep("D", keep("O", a @ v) @ w["W_O"]))
    h = keep("H", (read("Y", y) @ w["W_1"] + w["b"]).relu())
    z = keep("Z", y + keep("F", h @ w["W_2"]))
    keep("L", read("Z", z) @ w["U"])
    return numbers


def forward(settings: Settings) -> dict[str, Tensor]:
    """All numbers, stored and computed (:func:`run`), and the loss, in nats.

    Example:
        >>> forward(Settings())["L"].softmax(-1)[2, 3].item()  # "down" after "sat"
        0.885...
    """
    numbers = {
        name: torch.tensor(rows, dtype=torch.float64, requires_grad=True)
        for name, rows in settings.stored.items()
    }
    if settings.identity:
        eye = torch.eye(*numbers["W_Q"].shape, dtype=torch.float64)
        numbers |= {name: eye.clone().requires_grad_() for name in ("W_Q", "W_K", "W_V")}
    if settings.same:
        numbers["W_K"] = numbers["W_Q"]
    run(numbers, torch.tensor(settings.ids), settings)
    log_p = numbers["L"].log_softmax(-1)
    coming = torch.tensor([*settings.ids[1:], settings.aim])
    losses = -log_p[torch.arange(len(coming)), coming]
    numbers["loss"] = losses.mean() if settings.every else losses[-1]
    return numbers


def backward(settings: Settings) -> dict[str, Tensor]:
    """By how much the loss rises where a number rises, for each number of :func:`forward`.

    A pinned number hangs on nothing: what lies before it gets no gradient through it.
    """
    numbers = forward(settings)
    numbers["loss"].backward()
    return {
        name: torch.zeros_like(number) if number.grad is None else number.grad
        for name, number in numbers.items()
        if name != "loss"
    }


def plain(numbers: Mapping[str, Tensor]) -> dict[str, Any]:
    """As lists and floats, for JSON.

    Example:
        >>> plain(forward(Settings()))["A"][2]
        [0.1065..., 0.7869..., 0.1065...]
    """
    return {name: number.tolist() for name, number in numbers.items()}


SETS: dict[str, dict[str, Any]] = {
    "place": {"stored": by_place(), "asks": ("east", "–", "north", "–"), "turned": True},
    "trained": {"stored": by_training(), "columns": NAMELESS, "asks": NAMELESS[:4]},
}
"""Other numbers than those of the first head, and what goes with them."""
