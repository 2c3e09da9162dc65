"""The same book makes the same bytes: in any folder, at any time, with any hashes, on any disk."""

import datetime
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from built import ROOT

from book.press.render import jupyter_book

pytestmark = pytest.mark.slow
MACHINERY = "src/book/sphinx"
FILES = ("_config.yml", "CITATION.cff", "chapters/references.bib", "chapters/references.md")
DAY = "2001-02-03"
TOC = "{format: jb-book, root: intro, chapters: [{file: chapters/references}]}"
PAGE = "# A book\n\nA page with $x^2$, **words** and {cite:t}`vaswani2017`.\n"
# Python runs this file as it starts. Names are listed as no disk would list them, then the other
# way round.
LISTING = """
import os

class Listed:
    scan = staticmethod(os.scandir)

    def __init__(self, *path):
        with self.scan(*path) as found:
            self.found = iter(sorted(found, key=lambda each: each.name, reverse={reverse}))

    __enter__ = __iter__ = lambda self: self
    __exit__ = lambda self, *raised: None
    __next__ = lambda self: next(self.found)
    close = __exit__

os.scandir = Listed
"""


def files_of(book: Path, *, reverse: bool) -> dict[str, bytes]:
    """What `make html` and `make epub` make of a small book in this folder."""
    shutil.copytree(ROOT / MACHINERY, book / MACHINERY)
    for name in FILES:
        (book / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, book / name)
    cited = (ROOT / "CITATION.cff").read_text()
    (book / "CITATION.cff").write_text(re.sub(r"(date-released: )\S+", rf"\g<1>{DAY}", cited))
    (book / "_toc.yml").write_text(TOC)
    (book / "intro.md").write_text(PAGE)
    (book / "_build").mkdir()
    (book / "_build/claims.json").write_text("{}")
    (book / ".start").mkdir()
    (book / ".start/sitecustomize.py").write_text(LISTING.format(reverse=reverse))
    settings = {"PYTHONPATH": f"{book / '.start'}:{ROOT / 'src'}", "PYTHONHASHSEED": f"{reverse:d}"}
    for options in ([], ["--builder", "custom", "--custom-builder", "epub"]):
        command = [*jupyter_book(), *options]
        subprocess.run(command, cwd=book, env=os.environ | settings, check=True)
    made = [*(book / "_build/html").rglob("*"), *(book / "_build/epub").rglob("*")]
    return {str(each.relative_to(book)): each.read_bytes() for each in made if each.is_file()}


def test_two_builds_are_equal_and_know_neither_folder_nor_day(tmp_path):
    first, second = tmp_path / "book", tmp_path / "another folder" / "of another length"
    files = files_of(first, reverse=False)
    again = files_of(second, reverse=True)
    assert "_build/html/index.html" in files
    assert files.keys() == again.keys()
    assert [name for name in files if files[name] != again[name]] == []
    assert f"{DAY}T00:00:00Z".encode() in files["_build/epub/content.opf"]
    today = datetime.date.today()
    unsaid = [str(tmp_path), f"{today}", f"{today:%b %d, %Y}", f"{today.day} {today:%B %Y}"]
    for name, content in files.items():
        assert not [each for each in unsaid if each.encode() in content], name
