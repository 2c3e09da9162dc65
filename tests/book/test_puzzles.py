"""Puzzles: none is solved as it begins, each has a solution, and the page sees it."""

import re
from pathlib import Path

import pytest
from built import NUMBERED, parsed, read
from playwright.sync_api import Page, expect

from book.figures import workbench
from book.figures.workbench.model import Settings
from book.figures.workbench.picture import STAGES
from book.figures.workbench.puzzles import Puzzle, holds, measure, moved, puzzles, solved
from book.sphinx.puzzles import PLAYED

EVERY = puzzles()
EACH = pytest.mark.parametrize("puzzle", EVERY, ids=lambda puzzle: puzzle.name)
SCRIPTS = [
    Path(workbench.__file__).with_name(name) for name in ("model.js", "picture.js", "puzzles.js")
]
PAGE = "chapters/puzzles.html"


@EACH
def test_a_puzzle_is_not_solved_as_it_begins_and_its_solution_solves_it(puzzle):
    assert not solved(puzzle, puzzle.begins)
    assert solved(puzzle, moved(puzzle.begins, puzzle.solution))


@EACH
def test_each_part_of_a_solution_is_needed(puzzle):
    for key in puzzle.solution:
        rest = {each: to for each, to in puzzle.solution.items() if each != key}
        assert not solved(puzzle, moved(puzzle.begins, rest)), key


def test_puzzles_are_complete():
    assert [puzzle.chapter for puzzle in EVERY] == sorted(puzzle.chapter for puzzle in EVERY)
    assert {puzzle.chapter for puzzle in EVERY} == set(range(9))
    assert len({puzzle.name for puzzle in EVERY}) == len(EVERY) >= 15
    for puzzle in EVERY:
        assert len(puzzle.hints) == 3, puzzle.name
        assert "?" in puzzle.hints[0], puzzle.name  # a question first
        assert puzzle.stage in [title for title, *_ in STAGES]
        assert 1 <= puzzle.level <= 3
        assert len(re.findall(r"[.?](?: |$)", puzzle.why)) <= 2, puzzle.name
        assert not re.search(r"[\d%]", re.sub(r"\$.*?\$", "", puzzle.why)), puzzle.name


def test_a_bound_that_is_missed_does_not_hold():
    assert holds({"at_least": 0.5}, 0.5)
    assert not holds({"at_least": 0.5}, 0.49)
    assert holds({"at_most": 0}, 0)
    assert not holds({"at_most": 0}, 1)


# The script measures the same


def in_script(settings: Settings) -> dict[str, object]:
    pinned = {",".join(map(str, at)): value for at, value in settings.pinned.items()}
    return {**vars(settings), "pinned": pinned}


def data(puzzle: Puzzle) -> dict[str, object]:
    return {name: getattr(puzzle, name) for name in PLAYED}


@pytest.fixture
def scripted(page: Page) -> Page:
    for path in SCRIPTS:
        page.add_script_tag(path=path)
    return page


def test_the_page_measures_what_python_does(scripted):
    script = """([puzzle, now, start]) => [attnbookPuzzles.solved(puzzle, now, start),
        puzzle.must.map((must) => attnbookPuzzles.measure(must, now, start))]"""
    for puzzle in EVERY:
        start = puzzle.begins
        for now in (start, moved(start, puzzle.solution)):
            given = [data(puzzle), in_script(now), in_script(start)]
            is_solved, measured = scripted.evaluate(script, given)
            assert is_solved == (now is not start), puzzle.name
            ours = [measure(must, now, start) for must in puzzle.must]
            assert measured == pytest.approx(ours), puzzle.name


def test_what_may_not_be_changed_does_not_solve(scripted):
    script = "([puzzle, now, start]) => attnbookPuzzles.solved(puzzle, now, start)"
    for puzzle in EVERY:
        now = moved(puzzle.begins, puzzle.solution)
        for more in ({"E,3,2": 9}, {"every": True}):  # neither moves anything in the lanes
            given = [data(puzzle), in_script(moved(now, more)), in_script(puzzle.begins)]
            assert not scripted.evaluate(script, given), (puzzle.name, more)


def test_ways_are_all_that_a_search_finds(scripted):
    script = "([puzzle, start]) => attnbookPuzzles.ways(puzzle, start)"
    for puzzle in EVERY:
        alone = puzzle.may.get("count", 1) == 1 and puzzle.may["of"] != "ids"
        found = scripted.evaluate(script, [data(puzzle), in_script(puzzle.begins)]) if alone else []
        assert [*puzzle.ways] == found, puzzle.name
        if alone:
            assert set(puzzle.solution) & set(found), puzzle.name


# The page


def opened(page: Page, site: str, name: str) -> Page:
    page.goto("about:blank")
    page.goto(f"{site}{PAGE}#{name}")
    expect(page.locator(".bench")).to_have_attribute("data-live", "")
    return page


def test_a_puzzle_is_solved_by_keyboard_and_its_tick_stays(page, site):
    opened(page, site, "weights-kept")
    expect(page.locator(".goal")).to_contain_text("Keep every weight")
    card = page.locator("section.done h3", has_text="Keep every weight")
    expect(card).to_have_count(0)
    task = page.locator(".task").bounding_box()
    picture = page.locator(".bench-picture").bounding_box()
    page.get_by_role("button", name="A hint").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("have no part in where")
    page.locator('[data-key="W_V,0,0"]').focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")  # away from the goal
    expect(page.locator(".changed button")).to_have_text("WV, noun → noun: 1 → 1.5 ×")
    expect(page.locator(".meter.holds")).to_have_count(1)
    page.keyboard.type("0")
    expect(page.locator(".meter.holds")).to_have_count(2)
    expect(page.locator(".says")).to_contain_text("Solved")
    expect(page.locator(".says")).to_contain_text("1 of 3 ways found")
    expect(page.locator(".dots .done")).to_have_count(1)
    expect(card).to_have_count(1)
    assert page.locator(".task").bounding_box() == task  # nothing has moved
    assert page.locator(".bench-picture").bounding_box() == picture

    page.reload()
    expect(page.locator(".dots .done")).to_have_count(1)
    expect(card).to_have_count(1)
    expect(card.get_by_role("img")).to_have_attribute("aria-label", "solved")
    expect(page.locator(".count")).to_have_text(f"1 of {len(EVERY)} solved.")
    expect(page.locator(".says")).to_contain_text("You have solved this one")


