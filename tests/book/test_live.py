"""Models that run in the page: what they write, and that Python computes the same."""

import json
import re
from random import Random
from typing import Any

import pytest
import torch
from built import HTML, parsed, violations
from playwright.sync_api import Browser, Page, expect

from attnbook.models import LanguageModel
from attnbook.tasks import tales
from attnbook.tasks.dates import END, START, DatesTask
from book.figures import live

PAGES = {"dates": "09_transformer", "tales": "10_language_model"}

# Typed as a new reader would; the second half the model cannot know.
TYPED = {
    "mardi 5 mars 2024": "2024-03-05",
    "Tuesday, March 5, 2024": "2024-03-05",
    "14 juillet 1989": "1989-07-14",
    "2001年9月11日": "2001-09-11",
    "25 grudnia 1999": "1999-12-25",
    "tomorrow": None,
    "Christmas 2024": None,
    "5. března 2024": None,
    "the fifth of May": None,
    "5.5.5": None,
}


def opened(browser: Browser, where: str, name: str, **settings: Any) -> tuple[Page, Any, list[str]]:
    """The page, the model's element once a reader has turned to it, and what the console says."""
    page = browser.new_context(**settings).new_page()
    said: list[str] = []
    page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{where}chapters/{PAGES[name]}.html")
    box = page.locator(f'[data-model="{name}"]')
    box.locator("input").first.focus()
    expect(box.locator(".live-said")).to_contain_text(" ")
    return page, box, said


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def either(request: pytest.FixtureRequest, browser: Browser) -> Browser:
    return browser if request.param == "chromium" else request.getfixturevalue("firefox")


@pytest.fixture(scope="module")
def dates(either: Browser, site: str) -> tuple[Page, Any, list[str]]:
    return opened(either, site, "dates")


@pytest.fixture(scope="module")
def writer(either: Browser, site: str) -> tuple[Page, Any, list[str]]:
    return opened(either, site, "tales")


def ended(box: Any) -> str:
    """The text, once nothing is added any more."""
    expect(box.locator(".live-said")).to_contain_text("tokens written", timeout=30_000)
    return "".join(box.locator(".live-text span").all_text_contents())


@torch.no_grad()
def test_logits_of_the_reader_are_those_of_python(dates):
    page, _, _ = dates
    task, model = DatesTask(size=1), live.load("dates")
    for text, iso in TYPED.items():
        source = task.encode_texts([text])
        target = task.encode_answers([iso or "2003-03"])[:, :-1]
        expected = model(source, target)[0]
        got = page.evaluate(
            """([ids, target]) => {
                const live = window.attnbookLive, model = new live.Model(live.files.dates.weights);
                const memory = model.encode(ids), cache = model.newCache();
                return target.map((id) => [...model.decode(id, cache, memory).logits]);
            }""",
            [source[0].tolist(), target[0].tolist()],
        )
        torch.testing.assert_close(torch.tensor(got).double(), expected, atol=1e-9, rtol=0)


@torch.no_grad()
def test_writer_has_python_s_logits_and_tokens_and_greedy_text(writer):
    page, _, _ = writer
    model = live.load("tales")
    assert isinstance(model, LanguageModel)
    told = tales.tell(Random(3)).text
    texts = ["\nOnce a sleepy fox", "\n  Naïve “quotes”, 12 34…\n", told]
    for text in texts:
        ids = tales.tokenizer().encode(text).ids
        expected = model(torch.tensor([ids]))[0]
        tokens, got, back = page.evaluate(
            """(text) => {
                const live = window.attnbookLive, { weights, tokenizer } = live.files.tales;
                const model = new live.Model(weights), pieces = new live.BytePairs(tokenizer);
                const ids = pieces.encode(text), cache = model.newCache();
                return [ids, ids.map((id) => [...model.step(id, cache)]), pieces.decode(ids)];
            }""",
            text,
        )
        assert tokens == ids
        assert back == text
        torch.testing.assert_close(torch.tensor(got).double(), expected, atol=1e-9, rtol=0)
    ids = torch.tensor([tales.tokenizer().encode(texts[0]).ids])
    greedy = model.generate(ids, 150, temperature=0)[0].tolist()
    written = page.evaluate(
        """([ids, n]) => {
            const live = window.attnbookLive, model = new live.Model(live.files.tales.weights);
            const cache = model.newCache();
            let logits;
            for (const id of ids) logits = model.step(id, cache);
            while (ids.length < n) {
                ids.push(live.draw(live.probabilities(logits, { temperature: 0 }), 0.5));
                logits = model.step(ids.at(-1), cache);
            }
            return ids;
        }""",
        [ids[0].tolist(), len(greedy)],
    )
    assert written == greedy


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1, None, 1), (0.7, None, 1), (0, None, 1), (1, 3, 1), (1.5, None, 0.8), (0.8, 10, 0.9)],
)
def test_probabilities_after_the_knobs_are_those_of_sample(temperature, top_k, top_p, writer):
    page, _, _ = writer
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)).double()
    p = (logits / (temperature or 1)).softmax(0)
    order = p.argsort(descending=True)[: 1 if temperature == 0 else top_k]
    kept = p[order] / p[order].sum()
    kept = kept[kept.cumsum(0) - kept < top_p]
    expected = torch.zeros(50).double()
    expected[order[: len(kept)]] = kept / kept.sum()
    knobs = {"temperature": temperature, "topP": top_p} | ({"topK": top_k} if top_k else {})
    got = page.evaluate(
        "([logits, knobs]) => [...attnbookLive.probabilities(logits, knobs)]",
        [logits.tolist(), knobs],
    )
    torch.testing.assert_close(torch.tensor(got).double(), expected, atol=1e-12, rtol=0)


