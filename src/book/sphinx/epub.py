"""The book for e-readers: Sphinx's EPUB builder writes it, its pages are XML and need no script.

Evidence is left out, as on paper; what else folds can be opened.
"""

import posixpath
import re
import zipfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder
from sphinx.config import Config

from attnbook import __version__
from book.figures.colours import in_light
from book.figures.workbench.bench import styles
from book.sphinx.download import put
from book.sphinx.web import about

LEFT_OUT = {"script", "button", "form", "nav"}
LEFT_OUT_CLASSES = {
    *("margin-mark", "headerlink", "visually-hidden", "live", "collected-choice", "on-phone"),
    *("bench-controls", "bench-step", "bench-evidence", "bench-line"),
}
# HTML does not mind the case of these, XML does.
CASED = ("viewBox", "preserveAspectRatio", "clipPath", "patternUnits", "patternTransform")
CASES = {name.lower(): name for name in CASED}
PLAIN = re.compile(r"data-|aria-roledescription|tabindex")
"""Attributes that only scripts need, or that EPUB does not know."""


class Epub(Epub3Builder):
    """Sphinx's, which sees no hidden contents and does not say that its pages hold drawings."""

    def get_toc(self) -> None:
        """List the pages as the first one's contents do."""
        self.refnodes = list(self.below(self.config.root_doc, 1))
        self.toc_add_files(self.refnodes)

    def below(self, page: str, level: int) -> Iterator[dict[str, Any]]:
        """The pages that a page has below it, each followed by its own."""
        for name in self.env.toctree_includes.get(page, []):
            uri, title = self.get_target_uri(name), self.env.titles[name]
            if uri not in self.config.epub_exclude_files:
                numbers: Sequence[int] = title.get("secnumber", ())
                text = "".join(f"{n}. " for n in numbers) + title.astext()
                yield {"level": level, "refuri": uri, "text": escape(text)}
                yield from self.below(name, level + 1)

    def content_metadata(self) -> dict[str, Any]:
        """Sphinx's, with the date of the sources instead of the day's."""
        day = about(self.app)[0]["dateModified"]
        return super().content_metadata() | {"date": f"{day}T00:00:00Z"}

    def build_epub(self) -> None:
        """Pack the files again, without their dates."""
        super().build_epub()
        path = Path(self.outdir) / f"{self.config.epub_basename}.epub"
        with zipfile.ZipFile(path) as packed:
            files = [(each, packed.read(each)) for each in packed.infolist()]
        with zipfile.ZipFile(path, "w") as archive:
            for each, content in files:
                put(archive, each.filename, content, each.compress_type)

    def build_content(self) -> None:
        """Take in what the pages load, and declare their drawings."""
        for path in (Path(self.outdir) / "_static").iterdir():
            if path.name != "pygments.css":
                path.unlink()
        super().build_content()
        contents = Path(self.outdir) / "content.opf"
        page = re.compile(r'(?=media-type="application/xhtml\+xml")(?!.*properties)')
        contents.write_text(page.sub('properties="svg" ', contents.read_text("utf-8")), "utf-8")


def say_version(app: Sphinx, config: Config) -> None:
    """An EPUB says of which version it is."""
    config.version = __version__


def begin(app: Sphinx) -> None:
    """An e-reader gets none of the files that the pages of the web load."""
    if app.builder.name == "epub":
        app.config.html_static_path = []
        app.config.html_domain_indices = False


def write(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> str | None:
    """Make a page XML."""
    if app.builder.name != "epub":
        return None
    soup = BeautifulSoup(context.get("body", "") + context.get("glyphs", ""), "html.parser")
    for part in soup.find_all(is_left_out):
        if part.name == "button" and part.find_parent(class_="options"):
            part.name = "span"  # an answer to choose
            part.attrs = {}
        else:
            part.decompose()
    for hint in soup.find_all(class_="dropdown"):
        hint.name = "details"
        hint.find(class_="admonition-title").name = "summary"  # type: ignore[union-attr]
    say_pictures(soup)
    for link in soup.find_all("a", href=True):
        lead(app, page, link)
    for caption in soup.find_all("figcaption"):  # it has to be the last
        for below in caption.find_next_siblings():
            below.find_parent("figure").insert_after(below.extract())  # type: ignore[union-attr]
    for part in soup.find_all(True):
        part.name = CASES.get(part.name, part.name)
        part.attrs = {CASES.get(k, k): v for k, v in part.attrs.items() if not PLAIN.match(k)}
    for drawing in soup.find_all("svg"):
        mend(drawing)
    context["body"] = in_light(soup.decode(formatter="minimal"))
    context["styles"] = in_light(styles()) if soup.find(class_="bench-picture") else ""
    return "epub.html"


def is_left_out(part: Tag) -> bool:
    """What needs a script, or is for those who see no page; a selector takes ten times longer."""
    above = part.parent
    return bool(
        part.name in LEFT_OUT
        or LEFT_OUT_CLASSES.intersection(part.get_attribute_list("class"))
        or part.has_attr("data-stage-read")
        or (part.name == "text" and part.find_parent(class_="formula"))
        or (
            part.name != "details"
            and above
            and "attention-map" in above.get_attribute_list("class")
        )
    )


def say_pictures(soup: BeautifulSoup) -> None:
    """Put into words what only styles make a picture."""
    for bar in soup.find_all(class_="bar"):
        bar.replace_with(": ")
    for cells in soup.find_all(lambda part: part.has_attr("aria-label"), class_="cells"):
        cells.string = str(cells["aria-label"])
        cells.attrs = {}


def mend(drawing: Tag) -> None:
    """Give an SVG what it needs in XML, and old readers what they know."""
    if drawing.get("role") != "img":
        del drawing["role"]
    drawing["xmlns"] = "http://www.w3.org/2000/svg"
    drawing["xmlns:xlink"] = "http://www.w3.org/1999/xlink"
    around = drawing.parent
    if around and (depth := re.fullmatch("--depth: (.*)", str(around.get("style")))):
        drawing["style"] = f"vertical-align: {depth[1]}"
        del around["style"]
    for use in drawing.find_all("use", href=True):
        use["xlink:href"] = use.attrs.pop("href")
    for space in drawing.find_all("path", d=False):
        space["d"] = "M0 0"
    for text in drawing.find_all(lambda part: part.has_attr("paint-order")):
        text["style"] = f"paint-order: {text.attrs.pop('paint-order')}"


def lead(app: Sphinx, page: str, link: Tag) -> None:
    """A link leads to a page of the EPUB, or elsewhere, or is plain text."""
    address = str(link["href"])
    if re.match(r"[a-z]+:", address):
        return
    path, _, anchor = address.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    name, _ = posixpath.splitext(path)
    out = app.builder.get_target_uri(name)
    known = name in app.env.found_docs and out not in app.config.epub_exclude_files
    if not known or anchor.startswith("claim-"):
        link.unwrap()
        return
    inside = f"#{anchor}" if anchor else ""
    link["href"] = posixpath.relpath(out, posixpath.dirname(page)) * (name != page) + inside


def setup(app: Sphinx) -> dict[str, bool]:
    """Put the book's builder in place of Sphinx's; have the last word on each of its pages."""
    app.add_builder(Epub, override=True)
    app.connect("config-inited", say_version)
    app.connect("builder-inited", begin, priority=999)
    app.connect("html-page-context", write, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
