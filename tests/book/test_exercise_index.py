"""The index of exercises names all of them, and the lists choose among them."""

import re

from built import CHAPTERS, parsed, prose
from playwright.sync_api import expect


def test_every_exercise_is_named_once_with_kind_level_and_minutes():
    page = parsed("chapters/exercises.html")
    links = [a["href"].partition("#")[2] for a in page.select("table.exercises td a")]
    labels = [
        label
        for path in CHAPTERS
        for label in re.findall(r"exercise-start\}.*\n:label: (\S+)", prose(path))
    ]
    assert sorted(links) == sorted(labels)
    for row in page.select("table.exercises tr[data-kind]"):
        kind, level, minutes = (cell.get_text() for cell in row.select("td")[1:])
        assert (kind, level) == (row["data-kind"], row["data-level"])
        assert 1 <= int(minutes) <= 60


def test_lists_leave_what_is_chosen(page, site):
    page.goto(f"{site}chapters/exercises.html")
    rows = page.locator("tr[data-kind]:visible")
    page.select_option("select[name=kind]", "Build")
    page.select_option("select[name=level]", "hard")
    hard = page.locator('tr[data-kind="Build"][data-level="hard"]').count()
    expect(rows).to_have_count(hard)
    assert 0 < hard < page.locator("tr[data-kind]").count()