@torch.no_grad()
def test_ten_typed_dates_are_answered_as_generate_does_with_how_sure(dates):
    _, box, said = dates
    task, model = DatesTask(size=1), live.load("dates")
    for text, iso in TYPED.items():
        ids = model.generate(task.encode_texts([text]), start_id=START, end_id=END, n_tokens=12)
        box.locator("input[type=text]").fill(text)
        line = box.locator(".live-said").inner_text()
        assert line.startswith(f"{iso or task.decode(ids)[0]}, says the model, and is ")
        assert line.startswith(task.decode(ids)[0])
        assert " % sure of the whole" in line
        assert ("It has never seen “ř”" in line) == ("ř" in text)
    assert not said


def test_cut_edges_and_heads_act_and_are_mended(dates):
    _, box, _ = dates
    box.locator("input[type=text]").fill("mardi 5 mars 2024")
    box.locator(".live-answer button").nth(0).click()
    line = box.locator(".live-said")
    before = line.inner_text()
    box.locator(".live-answer button").nth(9).click()  # the second digit of the day
    box.locator(".live-phrase button").nth(6).click()  # 5
    expect(box.locator(".live-phrase button").nth(6)).to_have_attribute("aria-pressed", "true")
    expect(line).not_to_contain_text("2024-03-05")
    expect(line).to_contain_text("never trained with this")
    box.get_by_role("button", name="Undo all").click()
    box.locator(".live-answer button").nth(0).click()
    assert line.inner_text() == before
    for n in (1, 2, 3):
        box.get_by_role("checkbox", name=f"{n}").uncheck()
    expect(line).to_contain_text("never trained with this")
    box.get_by_role("checkbox", name="4").click()  # one stays on
    expect(box.get_by_role("checkbox", name="4")).to_be_checked()
    box.get_by_role("button", name="Undo all").click()
    assert line.inner_text() == before


def test_another_text_is_read_at_its_day_and_none_not_at_all(dates):
    _, box, _ = dates
    field, here = box.locator("input[type=text]"), box.locator('.live-answer [aria-current="step"]')
    field.fill("mardi 5 mars 2024")
    at_first = box.locator(".live-said").inner_text()
    box.locator(".live-answer button").nth(2).click()
    box.locator(".live-phrase button").nth(0).click()
    field.fill("14 juillet 1989")
    expect(here).to_have_count(1)
    assert here.evaluate("(cell) => [...cell.parentElement.children].indexOf(cell)") == 9
    box.locator(".live-answer button").nth(2).click()
    field.fill("mardi 5 mars 2024")
    assert box.locator(".live-said").inner_text() == at_first
    field.fill("")
    for name in ("▶ Play", "Character before", "Next character"):
        expect(box.get_by_role("button", name=name)).to_be_disabled()
    field.fill("mardi 5 mars 2024")
    expect(box.get_by_role("button", name="▶ Play")).to_be_enabled()
    assert box.locator(".live-said").inner_text() == at_first


def test_last_edge_stays(dates):
    _, box, _ = dates
    box.locator("input[type=text]").fill("7")
    box.locator(".live-phrase button").click()
    expect(box.locator(".live-phrase button")).to_have_attribute("aria-pressed", "false")
    assert "NaN" not in box.inner_text()
    box.locator("input[type=text]").fill("")
    assert box.locator(".live-said").inner_text() == "Type a date."
    box.get_by_role("checkbox", name="2").uncheck()
    box.get_by_role("checkbox", name="2").check()
    box.locator("input[type=text]").fill("7")
    assert "sure of the whole" in box.locator(".live-said").inner_text()


