"""The two layers of a chapter: what stands under "More measurements" folds, section by section."""

import re
from typing import Any

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx.application import Sphinx

from book.sphinx.pages import raw

TITLE = "More measurements"
WORDS_A_MINUTE = 170


def fold_sections(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Fold each section of the second layer to its title, its length, and its first sentence."""
    for layer in list(doctree.findall(nodes.section)):
        if _title(layer).astext() != TITLE:
            continue
        for section in [part for part in layer.children if isinstance(part, nodes.section)]:
            at = section.index(_title(section))
            section.insert(at, raw('<details class="more"><summary>'))
            section.insert(at + 2, raw(f"<span>{length(section)}</span></summary>"))
            section.append(raw("</details>"))


def leave_out_of_contents(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """The list beside a page names the second layer, and not what is in it."""
    contents = BeautifulSoup(context.get("toc") or "", "html.parser")
    for layer in contents.select("li"):
        if layer.a and layer.a.get_text() == TITLE:
            for inner in layer.select("ul"):
                inner.decompose()
            context["toc"] = str(contents)


def length(section: nodes.section) -> str:
    """How long a section takes to read, a minute for each figure, and how many these are."""
    prose = " ".join(
        text
        for part in section.findall(nodes.paragraph)
        for text in part.findall(nodes.Text)
        if not isinstance(text.parent, nodes.raw)
    )
    figures = len(list(section.findall(nodes.figure)))
    minutes = max(1, round(len(re.findall(r"\w+", prose)) / WORDS_A_MINUTE) + figures)
    return f"{minutes} min" + f" · {figures} figure{'s' * (figures > 1)}" * bool(figures)


def _title(section: nodes.section) -> nodes.title:
    return next(iter(section.findall(nodes.title)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Fold when all cells are drawn; then leave what is folded out of the page's contents."""
    app.connect("doctree-resolved", fold_sections, priority=700)  # when all cells are drawn
    app.connect("html-page-context", leave_out_of_contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
