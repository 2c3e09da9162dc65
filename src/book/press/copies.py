"""What pages have, put into a reader's copies: captions, places to jump to, plain Markdown."""

import re
from collections.abc import Mapping
from os.path import relpath
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from pybtex.database import parse_file

from book.sphinx.notebooks import BOOK, TITLE, anchor
from book.sphinx.puzzles import written
from book.sphinx.search import authors

REFERENCES = Path("chapters/references.bib")
LABEL = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
ROLE = re.compile(r"\{[\w:]+\}`([^`<]*?)(?: <([^`>]*)>)?`")
FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?P<kind>[\w-]+)\} *(?P<title>[^\n]*)\n"
    r"(?P<inside>.*?)^(?P=fence)$\n?",
    re.MULTILINE | re.DOTALL,
)
MADE = "*(What stands here on the book's pages is not in this copy: `make book` makes it.)*\n"
PLACE = re.compile(r' id=\\?"([\w-]+)')  # a quote in a notebook has a backslash


def with_captions(notebook: NotebookNode) -> NotebookNode:
    """The notebook with the captions that pages show, and an id at each figure and exercise."""
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        if (label := cell.metadata.get(BOOK, {}).get("exercise")) and cell.source.startswith(TITLE):
            cell = NotebookNode(cell, source=f'<a id="{label}"></a>\n\n{cell.source}')
        cells.append(cell)
        if figure := cell.metadata.get("mystnb", {}).get("figure"):
            name = figure["name"]
            words = f'<a id="{name}"></a>{figure["caption"]}'
            cells.append(new_markdown_cell(words, id=f"caption-{name}"))
    return NotebookNode(notebook, cells=cells)


def plain(page: str) -> str:
    """A page without MyST: its text, the glossary and the references; the rest needs the build."""
    page = re.sub(r"\A---\n.*?\n---\n+", "", page, flags=re.DOTALL)
    page = FENCE.sub(_inside, LABEL.sub(r'<a id="\1"></a>\n', page))
    return ROLE.sub(lambda found: _role(found[0], found[1], found[2]), page)


def with_places(texts: Mapping[str, str]) -> dict[str, str]:
    """The files by name; on pages, a link to a place of the book names the file where it is."""
    places = {name: {*PLACE.findall(text)} for name, text in texts.items()}
    owner = {place: name for name, here in places.items() for place in here}

    def placed(name: str, text: str) -> str:
        def link(found: re.Match[str]) -> str:
            place = found[1]
            if place in places[name] or place not in owner:
                return found[0]
            return f"]({relpath(owner[place], Path(name).parent)}#{place})"

        return re.sub(r"\]\(#([\w-]+)\)", link, text)

    return {
        name: placed(name, text) if name.endswith(".md") else text for name, text in texts.items()
    }


def _inside(found: re.Match[str]) -> str:
    inside = found["inside"]
    match found["kind"]:
        case "dropdown":
            title = found["title"]
            return f"<details><summary>{title}</summary>\n\n{plain(inside)}\n</details>\n"
        case "glossary":
            return _glossary(inside)
        case "bibliography":
            return _references()
        case "contents":
            return ""
        case "puzzle-index":
            return plain(written(REFERENCES.parent))
    return MADE


def _role(whole: str, words: str, target: str | None) -> str:
    if whole.startswith("{cite"):
        return ", ".join(f"[{key}](references.md#{key})" for key in words.split(","))
    if whole.startswith("{term}"):
        return f"[{words}](glossary.md#term-{anchor(target or words)})"
    return words


def _glossary(entries: str) -> str:
    terms = re.sub(
        r"^(\S.*)$",
        lambda found: f'<a id="term-{anchor(found[1])}"></a>**{found[1]}**  ',
        entries,
        flags=re.MULTILINE,
    )
    return re.sub(r"^  ", "", terms, flags=re.MULTILINE)


def _references() -> str:
    lines = []
    for key, entry in sorted(parse_file(str(REFERENCES)).entries.items()):
        fields, names = entry.fields, authors(entry, short=True)
        title = re.sub(r"[{}]", "", fields["title"])
        url = fields.get("url") or (
            f"https://doi.org/{fields['doi']}"
            if "doi" in fields
            else f"https://arxiv.org/abs/{fields['eprint']}"
        )
        lines.append(f'- <a id="{key}"></a>{names} ({fields["year"]}). [{title}]({url})')
    return "\n".join(lines) + "\n"
