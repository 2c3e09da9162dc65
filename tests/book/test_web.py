"""The built pages as a web product: what they load, say, show to the keyboard, and print."""

import gzip
import json
import re

import numpy as np
import pytest
import yaml
from built import (
    CHAPTERS,
    EVERY_PAGE,
    HTML,
    NUMBERED,
    PAGES,
    ROOT,
    WRITTEN,
    parsed,
    violations,
    without,
)
from contrast import contrast
from numpy.typing import NDArray
from playwright.sync_api import expect

import attnbook

CITED = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
CHAPTER = f"chapters/{CHAPTERS[1].stem}.html"


def weight(*names: str) -> int:
    """What files weigh on the way, compressed one by one."""
    return sum(len(gzip.compress((HTML / name).read_bytes())) for name in names)


def test_icons_are_few_and_all_there():
    assert weight("_static/icons.css") < 20_000
    styles = (HTML / "_static/site.css").read_text(encoding="utf-8")
    wanted = {
        name
        for page in PAGES
        for icon in parsed(page).select("[class*=fa-]")
        for name in icon["class"]
        if name.startswith("fa-") and name not in ("fa-solid", "fa-lg")
    }
    assert "fa-magnifying-glass" in wanted
    assert {name for name in wanted if f".{name}::before" not in styles} == set()
    assert not (HTML / "_static/vendor").exists()


@pytest.mark.parametrize("page", PAGES)
def test_nothing_holds_a_page_up(page):
    head = parsed(page).head
    sheets = [link["href"].partition("?")[0] for link in head.select("link[rel=stylesheet]")]
    assert [re.sub(r"^(\.\./)*", "", sheet) for sheet in sheets] == ["_static/site.css"]
    assert weight("_static/site.css") < 40_000
    scripts = parsed(page).select("script[src]")
    assert [script["src"] for script in scripts if "defer" not in script.attrs] == []
    assert "document.write" not in str(parsed(page))


@pytest.mark.parametrize("page", ["index.html", *PAGES])
def test_markup_is_valid_where_it_was_not(page):
    found = parsed(page)
    ids = [tag["id"] for tag in found.select("[id]")]
    assert sorted({each for each in ids if ids.count(each) > 1}) == []
    assert [each for each in ids if "/" in each] == []
    assert found.select("summary p, summary div") == []
    assert [str(button)[:80] for button in found.select("button:not([type])")] == []
    assert [nav for nav in found.select("nav") if not nav.get("aria-label")] == []
    assert len(found.select("meta[name=viewport]")) == 1


@pytest.mark.parametrize("page", ["index.html", *EVERY_PAGE])
def test_page_says_what_it_is(page):
    found = parsed(page)
    (words,) = found.select("meta[name=description]")
    assert len(words["content"]) >= 20
    assert found.select_one("meta[property='og:description']")["content"] == words["content"]
    title = found.select_one("meta[property='og:title']")["content"]
    assert found.title.text.split(" — ")[0] == title
    assert found.title.text.count(CITED["title"]) == 1
    for name in ("og:type", "og:site_name"):
        assert found.select_one(f"meta[property='{name}']")["content"]
    assert found.select_one("meta[name='twitter:card']")


def test_first_page_is_the_root():
    assert parsed("index.html").h1 == parsed("intro.html").h1
    book = json.loads(parsed("index.html").select_one("script[type='application/ld+json']").text)
    assert (book["@type"], book["name"], book["version"]) == (
        "Book",
        CITED["title"],
        CITED["version"],
    )


@pytest.mark.parametrize("page", PAGES)
def test_page_says_version_date_and_licence(page):
    colophon = parsed(page).select_one(".colophon")
    assert f"{CITED['title']} {attnbook.__version__}, " in " ".join(colophon.text.split())
    assert re.fullmatch(r"\d\d\d\d-\d\d-\d\d", colophon.time["datetime"])
    assert "CC BY 4.0" in colophon.text
    assert "MIT" in colophon.text


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_chapter_and_its_figures_have_the_number_of_its_file(path):
    page, number = parsed(f"chapters/{path.stem}.html"), int(path.stem[:2])
    assert page.h1.text.startswith(f"{number}. ")
    figures = [caption.text.split()[-1] for caption in page.select("figcaption .caption-number")]
    assert figures == [f"{number}.{i + 1}" for i in range(len(figures))]


@pytest.mark.parametrize("page", WRITTEN)
def test_percent_stays_with_its_number(page):
    article = without(parsed(page).article, "pre, code, script, svg")
    assert re.findall(r".{20}\d\s%", article.text.replace("\u00a0", "~")) == []


