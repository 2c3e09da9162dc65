"""The one document that `make pdf` prints: nothing is named twice, no link leads nowhere."""

from collections import Counter

import pytest
from bs4 import BeautifulSoup
from built import HTML
from test_questions import ENTRIES

from book.press.pdf import address, whole


@pytest.fixture(scope="module")
def document() -> BeautifulSoup:
    return whole()


def test_every_id_is_there_once(document):
    ids = Counter(tag["id"] for tag in document.select("article [id], article"))
    assert [name for name, count in ids.items() if count > 1] == []


def test_links_within_the_book_lead_to_their_places(document):
    ids = {tag["id"] for tag in document.find_all(id=True)}
    lost = set()
    for tag in document.select("article [href], article use"):
        href = tag.get("href") or tag["xlink:href"]
        if href.startswith("#") and href[1:] not in ids:
            lost.add(href)
    assert lost == set()


def test_all_formulas_and_pictures_are_there(document):
    assert len(document.select("article use")) > 1000
    assert all((HTML / image["src"]).exists() for image in document.select("article img[src]"))


def test_what_shows_an_answer_stands_under_it(document):
    questions = document.select_one("#chapters--questions")
    assert len(questions.select(".own-page")) == len(ENTRIES)
    assert len(questions.select("pre")) == sum(len(entry.code) for entry in ENTRIES)
    assert len(questions.select(".picture")) >= 8


@pytest.mark.parametrize(
    ("href", "leads"),
    [
        ("https://example.org/#a", "https://example.org/#a"),
        ("#claim-a", "#chapters--b--claim-a"),
        ("b.html", "#chapters--b"),
        ("../intro.html#x", "#intro--x"),
        ("claims.html#x", None),
    ],
)
def test_addresses(href, leads):
    assert address(href, "chapters/b", {"chapters/b", "intro"}) == leads
