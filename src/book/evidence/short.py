"""Short places: headlines, summaries, answers, verdicts, lectures, and what each rests on.

A short sentence drops the setting that the text has. So it names the claims that it rests on, by
links or in ``chapters/short.yml``; and when one of these changes, or a result that points elsewhere
joins its subject, it is to be read again. ``chapters/read.json`` knows which were.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml

from book.evidence.subjects import Subjects, read_subjects

RESTS, READ = Path("chapters/short.yml"), Path("chapters/read.json")
NOTHING = "nothing"
SAY, SAYINGS = "What you can now say", "What people say"
LINK = re.compile(r"\((?:\w+\.ipynb)?#claim-([\w-]+)\)")


class ShortError(Exception):
    """A short sentence that rests on nothing, or on a claim that is not there."""


@dataclass(frozen=True)
class Short:
    """A place that says in few words what was measured.

    Args:
        page: where it stands.
        kind: what it is there.
        says: its text.
        labels: of the claims that it rests on.
    """

    page: str
    kind: str
    says: str
    labels: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its name in the file of what was read."""
        return f"{self.page} {hashlib.sha256(self.says.encode()).hexdigest()[:12]}"

    def state(self, claims: Mapping[str, Mapping[str, Any]], subjects: Subjects) -> str:
        """A hash of what it rests on: the numbers, and what points elsewhere in their subjects."""
        shown = [[claims[each][key] for key in ("measured", "expected")] for each in self.labels]
        about = {subject.name for label in self.labels for subject in subjects.of(label)}
        parts = sorted(
            parting.differ
            for parting in subjects.partings
            if about & {each.name for label in parting.labels for each in subjects.of(label)}
        )
        return hashlib.sha256(json.dumps([shown, parts]).encode()).hexdigest()[:12]


def shorts(root: Path, labels: Iterable[str]) -> list[Short]:
    """All short places of a book with these claims; none, if it has no such file.

    Raises:
        ShortError: if a headline or a summary rests on no claim, or the file names a sentence or a
            claim that is not there.
    """
    if not (root / RESTS).exists():
        return []
    written, labels = rests_written(root), list(labels)
    found = [
        *_in_chapters(root / "chapters", written),
        *_in_pages(root / "chapters"),
        *_in_subjects(root, labels),
    ]
    wrong = [f"{page} has no sentence {says!r}" for page, each in written.items() for says in each]
    wrong += [f"{each.page}: {each.says!r} rests on no claim" for each in found if not each.labels]
    known = set(labels)
    wrong += [
        f"{each.page}: no claim is called {label}"
        for each in found
        for label in sorted({*each.labels} - known)
    ]
    if wrong:
        raise ShortError(f"{RESTS}: {'; '.join(wrong)}")
    return found


def rests_written(root: Path) -> dict[str, dict[str, str]]:
    """Chapter -> sentence -> the labels that are written for it."""
    path = root / RESTS
    pages = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    return {page: {each["says"]: each["rests"] for each in found} for page, found in pages.items()}


def _in_chapters(folder: Path, written: dict[str, dict[str, str]]) -> Iterator[Short]:
    """Headlines, summaries and verdicts; what is used is taken out of ``written``."""
    for path in sorted(folder.glob("*.ipynb")):
        cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
        text = "\n\n".join(cell.source for cell in cells)
        named = written.get(path.stem, {})
        says = [("headline", cells[0].source.split("\n\n")[1])]
        says += [("summary", each) for each in re.findall(r"(?m)^- (.*)", _section(text, SAY))]
        for kind, each in says:
            rests = [*named.pop(each, "").split(), *LINK.findall(each)]
            if rests != [NOTHING]:
                yield Short(path.stem, kind, each, tuple(dict.fromkeys(rests)))
        if not named:
            written.pop(path.stem, None)
        for each in re.split(r"\n\n|\n(?=\|)", _section(text, SAYINGS)):
            if rests := LINK.findall(each):
                yield Short(path.stem, "saying", each, tuple(dict.fromkeys(rests)))


def _in_pages(folder: Path) -> Iterator[Short]:
    """Answers, which rest on what is told below them too, and lectures."""
    questions = (folder / "questions.md").read_text("utf-8")
    for each in re.split(r"(?m)^### ", questions)[1:]:
        asked, answer = each.partition("\n\n")[::2]
        answer = re.split(r"(?m)^(?:```|:::)", answer)[0].strip()
        if rests := LINK.findall(each):
            yield Short("questions", asked, answer, tuple(dict.fromkeys(rests)))
    for each in (folder / "lectures.md").read_text("utf-8").split("\n\n"):
        if rests := LINK.findall(each):
            yield Short("lectures", "lecture", each.strip(), tuple(dict.fromkeys(rests)))


def _in_subjects(root: Path, labels: Iterable[str]) -> Iterator[Short]:
    """What is known about each subject."""
    for each in read_subjects(root, labels).by_name.values():
        yield Short(
            "subjects", each.title, each.answer, tuple(dict.fromkeys(LINK.findall(each.answer)))
        )


def _section(text: str, title: str) -> str:
    found = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", text)
    return found[1].strip() if found else ""


def to_read(
    root: Path, claims: Mapping[str, Mapping[str, Any]], subjects: Subjects
) -> tuple[list[Short], dict[str, str]]:
    """The short places that were not read since something they rest on changed; all their hashes.

    Raises:
        ShortError: see :func:`shorts`.
    """
    found = shorts(root, claims)
    now = {each.key: each.state(claims, subjects) for each in found}
    path = root / READ
    read = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return [each for each in found if read.get(each.key) != now[each.key]], now
