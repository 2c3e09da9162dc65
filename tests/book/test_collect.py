"""Sayings and pitfalls: written in the chapters, three of them shown there, all on one page."""

import re
from typing import Any

import pytest
from built import CHAPTERS, ROOT, parsed, prose, violations, without
from playwright.sync_api import expect

from book.sphinx.collect import SHOWN, anchor

PAGES = {"What people say": "chapters/sayings.html", "Pitfalls": "chapters/pitfalls.html"}


def section_of(name: str, title: str) -> str:
    """The source of this section of a chapter, empty where there is none."""
    text = prose(ROOT / "chapters" / f"{name}.ipynb")
    found = re.search(rf"(?ms)^## {title}$(.*?)(?=^## )", text)
    return found[1] if found else ""


def entries(title: str) -> dict[str, list[str]]:
    """Chapter -> the sayings or pitfalls in its source: first cells, or what stands in bold."""
    found = {}
    for path in CHAPTERS:
        row = r"(?m)^\| (?!Explanation|Saying)(.+?) \| .*\|$|^\*\*(.+?)\*\*"
        if rows := re.findall(row, section_of(path.stem, title)):
            found[path.stem] = [said or goes_wrong for said, goes_wrong in rows]
    return found


ENTRIES = {title: entries(title) for title in PAGES}
IN_CHAPTERS = [
    pytest.param(title, name, id=f"{name}-{title.split()[0]}")
    for title, found in ENTRIES.items()
    for name in found
]
each_title = pytest.mark.parametrize("title", PAGES)
each_section = pytest.mark.parametrize(("title", "name"), IN_CHAPTERS)


def words(part: Any) -> str:
    """Letters alone, without formulas: these are drawn."""
    text = part if isinstance(part, str) else without(part, ".formula").get_text()
    return re.sub(r"\W", "", re.sub(r"\$[^$]+\$", "", text))


@each_title
def test_all_entries_of_all_chapters_are_on_the_page_once(title):
    page = parsed(PAGES[title])
    shown = {
        section["id"]: [
            words(without(entry, ".verdict"))
            for entry in section.select("details.collected > summary")
        ]
        for section in page.select("section > section")
    }
    written = {
        anchor(name): [words(entry) for entry in found] for name, found in ENTRIES[title].items()
    }
    assert shown == written
    assert list(shown) == list(written)
    assert sum(map(len, shown.values())) >= 40
    for fold in page.select("details.collected"):
        assert len(fold.get_text()) > len(fold.summary.get_text()) + 20
    assert not [x.get_text() for x in page.select(".verdict") if x.get_text()[-1] in ".:;,"]


@each_section
def test_chapter_shows_three_and_leads_to_all(title, name):
    ids = {"What people say": "what-people-say", "Pitfalls": "pitfalls"}
    section = parsed(f"chapters/{name}.html").select_one(f"section#{ids[title]}")
    shown = section.select("tbody > tr > td:first-child, :scope > p > strong:first-child")
    written = ENTRIES[title][name]
    assert [words(each) for each in shown] == [words(each) for each in written[:SHOWN]]
    link = section.select("p > a")[-1]
    says = f"All {len(written)} {'sayings' if 'say' in title else 'pitfalls'} of this chapter"
    page = PAGES[title].removeprefix("chapters/")
    if len(written) > SHOWN:
        assert link["href"] == f"{page}#{anchor(name)}"
        assert link.parent.text.startswith(says)
    else:
        assert link["href"] == page
        assert "of the book" in link.parent.text
    assert link.parent.find_next_sibling() is None


@each_section
def test_links_to_claims_lead_from_the_page_to_the_chapter(title, name):
    """To each claim that the source names, with its card."""
    links = parsed(PAGES[title]).select(f"#{anchor(name)} a.claim-link")
    named = [link["href"].partition("#claim-")[2] for link in links]
    assert named == re.findall(r"#claim-([\w-]+)\)", section_of(name, title))
    for link in links:
        page, _, claim = link["href"].partition("#")
        assert parsed(f"chapters/{page}").find(id=claim)
        assert link["data-card"]


@each_title
def test_one_chapter_can_be_chosen_and_a_link_shows_all(page, site, title):
    page.goto(site + PAGES[title])
    sections = page.locator("section > section")
    n = len(ENTRIES[title])
    choice = page.locator(".collected-choice select")
    choice.select_option("3. Queries, keys, values")
    expect(sections.filter(visible=True)).to_have_count(1)
    expect(sections.filter(visible=True)).to_have_id(anchor("03_queries_keys_values"))
    page.evaluate("location.hash = '#of-depth'")
    expect(sections.filter(visible=True)).to_have_count(n)
    expect(choice).to_have_value("")


@each_title
def test_without_a_script_all_is_there_and_opens(window, site, title):
    page = window(site + PAGES[title], java_script_enabled=False)
    expect(page.locator(".collected-choice select")).to_be_hidden()
    fold = page.locator("details.collected").nth(4)
    inside = fold.locator("p").first
    expect(inside).to_be_hidden()
    fold.locator("summary").press("Enter")
    expect(inside).to_be_visible()


@each_title
def test_all_is_printed(page, site, title):
    page.goto(site + PAGES[title])
    page.emulate_media(media="print")
    folds = page.locator("details.collected")
    assert folds.count() == sum(map(len, ENTRIES[title].values()))
    seen = "all => all.map((fold) => fold.lastElementChild.checkVisibility())"
    assert all(folds.evaluate_all(seen))


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
@each_title
def test_open_pages_are_accessible_and_fit(window, site, title, theme, width):
    page = window(site + PAGES[title], color_scheme=theme, width=width)
    page.locator("details.collected").evaluate_all("all => all.forEach((one) => (one.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []
