"""How evidence is shown: lines that open, folds, cards, the switch, the ledger."""

import csv
import json
from statistics import mean, stdev

import nbformat
import pytest
from built import CHAPTERS, HTML, ROOT, code_cells, parsed, read, violations
from playwright.sync_api import expect

from book.evidence.cells import Cell, files_behind, hash_needed, required_tag, tag_of
from book.evidence.claims import RECORDED_MARGIN
from book.press.contents import BuildError, claims_of
from book.press.held import count_of
from book.sphinx.evidence import _in_digits, words_of

CHAPTER = HTML / "chapters" / "04_attention_weights.html"
SHOWN = "details:is(.evidence, .claim, .fold)"
CLAIMS = {f"chapters/{path.stem}.html": claims_of(read(path)) for path in CHAPTERS}


@pytest.mark.parametrize("name", CLAIMS)
def test_each_claim_is_a_line_that_opens_a_card(name):
    page = parsed(name)
    for claim in CLAIMS[name]:
        (line,) = page.select(f"details.claim#claim-{claim['label']}")
        card = line.select_one("dl.claim-card").get_text(" ").replace("\u00a0", " ")
        assert claim["statement"] in line.summary.get_text().replace("\u00a0", " ")
        assert claim["measured"] in card
        assert claim["expected"] in card
        assert line.select_one(f'a[href="claims.html#ledger-{claim["label"]}"]')


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_and_tagged_code_stand_behind_one_mark(name):
    page = parsed(name)
    for mark in page.select("details.evidence"):
        claims = mark.select("details.claim")
        says = mark.summary.get_text(" ", strip=True)
        if len(claims) > 1:
            assert says.startswith(f"✓ Holds: {len(claims)} claims")
            assert not any(each.has_attr("open") for each in claims)
        elif claims:
            assert says.startswith("✓ Holds: ")
            assert claims[0].has_attr("open")
        else:
            assert says == "‹› Code"
        assert not mark.has_attr("open")
    for each in page.select("details.claim, details.fold"):
        assert each.find_parent("details", class_="evidence")


@pytest.mark.parametrize("name", CLAIMS)
def test_a_paragraph_or_figure_has_one_mark(name):
    for mark in parsed(name).select(".margin-mark"):
        before = mark.find_previous_sibling()
        assert before is not None
        assert "margin-mark" not in before.get("class", [])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_code_of_tagged_cells_is_folded(path):
    page = f"chapters/{path.stem}.html"
    elsewhere = {"bench", "remove-cell"}  # a page makes its own of it, or has none
    cells = [
        cell
        for cell in code_cells(path)
        if cell.source.strip() and not elsewhere & {*cell.metadata.get("tags", ())}
    ]
    shown = [
        (part.get_text().strip(), part.find_parent("details", class_="fold") is not None)
        for part in parsed(page).select("section .cell_input")
    ]
    assert sorted(shown) == sorted((cell.source.strip(), bool(tag_of(cell))) for cell in cells)


def cell(source: str, *images: str) -> nbformat.NotebookNode:
    outputs = [nbformat.v4.new_output("display_data", dict.fromkeys(images, "")) for _ in [0]]
    return nbformat.v4.new_code_cell(source, outputs=outputs if images else [])


def test_tags_follow_from_what_a_cell_does():
    assert required_tag(cell("import torch\nfrom torch import nn\nnn.Linear(2, 3)")) == "imports"
    assert required_tag(cell("x = 1\nfor a in range(2):\n    claim('a', a, label='b')")) == "claims"
    assert required_tag(cell("plt.plot(x)", "image/svg+xml")) == "plot"
    assert required_tag(cell("x = 1\ny = 2\nz = 3\nclaim('a', x, label='b')")) is None


