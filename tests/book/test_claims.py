import json
import math
from html.parser import HTMLParser

import nbformat
import pytest
import torch
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from book import ClaimFailedError, claim, seeds, tally
from book.evidence.claims import METADATA_KEY
from book.press.execute import execute

# A reader's mistakes must meet the claims' own checks.
pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture(autouse=True)
def other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three standard errors have to lie on a claim's side."""
    monkeypatch.setenv("ATTNBOOK_SEED", "1")


def test_recorded_claims_keep_six_standard_errors(monkeypatch, capsys):
    monkeypatch.delenv("ATTNBOOK_SEED")
    claim("2 ± 1 is at most 8", [1.0, 3.0], label="six", at_most=8.0)
    for form in (
        {"at_most": 7.99},
        {"at_least": -3.99},
        {"exceeds": -3.99},
        {"close_to": 2.0, "atol": 5.99},
    ):
        with pytest.raises(ClaimFailedError):
            claim("It has less", [1.0, 3.0], label="less", **form)


ONES = torch.ones(3, dtype=torch.float64)
NEXT = math.nextafter(1.0, 2.0)
BIT_OFF = torch.tensor([1.0, NEXT, 1.0], dtype=torch.float64)

HOLDS = {
    "equal numbers": (3, {"equals": 3}),
    "equal zeros": (0, {"equals": 0}),
    "equal booleans": (False, {"equals": False}),
    "equal strings": ("softmax", {"equals": "softmax"}),
    "equal infinities": (-math.inf, {"equals": -math.inf}),
    "equal tensors": (ONES, {"equals": ONES.clone()}),
    "close, absolutely": (1.75, {"close_to": 2.0, "atol": 0.25}),
    "close, relatively": (3.0, {"close_to": 2.0, "rtol": 0.5}),
    "close to a negative": (-3.0, {"close_to": -2.0, "rtol": 0.5}),
    "close, tolerances added": (3.5, {"close_to": 2.0, "rtol": 0.5, "atol": 0.5}),
    "close, three errors inside": ([1.0, 3.0], {"close_to": 2.5, "atol": 3.5}),
    "close tensors": (ONES + 0.25, {"close_to": ONES, "atol": 0.25}),
    "close tensors, each by its size": (
        torch.tensor([101.0, 1.0]),
        {"close_to": torch.tensor([100.0, 1.0]), "rtol": 0.01},
    ),
    "at most": (2.0, {"at_most": 2.0}),
    "at most, three errors below": ([1.0, 3.0], {"at_most": 5.0}),
    "at least": (2.0, {"at_least": 2.0}),
    "at least, three errors above": ([1.0, 3.0], {"at_least": -1.0}),
    "exceeds": (NEXT, {"exceeds": 1.0}),
    "exceeds by a factor": (3.0, {"exceeds": 1.5, "factor": 2.0}),
    "exceeds, three errors above": ([5.01, 7.01], {"exceeds": 3.0}),
    "exceeds samples by a factor": ([32.01, 38.01], {"exceeds": [8.0, 12.0], "factor": 2.0}),
}

