"""A Chromium for the tests of the pages: ``python tests/browser.py`` brings one where none is."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "no Chromium starts here and none could be installed: install Chromium or Chrome, "
    "or set CHROMIUM=/path/to/it"
)


def find_chromium() -> str | None:
    """The first that starts; one that lacks a library is none."""
    return next(filter(starts, candidates()), None)


def candidates() -> Iterator[str]:
    yield from filter(None, (os.environ.get("CHROMIUM"), *map(shutil.which, NAMES)))
    yield playwrights_own()


def playwrights_own() -> str:
    """Where it is, if it was installed."""
    from playwright.sync_api import sync_playwright  # half a second that most tests need not wait

    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


def starts(path: str) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def installers() -> Iterator[list[str]]:
    """Commands that may bring one, the least intrusive first; the system's only as root."""
    playwright = [sys.executable, "-m", "playwright"]
    yield [*playwright, "install", "chromium"]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        yield ["apt-get", "update", "-qq"]
        yield ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        yield [*playwright, "install-deps", "chromium"]  # Ubuntu's chromium needs snap


def main() -> int:
    commands = installers()
    while find_chromium() is None:
        command = next(commands, None)
        if command is None:
            print(MISSING)
            return 1 if os.environ.get("CI") else 0
        print(f"No Chromium for the tests of the pages, so: {' '.join(command)}", flush=True)
        subprocess.run(command, check=False)
    return 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say, as the last line of all, that pages were not tested."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if n := sum(MISSING in str(report.longrepr) for report in skipped):
        reporter.write_line(f"NOT TESTED: {n} tests of the pages, {MISSING}", red=True, bold=True)


if __name__ == "__main__":
    sys.exit(main())
