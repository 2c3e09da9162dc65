"""What chapter 12 says of the doctor is of these versions; part of it is measured again."""

import json
from importlib.metadata import version

import pytest

from tests.doctor import measured


def test_versions_are_those_that_were_measured() -> None:
    written = json.loads(measured.WRITTEN.read_text("utf-8"))
    here = {name: version(name) for name in measured.PACKAGES}
    torch = {"torch": here["torch"].split("+")[0]}  # not how it was built
    assert {**written["versions"], **torch} == {**here, **torch}
    assert written["versions"]["torch"].split("+")[0] == torch["torch"]


def test_x_transformers_still_sees_the_future() -> None:
    written = json.loads(measured.WRITTEN.read_text("utf-8"))
    assert measured.leak() == pytest.approx(written["x-transformers"], rel=1e-3)


@pytest.mark.parametrize("number", range(0, len(measured.CASES), 40))
def test_twin_is_healthy(number: int) -> None:
    *_, alarm = measured.judge((number, 0, True))
    assert not alarm
