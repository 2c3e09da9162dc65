"""A plugin of pytest for machines without a browser."""

import pytest

from book.press.browser import MISSING


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say, as the last line of all, that pages were not tested."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if n := sum(MISSING in str(report.longrepr) for report in skipped):
        reporter.write_line(f"NOT TESTED: {n} tests of the pages, {MISSING}", red=True, bold=True)
