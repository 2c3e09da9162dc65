"""Sayings and pitfalls: written in the chapters, three of them shown there, all on one page."""

import re
from functools import cache

import nbformat
import pytest
from bs4 import BeautifulSoup, Tag
from built import CHAPTERS, HTML, violations
from playwright.sync_api import expect

from attnbook_collect import SHOWN, anchor

PAGES = {"What people say": "chapters/sayings.html", "Pitfalls": "chapters/pitfalls.html"}


def entries(title: str) -> dict[str, list[str]]:
    """Chapter -> the sayings or pitfalls in its source: first cells, or what stands in bold."""
    found = {}
    for path in CHAPTERS:
        cells = nbformat.read(path, 4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        section = re.search(rf"(?ms)^## {title}$(.*?)(?=^## )", text)
        row = r"(?m)^\| (?!Explanation|Saying)(.+?) \| .*\|$|^\*\*(.+?)\*\*"
        if section and (rows := re.findall(row, section[1])):
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


@cache
def parsed(page: str) -> BeautifulSoup:
    return BeautifulSoup((HTML / page).read_text("utf-8"), "html.parser")


def words(part: Tag | str) -> str:
    """Letters alone, without formulas: these are drawn."""
    if isinstance(part, Tag):
        part = BeautifulSoup(str(part), "html.parser")
        for formula in part.select(".formula"):
            formula.decompose()
        part = part.get_text()
    return re.sub(r"\W", "", re.sub(r"\$[^$]+\$", "", part))


@each_title
def test_all_entries_of_all_chapters_are_on_the_page_once(title):
    page = parsed(PAGES[title])
    shown = {
        section["id"]: [words(entry) for entry in section.select("details.collected > summary")]
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
    cells = nbformat.read(HTML.parents[1] / "chapters" / f"{name}.ipynb", 4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    section = re.search(rf"(?ms)^## {title}$(.*?)(?=^## )", text)[1]
    links = parsed(PAGES[title]).select(f"#{anchor(name)} a.claim-link")
    named = [link["href"].partition("#claim-")[2] for link in links]
    assert named == re.findall(r"\(#claim-([\w-]+)\)", section)
    for link in links:
        page, _, claim = link["href"].partition("#")
        assert parsed(f"chapters/{page}").find(id=claim)
        assert link["data-card"]


@pytest.mark.browser
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


@pytest.mark.browser
@each_title
def test_without_a_script_all_is_there_and_opens(browser, site, title):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site + PAGES[title])
    expect(page.locator(".collected-choice select")).to_be_hidden()
    fold = page.locator("details.collected").nth(4)
    inside = fold.locator("p").first
    expect(inside).to_be_hidden()
    fold.locator("summary").press("Enter")
    expect(inside).to_be_visible()
    context.close()


@pytest.mark.browser
@each_title
def test_all_is_printed(page, site, title):
    page.goto(site + PAGES[title])
    page.emulate_media(media="print")
    folds = page.locator("details.collected")
    assert folds.count() == sum(map(len, ENTRIES[title].values()))
    seen = "all => all.map((fold) => fold.lastElementChild.checkVisibility())"
    assert all(folds.evaluate_all(seen))


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
@each_title
def test_open_pages_are_accessible_and_fit(browser, site, title, theme, width):
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(site + PAGES[title])
    page.locator("details.collected").evaluate_all("all => all.forEach((one) => (one.open = true))")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
