"""What this book adds to every page: figures in the theme's colours, numbers, mended markup."""

import hashlib
import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.environment.collectors.toctree import TocTreeCollector
from sphinx.util import logging
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

from book.figures.colours import as_variables
from book.figures.style import INK, PAPER

logger = logging.getLogger(__name__)


def raw(text: str) -> nodes.raw:
    """HTML, as a node."""
    return nodes.raw("", text, format="html")


def write_static(app: Sphinx, folder: str, files: Mapping[str, str]) -> None:
    """Put texts, by their names, into a folder of ``_static``."""
    if app.builder.name == "html":
        target = Path(app.outdir) / "_static" / folder
        target.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (target / name).write_text(text, "utf-8")


def inline_figures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put drawn figures into the page itself, so that they take the theme's colours."""
    for image in list(doctree.findall(nodes.image)):
        if not image["uri"].endswith(".svg"):
            continue
        alt = image.get("alt", "")
        if not alt or alt.endswith(".svg"):
            logger.warning("a figure has no alt text in its cell's metadata", location=image)
        path = Path(app.srcdir) / image["uri"]
        image.replace_self(raw(themed_svg(path.read_text("utf-8"), alt)))


def themed_svg(svg: str, alt: str) -> str:
    """The figure as an element of the page, and beside it how it is laid out on a phone.

    Its ink has the text's colour, its paper none, its letters the page's face.
    """
    svg = svg[svg.index("<svg") :].strip()
    page, phone, narrow = svg.partition('<svg class="phone" display="none"')
    if phone:
        narrow = narrow.removesuffix("</svg>")
        svg = _themed(page + "</svg>", alt, "figure on-page")
        return svg + _themed("<svg" + narrow, alt, "figure on-phone")
    return _themed(svg, alt, "figure")


def _themed(svg: str, alt: str, kind: str) -> str:
    """The drawing with a name; it says its shape, so a page need not draw it out of sight."""
    svg = re.sub(r"(?s)<metadata>.*?</metadata>", "", svg)
    svg = as_variables(svg.replace(INK, "currentColor").replace(PAPER, "none"))
    # Two figures of a page may use the same names inside.
    prefix = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
    svg = re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', prefix, svg)
    head, _, drawn = svg.partition(">")
    head = re.sub(r' (?:width|height)="[^"]*"', "", head)
    shape = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', head)
    if shape and " style=" not in head:
        head += f' style="aspect-ratio:{shape[1]}/{shape[2]}"'
    named = f'<svg role="img" aria-label="{html.escape(alt)}" class="{kind}"'
    return f"{head.replace('<svg', named)}>{drawn}"


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
    # "%" stays with its number, but in code, where it is a sign like others.
    body = re.sub(
        r"(?s)<(pre|code|script)\b.*?</\1>|(?:(?<=\d)|(?<=\d</a>)) (?=%)",
        lambda match: match[0] if match[1] else "\u00a0",
        body,
    )
    # A signature's parameters are definitions without terms.
    tags = {"dl": 'span class="sig-lines"', "/dl": "/span", "dd": "span", "/dd": "/span"}
    context["body"] = re.sub(
        r'(?s)(?<=<dt class="sig ).*?(?=</dt>)',
        lambda signature: re.sub("(?<=<)/?d[ld](?=>)", lambda tag: tags[tag[0]], signature[0]),
        body,
    )


def number_by_file(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Give a chapter its file's number and not its place, so that chapter 12 is 12 without an 11.

    Returns:
        The documents whose number changed.
    """
    before, env.toc_secnumbers = env.toc_secnumbers, {}
    for docname, title in env.titles.items():
        if found := re.match(r"(\d\d)_", docname.rpartition("/")[2]):
            number = int(found[1])
            first, *sections = env.tocs[docname].findall(nodes.reference)
            first["secnumber"] = title["secnumber"] = [number]
            inner = {section["anchorname"]: () for section in sections}
            env.toc_secnumbers[docname] = {first["anchorname"]: (number,), **inner}
    return [name for name in env.titles if env.toc_secnumbers.get(name) != before.get(name)]


def number_in_chapters(self: TocTreeCollector, env: BuildEnvironment) -> list[str]:
    """Number the figures of chapters alone: a number without a chapter's says nothing elsewhere.

    Returns:
        The documents whose figures have other numbers than before.
    """
    before = env.toc_fignumbers
    TocTreeCollector.assign_figure_numbers(self, env)
    for docname in env.toc_fignumbers.keys() - env.toc_secnumbers.keys():
        del env.toc_fignumbers[docname]
    return [name for name in env.found_docs if env.toc_fignumbers.get(name) != before.get(name)]


def unregister(app: Sphinx, config: Config) -> None:
    """Take out two extensions that other extensions load.

    sphinx-thebe would fetch its program from elsewhere, for a launch button that this book has not.
    Sphinx 7 ends in an error where it looks for type comments of a NamedTuple under Python 3.13.
    """
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            module = listener.handler.__module__
            if module.startswith(("sphinx_thebe", "sphinx.ext.autodoc.type_comment")):
                app.disconnect(listener.id)
    app.registry.css_files[:] = [
        each for each in app.registry.css_files if each[0] != "sphinx-thebe.css"
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Number chapters by their files; put figures into pages, then mend what is written."""
    app.connect("config-inited", unregister)
    numbering = TocTreeCollectorWithStyles
    numbering.assign_section_numbers = number_by_file  # type: ignore[method-assign]
    numbering.assign_figure_numbers = number_in_chapters  # type: ignore[method-assign]
    app.connect("doctree-resolved", inline_figures)
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