def test_dates_are_played_and_stepped_by_keyboard(dates):
    page, box, _ = dates
    box.locator("input[type=text]").fill("March 2024")
    box.locator(".live-answer button").nth(0).click()
    button = box.get_by_role("button", name="Next character")
    page.bring_to_front()  # keys go to the window in front
    button.focus()
    for written in "024":
        page.keyboard.press("Enter")
        expect(box.locator('[aria-current="step"]')).to_have_text(written)
    box.get_by_role("button", name="▶ Play").press("Enter")
    expect(box.locator('[aria-current="step"]')).to_have_text("end", timeout=10_000)
    expect(box.get_by_role("button", name="▶ Play")).to_be_visible()


def test_browser_writes_dates_and_says_what_is_correct(dates):
    page, box, _ = dates
    page.evaluate("Math.random = () => 0.5")
    box.locator("select").select_option("de")
    expect(box.locator("input[type=text]")).to_have_value("1. Januar 2000")
    expect(box.locator(".live-said")).to_contain_text("✓ It is.")
    box.locator("select").select_option("fi")
    expect(box.locator("input[type=text]")).to_have_value("1. tammikuuta 2000")
    expect(box.locator(".live-said")).to_contain_text("It is")


def test_draws_are_others_when_asked_and_none_at_temperature_zero(writer):
    _, box, said = writer
    box.locator("input[type=text]").fill("One morning a small snail")
    text = ended(box)
    assert text.startswith("One morning a small snail")
    box.get_by_role("button", name="Draw again").click()
    assert ended(box) != text
    box.get_by_role("slider", name="Temperature").fill("0")
    greedy = ended(box)
    box.get_by_role("button", name="Draw again").click()
    assert ended(box) == greedy
    assert not said


def test_another_token_is_chosen_and_the_tale_goes_on_from_there(writer):
    page, box, _ = writer
    box.get_by_role("slider", name="Temperature").fill("1")
    box.locator("input[type=text]").fill("Once")
    text = ended(box)
    box.locator(".live-text span").nth(3).click()
    page.keyboard.press("ArrowRight")
    expect(box.locator('.live-text [aria-current="true"]')).to_have_count(1)
    here = box.locator('.live-text [aria-current="true"]').inner_text()
    rows = box.locator(".live-likely button")
    expect(rows).to_have_count(6)
    other = rows.nth(0) if rows.nth(1).get_attribute("aria-current") else rows.nth(1)
    other.click()
    again = ended(box)
    before = "".join(box.locator(".live-text span").all_text_contents()[:4])
    assert text.startswith(before)
    assert again.startswith(before)
    assert box.locator(".live-text span").nth(4).inner_text() != here


def cut_lines(box: Any) -> list[str]:
    """The tokens of which the edges of the tale's box show a part."""
    return box.locator(".live-text").evaluate(
        """(text) => {
            const { top, bottom } = text.getBoundingClientRect();
            return [...text.children].filter((each) => [...each.getClientRects()].some((box) =>
                [top, bottom].some((edge) => box.top < edge - 1 && edge + 1 < box.bottom)
            )).map((each) => each.textContent);
        }"""
    )


@pytest.mark.parametrize(
    ("where", "width"),
    [("chapters/10_language_model", 1280), ("chapters/10_language_model", 390), ("intro", 390)],
)
def test_tale_s_box_shows_whole_lines_and_follows_the_writing(where, width, either, site):
    page = either.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{site}{where}.html")
    box = page.locator('[data-model="tales"]')
    box.locator("input").first.focus()
    ended(box)
    text = box.locator(".live-text")
    assert text.evaluate("(text) => text.scrollHeight > text.clientHeight + 20")
    assert cut_lines(box) == []
    end, room = text.locator("span").last.bounding_box(), text.bounding_box()
    assert room["y"] <= end["y"] <= end["y"] + end["height"] <= room["y"] + room["height"]
    text.evaluate("(text) => { text.scrollTop = 0; }")
    assert cut_lines(box) == []
    page.close()


def test_writer_says_that_it_writes_while_it_does(writer):
    _, box, _ = writer
    label = box.locator(".live-label")
    box.locator("input[type=text]").fill("Once")
    expect(label).to_contain_text("It writes.")
    ended(box)
    expect(label).to_contain_text("It wrote.")
    box.get_by_role("button", name="Draw again").click()
    expect(label).to_contain_text("It writes.")
    ended(box)
    # Where the end is chosen, nothing is written after it.
    spans = box.locator(".live-text span")
    spans.last.click()
    box.locator(".live-likely button", has_text="the end").click()
    expect(label).to_contain_text("It wrote.")
    expect(box.locator(".live-said")).to_contain_text("The tale is over. Choose a token")
    box.locator("input[type=text]").fill("Once upon")
    expect(label).to_contain_text("It writes.")
    ended(box)


