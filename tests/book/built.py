"""What the tests of the written and built book share."""

from pathlib import Path

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
