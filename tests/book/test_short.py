"""Short places name the claims that they rest on, and are read again when these change."""

import json
from pathlib import Path

import nbformat
import pytest
from built import ROOT, parsed
from nbformat.v4 import new_markdown_cell, new_notebook

from book.evidence.short import READ, RESTS, ShortError, shorts, to_read
from book.evidence.subjects import Parting, Subject, Subjects, read_subjects
from book.press.render import CLAIMS

CLAIM = {"statement": "Warm-up helps", "measured": "3", "expected": "at most 4"}
SUBJECTS = {
    "warm-up": Subject(
        "warm-up", "Warm-up", "If it helps.", "", "", ("warm", "cold", "post", "late")
    )
}
REST = "one: [{says: It helps., rests: warm}, {says: It is quick., rests: warm cold}]"


@pytest.fixture
def book(tmp_path: Path):
    """A chapter with a headline, a summary and a saying; a question; a lecture."""
    (tmp_path / "chapters").mkdir()
    cells = [
        new_markdown_cell("# One\n\nIt helps.\n\nMore."),
        new_markdown_cell("## What people say\n\n**“It must.”** [No](#claim-late).\n\nAnd so on."),
        new_markdown_cell("## What you can now say\n\n- It is quick."),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "chapters" / "one.ipynb")
    (tmp_path / "chapters" / "questions.md").write_text(
        "# Questions\n\n### Does it?\n\nYes.\n\n:::{dropdown} How we know\n"
        "[Ten](#claim-post).\n:::\n\n### What is it?\n\nA word.\n"
    )
    (tmp_path / "chapters" / "lectures.md").write_text("# Lectures\n\nSay [it](#claim-cold).\n")
    (tmp_path / RESTS).write_text(REST)
    return tmp_path


def claims(**changed):
    return {label: CLAIM | changed.get(label, {}) for label in SUBJECTS["warm-up"].labels}


def test_each_short_place_knows_its_claims(book):
    found = {(each.kind, each.says): each.labels for each in shorts(book, claims())}
    assert found == {
        ("headline", "It helps."): ("warm",),
        ("summary", "It is quick."): ("warm", "cold"),
        ("saying", "**“It must.”** [No](#claim-late)."): ("late",),
        ("Does it?", "Yes."): ("post",),
        ("lecture", "Say [it](#claim-cold)."): ("cold",),
    }


@pytest.mark.parametrize(
    ("rests", "said"),
    [
        ("one: [{says: It is quick., rests: warm}]", "'It helps.' rests on no claim"),
        (REST.replace("It helps", "It helped"), "one has no sentence 'It helped.'"),
        (REST.replace("cold", "colder"), "no claim is called colder"),
        (f"{REST}\ntwo: [{{says: A, rests: warm}}]", "two has no sentence 'A'"),
    ],
)
def test_what_does_not_fit_the_chapters_is_refused(book, rests, said):
    (book / RESTS).write_text(rests)
    with pytest.raises(ShortError, match=said):
        shorts(book, claims())


def test_what_rests_on_nothing_may_say_so(book):
    (book / RESTS).write_text(REST.replace("rests: warm}", "rests: nothing}"))
    assert "It helps." not in {each.says for each in shorts(book, claims())}


def test_a_short_place_is_read_again_when_a_number_or_its_subject_changes(book):
    known = Subjects(SUBJECTS)
    waiting, now = to_read(book, claims(), known)
    assert len(waiting) == 5
    (book / READ).write_text(json.dumps(now))
    assert to_read(book, claims(), known)[0] == []

    waiting, _ = to_read(book, claims(cold={"measured": "5"}), known)
    assert [each.kind for each in waiting] == ["summary", "lecture"]
    parts = Subjects(SUBJECTS, (Parting(("warm", "post"), "One did.", "Why is not known.", ()),))
    assert len(to_read(book, claims(), parts)[0]) == 5

    lectures = book / "chapters" / "lectures.md"
    lectures.write_text(lectures.read_text().replace("Say", "Always say"))
    assert [each.says[:6] for each in to_read(book, claims(), known)[0]] == ["Always"]


def test_all_short_places_of_the_book_were_read():
    ledger = json.loads((ROOT / CLAIMS).read_text())
    known = {each["label"]: each for found in ledger.values() for each in found}
    waiting, _ = to_read(ROOT, known, read_subjects(ROOT, known))
    assert not waiting, "make read"


def test_a_summary_leads_to_what_it_rests_on():
    page = parsed("chapters/08_depth.html")
    items = page.select("#what-you-can-now-say li")
    assert len(items) >= 4
    assert all(item.select("a.rests[data-card]") for item in items)
    assert page.select("h1 ~ p a.rests")