def test_top_k_leaves_one_and_says_which_are_never_drawn(writer):
    _, box, _ = writer
    box.get_by_role("slider", name="Top-k").fill("0")
    ended(box)
    box.locator(".live-text span").nth(5).click()
    expect(box.locator(".live-likely .live-out")).to_have_count(5)
    box.get_by_role("slider", name="Top-k").fill("7")


def test_a_large_model_is_loaded_when_a_reader_turns_to_it_a_small_one_when_in_sight(browser, site):
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("?")[0]))

    def loaded() -> set[str]:
        return {url.rpartition("/")[2] for url in asked if "/live/" in url} - {"load.js"}

    page.goto(f"{site}intro.html", wait_until="networkidle")
    assert loaded() == set()
    tales, dates = (page.locator(f'[data-model="{name}"]') for name in ("tales", "dates"))
    dates.scroll_into_view_if_needed()
    expect(dates.locator(".live-said")).to_contain_text("2024-03-05")
    assert loaded() == {"engine.js", "dates.js", "dates-weights.js"}
    expect(dates.locator("input").first).not_to_be_focused()
    note = tales.locator(".live-note")
    said = float(note.inner_text().partition("here")[2].split()[0])
    note.get_by_role("button").click()
    assert ended(tales).startswith("Once a sleepy fox")
    files = [HTML / "_static" / "live" / each for each in loaded() if "dates" not in each]
    assert said == pytest.approx(sum(path.stat().st_size for path in files) / 1e6, abs=0.05)
    page.close()


def test_page_shows_what_a_model_writes_before_it_is_loaded():
    page = parsed("intro.html")
    tale = page.select_one('[data-model="tales"] .live-body').text
    assert "Once a sleepy fox lived" in tale
    assert not tales.slips(tale[tale.index("Once a sleepy fox lived") : tale.index("▶")].strip())
    assert "2024-03-05" in page.select_one('[data-model="dates"] .live-body').text


def test_reader_says_what_it_cannot_know_and_keeps_its_height(dates):
    _, box, _ = dates
    field, line = box.locator("input[type=text]"), box.locator(".live-said")
    heights = set()
    for text, comment in {
        "5 March 1880": "the years from 1950 to 2049",
        "31. Juni 2001": "There is no such day",
        "a" * 40: "40 characters and no more",
        "mardi 5 mars 2024": "For",
    }.items():
        field.fill(text)
        expect(line).to_contain_text(comment)
        heights.add(box.bounding_box()["height"])
    assert len(heights) == 1


def test_writer_says_which_words_it_never_met(writer):
    _, box, _ = writer
    box.locator("input[type=text]").fill("Once a brave penguin lived in a castle.")
    ended(box)
    expect(box.locator(".live-said")).to_contain_text("has “penguin” or “castle”")


@pytest.mark.parametrize(("name", "scheme"), [("dates", "light"), ("tales", "dark")])
def test_from_a_folder_on_a_phone_by_touch(name, scheme, browser):
    page, box, said = opened(
        browser, HTML.as_uri() + "/", name,
        viewport={"width": 390, "height": 800}, has_touch=True, color_scheme=scheme,
    )  # fmt: skip
    if name == "dates":
        box.locator(".live-phrase button").nth(2).tap()
        expect(box.locator(".live-phrase button").nth(2)).to_have_attribute("aria-pressed", "true")
    else:
        ended(box)
        box.locator(".live-text span").nth(8).tap()
        expect(box.locator(".live-likely button")).to_have_count(6)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not violations(page, f'[data-model="{name}"]')
    assert not said
    page.close()


def test_weights_that_cannot_be_had_are_said(browser, site):
    page = browser.new_page()
    page.route("**/dates-weights.js", lambda route: route.abort())
    page.goto(f"{site}chapters/{PAGES['dates']}.html")
    button = page.locator('[data-model="dates"] .live-note button')
    expect(button).to_contain_text("could not be loaded")
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.unroute_all()
    button.click()
    expect(page.locator(".live-said")).to_contain_text("2024-03-05")
    assert not said
    page.close()


def test_tokenizer_of_the_page_is_the_tales_own():
    held = json.loads((live.HERE / "tales.json").read_text("utf-8"))
    assert held["tokenizer"] == json.loads(tales.tokenizer().to_str())
    told = " ".join(tales.tell(Random(n)).text for n in range(200)).lower()
    assert set(re.findall("[a-z]+", told)) <= set(held["words"])
    assert live.load("tales").config.vocab_size == tales.tokenizer().get_vocab_size()
