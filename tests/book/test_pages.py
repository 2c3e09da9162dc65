"""The built book in a real browser: every page on a dark phone, half of them on a light screen."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urljoin

import pytest
from built import ANSWERS, CHAPTERS, HTML, NUMBERED, PAGES, ROOT, WRITTEN, parsed, violations
from playwright.sync_api import Browser, BrowserContext, Page, Response

SCREEN, PHONE = VIEWS = ("light", 1280), ("dark", 390)
CHAPTER = f"chapters/{CHAPTERS[0].stem}.html"
# Prose, outputs and figures; nested lists; long signatures: these stand for the others where a
# check is slow, or what it finds lies in the theme and not in the page.
TYPICAL = (CHAPTER, "chapters/questions.html", "chapters/api/models.html")
MORE_VIEWS = ("light", 390), ("dark", 1280)
VISITS = [(name, *PHONE) for name in PAGES]  # where what is too wide shows
VISITS += [(name, *SCREEN) for name in sorted({*PAGES[::2], *TYPICAL})]
VISITS += [(name, *view) for name in TYPICAL for view in MORE_VIEWS]
# The slowest check of all: the pages by turns in one view and in the other.
BY_AXE = {(name, *VIEWS[i % 2]) for i, name in enumerate(PAGES)}
BY_AXE |= {(name, *view) for name in TYPICAL[:2] for view in VIEWS}


def named(param: tuple[str, str, int]) -> str:
    return "-".join(map(str, param))


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> Iterator[dict[tuple[str, int], BrowserContext]]:
    """One window for each view, so that a page's scripts and styles are loaded once."""
    opened = {
        (theme, width): browser.new_context(
            color_scheme=theme, viewport={"width": width, "height": 900}
        )
        for theme, width in (*VIEWS, *MORE_VIEWS)
    }
    yield opened
    for context in opened.values():
        context.close()


@dataclass
class Visit:
    """A page that was opened, and what happened meanwhile."""

    page: Page
    theme: str
    by_axe: bool = False
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", self.check)
        self.page.on("requestfailed", lambda request: self.errors.append(f"lost: {request.url}"))
        self.page.on("pageerror", lambda error: self.errors.append(f"raised: {error}"))
        self.page.on(
            "console",
            lambda line: (
                self.errors.append(f"{line.type}: {line.text}")
                if line.type in ("error", "warning")
                else None
            ),
        )

    def check(self, response: Response) -> None:
        if response.status >= 400:
            self.errors.append(f"{response.status}: {response.url}")

    def open(self, address: str) -> None:
        self.page.goto(address, wait_until="load")

    def left(self, home: str) -> list[str]:
        return [url for url in self.requests if not url.startswith((home, "data:", "blob:"))]


@pytest.fixture(scope="module", params=VISITS, ids=named)
def visit(request, site, contexts) -> Iterator[Visit]:
    name, theme, width = request.param
    page = contexts[theme, width].new_page()
    visit = Visit(page, theme, by_axe=request.param in BY_AXE)
    visit.open(site + name)
    yield visit
    page.close()


def test_nothing_comes_from_elsewhere(visit, site):
    assert visit.left(site) == []


def test_nothing_goes_wrong(visit):
    assert visit.errors == []


def test_page_is_in_the_theme_of_the_system(visit):
    assert visit.page.locator("html").get_attribute("data-theme") == visit.theme


def test_page_has_a_title(visit):
    assert visit.page.title().endswith("Attention, Measured")
    assert "\\" not in visit.page.title()


