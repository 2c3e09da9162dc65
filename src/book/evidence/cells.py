"""What a cell is for, what it hangs on, and what is behind its claims: files, rows, settings."""

import ast
import dis
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from book.evidence.code import Code, code_hash, filled, names_read, parsed
from book.evidence.records import studies_of
from book.evidence.settings import Seen, Setting, distinct

FOLDED = {
    "imports": "Imports",
    "plot": "Code of the figure",
    "claims": "Code that checks this",
    "harness": "Code that measures this",
}
"""Tag of a cell -> what its folded code is called on the page. Cells without one stand open."""


def tag_of(cell: NotebookNode) -> str | None:
    """The cell's tag among :data:`FOLDED`."""
    return next((tag for tag in cell.metadata.get("tags", []) if tag in FOLDED), None)


def required_tag(cell: NotebookNode) -> str | None:
    """The tag that a code cell must have by what it does; None: its author decides.

    A cell that draws is a ``plot``; one that mostly states claims, ``claims``; one that mostly
    imports, ``imports``.
    """
    if any(kind.startswith("image/") for each in cell.outputs for kind in each.get("data", {})):
        return "plot"
    statements = ast.parse(cell.source).body
    lines = sum(map(_lines, statements))
    if 2 * sum(_lines(each) for each in statements if _states_claims(each)) > lines:
        return "claims"
    if 2 * sum(_lines(each) for each in statements if _imports(each)) > lines:
        return "imports"
    return None


DEEP = 3
"""Statements from a claim back to what was measured: farther away are other models."""


