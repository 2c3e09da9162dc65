"""Studies that need a GPU: what is made of them with one, and without."""

import importlib
import json
import math
import shutil
from pathlib import Path

import pytest
from test_studies import CODE, MAKE, checkout, commit, edit, python, root  # noqa: F401

from book.evidence import records

ROOT = Path(__file__).parents[2]
GPU_CODE = (
    CODE
    + '''

TINY = {"steps": 1}
one = run


def run(seed, case, steps=4):
    """Say that it ran."""
    with open("ran", "a") as file:
        file.write(f"{case} {seed}, {steps} steps before\\n")
    if (seed, case) == (1, "long") and not __import__("os").path.exists("mended"):
        raise OSError("the GPU is gone")
    return one(seed, case, steps)
'''
)
READ = """from book import study
s = study("gpu_length")
print(len(s.rows))
s.replay("short")"""
WITH_GPU = """import torch
torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda: "one of ours"
import runpy, sys
sys.argv = ["studies", "gpu_length"]
runpy.run_module("studies", run_name="__main__")"""


@pytest.fixture
def record(root: Path) -> Path:  # noqa: F811
    Path("studies/gpu_length.py").write_text(GPU_CODE)
    shutil.copy(ROOT / "studies/__main__.py", "studies")
    return root / "studies/gpu_length.json"


def ran() -> list[str]:
    return Path("ran").read_text().splitlines() if Path("ran").exists() else []


def test_rows_come_by_priority_and_a_later_call_goes_on(record):
    stopped = python(WITH_GPU.replace('"gpu_length"', '"--minutes", "0"'))
    assert stopped.returncode == 0, stopped.stderr
    assert not record.exists()
    failed = python(WITH_GPU)
    assert "the GPU is gone" in failed.stderr
    first = ["short 0", "long 0", "short 1"]
    assert [line.partition(",")[0] for line in ran()] == [*first, "long 1"]
    content = json.loads(record.read_text())
    assert content["made"]["device"] == "one of ours"
    assert [(row["case"], row["seed"]) for row in content["rows"]] == [
        ("short", 0),
        ("short", 1),
        ("long", 0),
    ]
    assert "✓ Study gpu_length: 3 of 7 runs, 0 min (one of ours" in python(READ).stdout
    Path("mended").touch()
    Path("ran").unlink()
    assert python(WITH_GPU).returncode == 0
    assert len(ran()) == 4
    assert len(json.loads(record.read_text())["rows"]) == 7


def test_without_a_gpu_it_is_said_and_nothing_fails(record):
    assert "torch finds no GPU" in python("import runpy; runpy.run_module('studies')").stderr
    named = python(MAKE.replace("'studies'", "'studies', 'gpu_length'"))
    assert "gpu_length needs a GPU: make studies DEVICE=cuda" in named.stderr
    read = python(READ)
    assert read.stdout.splitlines()[0] == "0"
    assert "not measured yet. Case 'short' run here at a tiny size." in read.stdout
    made = python(MAKE)
    assert made.returncode == 0, made.stderr
    assert ran() == ["short 0, 1 steps before"]


def test_a_stale_record_says_where_it_is_made_and_is_kept_if_the_tiny_runs_agree(record):
    Path("mended").touch()
    assert python(WITH_GPU).returncode == 0
    commit()
    edit(record.with_suffix(".py"), "steps before", "steps after")
    stale = python(READ)
    assert "is stale (studies.gpu_length:run changed since); on a machine with a GPU, run:" in (
        stale.stderr
    )
    Path("ran").unlink()
    same = python(MAKE.replace("'studies'", "'studies', 'gpu_length', '--same-as', 'HEAD'"))
    assert same.returncode == 0, same.stderr
    assert "gpu_length: the same numbers, record kept" in same.stdout
    assert ran()[0].endswith("1 steps after")
    assert python(READ).returncode == 0


NEEDING = [name for name in records.names(ROOT) if name.startswith(records.GPU)]


@pytest.mark.parametrize("name", NEEDING)
def test_every_case_runs_on_a_cpu_at_a_tiny_size(name):
    module = importlib.import_module(f"studies.{name}")
    for case in {
        case.partition(", ")[2].partition(", ")[2]: case for case in module.SEEDS
    }.values():
        numbers = records._run(name, case, 0, **module.TINY)
        assert all(map(math.isfinite, numbers["curve"])), case
        assert numbers["held out"][-1] < numbers["first losses"][0] + 0.5, case
