"""Of each test's cases, `make quick` tries one in forty."""

from collections import Counter

import pytest

EVERY = 40


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if "tests/doctor/" in name and cases[name] % EVERY:
            item.add_marker(pytest.mark.slow)
        cases[name] += 1
