"""Puzzles on the bench: what may be changed, what has to hold, and a solution that tests replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from book.figures.workbench.model import SETS, WORDS, Settings, backward, forward

FILE = Path(__file__).with_name("puzzles.yml")
STORED = tuple(Settings().stored)

Moves = Mapping[str, Any]
"""What is set to what: "b,0,0" (a number), "A,2,1" (a look), "ids" or a switch -> its value."""


@dataclass(frozen=True)
class Puzzle:
    """A goal for the bench.

    Args:
        name: its address on the page.
        chapter: whose matter it is.
        level: how hard it is, from 1 to 3.
        goal: what has to come out, in words.
        may: what may be changed: ``says`` in words, ``of`` names with ``count``, switches ``also``.
        must: what has to hold: each a measure with its bound.
        hints: a question, a place, and nearly the answer.
        solution: one way to do it.
        why: what it teaches.
        stage: where a narrow page looks.
        lanes: the words that it is about.
        start: what is other than on the bench, as it begins.
        switches: those that are offered.
        ways: the numbers that alone can do it.
    """

    name: str
    chapter: int
    level: int
    goal: str
    may: Mapping[str, Any]
    must: Sequence[Mapping[str, Any]]
    hints: Sequence[str]
    solution: Moves
    why: str
    stage: str
    lanes: Sequence[int]
    start: Moves = field(default_factory=dict)
    switches: Sequence[str] = ()
    ways: Sequence[str] = ()

    @property
    def begins(self) -> Settings:
        """The bench as the puzzle begins."""
        return moved(Settings(), self.start)


def puzzles() -> list[Puzzle]:
    """All of them, in the order in which they are played.

    Example:
        >>> puzzles()[1].name
        'down-after-cat-too'
    """
    return [Puzzle(**each) for each in yaml.safe_load(FILE.read_text("utf-8"))]


def moved(settings: Settings, moves: Moves) -> Settings:
    """Settings with numbers, looks, words or switches set to others."""
    for key, to in moves.items():
        name, *at = key.split(",")
        place = [int(part) for part in at]
        if name == "set":
            settings = replace(settings, **SETS[to])
        elif not place:
            value: Any = tuple(to) if name == "ids" else to
            settings = replace(settings, **{name: value})
        elif name == "A":
            edges = [[*row] for row in settings.edges]
            edges[place[0]][place[1]] = to
            settings = replace(settings, edges=tuple(map(tuple, edges)))
        elif name in STORED:
            rows = [[*row] for row in settings.stored[name]]
            rows[place[0]][place[1]] = to
            settings = replace(settings, stored={**settings.stored, name: rows})
        else:
            pin = {(name, place[0], place[1]): float(to)}
            settings = replace(settings, pinned={**settings.pinned, **pin})
    return settings


def measure(must: Mapping[str, Any], now: Settings, start: Settings) -> float:
    """What a condition is about, as the settings are now; ``puzzles.js`` measures the same."""
    if "ids" in must:
        now = replace(now, ids=tuple(must["ids"]))
    if "looks" in must:
        return float(sum(map(sum, now.edges)))
    if "reordered" in must:
        return float(now.ids != start.ids and sorted(now.ids) == sorted(start.ids))
    if "switched" in must:
        return float(getattr(now, must["switched"]) != getattr(start, must["switched"]))
    if "gradient" in must:
        return flat(backward(now), must["gradient"]).abs().max().item()
    if "by" in must:
        names = " ".join(STORED) if must["by"] == "stored" else must["by"]
        return (flat(forward(now), names) - flat(forward(start), names)).abs().max().item()
    if "apart" in must:
        return moving(*(flat(forward(now), names) for names in must["apart"]))
    if "moved" in must:
        return moving(flat(forward(now), must["moved"]), flat(forward(start), must["moved"]))
    return flat(forward(now), must["number"]).item()


def moving(one: Tensor, other: Tensor) -> int:
    """How many numbers differ."""
    return int(((one - other).abs() > 0.001).sum())


def flat(numbers: Mapping[str, Tensor], names: str) -> Tensor:
    """The numbers of "A", of "A,2" (a row) or of "A,2,0", of several with spaces between."""
    found = []
    for each in names.split():
        name, *at = each.split(",")
        matrix = numbers["L"].softmax(-1) if name == "probabilities" else numbers[name]
        for i in at:
            matrix = matrix[int(i)]
        found.append(matrix.detach().flatten())
    return torch.cat(found)


def holds(must: Mapping[str, Any], x: float) -> bool:
    """Whether a measure keeps its bound."""
    lowest, highest = must.get("at_least", -torch.inf), must.get("at_most", torch.inf)
    return bool(lowest - 1e-9 <= x <= highest + 1e-9)


def solved(puzzle: Puzzle, now: Settings) -> bool:
    """Whether all that has to hold does."""
    return all(holds(must, measure(must, now, puzzle.begins)) for must in puzzle.must)


def in_words(puzzle: Puzzle, key: str) -> str:
    """One move of the solution, as Markdown.

    Example:
        >>> in_words(puzzles()[1], "b,0,0")
        '$b$: 0'
    """
    settings, to = puzzle.begins, puzzle.solution[key]
    name, *at = key.split(",")
    if name == "ids":
        return f"the text “{' '.join(WORDS[each] for each in to)}”"
    if not at:
        return f"{SPOKEN[name]} {'on' if to else 'off'}"
    i, j = map(int, at)
    if name == "b":
        return f"$b$: {to}"
    if name in "SAX":
        word = f"“{WORDS[settings.ids[i]]}”"
        if name == "X":
            return f"$X$ of {word}, {settings.columns[j]}: {to}"
        other = f"“{WORDS[settings.ids[j]]}”"
        if name == "S":
            return f"the logit of {word} for {other}: {to}"
        return f"{other} {'open to' if to else 'hidden from'} {word}"
    columns = settings.asks if name in ("W_Q", "W_K") else settings.columns
    column = f"“{WORDS[j]}”" if name == "U" else "unit" if name == "W_1" else columns[j]
    row = f"“{WORDS[i]}”" if name == "E" else "unit" if name == "W_2" else settings.columns[i]
    return f"${name}$, {row} → {column}: {to}".replace("-", "−")


SPOKEN = {"scaled": r"the division by $\sqrt{d_k}$", "normed": "the norm"}
"""What switches are called in a sentence."""
