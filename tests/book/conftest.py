"""A browser, and the built book on a server of its own, for the tests of the pages."""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from built import HTML, PAGES
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from browser import MISSING, NAMES, find, launch


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


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *message: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(HTML)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens windows with these settings, which remember nothing."""
    contexts = []

    def opened(address: str = "about:blank", *, width: int = 1280, **settings: object) -> Page:
        size = {"width": width, "height": settings.pop("height", 800)}
        contexts.append(browser.new_context(viewport=size, **settings))
        page = contexts[-1].new_page()
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(window: Callable[..., Page]) -> Page:
    return window(color_scheme="light")
