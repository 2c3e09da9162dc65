from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from built import EVERY_PAGE, HTML, parsed


@cache
def ids(path: Path) -> list[str]:
    return [tag["id"] for tag in parsed(path.relative_to(HTML).as_posix()).select("[id]")]


def test_the_book_is_built():
    assert EVERY_PAGE, "run `make html` first"


@pytest.mark.parametrize("page", ["index.html", *EVERY_PAGE])
def test_everything_that_a_page_refers_to_exists_once(page):
    path = HTML / page
    broken = []
    for tag in parsed(page).select("[href], [src]"):
        address = tag.get("href") or tag["src"]
        if address.startswith(("http:", "https:", "mailto:", "data:")):
            continue
        file, anchor = urldefrag(address)
        target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
        if not target.is_file() or (anchor and ids(target).count(unquote(anchor)) != 1):
            broken.append(address)
    assert broken == []
