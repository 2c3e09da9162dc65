import json
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from built import CHAPTERS, HTML, ROOT, code_cells, parsed, read, without
from nbformat import NotebookNode

from book.evidence.arithmetic import EXECUTED
from book.evidence.cells import required_tag, tag_of
from book.evidence.records import FOLDER, REPLAY_KEY, checked_record, names, waits_for_gpu
from book.press import build

LOOKED_UP = "not_learning"  # by symptom; its entries are short (test_not_learning)


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def code(path: Path) -> list[NotebookNode]:
    return code_cells(path)


@cache
def studies_in(path: Path) -> list[str]:
    return build.studies_in(path)


def test_notebook_is_valid_and_its_kernel_is_python(path):
    nbformat.validate(read(path))
    assert read(path).metadata.kernelspec.name == "python3"


def test_cells_were_executed_from_top_to_bottom(code):
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_no_cell_shows_an_error_or_a_warning(code):
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error", output.evalue
            assert output.get("name") != "stderr", output.text


def test_outputs_are_of_todays_code(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert build.out_of_date(path.relative_to(ROOT)) == [], f"run make chapters ONLY={path.stem}"


def test_it_is_noted_how_outputs_were_made(path):
    noted = json.loads((ROOT / EXECUTED).read_text(encoding="utf-8"))
    assert sorted(noted) == [path.stem for path in CHAPTERS]
    assert noted[path.stem]["under"].keys() == {"arithmetic", "text"}


def test_each_study_that_a_chapter_reads_is_run_again(path, code, monkeypatch):
    monkeypatch.chdir(ROOT)
    replayed = {o.get("metadata", {}).get(REPLAY_KEY) for cell in code for o in cell.outputs}
    assert set(studies_in(path)) == replayed - {None}


@pytest.mark.parametrize("name", names(ROOT))
def test_record_is_whole_and_of_todays_code(name):
    if not waits_for_gpu(ROOT, name):
        checked_record(ROOT, name, FOLDER / f"{name}.json")
    assert any(name in studies_in(path) for path in CHAPTERS), "no chapter reads it"


def test_cells_are_at_most_40_lines(code):
    lengths = {cell.execution_count: len(cell.source.splitlines()) for cell in code}
    assert {count: length for count, length in lengths.items() if length > 40} == {}


def test_figures_are_described_in_words(code):
    for cell in code:
        if any(kind.startswith("image/") for o in cell.outputs for kind in o.get("data", {})):
            svg = "".join(o.get("data", {}).get("image/svg+xml", "") for o in cell.outputs)
            drawn = re.search(r"(?s)data-interactive=.*?<desc>(.*?)</desc>", svg)
            given = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            alt = drawn[1] if drawn else given
            assert len(alt) >= 40, f"alt text of cell {cell.execution_count}: {alt!r}"


def test_no_output_is_exempt_from_comparison(code):
    for cell in code:
        words = " ".join([cell.source, *cell.metadata.get("tags", [])]).lower().replace("-", "_")
        assert "nbval_" not in words
        assert "pytest.skip" not in words
        assert "raises_exception" not in words


def test_no_difference_of_zero_is_a_gain(code):
    """``at_least=0`` holds for two models that are the same; what is larger has ``exceeds=0``."""
    claims = [c.source for c in code if re.search(r"""at_least(=|["']: *)0[,)}]""", c.source)]
    assert claims == []


def test_the_main_path_is_at_most_1800_words_and_has_pictures(path):
    main = without(parsed(f"chapters/{path.stem}.html").article, "#more-measurements")
    assert len(main.select("figure svg")) >= 2
    for each in main.select("details, figure, pre, script, svg, .bench, .live, #exercises"):
        each.extract()
    words = re.findall(r"[^\W_][\w'’.,/%²-]*", main.get_text(" "))
    assert len(words) <= 1800 or path.stem == LOOKED_UP


def test_figures_of_a_page_count_from_one(path):
    captions = parsed(f"chapters/{path.stem}.html").select("figcaption .caption-number")
    numbers = [int(caption.text.rpartition(".")[2]) for caption in captions]
    assert numbers == list(range(1, len(numbers) + 1))


def test_page_is_at_most_one_and_a_half_megabytes(path):
    page = HTML / "chapters" / f"{path.stem}.html"
    assert page.exists(), "run `make html` first"
    assert page.stat().st_size <= 1_500_000


def test_cells_are_folded_where_they_must_be(code):
    """A cell that imports, draws or states claims is folded; a ``harness`` is the author's word.

    But not one that imports a check, for a reader's answer.
    """
    for cell in code:
        if "answer" in cell.metadata.get("tags", ()):
            continue
        required = required_tag(cell)
        assert required in (None, tag_of(cell)), (cell.execution_count, cell.source)
