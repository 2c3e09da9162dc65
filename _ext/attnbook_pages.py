"""What this book adds to every page: figures that follow the theme, mended markup, no strangers."""

import hashlib
import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from attnbook.book.figures import INK, PAPER

logger = logging.getLogger(__name__)


def inline_figures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put drawn figures into the page itself, so that they take the theme's colours."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        if not image["uri"].endswith(".svg"):
            continue
        alt = image.get("alt", "")
        if not alt or alt.endswith(".svg"):
            logger.warning("a figure has no alt text in its cell's metadata", location=image)
        path = Path(app.srcdir) / image["uri"]
        image.replace_self(nodes.raw("", themed_svg(path.read_text("utf-8"), alt), format="html"))


def themed_svg(svg: str, alt: str) -> str:
    """The figure as an element of the page: ink in the text's colour, paper transparent."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"(?s)<metadata>.*?</metadata>", "", svg)
    svg = svg.replace(INK, "currentColor").replace(PAPER, "none")
    # Two figures of a page may use the same names inside.
    prefix = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
    svg = re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', prefix, svg)
    return re.sub(
        r'<svg ((?:(?! width| height)[^>])*?)(?: (?:width|height)="[^"]*")+',
        lambda m: f'<svg role="img" aria-label="{html.escape(alt)}" class="figure" {m[1]}',
        svg,
        count=1,
    )


def mend(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Mend what docutils and Sphinx write and screen readers stumble over."""
    body = context.get("body", "")
    # What scrolls must be in reach of the keyboard.
    table = '<div class="pst-scrollable-table-container"'
    body = body.replace(table, f'{table} tabindex="0"')
    # A page's second navigation needs a name.
    body = body.replace('<nav class="contents', '<nav aria-label="On this page" class="contents')
    # A list has to have items, and this role of theirs is deprecated.
    body = body.replace(' role="doc-biblioentry"', ' role="listitem"')
    # Names, brackets and spaces have the colour of code anyway: a third of a chapter's elements.
    body = re.sub(r'<span class="[npw]">([^<]*)</span>', r"\1", body)
    # A signature's parameters are definitions without terms.
    tags = {"dl": 'span class="sig-lines"', "/dl": "/span", "dd": "span", "/dd": "/span"}
    context["body"] = re.sub(
        r'(?s)(?<=<dt class="sig ).*?(?=</dt>)',
        lambda signature: re.sub("(?<=<)/?d[ld](?=>)", lambda tag: tags[tag[0]], signature[0]),
        body,
    )


def without_thebe(app: Sphinx, config: Config) -> None:
    """Unregister sphinx-thebe, which would fetch its program from elsewhere.

    Jupyter Book loads it in every book; this one has no launch button for it.
    """
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler.__module__.startswith("sphinx_thebe"):
                app.disconnect(listener.id)
    app.registry.css_files[:] = [
        each for each in app.registry.css_files if each[0] != "sphinx-thebe.css"
    ]


def number_by_page(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Figures of a page without a number count from 1, as a chapter's do."""
    for kinds in env.toc_fignumbers.values():
        for figures in kinds.values():
            if all(len(number) == 1 for number in figures.values()):
                figures.update((figure, (n,)) for n, figure in enumerate(figures, start=1))
    return []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    app.connect("config-inited", without_thebe)
    app.connect("env-get-updated", number_by_page, priority=600)  # after Sphinx has numbered them
    app.connect("doctree-resolved", inline_figures)
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
