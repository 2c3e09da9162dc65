"""Browsers to print and to test the pages: ``python -m book.press.browser`` brings them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

NAMES = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    "firefox": ("firefox", "firefox-esr"),
}
PACKAGES = {"chromium": "chromium", "firefox": "firefox-esr"}
MISSING = (
    "a browser does not start here and could not be installed: install Chromium and Firefox, "
    "or set CHROMIUM=/path/to/it and FIREFOX=/path/to/it"
)


def find(kind: str) -> str | None:
    """The first of a kind that starts; one that lacks a library is none."""
    return next(filter(starts, candidates(kind)), None)


def candidates(kind: str) -> Iterator[str]:
    """What may be one, the reader's own first."""
    yield from filter(None, (os.environ.get(kind.upper()), *map(shutil.which, NAMES[kind])))
    yield playwrights_own(kind)


def playwrights_own(kind: str) -> str:
    """Where it is, if it was installed."""
    from playwright.sync_api import sync_playwright  # half a second that most tests need not wait

    with sync_playwright() as playwright:
        path: str = getattr(playwright, kind).executable_path
        return path


def launch(playwright: Any, kind: str, path: str) -> Any:
    """Start it; a Firefox that is not Playwright's own speaks WebDriver BiDi."""
    system = kind == "firefox" and path != playwright.firefox.executable_path
    channel = {"channel": "moz-firefox"} if system else {}
    return getattr(playwright, kind).launch(executable_path=path, **channel)


def starts(path: str) -> bool:
    """Is there a program that answers?"""
    try:
        return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def installers(kind: str) -> Iterator[list[str]]:
    """Commands that may bring one, the least intrusive first; the system's only as root."""
    playwright = [sys.executable, "-m", "playwright"]
    yield [*playwright, "install", kind]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        yield ["apt-get", "update", "-qq"]
        yield ["apt-get", "install", "-y", "-qq", "--no-install-recommends", PACKAGES[kind]]
        yield [*playwright, "install-deps", kind]  # Ubuntu's chromium needs snap


def bring(kind: str) -> bool:
    """Install a browser until there is one; return whether there is."""
    commands = installers(kind)
    while find(kind) is None:
        command = next(commands, None)
        if command is None:
            return False
        print(f"No {kind} for the tests of the pages, so: {' '.join(command)}", flush=True)
        subprocess.run(command, check=False)
    return True


def main() -> int:
    """Bring what is missing; in CI a browser that can't be had is an error."""
    missing = [kind for kind in NAMES if not bring(kind)]
    if missing:
        print(MISSING)
    return 1 if missing and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
