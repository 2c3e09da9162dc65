"""What some numbers hang on: what was called and what gives it its meaning, and nothing else."""

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from built import ROOT

from book.evidence import ran, soundness
from book.evidence.code import FOLDERS
from book.evidence.ran import Watch, clear_caches, fingerprint_of
from book.press import contents

FILES = {
    "src/attnbook/__init__.py": """
from typing import TYPE_CHECKING
import importlib
if TYPE_CHECKING:
    from attnbook.layers import Layer
__all__ = ["Layer"]
def __getattr__(name):
    return getattr(importlib.import_module("attnbook.layers"), name)
""",
    "src/attnbook/masks.py": '''
import warnings
from functools import cache

SIZE = 3
TABLE = {"size": SIZE}
TABLE["more"] = 4

def causal(n: int) -> list:
    """A mask."""
    if n < 0:
        raise ValueError(f"n is negative: {n} key")
    if n > 100:
        warnings.warn("slow")
    return [TABLE["size"]] * n

@cache
def kept(n):
    return n + TABLE["more"]

def unused(n):
    return n - 1
''',
    "src/attnbook/layers.py": """
from dataclasses import dataclass
from attnbook.masks import causal, kept

def double(f):
    def inner(*args):
        return 2 * f(*args)
    return inner

@dataclass
class Config:
    width: int = 4

class Base:
    scale = 5
    def forward(self, x):
        return self.scale * x

class Layer(Base):
    def __init__(self, config):
        self.config = config
    def run(self, x):
        def inner(y):
            return y + self.config.width
        return max(0, inner(self.forward(x))) + sum(causal(2)) + kept(1)
    def spare(self):
        return 0

class Other(Base):
    pass

@double
def doubled(x):
    return x
""",
    "studies/__init__.py": "",
    "studies/one.py": """
from attnbook import Layer
from attnbook.layers import Config, Other, doubled

CASES = {"a": 1}

def run(seed, case):
    from attnbook.masks import SIZE
    value = Layer(Config()).run(CASES[case]) + Other().forward(seed)
    return {"value": value + doubled(SIZE)}
""",
}
MASKS, LAYERS, STUDY = (
    "src/attnbook/masks.py",
    "src/attnbook/layers.py",
    "studies/one.py",
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small project; its packages take the place of ours."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ours = {k: v for k, v in sys.modules.items() if k.partition(".")[0] in ("attnbook", "studies")}
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield tmp_path
    for name in [k for k in sys.modules if k.partition(".")[0] in ("attnbook", "studies")]:
        del sys.modules[name]
    sys.modules.update(ours)


def called_by_a_row(root: Path) -> list[str]:
    run = importlib.import_module("studies.one").run
    clear_caches()
    with Watch(root) as watch:
        assert run(1, "a") == {"value": 31}
    return watch.called


@pytest.fixture
def called(root: Path) -> list[str]:
    return called_by_a_row(root)


def test_what_was_called_is_known_by_name(root, called):
    assert called == [
        "attnbook.layers:Base.forward",
        "attnbook.layers:Layer.__init__",
        "attnbook.layers:Layer.run",
        "attnbook.layers:double",  # its inner function
        "attnbook.layers:doubled",
        "attnbook.masks:causal",
        "attnbook.masks:kept",
        "studies.one:run",
    ]
    assert called_by_a_row(root) == called  # what is cached, too


def test_a_fingerprint_gives_itself(root, called):
    before = fingerprint_of(root, called, "import studies.one")
    assert {"attnbook.layers:Config", "attnbook.masks:TABLE", "studies.one:CASES"} < before.keys()
    assert not {"attnbook.masks:unused", "attnbook.layers:Layer.spare"} & before.keys()
    assert fingerprint_of(root, before, "import studies.one") == before


NEW = (MASKS, "def unused(n):", "def another(n):\n    return SIZE\n\ndef unused(n):")
SAME = {
    "a plural in an error": (MASKS, "key", "keys"),
    "a warning": (MASKS, '"slow"', '"slower"'),
    "a docstring": (MASKS, "A mask.", "One."),
    "an annotation": (MASKS, "n: int", "n: float"),
    "a comment": (MASKS, "SIZE = 3", "SIZE = 3  # three"),
    "a function that did not run": (MASKS, "n - 1", "n - 2"),
    "a method that did not run": (LAYERS, "return 0", "return 1"),
    "a new function": NEW,
    "a new constant": (MASKS, "SIZE = 3", "SIZE = 3\nOTHER = SIZE"),
    "a new name to import": ("src/attnbook/__init__.py", '["Layer"]', '["Layer", "Base"]'),
    "a new import": (MASKS, "import warnings", "import warnings\nimport math"),
    "a new method": (
        LAYERS,
        "    def spare",
        "    def more(self):\n        return 2\n    def spare",
    ),
    "a new class": (LAYERS, "class Other", "class New(Base):\n    scale = 6\n\nclass Other"),
    "a type of a field": (LAYERS, "width: int", "width: float"),
}
CHANGED = {
    "an operator": (MASKS, "* n", "+ n", "attnbook.masks:causal"),
    "a limit of an error": (MASKS, "n < 0", "n < 1", "attnbook.masks:causal"),
    "a kind of error": (MASKS, "ValueError", "TypeError", "attnbook.masks:causal"),
    "what is cached": (MASKS, "n + TABLE", "n * TABLE", "attnbook.masks:kept"),
    "a constant behind another": (MASKS, "SIZE = 3", "SIZE = 2", "attnbook.masks:SIZE"),
    "an entry of a table": (MASKS, '["more"] = 4', '["more"] = 5', "attnbook.masks:TABLE"),
    "a constant of a study": (STUDY, '"a": 1', '"a": 2', "studies.one:CASES"),
    "a name imported inside": (STUDY, "import SIZE", "import TABLE as SIZE", "studies.one:run"),
    "a field": (LAYERS, "width: int = 4", "width: int = 5", "attnbook.layers:Config"),
    "an attribute of a base": (LAYERS, "scale = 5", "scale = 6", "attnbook.layers:Base"),
    "a base": (LAYERS, "Layer(Base)", "Layer(Other)", "attnbook.layers:Layer"),
    "an override": (
        *(LAYERS, "    def spare", "    def forward(self, x):\n        return x\n    def spare"),
        "attnbook.layers:Layer",
    ),
    "an override in a class that has no methods": (
        *(LAYERS, "    pass", "    def forward(self, x):\n        return x"),
        "attnbook.layers:Other",
    ),
    "a special method": (
        *(LAYERS, "    pass", "    def __getattribute__(self, name):\n        return abs"),
        "attnbook.layers:Other",
    ),
    "a decorator": (LAYERS, "return 2 * f", "return 3 * f", "attnbook.layers:double"),
    "a decorator that is gone": (LAYERS, "@double\n", "", "attnbook.layers:doubled"),
    "a nested function": (LAYERS, "y + self", "y - self", "attnbook.layers:Layer.run"),
    "a name bound twice": (
        *(MASKS, "def unused", "def causal(n):\n    return []\n\ndef unused"),
        "attnbook.masks:causal",
    ),
    "an import that is shadowed": (
        *(LAYERS, "class Base", "def kept(n):\n    return 0\n\nclass Base"),
        "attnbook.layers:Layer.run",
    ),
    "a name of Python's that is hidden": (
        *(LAYERS, "class Base", "def max(a, b):\n    return b\n\nclass Base"),
        "attnbook.layers:Layer.run",
    ),
    "another home of a name": (
        *(
            "src/attnbook/__init__.py",
            "attnbook.layers import Layer",
            "attnbook.masks import Layer",
        ),
        "studies.one:run",
    ),
    "what acts at import": (
        *(MASKS, "import warnings", "import warnings\nwarnings.filters.clear()"),
        "attnbook.masks:",
    ),
    "what a loop does at import": (
        *(
            MASKS,
            "import warnings",
            "import warnings\nfor each in (1,):\n    setattr(warnings, 'a', 1)",
        ),
        "attnbook.masks:",
    ),
    "what a decorator may register": (
        *(LAYERS, "@double\n", "@double\ndef third(x):\n    return x\n\n@double\n"),
        "attnbook.layers:",
    ),
    "what a new import does to others": (
        *("studies/__init__.py", "", "import attnbook.masks\nattnbook.masks.SIZE = 7\n"),
        None,
    ),
}


def edited(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert text.count(old) == 1 or not old
    (root / path).write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("edit", SAME.values(), ids=SAME)
def test_what_changes_no_number_is_not_counted(edit, root, called):
    before = fingerprint_of(root, called, "import studies.one")
    edited(root, *edit)
    assert fingerprint_of(root, before, "import studies.one") == before


@pytest.mark.parametrize("edit", CHANGED.values(), ids=CHANGED)
def test_what_may_change_a_number_is_counted(edit, root, called):
    *change, where = edit
    before = fingerprint_of(root, called, "import studies.one")
    edited(root, *change)
    now = fingerprint_of(root, before, "import studies.one")
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    assert changed
    assert where is None or where in changed


def test_a_module_that_was_moved_is_known_by_its_old_name(root, called, monkeypatch):
    before = fingerprint_of(root, called, "import studies.one")
    (root / MASKS).rename(root / "src/attnbook/mask.py")
    for path in (LAYERS, STUDY):
        edited(root, path, "attnbook.masks", "attnbook.mask")
    assert fingerprint_of(root, before, "import studies.one") != before
    monkeypatch.setitem(ran.MOVED, "attnbook.mask", "attnbook.masks")
    ran._sources.cache_clear()
    assert fingerprint_of(root, before, "import studies.one") == before


TOUCHES_NOTHING = {
    "a plural in an error": (
        *("src/attnbook/masks.py", "queries and {n_keys} keys", "queries and {n_keys} key(s)"),
    ),
    "a new public function": (
        *(
            "src/attnbook/masks.py",
            "def causal_mask(",
            "def no_mask():\n    return None\n\n\ndef causal_mask(",
        ),
    ),
    "a progress bar": ("src/attnbook/training/progress.py", 'desc="training"', 'desc="trains"'),
    "a cache on a GPU": (
        *(
            "src/attnbook/decoding.py",
            "index_copy_(2, self.at, key)",
            "index_copy_(2, self.at, -key)",
        ),
    ),
}


def test_what_nobody_called_makes_no_record_and_no_chapter_stale(tmp_path):
    """All of them at once, in a copy of our code: the name that changed says which it was."""
    for folder in FOLDERS.values():
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path, old, new in TOUCHES_NOTHING.values():
        edited(tmp_path, path, old, new)
    for record in (ROOT / "studies").glob("*.json"):
        known = json.loads(record.read_text())["ran"]
        assert fingerprint_of(tmp_path, known, f"import studies.{record.stem}") == known
    for name, noted in contents.executed().items():
        known = {key: value for key, value in noted["made_from"].items() if FUNCTION.match(key)}
        cells = contents.code_cells(contents.read(ROOT / f"chapters/{name}.ipynb"))
        assert fingerprint_of(tmp_path, known, contents.tree_of(cells)) == known


FUNCTION = re.compile(r"(attnbook|book|studies)[\w.]*:")


QUICK = {name: soundness.STUDIES[name] for name in ("heads_sharing", "aw_weights")}


def test_no_number_moves_unseen(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(soundness, "STUDIES", QUICK)
    found = soundness.try_breaks(4, seed=3)
    assert len(found) == 4
    assert [each for each in found if each.moved and not each.seen] == []


@pytest.mark.parametrize(("blind", "code"), [(False, 0), (True, 1)])
def test_a_break_that_a_fingerprint_does_not_see_is_told(blind, code, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(soundness, "STUDIES", {"heads_sharing": QUICK["heads_sharing"]})
    text = (ROOT / "studies/heads_sharing.py").read_text()
    broken = text.replace("lr=0.01", "lr=0.02")
    assert broken != text
    some = iter([soundness.Break("studies.heads_sharing", "another rate", broken)])
    monkeypatch.setattr(soundness, "breaks", lambda *_: some)
    if blind:
        monkeypatch.setattr(soundness, "fingerprint_of", lambda *_: {})
    assert soundness.main(["1", "0"]) == code
    assert ("UNSEEN" in capsys.readouterr().out) == blind
