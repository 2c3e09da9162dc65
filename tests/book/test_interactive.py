"""Figures that move: the script computes and draws what Python does, for every way of reading."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from html import unescape
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import pytest
from built import CHAPTERS, HTML, code_cells, parsed, violations
from playwright.sync_api import Browser, Page, expect

from book.figures.colours import as_variables
from book.figures.moving.date_reader import NOTES
from book.figures.moving.drawing import fill
from book.figures.moving.figure import HERE, Figure, Slider, Switch, script


@cache
def figures() -> dict[str, tuple[str, Figure]]:
    """Name -> its chapter, and the figure with the data that it has there."""
    found = {}
    for path in CHAPTERS:
        for cell in code_cells(path):
            for output in cell.outputs:
                svg = output.get("data", {}).get("image/svg+xml", "")
                if "data-interactive=" in svg:
                    recipe = json.loads(unescape(re.search(r"(?s)<metadata>(.*?)</", svg)[1]))
                    name = recipe["name"]
                    module = import_module(f"book.figures.moving.{name}")
                    found[name] = (path.stem, replace(getattr(module, name), data=recipe["data"]))
    return found


NAMES = sorted(path.stem for path in HERE.glob("*.js") if path.stem != "figures")


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def figure(name: str) -> Figure:
    return figures()[name][1]


@pytest.fixture(scope="module")
def box(browser: Browser, site: str, name: str) -> Iterator[Any]:
    """The figure on its page, which several tests use, one after the other."""
    page = browser.new_page(reduced_motion="reduce")
    yield open_figure(page, site, name)
    page.close()


def open_figure(page: Page, where: str, name: str) -> Any:
    page.goto(f"{where}chapters/{figures()[name][0]}.html")
    box = page.locator(f'[data-figure="{name}"]')
    box.scroll_into_view_if_needed()
    expect(box).to_have_attribute("data-live", "")
    return box


def choose(box: Any, figure: Figure, settings: dict[str, Any]) -> None:
    for control in figure.controls:
        value = settings.get(control.name, control.value)
        field = box.locator(f'[name="{control.name}"]')
        if isinstance(control, Switch):
            if (field.get_attribute("aria-pressed") == "true") != value:
                field.click()
        elif isinstance(control, Slider):
            at = list(control.values).index(value) if control.values else value
            field.evaluate(
                "(input, at) => { input.value = at;"
                " input.dispatchEvent(new Event('input', { bubbles: true })); }",
                at,
            )
        elif len(control.options) < 4:  # what does nothing now cannot be set
            if box.locator(f'[name="{control.name}"]:enabled').count():
                field.and_(box.locator(f'[value="{value}"]')).check()
            else:
                assert value == control.value
        else:
            field.select_option(value)
    box.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def drawn(svg: str) -> list[tuple[str, dict[str, str], str]]:
    """The marks that hang on numbers: tag, attributes, text."""
    root = ElementTree.fromstring(svg)
    return [
        (each.tag.rpartition("}")[2], dict(each.attrib), "".join(each.itertext()))
        for each in root.iter()
        if "data-bind" in each.attrib
    ]


def near(a: str, b: str) -> bool:
    """Equal texts, but for the second decimal of numbers."""
    numbers = r"-?\d+(?:\.\d+)?"
    x, y = ([float(n) for n in re.findall(numbers, text)] for text in (a, b))
    same = re.sub(numbers, "#", a) == re.sub(numbers, "#", b) and len(x) == len(y)
    return same and all(abs(p - q) <= 0.0101 for p, q in zip(x, y, strict=True))


def assert_same_drawing(box: Any, figure: Figure, settings: dict[str, Any]) -> None:
    serialize = "svg => new XMLSerializer().serializeToString(svg)"
    page = drawn(box.locator("svg.figure").evaluate(serialize))
    python = drawn(figure.svg(**settings))
    assert len(page) == len(python)
    for ours, theirs in zip(python, page, strict=True):
        assert ours[0] == theirs[0]
        assert ours[2] == theirs[2]
        bound = {each[0] for each in json.loads(ours[1]["data-bind"])} - {""}
        themed = {"#1c1c1e": "currentColor", "#fefefe": "none"}
        for key in bound:
            value = as_variables(themed.get(ours[1][key], ours[1][key]))
            assert near(value, theirs[1][key]), (key, value, theirs[1][key], settings)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def test_every_figure_is_in_a_chapter():
    assert [*sorted(figures())] == NAMES
    assert len(NAMES) >= 9  # and the map


def test_scripts_are_small():
    assert len(script().encode()) <= 26_000


def test_a_figure_is_described_and_carries_little(figure):
    assert len(figure.description) >= 80
    assert len(json.dumps(figure.data).encode()) <= 50_000
    assert len(figure.examples) >= 3
    root = ElementTree.fromstring(figure.svg())
    assert root.find("{*}title").text == figure.title
    assert root.find("{*}desc").text == figure.description


def test_texts_with_numbers_round_a_half_away_from_zero():
    numbers = {"x": 0.125, "y": -2.5, "n": 12345, "w": [math.nan, math.inf]}
    assert fill("{x:.0%} {x:.2f} {y:.0f} {n:,} {w.0:.1f} {w.1}", numbers) == (
        "13\xa0% 0.13 −3 12,345 NaN ∞"
    )


def test_the_script_computes_what_attnbook_computes(box, name, figure):
    for settings in ({}, *figure.examples):
        numbers = figure.numbers(**settings)
        chosen = {key: numbers[key] for key in figure.recipe()["settings"]}
        script = box.page.evaluate(
            "([name, settings, data]) => "
            "attnbookFigures.compute[name](settings, data, attnbookFigures.lists)",
            [name, chosen, dict(figure.data)],
        )
        ours = json.loads(json.dumps(figure.compute(chosen, figure.data)))
        assert script.keys() == ours.keys()
        wrong = {key: (ours[key], script[key]) for key in ours if not same(ours[key], script[key])}
        assert wrong == {}, settings


def test_the_script_draws_what_python_draws(box, figure):
    assert_same_drawing(box, figure, {})
    own = {control.name for control in figure.controls}
    for settings in figure.examples:
        if settings.keys() <= own:
            choose(box, figure, settings)
            assert_same_drawing(box, figure, settings)
            assert box.locator(".said").text_content() == figure.sentence(
                figure.numbers(**settings)
            )


def test_the_script_draws_the_same_from_disk(page):
    name = NAMES[0]
    figure = figures()[name][1]
    assert_same_drawing(open_figure(page, f"{HTML.as_uri()}/", name), figure, {})


def test_a_figure_works_by_keyboard_alone(box, figure):
    page = box.page
    for control in figure.controls:
        field = box.locator(f'[name="{control.name}"]:enabled:is(:not([type=radio]), :checked)')
        if not field.count():  # would do nothing now
            continue
        state = (
            "el => (el.type === 'radio' ? el.checked : el.value) + el.getAttribute('aria-pressed')"
        )
        element = field.element_handle()
        before = element.evaluate(state)
        element.focus()
        page.keyboard.press("Enter" if isinstance(control, Switch) else "ArrowLeft")
        if element.evaluate(state) == before:
            page.keyboard.press("ArrowRight")
        assert element.evaluate(state) != before
    if figure.grid:
        box.locator(".walk").focus()
        said = set()
        for key in ("Home", "ArrowRight", "ArrowDown", "End", "Enter"):
            page.keyboard.press(key)
            said.add(box.locator(".spoken").text_content())
        assert len(said) >= 3


def test_what_is_dragged_moves_its_sliders(window, site, name, figure):
    if not figure.handles:
        pytest.skip("nothing to drag")
    page = window(has_touch=True, width=390)
    box = open_figure(page, site, name)
    client = page.context.new_cdp_session(page)
    for handle in figure.handles:
        # Of a disc with its letter, the disc: between the two there is nothing to touch.
        dragged = box.locator(f'[data-handle="{handle.name}"]').first
        mark = dragged.locator("xpath=descendant-or-self::*[not(*)]").first
        slider = box.locator(f'[name="{handle.x}"]')
        before = slider.input_value()
        for sign in (1, -1, 1, -1):  # the other way, if it stands at its end
            mark.scroll_into_view_if_needed()
            mark.element_handle().wait_for_element_state("stable")
            at = mark.bounding_box()  # again: a page that goes on loading moves
            x, y = at["x"] + at["width"] / 2, at["y"] + at["height"] / 2
            for kind, points in (
                ("touchStart", [{"x": x, "y": y}]),
                ("touchMove", [{"x": x + 15 * sign, "y": y - 12 * sign}]),
                ("touchMove", [{"x": x + 30 * sign, "y": y - 24 * sign}]),
                ("touchEnd", []),
            ):
                client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            with suppress(AssertionError):  # a busy page is late
                expect(slider).not_to_have_value(before, timeout=1000)
                break
        expect(slider).not_to_have_value(before)


def test_what_plays_goes_to_the_end_unless_it_is_touched(window, site, name, figure):
    played = next((each for each in figure.controls if getattr(each, "plays", 0)), None)
    if played is None:
        pytest.skip("nothing plays")
    page = window(reduced_motion="reduce")
    page.clock.install()
    box = open_figure(page, site, name)
    slider, play = box.locator(f'[name="{played.name}"]'), box.locator(".play")
    first = int(slider.get_attribute("min"))
    page.clock.pause_at(page.evaluate("Date.now()") + 1000)

    def after(seconds: float) -> tuple[int, str]:
        """Where the slider stands, and what the button shows."""
        page.clock.run_for(round(1000 * seconds) + 20)
        words = play.get_attribute("aria-label"), play.text_content()
        assert words[0] == f"{words[1].split()[-1]}: {played.label}"
        return int(slider.input_value()), words[1]

    play.press("Enter")
    assert after(0) == (first, "❚❚ Pause")  # not from what is shown at first
    assert after(played.plays) == (first + 1, "❚❚ Pause")
    slider.press("ArrowRight")
    assert after(60) == (first + 2, "▶ Play")
    play.press("Space")
    assert after(0) == (first + 3, "❚❚ Pause")
    play.press("Space")
    assert after(60) == (first + 3, "▶ Play")
    play.press("Enter")
    last = int(slider.get_attribute("max"))
    assert after(60) == (last, "▶ Play")
    at = {played.name: played.values[last] if played.values else last}
    assert_same_drawing(box, figure, at)
    play.press("Enter")
    assert after(0) == (first, "❚❚ Pause")
    slider.dispatch_event("pointerdown")
    assert after(60) == (first, "▶ Play")


def test_what_plays_once_does_so_after_the_guess_unless_less_motion_is_wanted(window, site):
    for motion, shown in (("reduce", "16"), ("no-preference", "1024")):
        box = open_figure(window(reduced_motion=motion), site, "scale")
        expect(box.locator("output")).to_have_text("16")
        box.page.locator(".predict button").first.click()
        expect(box.locator("output")).to_have_text(shown, timeout=15_000)
        expect(box).not_to_have_attribute("data-playing", "")


def test_a_button_sets_several_sliders(page, site):
    box = open_figure(page, site, "what_it_costs")
    box.get_by_role("button", name="Llama 7B").click()
    expect(box.locator('[name="d_model"] + output')).to_have_text("4,096")
    expect(box.locator('[name="layers"] + output')).to_have_text("32")
    expect(box.locator(".said")).to_contain_text("With 2,048 tokens")


def test_what_would_do_nothing_cannot_be_set(page, site):
    box = open_figure(page, site, "who_attends")
    empty = box.locator('[name="empty"]').first
    expect(empty).to_be_disabled()
    box.locator('[name="mask"]').select_option("both")
    expect(empty).to_be_enabled()
    box.locator('[name="mask"]').select_option("padding")
    expect(empty).to_be_disabled()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_figure_keeps_its_height(window, site, figure, name, width):
    box = open_figure(window(width=width, reduced_motion="reduce"), site, name)
    own = {control.name for control in figure.controls}
    heights = set()
    for settings in ({}, *figure.examples):
        if settings.keys() <= own:
            choose(box, figure, settings)
            heights.add(round(box.bounding_box()["height"]))
    for field in box.locator("input[type=range]").all():
        field.focus()
        heights.add(round(box.bounding_box()["height"]))
    assert max(heights) - min(heights) <= 1


def test_a_figure_is_clean_and_fits(window, site, name):
    theme = ("light", "dark")[NAMES.index(name) % 2]
    page = window(color_scheme=theme, width=320, reduced_motion="reduce")
    box = open_figure(page, site, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth + 1")
    assert violations(page, f'[data-figure="{name}"]') == []


def test_without_scripts_the_figure_tells_its_story(name, figure):
    box = parsed(f"chapters/{figures()[name][0]}.html").select_one(f'[data-figure="{name}"]')
    assert box.select("svg.figure")
    assert box.select_one(".said").text == figure.sentence(figure.numbers())
    assert len(box.select(".numbers tr")) == len(figure.table)


def test_without_scripts_there_are_no_controls(window, site):
    page = window(f"{site}chapters/{figures()[NAMES[0]][0]}.html", java_script_enabled=False)
    box = page.locator(f'[data-figure="{NAMES[0]}"]')
    expect(box.locator("svg.figure")).to_be_visible()
    expect(box.locator(".controls")).to_be_hidden()


def test_only_pages_with_a_figure_load_its_scripts(page, site):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site}chapters/glossary.html")
    page.wait_for_load_state("networkidle")
    assert not [url for url in asked if "interactive/" in url]
    open_figure(page, site, NAMES[0])
    assert len([url for url in asked if "interactive/figures.js" in url]) == 1
    assert all(url.startswith((site, "data:")) for url in asked)


def test_date_reader_says_which_known_phrases_are_not_yet_learned():
    """The first choices are read correctly, and a known one that is not says so in its label."""
    _, figure = figures()["date_reader"]
    for i, phrase in enumerate(figure.data["phrases"]):
        not_yet = NOTES.get(phrase["text"]) == "not yet learned"
        if i < 4 or not_yet:
            assert (phrase["answer"] != phrase["iso"]) == not_yet, phrase["text"]
