"""What readers take away and what runs where: notebooks, the book's whole folder, a chapter's note.

The notebooks are those of the repository, and say how to run them.
"""

import html
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from nbformat.v4 import new_code_cell, new_markdown_cell
from sphinx.application import Sphinx
from sphinx.config import Config

from attnbook import __version__
from book.press.contents import executed
from book.sphinx.evidence import COUNTS

FOLDER = "attention-measured"
"""Name of the folder, and of the archive beside the first page."""
LEFT_OUT = ("_build", "notebooks", "__pycache__")
HOW_TO_RUN = """\
> **To run this notebook** you need the book's folder: package, records of studies, chapters.
> Download {archive} unpack it, and in it run `make notebooks` (or, without `make`,
> `python -m pip install --no-deps -r requirements.lock`, then
> `python -m pip install -r requirements.txt -e .` and `jupyter lab chapters`).
> It installs about 1.3 GB, most of it PyTorch, and needs Python 3.11 or newer and no GPU.
> This is {title}, version {version}; text CC BY 4.0, code MIT."""
CHECK = """\
# Is what this notebook needs there? The text above says how to get it.
from book.evidence.code import find_root

find_root()"""

# What works on a page: a mark of it in the markup, one of it and several of it in words.
WORKING = {
    'class="bench ': ("the model of three words", ""),
    'class="interactive"': ("a figure that moves", "{} figures that move"),
    'class="live ': ("a model to load", ""),
    'class="exercise ': ("an exercise", "{} exercises with hints and solutions"),
}
# Where the theme has a button for it: what to run first.
ELSEWHERE = {
    "Colab": "after <code>!git clone --depth 1 {} book && pip install -e 'book[tasks]'</code>, a "
    "restart of the session, and <code>%cd book/chapters</code>",
    "Binder": "after <code>%pip install -e ..</code> and a restart of the kernel",
}


def write_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Say in the notebooks that the pages offer what they need."""
    if exception is not None or app.builder.name != "html":
        return
    address = f"{app.config.html_baseurl.rstrip('/')}/{FOLDER}.zip"
    linked = f"[{FOLDER}.zip]({address}),"
    archive = linked if app.config.html_baseurl else f"{FOLDER}.zip from the book's first page,"
    offered = Path(app.outdir) / "_sources"
    for path in offered.rglob("*.ipynb"):
        notebook = nbformat.read(Path(app.srcdir) / path.relative_to(offered), 4)
        words = HOW_TO_RUN.format(archive=archive, title=app.config.html_title, version=__version__)
        first = [new_markdown_cell(words, id="how-to-run"), new_code_cell(CHECK, id="is-it-there")]
        notebook.cells[:0] = first
        nbformat.write(notebook, path)


def write_archive(app: Sphinx, exception: Exception | None) -> None:
    """Put the book's folder beside the pages: all that is needed to run and to build it."""
    if exception is not None or app.builder.name != "html":
        return
    root = Path(app.srcdir)
    with zipfile.ZipFile(Path(app.outdir) / f"{FOLDER}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files(root):
            put(archive, f"{FOLDER}/{path.relative_to(root)}", path.read_bytes())


def put(
    archive: zipfile.ZipFile, name: str, content: bytes, kind: int = zipfile.ZIP_DEFLATED
) -> None:
    """Add a file, with one date for all, so that the same book makes the same archive."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type, info.external_attr = kind, 0o644 << 16
    archive.writestr(info, content)


def files(folder: Path) -> Iterator[Path]:
    """What belongs to the book: no hidden files, nothing that was built."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in LEFT_OUT:
            continue
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def offer_launches(app: Sphinx, config: Config) -> None:
    """Binder and Colab open a repository: without one there is nothing to launch."""
    if not config.html_theme_options.get("repository_url"):
        config.html_theme_options["launch_buttons"] = {}


def say_what_runs(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Below what a chapter needs, folded: what works in the page, in JupyterLab and elsewhere."""
    needs = re.search(r'<p><span class="needs">.*?</p>', context.get("body", ""))
    if not needs:
        return
    body, seconds = context["body"], executed()[Path(page).name]["seconds"]
    counts = {words: body.count(mark) for mark, words in WORKING.items()}
    working = [
        several.format(COUNTS[n]) if n > 1 else one for (one, several), n in counts.items() if n
    ]
    archive = context["pathto"](f"{FOLDER}.zip", 1)
    lines = {
        "In this page": f"{', '.join(working)}; no code." if working else "",
        "In JupyterLab": f"all cells, in {max(1, round(seconds))} s, and checks of what you write. "
        f'Download <a href="{archive}" download>the whole folder</a>, unpack it, and in it run '
        "<code>make notebooks</code>.",
    }
    launching = {
        button["text"]: button["url"]
        for group in context["header_buttons"]
        for button in group.get("buttons", [])
        if button.get("text") in ELSEWHERE
    }
    repository = html.escape(app.config.html_theme_options.get("repository_url", ""))
    lines[f"In {' or '.join(launching)}"] = "; ".join(
        f'<a href="{html.escape(url)}">{name}</a>, {ELSEWHERE[name].format(repository)}'
        for name, url in launching.items()
    )
    items = "".join(f"<li><strong>{k}</strong>: {v}</li>" for k, v in lines.items() if v)
    fold = f'<details class="aside"><summary>What runs where</summary><ul>{items}</ul></details>'
    context["body"] = body.replace(needs[0], needs[0] + fold, 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Say on a page what runs where; write notebooks and the archive behind the pages."""
    app.connect("config-inited", offer_launches)
    app.connect("html-page-context", say_what_runs, priority=700)  # when its buttons are known
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", write_archive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
