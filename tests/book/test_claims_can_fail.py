"""Break what a claim guards, and see that claim fail.

Each file of `breaks/` lists, for one chapter, changes of its code: (label, what is there, what is
put in its place). Of the chapter, only the cells run that the claim needs. That it holds as it is,
the chapter itself says, which nbval executes. What has to train for minutes was broken by hand when
it was written, and is not here.
"""

import importlib
from collections.abc import Iterator

import matplotlib as mpl
import pytest
from built import CHAPTERS, ROOT, code_cells

import book
from book import ClaimFailedError, claim
from book.evidence.cells import Cell, needed

AT_LEAST = 5  # breaks for each chapter


def chapter_cells(chapter: str) -> list[Cell]:
    path = next(path for path in CHAPTERS if path.stem.startswith(chapter))
    return [Cell(cell.source) for cell in code_cells(path)]


def slice_for(chapter: str, label: str) -> str:
    """The part of the chapter's code that leads to the claim with this label."""
    cells = chapter_cells(chapter)
    prefixes = label.rstrip("0123456789"), label.rpartition("-")[0] + "-"
    # as it is; or else with a number put in, or a word
    spelled = (f'"{label}"', *(f'f"{prefix}{{' for prefix in prefixes))
    last = next(i for text in spelled for i, cell in enumerate(cells) if text in cell.source)
    return "\n\n".join(cell.source for cell in needed(cells, last))


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """State no claim but those with the labels in this list; show no figure."""
    labels: list[str] = []

    def chosen(statement: str, measured: object, *, label: str, **form: object) -> None:
        if label in labels:
            stated.append(label)
            claim(statement, measured, label=label, **form)

    stated: list[str] = []
    monkeypatch.setattr(book, "claim", chosen)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.chdir(ROOT / "chapters")  # where a chapter runs
    with mpl.rc_context({"figure.max_open_warning": 0}):
        mpl.use("Agg")
        yield labels
    mpl.pyplot.close("all")
    assert set(stated) >= set(labels[:1])


NAMES = [path.stem.split("_")[0] for path in CHAPTERS]
BREAKS = {name: importlib.import_module(f"breaks.chapter_{name}").BREAKS for name in NAMES}
EACH = [(chapter, *each) for chapter, breaks in BREAKS.items() for each in breaks]


@pytest.mark.parametrize("chapter", NAMES)
def test_enough_claims_of_each_chapter_are_broken(chapter):
    stated = sum(cell.source.count("label=") for cell in chapter_cells(chapter))
    assert len({label for label, _, _ in BREAKS[chapter]}) >= min(AT_LEAST, stated)


@pytest.mark.usefixtures("without_shape_checks")  # which take more time than what they check
@pytest.mark.parametrize(("chapter", "label", "old", "new"), EACH, ids=[e[1] for e in EACH])
def test_claim_fails_when_what_it_guards_is_broken(chapter, label, old, new, only):
    only.append(label)
    source = slice_for(chapter, label)
    assert old in source, "the chapter has changed: nothing to break"
    with pytest.raises(ClaimFailedError):
        exec(source.replace(old, new), {"__name__": chapter})
