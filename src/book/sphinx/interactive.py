"""Figures that move: what ``book.figures.moving`` drew gets its controls and its script."""

import json
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from book.figures.moving.figure import HERE, element, script
from book.sphinx.pages import raw, themed_svg, write_static

FOLDER = "interactive"  # below _static
SCRIPT = f"{FOLDER}/figures.js"


def write_files(app: Sphinx) -> None:
    """Put scripts and styles where pages that have a figure look for them."""
    style = (HERE / "figures.css").read_text("utf-8")
    write_static(app, FOLDER, {"figures.css": style, "figures.js": script()})


def insert(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the picture of each figure by its element."""
    for image in list(doctree.findall(nodes.image)):
        if not image["uri"].endswith(".svg"):
            continue
        svg = (Path(app.srcdir) / image["uri"]).read_text("utf-8")
        if "data-interactive=" not in svg:
            continue
        metadata = re.search(r"(?s)<metadata>(.*?)</metadata>", svg)
        assert metadata, f"{image['uri']} has no metadata"
        recipe = json.loads(unescape(metadata[1]))
        svg = re.sub(r"(?s)<title>.*?</title>", "", svg)  # a tooltip over the whole drawing
        drawn = themed_svg(svg, recipe["title"])
        describes = f"{recipe['name']}-description"
        drawn = drawn.replace("<desc>", f'<desc id="{describes}">').replace(
            f'aria-label="{escape(recipe["title"])}"',
            f'aria-label="{escape(recipe["title"])}" aria-describedby="{describes}"',
            1,
        )
        doctree.attnbook_interactive = True  # type: ignore[attr-defined]
        image.replace_self(raw(element(drawn, recipe)))


def load(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the script on pages that have a figure."""
    if getattr(doctree, "attnbook_interactive", False):
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Give figures their elements before pictures are put in, and their pages the script."""
    app.add_css_file(f"{FOLDER}/figures.css")
    app.connect("builder-inited", write_files)
    app.connect("doctree-resolved", insert, priority=400)  # before figures are put into the page
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