UNDRAWN = r"""() => {
  const found = [];
  for (const use of document.querySelectorAll(".formula use, .glyphs use"))
    if (!document.getElementById(use.getAttribute("href").slice(1)))
      found.push(`not on the page: ${use.getAttribute("href")}`);
  for (const formula of document.querySelectorAll(".formula"))
    if (formula.checkVisibility() && !formula.querySelector("use")?.getBoundingClientRect().width)
      found.push(`empty: ${formula.textContent}`);
  // Unknown macros are drawn in red.
  const named = "[fill=currentColor], [fill^='var(']";
  for (const part of document.querySelectorAll(`.glyphs [fill]:not(${named})`))
    found.push(`in ${part.getAttribute("fill")}: ${part.id}`);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (/\\[(\[]|\$\$|\\begin\{/.test(text.data) &&
        !text.parentElement.closest("pre, code, script, style"))
      found.push(text.data);
  }
  return found;
}"""


def test_formulas_are_drawn(visit):
    assert visit.page.evaluate(UNDRAWN) == []


# A formula has a scroll bar, and is a stop for the keyboard, where it is wider than its box.
SCROLLING = """() => [...document.querySelectorAll(".equation > .formula, .formula.wide")]
  .filter(formula => formula.checkVisibility())
  .filter(formula => {
    const wider = formula.querySelector("svg").getBoundingClientRect().width - formula.clientWidth;
    const scrolls = formula.scrollWidth > formula.clientWidth;
    return Math.abs(wider) > 1 && (scrolls !== wider > 0 || (formula.tabIndex === 0) !== scrolls);
  })
  .map(formula => formula.textContent)"""


def test_formulas_scroll_only_where_they_must(visit):
    assert visit.page.evaluate(SCROLLING) == []


# Code and tables scroll where they are wider than the page, and say so by a faded edge.
UNFADED = """() => [...document.querySelectorAll(".highlight pre, .pst-scrollable-table-container")]
  .filter(box => box.checkVisibility())
  .filter(box => {
    const { maskImage, whiteSpace } = getComputedStyle(box);
    const fades = maskImage.includes("rgba(0, 0, 0, 0)");
    const cut = box.scrollWidth > box.clientWidth + 1;
    return fades !== cut || (box.matches("pre") && whiteSpace !== "pre");
  })
  .map(box => box.textContent.slice(0, 80))"""


def test_wide_code_and_tables_scroll_with_a_faded_edge(visit):
    assert visit.page.evaluate(UNFADED) == []


# A formula and its full stop, a slider and its value: what belongs together stands on one line.
PARTED = """() => {
  const parted = (boxes) =>
    boxes.some((box) => box.top >= boxes[0].bottom || box.bottom <= boxes[0].top);
  const box = (part) => {
    const range = document.createRange();
    range.selectNode(part);
    return range.getBoundingClientRect();
  };
  return [
    ...[...document.querySelectorAll("#main-content .joined")]
      .filter((part) => part.checkVisibility() && parted([...part.childNodes].map(box))),
    ...[...document.querySelectorAll(".interactive label:has([type=range])")]
      .filter((label) => parted([...label.children].map(box))),
  ].map((part) => part.textContent);
}"""


def test_what_belongs_together_shares_a_line(visit):
    assert visit.page.evaluate(PARTED) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_page_asks_for_mathjax(name):
    page = (HTML / name).read_text(encoding="utf-8")
    assert not re.search(r"(?i)<script[^>]*(mathjax|require)|window\.MathJax", page)


CUT_OFF = """() => {
  const found = [], page = document.documentElement;
  if (page.scrollWidth > page.clientWidth)
    found.push(`the page: ${page.scrollWidth} > ${page.clientWidth}`);
  for (const part of document.querySelectorAll("#main-content *")) {
    if (!part.checkVisibility() || part.closest("svg")) continue;
    const hides = ["hidden", "clip"].includes(getComputedStyle(part).overflowX);
    if (hides && part.clientWidth > 1 && part.scrollWidth > part.clientWidth + 1)
      found.push(`${part.tagName}.${part.className}: ${part.textContent.trim().slice(0, 80)}`);
  }
  for (const figure of document.querySelectorAll("svg.figure")) {
    const frame = figure.getBoundingClientRect();
    for (const text of figure.checkVisibility() ? figure.querySelectorAll("text") : []) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push(`${text.textContent} in the figure "${figure.getAttribute("aria-label")}"`);
    }
  }
  return found;
}"""


