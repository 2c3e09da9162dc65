import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import PIPE, CompletedProcess

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from book.evidence.claims import METADATA_KEY
from book.evidence.files import write_whole
from book.evidence.listings import LISTING_KEY
from book.press import build, contents, execute
from book.press.render import CLAIMS, EPUB, PDF, STAMP, offer

ROOT = Path(__file__).parents[2]
PYTHON3 = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def write_chapter(name: str, *sources: str, prose: str = "# A chapter\n\nText.") -> Path:
    path = Path("chapters", f"{name}.ipynb")
    cells = [new_markdown_cell(prose, id="prose")]
    cells += [new_code_cell(source, id=f"code-{i}") for i, source in enumerate(sources)]
    nbformat.write(new_notebook(cells=cells, metadata=PYTHON3), path)
    return path


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def outputs(path: Path) -> list[NotebookNode]:
    return [o for cell in nbformat.read(path, 4).cells for o in cell.get("outputs", [])]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A book of two chapters, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNBOOK_SEED", raising=False)
    for folder in ("chapters", "src/attnbook", "studies"):
        Path(folder).mkdir(parents=True)
    Path("src/attnbook/__init__.py").touch()
    Path("src/attnbook/module.py").write_text("x = 1\n")
    Path("src/attnbook/another.py").write_text("import attnbook.module as m\n\ny = m.x\n")
    Path("requirements.txt").write_text("numpy==2.0.0\nnbval==0.11.0\n")
    Path("intro.md").write_text("# The book\n")
    chapters = [{"file": "chapters/01_one"}, {"file": "chapters/02_two"}]
    toc = {"format": "jb-book", "root": "intro", "parts": [{"chapters": chapters}]}
    Path("_toc.yml").write_text(json.dumps(toc))
    write_chapter("01_one", "print(6 * 7)")
    write_chapter("02_two", "print('two')")
    return tmp_path


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each time that pages would have been made."""
    calls: list[bool] = []
    monkeypatch.setattr(build, "render", lambda: calls.append(True))
    return calls


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The chapters that were executed, in the order of their names; no kernel is started."""
    names: list[str] = []

    def pretend(path: Path, **options: object) -> tuple[NotebookNode, float]:
        names.append(path.stem)
        names.sort()
        notebook = nbformat.read(path, 4)
        notebook.cells[1].execution_count = 1
        notebook.metadata[execute.CALLED_KEY] = {"called": [], "seen": []}
        return notebook, 0.1

    monkeypatch.setattr(execute, "execute", pretend)
    return names


@pytest.fixture
def executed_anew(book, rendered, executed) -> Callable[[], list[str]]:
    """Build once; the function builds again and says which chapters that executed."""
    assert build.main(["book"]) == 0

    def again() -> list[str]:
        executed.clear()
        assert build.main(["book"]) == 0
        return executed

    return again


