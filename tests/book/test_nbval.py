import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from book.press.contents import measured_under
from book.press.execute import execute

ROOT = Path(__file__).parents[2]

IMPORTS = """from book import claim, use_style
from attnbook.tasks.text import fingerprint, python_topics
text = fingerprint(python_topics())"""
PRINTED = "print('three', 1 + 2)"
CLAIMED = "claim('It is long', 123.0, label='long', at_least=100, unit='kB')"
ON_TEXT = "claim('It is long', 123.0, label='long', at_least=100, unit='kB', text=text)"
DRAWN = """import matplotlib.pyplot as plt
use_style()
plt.plot([1, 2])
plt.show()"""

# What a cell is, what was done to its committed outputs by hand, and whether it still passes.
Cells = dict[str, tuple[str, tuple[str, str], bool]]
UNTOUCHED = ("", "")
HERE: Cells = {
    "imports": (IMPORTS, UNTOUCHED, True),
    "untouched text": (PRINTED, UNTOUCHED, True),
    "changed text": (PRINTED, ("three 3", "three 4"), False),
    "untouched claim": (CLAIMED, UNTOUCHED, True),
    "claim changed in html": (CLAIMED, ("It is long</span>", "It is short</span>"), False),
    "claim changed in text": (CLAIMED, ("long\\n  measured", "short\\n  measured"), False),
    "other digits in a claim": (CLAIMED, ("measured 123 ", "measured 124 "), False),
    "untouched claim on the text": (ON_TEXT, UNTOUCHED, True),
    "other digits in a claim on the text": (ON_TEXT, ("measured 123 ", "measured 124 "), False),
    "changed drawing": (DRAWN, ("stroke-width: 1.8", "stroke-width: 1.9"), True),
    "stripped": (PRINTED, UNTOUCHED, False),
    "error": ("1 / 0", UNTOUCHED, False),
}
# On another text, and under another arithmetic.
ELSEWHERE: Cells = {
    "imports": (IMPORTS, UNTOUCHED, True),
    "other digits in a claim on the text": (ON_TEXT, ("measured 123 ", "measured 124.5 "), True),
    "other digits in a claim": (CLAIMED, ("measured 123 ", "measured 124.5 ± 2 "), True),
    "another statement": (CLAIMED, ("It is long", "It is short"), False),
    "other digits in text": (PRINTED, ("three 3", "three   —"), True),
    "other words in text": (PRINTED, ("three 3", "four 3"), False),
    "error": ("1 / 0", UNTOUCHED, False),
}


def compare(cells: Cells, folder: Path, *, elsewhere: bool = False) -> dict[str, bool]:
    """Execute a chapter, edit its outputs, and run nbval on it as `make test` does: what passes?"""
    path = folder / "chapters" / "chapter.ipynb"
    path.parent.mkdir()
    sources = [new_code_cell(source) for source, _, _ in cells.values()]
    nbformat.write(new_notebook(cells=sources), path)
    notebook = execute(path, allow_errors=True)[0]
    for cell, (name, (_, (old, new), _)) in zip(notebook.cells, cells.items(), strict=True):
        outputs = json.dumps(cell.outputs, ensure_ascii=False)
        assert old in outputs
        outputs = outputs.replace(old, new)
        if elsewhere:
            outputs = re.sub('(on text |"text": ")[0-9a-f]{12}', r"\g<1>0123456789ab", outputs)
        cell.outputs = [nbformat.from_dict(output) for output in json.loads(outputs)]
        if name == "stripped":
            cell.execution_count, cell.outputs = None, []
    nbformat.write(notebook, path)
    executed = {"chapter": {"under": {} if elsewhere else measured_under()}}
    (path.parent / "executed.json").write_text(json.dumps(executed))

    shutil.copy(ROOT / "chapters/conftest.py", path.parent)
    (folder / "tests").mkdir()
    for rules in (ROOT / "tests").glob("nbval*.cfg"):
        shutil.copy(rules, folder / "tests")
    command = [sys.executable, "-m", "pytest", "chapters", "--nbval", "--nbval-current-env"]
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    subprocess.run([*command, "--junitxml=report.xml"], cwd=folder, env=ours, check=False)
    tests = ET.parse(folder / "report.xml").iter("testcase")
    passed = [all(result.tag == "skipped" for result in test) for test in tests]
    return dict(zip(cells, passed, strict=True))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    return compare(HERE, tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    return compare(ELSEWHERE, tmp_path_factory.mktemp("elsewhere"), elsewhere=True)


@pytest.mark.parametrize("name", HERE)
def test_only_untouched_outputs_and_drawings_pass(name, here):
    assert here[name] == HERE[name][-1]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere_only_digits_may_differ(name, elsewhere):
    assert elsewhere[name] == ELSEWHERE[name][-1]
