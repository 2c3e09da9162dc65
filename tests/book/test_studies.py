"""Records that are stale, damaged or contradicted are found by name; what is killed goes on."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE, CompletedProcess

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from book.evidence import records

CODE = '''"""Which is longer?"""

import random
import time

SEEDS = {"short": 3, "long": 4}


def run(seed, case, steps=4):
    """Measure one."""
    time.sleep(0.2 if case == "long" else 0)
    numbers = [random.Random(seed + i).random() for i in range(steps)]
    return {f"step {i}": x for i, x in enumerate(numbers)}
'''
READ = """from book import study
s = study("length")
print(len(s["long", "step 0"]), s.seeds("short"))
s.replay("short", steps=2)"""
REMEDY = "make studies ONLY=length"


def checkout(folder: Path) -> None:
    (folder / "studies").mkdir()
    (folder / "_toc.yml").write_text("format: jb-book\nroot: intro\n")
    (folder / "studies/__init__.py").touch()
    (folder / "requirements.txt").touch()
    (folder / "studies/length.py").write_text(CODE)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one study, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNBOOK_SEED", raising=False)
    checkout(tmp_path)
    return tmp_path


def python(code: str, **environment: str) -> CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(Path.cwd())} | environment
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


MAKE = "from book.press import build; raise SystemExit(build.main(['studies']))"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study's record, made once."""
    folder = tmp_path_factory.mktemp("made")
    checkout(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("ATTNBOOK_SEED", raising=False)
        result = python(MAKE)
    assert result.returncode == 0, result.stderr
    return folder / "studies/length.json"


@pytest.fixture
def record(root: Path, made: Path) -> Path:
    return Path(shutil.copy(made, root / "studies"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_record_is_read_and_a_row_is_run_again(record):
    read = python(READ)
    assert read.stdout.splitlines()[0] == "4 [0, 1, 2]"
    assert "✓ Study length: 2 cases, 3 to 4 seeds each, under a minute" in read.stdout
    assert "Run again, case 'short', seed 0, steps=2: the same numbers." in read.stdout


def change_number(record: Path, case: str) -> None:
    """The first of a case, by one digit."""
    row = next(r for r in json.loads(record.read_text())["rows"] if r["case"] == case)
    number = json.dumps(row["numbers"]["step 0"])
    edit(record, number, number[:-1] + str((int(number[-1]) + 5) % 10))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        # The first row is run again, the other is not.
        (lambda r: change_number(r, "short"), "studies/length.json is not what was recorded"),
        (lambda r: change_number(r, "long"), "studies/length.json is not what was recorded"),
        (
            lambda r: r.write_text(r.read_text()[: r.stat().st_size // 2]),
            "studies/length.json is not a whole record of study length",
        ),
        (Path.unlink, "study length has no record studies/length.json"),
    ],
)
def test_damaged_record_is_found(damage, message, record):
    damage(record)
    read = python(READ)
    assert message in read.stderr
    assert REMEDY in read.stderr


def test_record_of_other_code_is_stale_and_made_again(record):
    edit(root := record.with_suffix(".py"), "Measure one.", "Measure it.")
    assert python(READ).returncode == 0  # words are no code
    edit(root, "steps=4", "steps=5")
    read = python(READ)
    assert "studies/length.json is stale (studies.length:run changed since)" in read.stderr
    assert REMEDY in read.stderr
    assert python(MAKE).returncode == 0
    assert python(READ).returncode == 0


@pytest.fixture
def committed(record: Path) -> Path:
    """Two studies with records in a repository; each row says that it ran, and by which code."""
    code = record.with_suffix(".py")
    says = f"    open({str(Path('ran').resolve())!r}, 'a').write(f'{{case}} before\\n')\n"
    edit(code, "    numbers =", f"{says}    numbers =")
    shutil.copy(code, "studies/width.py")
    for name in ("length", "width"):
        ran = records.code_that_ran(Path(), name, [f"studies.{name}:run"])
        content = json.loads(record.read_text()) | {"ran": ran}
        records._write_record(name, content)
    commit()
    return record


def commit() -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run([*git, *command], check=True)


def same_as_head() -> tuple[CompletedProcess[str], list[str]]:
    """``make studies SAME_AS=HEAD``, and the rows that it ran."""
    Path("ran").write_text("")
    result = python(MAKE.replace("'studies'", "'studies', '--same-as', 'HEAD'"))
    return result, sorted(Path("ran").read_text().splitlines())


def test_rewritten_code_that_gives_the_recorded_numbers_keeps_the_record(committed):
    rows = json.loads(committed.read_text())["rows"]
    edit(committed.with_suffix(".py"), "before", "after")
    assert "is stale" in python(READ).stderr
    same, ran = same_as_head()
    assert same.returncode == 0, same.stderr
    assert ran == ["long after", "short after"]  # the first row of each case, by today's code
    assert python(READ).returncode == 0
    assert json.loads(committed.read_text())["rows"] == rows


def test_a_kept_record_hangs_on_what_it_hung_on_before(committed):
    """The rows that were recorded may have called what shortened ones do not."""
    before = records.code_that_ran(Path(), "length", ["studies.length:run", "studies.width:run"])
    records._write_record("length", json.loads(committed.read_text()) | {"ran": before})
    commit()
    edit(committed.with_suffix(".py"), "before", "after")
    same, _ = same_as_head()
    assert same.returncode == 0, same.stderr
    assert json.loads(committed.read_text())["ran"].keys() == before.keys()


def test_rewritten_code_that_gives_other_numbers_keeps_only_the_other_records(committed):
    before = committed.read_text()
    for name in ("length", "width"):
        edit(Path(f"studies/{name}.py"), "before", "after")
    edit(committed.with_suffix(".py"), "for i in range(steps)", "for i in range(1, steps + 1)")
    same, ran = same_as_head()
    assert same.returncode == 1
    assert "other numbers than at HEAD: [('length', 'long', 0), ('length', 'short', 0)" in (
        same.stderr
    )
    assert ran == 2 * ["long after"] + ["long before"] + 2 * ["short after"] + ["short before"]
    assert committed.read_text() == before
    assert "width: the same numbers, record kept" in same.stdout
    again, ran = same_as_head()
    assert again.returncode == 1
    assert ran == []  # what was run is kept


def test_record_of_another_processor_is_kept_if_both_codes_agree_here(committed):
    content = json.loads(committed.read_text())
    content["rows"][0]["numbers"]["step 0"] += 1e-3
    records._write_record("length", content)
    commit()
    edit(committed.with_suffix(".py"), "before", "after")
    same, ran = same_as_head()
    assert same.returncode == 0, same.stderr
    assert ran == ["long after", "short after", "short before"]  # only what is not as recorded
    assert json.loads(committed.read_text())["rows"] == content["rows"]


def test_only_twenty_steps_are_run_of_what_took_long(committed):
    edit(committed.with_suffix(".py"), "{case} before", "{case} {steps}")
    content = json.loads(committed.read_text())
    content["ran"] = records.code_that_ran(Path(), "length", content["ran"])
    for row in content["rows"]:
        row["seconds"] = 11 if row["case"] == "long" else 10
    records._write_record("length", content)
    commit()
    edit(committed.with_suffix(".py"), "{steps}", "of {steps}")
    same, ran = same_as_head()
    assert same.returncode == 0, same.stderr
    assert ran == ["long 20", "long of 20", "short of 4"]  # the record has no more than four


def test_unknown_study_can_not_be_kept(committed):
    kept = python(MAKE.replace("'studies'", "'studies', 'depth', '--same-as', 'HEAD'"))
    assert "there is no study 'depth'; there are length, width" in kept.stderr


def test_replay_that_disagrees_is_an_error(record):
    """The numbers hang on something that the code's hash can't see."""
    other = "import random; from book.evidence import records\n"
    other += "random.Random = lambda seed, R=random.Random: R(seed + 1)\n"
    read = python(other + READ)
    assert "study length, case 'short', seed 0: run again, it gives other numbers" in read.stderr
    assert "step 0: " in read.stderr
    assert REMEDY in read.stderr


def write_chapter(*sources: str) -> None:
    """The only one of the book."""
    Path("chapters").mkdir()
    Path("_toc.yml").write_text("format: jb-book\nroot: chapters/one\n")
    cells = [new_code_cell(source, id=f"code-{i}") for i, source in enumerate(sources)]
    nbformat.write(new_notebook(cells=cells), "chapters/one.ipynb")


BOOK = """from book.press import build, render
render.render_pages = lambda: None
raise SystemExit(build.main(['book']))"""


def test_build_marks_what_hangs_on_a_stale_record_and_then_fails(record):
    claimed = "claim('One', s['short', 'step 0'], at_least=-9, label='{}')"
    write_chapter(
        f"from book import claim\n{READ.partition('s.replay')[0]}",
        claimed.format("recorded"),
        claimed.format("live").replace("s['short', 'step 0']", "1"),
    )
    assert python(BOOK).returncode == 0
    before = Path("chapters/one.ipynb").read_bytes()
    claims = json.loads(Path("_build/claims.json").read_text())["chapters/one"]
    assert [each["to_run"] for each in claims] == [[], []]
    edit(record.with_suffix(".py"), "steps=4", "steps=5")
    built = python(BOOK)
    assert built.returncode == 1
    assert "studies/length.json is stale" in built.stderr
    assert REMEDY in built.stderr
    claims = json.loads(Path("_build/claims.json").read_text())["chapters/one"]
    assert {each["label"]: each["to_run"] for each in claims} == {"recorded": [REMEDY], "live": []}
    assert Path("chapters/one.ipynb").read_bytes() == before


def test_other_seeds_have_records_of_their_own(record):
    before = record.read_text()
    assert python(MAKE, ATTNBOOK_SEED="2").returncode == 0
    assert python(READ, ATTNBOOK_SEED="2").stdout.splitlines()[0] == "4 [2000, 2001, 2002]"
    assert record.read_text() == before


LIVE = """from book.press import build
raise SystemExit(build.main(['claims', '--seeds', '2', '--live']))"""


def test_live_claims_are_tried_with_the_studies_as_recorded(record):
    write_chapter(
        "from book import claim, seeds, study\nlength = study('length')",
        "claim('It is low', seeds(1)[0], label='low', at_most=1000)",
        "claim('It is long', length['long', 'step 0'], label='long', at_most=9)",
        "length.replay('long')\nassert length.seeds('long') == [0, 1, 2, 3]",
    )
    tried = python(LIVE)
    assert tried.returncode == 1
    assert "✗ 1/2  one  low: It is low" in tried.stdout
    assert "0 of 1 claims held for every seed" in tried.stdout
    assert tried.stderr.count("Error") == 1  # that of the claim
    (counted,) = json.loads(Path("chapters/held.json").read_text())["one"].values()
    assert counted == {"seeds": [1, 2], "made_anew": [], "held": {"low": 1}, "leads": {}}


def test_live_claims_need_the_records(record):
    write_chapter(READ)
    record.unlink()
    tried = python(LIVE)
    assert "study length has no record studies/length.json" in tried.stderr
    assert not Path("chapters/held.json").exists()


def test_run_that_raises_is_named_and_the_rest_is_kept(root):
    edit(Path("studies/length.py"), "    numbers =", "    assert seed != 1\n    numbers =")
    made = python(MAKE)
    assert made.returncode == 1
    assert "study length, 'long', seed 1: AssertionError" in made.stderr
    edit(Path("studies/length.py"), "    assert seed != 1\n", "")
    assert python(MAKE).returncode == 0


def test_unknown_study_is_an_error_that_lists_the_known(root):
    made = python(MAKE.replace("'studies'", "'studies', 'width'"))
    assert "no study is called width; there are length" in made.stderr


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_killed_studies_go_on_where_they_were(root):
    """Killed at three moments: no record is half written, no row that was kept runs again, and no
    worker stays behind."""
    edit(
        Path("studies/length.py"), "    numbers =", "    open('ran', 'a').write('.')\n    numbers ="
    )
    edit(Path("studies/length.py"), "0.2 if", "0.8 if")
    env = os.environ | {"PYTHONPATH": str(root), "WORKERS": "2"}
    killed = []
    for seconds in (2.5, 3.5, 6):  # while workers start, while they run
        with subprocess.Popen(
            [sys.executable, "-c", MAKE], env=env, stdout=PIPE, stderr=PIPE, start_new_session=True
        ) as process:
            time.sleep(seconds)
            process.kill()
            killed.append(process.pid)
        for path in Path("studies").glob("*.json"):
            json.loads(path.read_text())
    # Workers leave a second after their parent, once they have started.
    late = time.monotonic() + 60
    while alive := [group for group in killed if is_alive(group)]:
        assert time.monotonic() < late, alive
        time.sleep(0.5)
    made = python(MAKE)
    assert made.returncode == 0, made.stderr
    assert python(READ).returncode == 0
    assert len(Path("ran").read_text()) <= 7 + 3 * 2  # what was in flight, at most two each time
