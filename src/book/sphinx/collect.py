"""Sayings and pitfalls: a chapter shows three of each, and one page has those of all chapters.

They are written once, in their chapter: one is a row of a table, or a paragraph that begins in bold
and what follows it. ``{collected}`` reads the notebooks, so that links, citations and formulas are
resolved as if they were written on its page.
"""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.evidence.cells import tag_of
from book.press.contents import chapters
from book.sphinx.ledger import chapter_name
from book.sphinx.notebooks import as_on_pages
from book.sphinx.pages import raw
from book.sphinx.subjects import known_about

SHOWN = 3
# Title of a chapter's section: what is in it, and the page with those of all chapters.
COLLECTED = {
    "What people say": ("sayings", "chapters/sayings"),
    "Pitfalls": ("pitfalls", "chapters/pitfalls"),
}


class Collected(SphinxDirective):
    """``{collected} Pitfalls``: those of all chapters, each a fold, and a choice of the chapter."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Make one section for each chapter that has some."""
        title = self.arguments[0]
        texts = {path: text for path in chapters() if (text := written(path, title))}
        for path in chapters():
            self.env.note_dependency(str(path))
        sections = [self.chapter(path, text) for path, text in texts.items()]
        options = "".join(
            f'<option value="{section["ids"][0]}">{html.escape(section[0].astext())}</option>'
            for section in sections
        )
        choice = (
            '<p class="collected-choice needs-script"><label>Show <select autocomplete="off">'
            f'<option value="">all chapters</option>{options}</select></label></p>'
        )
        return [raw(choice), *sections]

    def chapter(self, path: Path, text: str) -> nodes.section:
        """The entries of a chapter under its name, below what its section says of all of them."""
        docname = path.with_suffix("").as_posix()
        page = self.env.app.builder.get_relative_uri(self.env.docname, docname)
        name = nodes.reference("", chapter_name(self.env, docname), internal=True, refuri=page)
        section = nodes.section("", nodes.title("", "", name), ids=[anchor(docname)])
        children = self.parse_text_to_nodes(text)
        found = entries(children)
        of_entries = [node for entry in found for node in entry]
        paragraphs = [node for node in children if isinstance(node, nodes.paragraph)]
        section += [node for node in paragraphs if node not in of_entries]
        for entry in found:
            about = known_about(self.env, labels_in(entry), self.env.docname)
            folded = fold(entry)
            folded[-1:-1] = [about] if about.children else []
            section += folded
        return section


def written(path: Path, title: str) -> str:
    """The Markdown of a chapter's section of this title, with the code that stands open in it."""
    cells = [
        f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source
        for cell in as_on_pages(path.read_text("utf-8"), path.parents[1]).cells
        if cell.cell_type == "markdown" or tag_of(cell) is None
    ]
    section = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", "\n\n".join(cells))
    # A label belongs to the chapter.
    return re.sub(r"(?m)^\([\w-]+\)=\n", "", section[1]) if section else ""


def anchor(docname: str) -> str:
    """Where the entries of a chapter begin on the pages that collect."""
    return f"of-{nodes.make_id(Path(docname).name)}"


def entries(children: Sequence[nodes.Node]) -> list[list[nodes.Node]]:
    """The sayings or pitfalls among a section's children, each as the nodes that it is made of."""
    for table in children:
        if isinstance(table, nodes.table):
            return [[row] for body in table.findall(nodes.tbody) for row in body.children]
    collected: list[list[nodes.Node]] = []
    for child in children:
        if isinstance(child, nodes.paragraph) and child.rawsource.startswith("**"):
            collected.append([child])
        elif collected:
            collected[-1].append(child)
    return collected


def labels_in(entry: Sequence[nodes.Node]) -> list[str]:
    """The claims that an entry links to."""
    links = (link for node in entry for link in node.findall(nodes.reference))
    uris = (str(link.get("refuri", "")).partition("#claim-")[2] for link in links)
    return [label for label in uris if label]


def fold(entry: Sequence[nodes.Node]) -> list[nodes.Node]:
    """What is said and the words of its verdict, or what goes wrong; under it, folded, all else."""
    first = cast(nodes.Element, entry[0])
    inside = [*entry]
    verdict: list[nodes.Node] = []
    if isinstance(first, nodes.row):
        said, *inside = [cell.children[0] for cell in first.children]
        in_bold = next(cast(nodes.Element, inside[0]).findall(nodes.strong)).deepcopy()
        for link in [*in_bold.findall(nodes.reference)]:
            link.replace_self(link.children)
        if isinstance(last := in_bold.children[-1], nodes.Text):  # what follows is folded
            in_bold.replace(last, nodes.Text(last.rstrip(" .:;,")))
        verdict = [raw('<b class="verdict">'), *in_bold.children, raw("</b>")]
        head = next(first.parent.parent.findall(nodes.row))
        for name, cell in zip(head.children[2:], inside[1:], strict=True):
            cast(nodes.paragraph, cell).insert(0, nodes.Text(f"{name.astext()}: "))
    else:
        said = next(first.findall(nodes.strong))
        first.remove(said)
    start, end = raw('<details class="collected"><summary>'), raw("</summary>")
    summary = nodes.inline("", "", *said.children, *verdict)
    return [start, summary, end, *inside, raw("</details>")]


def shorten(doctree: nodes.document) -> list[tuple[nodes.section, int]]:
    """Leave three entries in a section, and what has a cell; say how many there were."""
    shortened = []
    for section in doctree.findall(nodes.section):
        if section[0].astext() in COLLECTED and (collected := entries(section.children)):
            for entry in collected[SHOWN:]:
                if not any(isinstance(node, nodes.container) for node in entry):
                    for node in entry:
                        node.parent.remove(node)
            shortened.append((section, len(collected)))
    return shortened


def lead_to_all(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Show three in a chapter, and a line that leads to all."""
    for section, n in shorten(doctree):
        what, page = COLLECTED[section[0].astext()]
        uri = app.builder.get_relative_uri(docname, page)
        says = f"All {n} {what} of this chapter" if n > SHOWN else f"All {what} of the book"
        place = f"{uri}#{anchor(docname)}" if n > SHOWN else uri
        link = nodes.reference("", app.env.titles[page].astext(), internal=True, refuri=place)
        section += nodes.paragraph("", f"{says}: ", link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the page of all; shorten a chapter's own before its cells are drawn."""
    app.add_directive("collected", Collected)
    app.connect("doctree-resolved", lead_to_all, priority=400)  # before cells are drawn
    return {"parallel_read_safe": True, "parallel_write_safe": True}