FILES_BEHIND = {  # a claim of "x" after these cells -> what its numbers reach
    "runs = study('one')\ndef f():\n    return runs['a']\nx = f()": ["studies/one.json"],
    "x = [rows for _, rows in study('one').rows.items()]": ["studies/one.json"],
    "def f():\n    return later\nlater = study('one')\nx = f()": ["studies/one.json"],
    "x = []\nfor a in study('one')['b']:\n    x.append(a)": ["studies/one.json"],
    "runs, x = study('one'), {}\nx['a'] = runs": ["studies/one.json"],
    "runs, x = study('one'), []\ndef add():\n    x.append(runs)\nadd()": ["studies/one.json"],
    "runs = study('one')\ndef f(runs):\n    return runs\nx = f(1)": [],
    "x = study('one')\nx = 1": [],
    "y = study('one')\ndef f():\n    y = 1\n    return y\nx = f()": [],
    "y = study('one')\nz = [y for y in range(2)]\nx = y": ["studies/one.json"],
    "x = json.loads(Path('implementations.json').read_text())": ["chapters/implementations.json"],
    "x = json.loads((find_root() / 'benchmarks/machine.json').read_text())": [
        "benchmarks/machine.json"
    ],
    "from book.figures import live\nx = live.load('dates')": [
        f"src/book/figures/live/{name}.{ending}"
        for name in ("dates", "tales")
        for ending in ("json", "safetensors")
    ],
    "from book.figures.workbench.model import by_training\nx = by_training()": [
        "src/book/figures/workbench/trained.json"
    ],
    "x = open('config.json')": [],  # one that the chapter writes itself
}


@pytest.mark.parametrize("through", ["claim('a', x, label='a')", "check(x)"])
@pytest.mark.parametrize("source", FILES_BEHIND)
def test_files_behind_a_claim_are_followed_by_name(source, through):
    helper = cell("def check(value):\n    claim('a', value, label='a')")
    cells = [helper, cell(source), cell(through)]
    assert [*files_behind(cells, ROOT / "chapters", ROOT)][-1] == FILES_BEHIND[source]


def test_a_count_stands_until_a_claim_hangs_on_other_code():
    def code(*sources: str) -> str:
        return hash_needed([Cell(source) for source in sources], len(sources) - 1)

    claimed = "claim('It is', x, label='a', at_most=2)"
    before = code("import math", "y = 0", "x = 1", claimed)
    assert code("from math import pi", "y = 1", "x = 1", claimed.replace("It", "This")) == before
    assert code("import math", "y = 0", "x = 2", claimed) != before
    assert code("import math", "y = 0", "x = 1", claimed.replace("2", "3")) != before


LEADS = {
    (chapter, label): leads
    for chapter, cells in json.loads((ROOT / "chapters/held.json").read_text()).items()
    for cell in cells.values()
    for label, leads in cell["leads"].items()
    if len(leads) > 1
}
SURE = 3.1  # standard deviations: one in a thousand by chance


def leaves_room(leads: list[float]) -> bool:
    """Could six standard deviations lie on a claim's side, by what came under each seed?

    The spread of a few is itself uncertain: it is taken as small as is plausible.
    """
    spare = len(leads) - 1
    plausible = (1 - 2 / (9 * spare) + SURE * (2 / (9 * spare)) ** 0.5) ** 3
    return mean(leads) >= RECORDED_MARGIN * stdev(leads) / plausible**0.5


def test_spread_between_seeds_leaves_each_claim_its_margin():
    assert leaves_room([6.0, 7.0, 8.0])
    assert not leaves_room([0.5, 7.0, 0.1, 8.0, 0.2, 6.0])
    assert not [name for name, leads in LEADS.items() if not leaves_room(leads)]


def test_no_seed_is_counted_where_a_file_was_read():
    tried = {"seeds": [1, 2], "made_anew": [], "held": {"a": 2}}
    claim = {"label": "a", "files": []}
    assert count_of(claim, tried) == "2 of 2"
    assert count_of(claim, None) == "–"
    with pytest.raises(BuildError, match="numbers come from studies"):
        count_of(claim | {"files": ["studies/one.json"]}, tried)
    made = tried | {"made_anew": ["studies/one.json"]}
    assert count_of(claim | {"files": ["studies/one.json"]}, made) == "2 of 2"


def test_a_count_in_a_word_is_checked_as_a_number_is():
    assert _in_digits("six", {"measured": "7 runs"}) == "6"
    assert _in_digits("none", {"measured": "0"}) == "0"
    assert _in_digits("seven", {"measured": "100 %"}) == "seven"  # what seven learned, not how many
    assert _in_digits("all six", {"measured": "6"}) == "all six"


def test_words_of_a_column_meet_those_of_a_claim():
    assert words_of("Gradient, last / first") & words_of("the gradients at the first block")
    assert not words_of("Cosine") & words_of("the gradient at the last of the blocks")


