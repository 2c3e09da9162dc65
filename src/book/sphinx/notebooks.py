"""Chapters are plain notebooks, which every viewer shows as prose; pages get a richer form.

What is structure stands in a cell's metadata, under ``"book"``, and in Markdown and HTML that any
viewer knows. This module puts MyST's roles and directives in their place before a page is parsed.
"""

import ast
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from sphinx.application import Sphinx

from book.evidence.listings import LISTING_KEY

BOOK = "book"
KINDS = {"stage", "guess", "exercise", "solution", "live", "contents", "lab"}
"""Under the key ``"book"`` of a cell's metadata stands what it is.

``stage``: the text is about this stage of the bench. ``guess``: options to choose from; ``right``
is the number of the correct one, ``do`` what the bench then changes. ``exercise`` and ``solution``:
the label of an exercise that the cell belongs to. ``live``: the model that runs in the page, below
this text. ``contents``: a list of the sections below. ``lab``: words for who runs the notebook, not
on pages; the change to try, as ``tests/book/breaks`` makes it, if there is one.
"""
TITLE = "### Exercise: "
FRAMES = {
    "exercise": ("```{{exercise-start}} {title}\n:label: {label}\n```", "```{exercise-end}\n```"),
    "solution": (
        "````{{solution-start}} {label}\n:class: dropdown\n````",
        "````{solution-end}\n````",
    ),
}
"""How several cells are held together: what begins them, and what ends them."""
CONTENTS = "```{contents}\n:local:\n:depth: 2\n:class: questions\n:backlinks: none\n```"
DETAILS = r"<details><summary>{}</summary>\n\n(.*?)\n\n</details>"
HINT = re.compile(DETAILS.format("Hint"), re.DOTALL)
SOLUTION = re.compile(DETAILS.format("Solution(?:, continued)?"), re.DOTALL)
GUESS = re.compile(
    r"\*\*Before you try it:\*\* ([^\n]*)\n\n((?:- [^\n]*\n)+)\n" + DETAILS.format("What happens"),
    re.DOTALL,
)
OF_THE_BOOK = re.compile(
    r"\]\((?:(?:[\w-]+\.ipynb|questions\.md)#(?=(?:claim|q)-)|puzzles\.md#)([\w-]+)\)"
)
"""A link to a claim, a question or a puzzle with its file, which pages know without."""
LABEL = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)
SPAN = re.compile(r'<span class="([\w -]+)">(.*?)</span>')
NUMBERED = re.compile(r"\[[Tt]he (?:figure|exercise)\]\(#((?:fig|ex)-[\w-]+)\)")
WORKS = r"\[[^]]*\]\(references\.md#(\w+)\)"
IN_BRACKETS = re.compile(rf"\((?:{WORKS}(?:; )?)+\)")
TERM = re.compile(r"\[([^]]*)\]\(glossary\.md#term-([\w-]+)\)")
NEEDS = re.compile(r"^\*\*You need\*\* .*$", re.MULTILINE)
FOLDED = re.compile(r"\A<details>.*</summary>\n\n|\n\n</details>\Z")
"""The fold of a long listing."""
SECTION = re.compile(r"^## ", re.MULTILINE)
ANSWER = re.compile(r"\A(# .*\n\n)(.+)")


def enrich(notebook: NotebookNode, terms: Mapping[str, str]) -> None:
    """Put into a notebook what only pages know; ``terms`` has each term by its anchor."""
    cells: list[NotebookNode] = []
    inside: tuple[str, str] | None = None  # an exercise or a solution, and its label
    for cell in notebook.cells:
        said = cell.metadata.get(BOOK, {})
        if unknown := said.keys() - KINDS:
            raise ValueError(f"a cell's kind must be one of {sorted(KINDS)}, got {sorted(unknown)}")
        if "lab" in said:
            continue
        now = next(((kind, said[kind]) for kind in FRAMES if kind in said), None)
        if inside and now != inside:
            cells.append(_mark(FRAMES[inside[0]][1], *inside))
        if cell.cell_type == "markdown":
            cell.source = rich(cell.source, said, terms)
        for output in cell.get("outputs", ()):
            if LISTING_KEY in output.get("metadata", {}):
                output.data["text/markdown"] = FOLDED.sub("", output.data["text/markdown"])
        if now and now != inside:
            title, _, text = cell.source.removeprefix(TITLE).partition("\n\n")
            if now[0] == "exercise":
                cell.source = text
            cells.append(_mark(FRAMES[now[0]][0].format(title=title, label=now[1]), *now))
        inside = now
        cells.append(_place(cell) if "bench" in cell.metadata.get("tags", ()) else cell)
    if inside:
        cells.append(_mark(FRAMES[inside[0]][1], *inside))
    notebook.cells = ask_first(cells)


