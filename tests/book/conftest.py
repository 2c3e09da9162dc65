"""A browser, and the built book on a server of its own, for the tests of the pages."""

import os
from collections.abc import Callable, Iterator

import pytest
from built import HTML, PAGES, served
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, sync_playwright

from book.press.browser import MISSING, NAMES, find, launch


@pytest.fixture(scope="session")
def paths() -> dict[str, str | None]:
    return {kind: find(kind) for kind in NAMES}


@pytest.fixture(scope="session")
def playwright(paths: dict[str, str | None]) -> Iterator[Playwright]:
    """One for all browsers, after the paths, which may ask one, too."""
    with sync_playwright() as playwright:
        yield playwright


def started(playwright: Playwright, kind: str, path: str | None) -> Iterator[Browser]:
    assert PAGES, "run `make html` first"
    if path is None:
        without = pytest.fail if os.environ.get("CI") else pytest.skip
        without(MISSING)
    browser = launch(playwright, kind, path)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def browser(playwright: Playwright, paths: dict[str, str | None]) -> Iterator[Browser]:
    yield from started(playwright, "chromium", paths["chromium"])


@pytest.fixture(scope="module")
def firefox(playwright: Playwright, paths: dict[str, str | None]) -> Iterator[Browser]:
    yield from started(playwright, "firefox", paths["firefox"])


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(HTML) as address:
        yield address


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens windows with these settings, which remember nothing; no page breaks its policy."""
    contexts = []
    refused: list[str] = []

    def note(line: ConsoleMessage) -> None:
        if "Content Security Policy" in line.text:
            refused.append(line.text)

    def opened(address: str = "about:blank", *, width: int = 1280, **settings: object) -> Page:
        size = {"width": width, "height": settings.pop("height", 800)}
        contexts.append(browser.new_context(viewport=size, **settings))
        contexts[-1].on("console", note)
        page = contexts[-1].new_page()
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert refused == []


@pytest.fixture
def page(window: Callable[..., Page]) -> Page:
    return window(color_scheme="light")
