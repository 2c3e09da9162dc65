"""The bench: the page computes what `attnbook` does, forward and backward."""

import random
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect

from book.figures import workbench
from book.figures.workbench.model import SETS, Settings, backward, forward, learn, plain
from book.figures.workbench.picture import look

SCRIPTS = [Path(workbench.__file__).with_name(name) for name in ("model.js", "picture.js")]
SWITCHES = ("scaled", "identity", "same", "rooted", "turned", "normed", "every")


def drawn(seed: int, **switches: bool) -> Settings:
    """Settings with random numbers: some stored ones changed, some pinned, some edges cut."""
    draw = random.Random(seed)
    stored = {
        name: [[x + draw.choice([0, 0, draw.gauss(0, 1)]) for x in row] for row in rows]
        for name, rows in Settings().stored.items()
    }
    shapes = {name: number.shape for name, number in forward(Settings()).items()}
    pinned = {
        (name, *(draw.randrange(n) for n in shapes[name])): draw.gauss(0, 1)
        for name in draw.sample("XQKVSAODYHFZL", 4)
    }
    return Settings(
        stored=stored,
        pinned=pinned,
        ids=tuple(draw.randrange(4) for _ in range(3)),
        aim=draw.randrange(4),
        edges=tuple(tuple(draw.random() < 0.7 for _ in range(3)) for _ in range(3)),
        **switches,
    )


def in_script(settings: Settings) -> dict[str, Any]:
    """The settings as the script has them."""
    pinned = {",".join(map(str, at)): value for at, value in settings.pinned.items()}
    return {**vars(settings), "pinned": pinned}


def assert_same(page: Page, settings: Settings) -> None:
    """Numbers and their gradients."""
    both = "s => [attnbookBench.forward(s), attnbookBench.backward(s)]"
    in_page = page.evaluate(both, in_script(settings))
    for theirs, ours in zip(in_page, (forward(settings), backward(settings)), strict=True):
        for name, number in plain(ours).items():
            torch.testing.assert_close(
                torch.tensor(theirs[name], dtype=torch.float64),
                torch.tensor(number, dtype=torch.float64),
                rtol=1e-12,
                atol=1e-12,
                msg=lambda message, name=name: f"{name}: {message}",
            )


@pytest.fixture
def scripted(page: Page) -> Page:
    for path in SCRIPTS:
        page.add_script_tag(path=path)
    return page


def test_page_computes_the_same_for_random_numbers_under_every_switch(scripted):
    for seed, on in enumerate(product([False, True], repeat=len(SWITCHES))):
        assert_same(scripted, drawn(seed, **dict(zip(SWITCHES, on, strict=True))))
    for switch in SWITCHES:
        assert_same(scripted, replace(Settings(), **{switch: True}))


def test_sat_looks_at_the_noun_and_says_down():
    numbers = plain(forward(Settings()))
    assert [round(a, 2) for a in numbers["A"][2]] == [0.11, 0.79, 0.11]
    assert torch.tensor(numbers["L"][2]).softmax(0)[3] > 0.85
    cut = replace(
        Settings(), edges=((True, False, False), (True, True, False), (True, False, True))
    )
    assert torch.tensor(plain(forward(cut))["L"][2]).softmax(0)[3] == pytest.approx(0.25)


def test_the_second_head_goes_by_place_and_needs_positions():
    for ids in ((0, 1, 2), (2, 0, 1), (1, 1, 0)):
        head = replace(Settings(ids=ids), **SETS["place"])
        weights = plain(forward(head))["A"]
        assert [round(weights[1][0], 2), round(weights[2][1], 2)] == [0.95, 0.91]
        blind = plain(forward(replace(head, turned=False)))["A"]
        assert blind[2] == pytest.approx([1 / 3] * 3)


def test_trained_numbers_are_those_that_training_finds():
    for name, rows in learn(3).items():
        torch.testing.assert_close(
            torch.tensor(SETS["trained"]["stored"][name], dtype=torch.float64),
            torch.tensor(rows, dtype=torch.float64),
            rtol=0,
            atol=0.006,
        )


def test_gradient_is_that_of_finite_differences():
    settings, step = drawn(7, scaled=True, every=True), 1e-6
    gradient = backward(settings)
    for name in ("W_Q", "W_O", "E", "b"):
        rows = settings.stored[name]
        for i, row in enumerate(rows):
            for j, number in enumerate(row):
                losses = []
                for moved in (number + step, number - step):
                    row[j] = moved
                    losses.append(forward(settings)["loss"].item())
                row[j] = number
                assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(
                    gradient[name][i, j].item(), abs=1e-8
                )


