"""The book's chapters, and what the outputs of each hang on."""

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import yaml
from nbformat import NotebookNode

from attnbook.tasks.text import fingerprint, python_topics
from book.evidence.arithmetic import EXECUTED, arithmetic
from book.evidence.cells import Cell, files_behind, hash_needed
from book.evidence.claims import METADATA_KEY
from book.evidence.code import Code, code_hash
from book.evidence.listings import LISTING_KEY, listing
from book.evidence.ran import fingerprint_of
from book.evidence.records import (
    StudyError,
    checked_record,
    differences,
    hash_shown,
    record_path,
    studies_of,
    waits_for_gpu,
)

# Packages whose version makes digits, or drawings.
DRAWING_PACKAGES = ("torch", "numpy", "tokenizers", "matplotlib")


class BuildError(Exception):
    """What stops a command; the message is for the person at the terminal."""


def sources() -> list[Path]:
    """The files that ``_toc.yml`` names, in the book's order."""
    toc = yaml.safe_load(Path("_toc.yml").read_text(encoding="utf-8"))
    named = [Path(f"{name}{suffix}") for name in _files(toc) for suffix in (".md", ".ipynb")]
    return [path for path in named if path.exists()]


def chapters() -> list[Path]:
    """The notebooks among them."""
    return [path for path in sources() if path.suffix == ".ipynb"]


def _files(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("file", "root"):
                yield value
            else:
                yield from _files(value)
    elif isinstance(node, list):
        for each in node:
            yield from _files(each)


def choose(only: Sequence[str]) -> list[Path]:
    """The chapters with these names; all, if none is named."""
    known = {path.stem: path for path in chapters()}
    if unknown := [name for name in only if name not in known]:
        raise BuildError(
            f"no chapter is called {' or '.join(unknown)}; there are {', '.join(known)}"
        )
    return [path for name, path in known.items() if not only or name in only]


def read(path: Path) -> NotebookNode:
    """A chapter's notebook."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """A notebook's cells that hold code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tree_of(cells: Sequence[NotebookNode]) -> ast.Module:
    """A chapter's code, parsed."""
    return ast.parse("\n".join(cell.source for cell in cells))


def cells_fingerprint(cells: Sequence[NotebookNode]) -> str:
    """Hash of a chapter's code; its comments are not part of what comes out."""
    code = [code_hash(cell.source) for cell in cells]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:12]


def studies_in(path: Path) -> list[str]:
    """The studies that a chapter reads."""
    return studies_of(tree_of(code_cells(read(path))))


def claims_of(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The claims of an executed notebook, in order.

    Each with the committed files behind its numbers, and a hash of the cells that it hangs on.
    """
    cells = code_cells(notebook)
    codes = [Cell(cell.source) for cell in cells]
    claims: list[dict[str, Any]] = []
    for i, files in enumerate(files_behind(cells, EXECUTED.parent, Path())):
        outputs = [each.get("metadata", {}) for each in cells[i].outputs]
        stated = [each[METADATA_KEY] for each in outputs if METADATA_KEY in each]
        behind = {"files": files, "cell": hash_needed(codes, i)} if stated else {}
        claims += [each | behind for each in stated]
    return claims


def made_from(path: Path, called: Iterable[str]) -> dict[str, str]:
    """What a chapter's outputs hang on, by name: its cells, records, files, packages.

    And what ran of the project's code: the functions that were called, and what is behind them.
    """
    cells = code_cells(read(path))
    tree = tree_of(cells)
    hashes = {"its code": cells_fingerprint(cells)} | fingerprint_of(Path(), called, tree)
    for name in studies_of(tree):
        record = record_path(name)
        hashes[str(record)] = hash_shown(record) if record.exists() else "missing"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and str(node.value).endswith(".json"):
            file = path.parent / str(node.value)
            hashes |= {str(file): file_hash(file)} if file.is_file() else {}
    pins = re.findall(r"^([\w-]+)==(\S+)", Path("requirements.txt").read_text(), re.MULTILINE)
    hashes |= {name: version for name, version in pins if name in DRAWING_PACKAGES}
    for cell in cells:
        for output in cell.outputs:
            for name in output.get("metadata", {}).get(LISTING_KEY, []):
                shown = listing(name, Path()) or "missing"
                hashes[f"the listing of {name}"] = hashlib.sha256(shown.encode()).hexdigest()[:12]
    return hashes


def reached_by(path: Path) -> dict[str, str]:
    """Hashes of a chapter's code and of all modules that it reaches, whether they run or not."""
    cells = code_cells(read(path))
    return {"its code": cells_fingerprint(cells)} | Code(Path()).hashes(tree_of(cells))


def out_of_date(path: Path) -> list[str]:
    """What changed since a chapter's outputs were made; nothing, if they are today's."""
    known = executed().get(path.stem)
    if known is None or any(cell.execution_count is None for cell in code_cells(read(path))):
        return ["its outputs are missing"]
    before = known["made_from"]
    called = [name for name in before if ":" in name]
    return [f"{name} changed" for name in differences(before, made_from(path, called))]


def executed() -> dict[str, dict[str, Any]]:
    """What is noted of each chapter's committed outputs."""
    return noted_in(EXECUTED)


@cache
def measured_under() -> dict[str, str]:
    """What the last digits hang on here: the arithmetic, and Python's help texts."""
    return {"arithmetic": arithmetic(), "text": fingerprint(python_topics())}


def records_at_fault(paths: Sequence[Path]) -> dict[str, str]:
    """Of the records that these chapters read, those not whole or not of today's code, and why."""
    wrong = {}
    for name in sorted({name for path in paths for name in studies_in(path)}):
        if waits_for_gpu(Path(), name):
            continue
        try:
            checked_record(Path(), name, record_path(name))
        except StudyError as error:
            wrong[name] = str(error)
    return wrong


def check_records(paths: Sequence[Path]) -> None:
    """See that the records these chapters read are whole and of today's code.

    Raises:
        BuildError: if not; names them and says what to run.
    """
    if wrong := records_at_fault(paths):
        raise BuildError("\n".join(wrong.values()))


def file_hash(path: Path) -> str:
    """Twelve digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def noted_in(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing, if there is none."""
    noted: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return noted
