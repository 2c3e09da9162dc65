"""``make notebooks``: copies of the chapters for the reader, who may change them."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from book.press.lab import COPIES, START, copy_chapters

ROOT = Path(__file__).parents[2]
NEEDS = "**You need** courage · **You get** an answer · **7 minutes**"


def write(*sources: str, name: str = "chapters/one.ipynb", output: str = "") -> None:
    cells = [new_markdown_cell("# What is it?"), new_markdown_cell(NEEDS)]
    cells += [new_code_cell(source) for source in sources]
    if output:
        cells[-1].outputs = [nbformat.v4.new_output("stream", text=output)]
    nbformat.write(new_notebook(cells=cells), name)


def code(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    Path("chapters/api").mkdir(parents=True)
    Path("_toc.yml").write_text("format: jb-book\nroot: chapters/one\n")
    Path("chapters/api/more.md").write_text("More.")
    write("1 + 1")


def test_all_that_notebooks_lead_to_is_copied():
    assert copy_chapters() == []
    files = sorted(str(path.relative_to(COPIES)) for path in COPIES.rglob("*.*"))
    assert files == [".copied.json", "START.ipynb", "api/more.md", "one.ipynb"]


def test_what_readers_write_stays_and_what_they_ran_is_updated():
    copy_chapters()
    write("1 + 1", output="2", name=COPIES / "one.ipynb")  # run, and saved
    write("1 + 2")
    assert copy_chapters() == []
    assert code(COPIES / "one.ipynb") == ["1 + 2"]
    write("1 + 2", "my answer", name=COPIES / "one.ipynb")
    assert copy_chapters() == []  # the book has nothing new
    write("1 + 3")
    assert copy_chapters() == ["one.ipynb"]
    assert copy_chapters() == ["one.ipynb"]
    assert code(COPIES / "one.ipynb") == ["1 + 2", "my answer"]


def test_a_notebook_that_is_not_of_the_book_is_left_alone():
    COPIES.mkdir()
    write("mine", name=COPIES / "one.ipynb")
    assert copy_chapters() == ["one.ipynb"]
    assert code(COPIES / "one.ipynb") == ["mine"]


def test_start_lists_the_chapters_and_what_to_try():
    notebook = nbformat.read("chapters/one.ipynb", 4)
    notebook.cells.append(new_markdown_cell("**Try:** under [Two](#two), add one."))
    nbformat.write(notebook, "chapters/one.ipynb")
    copy_chapters()
    start = "\n".join(cell.source for cell in nbformat.read(COPIES / START, 4).cells)
    assert "| [What is it?](one.ipynb) | an answer | 7 |" in start
    assert "- [What is it?](one.ipynb): under [Two](one.ipynb#two), add one." in start


def test_links_in_copies_of_the_book_lead_somewhere():
    shutil.rmtree("chapters")
    Path("_toc.yml").unlink()
    for name in ("chapters", "_toc.yml", "intro.md"):
        Path(name).symlink_to(ROOT / name)
    copy_chapters()
    texts = {path.resolve(): links_and_places(path) for path in COPIES.rglob("*.[im]*")}
    for page, (links, places) in texts.items():
        for file, _, place in (link.partition("#") for link in links if ":" not in link):
            where = (page.parent / file).resolve() if file else page
            assert where.exists(), (page.name, file)
            assert place in {"", *texts.get(where, (set(), places))[1]}, (page.name, file, place)


def links_and_places(path: Path) -> tuple[set[str], set[str]]:
    """What a copy links to in its text, and the ids in its text and outputs."""
    text, output = path.read_text("utf-8"), ""
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, 4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        outputs = [each for cell in cells for each in cell.get("outputs", [])]
        output = " ".join(each.get("data", {}).get("text/html", "") for each in outputs)
    return {*re.findall(r"\]\(([^)\s]+)\)", text)}, {*re.findall(r' id="([^"]+)"', text + output)}


def test_copies_are_trusted_so_that_their_figures_are_shown():
    write("1 + 1", output="2")
    copy_chapters()
    notary = nbformat.sign.NotebookNotary()
    assert notary.check_signature(nbformat.read(COPIES / "one.ipynb", 4))
    assert json.loads((COPIES / ".copied.json").read_text()).keys() >= {"one.ipynb", START}


def test_container_installs_what_the_makefile_knows():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    make, target, *_ = container["postCreateCommand"].split()
    assert make == "make"
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()
    assert "$(LAB)" in (ROOT / "Makefile").read_text()
    assert container["containerEnv"].keys() == {"LAB"}