def test_ledger_can_be_taken_away():
    all_claims = [claim for claims in CLAIMS.values() for claim in claims]
    rows = json.loads((HTML / "claims.json").read_text("utf-8"))
    with (HTML / "claims.csv").open(newline="", encoding="utf-8") as file:
        assert [row["label"] for row in csv.DictReader(file)] == [row["label"] for row in rows]
    assert {row["label"] for row in rows} == {claim["label"] for claim in all_claims}


@pytest.fixture(params=[(1280, False), (390, True)], ids=["screen", "phone"])
def page(request, window):
    width, touch = request.param
    return window(width=width, has_touch=touch)


def test_link_lands_on_its_claim_opens_it_and_leads_back(page):
    page.goto(CHAPTER.as_uri())
    link = page.locator("p a.claim-link[href^='#claim']:visible").last
    label = link.get_attribute("href")
    link.focus()
    before = page.evaluate("scrollY")
    page.keyboard.press("Enter")
    target = page.locator(f"details{label}[open]")
    target.wait_for()
    page.wait_for_function(
        "() => document.querySelector(':target').getBoundingClientRect().top > 0"
    )
    expect(target.locator("summary")).to_be_visible()
    target.locator(".claim-back").click()
    page.wait_for_function("y => Math.abs(scrollY - y) < 400", arg=before)


def test_card_opens_on_focus_and_escape_closes_it(page):
    page.goto(CHAPTER.as_uri())
    page.locator("section section p a.claim-link").first.focus()
    card = page.locator("#claim-card")
    expect(card).to_be_visible()
    assert "has to be" in card.inner_text()
    page.mouse.move(5, 5)  # as a scroll under a mouse at rest
    expect(card).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_first_tap_opens_the_card(window):
    page = window(CHAPTER.as_uri(), width=390, has_touch=True)
    page.locator("section section p a.claim-link").first.tap()
    expect(page.locator("#claim-card")).to_be_visible()
    assert "#claim" not in page.url
    page.locator("section section p a.claim-link").first.tap()
    page.wait_for_url("**#claim-*")


def test_switch_opens_all_and_is_remembered(page):
    page.goto(CHAPTER.as_uri())
    assert page.locator("details.evidence[open]").count() == 0
    page.locator(".evidence-switch").press("Enter")
    assert page.locator(f"{SHOWN}:not([open])").count() == 0
    page.goto(HTML.joinpath("chapters", "03_queries_keys_values.html").as_uri())
    expect(page.locator(f"{SHOWN}:not([open])")).to_have_count(0)


def test_lines_open_without_a_script(window):
    page = window(CHAPTER.as_uri(), java_script_enabled=False)
    mark = page.locator("details.evidence:has(details.claim:not([open]))").first
    mark.locator("> summary").press("Enter")
    claim = mark.locator("details.claim").first
    claim.locator("summary").press("Enter")
    expect(claim.locator(".claim-card")).to_be_visible()


def test_marks_stand_in_the_margin_and_below_a_paragraph_on_a_phone(page):
    page.goto(CHAPTER.as_uri())
    wide = page.viewport_size["width"] > 400
    for mark in page.locator("details.evidence > summary:visible").all():
        box, text = mark.bounding_box(), mark.locator("xpath=ancestor::section[1]").bounding_box()
        assert box["x"] + box["width"] <= page.viewport_size["width"]
        assert (box["x"] >= text["x"] + text["width"] - 1) == wide


LEDGER = (HTML / "chapters" / "claims.html").as_uri()


def test_ledger_is_filtered(page):
    page.goto(LEDGER)
    rows, words = page.locator("table.claims-ledger tbody tr"), page.locator(".ledger-filter input")
    expect(rows.locator("visible=true")).to_have_count(0)
    words.fill("aw-not-stored")
    expect(rows.locator("visible=true")).to_have_count(1)
    assert "1 of" in page.locator(".ledger-filter output").inner_text()
    words.fill("")
    expect(rows.locator("visible=true")).to_have_count(0)


