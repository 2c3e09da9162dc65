"""The map in the pages: where ``{map}`` stands, and small where a chapter's introduction ends."""

from collections.abc import Callable, Collection
from html import escape
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from attnbook.book.map import about, draw, in_html
from attnbook.book.map_parts import HERE, PARTS, Part
from attnbook_interactive import SCRIPT

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
    """``{map}``: the whole map, with the parts that ``:here:`` names lit."""

    option_spec = {"here": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Put the map, and a target for links to it."""
        here = self.options.get("here", "").split()
        if unknown := sorted({*here} - {*PARTS}):
            raise self.error(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
        target = nodes.target("", "", ids=[LABEL], names=[LABEL])
        self.state.document.note_explicit_target(target)
        return [target, map_node(here=here, small=False)]


def insert(app: Sphinx, doctree: nodes.document) -> None:
    """Put the small map where the introduction of a chapter ends: its picture comes first."""
    name = app.env.docname.rpartition("/")[2]
    if name not in HERE:
        return
    for box in doctree.findall(nodes.admonition):
        if box[0].astext() == "In short" and box.parent is not None:
            parts = box.parent.children
            end = next(i for i, part in enumerate(parts) if isinstance(part, nodes.section))
            box.parent.insert(end, map_node(here=HERE[name], small=True))
            app.env.attnbook_has_map = True  # type: ignore[attr-defined]
            return


def check_anchors(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of a part whose section is not there, if a map is drawn."""
    if not getattr(env, "attnbook_has_map", False):
        return
    labels = {*env.get_domain("std").anonlabels.values()}  # type: ignore[attr-defined]
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

    if node["small"]:
        where, anchor = builder.env.get_domain("std").anonlabels.get(LABEL, ("", ""))
        page = builder.get_relative_uri(builder.current_docname, where) if where else ""
        self.body.append(small(href, node["here"], page and f"{page}#{anchor}"))
    else:
        self.body.append(full(href, node["here"], node["ids"]))
    raise nodes.SkipNode


def full(href: Callable[[Part], str], here: Collection[str], ids: Collection[str]) -> str:
    """The whole map for wide and for narrow pages, and what it says as a list."""
    items = "".join(f"<li>{described(part, href)}</li>" for part in PARTS.values())
    label = f' id="{LABEL}"' if LABEL in ids else ""
    drawn = draw("wide", href, here) + draw("narrow", href, here)
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
    """Load the script on pages with a whole map."""
    maps = doctree.findall(map_node) if doctree is not None else ()
    if any(not each["small"] for each in maps):
        app.add_js_file(SCRIPT, loading_method="defer")


def small(href: Callable[[Part], str], here: Collection[str], whole: str) -> str:
    """The small map, and the parts that are lit."""
    link = f' · <a href="{whole}">the whole map</a>' if whole else ""
    items = "".join(f"<li>{described(PARTS[name], href)}</li>" for name in here)
    return (
        f'<figure class="attention-map here">{draw("small", href, here)}<figcaption>'
        f"<span><strong>You are here</strong>{link}</span><ul>{items}</ul></figcaption></figure>\n"
    )


def described(part: Part, href: Callable[[Part], str]) -> str:
    """A part in words."""
    shape = f", {in_html(part.shape)}" if part.shape else ""
    start = f"; initialization: {in_html(part.start)}" if part.start != "–" else ""
    name = f'<a href="{escape(href(part))}">{in_html(part.label)}</a>'
    return f"{name}: {in_html(part.formula)}{shape}{start}"


def skip(self: Any, node: map_node) -> None:
    """Elsewhere than in HTML there is no map."""
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    nowhere = (skip, None)
    app.add_node(map_node, html=(visit, None), latex=nowhere, text=nowhere)
    app.add_directive("map", Map)
    app.connect("doctree-read", insert)
    app.connect("env-check-consistency", check_anchors)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
