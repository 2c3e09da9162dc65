"""Which of the project's code a piece of Python reaches, and hashes of it: nothing is run.

Whole modules, for what is not yet a record: rows that are kept, and workers' checkouts; records and
chapters hang on what ran (``ran.py``). Imports are followed name by name, so what takes
``LanguageModel`` from ``attnbook`` reaches the modules behind it and not the others.
Comments, docstrings and layout do not count.
"""

import ast
import dis
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType

FOLDERS = {
    "attnbook": Path("src/attnbook"),
    "book": Path("src/book"),
    "studies": Path("studies"),
}
"""Where the project's packages lie, from the root of the repository."""


class Code:
    """The project's modules, read as text from a checkout at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = cache(self._tree)
        self.hash = cache(self._hash)
        self.exports = cache(self._exports)
        self.imports = cache(self._imports)

    def file(self, module: str) -> Path | None:
        """The module's file; None if it is not one of the project's."""
        package, _, rest = module.partition(".")
        if package not in FOLDERS:
            return None
        path = self.root / FOLDERS[package]
        path = path.joinpath(*rest.split(".")) if rest else path
        for each in (path / "__init__.py", path.with_suffix(".py")):
            if each.is_file():
                return each
        return None

    def hashes(self, source: str | ast.AST) -> dict[str, str]:
        """Module -> hash, for all modules that ``source`` reaches through its imports."""
        reached: set[str] = set()
        waiting = list(self._named(source))
        while waiting:
            module = waiting.pop()
            if module not in reached:
                reached.add(module)
                waiting += self.imports(module)
        return {module: self.hash(module) for module in sorted(reached)}

    def _tree(self, module: str) -> ast.Module:
        path = self.file(module)
        assert path is not None, module
        return parsed(path.read_bytes())

    def _hash(self, module: str) -> str:
        path = self.file(module)
        assert path is not None, module
        return hash_of_bytes(path.read_bytes())

    def _imports(self, module: str) -> list[str]:
        return list(self._named(self.tree(module), module))

    def _exports(self, package: str) -> dict[str, tuple[str, str]]:
        """What a package's ``__init__`` only hands on: name -> (module, name there)."""
        path = self.file(package)
        if path is None or path.name != "__init__.py":
            return {}
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(self.tree(package))  # some are imported for type checkers alone
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
            for alias in node.names
        }

    def _named(self, source: str | ast.AST, module: str = "") -> Iterator[str]:
        """The modules that the import statements in ``source`` lead to."""
        tree = ast.parse(source) if isinstance(source, str) else source
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names if self.file(each.name))
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    raise ValueError(f"{module}: the project's imports are absolute")
                for each in node.names:
                    yield from self._resolve(node.module or "", each.name)

    def _resolve(self, module: str, name: str) -> Iterator[str]:
        if self.file(module) is None:
            return
        if self.file(f"{module}.{name}") is not None:
            yield f"{module}.{name}"
        elif name in self.exports(module) and self.file(self.exports(module)[name][0]):
            yield from self._resolve(*self.exports(module)[name])
        else:
            yield module


# Kept by content: every record and chapter asks for the same modules.
@cache
def parsed(code: bytes) -> ast.Module:
    """A module's tree."""
    return ast.parse(code)


@cache
def hash_of_bytes(code: bytes) -> str:
    """:func:`code_hash` of a module."""
    return code_hash(parsed(code))


def code_hash(code: str | ast.AST) -> str:
    """Hash of what code does: the same for other comments, docstrings, layout, Python versions."""
    tree = ast.parse(code) if isinstance(code, str) else code
    return hashlib.sha256("\n".join(_lines(tree)).encode()).hexdigest()[:12]


def _lines(node: ast.AST) -> Iterator[str]:
    """The tree without positions and docstrings; empty fields, which versions add, are left out."""
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                continue  # a docstring, of a module, function, class or constant
            if isinstance(part, ast.AST):
                yield name
                yield from _lines(part)
            elif part is not None or (isinstance(node, ast.Constant) and name == "value"):
                yield f"{name}={part!r}"
    yield ")"


def names_read(step: dis.Instruction) -> Iterator[str]:
    """The global names that a step reads, or the function that it makes."""
    if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
        yield step.argval
    elif isinstance(step.argval, CodeType):
        for inner in dis.get_instructions(step.argval):
            yield from names_read(inner)


def filled(statement: ast.stmt) -> set[str]:
    """The names whose value a statement changes: ``a[0] = …``, ``a.b = …``, ``a.add(…)``."""
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            target: ast.AST = node
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            target = node.value.func
        else:
            continue
        while isinstance(target, ast.Subscript | ast.Attribute | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
            if isinstance(target, ast.Name):
                names.add(target.id)
    return names


def find_root(start: Path | None = None) -> Path:
    """The checkout that a folder is in (the working directory): the first with a ``_toc.yml``.

    Raises:
        FileNotFoundError: if there is none.
    """
    start = (start or Path()).resolve()
    for folder in (start, *start.parents):
        if (folder / "_toc.yml").is_file():
            return folder
    raise FileNotFoundError(f"{start} is not inside a copy of the book's repository (no _toc.yml)")