# The drawing


def same_look(page: Page, settings: Settings, *, back: bool, lane: int) -> None:
    script = "([s, back, lane]) => attnbookBench.look(s, back, lane)"
    theirs = page.evaluate(script, [in_script(settings), back, lane])
    assert theirs == look(settings, back=back, lane=lane)


@pytest.mark.parametrize("back", [False, True])
def test_page_draws_the_same(scripted, back):
    for lane in range(3):
        same_look(scripted, Settings(), back=back, lane=lane)
    for other in SETS.values():
        same_look(scripted, replace(Settings(), **other), back=back, lane=2)
    for seed in range(18):
        settings = drawn(seed, scaled=seed % 2 == 0, normed=seed % 3 == 0)
        same_look(scripted, settings, back=back, lane=seed % 3)


def test_hands_show_that_a_query_points_where_the_key_before_does():
    def points(found: dict[str, dict[str, str]], name: str, i: int) -> list[float]:
        x0, y0, x, y = map(float, re.findall(r"[\d.]+", found[f"hand,{name},{i}"]["d"]))
        return [x - x0, y - y0]

    head = Settings(**SETS["place"])
    found = look(head)
    for i in (1, 2):
        assert points(found, "Q", i) == points(found, "K", i - 1)
        assert points(found, "Q", i) != points(found, "K", i)
    still = look(replace(head, turned=False))
    assert points(still, "Q", 0) == points(still, "Q", 1) == points(still, "Q", 2)
    opaque = [found["hand,Q,1"]["opacity"] for found in (found, still, look(Settings()))]
    assert opaque == ["1", "1", "0"]