FAILS = {
    "unequal numbers": (3, {"equals": 4}),
    "unequal in the last bit": (NEXT, {"equals": 1.0}),
    "unequal booleans": (True, {"equals": False}),
    "unequal strings": ("softmax", {"equals": "Softmax"}),
    "tensors unequal in one bit": (BIT_OFF, {"equals": ONES}),
    "not close, absolutely": (1.74, {"close_to": 2.0, "atol": 0.25}),
    "not close, relatively": (3.01, {"close_to": 2.0, "rtol": 0.5}),
    "close without tolerance": (NEXT, {"close_to": 1.0}),
    "close, within three errors of the edge": ([1.0, 3.0], {"close_to": 2.5, "atol": 3.49}),
    "tensors with one entry off": (
        torch.tensor([1.0, 1.0, 1.3]),
        {"close_to": ONES, "atol": 0.25},
    ),
    "tensors, a small entry off": (
        torch.tensor([100.0, 1.5]),
        {"close_to": torch.tensor([100.0, 1.0]), "rtol": 0.01},
    ),
    "whole numbers, close to broken ones": (
        torch.tensor([1, 2]),
        {"close_to": torch.tensor([1.9, 2.9]), "atol": 0.5},
    ),
    "tensors with a NaN": (torch.tensor([1.0, math.nan, 1.0]), {"close_to": ONES, "atol": 9.0}),
    "more than at most": (NEXT, {"at_most": 1.0}),
    "at most, within three errors": ([1.0, 3.0], {"at_most": 4.99}),
    "less than at least": (1.0, {"at_least": NEXT}),
    "at least, within three errors": ([1.0, 3.0], {"at_least": -0.99}),
    "exceeds, but is equal": (1.0, {"exceeds": 1.0}),
    "more than nothing, but nothing": ([0.0, 0.0], {"exceeds": 0}),
    "more than nothing, within three errors": ([1.0, 3.0], {"exceeds": 0}),
    "exceeds, but is less": (1.0, {"exceeds": NEXT}),
    "exceeds by a smaller factor": (2.99, {"exceeds": 1.5, "factor": 2.0}),
    "exceeds, within three errors": ([4.99, 6.99], {"exceeds": 3.0}),
    "exceeds, within three errors of both": (
        [31.99, 37.99],
        {"exceeds": [8.0, 12.0], "factor": 2.0},
    ),
    "exceeds NaN": (1.0, {"exceeds": math.nan}),
    "exceeds minus infinity": (1.0, {"exceeds": -math.inf}),
    "close to infinity": (2.0, {"close_to": math.inf, "rtol": 0.1}),
    "close, with infinite rtol": (2.0, {"close_to": 1.0, "rtol": math.inf}),
    "close, with infinite atol": (2.0, {"close_to": 1.0, "atol": math.inf}),
    "at most infinity": (2.0, {"at_most": math.inf}),
    "at least minus infinity": (2.0, {"at_least": -math.inf}),
    "tensors close to infinity": (ONES, {"close_to": ONES * math.inf, "rtol": 0.1}),
}

BOUNDS = [{"close_to": 1.0, "atol": 1e9}, {"at_most": 1e9}, {"at_least": -1e9}, {"exceeds": -1e9}]


@pytest.mark.parametrize(("measured", "form"), HOLDS.values(), ids=HOLDS)
def test_claim_holds(measured, form, capsys):
    claim("It holds", measured, label="it", **form)
    assert capsys.readouterr().out.startswith("✓ It holds\n  measured ")


@pytest.mark.parametrize(("measured", "form"), FAILS.values(), ids=FAILS)
def test_claim_fails(measured, form, capsys):
    with pytest.raises(ClaimFailedError):
        claim("It holds", measured, label="it", **form)
    assert capsys.readouterr().out.startswith("✗ It holds\n  measured ")


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("form", BOUNDS, ids=lambda form: next(iter(form)))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("among_samples", [False, True])
def test_what_is_not_finite_fails(form, value, among_samples):
    with pytest.raises(ClaimFailedError):
        claim("It holds", [1.0, value] if among_samples else value, label="it", **form)


def test_nothing_is_so_many_times_a_negative_number():
    with pytest.raises(ValueError, match="at least 2 times as much as -1 means nothing"):
        claim("It is twice as much", -1.0, label="it", exceeds=-1.0, factor=2.0)


@pytest.mark.parametrize(
    ("measured", "form", "message"),
    [
        ([7.0, 9.0], {"at_most": 3.5, "unit": "bits"}, r"measured: 8 ± 1 bits \(2 samples\)"),
        ([7.0, 9.0], {"at_most": 3.5, "unit": "bits"}, "expected: at most 3.5 bits"),
        ([7.0, 9.0], {"at_most": 3.5}, "It holds"),
        (BIT_OFF, {"equals": ONES}, "measured: 1 entries differ"),
        (ONES + 0.5, {"close_to": ONES, "atol": 0.25}, r"measured: a largest .* of 5\.00e-01"),
        # A tolerance on a share is in points.
        ([30.0, 31.0], {"close_to": 12.0, "atol": 6.0, "unit": "%"}, "12 % within 6 points"),
        ([30.0, 31.0], {"close_to": 12.0, "rtol": 0.05, "unit": "%"}, "12 % within 5 %"),
    ],
)
def test_failure_says_what_was_claimed_and_what_came_out(measured, form, message):
    with pytest.raises(ClaimFailedError, match=message):
        claim("It holds", measured, label="it", **form)


