"""The book for e-readers, as `make epub` builds it."""

import re
import shutil
import subprocess
import zipfile
from xml.etree import ElementTree

import pytest
from built import NUMBERED, ROOT

from book.evidence.files import BUILD
from book.press.render import EPUB, write_epub

pytestmark = pytest.mark.slow
XHTML = "{http://www.w3.org/1999/xhtml}"
BENCHES = {"intro.xhtml", *(f"chapters/{path.stem}.xhtml" for path in NUMBERED)}
BENCHES.add("chapters/puzzles.xhtml")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def epub():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        write_epub()
    return ROOT / BUILD / EPUB


@pytest.fixture(scope="module")
def pages(epub):
    """Its pages by name, read as what they are: XML."""
    with zipfile.ZipFile(epub) as packed:
        names = [name for name in packed.namelist() if name.endswith(".xhtml")]
        return {name: ElementTree.fromstring(packed.read(name)) for name in names}


def test_the_contents_name_all_chapters(pages):
    links = [link.get("href") for link in pages["nav.xhtml"].iter(f"{XHTML}a")]
    assert links[0] == "intro.xhtml"
    chapters = [f"chapters/{path.stem}.xhtml" for path in NUMBERED]
    assert links[1 : len(chapters) + 1] == chapters
    assert {*links} <= pages.keys()


def test_pages_need_no_script_and_no_variables(pages):
    for name, page in pages.items():
        assert list(page.iter(f"{XHTML}script")) == list(page.iter(f"{XHTML}button")) == []
        # The bench alone has its colours by class, which comes to black where it is not known.
        known = {"var(--own)"} if name in BENCHES else set()
        text = ElementTree.tostring(page, "unicode")
        assert {*re.findall(r"var\(--[^)]*\)", text)} <= known, name


def test_figures_are_there_in_words_and_formulas_are_drawn(pages):
    page = pages["chapters/04_attention_weights.xhtml"]
    drawings = list(page.iter(f"{SVG}svg"))
    figures = [each for each in drawings if "figure" in each.get("class", "").split()]
    assert len(figures) >= 4
    assert not [each for each in figures if "on-phone" in each.get("class")]
    assert [
        each for each in drawings if each.get("class") != "glyphs" and not each.get("aria-label")
    ] == []
    ids = {each.get("id") for each in page.iter()}
    uses = [use.get("{http://www.w3.org/1999/xlink}href") for use in page.iter(f"{SVG}use")]
    assert uses
    assert {use[1:] for use in uses} <= ids


def test_links_lead_to_what_is_there(pages):
    ids = {name: {each.get("id") for each in page.iter()} for name, page in pages.items()}
    lost = set()
    for name, page in pages.items():
        for link in page.iter(f"{XHTML}a"):
            path, _, anchor = link.get("href", "").partition("#")
            if not re.match(r"[a-z]+:", path):
                parts = [*name.split("/")[:-1], *path.split("/")] if path else [name]
                while ".." in parts:
                    del parts[(at := parts.index("..")) - 1 : at + 1]
                target = "/".join(parts)
                if target not in ids or (anchor and anchor not in ids[target]):
                    lost.add(f"{name}: {link.get('href')}")
    assert lost == set()


def test_epubcheck_finds_nothing(epub):
    program = shutil.which("epubcheck")
    if program is None:
        pytest.skip("no epubcheck here: on Debian and Ubuntu, apt install epubcheck")
    java = ["java", "-jar"] if zipfile.is_zipfile(program) else []  # Debian's
    ran = subprocess.run([*java, program, epub], capture_output=True, text=True, check=False)
    assert "0 fatals / 0 errors / 0 warnings" in ran.stdout, ran.stdout + ran.stderr
