"""Every test checks the shapes in the types, in float64 and on one thread."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

pytest_plugins = ["untested"]

# This file is read before any test imports the package: only what is imported later is checked.
# An int may stand where a float is asked for, as for mypy; what mypy never lets in is refused in
# words. The doctor, which mypy checks, calls modules so often that its tests took twice the time.
CHECKS = (
    "beartype.BeartypeConf(is_pep484_tower=True, hint_overrides="
    "beartype.FrozenDict({__import__('typing').Never: object}))"
)
LIBRARY = Path(__file__).parents[1] / "src/attnbook"
CHECKED = [f"attnbook.{file.stem}" for file in LIBRARY.iterdir() if file.stem != "doctor"]
jaxtyping.install_import_hook(["book", *CHECKED], f"beartype.beartype(conf={CHECKS})")

# The same examples at every run: ATTNBOOK_TESTS=quick (make quick) looks at few of them.
for name, examples in (("all", 25), ("quick", 5)):
    hypothesis.settings.register_profile(
        name, max_examples=examples, deadline=None, derandomize=True
    )
hypothesis.settings.load_profile(os.environ.get("ATTNBOOK_TESTS", "all"))


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of each test's cases, ``make quick`` tries one in five, of the doctor's one in 113.

    Primes, so that it meets each value where cases combine several. What opens a page is marked.
    """
    cases: Counter[str] = Counter()
    for item in items:
        if {"browser", "firefox"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.browser)
        name = item.nodeid.partition("[")[0]
        if cases[name] % (113 if "tests/doctor/" in name else 5):
            item.add_marker(pytest.mark.slow)
        cases[name] += 1


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """Same numbers at every run, to the last bits of float64."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """Let wrong arguments through to the package's own checks, as for a reader."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
