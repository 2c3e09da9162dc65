"""What the tests of the written and built book share."""

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
HTML = ROOT / "_build" / "html"
# The pages by their addresses in the book; index.html is the first.
PAGES = [
    path.relative_to(HTML).as_posix()
    for path in sorted(HTML.rglob("*.html"))
    if "_static" not in path.parts and path != HTML / "index.html"
]
WRITTEN = [page for page in PAGES if page == "intro.html" or page.startswith("chapters/")]


def violations(page: Any) -> list[str]:
    """What is wrong with an open page for those who do not see it."""
    found = Axe().run(page, options={"resultTypes": ["violations"], "preload": False})
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary']}"
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]
