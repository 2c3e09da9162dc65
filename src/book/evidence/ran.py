"""Fingerprints of what ran: which of the project's functions some numbers came from, as text.

While a row of a study or a chapter runs, :class:`Watch` notes the functions that are called. What
:func:`fingerprint_of` makes of them holds a hash of each, and of what could change its meaning
without being called: the constants and classes that it names, what these are made of, and what
modules do to others when they are imported. It is computed from the text alone: to see whether a
record is of today's code, nothing is run. What a function does not call, it does not hang on.

Not counted are comments, docstrings, annotations, layout, and what stands inside ``raise`` and
``warnings.warn``.
"""

import ast
import atexit
import copy
import dis
import hashlib
import importlib
import inspect
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from book.evidence.code import FOLDERS, Code, code_hash, filled, find_root, names_read, parsed
from book.evidence.settings import Observer

MOVED: dict[str, str] = {"book.evidence.records": "attnbook.book.studies"}
"""What has another name than in the records: new -> old, of a module, or ``module:name``."""

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = FUNCTIONS | ast.ClassDef
MAKERS = ("__new__", "__init__", "__post_init__")

SILENT = (
    *(f"book.evidence.{name}" for name in ("ran", "code", "cells", "settings")),
    "attnbook.training.progress",
)
"""What only looks at code, or only shows: what is wrong there is an error, and no other number."""

HANDED_ON = ("__getattr__", "__dir__", "__all__")
"""Of a package: its names are followed to where they come from."""

Place = tuple[str, str]
"""A module, and the name of a function, class or constant in it."""


class Watch:
    """Notes the project's functions that are called inside the block, in any thread it starts."""

    def __init__(self, root: Path) -> None:
        self._packages = {name: str((root / path).resolve()) for name, path in FOLDERS.items()}
        self._codes: dict[int, Any] = {}
        self.observer = Observer()

    def __enter__(self) -> "Watch":
        self._before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if id(code) not in self._codes:
                self._codes[id(code)] = code
                self.observer.meet(code)
            self.observer.look(frame)

    @property
    def called(self) -> list[str]:
        """The functions, as ``module:name``; what is nested belongs to the one around it."""
        functions = set()
        for code in [*self._codes.values()]:  # of a watch that may go on
            name = code.co_qualname.partition(".<locals>")[0]
            if not code.co_flags & inspect.CO_OPTIMIZED or "<" in name:
                continue  # a class's body, or a module's
            for package, folder in self._packages.items():
                if code.co_filename.startswith(folder + os.sep):
                    module = _module(package, Path(code.co_filename).relative_to(folder))
                    functions.add(f"{module}:{name}")
        return sorted(functions)


