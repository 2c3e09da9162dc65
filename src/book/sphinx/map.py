"""The map of a Transformer, where a page has ``{map}``."""

from collections.abc import Callable, Collection
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from book.figures.map import about, draw, in_html
from book.figures.map.parts import PARTS, Part
from book.sphinx.interactive import SCRIPT

logger = logging.getLogger(__name__)
LABEL = "the-map"
CAPTION = """The thick line is the stream: one vector for each token, to which every branch adds.
The two forms differ in where LayerNorm (LN, orange) stands: at the head of each branch f, or on
the stream after each addition. Dotted: the embedding's table is used again as the output layer.
Dashed: the backward pass, which goes back through every arrow. The blue number on a box is the
chapter that measures the part."""


class map_node(nodes.General, nodes.Element):  # noqa: N801 - docutils writes nodes so
    """A map; drawn when its page is written, since its links start from there."""


class Map(SphinxDirective):
    """The directive ``{map}``."""

    def run(self) -> list[nodes.Node]:
        """Put the map, and a target for links to it."""
        target = nodes.target("", "", ids=[LABEL], names=[LABEL])
        self.state.document.note_explicit_target(target)
        return [target, map_node()]


def check_anchors(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a part whose section is not there, if a map is drawn."""
    known = env.get_domain("std").anonlabels  # type: ignore[attr-defined]
    if LABEL not in known:
        return
    labels = {*known.values()}
    for name, part in PARTS.items():
        page = f"chapters/{part.page}"
        sections = env.tocs[page].findall(nodes.reference) if page in env.tocs else []
        anchors = {section["anchorname"] for section in sections}
        if f"#{part.anchor}" not in anchors and (page, part.anchor) not in labels:
            message = "the map's part %r leads to #%s, which is not there"
            logger.warning(message, name, part.anchor, location=page)


def visit(self: Any, node: map_node) -> None:
    """Write the map into the page."""
    builder = self.builder

    def href(part: Part) -> str:
        page = builder.get_relative_uri(builder.current_docname, f"chapters/{part.page}")
        return f"{page}#{part.anchor}"

    self.body.append(full(href, node["ids"]))
    raise nodes.SkipNode


def full(href: Callable[[Part], str], ids: Collection[str]) -> str:
    """The map for wide and for narrow pages, and what it says as a list."""
    items = "".join(f"<li>{described(part, href)}</li>" for part in PARTS.values())
    label = f' id="{LABEL}"' if LABEL in ids else ""
    drawn = draw("wide", href) + draw("narrow", href)
    return (
        f'<figure class="attention-map"{label}>{drawn}'
        f"{controls()}<figcaption>{CAPTION}</figcaption>"
        "<details><summary>The parts in words: formula, shape, initialization</summary>"
        f"<ul>{items}</ul></details></figure>\n"
    )


def controls() -> str:
    """For the script: a part to choose, and the direction."""
    options = "".join(
        f'<option value="{name}" data-says="{escape(in_html(about(part)))}" data-back="'
        f'{escape(in_html(f"Backward through {part.label}: {part.back}"))}">'
        f"{escape(part.label)}</option>"
        for name, part in PARTS.items()
    )
    return (
        '<form class="controls" aria-label="Map: controls">'
        f"<label>Part <select><option>choose, or point at a box</option>{options}</select></label>"
        '<button type="button" aria-pressed="false">backward pass</button></form>'
        '<p class="said" role="status"></p>'
    )


def load(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the script on pages with a map."""
    if doctree is not None and any(doctree.findall(map_node)):
        app.add_js_file(SCRIPT, loading_method="defer")


def described(part: Part, href: Callable[[Part], str]) -> str:
    """A part in words."""
    shape = f", {in_html(part.shape)}" if part.shape else ""
    start = f"; initialization: {in_html(part.start)}" if part.start != "–" else ""
    name = f'<a href="{escape(href(part))}">{in_html(part.label)}</a>'
    return f"{name}: {in_html(part.formula)}{shape}{start}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the directive; check where its parts lead when all pages are read."""
    app.add_node(map_node, html=(visit, None))
    app.add_directive("map", Map)
    app.connect("env-check-consistency", check_anchors)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