def edit(path: str, old: str, new: str) -> None:
    """Change a file, as a person does."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def test_build_executes_what_was_never_executed_and_then_nothing(executed, executed_anew):
    assert executed == ["01_one", "02_two"]
    assert executed_anew() == []
    shutil.rmtree("_build")  # as in a clone of the committed files
    assert executed_anew() == []


ONE, TWO, MODULE = "chapters/01_one.ipynb", "chapters/02_two.ipynb", "src/attnbook/module.py"
BY_IMPORT = (TWO, "print('two')", "from attnbook import another; print(another.y)")
BY_READING = (TWO, "print('two')", "open('measured.json')")
# One edit after the other: of which file, what for what, which chapters it executes, and why.
EDITS = {
    "prose": [((ONE, "# A chapter", "# Another title"), [], "")],
    "comment": [((ONE, "print(6 * 7)", "print(6 * 7)  # a comment"), [], "")],
    "code": [((TWO, "print('two')", "print('three')"), ["02_two"], "02_two: its code changed\n")],
    "constant behind one that a chapter names": [
        (BY_IMPORT, ["02_two"], ""),
        ((MODULE, "x = 1", "x = 1\nanother = 2"), [], ""),
        ((MODULE, "x = 1", '"""Words."""\n\nx = (1)  # the same'), [], ""),
        ((MODULE, "(1)", "2"), ["02_two"], "02_two: attnbook.module:x changed\n"),
    ],
    "version": [
        (("requirements.txt", "nbval==0.11.0", "nbval==0.12.0"), [], ""),
        (
            ("requirements.txt", "numpy==2.0.0", "numpy==2.1.0"),
            *(["01_one", "02_two"], "01_one: numpy changed\n"),
        ),
    ],
    "file that a chapter reads": [
        (BY_READING, ["02_two"], ""),
        (("chapters/measured.json", "1", "2"), ["02_two"], ""),
    ],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_a_change_executes_the_chapters_that_it_reaches_and_keeps_outputs(
    edits, executed_anew, capsys
):
    Path("chapters/measured.json").write_text("1")
    before = outputs(Path(ONE))
    for change, chapters, reason in edits:
        edit(*change)
        capsys.readouterr()
        assert executed_anew() == chapters
        assert reason in capsys.readouterr().out
        assert executed_anew() == []
    assert outputs(Path(ONE)) == before


def test_changed_comment_in_a_listing_executes_its_chapter(executed_anew, capsys):
    notebook = nbformat.read(ONE, 4)
    shown = {LISTING_KEY: ["attnbook.module:f"]}
    notebook.cells[1].outputs = [new_output("display_data", metadata=shown)]
    nbformat.write(notebook, ONE)
    Path(MODULE).write_text("def f():\n    return 1  # one\n")
    assert executed_anew() == ["01_one"]
    edit(MODULE, "# one", "# it is one")
    assert executed_anew() == ["01_one"]
    assert "01_one: the listing of attnbook.module:f changed\n" in capsys.readouterr().out


def test_chapter_without_outputs_is_executed(executed_anew):
    write_chapter("01_one", "print(6 * 7)")
    assert executed_anew() == ["01_one"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(1)", "Kernel died"),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_failing_chapter_is_named_with_its_error_and_the_others_are_executed(
    code, error, book, rendered, monkeypatch, capsys
):
    monkeypatch.setattr(execute, "CELL_TIMEOUT", 5)
    write_chapter("01_one", "x = 1", code)
    assert build.main(["book"]) == 1
    shown = plain(capsys.readouterr().err)
    assert "chapters/01_one.ipynb" in shown
    assert error in shown
    assert "02_two" not in shown
    assert rendered == [True]  # what was there before
    assert not build.out_of_date(Path(TWO))


def test_kernel_that_never_starts_is_named_and_the_others_are_executed(
    book, rendered, monkeypatch, capsys
):
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(
        "import os, pathlib, sys\n"
        "if 'ipykernel_launcher' in sys.orig_argv:\n"
        "    try:\n"
        "        pathlib.Path(os.environ['PYTHONPATH'], 'once').touch(exist_ok=False)\n"
        "        os._exit(1)\n"
        "    except FileExistsError:\n"
        "        pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path("site").resolve()))
    assert build.main(["book"]) == 1
    captured = capsys.readouterr()
    assert "Kernel died before replying" in plain(captured.err)
    assert captured.out.count("FAILED") == 1
    assert rendered == [True]

    assert build.main(["book"]) == 0
    assert "[1/1]" in capsys.readouterr().out


def test_html_executes_nothing(book, rendered, executed):
    assert build.main(["html"]) == 0
    assert executed == []
    assert rendered == [True]


def test_chapters_writes_the_outputs_and_keeps_everything_else(book, capsys):
    path = Path("chapters/01_one.ipynb")
    notebook = nbformat.read(path, 4)
    notebook.cells[1].metadata = {"mystnb": {"image": {"alt": "A line"}}, "tags": ["hide-input"]}
    nbformat.write(notebook, path)
    path.chmod(0o640)
    assert build.main(["chapters"]) == 0

    written = nbformat.read(path, 4)
    assert written.cells[1].execution_count == 1
    assert written.cells[1].outputs[0].text == "42\n"
    assert written.cells[0] == notebook.cells[0]
    assert written.cells[1].metadata == notebook.cells[1].metadata
    assert written.metadata.kernelspec == notebook.metadata.kernelspec
    assert path.stat().st_mode & 0o777 == 0o640
    assert outputs(Path("chapters/02_two.ipynb"))[0].text == "two\n"
    first = path.read_bytes()
    assert build.main(["chapters", "01_one"]) == 0
    assert path.read_bytes() == first


def test_chapters_executes_what_is_named_and_book_only_the_rest(book, rendered, executed):
    assert build.main(["chapters", "02_two"]) == 0
    assert executed == ["02_two"]
    assert build.main(["book"]) == 0
    assert executed == ["01_one", "02_two"]


def test_it_is_noted_what_outputs_were_made_from_and_under_which_arithmetic(
    book, executed, monkeypatch
):
    build.main(["chapters"])
    here = contents.measured_under()
    monkeypatch.setattr(contents, "measured_under", lambda: {"arithmetic": "another"})
    build.main(["chapters", "02_two"])
    noted = json.loads(Path("chapters/executed.json").read_text())
    assert list(noted) == ["01_one", "02_two"]
    assert [entry["under"] for entry in noted.values()] == [here, {"arithmetic": "another"}]
    assert noted["01_one"]["made_from"].keys() == {"its code", "numpy"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("chapters 03_three", "no chapter is called 03_three; there are 01_one, 02_two"),
        ("chapters 01_one 03_three", "no chapter is called 03_three; there are 01_one, 02_two"),
        ("claims 03_three", "no chapter is called 03_three; there are 01_one, 02_two"),
        ("claims --seeds 0", "SEEDS must be at least 1, got 0"),
        ("claims --seeds -1", "SEEDS must be at least 1, got -1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(command, message, book, executed, capsys):
    assert build.main(command.split()) == 1
    assert message in capsys.readouterr().err
    assert executed == []


def test_failing_chapter_is_not_written(book):
    path = write_chapter("01_one", "print('new')", "x / 0")
    before = path.read_bytes()
    assert build.main(["chapters"]) == 1
    assert path.read_bytes() == before
    assert outputs(Path("chapters/02_two.ipynb"))[0].text == "two\n"


def test_interrupted_chapters_lose_nothing(book, executed, monkeypatch):
    replace = Path.replace

    def interrupt(path: Path, target: Path) -> Path:
        if target.suffix == ".ipynb":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupt)
    before = {path: path.read_bytes() for path in Path("chapters").iterdir()}
    with pytest.raises(KeyboardInterrupt):
        build.main(["chapters"])
    assert {path: path.read_bytes() for path in Path("chapters").iterdir()} == before


def test_interrupt_waits_for_no_chapter(book):
    write_chapter("02_two", "import time; time.sleep(60)")
    command = [sys.executable, "-m", "book.press.build", "claims", "--seeds", "9", "02_two"]
    # A shell that runs the tests in the background has them, and what they start, ignore SIGINT.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=PIPE, stderr=PIPE, text=True, preexec_fn=heeding
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first has begun
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=20)
    assert process.returncode == 130
    assert shown == "\nStopped\n"


@pytest.fixture
def edited_meanwhile(book, monkeypatch) -> Callable[[str, str], None]:
    """Makes chapter 01_one another while it runs."""
    as_it_is = execute.execute

    def editing(code: str, prose: str) -> None:
        def edit(path: Path, **options: object) -> tuple[NotebookNode, float]:
            result = as_it_is(path)
            if path.stem == "01_one":
                write_chapter(path.stem, code, prose=prose)
            return result

        monkeypatch.setattr(execute, "execute", edit)

    return editing


def test_chapter_that_is_changed_while_it_runs_is_not_written(edited_meanwhile, capsys):
    edited_meanwhile("print(6 * 7)", "# Hours of work")
    assert build.main(["chapters"]) == 1
    assert 'not written: make chapters ONLY="01_one"' in capsys.readouterr().err
    assert "Hours of work" in Path("chapters/01_one.ipynb").read_text()
    assert outputs(Path("chapters/02_two.ipynb"))[0].text == "two\n"


def test_code_that_is_changed_while_it_runs_fails_the_build(edited_meanwhile, rendered, capsys):
    edited_meanwhile("print('other')", "# A chapter")
    assert build.main(["book"]) == 1
    assert "changed while it ran" in capsys.readouterr().err
    assert rendered == [True]


def test_killed_command_damages_nothing_and_completes_when_run_again(book, monkeypatch):
    """Killed at three moments, it leaves whole notebooks; then it executes what is left."""
    for name in ("01_one", "02_two"):
        write_chapter(name, "import time; time.sleep(0.5)", "print(6 * 7)")
    monkeypatch.setenv("PYTHONPATH", str(book))
    run = [
        sys.executable,
        "-c",
        """