MISUSES = {
    "no form": (TypeError, 1.0, {}),
    "two forms": (TypeError, 1.0, {"at_most": 2.0, "at_least": 0.0}),
    "two forms, one of them zero": (TypeError, 1.0, {"at_most": 2.0, "at_least": 0}),
    "rtol with at_most": (TypeError, 1.0, {"at_most": 2.0, "rtol": 0.1}),
    "atol with equals": (TypeError, 1.0, {"equals": 1.0, "atol": 0.1}),
    "factor without exceeds": (TypeError, 1.0, {"at_least": 0.5, "factor": 2.0}),
    "no samples": (ValueError, [], {"at_most": 1.0}),
    "no samples to exceed": (ValueError, 1.0, {"exceeds": []}),
    "empty tensors, equal": (ValueError, torch.ones(0), {"equals": torch.ones(0)}),
    "empty tensors, close": (ValueError, torch.ones(0), {"close_to": torch.ones(0)}),
    "text": (TypeError, "many", {"at_most": 1.0}),
    "digits as text": (TypeError, "7", {"at_most": 8.0}),
    "texts as samples": (TypeError, ["7", "6"], {"at_most": 8.0}),
    "nothing": (TypeError, None, {"at_most": 1.0}),
    "samples of samples": (TypeError, [[1.0, 2.0]], {"at_most": 3.0}),
    "ragged samples": (TypeError, [[1.0], [1.0, 2.0]], {"at_most": 3.0}),
    "samples with equals": (TypeError, [1.0, 1.0], {"equals": 1.0}),
    "tensor with at_most": (TypeError, ONES, {"at_most": 2.0}),
    "number close to a tensor": (TypeError, 1.0, {"close_to": ONES}),
    "tensor equals a number": (TypeError, ONES, {"equals": 1.0}),
    "equal tensors of two shapes": (TypeError, ONES, {"equals": ONES[None]}),
    "equal tensors of two types": (TypeError, ONES, {"equals": ONES.float()}),
    "close tensors of two shapes": (TypeError, ONES, {"close_to": ONES[None]}),
}


@pytest.mark.parametrize(("error", "measured", "form"), MISUSES.values(), ids=MISUSES)
def test_misuse_raises(error, measured, form):
    with pytest.raises(error):
        claim("It holds", measured, label="it", **form)


@pytest.mark.parametrize("label", ["", "Two", "two words", "two_words", "-two", "two-", 'a"b'])
def test_labels_that_no_link_can_name_raise(label):
    with pytest.raises(ValueError, match="a label is"):
        claim("It holds", 1, label=label, equals=1)


NOISY = [1 / 3, 2 / 3, 12345.0, 0.1, 1e-4, 64.0, 999.9, 1e6, 123456789.0, -2.5, 1e-12]


@pytest.mark.parametrize("value", NOISY)
@pytest.mark.parametrize("noise", [1 - 1e-13, 1 + 1e-13])
def test_rounding_noise_does_not_change_the_line(value, noise, capsys):
    lines = []
    for exact in (value, value * noise):
        claim("It holds", exact, label="it", close_to=value, rtol=1e-9)
        claim("It holds", [exact, exact], label="it", close_to=value, rtol=1e-9)
        claim("It holds", [exact, 1.41 * exact], label="it", at_most=2e9)
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]


@pytest.mark.parametrize("value", [2 / 3, 64.0, 123456789.0])
def test_samples_that_differ_by_rounding_have_no_error(value, capsys):
    claim("It holds", [value, value * (1 + 1e-15)], label="it", close_to=value, rtol=1e-9)
    assert "±" not in capsys.readouterr().out


ANYWHERE = {"close_to": 0.0, "atol": 1e9}