def test_nothing_is_cut_off(visit):
    assert visit.page.evaluate(CUT_OFF) == []


# Letters of drawings in pixels of the screen; those that are set below a letter may be smaller.
SMALL = """() => [...document.querySelectorAll("#main-content svg text")]
  .filter((text) => text.textContent.trim() && text.checkVisibility({ visibilityProperty: true }))
  .map((text) => {
    const { a, b } = text.getScreenCTM(), size = parseFloat(getComputedStyle(text).fontSize);
    return [text.textContent, Math.round(10 * size * Math.hypot(a, b)) / 10];
  })
  .filter(([, size]) => size < 11)"""


# Numbers of a drawing that run into what stands beside them.
TOUCHING = """() => [...document.querySelectorAll("#main-content svg.figure")].flatMap((figure) => {
  const seen = { visibilityProperty: true, opacityProperty: true }, found = [];
  const texts = [...figure.querySelectorAll("text")]
    .filter((text) => text.textContent.trim() && text.checkVisibility(seen))
    .filter((text) => !text.getScreenCTM().b)  // level
    .map((text) => [text.textContent, text.getBoundingClientRect()]);
  texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
    const apart = Math.max(a.left, b.left) - Math.min(a.right, b.right);
    const level = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > a.height / 2;
    if (/\\d/.test(one + other) && level && apart < 1) found.push(`${one} | ${other}: ${apart}`);
  }));
  return found;
})"""


@pytest.mark.parametrize(
    "path", [*NUMBERED, ROOT / "chapters/not_learning.ipynb"], ids=lambda p: p.stem
)
def test_no_letter_of_a_drawing_is_below_eleven_pixels_on_a_phone(window, site, path):
    page = window(f"{site}chapters/{path.stem}.html", width=390)
    page.add_style_tag(content="* { content-visibility: visible !important; }")
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    page.evaluate("() => new Promise((r) => requestAnimationFrame(() => setTimeout(r)))")
    assert page.evaluate(SMALL) == []
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(TOUCHING) == []


def test_titles_are_of_one_size(window, site):
    page, found = window(), {}
    looks = "h1 => { const { font, color } = getComputedStyle(h1); return font + color; }"
    for name in (each for each in WRITTEN if each != "intro.html"):  # which begins with a picture
        page.goto(site + name)
        found.setdefault(page.locator("h1").first.evaluate(looks), []).append(name)
    assert len(found) == 1, found


# Where the layouts change, and on both sides of it.
WIDTHS = (360, 390, 768, 820, 1024, 1280, 1366, 1920)
# Pages of each kind; what is true of one chapter's layout may be false of another's.
RESIZED = [
    "intro.html",
    *(f"chapters/{path.stem}.html" for path in NUMBERED),
    *(f"chapters/{name}.html" for name in ("claims", "sayings", "exercises", "implementations")),
    "chapters/api/models.html",
    *ANSWERS[:1],
]
# What reaches beyond the window, or beyond a box that hides the rest; code, tables and formulas
# scroll by themselves.
BEYOND = """() => {
  const { clientWidth: width, scrollWidth } = document.documentElement, found = [];
  if (scrollWidth > width) found.push(`the page: ${scrollWidth} > ${width}`);
  const scrolls = (box) => getComputedStyle(box).overflowX !== "visible";
  const clips = new Map([[document.body, false]]);  // part -> is what is in it cut by a box?
  const clipped = (part) => {
    if (!clips.has(part)) clips.set(part, scrolls(part) || clipped(part.parentElement));
    return clips.get(part);
  };
  const parts = ".bd-main :not(svg *, .bd-sidebar-secondary, .bd-sidebar-secondary *)";
  for (const part of document.querySelectorAll(parts)) {
    if (!part.checkVisibility()) continue;
    const { left, right } = part.getBoundingClientRect();
    if (right - left > 1 && (left < -0.5 || right > width + 0.5) && !clipped(part.parentElement))
      found.push(`${part.tagName}.${part.className}: ${Math.round(left)} to ${Math.round(right)}`);
    if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 1 &&
        ["hidden", "clip"].includes(getComputedStyle(part).overflowX))
      found.push(`cut: ${part.tagName}.${part.className}: ${part.textContent.trim().slice(0, 60)}`);
  }
  return found.slice(0, 8);
}"""


