"""The index by symptom: causes in a few words, one check to paste, where it was asked."""

import re
from dataclasses import dataclass, field

import nbformat
import pytest
from built import ROOT, parsed

from book.evidence.cells import tag_of
from book.sphinx.notebooks import as_on_pages

PAGE = ROOT / "chapters" / "not_learning.ipynb"
SYMPTOM = re.compile(r"(?m)^\((s-[a-z-]+)\)=\n### ([^\n]+)\n")


@dataclass
class Symptom:
    """One entry: its prose, and its cells."""

    label: str
    title: str
    prose: str = ""
    checks: list[nbformat.NotebookNode] = field(default_factory=list)

    @property
    def causes(self) -> list[str]:
        return re.findall(r"(?m)^- (.*)$", self.prose)


def symptoms() -> list[Symptom]:
    found: list[Symptom] = []
    for cell in as_on_pages(PAGE.read_text("utf-8"), ROOT).cells[:-1]:  # the last counts claims
        if cell.cell_type == "markdown":
            before, *parts = SYMPTOM.split(cell.source)
            if found:
                found[-1].prose += f"\n{before}"
            for label, title, prose in zip(*[iter(parts)] * 3, strict=True):
                found.append(Symptom(label, title, prose))
        elif found and tag_of(cell) is None:
            found[-1].checks.append(cell)
    return found


SYMPTOMS = symptoms()
each = pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.label)


def test_each_symptom_stands_once_and_in_the_contents():
    assert len({symptom.label for symptom in SYMPTOMS}) == len(SYMPTOMS) >= 30
    links = parsed("chapters/not_learning.html").select("nav.contents a")
    assert {symptom.title.replace("`", "") for symptom in SYMPTOMS} <= {a.text for a in links}


@each
def test_causes_are_short(symptom):
    causes = re.sub(r"\]\([^)]*\)|\$[^$]+\$", "]", "\n".join(symptom.causes))
    assert 10 <= len(re.findall(r"[\w√][\w√'’.-]*", causes)) <= 60


@each
def test_one_check_is_shown_with_what_it_prints_for_right_and_wrong_models(symptom):
    (check,) = symptom.checks
    (output,) = check.outputs
    lines = output.text.splitlines()
    assert len(lines) >= 2
    assert len({line.partition(":")[2] for line in lines}) >= 2


@each
def test_it_says_who_asked(symptom):
    assert re.search(r"(?m)^\*Asked in\* .*(\w/[\w.-]+#\d+|\]\(https://)", symptom.prose)
