"""The museum: each bug's verdict is the recorded one, and what stands in its files is healthy."""

import json
from collections.abc import Iterator
from importlib.metadata import version

import pytest
import torch

from attnbook.doctor.causes import CAUSES
from benchmarks.doctor import measured
from benchmarks.doctor.specimens.museum import (
    FILES,
    edited,
    examine,
    healthy,
    settings_of,
    specimens,
)

RECORD = json.loads(measured.WRITTEN.read_text("utf-8"))
BUGS = RECORD["verdicts"]["bugs"]
SETTINGS = [(file, setting) for file in FILES for setting in settings_of(file)]
UNSEEN = (
    *("sink", "clipped softmax", "powers of two", "squared relu, sum of one"),
    *("additive attention", "linear, causal", "stick breaking"),
    *("delta rule", "distance", "relu", "linear, both ways", "sigmoid", "squared relu"),
    *("talking heads", "differential"),
)
"""What weighs otherwise than by one softmax of products."""
UNTESTED = {("right", name): ("n_heads",) for name in UNSEEN} | {
    ("encoders", "set"): ("scale",),  # its softmax is written by hand
    ("right", "sparsemax"): ("n_heads", "scale"),  # no softmax to scale
    ("right", "retention"): ("n_heads", "scale"),
    ("right", "two tokens ahead"): ("position",),  # two predictions of each token, one loss
    ("right", "two tokens ahead, equal weights"): ("position",),
    ("right", "for inference alone"): ("position",),  # nothing of it is seen
    ("attentions", "linear"): ("n_heads",),
    ("attentions", "linear, convolution"): ("n_heads",),
}
"""What these claim and the doctor can not test: it says so, and calls nothing healthy."""
WASTES = ("right", "joined values")
"""It makes sixteen keys and values, and uses eight: the one error is true."""


MEANT = """
note | one layer many times | decoders: nanogpt
    [Block(config) for _ in range(config.n_layer)] → [Block(config)] * config.n_layer
warning | a batch is not learned | decoders: step
    F.cross_entropy(flat, → F.cross_entropy(flat / 1000,
warning | sequences in groups | field: codebooks
    two = ids.view → …
"""
"""What an author may mean: the doctor's level, the cause, where, and an edit as in the museum."""


@pytest.fixture(autouse=True)
def single_precision(numerics: None) -> Iterator[None]:
    """As readers have it, and as it was recorded."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


def test_names_are_told_apart() -> None:
    names = [bug.name for file in FILES for bug in specimens(file)]
    assert len(set(names)) == len(names) > 400


@pytest.mark.parametrize(("file", "setting"), measured.with_bugs(), ids=lambda each: each)
def test_verdicts_are_as_recorded(file: str, setting: str) -> None:
    """Of some: that the others were measured with this code, a test below says."""
    now = measured.judged(file, setting, each=6)
    assert now == {name: BUGS.get(name) for name in now}


def test_each_cause_that_a_row_names_exists() -> None:
    causes = {cause for file in FILES for bug in specimens(file) for cause in bug.causes}
    assert causes <= CAUSES.keys()


def test_no_verdict_is_of_a_bug_that_is_gone() -> None:
    bugs = {bug.name for file in FILES for bug in specimens(file)}
    assert {name.removesuffix(", bare") for name in BUGS} == bugs


@pytest.mark.parametrize("row", MEANT.strip().replace("\n    ", " | ").splitlines())
def test_what_may_be_meant_is_no_error(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbook.doctor.relations.losses.SECONDS", 60)  # on a busy machine, too
    level, cause, name, edit = row.split(" | ")
    report = examine(edited(*name.split(": "), edit), claimed=False)
    assert [(x.level, x.cause) for x in (*report.warnings, *report.notes)] == [(level, cause)]
    healthy(report)


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize(("file", "setting"), SETTINGS, ids=lambda each: each)
def test_right_twin_is_healthy(file: str, setting: str, claimed: bool) -> None:
    report = measured.twin(file, setting, claimed)
    if (file, setting) == WASTES:
        assert report.causes == ("part of a matrix not used",)
    elif claimed and (untested := UNTESTED.get((file, setting))):
        assert report.untested == untested
        assert not report.errors, report
    else:
        healthy(report)


def test_scores_are_of_this_code() -> None:
    stale = "chapters/doctor.json is stale: run python -m benchmarks.doctor.measured"
    for part in ("verdicts", "libraries"):
        assert RECORD["code"][part] == measured.code(), stale
    assert RECORD["scores"] == measured.scores(RECORD["verdicts"])


def test_versions_are_those_that_were_measured() -> None:
    here = {name: version(name) for name in measured.PACKAGES}
    plain = here["torch"].split("+")[0]  # not how it was built
    assert {**RECORD["versions"], "torch": plain} == {**here, "torch": plain}
    assert RECORD["versions"]["torch"].split("+")[0] == plain


def test_x_transformers_still_sees_the_future() -> None:
    assert measured.leak() == pytest.approx(RECORD["x-transformers"], rel=1e-3)
