"""Render the pages from the outputs in the notebooks, with Jupyter Book; and the EPUB."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from book.evidence.files import BUILD, as_json, write_whole
from book.evidence.measured import measured_on
from book.evidence.records import FOLDER, asks, differences, record_path
from book.evidence.settings import SETTINGS
from book.evidence.subjects import SubjectsError, read_subjects
from book.press import contents
from book.press.contents import BuildError
from book.press.held import HELD, count_of
from book.press.read import unread

CLAIMS, STAMP = BUILD / "claims.json", BUILD / "rendered.json"
EPUB, PDF = "attention-measured.epub", "attention-measured.pdf"
OFFERED = {PDF: "one PDF", EPUB: "an EPUB"}
PLACE = re.compile(r'<p id="offered".*?</p>', re.DOTALL)
"""Where the first page offers them."""
LEAST_ROOM = 10


def render() -> None:
    """Build the HTML, warnings as errors, from the outputs in the notebooks."""
    claims = {path: contents.claims_of(contents.read(path)) for path in contents.chapters()}
    others = {
        path.stem
        for path in claims
        if (entry := contents.executed().get(path.stem)) and entry["under"] != entry["quoted"]
    }
    wrong = contents.records_at_fault([*claims])
    for path in claims:
        tried = contents.noted_in(HELD).get(path.stem, {})
        chapter = [f"make chapters ONLY={path.stem}"] if contents.out_of_date(path) else []
        for each in claims[path]:
            each["elsewhere"] = path.stem in others
            each["other_seeds"] = count_of(each, tried.get(each["cell"]))
            behind = [name for name in wrong if record_path(name).as_posix() in each["files"]]
            each["to_run"] = [*(f"make studies ONLY={name}" for name in behind), *chapter]
        _add_settings(path.stem, claims[path])
    ledger = {path.with_suffix("").as_posix(): each for path, each in claims.items()}
    _add_subjects([each for found in ledger.values() for each in found])
    write_whole(CLAIMS, as_json(ledger))
    render_pages()
    print_least_room(ledger)
    print_unread({each["label"]: each for found in ledger.values() for each in found})
    if others:
        print(
            f"{', '.join(sorted(others))}: executed on a processor that rounds otherwise than the "
            "one whose numbers the text quotes; a few of them may differ from what the claims show"
        )
    print(f"The book is at {(BUILD / 'html' / 'index.html').resolve()}")


def _add_settings(chapter: str, claims: Sequence[dict[str, Any]]) -> None:
    """Note in each claim what it was measured on."""
    noted = contents.noted_in(SETTINGS).get(chapter, {"settings": [], "claims": {}})
    recorded = {
        path.stem: json.loads(path.read_text("utf-8"))["settings"] for path in FOLDER.glob("*.json")
    }
    asked = {name: asks(Path(), name) for name in recorded}
    for each in claims:
        measured = measured_on(each, noted, recorded, asked)
        lines = {"line": measured.line(), "full": measured.full()}
        each["setting"] = dataclasses.asdict(measured) | lines


def _add_subjects(claims: Sequence[dict[str, Any]]) -> None:
    """Note in each claim what it is about, and which others point in another direction."""
    try:
        subjects = read_subjects(Path(), [each["label"] for each in claims])
    except SubjectsError as error:
        raise BuildError(str(error)) from None
    for each in claims:
        label = each["label"]
        each["subjects"] = {subject.name: subject.title for subject in subjects.of(label)}
        each["differs_from"] = [
            {"label": parting.other(label), "differ": parting.differ, "why": parting.why}
            for parting in subjects.partings_of(label)
        ]


def print_least_room(ledger: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Name the claims that come nearest to their bounds, in standard errors."""
    claims = [each for found in ledger.values() for each in found if each["room"] is not None]
    claims.sort(key=lambda each: each["room"])
    if claims:
        print("The claims with the least room, in standard errors:")
    for each in claims[:LEAST_ROOM]:
        print(f"  {each['room']:5.1f}  {each['label']}: {each['measured']}; {each['expected']}")


def print_unread(claims: dict[str, dict[str, Any]]) -> None:
    """Print the short sentences to be read again."""
    waiting, _ = unread(claims)
    if waiting:
        print(f"{len(waiting)} short places rest on what has changed; make read shows on what:")
    for short in waiting[:LEAST_ROOM]:
        print(f"  {short.page}: {short.says.partition(chr(10))[0]}")


