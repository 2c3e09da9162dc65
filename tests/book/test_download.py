"""What readers take away: notebooks, the folder that runs them; references."""

import re
import subprocess
import sys
import zipfile

import nbformat
import pytest
from built import CHAPTERS, HTML, ROOT, read
from pybtex.database import parse_file

from book.sphinx.download import FOLDER

BIBLIOGRAPHY = ROOT / "chapters" / "references.bib"


def test_every_reference_has_a_link():
    for key, entry in parse_file(str(BIBLIOGRAPHY)).entries.items():
        assert {"doi", "url", "eprint"} & entry.fields.keys(), key


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_downloaded_notebook_says_how_to_run_and_is_the_chapter(path):
    notebook = nbformat.read(HTML / "_sources" / "chapters" / path.name, 4)
    nbformat.validate(notebook)
    how, check, *cells = notebook.cells
    assert f"{FOLDER}.zip" in how.source
    exec(check.source)  # in a checkout it finds what it needs
    assert [cell.source for cell in cells] == [cell.source for cell in read(path).cells]


def test_first_page_says_how_large_the_folder_is():
    intro = (ROOT / "intro.md").read_text(encoding="utf-8")
    said = re.search(r"the whole folder</a> \(([\d.]+) MB\)", intro)[1]
    size = (HTML / f"{FOLDER}.zip").stat().st_size
    assert float(said) == pytest.approx(size / 1e6, rel=0.1)


def test_archive_holds_what_runs_the_chapters(tmp_path):
    with zipfile.ZipFile(HTML / f"{FOLDER}.zip") as archive:
        assert not [name for name in archive.namelist() if "/." in name or "/_build/" in name]
        archive.extractall(tmp_path)
    code = "import sys; sys.path.insert(0, 'src'); from book import study; study('qkv_ring')"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / FOLDER, check=False)
    assert run.returncode == 0
