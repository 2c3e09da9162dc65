"""How nbval compares the chapters: `make test` runs it, strictly.

Everything is compared but the drawings, whose numbers stand in the claims
beside them. Claims on Python's help texts say which text they were measured
on. Where this Python's differs, and under another arithmetic than that of the
committed outputs (another processor), no digits are compared: text is, and
claims have to hold.
"""

import json
import os
from pathlib import Path

import pytest
from nbval.plugin import IPyNbCell

from book.evidence.arithmetic import EXECUTED
from book.press.contents import measured_under

HERE = Path(__file__).parent


def measured_elsewhere() -> bool:
    """Are committed outputs of another arithmetic, or text, than here?"""
    known = HERE / EXECUTED.name
    noted = (
        json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    )
    here = measured_under()
    return any(
        noted.get(path.stem, {}).get("under") != here
        for path in HERE.glob("*.ipynb")
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose what is not compared, and run kernels as the Makefile does."""
    os.environ |= {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    rules = "nbval_elsewhere.cfg" if measured_elsewhere() else "nbval.cfg"
    config.option.nbval_sanitize_with = str(HERE.parent / "tests" / rules)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail cells that were never executed: nbval alone passes over them."""
    if isinstance(item, IPyNbCell) and item.cell.execution_count is None:
        pytest.fail(
            f"{item.nodeid} was committed without outputs: run `make chapters`"
        )
