"""Slides for lecturers: ``make slides`` makes one deck of each built chapter.

A slide is a figure in its default state, what it says in one sentence, and a note for who speaks:
all of it stands on the page. A deck is one file that needs nothing else.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from book.evidence.files import BUILD, write_whole
from book.figures import workbench
from book.figures.colours import css
from book.press.policy import with_policy

CHAPTERS = BUILD / "html" / "chapters"
SLIDES = BUILD / "slides"
LICENCE = "Attention, Measured · CC BY 4.0"
SENTENCE = 25
"""A bold text of fewer characters is a term, and not what a figure says."""
STYLE = """
* { box-sizing: border-box; }
html { scroll-snap-type: y mandatory; background: var(--page); color: var(--ink);
  font: 2.6vh/1.4 system-ui, sans-serif; }
body { margin: 0; }
section { position: relative; display: flex; flex-direction: column; gap: 2vh; height: 100vh;
  padding: 5vh 6vw 6vh; overflow: hidden; scroll-snap-align: start; break-after: page; }
h1, h2 { margin: 0; font-weight: 600; line-height: 1.2; text-wrap: balance; }
h1 { margin-top: 24vh; font-size: 7vh; }
h2 { font-size: 4.4vh; }
section > p { max-width: 60ch; margin: 2vh 0; font-size: 3.6vh; }
ul { margin: 2vh 0; padding-left: 1em; font-size: 3.4vh; }
li { margin: 1.6vh 0; }
.drawing { flex: 1; min-height: 0; }
.drawing svg { width: 100%; min-width: 0; max-width: none; height: 100%; }
.formula svg { fill: currentcolor; overflow: visible; vertical-align: var(--depth); }
.formula text { display: none; }
.glyphs { position: absolute; width: 0; height: 0; }
footer { position: absolute; right: 6vw; bottom: 2vh; left: 6vw; display: flex;
  justify-content: space-between; color: var(--muted); font-size: 1.8vh; }
details { align-self: flex-end; padding: 1vh 1.5vw; border-radius: 1vh; background: var(--lane);
  font-size: 2.2vh; }
details:not([open]) { padding: 0 0.6em; color: var(--muted); font-size: 1.8vh; }
summary { cursor: pointer; }
details p { margin: 1vh 0 0; }
@page { size: 320mm 180mm; margin: 0; }
@media print { details { display: none; } section:last-of-type { break-after: auto; } }
"""
# Arrows and space turn slides, N opens the notes.
SCRIPT = """
const slides = [...document.querySelectorAll("section")];
addEventListener("keydown", (event) => {
  if (event.target.closest?.("summary")) return;
  const on = ["ArrowRight", "ArrowDown", "PageDown", " "].includes(event.key);
  const by = on - ["ArrowLeft", "ArrowUp", "PageUp"].includes(event.key);
  const at = Math.round(scrollY / innerHeight);
  if (by) {
    event.preventDefault();
    slides[Math.max(0, Math.min(slides.length - 1, at + by))].scrollIntoView();
  } else if (event.key.toLowerCase() === "n") {
    const all = document.querySelectorAll("details"), open = !all[0].open;
    for (const note of all) note.open = open;
  }
});
"""


def deck(page: str) -> str:
    """The slides of a chapter's page."""
    soup = BeautifulSoup(page, "html.parser")
    for part in soup.select(".headerlink, .margin-mark, #more-measurements"):
        part.decompose()
    for link in soup.select("a"):
        link.unwrap()
    title = _inner(soup.select_one("h1"))
    sections = [f"<h1>{title}</h1><p>{_inner(soup.select_one('.answer'))}</p>"]
    sections += map(slide, soup.select("article figure:has(svg.figure), article .bench"))
    said = soup.select_one("#what-you-can-now-say ul")
    sections.append(f"<h2>What you can now say</h2><ul>{_inner(said)}</ul>")
    body = "".join(
        f"<section>{each}<footer><span>{LICENCE}</span><span>{n} / {len(sections)}</span></footer>"
        "</section>\n"
        for n, each in enumerate(sections, 1)
    )
    styles = css() + (Path(workbench.__file__).parent / "bench.css").read_text("utf-8") + STYLE
    name = soup.title.get_text() if soup.title else ""
    return with_policy(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>Slides: {escape(name)}</title>\n<style>\n{styles}</style>\n</head>\n<body>\n"
        f"{body}{soup.select_one('svg.glyphs') or ''}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def slide(figure: Tag) -> str:
    """What a figure says, its drawing, and the note."""
    drawing = figure.select_one("svg[role]")
    assert drawing is not None
    drawing.attrs.pop("style", None)
    caption = figure.select_one(".caption-text")
    number = figure.select_one(".caption-number")
    first, rest = sentences(caption) if caption else ("", "")
    if caption:
        message = bold_after(figure)
    else:
        message = question_after(figure)
        drawing["viewbox"] = "0 0 1340 579"  # all stages of the bench
    note = [first * bool(message), rest, escape(str(drawing["aria-label"]))]
    words = " ".join(part for part in note if part)
    label = f"{number.get_text(strip=True)} · " if number else ""
    return (
        f'<h2>{message or first}</h2><div class="drawing">{drawing}</div>'
        f"<details><summary>{label}Note</summary><p>{words}</p></details>"
    )


def sentences(caption: Tag) -> tuple[str, str]:
    """A caption's first sentence and the rest, with their formulas."""
    parts = list(caption.children)
    for i, part in enumerate(parts):
        if isinstance(part, NavigableString) and (end := re.search(r"[.?!](?=\s)", part)):
            before, after = parts[:i], parts[i + 1 :]
            first = "".join(map(str, before)) + escape(part[: end.end()])
            return first, escape(part[end.end() :].strip()) + "".join(map(str, after))
    return _inner(caption), ""


def bold_after(figure: Tag) -> str:
    """The first sentence in bold between a figure and the next, or the next section."""
    for part in figure.find_all_next(["strong", "figure", "section"]):
        if part.name != "strong":
            return ""
        text = part.get_text()
        if len(text) >= SENTENCE and not text.endswith(":") and part.find_parent("p"):
            return _begun(part) + "." * (text[-1] not in ".?!")
    return ""


def question_after(picture: Tag) -> str:
    """What is asked of the bench before its reader tries it."""
    ask = picture.find_next(class_="predict") or picture.find_previous(class_="predict")
    assert isinstance(ask, Tag)
    question = ask.select_one("p")
    assert question is not None
    for before in question.select("strong"):
        before.decompose()
    return _begun(question)


def _begun(part: Tag) -> str:
    """Its words, with a capital letter."""
    text = _inner(part).strip()
    return text[0].upper() + text[1:]


def _inner(part: Tag | None) -> str:
    assert part is not None
    return part.decode_contents()


def main() -> Iterator[str]:
    """Write a deck for each chapter; yields its path."""
    SLIDES.mkdir(parents=True, exist_ok=True)
    for path in sorted(CHAPTERS.glob("[0-9][0-9]_*.html")):
        write_whole(SLIDES / path.name, deck(path.read_text("utf-8")))
        yield f"{SLIDES / path.name}\n"