@pytest.mark.parametrize("name", RESIZED)
def test_nothing_reaches_beyond_the_window_at_any_width(window, site, name):
    page = window(site + name, width=WIDTHS[0])
    page.add_style_tag(content="* { transition: none !important; }")  # the list of chapters slides
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        # Two frames: what watches its own size has then drawn itself again.
        page.evaluate("() => new Promise((r) => requestAnimationFrame(() => setTimeout(r)))")
        found[width] = page.evaluate(BEYOND)
    assert {width: each for width, each in found.items() if each} == {}


PICTURES = """() => [...document.querySelectorAll("img, svg[role=img]")]
  .filter(picture => !picture.closest("[aria-hidden=true]"))
  .map(picture => picture.getAttribute(picture.tagName === "IMG" ? "alt" : "aria-label") ?? "")"""


def test_pictures_are_described_in_words(visit):
    for words in visit.page.evaluate(PICTURES):
        assert words.strip()
        assert not re.search(r"\.(svg|png|jpe?g)$|[0-9a-f]{16}", words)


# The last that looks at a visit: it takes the drawings away.
def test_axe_finds_nothing(visit):
    assert not visit.by_axe or violations(visit.page) == []


@pytest.mark.parametrize("name", [*TYPICAL, f"chapters/{CHAPTERS[1].stem}.html", *ANSWERS[:1]])
def test_pages_work_from_disk(name, page):
    visit = Visit(page, "light")
    visit.open((HTML / name).as_uri())
    assert visit.left("file:") == []
    assert [error for error in visit.errors if error.startswith("raised")] == []
    assert page.evaluate(UNDRAWN) == []
    shown = page.locator(":is(.claim, svg.figure:not(.on-phone)):not(details *, .toggle *)")
    heights = shown.evaluate_all("all => all.map((each) => each.getBoundingClientRect().height)")
    assert all(height > 10 for height in heights)


def test_chapter_shows_its_claims_and_figures(page, site):
    page.goto(site + CHAPTER)
    assert page.locator(".claim").count() > 0
    assert page.locator("svg.figure").count() > 0


def test_theme_switch_changes_the_theme_and_is_remembered(page, site):
    page.goto(site + CHAPTER)
    assert page.locator("html").get_attribute("data-theme") == "light"
    while page.locator("html").get_attribute("data-mode") != "dark":
        page.locator(".theme-switch-button").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.goto(site + "search.html")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_copy_button_copies_the_code_of_its_cell(page, site):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(site + CHAPTER)
    cell = page.locator(".cell_input .highlight:visible").first
    cell.hover()
    cell.locator("button.copybtn").click()
    cell.locator("button.copybtn.success").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.strip() == cell.locator("pre").inner_text().strip() != ""


def test_navigation_leads_from_page_to_page(page, site):
    seen = ["intro.html"]
    while following := parsed(seen[-1]).select_one("a.right-next"):
        seen.append(urljoin(seen[-1], following["href"]))
    assert sorted(seen) == WRITTEN
    page.goto(site + seen[0])
    page.locator("a.right-next").click()
    page.wait_for_url(site + seen[1])
    in_order = [f"chapters/{path.stem}.html" for path in NUMBERED]
    assert seen[: len(in_order) + 1] == ["intro.html", *in_order]