from book.press import build
build.render = lambda: None
raise SystemExit(build.main(['book']))""",
    ]
    for moment in random.Random(0).sample(range(15, 45), 3):  # tenths of a second
        with subprocess.Popen(run, stdout=PIPE, stderr=PIPE, start_new_session=True) as process:
            time.sleep(moment / 10)
            process.kill()
        for path in Path("chapters").glob("*"):
            assert path.suffix in (".ipynb", ".json"), f"{path} was left behind"
            json.loads(path.read_text())
    assert subprocess.run(run, check=False, capture_output=True).returncode == 0
    for path in build.chapters():
        assert build.out_of_date(path) == []
        assert outputs(path)[-1].text == "42\n"


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace")])
def test_interrupted_write_leaves_the_old_file_and_nothing_else(owner, step, tmp_path, monkeypatch):
    path = tmp_path / "chapter.ipynb"
    if step == "replace":
        path.write_text("old")

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    Path("_build").mkdir()
    monkeypatch.setattr(owner, step, interrupt)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert sorted(tmp_path.rglob("*")) == before
    assert not path.exists() or path.read_text() == "old"


def test_file_is_never_seen_half_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("chapter.ipynb")
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new" * 100_000 + "\udc80")
    assert path.read_text() == "old"
    assert list(Path("_build").iterdir()) == []


CLAIM = "from book import claim, seeds\nseed = seeds(1)[0] // 1000\n"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("", ""),
        ("x / 0", "01_one, ATTNBOOK_SEED=1: NameError"),
        (
            "if seed == 1: claim('It is', 1, label='it', equals=1)",
            "1 claims did not hold for every",
        ),
    ],
)
def test_claims_pass_if_each_is_reached_and_holds_and_nothing_else_fails(more, error, book, capsys):
    write_chapter("01_one", f"{CLAIM}claim('It is there', seed, label='there', at_least=1)\n{more}")
    assert build.main(["claims", "--seeds", "2", "01_one"]) == bool(error)
    shown = capsys.readouterr()
    assert "✓ 2/2  01_one  there: It is there\n" in shown.out
    assert ("✗ 1/2  01_one  it: It is\n" in shown.out) == ("'it'" in more)
    assert error in shown.err


def test_claim_that_fails_for_one_seed_and_one_that_none_reaches_fail(book, capsys):
    path = write_chapter("01_one", CLAIM + "claim('It is low', seed, label='low', at_most=1)")
    notebook = nbformat.read(path, 4)
    gone = {METADATA_KEY: {"label": "gone", "statement": "It is gone"}}
    notebook.cells[1].outputs = [new_output("display_data", metadata=gone)]
    nbformat.write(notebook, path)
    before = path.read_bytes()
    assert build.main(["claims", "--seeds", "2", "01_one"]) == 1
    shown = capsys.readouterr()
    assert "✗ 1/2  01_one  low: It is low\n" in shown.out
    assert "✗ 0/2  01_one  gone: It is gone\n" in shown.out
    assert "0 of 2 claims held for every seed" in shown.out
    assert "01_one, ATTNBOOK_SEED=2: ClaimFailedError: It is low" in shown.err
    assert path.read_bytes() == before


def test_ledger_says_how_often_claims_held_until_the_code_changes(book, monkeypatch):
    def ledger() -> list[str]:
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: CompletedProcess([], 0))
        assert build.main(["book"]) == 0
        claims = json.loads(CLAIMS.read_text())["chapters/01_one"]
        return [each["other_seeds"] for each in claims]

    low = CLAIM + "claim('It is low', seed, label='low', at_most=1)"
    low = "import os; open('ran', 'a').write(os.environ.get('ATTNBOOK_SEED', ''))\n" + low
    write_chapter("01_one", low)
    assert ledger() == ["–"]
    assert build.main(["claims", "--seeds", "2", "01_one"]) == 1
    assert build.main(["claims", "--seeds", "1", "02_two"]) == 0
    assert ledger() == ["1 of 2"]
    Path("chapters/ran").unlink()
    assert build.main(["claims", "--seeds", "3", "01_one"]) == 1
    assert Path("chapters/ran").read_text() == "3"  # the others were tried before
    assert ledger() == ["1 of 3"]
    write_chapter("01_one", low + "; pass")
    assert ledger() == ["–"]


def test_a_second_command_is_told_to_wait_for_the_first(book, rendered, capsys):
    with build.alone():
        assert build.main(["html"]) == 1
    said = f"another make is at work here (process {os.getpid()}): wait for it"
    assert capsys.readouterr().err == f"\n{said}\n"
    assert rendered == []
    assert build.main(["html"]) == 0


def test_what_the_disk_refuses_is_one_line(book, capsys):
    Path("_build").touch()
    assert build.main(["html"]) == 1
    assert capsys.readouterr().err == "\nFile exists: _build\n"


def test_a_readers_settings_reach_no_command():
    settings = {"PYTHONPATH": "x", "MPLBACKEND": "Agg", "ATTNBOOK_SEED": "7", "ATTNBOOK_LIVE": "1"}
    settings["PYTHONIOENCODING"] = "ascii"
    shown = subprocess.run(
        ["make", "-s", "-f", ROOT / "Makefile", "-f", "-", "probe"],
        input="probe:\n\t@env",
        env=os.environ | settings | {"PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = shown.stdout.splitlines()
    assert {"OMP_NUM_THREADS=1", "PYTHONUTF8=1"} <= {*lines}
    assert not {line.partition("=")[0] for line in lines} & settings.keys()


def copy_machinery(folder: Path) -> None:
    shutil.copytree(ROOT / "src" / "book", folder / "src" / "book")
    for name in ("_config.yml", "CITATION.cff"):
        shutil.copyfile(ROOT / name, folder / name)


@pytest.fixture
def built_whole(book, monkeypatch) -> list[bool]:
    """For each call of jupyter-book: was it told to build everything? It builds nothing here."""
    copy_machinery(book)
    calls: list[bool] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        calls.append("--all" in command)
        Path("_build/html").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, Path("broken").exists())

    monkeypatch.setattr(subprocess, "run", run)
    return calls


@pytest.mark.parametrize("changed", ["chapters/01_one.ipynb", "chapters/api/page.md"])
def test_second_rendering_builds_only_what_changed(changed, built_whole):
    Path("chapters/api").mkdir()
    Path("chapters/api/page.md").write_text("# Page\n\nText.")
    build.main(["html"])
    Path("_build/html/page.html").touch()
    build.main(["html"])
    assert built_whole == [True]
    edit(changed, "Text.", "Other text.")
    build.main(["html"])
    assert built_whole == [True, False]
    assert Path("_build/html/page.html").exists()


def test_page_that_is_older_than_what_it_was_before_is_built_again(built_whole):
    build.main(["html"])
    edit("chapters/01_one.ipynb", "Text.", "Other text.")
    os.utime("chapters/01_one.ipynb", (0, 0))  # a backup, or a clock that was set back
    build.main(["html"])
    assert built_whole == [True, True]


@pytest.mark.parametrize(
    "path",
    [
        "_config.yml",
        "_toc.yml",
        "requirements.lock",
        "src/attnbook/module.py",
        "src/book/sphinx/pages.py",
        "src/book/sphinx/static/book.css",
        "src/book/sphinx/templates/components/search-field.html",
    ],
)
def test_changed_machinery_builds_everything_and_leaves_no_old_page(path, built_whole):
    build.main(["html"])
    Path("_build/html/removed.html").touch()
    with Path(path).open("a") as file:
        file.write("\nanother: line\n" if path == "_config.yml" else "\n# another line\n")
    build.main(["html"])
    assert built_whole == [True, True]
    assert not Path("_build/html/removed.html").exists()


@pytest.mark.parametrize("page", [("intro.md", "# The book"), (TWO, "# A chapter")])
def test_changed_title_builds_everything(page, built_whole):
    build.main(["html"])
    edit(*page, "# Another title")
    build.main(["html"])
    assert built_whole == [True, True]


def test_everything_is_built_again_after_a_failure(built_whole):
    build.main(["html"])
    Path("broken").touch()
    edit("chapters/01_one.ipynb", "Text.", "Other text.")
    assert build.main(["html"]) == 1
    Path("broken").unlink()
    assert build.main(["html"]) == 0
    assert built_whole == [True, False, True]


# Books that are rendered by Sphinx: one that is right, and one with all that must not pass.

CLAIMED = """from book import claim, use_style
claim("The variance is d_head", [63.2, 64.2, 63.7], label="variance", close_to=64, rtol=0.1)"""
DRAWN = """import matplotlib.pyplot as plt
use_style()
plt.plot([1, 2], label="<a>")
plt.show()"""
ALT = 'A line that rises "steeply" & <straight> from one to two'


def small_book(folder: Path, prose: str, *, alt: str, code: tuple[str, ...]) -> None:
    copy_machinery(folder)
    (folder / "chapters/references.bib").touch()
    (folder / "chapters/02_two.ipynb").unlink()
    (folder / "chapters/02_two.md").write_text("# Ledger\n\n```{claims-ledger}\n```\n")
    path = write_chapter("01_one", *code, prose=f"# One\n\n{prose}")
    notebook = nbformat.read(path, 4)
    if alt:
        notebook.cells[2].metadata["mystnb"] = {"image": {"alt": alt}}
    nbformat.write(notebook, path)
    assert build.main(["chapters"]) == 0


def page(name: str) -> BeautifulSoup:
    return BeautifulSoup(Path("_build/html", name).read_text(encoding="utf-8"), "html.parser")


def test_right_book_is_rendered(book, capfd):
    prose = "It is [63.7 ± 0.3](#claim-variance), or [64](#claim-variance): [](#claim-variance)."
    small_book(book, prose, alt=ALT, code=(CLAIMED, DRAWN))
    edit("_config.yml", 'baseurl: ""', "baseurl: https://example.org/book/")
    edit("_config.yml", 'url: ""', "url: https://github.com/someone/book")
    assert build.main(["html"]) == 0
    shown = capfd.readouterr()
    assert "WARNING" not in shown.err
    assert re.search(r" 2\d\.\d  variance: 63.7 ± 0.3; 64 within 10 %\n", shown.out)  # its room

    chapter = page("chapters/01_one.html")
    links = chapter.select("p a.claim-link")
    assert [link["href"] for link in links] == ["#claim-variance"] * 3
    assert [link.text for link in links] == ["63.7 ± 0.3", "64", "The variance is d_head"]
    assert chapter.select_one("#claim-variance .claim-statement").text == "The variance is d_head"
    (figure,) = chapter.select("svg.on-page")
    assert figure["role"] == "img"
    assert figure["aria-label"] == ALT
    assert "currentColor" in str(figure)
    assert not chapter.select("article img")

    row = page("chapters/02_two.html").select_one("table.claims-ledger tbody tr")
    cells = [cell.text for cell in row.select("td")]
    assert cells[:3] == ["The variance is d_head", "63.7 ± 0.3", "64 within 10\u00a0%"]
    assert cells[3:] == ["random draws, no model of the package", "3", "✓"]
    assert row.a["href"] == "01_one.html#claim-variance"

    address = "https://example.org/book/chapters/01_one.html"  # of a book that has one
    assert chapter.select_one("link[rel=canonical]")["href"] == address
    assert chapter.select_one("meta[property='og:url']")["content"] == address
    assert chapter.select_one(".colophon a[href='https://github.com/someone/book']")
    (image,) = chapter.select("meta[property='og:image']")
    assert Path("_build/html", image["content"].removeprefix("https://example.org/book/")).exists()
    assert f"<loc>{address}</loc>" in Path("_build/html/sitemap.xml").read_text()
    assert "https://example.org/book/sitemap.xml" in Path("_build/html/robots.txt").read_text()


def test_prose_need_not_know_the_numbers_of_another_arithmetic(book, capfd, monkeypatch):
    small_book(book, "It is [63.7](#claim-variance).", alt=ALT, code=(CLAIMED, DRAWN))
    edit("chapters/01_one.ipynb", "It is [63.7]", "It is [63.8]")
    assert build.main(["book"]) == 1
    assert "the prose says 63.8" in plain(capfd.readouterr().err)
    monkeypatch.setattr(contents, "measured_under", lambda: {"arithmetic": "another"})
    edit("chapters/01_one.ipynb", "63.2, 64.2", "64.2, 63.2")
    assert build.main(["book"]) == 0  # a reader's own processor made the outputs
    assert "01_one: executed on a processor that rounds otherwise" in capfd.readouterr().out
    assert build.main(["chapters"]) == 0  # an author's
    assert build.main(["html"]) == 1


def test_wrong_book_is_not_rendered(book, capfd):
    prose = "It is [65 ± 0](#claim-variance), [0.3](#claim-variance), not [64](#claim-varience)."
    small_book(book, prose, alt="", code=(CLAIMED, DRAWN, CLAIMED))
    assert build.main(["html"]) == 1
    shown = plain(capfd.readouterr().err)
    assert "the book was not built" in shown
    for expected in (
        r"chapters/01_one.*WARNING: the prose says 65, claim 'variance' says: measured 63.7 ± 0.3",
        r"chapters/01_one.*WARNING: the prose says ± 0, claim 'variance' says",
        r"chapters/01_one.*WARNING: the prose says 0.3, claim 'variance' says",
        r"chapters/01_one.*WARNING: no claim is labelled 'varience'",
        r"chapters/01_one.*WARNING: a figure has no alt text",
        r"WARNING: claim 'variance' is in chapters/01_one and in chapters/01_one",
    ):
        assert re.search(expected, shown)


def test_first_page_offers_what_was_made_of_these_pages(book):
    page = Path("_build/html", contents.sources()[0].with_suffix(".html"))
    page.parent.mkdir(parents=True)
    page.write_text('<p>Before.</p><p id="offered" hidden></p><p>After.</p>')
    STAMP.touch()
    for name, later in ((PDF, 1), (EPUB, -1)):
        (STAMP.parent / name).write_bytes(b"0" * 1_200_000)
        moment = STAMP.stat().st_mtime + later
        os.utime(STAMP.parent / name, (moment, moment))
    offer()
    links = BeautifulSoup(page.read_text(), "html.parser").select("#offered a")
    assert [link["href"] for link in links] == [PDF]
    assert "one PDF</a> (1.2 MB).</p><p>After." in page.read_text()
    assert (page.parent / PDF).exists() != (page.parent / EPUB).exists()
    os.utime(STAMP, (moment + 9, moment + 9))  # other pages
    offer()
    assert '<p id="offered" hidden></p><p>After.' in page.read_text()
    assert not (page.parent / PDF).exists()