def render_pages() -> None:
    """Call Jupyter Book, if anything that pages are made of has changed.

    Raises:
        BuildError: if it warned.
    """
    # Sphinx reads a page again when its file changed. When the extension, the look, the contents
    # or the package changed, all is built again: so when a title did, which all sidebars show.
    titles = (re.findall(rb'(?m)^\s*"?# .*', path.read_bytes())[:1] for path in contents.sources())
    code = (f"src/**/*.{kind}" for kind in ("py", "js", "css", "html", "svg", "png", "yml"))
    machinery = files_hash("*.yml", "*.cff", "*.lock", *code)
    whole = machinery + hashlib.sha256(repr([*titles]).encode()).hexdigest()
    pages = ("*.md", "chapters/*", "chapters/**/*.md", "studies/*.json", "benchmarks/wild/*")
    parts = {str(path): contents.file_hash(path) for path in matching(*pages, str(CLAIMS))}
    before = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    now = {"whole": whole, "parts": parts}
    if before == now and (BUILD / "html").exists():
        return
    # Sphinx goes by dates: what a clock set back has changed, or a backup, is older than its page.
    again = before.get("whole") == whole and all(
        Path(name).stat().st_mtime >= STAMP.stat().st_mtime
        for name in differences(before["parts"], parts)
        if name in parts
    )
    STAMP.unlink(missing_ok=True)
    if not again:
        shutil.rmtree(BUILD / "html", ignore_errors=True)  # or pages of removed files would stay
    if subprocess.run([*jupyter_book(), *([] if again else ["--all"])], check=False).returncode:
        raise BuildError("the book was not built: see the warnings above")
    write_whole(STAMP, as_json(now))
    offer()


def files_hash(*patterns: str) -> str:
    """SHA-256 of the names and bytes of the files that match."""
    digest = hashlib.sha256()
    for path in matching(*patterns):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def matching(*patterns: str) -> list[Path]:
    """The files that match, each once, in order."""
    paths = {path for pattern in patterns for path in Path().glob(pattern)}
    return sorted(path for path in paths if path.is_file())


# Not by its script, whose first line can't hold every path; and it leaves with this process.
JUPYTER_BOOK = """
import gc
import sys
from book.evidence.workers import leave_with_parent
from jupyter_book.cli.main import main
leave_with_parent(int(sys.argv.pop(1)))
gc.set_threshold(1_000_000, 3, 3)  # pages are millions of nodes: collecting took 2/5 of the time
try:
    main()
except RuntimeError as error:  # Sphinx has said why
    sys.exit(str(error))
"""


def jupyter_book() -> list[str]:
    """The command that builds the book, warnings as errors."""
    program = [sys.executable, "-c", JUPYTER_BOOK, str(os.getpid())]
    return [*program, "build", ".", "-W", "-n", "--keep-going", "-q"]


def offer() -> None:
    """Put the PDF and the EPUB beside the pages that they were made of, and links on the first."""
    links, rendered = [], STAMP.stat().st_mtime
    for name, what in OFFERED.items():
        made, beside = BUILD / name, BUILD / "html" / name
        beside.unlink(missing_ok=True)
        if made.exists() and made.stat().st_mtime > rendered:
            shutil.copyfile(made, beside)
            size = made.stat().st_size / 1e6
            links.append(f'<a href="{name}" download>{what}</a> ({size:.1f} MB)')
    first = BUILD / "html" / contents.sources()[0].with_suffix(".html")
    page = first.read_text("utf-8") if first.exists() else ""
    words = f">The book is also there as {' and '.join(links)}." if links else " hidden>"
    if (with_links := PLACE.sub(f'<p id="offered"{words}</p>', page)) != page:
        write_whole(first, with_links)


def write_epub() -> None:
    """Build the book for e-readers from the committed outputs.

    Raises:
        BuildError: if Sphinx warned.
    """
    render()
    shutil.rmtree(BUILD / "epub", ignore_errors=True)
    options = ("--builder", "custom", "--custom-builder", "epub")
    if subprocess.run([*jupyter_book(), *options], check=False).returncode:
        raise BuildError("the EPUB was not built: see the warnings above")
    (BUILD / "epub" / EPUB).replace(BUILD / EPUB)
    print(f"{BUILD / EPUB}: {(BUILD / EPUB).stat().st_size / 1e6:.1f} MB")