@pytest.mark.parametrize(
    ("measured", "form", "shown"),
    [
        # Exact numbers have every digit, rounding errors none.
        (0, {"equals": 0}, "measured 0; claimed exactly 0\n"),
        (7, {"equals": 7}, "measured 7; claimed exactly 7\n"),
        (50257, {"equals": 50257}, "measured 50257; claimed exactly 50257\n"),
        (124439808, {"equals": 124439808}, "measured 124,439,808; claimed exactly 124,439,808\n"),
        (3e-17, {"at_most": 1e-12}, "measured below 1e-12; claimed at most 1e-12\n"),
        (-3e-17, {"at_most": 1e-12}, "measured below 1e-12; claimed at most 1e-12\n"),
        (1e-16, {"at_most": 1e-12}, "measured below 1e-12; claimed at most 1e-12\n"),
        # Means have as many digits as their error allows.
        ([63.2, 64.2, 63.7], ANYWHERE, "measured 63.7 ± 0.3 "),
        ([1000.0, 1200.0], ANYWHERE, "measured 1100 ± 100 "),
        ([0.0, 0.002], ANYWHERE, "measured 0.001 ± 0.001 "),
        ([0.0, -0.0], ANYWHERE, "measured 0 "),
        ([2.0], ANYWHERE, "measured 2;"),
        # Of two sides, the smaller number of seeds is shown.
        ([3.0, 3.1], {"exceeds": [1.0, 1.1, 0.9, 1.0]}, "times as much (2 seeds); claimed more"),
        ([3.0, 3.1, 3.2, 3.0], {"exceeds": [1.0, 1.1]}, "times as much (2 seeds); claimed more"),
        ([3.0, 3.1], {"exceeds": 1.0}, "times as much (2 seeds); claimed more"),
        (9.0, {"exceeds": [1.0, 1.1, 0.9, 1.0]}, "times as much (4 seeds); claimed more"),
        (9.0, {"exceeds": 1.0}, "times as much; claimed more"),
        # Nothing is a multiple of a negative number, or of nothing.
        (-1.0, {"exceeds": -2.0}, "measured -1 against -2; claimed more\n"),
        (
            [3.0, 5.0],
            {"exceeds": 0, "unit": "nats"},
            "measured 4 ± 1 nats (2 seeds); claimed more than 0 nats\n",
        ),
    ],
)
def test_line_says_what_was_measured_and_claimed(measured, form, shown, capsys):
    claim("It holds", measured, label="it", **form)
    assert shown in capsys.readouterr().out


