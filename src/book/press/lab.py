"""Open the notebooks in JupyterLab: ``make notebooks``.

They are copies, in a folder that git does not see: what a reader runs, writes and saves there is
the reader's own, and stays when the book is updated.
"""

import hashlib
import json
import os
import shlex
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from book.evidence.files import as_json, write_whole
from book.figures.workbench.bench import Bench
from book.press.contents import chapters, noted_in, read
from book.press.copies import plain, with_captions, with_places
from book.sphinx.notebooks import NEEDS

CHAPTERS, COPIES = Path("chapters"), Path("notebooks")
START = "START.ipynb"
COPIED = COPIES / ".copied.json"
"""Of each copy, a hash of what the reader may have changed since."""

TRY = "**Try:** "
WELCOME = """\
# Attention, Measured: start here

Below is a model of three words, as a picture. Click on the cell and press Shift and Enter together:
then it can be changed. Point at a number, and drag it."""
BENCH = """\
from book.figures.workbench.bench import Bench

Bench()"""
WAYS = f"""\
## Three ways in

- **Run the chapters** listed below: *Run → Run All Cells* takes from seconds to a few minutes. Each
  measured number in the text is a link to a claim, a line with ✓ that says how it was measured.
  A bar with three dots is a folded cell: click on it, or take *View → Expand All Code*.
- **Read the pages**, where more moves: in a terminal, `make book`, then `make serve`.
- **Import the package**: `from attnbook import MultiHeadAttention` works in each notebook here.

Below most exercises is an empty cell for your answer, with a check that tries to name the mistake.
What you write and save is yours: these notebooks are copies in `{COPIES}/`, and when the book
is updated, those that you have changed stay as they are."""
CONTENTS = """\
## The chapters

| Chapter | You get | Minutes |
|---|---|---|
"""
TRIES = """\
## What to try

A claim that no longer holds says so, and the notebook goes on. Its last line counts them.

"""


def main() -> None:
    """Copy, and become JupyterLab, with the options in the environment variable ``LAB``."""
    from jupyterlab.labapp import main as lab

    for name in copy_chapters():
        print(f"{COPIES / name} is as you changed it; move it away to get the book's new one")
    lab([str(COPIES / START), *shlex.split(os.environ.get("LAB", ""))])


def copy_chapters() -> list[str]:
    """Copy what is new in the book, to be shown with its outputs, and write the first notebook.

    Returns:
        The names of those that both the book and the reader have changed: they are the reader's.
    """
    known, kept = noted_in(COPIED), []
    files = [path for path in CHAPTERS.rglob("*") if path.suffix in (".ipynb", ".md", ".json")]
    texts = {str(path.relative_to(CHAPTERS)): _for_readers(path) for path in sorted(files)}
    for name, text in (with_places(texts) | {START: nbformat.writes(start())}).items():
        copy, of_book = COPIES / name, _content(name, text)
        if copy.exists():
            if known.get(name) == of_book:
                continue
            if known.get(name) != _content(name, copy.read_text("utf-8")):
                kept.append(name)
                continue
        write_whole(copy, text)
        known[name] = of_book
        if copy.suffix == ".ipynb":
            NotebookNotary().sign(read(copy))
    write_whole(COPIED, as_json(known))
    return kept


def _for_readers(path: Path) -> str:
    if path.suffix == ".ipynb":
        return f"{nbformat.writes(with_captions(read(path)))}\n"
    text = path.read_text("utf-8")
    return plain(text) if path.suffix == ".md" else text


def _content(name: str, text: str) -> str:
    """A hash of a file; of a notebook, of what is written in its cells."""
    if name.endswith(".ipynb"):
        text = json.dumps([cell.source for cell in nbformat.reads(text, 4).cells])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def start() -> NotebookNode:
    """The first notebook: how to run one, what there is, what to try."""
    rows, tries = "", ""
    for path in chapters():
        texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
        link = f"[{texts[0].splitlines()[0].removeprefix('# ')}]({path.name})"
        needs = next(found[0] for text in texts if (found := NEEDS.search(text)))
        _, gets, takes = needs.split(" · ")
        gets, takes = gets.removeprefix("**You get** "), takes.split("**")[1]
        rows += f"| {link} | {gets} | {takes.removesuffix(' minutes')} |\n"
        for text in texts:
            if text.startswith(TRY):
                tried = text.removeprefix(TRY).replace("](#", f"]({path.name}#")
                tries += f"- {link}: {tried}\n"
    data = {"image/svg+xml": Bench()._repr_svg_(), "text/plain": repr(Bench())}
    picture = new_output("execute_result", data=data, execution_count=1)
    cells = [
        new_markdown_cell(WELCOME, id="welcome"),
        new_code_cell(BENCH, id="bench", outputs=[picture], execution_count=1),
        new_markdown_cell(WAYS, id="ways"),
        new_markdown_cell(CONTENTS + rows, id="chapters"),
        new_markdown_cell(TRIES + tries, id="tries"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    made: NotebookNode = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    return made


if __name__ == "__main__":
    main()