@pytest.fixture
def box(page: Page, site: str) -> Any:
    """The bench of the first page."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(site + "intro.html")
    box = page.locator(".bench")
    expect(box).to_have_attribute("data-live", "")
    return box


def digits(box: Any, key: str) -> Any:
    return box.locator(f'[data-key="{key}"] .digits')


def test_a_cell_that_is_asked_shows_its_sum(box):
    box.locator('[data-key="S,2,1"]').hover()
    expect(box.locator(".bench-line")).to_have_text(
        "“sat” asks “cat”: (0·0 + 2·2 + 0·0 + 0·0) / √4 = 2"
    )
    assert box.locator(".lit").count() == 8
    box.locator('[data-key="H,2,0"]').hover()
    expect(box.locator(".bench-line")).to_contain_text("0·0 + 1·1 + .79·1 + 0·0 − 1) = .79")


def test_a_number_is_changed_with_the_keyboard_and_given_back(box):
    cell = box.locator('[data-key="W_Q,2,1"]')
    box.locator('[data-key="W_Q,0,0"]').focus()
    for _ in range(9):
        box.page.keyboard.press("ArrowRight")
    expect(cell).to_be_focused()
    box.page.keyboard.press("ArrowUp")
    expect(digits(box, "W_Q,2,1")).to_have_text("2.5")
    expect(digits(box, "S,2,1")).to_have_text("2.5")
    box.page.keyboard.type("-3")
    expect(digits(box, "Q,2,1")).to_have_text("−3")
    assert cell.get_attribute("aria-valuenow") == "-3"
    box.page.keyboard.press("Delete")
    expect(digits(box, "A,2,1")).to_have_text(".79")


def test_a_computed_number_is_pinned_by_dragging(box):
    cell = box.locator('[data-key="Q,2,1"]')
    place = cell.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    box.page.mouse.move(x, y)
    box.page.mouse.down()
    box.page.mouse.move(x, y + 36)
    box.page.mouse.up()
    expect(digits(box, "Q,2,1")).to_have_text("0")
    expect(cell).to_have_class(re.compile("pinned"))
    expect(digits(box, "A,2,1")).to_have_text(".33")


def test_an_edge_is_cut_and_the_answer_is_gone(box):
    expect(box.locator('[data-key="share,2,3"]')).to_have_text("89 %")
    box.locator('[data-key="A,2,1"]').drag_to(box.locator('[data-key="A,1,0"]'))
    expect(box.locator('[data-key="share,2,3"]')).to_have_text("89 %")  # dragged, not pressed
    box.locator('[data-key="A,2,1"]').click()
    expect(box.locator('[data-key="A,2,1"]')).to_have_class("cell weight closed asked")
    expect(box.locator('[data-key="share,2,3"]')).to_have_text("25 %")
    box.get_by_role("button", name="reset").click()
    expect(box.locator('[data-key="share,2,3"]')).to_have_text("89 %")


PLACE = "part => [part.getBoundingClientRect().x, part.getBoundingClientRect().y + scrollY]"


def test_every_switch_ends_in_a_claim(box):
    button = box.page.locator('.bench button[name="reset"]')
    place = button.evaluate(PLACE)
    more = box.page.locator(".bench-more")  # a press elsewhere closes it
    everything = {"edges": ((True,) * 3,) * 3}
    switches = {"scaled": {"scaled": False}, "mask": everything, **SETS}
    switches |= {
        name: {name: True} for name in ("identity", "same", "rooted", "turned", "normed", "every")
    }
    for name, changed in switches.items():
        if more.locator(f'[name="{name}"]').count():
            more.locator("summary").click()
        box.page.locator(f'.bench button[name="{name}"]').click()
        item = box.locator(f".bench-{name}")
        expect(item).to_be_visible()
        expect(item.locator('a[href*="#claim-"]')).to_be_visible()
        sure = forward(Settings(**changed))["L"].softmax(-1)[2, 3].item()
        says = (
            f"“down”: 89 % → {100 * sure:.0f} %." if abs(sure - 0.885) > 0.01 else "stays at 89 %."
        )
        expect(item).to_contain_text(says)
        assert box.locator(".bench-evidence li:visible").count() == 1
        assert button.evaluate(PLACE) == place  # the next press meets the same button
        button.click()
        expect(item).to_be_hidden()


def test_a_switch_is_compared_with_the_numbers_that_the_page_begins_with(page, site):
    page.goto(site + "chapters/02_positions.html")
    expect(page.locator(".bench")).to_have_attribute("data-live", "")
    item = page.locator(".bench-place")
    expect(item.locator(".bench-moved")).to_be_empty()
    page.locator('.bench button[name="turned"]').click()
    before, after = (
        100 * forward(replace(Settings(), **SETS["place"] | changed))["L"].softmax(-1)[2, 3].item()
        for changed in ({}, {"turned": False})
    )
    expect(item).to_contain_text(f"“down”: {before:.0f} % → {after:.0f} %.")


def test_a_matrix_that_a_switch_replaces_is_not_changed(box):
    box.page.locator(".bench-more summary").click()
    box.page.locator('.bench button[name="same"]').click()
    box.locator('[data-key="W_K,0,0"]').focus()
    expect(box.locator(".bench-line")).to_have_text("WK: the same numbers as WQ, by the switch.")
    box.page.keyboard.press("ArrowUp")
    box.page.locator('.bench button[name="same"]').click()
    expect(digits(box, "W_K,0,0")).to_have_text("0")


def test_backward_shows_gradients_in_the_same_cells(box):
    box.page.locator('.bench button[name="back"]').click()
    expect(digits(box, "W_O,1,3")).to_have_text("−.36")
    expect(box.locator('[data-key="W_O,1,3"]')).to_have_class(re.compile("gradient"))
    expect(box.locator(".bench-line")).to_contain_text("Red")
    box.locator('[data-key="W_O,1,3"]').hover()
    expect(box.locator(".bench-line")).to_contain_text("the loss falls .36 times as much")


def test_red_arrows_point_back_and_no_others(box):
    def rises(i: int) -> bool:
        """Whether what is written for a word goes up."""
        path = box.locator(f'[data-key="write,D,{i},3"]').get_attribute("d")
        _, start, end = map(float, re.findall(r"\d+", path.partition("m")[0]))
        return end < start

    assert rises(2)
    box.page.locator('.bench button[name="back"]').click()
    assert not rises(2)
    assert rises(1)  # nothing comes back to "cat" here
    for name in "AVHDF":
        back = box.locator(f'[data-key="branch,{name},2"]')
        expect(back).to_have_class("branch red")
        assert not back.get_attribute("d").endswith("m-5 -4l5 4l-5 4")


def test_what_is_behind_more_covers_no_lane_and_says_what_it_does(box):
    more = box.page.locator(".bench-more")
    more.locator("summary").click()
    panel = more.locator("div").bounding_box()
    lane = box.locator('[data-key="lane,2"]').bounding_box()
    assert panel["y"] > lane["y"] + lane["height"]
    assert panel["y"] + panel["height"] <= 800
    assert all(len(each) > 10 for each in more.locator("small").all_inner_texts())
    assert more.locator("small").count() == more.locator("button").count()


def test_play_shows_one_stage_after_the_other(box):
    box.get_by_role("button", name="Play").click()
    expect(box.locator(".bench-line")).to_contain_text("picks its row")
    expect(box.locator('[data-matrix="Q"]')).to_have_class("later")
    for what in (".letter.W_Q", ".letter.q >> nth=0", '[data-key="over,Q,0"]'):
        expect(box.locator(what)).to_have_css("opacity", "0.3")
    for what in ("branch,V,2", "flow,Y,2", "beside,W_O,1", "head,A,1"):
        expect(box.locator(f'[data-key="{what}"]')).to_have_css("opacity", "0.3")
    expect(box.locator(".letter.E")).to_have_css("opacity", "1")
    expect(box.locator('[data-matrix="Q"]')).not_to_have_class("later", timeout=10_000)
    box.locator("svg").press("Escape")
    assert box.locator(".later").count() == 0


def visited(window, site, **settings: Any) -> Page:
    """The first page, whose picture has been seen for two seconds and more."""
    page = window(site + "intro.html", **settings)
    page.locator(".bench[data-live]").wait_for()
    page.wait_for_timeout(2500)
    return page


def test_on_a_first_visit_the_picture_plays_once_and_any_touch_ends_it(window, site):
    page = visited(window, site)
    expect(page.locator(".later").first).to_be_attached()
    assert page.evaluate("document.activeElement === document.body")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".later")).to_have_count(0)
    expect(page.locator(".bench-line")).to_contain_text("Point at a number")
    expect(page.get_by_role("button", name="Play")).to_have_count(1)
    page.reload()
    page.locator(".bench[data-live]").wait_for()
    page.wait_for_timeout(2500)
    expect(page.locator(".later")).to_have_count(0)


def test_a_hand_that_comes_over_the_picture_ends_what_plays_by_itself(window, site):
    page = visited(window, site)
    expect(page.locator(".later").first).to_be_attached()
    page.locator('[data-key="S,2,1"]').hover()
    expect(page.locator(".later")).to_have_count(0)


def test_a_number_that_is_pressed_while_it_plays_is_asked(window, site):
    page = visited(window, site)
    page.locator('[data-key="S,2,1"]').click()
    expect(page.locator(".later")).to_have_count(0)
    expect(page.locator(".bench-line")).to_contain_text("“sat” asks “cat”")


def test_it_does_not_play_by_itself_for_who_wants_no_motion_or_is_quicker(window, site):
    calm = visited(window, site, reduced_motion="reduce")
    expect(calm.locator(".later")).to_have_count(0)
    quick = window(site + "intro.html")
    quick.locator(".bench[data-live]").wait_for()
    quick.keyboard.press("Tab")
    quick.wait_for_timeout(2500)
    expect(quick.locator(".later")).to_have_count(0)


def test_a_narrow_page_shows_one_stage(box):
    box.page.set_viewport_size({"width": 390, "height": 844})
    expect(box.locator("output")).to_have_text("weights")
    box.get_by_role("button", name="Next stage").click()
    expect(box.locator("output")).to_have_text("mixing")
    expect(box.locator(".tag").first).to_be_visible()
    box.page.emulate_media(media="print")
    expect(box.locator("svg")).to_have_attribute("viewBox", "0 0 1340 579")


# What of a matrix or of its names is in sight, and yet not whole.
CUT = """() => {
  const frame = document.querySelector(".bench-picture").getBoundingClientRect();
  const parts = document.querySelectorAll(".bench-picture :is(.cell, .small, .letter)");
  return [...parts].filter((part) => {
    const { left, right, top, bottom } = part.getBoundingClientRect();
    if (!part.checkVisibility({ visibilityProperty: true }) || left === right) return false;
    if (bottom < frame.top + 1 || top > frame.bottom - 1) return false;
    return (left < frame.right - 1 && right > frame.right + 1)
      || (left < frame.left - 1 && right > frame.left + 1);
  }).map((part) => part.dataset.key ?? part.textContent);
}"""


@pytest.mark.parametrize("name", ["intro.html", "chapters/00_attention.html"])
def test_no_matrix_is_cut_at_the_right(window, site, name):
    for width in (1280, 1024, 768, 390, 360):
        page = window(site + name, width=width)
        page.locator(".bench[data-live]").wait_for()
        for press in ("", "stored"):
            if press and page.locator(".bench [value=stored]").is_hidden():
                continue
            if press:
                page.locator(".bench [value=stored]").click()
            if page.locator(".bench-strip").is_hidden():  # all is in sight
                assert page.evaluate(CUT) == [], width
                continue
            for _ in range(8):
                page.locator(".bench-strip [value='-1']").evaluate("button => button.click()")
            for stage in range(8):
                assert page.evaluate(CUT) == [], (width, press, stage)
                page.locator(".bench-strip [value='1']").evaluate("button => button.click()")
        page.context.close()


@pytest.mark.parametrize("width", [1280, 1024, 390])
@pytest.mark.parametrize("name", ["intro.html", "chapters/00_attention.html"])
def test_shares_of_the_next_word_are_read_and_hit(window, site, name, width):
    page = window(site + name, width=width, has_touch=True)
    page.locator(".bench[data-live]").wait_for()
    for _ in range(8):
        page.locator(".bench-strip [value='1']").evaluate("button => button.click()")
    page.wait_for_timeout(200)
    scale = page.locator(".bench-picture").evaluate("svg => svg.getScreenCTM().a")
    sizes = page.locator(":is(.next, .share)").evaluate_all(
        "all => all.map((text) => parseFloat(getComputedStyle(text).fontSize))"
    )
    assert scale * min(sizes) >= 10.95
    areas = page.locator("[data-answer]").all()
    assert len(areas) == 12
    assert all(
        min(area.bounding_box()[side] for side in ("width", "height")) >= 24 for area in areas
    )
    page.locator('[data-answer="2,3"]').tap()
    expect(page.locator(".bench-line")).to_contain_text("“down” after “sat”: its logit is")


def test_a_page_with_the_bench_beside_its_text_prints_all_of_it(chapter):
    chapter.set_viewport_size({"width": 720, "height": 900})
    chapter.emulate_media(media="print")
    picture = chapter.locator(".bench-picture")
    expect(picture).to_have_attribute("viewBox", "0 0 1340 579")
    box = picture.bounding_box()
    assert box["height"] >= box["width"] * 579 / 1340 - 1


def test_no_digit_is_smaller_than_eleven_pixels(box):
    for width in (360, 390, 768, 1024, 1100, 1280, 1600):
        box.page.set_viewport_size({"width": width, "height": 800})
        box.page.wait_for_timeout(200)  # until the camera has seen it
        scale = box.locator("svg").evaluate("svg => svg.getScreenCTM().a")
        sizes = box.locator(".digits, .head").evaluate_all(
            "all => all.map((text) => parseFloat(getComputedStyle(text).fontSize))"
        )
        assert scale * min(sizes) >= 10.9, width


def test_without_scripts_the_default_state_is_there(window, site):
    page = window(site + "intro.html", java_script_enabled=False)
    expect(page.locator('[data-key="share,2,3"]')).to_have_text("89 %")
    expect(page.locator(".bench-controls")).to_be_hidden()
    fill = page.locator(".lane").first.evaluate("lane => getComputedStyle(lane).fill")
    assert fill == "rgb(244, 246, 249)"  # the colours do not wait for a script


# Beside a text


@pytest.fixture
def chapter(page: Page, site: str) -> Page:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(site + "chapters/00_attention.html")
    expect(page.locator(".bench")).to_have_attribute("data-live", "")
    return page


def test_the_stage_follows_what_is_read(chapter):
    stage = chapter.locator(".bench output")
    expect(stage).to_have_text("rows")
    for title, heading in (
        ("weights", "From logits to weights"),
        ("feed-forward", "A unit that says"),
        ("Q, K, V", "One row makes three"),
    ):
        chapter.get_by_role("heading", name=heading).evaluate(
            "part => scrollTo(0, part.getBoundingClientRect().top + scrollY - 200)"
        )
        expect(stage).to_have_text(title)
        expect(chapter.locator(".is-read > h2")).to_contain_text(heading)
        assert chapter.locator(".bench-picture").bounding_box()["y"] > 0


@pytest.mark.parametrize("width", [390, 1280])
def test_bench_covers_nothing_that_a_link_leads_to(page, site, width):
    page.set_viewport_size({"width": width, "height": 800})
    below = """id => document.getElementById(id).getBoundingClientRect().top - (
        innerWidth < 1100 && document.querySelector(".bench").getBoundingClientRect().bottom)"""
    for name in ("claim-one-tiny-cut", "numbers-that-nobody-wrote"):
        page.goto("about:blank")
        page.goto(f"{site}chapters/00_attention.html#{name}")
        expect(page.locator(".bench")).to_have_attribute("data-live", "")
        page.wait_for_timeout(500)
        assert 0 <= page.evaluate(below, name) < 200


def test_every_prediction_is_answered_by_the_bench(chapter):
    answer = chapter.locator('.bench [data-key="share,2,3"]')
    for question in chapter.locator(".predict").all():
        expect(question.locator("details p").first).to_be_hidden()
        correct = question.locator("[data-correct]")
        correct.click()
        expect(answer).to_have_text(correct.inner_text())
        expect(question.locator("details p").first).to_be_visible()
        assert question.locator("[data-correct]").count() == 1


def test_a_cell_its_line_of_code_and_its_name_light_up_together(chapter):
    chapter.locator('.bench [data-key="V,2,2"]').hover()
    assert "V = X @ W_V" in chapter.locator("pre .is-asked").all_inner_texts()
    assert "value" in chapter.locator("p .is-asked").all_inner_texts()
    chapter.locator("p .of-Q").first.hover()
    assert chapter.locator('.bench [data-matrix="Q"] .lit').count() == 12


def test_the_strip_of_a_phone_has_room_for_every_stage(window, site):
    page = window(site + "chapters/00_attention.html", width=360, has_touch=True)
    page.locator(".bench[data-live]").wait_for()
    for _ in range(8):
        page.get_by_role("button", name="Next stage").tap()
        beyond = page.locator(".bench-strip").evaluate(
            "strip => strip.scrollWidth - strip.clientWidth"
        )
        assert beyond == 0, page.locator(".bench output").inner_text()


def test_above_a_text_it_leaves_more_than_half_of_a_phone(window, site):
    page = window(site + "chapters/00_attention.html", width=390, height=844, has_touch=True)
    page.locator(".bench[data-live]").wait_for()
    heading = page.get_by_role("heading", name="From logits to weights")
    heading.evaluate("part => scrollTo(0, part.getBoundingClientRect().top + scrollY - 500)")
    page.wait_for_timeout(200)
    stage = page.locator(".bench output").inner_text()
    for pressed in ("false", "true"):
        box = page.locator(".bench").bounding_box()
        assert box["y"] == pytest.approx(0, abs=1)
        assert box["height"] <= 0.45 * 844
        assert heading.bounding_box()["y"] == pytest.approx(500, abs=2)  # the text has not moved
        assert page.locator(".bench output").inner_text() == stage
        stored = page.get_by_role("button", name="Stored numbers")
        expect(stored).to_have_attribute("aria-pressed", pressed)
        stored.evaluate("button => button.click()")
        page.wait_for_timeout(200)
    page.set_viewport_size({"width": 844, "height": 390})  # on its side
    expect(page.locator(".bench")).to_have_css("position", "static")


@pytest.mark.parametrize("width", [360, 390])
def test_stored_numbers_cut_no_lane_of_a_phone(window, site, width):
    page = window(site + "intro.html", width=width, has_touch=True)
    page.locator(".bench[data-live]").wait_for()
    page.get_by_role("button", name="Stored numbers").tap()
    picture = page.locator(".bench-picture").bounding_box()
    for key in ("E,0,0", "W_1,0,0", "lane,2"):
        part = page.locator(f'[data-key="{key}"]').bounding_box()
        assert picture["y"] <= part["y"], key
        assert part["y"] + part["height"] <= picture["y"] + picture["height"] + 1, key
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_tap_takes_the_nearest_cell(window, site):
    page = window(site + "intro.html", width=390, has_touch=True)
    page.locator(".bench[data-live]").wait_for()
    expect(page.locator(".bench-line")).to_contain_text("Tap a number")
    for _ in range(3):
        page.get_by_role("button", name="Stage before").tap()
    switches = page.locator(".bench-controls").bounding_box()
    place = page.locator('[data-key="X,1,0"]').bounding_box()
    page.touchscreen.tap(place["x"] + 8, place["y"] + place["height"] + 6)  # below it
    expect(page.locator(".bench-line")).to_contain_text("“cat” is row 1 of E; article = 0")
    assert page.locator(".bench-controls").bounding_box() == switches  # nothing has moved
    page.get_by_role("button", name="larger").tap()
    expect(page.locator('[data-key="X,1,0"] .digits')).to_have_text(".5")
