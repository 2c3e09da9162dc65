"""Is a fingerprint sound? ``make soundness`` breaks the package and looks whether it is seen.

One operator, constant, argument or name at a time is changed in a copy of the code, anywhere in
what a study imports, or a class gets an override. Then the first row of the study is run. Where
its numbers change, its fingerprint has to have changed. An error is no other number: nobody takes
it for one, even where it comes from an import that the row does not need.
"""

import ast
import copy
import importlib
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from book.evidence.code import FOLDERS, Code
from book.evidence.ran import SILENT, Watch, fingerprint_of

STUDIES = {  # a case of each, with few steps
    "heads_sharing": ("own matrices (proper)", 20),
    "aw_weights": ("factor", 4),
    "bp_twins": ("torch", 4),
    "emb_reversal": (None, 4),
    "qkv_ring": (None, 4),
    "lm_sizes": (None, 4),
    "dates_training": (None, 4),
}
TIMEOUT = 60
SWAPS: dict[type[Any], type[Any]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.FloorDiv: ast.Mult,
}


class Break(NamedTuple):
    """A change of a module."""

    module: str
    what: str
    source: str


class Outcome(NamedTuple):
    """What a break did to a study."""

    broken: Break
    study: str
    moved: bool
    """Did the row give other numbers?"""
    raised: bool
    seen: bool
    """Did the fingerprint change?"""


def breaks(modules: dict[str, ast.Module], draw: random.Random) -> Iterator[Break]:
    """Breaks at random places of some modules, without end."""
    while True:
        name = draw.choice(sorted(modules))
        tree = copy.deepcopy(modules[name])
        node = draw.choice([*ast.walk(tree)])
        what = _broken(node, draw)
        if what:
            text = ast.unparse(ast.fix_missing_locations(tree))
            yield Break(name, f"line {getattr(node, 'lineno', '?')}: {what}", text)


def _broken(node: Any, draw: random.Random) -> str:
    """Break a node of a tree in place, and say how; nothing, if it is not of a kind to break."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            node.op = SWAPS[type(op)]()
            return f"{type(op).__name__} is {type(node.op).__name__}"
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPS:
            node.ops[0] = SWAPS[type(op)]()
            return f"{type(op).__name__} is {type(node.ops[0]).__name__}"
        case ast.Constant(value=bool(value)):
            node.value = not value
            return f"{value} is {not value}"
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
            return f"{value} is {value + 1}"
        case ast.Call(keywords=[_, *_]):
            gone = node.keywords.pop(draw.randrange(len(node.keywords)))
            return f"without {gone.arg}"
        case ast.Call(args=[_, _, *_]):
            node.args[0], node.args[1] = node.args[1], node.args[0]
            return "two arguments change places"
        case ast.Attribute(value=ast.Name("self")):
            node.attr += "_"
            return f"{node.attr} for {node.attr[:-1]}"
        case ast.ClassDef():
            method = draw.choice(("forward", "__init__", "__call__", "input", "bias"))
            node.body += ast.parse(f"def {method}(self, *a, **k): raise IndexError").body
            return f"class {node.name} has another {method}"
    return ""


def try_breaks(
    n: int, seed: int, tell: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Break the code ``n`` times, each time for the next of the studies."""
    draw, outcomes = random.Random(seed), []
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for path in FOLDERS.values():
            shutil.copytree(path, root / path, ignore=shutil.ignore_patterns("__pycache__"))
        (root / "_toc.yml").touch()
        code, sound = Code(root), {}
        for study in STUDIES:
            numbers, called = _row(root, study)
            assert called, f"study {study} does not run: {numbers}"
            reached = code.hashes(f"import studies.{study}")
            modules = [m for m in reached if ".book" not in m and m not in SILENT]
            trees = {name: code.tree(name) for name in modules}
            before = fingerprint_of(root, called, f"import studies.{study}")
            sound[study] = numbers, before, breaks(trees, draw)
        for i in range(n):
            study = [*STUDIES][i % len(STUDIES)]
            numbers, before, some = sound[study]
            broken = next(some)
            file = code.file(broken.module)
            assert file is not None
            whole = file.read_bytes()
            file.write_text(broken.source, encoding="utf-8")
            try:
                seen = fingerprint_of(root, before, f"import studies.{study}") != before
                now = _row(root, study)[0]
            finally:
                file.write_bytes(whole)
            raised = isinstance(now, str)
            outcomes.append(Outcome(broken, study, not raised and now != numbers, raised, seen))
            tell(outcomes[-1])
    return outcomes


def _row(root: Path, study: str) -> tuple[Any, list[str]]:
    """The numbers of a study's first row by the code at ``root``, or its error; what it called."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # a break costs its row, not torch's import
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_there, args=(root, study, theirs))
    process.start()
    answer: tuple[Any, list[str]] = "it takes too long", []
    if ours.poll(TIMEOUT):
        answer = ours.recv()
    process.kill()
    process.join()
    return answer


def _run_there(root: Path, study: str, pipe: Any) -> None:
    os.chdir(root)
    for name in [name for name in sys.modules if name.partition(".")[0] in FOLDERS]:
        del sys.modules[name]
    sys.path[:0] = [str(root / "src"), str(root)]
    sys.dont_write_bytecode = True
    case, steps = STUDIES[study]
    torch.set_num_threads(1)
    try:
        run = importlib.import_module("book.evidence.records")._run
        module = importlib.import_module(f"studies.{study}")
        case = case if case in module.SEEDS else next(iter(module.SEEDS))
        with Watch(root) as watch:
            numbers = run(study, case, 0, steps=steps)
        pipe.send((numbers, watch.called))
    except BaseException as error:  # an answer, too
        pipe.send((f"{type(error).__name__}: {error}"[:200], []))
    os._exit(0)


def main(arguments: list[str]) -> int:
    """``python -m book.evidence.soundness [N [SEED]]``; the exit code is 1 if a break is unseen."""
    n, seed = (int(each) for each in [*arguments, *("200", "0")[len(arguments) :]])

    def tell(outcome: Outcome) -> None:
        mark = "UNSEEN" if outcome.moved and not outcome.seen else "seen" if outcome.seen else "-"
        moved = "raises" if outcome.raised else "moves" if outcome.moved else "leaves"
        module, what, _ = outcome.broken
        print(f"{mark:6} {moved:6} {outcome.study:16} {module}, {what}", flush=True)

    tried = try_breaks(n, seed, tell)
    moved = [each for each in tried if each.moved]
    unseen = [each for each in moved if not each.seen]
    seen = sum(each.seen for each in tried)
    raised = sum(each.raised for each in tried)
    print(f"{len(tried)} breaks: {len(moved)} move a row, {raised} make it raise, {seen} are seen")
    print(f"{len(unseen)} move a row unseen")
    return bool(unseen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
