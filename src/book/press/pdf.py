"""The whole book as one tagged, outlined PDF: ``make pdf`` prints it with the tests' Chromium.

The built pages become one document: their ids get the page's name in front, and links between pages
lead within it. What a page prints by itself is what it prints here, its main path.
"""

import posixpath
import re
import sys
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from playwright.sync_api import sync_playwright

from book.press import render
from book.press.browser import find
from book.press.contents import sources

ROOT = Path(__file__).parents[3]
HTML = ROOT / "_build" / "html"
PDF = ROOT / "_build" / render.PDF
LEFT_OUT = {"chapters/claims"}  # the ledger: hundreds of sheets that one looks up on the page
NAMING = ("for", "aria-labelledby", "aria-describedby", "aria-controls", "headers")
"""Attributes that name ids."""


def label(name: str, anchor: str = "") -> str:
    """A page's or its element's id in the whole."""
    page = name.replace("/", "--")
    return f"{page}--{anchor}" if anchor else page


def address(href: str, name: str, pages: set[str]) -> str | None:
    """Where a link of a page leads from the whole; None where the whole does not go."""
    if re.match(r"[a-z]+:|//", href):
        return href
    path, _, anchor = href.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    page = path.removesuffix(".html")
    return f"#{label(page, anchor)}" if page in pages else None


def article(name: str, pages: set[str]) -> Tag:
    """A page's text, to stand among the others'."""
    soup = BeautifulSoup((HTML / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
    text = soup.select_one("article")
    assert text is not None
    for link in text.select(".own-page a"):
        add_shown(link, soup)
    for aside in text.select("script, .headerlink, .bench-evidence"):
        aside.decompose()
    for glyphs in soup.select("svg:has(defs [id^=math-])"):  # of the page's formulas, at its end
        text.append(glyphs)
    for tag in text.find_all(True):
        for key, value in list(tag.attrs.items()):
            if key in NAMING or isinstance(value, str):
                value = value if isinstance(value, str) else " ".join(value)
                moved = attribute(key, value, name, pages)
                if moved is None:
                    del tag[key]
                else:
                    tag[key] = moved
    text["id"] = label(name)
    text["style"] = "break-before: page"
    return text


def add_shown(link: Tag, soup: BeautifulSoup) -> None:
    """Put under a question's answer the lines or the picture of its page, which is as deep."""
    page = HTML / "questions" / posixpath.basename(str(link["href"]))
    own = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    for shown in own.select("article > section > :is(.picture, [class^=highlight])"):
        link.parent.insert_before(shown)  # type: ignore[union-attr]
    defs = soup.select_one("svg > defs")
    known = {tag["id"] for tag in soup.select("svg > defs > *")}
    for glyph in own.select("svg > defs > [id^=math-]"):
        if defs is not None and glyph["id"] not in known:
            defs.append(glyph)


def attribute(key: str, value: str, name: str, pages: set[str]) -> str | None:
    """What an attribute of a page is in the whole; None for a link that leads nowhere there."""
    if key == "id":
        return label(name, value)
    if key in ("href", "xlink:href"):
        return address(value, name, pages)
    if key == "src" and not value.startswith("data:"):
        return posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
    if key in NAMING:
        return " ".join(label(name, each) for each in value.split())
    return value.replace("url(#", f"url(#{label(name)}--")


def whole() -> BeautifulSoup:
    """One document of all pages."""
    named = (path.with_suffix("").as_posix() for path in sources())
    listed = [name for name in named if name not in LEFT_OUT]
    frame = BeautifulSoup((HTML / f"{listed[0]}.html").read_text(encoding="utf-8"), "html.parser")
    for script in frame.select("script"):
        script.decompose()
    place = frame.select_one("article")
    assert place is not None
    for name in listed:
        place.insert_before(article(name, {*listed}))
    frame.select("article")[0]["style"] = ""
    place.decompose()
    return frame


def main() -> None:
    """Print the whole."""
    page, unfinished = HTML / "whole.html", PDF.with_suffix(".unfinished")
    page.write_text(str(whole()), encoding="utf-8")
    number = (
        '<div style="font-size: 8px; width: 100%; text-align: center" class="pageNumber"></div>'
    )
    path = find("chromium")  # may ask a Playwright of its own
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path)
            tab = browser.new_page(color_scheme="light")
            tab.set_default_timeout(300_000)
            tab.goto(page.as_uri())
            tab.pdf(
                path=unfinished,
                format="A4",
                tagged=True,
                outline=True,
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=number,
                margin={"top": "16mm", "bottom": "16mm", "left": "16mm", "right": "16mm"},
            )
            browser.close()
        unfinished.replace(PDF)
    finally:
        page.unlink()
    render.offer()
    sys.stdout.write(f"{PDF.relative_to(ROOT)}: {PDF.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