def ask_first(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Title, what one needs, guess, picture, answer: a page asks before it answers.

    A notebook has the answer below its title, as everybody expects who looks one up.
    """
    opening = [*takewhile(lambda cell: not SECTION.search(cell.source), cells[1:])]
    guess = next((cell for cell in opening if "guess" in cell.metadata.get(BOOK, {})), None)
    if guess is None:
        return cells
    at = opening.index(guess)
    needs = next(cell for cell in opening[:at] if "You need" in cell.source)
    pictures = [cell for cell in opening[:at] if cell is not needs]
    cells[0].source, _, text = cells[0].source.partition("\n\n")
    answer = new_markdown_cell(text, id=f"answer-{cells[0].id}")
    opening = [needs, guess, *pictures, answer, *opening[at + 1 :]]
    return [cells[0], *opening, *cells[len(opening) :]]


def _mark(directive: str, kind: str, label: str) -> NotebookNode:
    cell: NotebookNode = new_markdown_cell(directive, id=f"{kind}-{len(directive)}-{label}")
    return cell


def _place(cell: NotebookNode) -> NotebookNode:
    """Where a page has the bench, by the arguments of the call in a cell."""
    call = ast.parse(cell.source).body[-1]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    given = {each.arg: ast.literal_eval(each.value) for each in call.value.keywords}
    options = "".join(f":{k}:{'' if v is True else f' {v}'}\n" for k, v in given.items())
    place: NotebookNode = new_markdown_cell(f"```{{bench}}\n{options}```", id=cell.id)
    return place


def rich(source: str, said: Mapping[str, Any], terms: Mapping[str, str]) -> str:
    """A text with MyST's roles and directives."""
    source = OF_THE_BOOK.sub(r"](#\1)", LABEL.sub(r"(\1)=", source))
    source = NUMBERED.sub(r"{numref}`\1`", source)
    source = IN_BRACKETS.sub(lambda m: f"{{cite:p}}`{','.join(re.findall(WORKS, m[0]))}`", source)
    source = re.sub(WORKS, r"{cite:t}`\1`", source)
    source = TERM.sub(lambda m: _term(m[1], terms.get(m[2], m[2])), source)
    source = SPAN.sub(
        lambda m: f"[{m[2]}]{{{' '.join(f'.{each}' for each in m[1].split())}}}", source
    )
    source = NEEDS.sub(r"[\g<0>]{.needs}", source)
    source = ANSWER.sub(r"\1[\2]{.answer}", source)
    source = HINT.sub(r":::{admonition} Hint\n:class: dropdown\n\1\n:::", source)
    if guess := said.get("guess"):
        source = GUESS.sub(lambda m: _guess(m, guess), source)
    if "solution" in said:
        source = SOLUTION.sub(r"\1", source)
    if stage := said.get("stage"):
        heading = re.match(r"(\(.*\)=\n)?#.*\n\n", source)
        at = heading.end() if heading else 0
        source = f"{source[:at]}```{{stage}} {stage}\n```\n\n{source[at:]}"
    if model := said.get("live"):
        source = f"```{{live}} {model}\n{source}\n```"
    if said.get("contents"):
        source = CONTENTS
    return source


def _term(words: str, name: str) -> str:
    return f"{{term}}`{words}`" if words == name else f"{{term}}`{words} <{name}>`"


def _guess(found: re.Match[str], guess: Mapping[str, Any]) -> str:
    options = [each.removeprefix("- ") for each in found[2].splitlines()]
    options[guess["right"] - 1] += " *"
    do = f":do: {guess['do']}\n" if "do" in guess else ""
    return f"```{{predict}} {found[1]}\n{do}:options: {' | '.join(options)}\n\n{found[3]}\n```"


def glossary(path: Path) -> dict[str, str]:
    """The terms of the glossary, by their anchors there."""
    _, _, entries = path.read_text("utf-8").partition("```{glossary}\n")
    entries, _, _ = entries.partition("\n```")
    return {anchor(each): each for each in re.findall(r"^\S.*", entries, re.MULTILINE)}


def anchor(term: str) -> str:
    """As Sphinx calls it, after ``term-``."""
    return re.sub(r"[^A-Za-z0-9]+", "-", term).strip("-")


def as_on_pages(text: str, root: Path) -> NotebookNode:
    """A chapter of the book at ``root``, enriched."""
    notebook: NotebookNode = nbformat.reads(text, as_version=4)
    terms = root / "chapters" / "glossary.md"
    enrich(notebook, glossary(terms) if terms.exists() else {})
    return notebook


def read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Enrich a chapter before it is parsed."""
    if Path(app.env.doc2path(docname)).suffix == ".ipynb":
        content[0] = nbformat.writes(as_on_pages(content[0], Path(app.srcdir)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Read chapters so."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
