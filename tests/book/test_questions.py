"""The page of questions: short answers, code that runs, evidence behind each."""

import ast
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from built import ROOT

PAGE = (ROOT / "chapters" / "questions.md").read_text(encoding="utf-8")
FOLD = re.compile(r"(?ms)^:::\{dropdown\} How we know\n(.*?)^:::$")
BLOCK = re.compile(r"(?ms)^```(\S+)\n(.*?)^```$")


@dataclass
class Entry:
    """One question: heading, answer, what shows it, and the fold."""

    label: str
    question: str
    body: str

    @property
    def answer(self) -> str:
        return self.body.strip().partition("\n\n")[0]

    @property
    def code(self) -> list[str]:
        return [text for kind, text in BLOCK.findall(self.body) if kind == "python"]


ENTRIES = [
    Entry(*found)
    for found in re.findall(r"(?ms)^\((q-[a-z-]+)\)=\n### ([^\n]+)\n(.*?)(?=^\(q-|^## |\Z)", PAGE)
]
SETUP = BLOCK.findall(PAGE.partition("\n## ")[0])[-1][1]


def words(markdown: str) -> list[str]:
    """What is read: a formula is one word, a link its text."""
    text = re.sub(r"\$[^$]+\$", "formula", re.sub(r"\]\([^)]*\)", "]", markdown))
    return re.findall(r"[\w√][\w√'’.-]*", text)


def test_there_are_at_least_forty_questions():
    assert len(ENTRIES) >= 40
    assert len({entry.label for entry in ENTRIES}) == len(ENTRIES) == PAGE.count("\n### ")


def test_answer_is_at_most_sixty_words():
    for entry in ENTRIES:
        assert 10 <= len(words(entry.answer)) <= 60, entry.label


def test_first_sentence_is_an_answer_by_itself():
    """The search shows it alone: "No." or "The mask." would say nothing there."""
    for entry in ENTRIES:
        first = re.split(r"(?<=[.!?])\s", entry.answer)[0]
        assert len(words(first)) >= 5, entry.label


def test_answer_has_at_most_one_number_and_it_leads_to_its_claim():
    for entry in ENTRIES:
        links = re.findall(r"\[([^]]*\d[^]]*)\]\(#claim-", entry.answer)
        plain = re.sub(r"\[[^]]*\]\([^)]*\)|\$[^$]+\$|`[^`]+`", "", entry.answer)
        assert len(links) <= 1, entry.label
        assert re.findall(r"(?<![\w-])\d+", plain) == [], entry.label


def test_answer_is_shown():
    """By a picture or by a few lines of code, before the fold."""
    for entry in ENTRIES:
        before = {kind for kind, _ in BLOCK.findall(FOLD.split(entry.body)[0])}
        assert before & {"python", "{claim-bars}", "{cells}"}, entry.label


def test_evidence_is_folded_and_names_its_source():
    for entry in ENTRIES:
        folds = FOLD.findall(entry.body)
        assert len(folds) == 1, entry.label
        assert re.search(r"\]\((\d\d_\w+|implementations)\.ipynb\)", folds[0]), entry.label


def test_no_digit_opens_a_sentence():
    prose = BLOCK.sub("", PAGE)
    assert re.findall(r"(?m)(?:^(?:- )?|(?<=[.!?]) )\[?\d[^.]{0,40}", prose) == []


def test_mathematics_in_headings_is_set():
    """Names with an index, roots and code: as formulas or as code, not as letters."""
    plain = [re.sub(r"\$[^$]+\$|`[^`]+`", "", entry.question) for entry in ENTRIES]
    assert [heading for heading in plain if re.search(r"[√−_]|\w\.\w|\w\(", heading)] == []


def test_pictures_are_many_and_described():
    pictures = [text for kind, text in BLOCK.findall(PAGE) if kind in ("{claim-bars}", "{cells}")]
    assert len(pictures) >= 8
    assert all(re.search(r"^:caption: .{20}", text, re.M) for text in pictures)


BLOCKS = [
    pytest.param(code, id=f"{entry.label}-{i}")
    for entry in ENTRIES
    for i, code in enumerate(entry.code)
]


def test_code_is_at_most_six_lines():
    for entry in ENTRIES:
        for code in entry.code:
            lines = [line for line in code.splitlines() if line and not line.startswith("# →")]
            assert len(lines) <= 6, entry.label
            assert max(map(len, lines)) <= 79, entry.label  # what fits beside both sidebars


def what_comes_out(code: str, statement: ast.stmt) -> str:
    """What the comment behind a statement, or on the line below, says; nothing without one."""
    assert statement.end_lineno is not None
    here, below = [*code.splitlines(), ""][statement.end_lineno - 1 : statement.end_lineno + 1]
    return (below if below.startswith("# →") else here).partition("# → ")[2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("code", BLOCKS)
def test_code_gives_what_its_comments_say(code):
    torch.set_default_dtype(torch.float32)  # what a reader has
    names: dict[str, Any] = {}
    exec(SETUP, names)
    checked = 0
    for statement in ast.parse(code).body:
        source = ast.get_source_segment(code, statement)
        if said := what_comes_out(code, statement):
            value = str(eval(source, names))
            # Words may follow the value.
            assert re.fullmatch(re.escape(value) + r"(:? .*)?", said), value
            checked += 1
        else:
            exec(source, names)
    assert checked == code.count("# → ") >= 1