def test_help_says_how_what_may_be_changed_is_changed(page, site):
    for name, says in (
        ("look-that-counts", "Press a weight"),
        ("weights-kept", "Drag a number"),
    ):
        opened(page, site, name)
        expect(page.locator(".says")).to_contain_text(says)


def test_a_loss_is_shown_to_as_many_digits_as_its_bound_needs(page, site):
    opened(page, site, "small-step")
    page.locator('[data-key="E,2,2"]').focus()
    page.keyboard.press("ArrowUp")
    shown = page.locator(".meter.holds b").first
    assert float(shown.inner_text()) < 0.02


def test_too_much_is_named_and_put_back(page, site):
    opened(page, site, "down-after-cat-too")
    for key in ("W_1,0,0", "b,0,0"):
        page.locator(f'[data-key="{key}"]').focus()
        page.keyboard.type("9")
        page.wait_for_timeout(950)  # until the next digit is another number's
    expect(page.locator(".changed")).to_contain_text("Only one stored number.")
    expect(page.locator(".changed .extra")).to_have_count(2)
    expect(page.locator(".says")).not_to_contain_text("Solved")
    page.locator(".changed button", has_text="W1").click()
    expect(page.locator(".says")).to_contain_text("Solved")
    page.get_by_role("button", name="start over").click()
    expect(page.locator(".changed")).to_have_text("You may change one stored number.")
    expect(page.locator('[data-key="b,0,0"] .digits')).to_have_text("−1")


def test_each_solution_is_shown_after_three_hints_and_counts_for_nothing(page, site):
    opened(page, site, EVERY[0].name)
    for puzzle in EVERY:
        page.evaluate("name => { location.hash = name; }", puzzle.name)
        expect(page.locator(".meter")).to_have_count(len(puzzle.must))
        expect(page.locator(".changed button")).to_have_count(0)
        for _ in range(4):
            page.locator(".more").click()
        expect(page.locator(".verdict")).to_have_text("A solution")
        expect(page.locator(".meter.holds")).to_have_count(len(puzzle.must))
        expect(page.locator(".changed button")).to_have_count(len(puzzle.solution))
        expect(page.locator(".changed .extra")).to_have_count(0)
    expect(page.locator(".dots .done")).to_have_count(0)


def test_an_address_changes_the_puzzle_and_leads_to_the_next(page, site):
    opened(page, site, "look-that-counts")
    page.locator('[data-key="A,2,1"]').click()
    page.get_by_role("link", name="Next puzzle").click()
    expect(page.locator(".goal")).to_contain_text("the same word")
    assert page.url.endswith("#same-word")
    expect(page.locator(".goal")).to_be_focused()
    expect(page.locator('[data-key="E,0,0"] .digits')).to_have_text("1")  # no longer trained
    page.go_back()
    expect(page.locator(".goal")).to_contain_text("Training found")


@pytest.mark.parametrize("width", [360, 390])
def test_nothing_moves_when_the_script_puts_the_task_there(window, site, width):
    page = window(width=width, height=844, has_touch=True)
    page.add_init_script("""window.moved = 0;
      new PerformanceObserver((all) => all.getEntries().forEach((each) => { moved += each.value; }))
        .observe({ type: "layout-shift", buffered: true });""")
    page.goto(f"{site}{PAGE}")
    page.locator(".goal").wait_for()
    page.wait_for_timeout(500)
    assert page.evaluate("moved") < 0.01


def test_a_phone_reaches_what_is_stored(window, site):
    page = opened(window(width=390, height=844, has_touch=True), site, "down-after-cat-too")
    page.locator('[data-key="b,0,0"]').tap()
    for _ in range(2):
        page.get_by_role("button", name="larger").tap()
    expect(page.locator(".says")).to_contain_text("Solved")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_without_a_script_goals_hints_and_solutions_can_be_read(window, site):
    page = window(f"{site}{PAGE}", java_script_enabled=False)
    expect(page.locator(".task")).to_be_hidden()
    for puzzle in EVERY:
        section = page.locator(f"section:has(> #{puzzle.name})")
        expect(section.locator("li")).to_have_count(3)
        section.locator("summary").last.click()
        expect(section.locator("details").last.locator("p").last).to_be_visible()


@pytest.mark.parametrize("path", NUMBERED[:9], ids=lambda path: path.stem)
def test_a_chapter_links_its_puzzles(path):
    cells = [cell.source for cell in read(path).cells if "## Exercises\n" in cell.source]
    written = re.findall(r"\]\(puzzles\.md#([\w-]+)\)", cells[0].partition("## Exercises\n")[2])
    own = [puzzle.name for puzzle in EVERY if puzzle.chapter == int(path.stem[:2])]
    assert written == own
    links = [a["href"] for a in parsed(f"chapters/{path.stem}.html").select("[href*=puzzles]")]
    assert {f"puzzles.html#{name}" for name in own} <= set(links)
