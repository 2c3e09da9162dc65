"""The decks that `make slides` makes of the chapters."""

import re

import pytest
from bs4 import BeautifulSoup
from built import HTML, NUMBERED
from playwright.sync_api import expect

from book.press.slides import deck, sentences


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_a_deck_is_the_chapters_figures_with_messages(path):
    page = (HTML / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
    made = deck(page)
    assert re.findall(r"(?:src|href|url\()\W*(?:https?:)?//", made) == []
    chapter, slides = (BeautifulSoup(text, "html.parser") for text in (page, made))
    main = [
        figure["id"]
        for figure in chapter.select("article figure:has(svg.figure)")
        if not figure.find_parent(id="more-measurements")
    ]
    drawn = slides.select("section:has(.drawing svg.figure)")
    assert len(drawn) == len(main) > 0
    first, *middle, last = slides.select("section")
    assert first.h1.text == chapter.h1.text.removesuffix("#")
    assert first.p.text == chapter.select_one(".answer").text
    for each in middle:
        assert 15 < len(each.h2.text) < 300
        assert len(each.select_one("details p").text) > 40
    assert last.h2.text == "What you can now say"
    assert last.select("li")
    ids = {tag["id"] for tag in slides.find_all(id=True)}
    assert {use["href"][1:] for use in slides.select(".formula use")} <= ids


@pytest.mark.parametrize(
    ("caption", "parts"),
    [
        ("Two heads. Both find it.", ("Two heads.", "Both find it.")),
        ("A share of 0.5 <i>x</i>. More.", ("A share of 0.5 <i>x</i>.", "More.")),
        ("No end", ("No end", "")),
    ],
)
def test_a_caption_begins_with_its_first_sentence(caption, parts):
    assert sentences(BeautifulSoup(f"<p>{caption}</p>", "html.parser").p) == parts


@pytest.fixture
def slides(window, tmp_path):
    page = (HTML / "chapters" / "00_attention.html").read_text(encoding="utf-8")
    path = tmp_path / "deck.html"
    path.write_text(deck(page), encoding="utf-8")
    return window(path.as_uri(), width=1280, height=800)


FITS = """() => [...document.querySelectorAll("section > *")]
  .filter(part => {
    const box = part.getBoundingClientRect(), slide = part.parentElement.getBoundingClientRect();
    return box.bottom > slide.bottom || box.right > slide.right || box.height < 10;
  })
  .map(part => part.textContent.trim().slice(0, 60))"""


def test_keys_turn_slides_and_open_notes(slides):
    note = slides.locator("details p").first
    expect(note).to_be_hidden()
    slides.keyboard.press("ArrowRight")
    assert slides.evaluate("scrollY / innerHeight") == 1
    slides.keyboard.press("n")
    expect(note).to_be_visible()
    assert slides.evaluate(FITS) == []
    slides.keyboard.press("ArrowLeft")
    assert slides.evaluate("scrollY") == 0


def test_a_slide_is_a_sheet(slides):
    sheets = re.findall(rb"/Type\s*/Page\b", slides.pdf(prefer_css_page_size=True))
    assert len(sheets) == slides.locator("section").count()
