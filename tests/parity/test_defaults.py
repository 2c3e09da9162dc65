"""What the book says of other libraries, measured again with those that are installed."""

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.defaults import PACKAGES, WRITTEN, measure, version

# Keras 3.15.1 does not know the latest NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return json.loads(WRITTEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return measure()


def test_versions_are_those_installed(written):
    installed = {name: version(name).partition("+")[0] for name in PACKAGES}
    assert written["versions"] == installed, "run `make implementations`, then the chapter"


def test_the_same_matrices_are_measured(written, now):
    for before, after in zip(written["sigmas"], now["sigmas"], strict=True):
        fixed = before.keys() - {"measured"}
        assert {key: before[key] for key in fixed} == {key: after[key] for key in fixed}


def test_standard_deviations_are_as_written(written, now):
    for before, after in zip(written["sigmas"], now["sigmas"], strict=True):
        for each in (before, after):
            samples = np.array(each["measured"])
            error = samples.std(ddof=1) / len(samples) ** 0.5
            assert abs(samples.mean() - each["predicted"]) + 3 * error < 0.02 * each["predicted"]
        assert np.mean(after["measured"]) == pytest.approx(np.mean(before["measured"]), rel=0.02)


def test_what_enters_the_first_block_is_as_written(written, now):
    assert now["entering"] == pytest.approx(written["entering"], rel=0.02)


def test_conventions_are_as_written(written, now):
    assert now["sizes"] == written["sizes"]
    assert now["conventions"] == written["conventions"]


def test_behaviour_is_as_written(written, now):
    name = "relative error of a float64 layer"
    (before,), (after,) = (each["behaviour"].pop(name).values() for each in (written, now))
    assert 1e-9 < before < 1e-5  # float32's, and not the same on each processor
    assert 1e-9 < after < 1e-5
    assert now["behaviour"] == written["behaviour"]
