"""Each planted bug is found, by its cause, and its right twin is healthy."""

import pytest

from attnbook.doctor import Report
from tests.doctor.planted import REGISTRY, Planted
from tests.doctor.scores import judge
from tests.doctor.unusual import UNUSUAL

FIRST = [c for i, c in enumerate(REGISTRY) if c.kind not in {x.kind for x in REGISTRY[:i]}]
"""One style of each kind; ``python -m tests.doctor.scores`` tries them all."""


def test_enough_kinds_in_enough_styles() -> None:
    kinds = {(case.family, case.kind) for case in REGISTRY}
    assert len(kinds) >= 60
    assert len(REGISTRY) >= 2 * len(kinds)
    assert len(UNUSUAL) >= 40


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_bug_is_found_and_named(case: Planted) -> None:
    report = judge(case, planted=True, seed=0)
    assert len(report.errors) == 1, report  # one cause
    assert report.causes[0] in case.causes, report


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_twin_is_healthy(case: Planted) -> None:
    healthy(judge(case, planted=False, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_twin_is_healthy_without_claims(case: Planted) -> None:
    healthy(judge(case, planted=False, seed=0, claimed=False))


def healthy(report: Report) -> None:
    assert report.healthy, report
    assert not any("check raised" in x.why for x in report.not_judged), report
