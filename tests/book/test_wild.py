"""Found in the wild: the page says what its scripts printed, and they print it still."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
from built import ROOT

FOLDER = ROOT / "benchmarks" / "wild"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
RECORDED = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.txt")}
# What printed this was an older version's run of the script whose name it begins with.
BEFORE = {"deepspeed_flops_before": "deepspeed_flops"}
PAGE = (ROOT / "chapters" / "in_the_wild.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
WITH_SCRIPTS = [title for title, part in SECTIONS.items() if "literalinclude" in part]
SHOWN = re.compile(
    r"```\{literalinclude\} \.\./benchmarks/wild/(\w+)\.(py|txt)\n:language: (\w+)\n```"
)
# Not prose: what is included, links' addresses, code, formulas. Versions have a test of their own.
NO_PROSE = (SHOWN.pattern, r"\[#?[^]]*\]\([^)]*\)", r"`[^`]*`", r"\$[^$]*\$", r"\(wild-\w+\)=")
VERSION = r"\d+\.\d+\.\d+"
NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"


def versions(name: str) -> dict[str, str]:
    """The versions that a script ran with, by package."""
    return dict(each.split("==") for each in RECORDED[name].partition("\n")[0].split(", "))


def numbers(text: str) -> set[str]:
    return {each.replace(",", "").rstrip(".") for each in re.findall(NUMBER, text)}


def printed(section: str) -> str:
    """What the scripts of a section printed, without the line of versions."""
    names = [name for name, kind, _ in SHOWN.findall(section) if kind == "txt"]
    return "\n".join(RECORDED[name].partition("\n")[2] for name in names)


def prose(section: str) -> str:
    for pattern in NO_PROSE:
        section = re.sub(pattern, " ", section)
    return section


def not_printed(section: str) -> set[str]:
    return numbers(re.sub(VERSION, " ", prose(section))) - numbers(printed(section))


def can_run(name: str) -> bool:
    """True if this environment has a script's packages in the recorded versions."""
    try:
        return all(
            version(package).partition("+")[0] == recorded
            for package, recorded in versions(name).items()
        )
    except PackageNotFoundError:
        return False


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_short_and_stands_on_the_page_with_its_output(name):
    lines = (FOLDER / f"{name}.py").read_text("utf-8").splitlines()
    code = [line for line in lines if line and not line.startswith('"""')]
    assert len(code) <= 18
    assert len(RECORDED[name].splitlines()) > 1
    section = next(
        part for part in SECTIONS.values() if (name, "py", "python") in SHOWN.findall(part)
    )
    assert (name, "txt", "text") in SHOWN.findall(section)


def test_no_output_is_without_its_script():
    assert sorted(RECORDED) == sorted([*SCRIPTS, *BEFORE])
    assert {*BEFORE.values()} <= {*SCRIPTS}
    shown = [name for name, kind, _ in SHOWN.findall(PAGE) if kind == "txt"]
    assert sorted(shown) == sorted(RECORDED)
    assert PAGE.count("literalinclude") == len(SHOWN.findall(PAGE))


@pytest.mark.parametrize("title", WITH_SCRIPTS)
def test_numbers_of_the_prose_were_printed(title):
    assert not_printed(SECTIONS[title]) == set()


@pytest.mark.parametrize("title", WITH_SCRIPTS)
def test_a_number_that_was_not_printed_is_found(title):
    assert not_printed(SECTIONS[title] + "It is 0.8765, or 1,234,567.") == {"0.8765", "1234567"}


def test_versions_of_the_table_are_those_of_the_scripts():
    rows = re.findall(rf"(?m)^\| ([\w-]+) \| .*\(#(wild-\w+)\).* \| yes, ({VERSION}) \|$", PAGE)
    assert len(rows) == PAGE.count("| yes, ") >= 10
    ran = {}
    for title in WITH_SCRIPTS:
        label = re.search(rf"\((wild-\w+)\)=\n## {re.escape(title)}\n", PAGE)[1]
        for name, _, _ in SHOWN.findall(SECTIONS[title]):
            ran.setdefault(label, {}).update(versions(name) if name not in BEFORE else {})
    for package, label, written in rows:
        assert ran[label][package] == written


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if can_run(name)])
def test_script_prints_what_is_recorded(name):
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=FOLDER, env=alone, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == RECORDED[name].partition("\n")[2]
