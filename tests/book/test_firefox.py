"""In Firefox, too: every page, each figure that moves, the bench, the search."""

import re
from typing import Any

import pytest
from built import HTML, PAGES
from playwright.sync_api import Browser, Page, expect
from test_interactive import NAMES, assert_same_drawing, choose, figures, open_figure


@pytest.fixture(scope="module")
def opened(firefox: Browser) -> tuple[Page, list[str]]:
    """A window, and what its console complains of."""
    page = firefox.new_context(viewport={"width": 1280, "height": 800}).new_page()
    said: list[str] = []
    page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return page, said


def test_no_page_complains_or_is_too_wide(opened: Any) -> None:
    page, said = opened
    for name in PAGES:
        page.goto((HTML / name).as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        assert (name, width <= 1280, said) == (name, True, [])


@pytest.mark.parametrize("name", NAMES)
def test_figures_draw_what_python_draws(name: str, opened: Any, site: str) -> None:
    page, said = opened
    figure = figures()[name][1]
    box = open_figure(page, site, name)
    named = {control.name for control in figure.controls}  # others are pointed at
    for settings in [each for each in figure.examples if each.keys() <= named][:2]:
        choose(box, figure, settings)
        assert_same_drawing(box, figure, settings)
    assert not said


def test_the_bench_takes_other_switches(opened: Any) -> None:
    page, said = opened
    page.goto((HTML / "intro.html").as_uri())
    bench = page.locator(".bench")
    drawing = bench.locator("svg")
    before = drawing.text_content()
    bench.get_by_role("button", name="causal mask").click()
    expect(drawing).not_to_have_text(before or "", use_inner_text=False)
    assert not said


def test_the_search_finds_a_question(opened: Any) -> None:
    page, said = opened
    page.goto((HTML / "intro.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type("why divide by sqrt d_k")
    first = page.locator(".search-results a").first
    expect(first).to_have_attribute("href", re.compile("q-root-dk|attention-weights-why"))
    assert not said