FOUND = """(words) => {
    const field = document.querySelector(".ledger-filter input");
    field.value = words;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    const left = document.querySelectorAll("table.claims-ledger tbody tr:not([hidden])");
    return [...left].map(({ id }) => id);
}"""
SAME = {
    "GQA": "grouped heads",
    "mqa": "grouped heads",
    "warmup": "warm-up",
    "LR 0.003": "rate 0.003",
    "learning rate 0.003": "rate 0.003",
    "RoPE": "rotary",
    "pre-LN": "pre-norm",
    "Prenorm": "pre-norm",
    "layer norm": "LayerNorm",
    "MLP": "feed-forward",
    "warmup pre-LN": "warm-up pre-norm",
}


def test_ledger_is_filtered_by_words_for_the_same_thing(window):
    page = window(LEDGER)
    output = page.locator(".ledger-filter output")
    total = len(page.evaluate(FOUND, ""))
    for asked, written in SAME.items():
        expected = {*page.evaluate(FOUND, written)}
        found = {*page.evaluate(FOUND, asked)}
        assert expected
        assert expected <= found, asked
        assert len(found) < 0.6 * total, asked
    page.evaluate(FOUND, "RoPE")
    expect(output).to_contain_text("also by “rotary”")
    page.evaluate(FOUND, "rotary")
    expect(output).not_to_contain_text("also")
    assert page.evaluate(FOUND, "zyxwvut") == []
    expect(output).to_have_text("No claim has these words.")


def test_ledger_begins_on_a_phone_s_first_screen(window):
    page = window(LEDGER, width=390)
    assert page.locator("details.ledger").first.bounding_box()["y"] <= 500
    assert page.locator(".ledger-filter").bounding_box()["y"] <= 300
    page.locator("summary", has_text="What the columns say").click()
    expect(page.get_by_text("number of random repetitions")).to_be_visible()


def test_ledger_opens_for_a_link_a_hand_and_paper(window):
    page = window(LEDGER, java_script_enabled=False)
    fold = page.locator("details.ledger").first
    count, row = fold.locator("summary"), fold.locator("tbody tr")
    assert count.inner_text() == f"{row.count()} claims"
    expect(row.first).to_be_hidden()
    page.emulate_media(media="print")
    expect(row.first).to_be_visible()
    page.emulate_media(media="screen")
    count.click()
    expect(row.first).to_be_visible()
    page = window(f"{LEDGER}#ledger-aw-not-stored")
    expect(page.locator("#ledger-aw-not-stored")).to_be_in_viewport()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 320)])
def test_open_pages_are_accessible_and_fit(window, theme, width):
    page = window(CHAPTER.as_uri(), color_scheme=theme, width=width)
    page.locator(".evidence-switch").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


def test_ledger_is_sorted_by_a_column(window):
    page = window(LEDGER)
    page.locator("details.ledger > summary").nth(1).click()
    table = page.locator("table.claims-ledger").nth(1)
    table.get_by_role("button", name="Seeds").first.click()
    seeds = table.locator("tbody td:nth-child(5)").all_inner_texts()
    numbers = [int(seed) for seed in seeds if seed != "–"]
    assert numbers == sorted(numbers) != []


def test_ledger_sorts_numbers_as_they_are_written(window):
    page = window(LEDGER)
    table = page.locator("table.claims-ledger").first
    measured = [
        *("−30.5 ± 0.2 nats", "-2", "−0.3", "all 48 entries within 3e-16", "below 1e-12"),
        *("1.5e-7 ± <1e-9", "3.4 × 10⁻⁵", "1.20 ± 0.15 × 10⁻³ against 2", "0.12", "2 runs"),
        *("10 against 3.4 × 10⁻⁵", "[11, 2]", "1,800", "2,000,000 (text 12ab)"),
    ]
    others = ["['W_2', 'b.1']", "NaN", "True"]
    table.evaluate(
        """(table, texts) => {
            const [body] = table.tBodies, [row] = body.rows;
            body.replaceChildren(...texts.map(() => row.cloneNode(true)));
            texts.forEach((text, i) => { body.rows[i].cells[1].textContent = text; });
        }""",
        [*others, *measured[::2], *measured[1::2]],
    )
    page.locator("details.ledger > summary").first.click()
    head, column = table.locator("th:nth-child(2) button"), table.locator("tbody td:nth-child(2)")
    head.click()
    assert column.all_inner_texts() == measured + others
    head.click()
    assert column.all_inner_texts() == measured[::-1] + others[::-1]
