"""What the bench shows: the numbers of a model of one block, and the gradient of its loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbook.attention import attention_logits, attention_weights

Matrix = list[list[float]]

WORDS = ("the", "cat", "sat", "down")
COLUMNS = ("article", "noun", "verb", "noun seen", "down")
"""What the columns of the stream say; a head has the first four, so that its root is 2."""


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
        "P": matrix(3, 5),  # a position -> the same
        "W_Q": matrix(5, 4, (2, 1, 2)),  # a verb asks for nouns
        "W_K": matrix(5, 4, (1, 1, 2)),  # a noun can be found as one
        "W_V": matrix(5, 4, (0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)),  # what a word is
        "W_O": matrix(4, 5, (1, 3, 1)),  # a noun that was found is "noun seen"
        "W_1": matrix(5, 1, (2, 0, 1), (3, 0, 1)),  # a verb, and a noun seen?
        "b": matrix(1, 1, (0, 0, -1)),
        "W_2": matrix(1, 5, (0, 4, 1)),  # then "down"
        "U": matrix(5, 4, (4, 3, 4)),  # columns -> logits of the next word
    }


@dataclass(frozen=True)
class Settings:
    """What a reader can change.

    Args:
        stored: the stored numbers, name -> rows.
        pinned: computed numbers that are set by hand, ("Q", row, column) -> number.
        ids: the words read.
        aim: the word that comes next.
        edges: whether a word (row) may look at a word (column).
        scaled: divide logits by the root of a head's width.
        identity: the identity in place of W_Q, W_K and W_V.
        same: W_Q in place of W_K.
        rooted: multiply rows of E by the root of the stream's width.
        every: the loss of all words and not of the last one.
    """

    stored: Mapping[str, Matrix] = field(default_factory=by_content)
    pinned: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    ids: tuple[int, ...] = (0, 1, 2)
    aim: int = 3
    edges: tuple[tuple[bool, ...], ...] = ((True, False, False), (True, True, False), (True,) * 3)
    scaled: bool = True
    identity: bool = False
    same: bool = False
    rooted: bool = False
    every: bool = False


def forward(settings: Settings) -> dict[str, Tensor]:
    r"""All numbers, stored and computed, and the loss, in nats.

    .. math::
        X = E_\text{ids} + P, \quad A = \operatorname{softmax}(QK^\top/\sqrt{d_k}), \quad
        Y = X + A V W_O, \quad Z = Y + \operatorname{relu}(Y W_1 + b)\, W_2

    The computed ones: rows X; Q, K, V; logits S; weights A; mix O; D = O W_O; Y; unit H;
    F = H W_2; Z; logits L of the next word.

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

    def keep(name: str, computed: Tensor) -> Tensor:
        """Put in what is pinned, and keep the result and its gradient."""
        for (of, i, j), value in settings.pinned.items():
            if of == name:
                chosen = torch.zeros_like(computed, dtype=torch.bool)
                chosen[i, j] = True
                computed = torch.where(chosen, value, computed)
        if computed.requires_grad:
            computed.retain_grad()
        numbers[name] = computed
        return computed

    stored = dict(numbers)
    width = numbers["E"].shape[1]
    rows = stored["E"][list(settings.ids)] * (width**0.5 if settings.rooted else 1.0)
    x = keep("X", rows + stored["P"])
    q, k, v = (keep(name, x @ stored[f"W_{name}"]) for name in "QKV")
    s = keep("S", attention_logits(q, k, scale=None if settings.scaled else 1.0))
    a = keep("A", attention_weights(s, torch.tensor(settings.edges)))
    d = keep("D", keep("O", a @ v) @ stored["W_O"])
    y = keep("Y", x + d)
    h = keep("H", (y @ stored["W_1"] + stored["b"]).relu())
    z = keep("Z", y + keep("F", h @ stored["W_2"]))
    log_p = keep("L", z @ stored["U"]).log_softmax(-1)
    following = torch.tensor([*settings.ids[1:], settings.aim])
    losses = -log_p[torch.arange(len(following)), following]
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
