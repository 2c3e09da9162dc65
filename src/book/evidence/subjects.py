"""What claims are about: the subjects that readers look for, and results that part in one of them.

``chapters/subjects.yml`` has all: of each subject its claims, and the pairs that differ.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SUBJECTS = Path("chapters/subjects.yml")
AT_MOST = 2
"""Subjects of a claim."""


class SubjectsError(Exception):
    """A claim without a subject, or a subject of claims that are not there; names them."""


@dataclass(frozen=True)
class Subject:
    """One that a reader would look for.

    Args:
        name: its anchor on the page of all subjects.
        title: the field's term.
        says: which question its claims answer.
        answer: what they answer, in a few sentences with links to those that say so.
        words: what else it is looked for by.
        labels: of its claims, in the order of the book.
    """

    name: str
    title: str
    says: str
    answer: str
    words: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Parting:
    """Two results of one subject that point in different directions.

    Args:
        labels: of the two claims.
        differ: what the one found and what the other, with their settings.
        why: the reason, as far as it is known.
        shows: labels of other claims, which show the reason or a number of these sentences.
    """

    labels: tuple[str, str]
    differ: str
    why: str
    shows: tuple[str, ...]

    def other(self, label: str) -> str:
        """The claim at the other end."""
        first, second = self.labels
        return second if label == first else first


@dataclass(frozen=True)
class Subjects:
    """All subjects by name, and the pairs that part."""

    by_name: dict[str, Subject]
    partings: tuple[Parting, ...] = ()

    def of(self, label: str) -> list[Subject]:
        """The subjects of a claim."""
        return [each for each in self.by_name.values() if label in each.labels]

    def partings_of(self, label: str) -> list[Parting]:
        """The pairs that a claim is in."""
        return [each for each in self.partings if label in each.labels]


def read_subjects(root: Path, labels: Iterable[str]) -> Subjects:
    """The subjects of a book with these claims; none, if it has no such file.

    Raises:
        SubjectsError: if a claim has no subject or more than two, if a subject or a pair names a
            claim that is not there, or if the two of a pair share no subject.
    """
    path, labels = root / SUBJECTS, list(labels)
    if not path.exists():
        return Subjects({})
    written = yaml.safe_load(path.read_text("utf-8"))
    by_name = {
        name: Subject(
            name,
            each["title"],
            each["says"],
            each["answer"],
            each.get("words", ""),
            tuple(label for label in labels if _names(each["claims"], label)),
        )
        for name, each in written["subjects"].items()
    }
    partings = (
        Parting(tuple(each["claims"]), each["differ"], each["why"], tuple(each.get("shows", ())))
        for each in written["differs"]
    )
    found = Subjects(by_name, tuple(partings))
    if wrong := [*_wrong(found, written["subjects"], labels)]:
        raise SubjectsError(f"{SUBJECTS}: {'; '.join(wrong)}")
    return found


def _names(patterns: str, label: str) -> bool:
    return any(
        label.startswith(each[:-1]) if each.endswith("*") else label == each
        for each in patterns.split()
    )


def _wrong(found: Subjects, written: dict[str, Any], labels: list[str]) -> Iterator[str]:
    """What the file and the claims do not agree in."""
    counts = Counter(label for each in found.by_name.values() for label in each.labels)
    for label in labels:
        if not 1 <= counts[label] <= AT_MOST:
            yield f"claim {label} must have one subject or two, got {counts[label]}"
    for name, each in written.items():
        for pattern in each["claims"].split():
            if not any(_names(pattern, label) for label in labels):
                yield f"subject {name} names {pattern}, and no claim is called so"
    for parting in found.partings:
        for label in {*parting.shows} - {*labels}:
            yield f"{' and '.join(parting.labels)} name {label}, and no claim is called so"
        first, second = ({each.name for each in found.of(label)} for label in parting.labels)
        if not first & second:
            yield f"{' and '.join(parting.labels)} part, and must share a subject"
