"""Architectures as people write them, right, and the bugs that people put into them.

A file of this folder holds architectures, ``SETTINGS`` (each makes a module, an example of its call
and what its author would claim) and ``BUGS``. A layer that is one function stands as a function of
its parts, which its setting names (``right.made``). A row is a bug; the right twin is the file
itself::

    nanogpt | heads | heads merged by a view | merge without transposing | jsbaan/transformer#6
        y.transpose(1, 2).contiguous() → y.contiguous()

A setting, a family ("!": one can be sure of it without a claim; "?": not seen by who wrote the
doctor), what is wrong, the causes that name it (";" between them), and a public report. Below it
stands what is replaced by what: "↵" is a new line, and "…" what was there; with ``Class: old →
new`` the text is looked for in that class or function alone.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from attnbook.doctor import Report, diagnose

Made = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
Make = Callable[[], Made]
FOLDER = Path(__file__).parent
FILES = sorted(p.stem for p in FOLDER.glob("[a-z]*.py") if p.stem != "museum")


@dataclass(frozen=True)
class Edit:
    """Text that stands once in the source, or in one class or function of it, and another."""

    where: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The source with the other text.

        Raises:
            ValueError: if the text does not stand there exactly once.
        """
        start, end = _lines(source, self.where) if self.where else (0, source.index("\nBUGS = "))
        part = source[start:end]
        first = self.old.partition("\n")[0]
        found = part.find(first)
        indent = " " * (len(part[:found]) - len(part[:found].rstrip(" ")))
        indent = indent if found == 0 or part[: found - len(indent)].endswith("\n") else ""
        old, new = (text.replace("\n", "\n" + indent) for text in (self.old, self.new))
        if part.count(old) != 1:
            where = f" in {self.where}" if self.where else ""
            raise ValueError(f"{self.old!r} stands {part.count(old)} times{where}, not once")
        return source[:start] + part.replace(old, new) + source[end:]


@dataclass(frozen=True)
class Specimen:
    """A bug in one setting."""

    file: str
    setting: str
    family: str
    words: str
    causes: tuple[str, ...]
    report: str
    edits: tuple[Edit, ...]
    bare: bool
    unseen: bool

    @property
    def name(self) -> str:
        """For tests and the record."""
        return f"{self.file}: {self.setting}: {self.words}"

    def make(self) -> Made:
        """The module with its bug."""
        return _edited(self.file, self.setting, self.edits)


def examine(thing: Made, *, claimed: bool) -> Report:
    """The report, with what its author would claim, or with no more than the call needs."""
    module, example, claims = thing
    kept = claims if claimed else {k: v for k, v in claims.items() if k == "keywords"}
    return diagnose(module, *example, **kept)


def verdict(bug: Report, twin: Report, causes: tuple[str, ...]) -> str:
    """Named, found or missed: by errors that the twin does not have."""
    own = set(bug.causes) - set(twin.causes)
    return "named" if own & set(causes) else "found" if own else "missed"


def healthy(report: Report) -> None:
    """Assert that a right module has no error, and that no check raised."""
    assert report
    assert not any("check raised" in x.why for x in report.not_judged), report


def made(build: Callable[..., Any], example: Callable[[], Any], claims: dict[str, Any]) -> Make:
    """A setting: what builds the module, an example of its call, and the claims."""

    def make() -> Made:
        module, given = build(), example()
        return module, given if isinstance(given, tuple) else (given,), claims

    return make


def settings(table: dict[str, tuple[Any, ...]]) -> dict[str, Make]:
    """Of what builds a module, an example of its call, and the claims."""
    return {name: made(*row) for name, row in table.items()}


def settings_of(file: str) -> dict[str, Make]:
    """What a file holds."""
    found: dict[str, Make] = import_module(f"benchmarks.doctor.specimens.{file}").SETTINGS
    return found


def right(file: str, setting: str) -> Made:
    """The module of a setting as it stands in its file."""
    return _made(settings_of(file)[setting])


def edited(file: str, setting: str, *edits: str) -> Made:
    """The module of a setting after edits that no row has: "old → new"."""
    return _edited(file, setting, map(_edit, edits))


def specimens(file: str) -> Iterator[Specimen]:
    """The rows of a file.

    Raises:
        ValueError: if a row has not five cells, or no edit.
    """
    rows: list[tuple[list[str], list[Edit]]] = []
    for line in import_module(f"benchmarks.doctor.specimens.{file}").BUGS.strip().splitlines():
        if line.startswith(" "):
            rows[-1][1].append(_edit(line.strip()))
        elif line:
            rows.append(([cell.strip() for cell in line.split("|")], []))
    for cells, edits in rows:
        if len(cells) != 5 or not edits:
            raise ValueError(f"a row has five cells and an edit, not {cells}")
        setting, family, words, causes, report = cells
        yield Specimen(
            file,
            setting,
            family.lstrip("!?"),
            words,
            tuple(cause.strip() for cause in causes.split(";") if cause.strip()),
            report,
            tuple(edits),
            bare="!" in family,
            unseen="?" in family,
        )


def bug(name: str) -> Specimen:
    """The one of this name: "decoders: nanogpt: no causal mask"."""
    return next(each for each in specimens(name.partition(":")[0]) if each.name == name)


def _edited(file: str, setting: str, edits: Iterable[Edit]) -> Made:
    source = _source(file)
    for edit in edits:
        source = edit.apply(source)
    module = import_module(f"benchmarks.doctor.specimens.{file}")
    namespace = {"__name__": module.__name__}  # where dataclasses look for their module
    exec(compile(source, str(module.__file__), "exec"), namespace)
    return _made(namespace["SETTINGS"][setting])


def _edit(line: str) -> Edit:
    old, arrow, new = line.partition("→")
    if not arrow:
        raise ValueError(f"an edit needs → between two texts, not {line!r}")
    where, colon, rest = old.partition(": ")
    where, old = (where, rest) if colon and where.isidentifier() else ("", old)
    old, new = (text.strip().replace("↵", "\n") for text in (old, new))
    return Edit(where, old, new.replace("…", old))


def _made(make: Make) -> Made:
    torch.manual_seed(0)
    module, example, claims = make()
    return module, example, dict(claims)


@cache
def _source(file: str) -> str:
    return (FOLDER / f"{file}.py").read_text("utf-8")


@cache
def _lines(source: str, name: str) -> tuple[int, int]:
    """Where a class or function begins and ends."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            lines = source.splitlines(keepends=True)
            end = sum(map(len, lines[: node.end_lineno]))
            return sum(map(len, lines[: node.lineno - 1])), end
    raise ValueError(f"no class or function {name!r}")