def rgb(colour: str) -> NDArray[np.float64]:
    """Of a colour in the browser's words."""
    return np.array(re.findall(r"\d+", colour)[:3], float) / 255


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_hovered_links_and_comments_are_read_easily(window, site, theme):
    page = window(site + CHAPTER, color_scheme=theme)
    colour = "(part, name) => getComputedStyle(part)[name]"
    link = page.locator("article p a:visible").first
    ground = page.locator("body").evaluate(colour, "backgroundColor")
    before = link.evaluate(colour, "color")
    link.hover()
    hovered = link.evaluate(colour, "color")
    assert hovered != before
    assert contrast(rgb(hovered), rgb(ground)) >= 4.5
    comment = page.locator(".highlight .c1").first
    around = comment.locator("xpath=ancestor::pre")
    box, text = (rgb(around.evaluate(colour, name)) for name in ("backgroundColor", "color"))
    # A comment does not outshine the code.
    written = rgb(comment.evaluate(colour, "color"))
    assert 4.5 <= contrast(written, box) <= contrast(text, box)


def test_citation_is_of_this_version():
    page = (ROOT / "chapters/cite.md").read_text(encoding="utf-8")
    assert CITED["version"] == attnbook.__version__
    assert set(re.findall(r"\d\.\d\.\d", page.partition("## Licence")[0])) == {CITED["version"]}


def test_reference_is_in_pages_that_one_can_read():
    sizes = {page: len(parsed(page).find_all()) for page in WRITTEN if "/api/" in page}
    assert len(sizes) > 5
    assert {page: size for page, size in sizes.items() if size > 8000} == {}


FOCUS = """() => {
  const found = [];
  for (const part of document.querySelectorAll("button, summary, a.btn")) {
    part.focus();
    if (document.activeElement !== part || !part.matches(":focus-visible")) continue;
    const style = getComputedStyle(part);
    const { outlineStyle, outlineWidth } = style;
    found.push([part.className || part.textContent, outlineStyle, parseFloat(outlineWidth)]);
  }
  return found;
}"""


def test_focus_is_seen_on_every_button(page, site):
    page.goto(site + CHAPTER)
    page.keyboard.press("Tab")
    found = page.evaluate(FOCUS)
    names = " ".join(name for name, *_ in found)
    for expected in ("primary-toggle", "fullscreen", "theme-switch", "admonition-title"):
        assert expected in names
    assert [each for each in found if each[1] in ("none", "hidden") or each[2] < 2] == []


def test_theme_button_says_its_state(page, site):
    page.goto(site + CHAPTER)
    states = ["automatic", "dark", "light", "automatic"]
    for i, state in enumerate(states):
        button = page.get_by_role("button", name=f"Theme: {state}")
        expect(button).to_be_visible()
        if i + 1 < len(states):
            button.click()


@pytest.mark.parametrize("name", [CHAPTER, "chapters/implementations.html", "search.html"])
def test_names_say_what_is_seen(page, site, name):
    page.goto(site + name)
    assert violations(page, runOnly=["label-content-name-mismatch"]) == []


def test_menu_of_downloads_works_by_keyboard(page, site):
    page.goto(site + CHAPTER)
    menu = page.locator("details.menu")
    menu.locator("summary").focus()
    page.keyboard.press("Enter")
    menu.get_by_text(".pdf").wait_for()
    page.keyboard.press("Escape")
    menu.get_by_text(".pdf").wait_for(state="hidden")


PRINTED = """() => {
  const article = document.querySelector(".bd-article"), wrong = [];
  const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).every(x => x > 120);
  for (const part of article.querySelectorAll("p, pre, pre span, h1, h2, h3, td")) {
    const folded = "details:not([open]), section:has(> section > details.more)";
    if (!part.checkVisibility({contentVisibilityAuto: true})) {
      if (!part.closest(`[aria-hidden=true], .visually-hidden, nav, ${folded}`))
        wrong.push(`hidden: ${part.textContent.slice(0, 60)}`);
    } else if (light(getComputedStyle(part).color) && part.textContent.trim()) {
      wrong.push(`pale: ${part.textContent.slice(0, 60)}`);
    } else if (part.matches("pre") && part.scrollWidth > part.clientWidth + 1) {
      wrong.push(`cut off: ${part.textContent.slice(0, 60)}`);
    }
  }
  const buttons =
    ".bd-sidebar, .bd-header-article, .copybtn, details:not([open])";
  for (const part of document.querySelectorAll(buttons))
    if (part.checkVisibility()) wrong.push(`shown: ${part.className}`);
  return wrong;
}"""


@pytest.mark.parametrize("name", [CHAPTER, "chapters/api/models.html"])
def test_print_is_light_and_holds_all_but_what_is_folded(window, site, name):
    page = window(site + name, color_scheme="dark", width=700, height=900)
    page.emulate_media(media="print")
    page.locator("html[data-theme=light]").wait_for(state="attached")
    assert page.evaluate(PRINTED) == []
    more = page.locator("#more-measurements p").first
    if more.count():  # what its reader has opened is printed
        expect(more).to_be_hidden()
        page.locator("details.more").first.evaluate("fold => (fold.open = true)")
        expect(more).to_be_visible()