class Statements:
    """Code of a chapter or a module, statement by statement: what the value of each name hangs on.

    Names are followed as Python binds them: through helpers that read a global later, through
    ``table[key] = …`` and ``rows.append(…)``, and through what is imported from the book's own
    modules. A local variable of a function is no global, whatever it is called.
    """

    def __init__(self, folder: Path, code: Code) -> None:
        self.folder = folder
        self.code = code
        self.files: dict[str, set[str]] = {}
        """Committed files that a name's value reaches."""
        self.later: dict[str, set[str]] = {}
        """What a function reads when it is called."""
        self.fills: dict[str, set[str]] = {}
        """What a function fills when it is called."""
        self.imported: set[str] = set()

    def run(self, statement: ast.stmt) -> set[str]:
        """Take in a statement; return the names it reads, through helpers too."""
        module = ast.Module([statement], [])
        reads: set[str] = set()
        binds: set[str] = set()
        for step in dis.get_instructions(compile(module, "statement", "exec")):
            if step.opname == "STORE_NAME":
                binds.add(step.argval)
            else:
                reads |= set(names_read(step))
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._import(statement)
            return set()
        own = self._files_in(statement)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            self.later[statement.name] = reads - {statement.name}
            self.files[statement.name] = own
            self.fills[statement.name] = filled(statement) - locals_of(statement)
            return set()
        reached = self._reached(reads)
        files = own.union(*(self.files.get(name, set()) for name in reached))
        filling = filled(statement).union(*(self.fills.get(name, set()) for name in reached))
        for name in binds:
            self.files[name] = set(files)
            self.later.pop(name, None)
        for name in filling - self.imported:
            self.files[name] = self.files.get(name, set()) | files
        self.reached_files = files
        return reached

    def of(self, name: str) -> set[str]:
        """The files that a name's value reaches."""
        return set().union(*(self.files.get(each, set()) for each in self._reached({name})))

    def _reached(self, names: Iterable[str]) -> set[str]:
        reached: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self.later.get(name, ())
        return reached

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        for each in statement.names:
            name = each.asname or each.name.partition(".")[0]
            self.imported.add(name)
            self.later.pop(name, None)
            self.files[name] = set()
            if isinstance(statement, ast.ImportFrom):
                self.files[name] = _files_of(self.code, statement.module or "", each.name)

    def _files_in(self, statement: ast.stmt) -> set[str]:
        """The records and other committed files that a statement names itself."""
        files = {f"studies/{name}.json" for name in studies_of(statement)}
        texts = (
            node.value
            for node in ast.walk(statement)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        for text in texts:
            if re.fullmatch(r"[\w./-]*\.(json|safetensors)", text):
                stem = "*" if text.startswith(".") else ""
                for root in (self.folder, self.code.root):
                    files |= {
                        path.relative_to(self.code.root).as_posix()
                        for path in root.glob(stem + text)
                    }
        return files


def _files_of(code: Code, module: str, name: str) -> set[str]:
    """The committed files that a name of one of the book's modules reaches."""
    if name in ("claim", "seeds", "study", "show_source", "use_style"):
        return set()
    if module.partition(".")[0] != "book":
        return set()
    path = code.file(f"{module}.{name}")
    whole = path is not None
    path = path or code.file(module)
    if path is None:
        return set()
    if not whole and name in (exports := code.exports(module)):
        return _files_of(code, *exports[name])
    names = _files_of_names(code.root, path, path.read_bytes())
    return set().union(*names.values()) if whole else names.get(name, set())


@cache
def _files_of_names(root: Path, path: Path, source: bytes) -> dict[str, set[str]]:
    """For each name of a module the committed files that it reaches."""
    statements = Statements(path.parent, Code(root))
    for statement in parsed(source).body:
        statements.run(statement)
    return {name: statements.of(name) for name in statements.files}


def files_behind(cells: Iterable[NotebookNode], folder: Path, root: Path) -> Iterator[list[str]]:
    """For each code cell of a chapter the committed files that its claims' numbers reach.

    They are records of studies, timings, what other libraries start with, trained weights. Where
    there are some, the claim is no test of another seed unless the file is made anew, too.
    """
    statements = Statements(folder, Code(root))
    for cell in cells:
        files: set[str] = set()
        for statement in ast.parse(cell.source).body:
            if "claim" in statements.run(statement):
                files |= statements.reached_files
        yield sorted(files)


class Cell:
    """A cell's code, the global names that it reads before it binds them, those, and what it fills.

    A loop's variable, say, comes from the cell itself, whoever else has one of this name.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.reads: set[str] = set()
        self.binds: set[str] = set()
        for step in dis.get_instructions(compile(source, "cell", "exec")):
            if step.opname == "STORE_NAME":
                self.binds.add(step.argval)
            else:
                self.reads |= set(names_read(step)) - self.binds
        self.fills = set().union(*map(filled, ast.parse(source).body))

    @cached_property
    def hash(self) -> str:
        """Hash of what the cell does: imports, and the words of a claim, are no part of it."""
        tree = ast.parse(self.source)
        tree.body = [each for each in tree.body if not _imports(each)]
        for node in ast.walk(tree):
            match node:
                case ast.Call(ast.Name("claim"), [_, *_]):
                    node.args[0] = ast.Constant("")
        return code_hash(tree)


def needed(cells: Sequence[Cell], last: int) -> list[Cell]:
    """The cells that cell ``last`` hangs on, and itself."""
    chosen, names = [cells[last]], set(cells[last].reads)
    for cell in reversed(cells[:last]):
        if (cell.binds | cell.fills) & names:
            chosen.append(cell)
            names = (names - (cell.binds - cell.fills)) | cell.reads
    return chosen[::-1]


def hash_needed(cells: Sequence[Cell], last: int) -> str:
    """Hash of what a cell hangs on within its chapter."""
    hashes = " ".join(cell.hash for cell in needed(cells, last))
    return hashlib.sha256(hashes.encode()).hexdigest()[:12]


def behind(seen: Iterable[Seen]) -> dict[str, Any]:
    """The settings that were met in a chapter; of each claim their numbers, and the rows it reads.

    A number that knows its rows hangs on these alone. Of others it is what was met in the claim's
    statement since the claim before; if that is nothing, in those that made what it reads; where
    one of these met nothing, in those that made what it reads, and once more.
    """
    statements: list[Cell] = []
    met: list[list[Seen]] = []
    """What was met in each statement."""
    at: dict[int, int] = {}
    """Line of the cell -> the statement."""
    stated: list[tuple[str, list[list[str]], list[Seen], int]] = []
    for kind, what, line in seen:
        if kind == "cell":
            at = {}
            for each in ast.parse(what).body:
                at |= dict.fromkeys(range(each.lineno, (each.end_lineno or 0) + 1), len(statements))
                statements.append(Cell(ast.unparse(each)))
                met.append([])
        elif line not in at:
            continue
        elif kind == "claim":
            before = [i for i, (kind, _, _) in enumerate(met[at[line]]) if kind == "claim"]
            since = met[at[line]][before[-1] + 1 if before else 0 :]
            stated.append((*what, since, at[line]))
        if kind != "cell":
            met[at[line]].append((kind, what, line))
    settings: dict[str, Setting] = {}
    claims = {}
    for label, rows, own, last in stated:
        made_by = {last}
        for _ in range(0 if rows or own else DEEP):
            made_by = {i for each in made_by for i in _makers(statements, each)}
            own += [each for i in sorted(made_by) for each in met[i]]
            made_by -= {i for i in made_by if met[i]}
        rows = rows or [what for kind, what, _ in own if kind == "read"]
        cases: dict[str, list[str]] = {}
        for study, case in sorted({(study, case) for study, case in rows}):
            cases.setdefault(study, []).append(case)
        met_here = [] if rows else distinct(what for kind, what, _ in own if kind == "setting")
        keys = {json.dumps(each): each for each in met_here}
        settings |= {key: each for key, each in keys.items() if key not in settings}
        places = [*settings]
        claims[label] = {"rows": cases, "settings": [places.index(key) for key in keys]}
    return {"settings": [*settings.values()], "claims": claims}


def _makers(statements: Sequence[Cell], last: int) -> Iterator[int]:
    """The statements that bind or fill the names that one reads."""
    names = set(statements[last].reads)
    for i in reversed(range(last)):
        if (statements[i].binds | statements[i].fills) & names:
            yield i
            names -= statements[i].binds - statements[i].fills


def locals_of(function: ast.stmt) -> set[str]:
    """Arguments and variables of a function."""
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return names | {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _states_claims(node: ast.stmt) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "claim"
        for each in ast.walk(node)
    )
