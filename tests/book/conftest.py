"""A browser, and the built book on a server of its own, for the tests of the pages."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from built import HTML, PAGES
from playwright.sync_api import Browser, Page, sync_playwright

from browser import MISSING, find_chromium


@pytest.fixture(scope="session")
def chromium() -> str | None:
    return find_chromium()


@pytest.fixture(scope="module")
def browser(chromium: str | None) -> Iterator[Browser]:
    assert PAGES, "run `make html` first"
    if chromium is None:
        without = pytest.fail if os.environ.get("CI") else pytest.skip
        without(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


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
def page(browser: Browser) -> Iterator[Page]:
    """A new window that remembers nothing."""
    context = browser.new_context(color_scheme="light")
    yield context.new_page()
    context.close()