SHEETS = 12
A4 = 673, 1001  # pixels within the margins
# What may not be split, and is higher than a sheet; what a sheet cuts off at its right edge.
UNPRINTABLE = """([width, height]) => [...document.querySelectorAll(".bd-article *")]
  .filter(part => part.checkVisibility() && !part.closest("svg *, .visually-hidden"))
  .filter(part => {
    const box = part.getBoundingClientRect();
    const whole = getComputedStyle(part).breakInside === "avoid";
    return box.right > width + 1 || (whole && box.height > height);
  })
  .map(part => `${part.tagName}.${part.className}: ${part.textContent.trim().slice(0, 60)}`)"""


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_chapter_prints_on_few_sheets(window, site, path):
    width, height = A4
    page = window(f"{site}chapters/{path.stem}.html", width=width, height=height)
    page.emulate_media(media="print")
    assert page.evaluate(UNPRINTABLE, A4) == []
    page.emulate_media(media="null")
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= SHEETS


def test_printed_links_are_notes(window, site):
    page = window(f"{site}chapters/12_silent_bugs.html")
    notes = page.locator(".link-notes > li")
    page.emulate_media(media="print")
    shown = notes.all_inner_texts()
    assert [note for note in shown if note.startswith("https://karpathy.github.io/")]
    assert [note for note in shown if "arXiv" in note]
    marks = page.locator(".link-note").all_inner_texts()
    assert {*map(int, marks)} == {i + 1 for i in range(len(shown))}
    page.emulate_media(media="screen")
    expect(notes).to_have_count(0)
    expect(page.locator(".link-note")).to_have_count(0)


@pytest.mark.parametrize("path", NUMBERED[6:11:4], ids=lambda path: path.stem)
def test_a_long_page_is_laid_out_few_times(window, site, path):
    page = window(width=390)
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    page.goto(f"{site}chapters/{path.stem}.html")
    page.wait_for_timeout(1000)
    metrics = client.send("Performance.getMetrics")["metrics"]
    count = {metric["name"]: metric["value"] for metric in metrics}
    assert count["LayoutCount"] < 50  # once for each piece of code: 90


@pytest.mark.parametrize("page", WRITTEN)
def test_no_figure_brings_a_stylesheet_of_the_whole_page(page):
    styles = [style.text for style in parsed(page).article.select("style")]
    assert [style for style in styles if style.startswith("*")] == []


HIDDEN = """() => [...document.querySelectorAll("article svg.figure")]
  .map(part => part.firstElementChild).filter(part => part && !part.closest("details"))
  .map(part => part.checkVisibility({contentVisibilityAuto: true}))"""

WAITING = """[...document.querySelectorAll("article :is(section, svg)")]
  .filter(part => getComputedStyle(part).contentVisibility === "auto").length"""


@pytest.mark.parametrize("width", [390, 1280])
def test_what_is_out_of_sight_is_drawn_later_and_takes_its_place(window, site, width):
    page = window(f"{site}chapters/{NUMBERED[6].stem}.html", width=width)
    page.locator("article svg.figure:visible").first.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    drawn = page.evaluate(HIDDEN)
    assert any(drawn)
    assert not all(drawn)
    heading = page.locator("article > section > section").nth(-2).locator("h2")
    anchor = heading.locator("xpath=..").get_attribute("id")
    page.evaluate("to => { location.hash = to }", f"#{anchor}")
    page.wait_for_timeout(1000)
    assert 0 <= heading.bounding_box()["y"] < 400
    figure = page.locator("article svg.figure[style^=aspect-ratio]:visible").last
    height = figure.bounding_box()["height"]
    figure.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    assert figure.bounding_box()["height"] == pytest.approx(height, abs=0.5)
    page.emulate_media(media="print")
    assert page.evaluate(WAITING) == 0


def test_robots_may_read_all():
    assert (HTML / "robots.txt").read_text("utf-8").startswith("User-agent: *\nAllow: /\n")


def test_long_contents_reach_the_end_of_the_window(window, site):
    page = window(site + CHAPTER, height=300)
    box = page.locator(".bd-sidebar-secondary").bounding_box()
    assert box["y"] + box["height"] == 300


def test_contents_mark_the_section_that_a_link_leads_to(page, site):
    page.goto(site + CHAPTER)
    links = page.locator(".bd-toc-nav > ul > li > a").all()
    assert len(links) > 4
    for anchor in [link.get_attribute("href") for link in links[:4]]:
        page.goto("about:blank")
        page.goto(f"{site}{CHAPTER}{anchor}")
        page.locator(f".bd-toc-nav a[href='{anchor}'].active[aria-current]").wait_for()


@pytest.mark.parametrize("name", [CHAPTER, *(page for page in WRITTEN if "/api/" in page)])
def test_page_fits_in_320_pixels(window, site, name):
    page = window(site + name, width=320)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
