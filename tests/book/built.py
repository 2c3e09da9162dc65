"""What the tests of the written and built book share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import nbformat
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup, Tag
from nbformat import NotebookNode

from book.sphinx.notebooks import as_on_pages

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
NUMBERED = [path for path in CHAPTERS if path.stem[0].isdigit()]
HTML = ROOT / "_build" / "html"
# The pages by their addresses in the book; index.html is the first.
EVERY_PAGE = [
    path.relative_to(HTML).as_posix()
    for path in sorted(HTML.rglob("*.html"))
    if "_static" not in path.parts and path != HTML / "index.html"
]
# Pages of questions are of one kind: where to look takes long, three stand for them.
ANSWERS = [page for page in EVERY_PAGE if page.startswith("questions/")]
PAGES = [page for page in EVERY_PAGE if page not in ANSWERS or page in ANSWERS[::80]]
WRITTEN = [page for page in PAGES if page == "intro.html" or page.startswith("chapters/")]


@cache
def parsed(page: str) -> BeautifulSoup:
    """A built page, for all tests that change nothing in it."""
    return BeautifulSoup((HTML / page).read_text(encoding="utf-8"), "html.parser")


def without(part: Tag, left_out: str) -> Tag:
    """A copy of a part of a page, without what the selector finds."""
    copy = BeautifulSoup(str(part), "html.parser")
    for each in copy.select(left_out):
        each.decompose()
    return copy


@cache
def read(path: Path) -> NotebookNode:
    """A chapter, for all tests that change nothing in it."""
    return nbformat.read(path, as_version=4)


@cache
def prose(path: Path) -> str:
    """The text cells of a chapter, as pages have them."""
    cells = as_on_pages(path.read_text("utf-8"), ROOT).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def code_cells(path: Path) -> list[NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *message: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


# Axe looks at each element of a page, whatever it is asked. What is inside a picture is no content,
# and what stands beside a part is not asked about: without both it takes half the time.
SMALLER = """part => {
  const leads = "a, [tabindex]";
  if (!part) {
    for (const drawn of document.querySelectorAll("svg[role=img] > :not(title, desc)"))
      if (!drawn.matches(leads) && !drawn.querySelector(leads)) drawn.remove();
    return;
  }
  for (let at = document.querySelector(part); at !== document.body; at = at.parentElement)
    for (const beside of [...at.parentElement.children])
      if (beside !== at && !beside.matches("link, style, script")) beside.remove();
}"""


def violations(page: Any, part: str | None = None, **options: object) -> list[str]:
    """What is wrong for those who do not see an open page, or a part of it; the rest is lost."""
    page.evaluate(SMALLER, part)
    # Preloading would fetch the styles again, from wrong addresses.
    options = {"resultTypes": ["violations"], "preload": False} | options
    found = Axe().run(page, part, options=options)
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]