CELLS = [
    "from book import claim",
    'claim("a < b & <b>c</b>", [1.0, 3.0], label="held-one", at_most=9, unit="<i>", text="abc")',
    'claim("It fails", 2, label="failed-one", at_most=1)',
    'claim("It is near", 1.0, label="near", close_to=1.0, rtol=0.02)',
    'claim("It is more", [3.5, 4.5], label="more", exceeds=1.0)',
    'claim("It is twice as much", 4.0, label="twice", exceeds=1.0, factor=2.0)',
    'claim("It is minus infinity", float("-inf"), label="infinite", equals=float("-inf"))',
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    path = tmp_path_factory.mktemp("claims") / "claims.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in CELLS]), path)
    return execute(path, allow_errors=True)[0]


def test_claim_in_a_notebook_is_shown_as_text_and_html(executed):
    (output,) = executed.cells[1].outputs
    assert output.data["text/plain"] == (
        "✓ a < b & <b>c</b>\n  measured 2 ± 1 <i> (2 seeds); claimed at most 9 <i>, on text abc"
    )
    assert set(output.data) == {"text/plain", "text/html"}


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_claim_in_html_escapes_its_words_and_can_be_linked_to(executed):
    page = Page()
    page.feed(executed.cells[1].outputs[0].data["text/html"])
    assert {tag for tag, _ in page.tags} == {"br", "div", "span"}
    assert page.tags[0][1]["id"] == "claim-held-one"
    assert "a < b & <b>c</b>" in page.words
    assert "measured 2 ± 1 <i> (2 seeds); claimed at most 9 <i>, on text abc" in page.words


def test_claim_carries_its_data(executed):
    (output,) = executed.cells[1].outputs
    assert output.metadata[METADATA_KEY] == {
        "statement": "a < b & <b>c</b>",
        "label": "held-one",
        "form": "at_most",
        "measured": "2 ± 1 <i>",
        "expected": "at most 9 <i>",
        "held": True,
        "samples": 2,
        "numbers": [2.0, 9.0],
        "errors": [1.0],
        "room": 7.0,
        "lead": 7.0,
        "text": "abc",
    }


def test_failing_claim_shows_its_line_and_then_raises(executed):
    shown, error = executed.cells[2].outputs
    assert shown.data["text/plain"].startswith("✗ It fails")
    assert 'aria-label="does not hold"' in shown.data["text/html"]
    assert not shown.metadata[METADATA_KEY]["held"]
    assert error.ename == "ClaimFailedError"


@pytest.mark.parametrize(
    ("cell", "numbers", "errors"),
    [
        (3, [1.0, 1.0, 2.0], []),
        (4, [4.0, 1.0, 4.0], [0.5]),
        (5, [4.0, 1.0, 4.0, 2.0], []),
    ],
)
def test_claim_carries_no_number_that_its_line_does_not_show(cell, numbers, errors, executed):
    (output,) = executed.cells[cell].outputs
    carried = output.metadata[METADATA_KEY]
    assert (carried["numbers"], carried["errors"]) == (numbers, errors)


def test_claims_on_infinities_leave_a_notebook_that_every_reader_can_parse(executed):
    assert executed.cells[6].outputs[0].metadata[METADATA_KEY]["numbers"] == []
    assert json.dumps(executed, allow_nan=False)


def test_seeds_are_distinct(monkeypatch):
    monkeypatch.delenv("ATTNBOOK_SEED", raising=False)
    assert len(set(seeds(999))) == 999


def test_seeds_do_not_depend_on_how_many_are_asked_for(monkeypatch):
    monkeypatch.delenv("ATTNBOOK_SEED", raising=False)
    assert seeds(10)[:3] == seeds(3)


def test_shifted_seeds_never_overlap(monkeypatch):
    drawn: set[int] = set()
    shifts = ["0", "1", "2", "17", "999999998", "999999999"]
    for shift in shifts:
        monkeypatch.setenv("ATTNBOOK_SEED", shift)
        drawn |= set(seeds(999))
    assert len(drawn) == len(shifts) * 999


def test_seeds_fit_into_a_generator(monkeypatch):
    monkeypatch.setenv("ATTNBOOK_SEED", "999999999")
    last = seeds(1000)[-1]
    assert torch.Generator().manual_seed(last).initial_seed() == last


@pytest.mark.parametrize("shift", ["", "-1", "1.5", "one", " 1", "1\n", "1" * 10, "１"])
def test_shifts_that_are_no_whole_numbers_raise(shift, monkeypatch):
    monkeypatch.setenv("ATTNBOOK_SEED", shift)
    with pytest.raises(ValueError, match="ATTNBOOK_SEED"):
        seeds(1)


@pytest.mark.parametrize("n", [0, -1])
def test_no_seeds_raise(n):
    with pytest.raises(ValueError, match="at least one seed"):
        seeds(n)


def test_where_a_reader_runs_it_a_broken_claim_is_shown_and_counted(monkeypatch, capsys):
    monkeypatch.setattr("book.evidence.claims.STATED", {})
    monkeypatch.setenv("JPY_SESSION_NAME", "a notebook")
    tally()  # says nothing of nothing
    assert capsys.readouterr().out == ""
    claim("Seven is at most eight", 7, label="seven", at_most=8)
    claim("Nine is at most eight", 9, label="nine", at_most=8)
    tally()
    broken = "✗ Nine is at most eight\n  measured 9; claimed at most 8\n"
    assert capsys.readouterr().out.endswith(f"{broken}1 of 2 claims hold.\n{broken}")
    claim("Nine is at most ten", 9, label="nine", at_most=10)  # mended, and run again
    tally()
    assert capsys.readouterr().out.endswith("2 of 2 claims hold.\n")
    monkeypatch.delenv("JPY_SESSION_NAME")
    with pytest.raises(ClaimFailedError):
        claim("Nine is at most eight", 9, label="nine", at_most=8)