def _module(package: str, path: Path) -> str:
    parts = [package, *path.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


CALLED = "ATTNBOOK_CALLED"
"""Environment variable of a chapter's kernel: where it writes, at its end, what it has met."""


def watch_kernel() -> None:
    """Watch until this process ends."""
    from IPython import get_ipython

    try:
        root = find_root()
    except FileNotFoundError:  # a notebook outside of the book
        root = Path()
    watch = Watch(root).__enter__()
    shell = get_ipython()
    shell.events.register("pre_run_cell", lambda cell: watch.observer.begin(cell.raw_cell))

    def write() -> None:
        noted = {"called": watch.called, "seen": watch.observer.seen}
        Path(os.environ[CALLED]).write_text(json.dumps(noted))

    atexit.register(write)


def clear_caches() -> None:
    """Forget what the library's and the studies' cached functions hold, so that they are called."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in FOLDERS and not name.startswith("book."):
            for each in [*vars(module).values()]:
                if clear := getattr(each, "cache_clear", None):
                    clear()


def fingerprint_of(root: Path, called: Iterable[str], source: str | ast.AST = "") -> dict[str, str]:
    """``module:name`` -> hash, of these functions and of what gives them their meaning.

    Args:
        root: of the checkout.
        called: the functions that ran; what an earlier fingerprint holds will do, too.
        source: code around them: its names count, its own text does not.
    """
    files = [file for folder in FOLDERS.values() for file in (root / folder).rglob("*.py")]
    states = ((str(file), file.stat()) for file in sorted(files))
    return _sources(root, tuple((n, s.st_mtime_ns, s.st_size) for n, s in states)).fingerprint(
        called, source
    )


@lru_cache(2)
def _sources(root: Path, _: object) -> "Sources":
    """One for all records, while no file changes."""
    return Sources(root)


class Module:
    """A module's text, taken apart: who binds which name, and what acts on others at import."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.bound: dict[str, list[ast.stmt]] = {}
        """Name -> the statements that bind it or change its value."""
        self.imports: dict[str, Place] = {}
        """Name -> where it comes from; a module itself has no name there."""
        self.acts: list[ast.stmt] = []
        for statement in tree.body:
            self._take(statement)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            return
        if isinstance(statement, DEFINITIONS):
            self._define(statement)
            return
        for node in _outside_functions(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports |= imports_of(node)
        # Of imports that are tried, the handlers say what is not installed.
        body = statement.body if isinstance(statement, ast.Try) else [statement]
        if not all(isinstance(each, ast.Import | ast.ImportFrom) for each in body):
            self._run(statement)

    def _define(self, statement: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.bound.setdefault(statement.name, []).append(statement)
        self.imports.pop(statement.name, None)
        if ours := [each for each in statement.decorator_list if self._is_ours(each)]:
            # It may register what it is given.
            self.acts.append(ast.ClassDef(statement.name, [], [], [ast.Pass()], ours))

    def _run(self, statement: ast.stmt) -> None:
        binds, changes = stored(statement), filled(statement)
        for name in binds | changes:
            self.bound.setdefault(name, []).append(statement)
        for name in binds & self.imports.keys():
            del self.imports[name]
        by_name = any(
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            for node in _outside_functions(statement)
        )
        acts = by_name or not binds | changes
        if changes & self.imports.keys() or (acts and not _says_nothing(statement)):
            self.acts.append(statement)

    def _is_ours(self, decorator: ast.expr) -> bool:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        root = _dotted(node).partition(".")[0]
        home = self.imports.get(root, ("attnbook" if root in self.bound else "", ""))[0]
        return home.partition(".")[0] in FOLDERS


def _outside_functions(statement: ast.stmt) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FUNCTIONS | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):  # if __name__ == "__main__"
        return "__main__" in ast.unparse(statement.test)
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def imports_of(node: ast.Import | ast.ImportFrom) -> dict[str, Place]:
    """What an import binds: name -> module and name there."""
    if isinstance(node, ast.Import):
        return {
            each.asname or each.name.partition(".")[0]: (
                each.name if each.asname else each.name.partition(".")[0],
                "",
            )
            for each in node.names
        }
    return {each.asname or each.name: (node.module or "", each.name) for each in node.names}


def stored(statement: ast.stmt) -> set[str]:
    """The global names that a statement binds, imports apart."""
    code = compile(ast.Module([statement], []), "statement", "exec")
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}
    for node in _outside_functions(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names -= imports_of(node).keys()
    return names


class Sources:
    """The project's code as text, from a checkout at ``root``."""

    def __init__(self, root: Path) -> None:
        self.code = Code(root)
        self.module = cache(self._module)
        self.resolve = cache(self._resolve)
        self.part = cache(self._part)

    def fingerprint(self, called: Iterable[str], source: str | ast.AST = "") -> dict[str, str]:
        """See :func:`fingerprint_of`."""
        tree = ast.parse(source) if isinstance(source, str) else source
        assert isinstance(tree, ast.Module)
        own = Module("", tree)
        waiting = [_place(each) for each in called]
        modules = [place[0] for place in own.imports.values()]
        waiting += self._behind(self._names(own, tree.body), [], at_import=False)
        hashes: dict[str, str] = {}
        while waiting:
            place = waiting.pop()
            key = _key(place)
            if key in hashes or place[0] in ("", *SILENT) or place[1] in HANDED_ON:
                continue  # "": a name of the source's own
            part = self.part(place)
            if part is None:
                hashes[key] = "missing"
                continue
            hashes[key], behind = part
            waiting += behind
            modules.append(place[0])
        return dict(sorted((hashes | self._acts(modules)).items()))

    def _module(self, name: str) -> Module | None:
        path = self.code.file(name)
        return None if path is None else Module(name, parsed(path.read_bytes()))

    def _acts(self, modules: Iterable[str]) -> dict[str, str]:
        """Of all modules that are imported: what they do to others then."""
        hashes: dict[str, str] = {}
        seen: set[str] = set()
        waiting = list(modules)
        while waiting:
            name = waiting.pop()
            if name in seen or (module := self.module(name)) is None:
                continue
            seen.add(name)
            for of, what in module.imports.values():
                place = self.resolve(of, what)
                waiting += [of, *([place[0]] if place else [])]
            if module.acts:
                hashes[_key((name, ""))] = _hash(map(meaning, module.acts))
        return hashes

    def _resolve(self, module: str, name: str) -> Place | None:
        """Where a name of a module comes from; None if it is none of the project's."""
        text = self.module(module)
        if text is None:
            return None
        if not name:
            return module, ""
        if name in text.bound:
            return module, name
        if text.imports.get(name, (module, name)) != (module, name):
            return self.resolve(*text.imports[name])
        if self.code.file(f"{module}.{name}") is not None:
            return f"{module}.{name}", ""
        handed_on = self.code.exports(module)
        return self.resolve(*handed_on[name]) if name in handed_on else None

    def _part(self, place: Place) -> tuple[str, list[Place]] | None:
        """The hash of a function, class or constant, and what else gives it its meaning."""
        module, nodes = self._defined(place)
        if module is None or not nodes:
            return None
        parts = [without_words(self._skeleton(module, node)) for node in nodes]
        names = self._names(module, parts)
        # What an import inside binds is noted by what it stands for.
        lines = [code_hash(_WithoutImports().visit(copy.deepcopy(part))) for part in parts]
        lines += [f"{name} is {_key(of) if of else origin}" for name, (of, origin) in names.items()]
        *outer, _ = place[1].split(".")
        behind = [(place[0], ".".join(outer[: i + 1])) for i in range(len(outer))]
        at_import = not any(isinstance(node, FUNCTIONS) for node in nodes)
        return _hash(lines), behind + self._behind(names, parts, at_import)

    def _defined(self, place: Place) -> tuple[Module | None, list[ast.stmt]]:
        """A place's module, and the statements that make what is there."""
        module = self.module(place[0])
        first, *rest = place[1].split(".")
        nodes = [] if module is None else module.bound.get(first, [])
        for name in rest:
            inside = [
                each for node in nodes if isinstance(node, ast.ClassDef) for each in node.body
            ]
            nodes = [e for e in inside if isinstance(e, DEFINITIONS) and e.name == name]
        return module, nodes

    def _skeleton(self, module: Module, node: ast.stmt) -> ast.stmt:
        """Of a class all but its methods, and the names of those that hide another's."""
        if not isinstance(node, ast.ClassDef):
            return node
        inherited = [self._methods(module, base) for base in node.bases]
        twice = {name for i, some in enumerate(inherited) for name in some & _all(inherited[:i])}
        body: list[ast.stmt] = [ast.Global([name]) for name in sorted(twice)]
        for each in node.body:
            if not isinstance(each, DEFINITIONS):
                body.append(each)
            elif each.name.startswith("__") or each.name in _all(inherited):
                body.append(ast.Global([each.name]))
        body = body or [ast.Pass()]
        return ast.ClassDef(node.name, node.bases, node.keywords, body, node.decorator_list)

    def _methods(self, module: Module, base: ast.expr) -> set[str]:
        """The names that a base class has; all objects' own aside."""
        base = base.value if isinstance(base, ast.Subscript) else base
        place, origin = self._named(module, module.imports, ast.unparse(base))
        if place is None:
            return set(dir(_foreign(origin))) - set(dir(object))
        home, nodes = self._defined(place)
        assert home is not None
        names = set()
        for each in nodes:
            if isinstance(each, ast.ClassDef):
                names |= {part.name for part in each.body if isinstance(part, DEFINITIONS)}
                names |= _all(self._methods(home, base) for base in each.bases)
        return names

    def _named(
        self, module: Module, imports: Mapping[str, Place], dotted: str
    ) -> tuple[Place | None, str]:
        """What a name stands for, ``f`` or ``module.f``: one of the project's, or another's."""
        name, *rest = dotted.split(".")
        if name in imports:
            of, what = imports[name]
            place = self.resolve(of, what)
            while place and not place[1] and rest:
                place = self.resolve(place[0], rest.pop(0))
            return place, ".".join(filter(None, (of, what, *rest)))
        return ((module.name, name), "") if name in module.bound else (None, dotted)

    def _names(
        self, module: Module, parts: Iterable[ast.stmt]
    ) -> dict[str, tuple[Place | None, str]]:
        """What the global names in some statements stand for; Python's own aside."""
        meanings = {}
        for part in parts:
            imports, names = dict(module.imports), reads_of(part)
            for node in ast.walk(part):
                if isinstance(node, ast.Import | ast.ImportFrom):  # inside a function
                    imports |= imports_of(node)
                    names |= imports_of(node).keys()
            attributes = (_dotted(n) for n in ast.walk(part) if isinstance(n, ast.Attribute))
            chains = {c for c in attributes if c.partition(".")[0] in names & imports.keys()}
            for name in sorted(names | chains):
                place, origin = self._named(module, imports, name)
                if name in names or (place and place[1]):
                    meanings[name] = place, origin
        return {name: what for name, what in meanings.items() if what != (None, name)}

    def _behind(
        self,
        names: Mapping[str, tuple[Place | None, str]],
        parts: Iterable[ast.stmt],
        at_import: bool,
    ) -> list[Place]:
        """The constants and classes that statements name; whom they call at import, unwatched."""
        calls = [d for part in parts for d in getattr(part, "decorator_list", [])]
        if at_import:
            calls += [
                node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)
            ]
        called = {_dotted(each.func if isinstance(each, ast.Call) else each) for each in calls}
        places = []
        for name, (place, _) in names.items():
            if place is None or not place[1]:
                continue
            _, nodes = self._defined(place)
            if not any(isinstance(each, FUNCTIONS) for each in nodes):
                places.append(place)
                makers = [(place[0], f"{place[1]}.{maker}") for maker in MAKERS]
                places += [each for each in makers if name in called and self._defined(each)[1]]
            elif name in called:
                places += self._called_by(place)
        return places

    def _called_by(self, place: Place, *around: Place) -> list[Place]:
        """A function, and those that it names, and those that these name."""
        module, nodes = self._defined(place)
        assert module is not None
        places = [place]
        if any(isinstance(node, FUNCTIONS) for node in nodes) and place not in around:
            for named, _ in self._names(module, map(without_words, nodes)).values():
                if named and named[1]:
                    places += self._called_by(named, place, *around)
        return places


def _all(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` of names alone; else nothing."""
    if isinstance(node, ast.Attribute):
        start = _dotted(node.value)
        return f"{start}.{node.attr}" if start else ""
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _foreign(dotted: str) -> object:
    """A class of another package, or of Python's; an empty one if there is none."""
    module, _, name = dotted.rpartition(".")
    try:
        return getattr(importlib.import_module(module or "builtins"), name)
    except (ImportError, AttributeError):
        return object


def reads_of(node: ast.stmt) -> set[str]:
    """The global names that a statement reads, and the functions in it."""
    code = compile(ast.fix_missing_locations(ast.Module([node], [])), "part", "exec")
    names: set[str] = set()
    for step in dis.get_instructions(code):
        names |= set(names_read(step))
    return names - {getattr(node, "name", "")}


class _WithoutImports(ast.NodeTransformer):
    def visit_Import(self, node: ast.Import) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)


class _WithoutWords(ast.NodeTransformer):
    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.copy_location(ast.Raise(kind, None), node)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Constant):
            return ast.copy_location(ast.Pass(), node)
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "warnings.warn":
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.copy_location(ast.arg(node.arg), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        # A field of a dataclass is a field with or without its type.
        written = ast.unparse(node.annotation)
        kept = [word for word in ("ClassVar", "InitVar", "KW_ONLY") if word in written]
        annotation = ast.Constant(" ".join(kept))
        value = None if node.value is None else self.visit(node.value)
        return ast.copy_location(ast.AnnAssign(node.target, annotation, value, node.simple), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        self.generic_visit(node)
        node.returns = None
        return node


def without_words(node: ast.stmt) -> ast.stmt:
    """A copy without docstrings, annotations and what is said to people."""
    bare = _WithoutWords().visit(copy.deepcopy(node))
    assert isinstance(bare, ast.stmt)
    return ast.fix_missing_locations(bare)


def meaning(node: ast.stmt) -> str:
    """Hash of what a statement does."""
    return code_hash(without_words(node))


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _key(place: Place) -> str:
    """A place's name in the records."""
    key = f"{place[0]}:{place[1]}"
    for new, old in MOVED.items():
        if key == new or key.startswith((f"{new}:", f"{new}.")):
            return old + key.removeprefix(new)
    return key


def _place(key: str) -> Place:
    """Where what is called so in the records is today."""
    for new, old in MOVED.items():
        if key == old or key.startswith((f"{old}:", f"{old}.")):
            key = new + key.removeprefix(old)
            break
    module, _, name = key.partition(":")
    return module, name
