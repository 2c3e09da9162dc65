"""Each page says what it may load and run, and a browser holds it to that."""

import re
from html.parser import HTMLParser

import pytest
from built import CHAPTERS, HTML, served
from playwright.sync_api import Page, expect

from book.press.policy import with_policy


class Attributes(HTMLParser):
    """Those that are scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            (name, value or "")
            for name, value in attrs
            if name.startswith("on") or re.match(r"(?i)\s*(javascript|vbscript):", value or "")
        ]


def scripts_in(page: str) -> list[tuple[str, str]]:
    parser = Attributes()
    parser.feed(page)
    return parser.found


def test_every_page_has_its_policy_first_and_no_script_in_an_attribute():
    paths = [*HTML.rglob("*.html")]
    assert len(paths) > 200
    for path in paths:
        page = path.read_text(encoding="utf-8")
        assert re.search(r'<head>\s*<meta charset="utf-8" /><meta http-equiv="Content-Sec', page), (
            path
        )
        assert page == with_policy(page), path  # its hashes are those of its scripts
        assert scripts_in(page) == [], path


def test_scripts_in_attributes_would_be_found():
    page = '<p ONCLICK="f()" data-on="1"><a href=" JavaScript:f()">x</a><a href="on.html">y</a>'
    assert scripts_in(page) == [("onclick", "f()"), ("href", " JavaScript:f()")]


def test_policy_lets_run_what_it_names_and_nothing_else():
    page = with_policy('<meta charset="utf-8"><script>f()</script><script>f()</script>')
    policy = dict(each.split(" ", 1) for each in re.findall('content="(.*?)"', page)[0].split("; "))
    assert re.fullmatch(r"'self' 'sha256-[\w+/]{43}='", policy["script-src"])
    assert policy["default-src"] == "'self'"
    assert {policy[f"{kind}-src"] for kind in ("connect", "frame", "worker", "object")} == {
        "'none'"
    }
    assert policy["base-uri"] == "'none'"
    based = with_policy('<meta charset="utf-8"><base href="https://example.org/">')
    assert "base-uri 'self'" in based
    with pytest.raises(ValueError, match="charset"):
        with_policy("<p>")


ADDED = """<script>document.title += " inline"</script>
<img src="none.png" onerror="document.title += ' handler'">
<script src="own.js"></script><script src="https://example.invalid/far.js"></script>"""


@pytest.mark.parametrize("where", ["http", "file"])
@pytest.mark.parametrize("kind", ["chromium", "firefox"])
def test_what_is_put_into_a_page_does_not_run_and_is_noticed(kind, where, request, tmp_path):
    page = with_policy('<!DOCTYPE html><meta charset="utf-8"><title>Page</title>')
    (tmp_path / "page.html").write_text(page + ADDED, encoding="utf-8")
    (tmp_path / "own.js").write_text("document.title += ' own'", encoding="utf-8")
    browser = request.getfixturevalue("browser" if kind == "chromium" else "firefox")
    context = browser.new_context()
    tab, said = context.new_page(), []
    tab.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    with served(tmp_path) as site:
        tab.goto(f"{site if where == 'http' else tmp_path.as_uri() + '/'}page.html")
        expect(tab).to_have_title("Page own")
    words = "Content Security Policy" if kind == "chromium" else "settings blocked"
    assert sum(words in each for each in said) >= 3
    context.close()


def test_buttons_of_the_theme_do_what_they_say(page: Page, site: str) -> None:
    page.goto(f"{site}chapters/{CHAPTERS[1].stem}.html")
    page.evaluate("window.print = () => document.body.dataset.printed = 'yes'")
    page.locator("details.menu summary").click()
    page.get_by_text(".pdf").click()
    expect(page.locator("body")).to_have_attribute("data-printed", "yes")
    page.get_by_role("button", name="Fullscreen mode").click()
    page.wait_for_function("() => document.fullscreenElement")
