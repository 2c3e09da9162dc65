"""The commands behind the Makefile: execute chapters, make records, render, re-run the claims.

``python -m book.press.build book | html | epub | slides | chapters | studies | claims``
"""

import argparse
import ast
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import yaml
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from attnbook.files import lock
from attnbook.tasks.text import fingerprint, python_topics
from book.evidence.arithmetic import EXECUTED, arithmetic
from book.evidence.cells import Cell, files_behind, hash_needed
from book.evidence.claims import METADATA_KEY
from book.evidence.code import Code, code_hash
from book.evidence.files import BUILD, as_json, write_whole
from book.evidence.listings import LISTING_KEY, listing
from book.evidence.ran import CALLED, fingerprint_of
from book.evidence.records import (
    FOLDER,
    GPU,
    LIVE,
    StudyError,
    checked_record,
    differences,
    hash_shown,
    keep_records,
    make_records,
    record_path,
    studies_of,
    waits_for_gpu,
)
from book.evidence.workers import SCHEDULER, ClusterError, workers
from book.press import slides

CLAIMS = BUILD / "claims.json"
# How often each claim held when it was last tried under other seeds; committed.
HELD = Path("chapters/held.json")
EPUB = "attention-measured.epub"
CELL_TIMEOUT = 600
CALLED_KEY = "attnbook_called"
# The kernel's first line, in no name of the chapter's.
WATCHED = "__import__('book.evidence.ran', fromlist=['ran']).watch_kernel()"
# Packages whose version makes digits, or drawings.
DRAWING_PACKAGES = ("torch", "numpy", "tokenizers", "matplotlib")
LEAST_ROOM = 10


class BuildError(Exception):
    """What stops a command; the message is for the person at the terminal."""


@contextmanager
def alone() -> Iterator[None]:
    """Keep other commands out of this checkout: by a lock, which a kill releases.

    Raises:
        BuildError: if another one is at work.
    """
    BUILD.mkdir(exist_ok=True)
    holder = BUILD / "holder"
    try:
        held = lock(BUILD / "lock")
    except BlockingIOError:
        number = holder.read_text() if holder.exists() else "that begins"
        raise BuildError(f"another make is at work here (process {number}): wait for it") from None
    with held:
        holder.write_text(str(os.getpid()))
        yield


def sources() -> list[Path]:
    """The files that ``_toc.yml`` names, in the book's order."""
    toc = yaml.safe_load(Path("_toc.yml").read_text(encoding="utf-8"))
    named = [Path(f"{name}{suffix}") for name in _files(toc) for suffix in (".md", ".ipynb")]
    return [path for path in named if path.exists()]


def chapters() -> list[Path]:
    """The notebooks among them."""
    return [path for path in sources() if path.suffix == ".ipynb"]


def _files(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("file", "root"):
                yield value
            else:
                yield from _files(value)
    elif isinstance(node, list):
        for each in node:
            yield from _files(each)


def read(path: Path) -> NotebookNode:
    """A chapter's notebook."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Those of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def made_from(path: Path, called: Iterable[str]) -> dict[str, str]:
    """What a chapter's outputs hang on, by name: its cells, records, files, packages.

    And what ran of the project's code: the functions that were called, and what is behind them.
    """
    cells = code_cells(read(path))
    tree = tree_of(cells)
    found = {"its code": cells_fingerprint(cells)} | fingerprint_of(Path(), called, tree)
    for name in studies_of(tree):
        record = record_path(name)
        found[str(record)] = hash_shown(record) if record.exists() else "missing"
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and str(node.value).endswith(".json"):
            file = path.parent / str(node.value)
            found |= {str(file): file_hash(file)} if file.is_file() else {}
    pins = re.findall(r"^([\w-]+)==(\S+)", Path("requirements.txt").read_text(), re.MULTILINE)
    found |= {name: version for name, version in pins if name in DRAWING_PACKAGES}
    for cell in cells:
        for output in cell.outputs:
            for name in output.get("metadata", {}).get(LISTING_KEY, []):
                shown = listing(name, Path()) or "missing"
                found[f"the listing of {name}"] = hashlib.sha256(shown.encode()).hexdigest()[:12]
    return found


def tree_of(cells: Sequence[NotebookNode]) -> ast.Module:
    """A chapter's code, parsed."""
    return ast.parse("\n".join(cell.source for cell in cells))


def file_hash(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def out_of_date(path: Path) -> list[str]:
    """What changed since a chapter's outputs were made; nothing, if they are today's."""
    known = executed().get(path.stem)
    if known is None or any(cell.execution_count is None for cell in code_cells(read(path))):
        return ["its outputs are missing"]
    before = known["made_from"]
    called = [name for name in before if ":" in name]
    return [f"{name} changed" for name in differences(before, made_from(path, called))]


def reached_by(path: Path) -> dict[str, str]:
    """Hashes of a chapter's code and of all modules that it reaches, whether they run or not."""
    cells = code_cells(read(path))
    return {"its code": cells_fingerprint(cells)} | Code(Path()).hashes(tree_of(cells))


def executed() -> dict[str, dict[str, Any]]:
    """What is noted of each chapter's committed outputs."""
    return _json(EXECUTED)


@cache
def measured_under() -> dict[str, str]:
    """What the last digits hang on here: the arithmetic, and Python's help texts."""
    return {"arithmetic": arithmetic(), "text": fingerprint(python_topics())}


def execute(
    path: Path, *, seed: int | None = None, live: bool = False, allow_errors: bool = False
) -> tuple[NotebookNode, float]:
    """Run a chapter from top to bottom in a fresh kernel; the file is not touched.

    Returns:
        The executed notebook, with the functions that it called in its metadata, and the seconds
        it took.
    """
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        allow_errors=allow_errors,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR", f"--IPKernelApp.exec_lines={WATCHED}"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    environment = os.environ | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    if seed is not None:
        environment["ATTNBOOK_SEED"] = str(seed)
    if live:
        environment[LIVE] = "1"
    with TemporaryDirectory() as folder:
        called = Path(folder) / "called.json"
        environment[CALLED] = str(called)
        start = time.perf_counter()
        client.execute(env=environment)
        seconds = time.perf_counter() - start
        if not called.exists():
            raise RuntimeError("its kernel ended without saying what it had called")
        notebook.metadata[CALLED_KEY] = json.loads(called.read_text(encoding="utf-8"))
    return notebook, seconds


def execute_all(
    jobs: list[tuple[Path, int | None]], *, live: bool = False, allow_errors: bool = False
) -> Iterator[tuple[Path, int | None, NotebookNode, float]]:
    """Run several chapters side by side, saying which begins, which ends and how long it took.

    Raises:
        BuildError: when all are done, if one of them raised; with the cell and its error.
    """
    failed: list[str] = []
    # Threads of one process must not parse code at once (Python 3.11, issue 106905).
    expected = reached_by if SCHEDULER in os.environ else lambda _: None
    with workers(lambda: ThreadPoolExecutor(os.cpu_count())) as pool:
        running: dict[Future[tuple[NotebookNode, float]], tuple[Path, int | None]] = {
            pool.submit(
                execute_same, path, expected(path), _records(path, seed), seed, live, allow_errors
            ): (path, seed)
            for path, seed in jobs
        }
        for done, future in enumerate(as_completed(running), 1):
            path, seed = running[future]
            try:
                notebook, seconds = future.result()
            except CancelledError:
                raise BuildError("the scheduler is gone") from None
            # RuntimeError: a kernel that died, or never answered (its port was taken).
            except (CellExecutionError, CellTimeoutError, RuntimeError, ClusterError) as error:
                print(f"  {_name(path, seed)} FAILED  [{done}/{len(jobs)}]", flush=True)
                failed.append(f"{path}:\n{error}")
                continue
            print(f"  {_name(path, seed)} {seconds:.1f} s  [{done}/{len(jobs)}]", flush=True)
            yield path, seed, notebook, seconds
    if failed:
        raise BuildError("\n\n".join(failed))


def execute_same(
    path: Path,
    expected: dict[str, str] | None,
    records: dict[Path, str],
    seed: int | None,
    live: bool,
    allow_errors: bool,
) -> tuple[NotebookNode, float]:
    """Run a chapter on a worker, which may be on another machine, with the records it lacks.

    Raises:
        ClusterError: if the worker has other code.
    """
    if expected and (changed := differences(expected, reached_by(path))):
        raise ClusterError(
            f"worker {platform.node()} has other code in {Path.cwd()} ({', '.join(changed)}): give "
            "it this checkout, and start it anew"
        )
    for file, text in records.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_whole(file, text)
    print(f"  {_name(path, seed)} …", flush=True)
    return execute(path, seed=seed, live=live, allow_errors=allow_errors)


def _records(path: Path, seed: int | None) -> dict[Path, str]:
    """The records of a chapter that were made under a seed."""
    files = [record_path(name, seed) for name in studies_in(path)] if seed else []
    return {file: file.read_text(encoding="utf-8") for file in files if file.exists()}


def _name(path: Path, seed: int | None) -> str:
    return path.stem if seed is None else f"{path.stem}, ATTNBOOK_SEED={seed}"


def book() -> None:
    """Execute what is out of date, then render; what can't be executed is shown as it was made.

    Raises:
        BuildError: when the pages are there, if a record is not of today's code, or a chapter
            raised; says what to run.
    """
    wrong = records_at_fault(chapters())
    waiting = {path for path in chapters() if wrong.keys() & {*studies_in(path)}}
    stale = {p: why for p in chapters() if p not in waiting and (why := out_of_date(p))}
    for path, why in stale.items():
        print(f"{path.stem}: {', '.join(why)}", flush=True)
    if not stale and not waiting:
        print("All chapters are up to date", flush=True)
    errors = [*wrong.values()]
    try:
        write_outputs(list(stale), quoted=False)
    except BuildError as error:
        errors.append(str(error))
    render()
    if errors:
        raise BuildError(
            "\n\n".join([*errors, "The pages are built, with what hangs on it marked"])
        )


def records_at_fault(paths: Sequence[Path]) -> dict[str, str]:
    """Of the records that these chapters read, those not whole or not of today's code, and why."""
    wrong = {}
    for name in sorted({name for path in paths for name in studies_in(path)}):
        if waits_for_gpu(Path(), name):
            continue
        try:
            checked_record(Path(), name, record_path(name))
        except StudyError as error:
            wrong[name] = str(error)
    return wrong


def check_records(paths: Sequence[Path]) -> None:
    """See that the records these chapters read are whole and of today's code.

    Raises:
        BuildError: if not; names them and says what to run.
    """
    if wrong := records_at_fault(paths):
        raise BuildError("\n".join(wrong.values()))


def studies_in(path: Path) -> list[str]:
    """The studies that a chapter reads."""
    return studies_of(tree_of(code_cells(read(path))))


def choose(only: Sequence[str]) -> list[Path]:
    """The chapters with these names; all, if none is named."""
    known = {path.stem: path for path in chapters()}
    if unknown := [name for name in only if name not in known]:
        raise BuildError(
            f"no chapter is called {' or '.join(unknown)}; there are {', '.join(known)}"
        )
    return [path for name, path in known.items() if not only or name in only]


def write_chapters(only: Sequence[str]) -> None:
    """Re-execute chapters, all or those named, and write their outputs."""
    chosen = choose(only)
    check_records(chosen)
    write_outputs(chosen, quoted=True)


def write_outputs(paths: Sequence[Path], *, quoted: bool) -> None:
    """Execute chapters, and write outputs into the notebooks with a note what they were made from.

    Args:
        paths: the slowest first, so that two of them end together.
        quoted: is the prose to quote the digits that come out here? ``make chapters`` is an
            author's command; a reader's ``make book`` may run on another processor.

    Raises:
        BuildError: if a chapter raised, or was changed while it ran; this one is not written.
    """
    known = executed()
    seconds_of = {name: entry["seconds"] for name, entry in known.items()}
    paths = sorted(paths, key=lambda path: -seconds_of.get(path.stem, 0))
    before = {path: (path.read_bytes(), reached_by(path)) for path in paths}
    changed = []
    for path, _, notebook, seconds in execute_all([(path, None) for path in paths]):
        if (path.read_bytes(), reached_by(path)) != before[path]:
            changed.append(path.stem)
            continue
        called = notebook.metadata.pop(CALLED_KEY)
        write_whole(path, nbformat.writes(notebook) + "\n")
        earlier = known.get(path.stem, {}).get("quoted")
        entry = {
            "made_from": made_from(path, called),
            "under": measured_under(),
            "quoted": measured_under() if quoted or earlier is None else earlier,
            "seconds": round(seconds, 1),
            "date": datetime.date.today().isoformat(),
        }
        noted = executed() | {path.stem: entry}
        write_whole(
            EXECUTED, as_json({p.stem: noted[p.stem] for p in chapters() if p.stem in noted})
        )
    if changed:
        names = " ".join(changed)
        raise BuildError(f'changed while it ran, so not written: make chapters ONLY="{names}"')


def render() -> None:
    """Build the HTML, warnings as errors, from the outputs in the notebooks."""
    notebooks = {path: read(path) for path in chapters()}
    ledger = {path.with_suffix("").as_posix(): claims_of(nb) for path, nb in notebooks.items()}
    others = {
        path.stem
        for path in notebooks
        if (entry := executed().get(path.stem)) and entry["under"] != entry["quoted"]
    }
    wrong = records_at_fault(list(notebooks))
    for path in notebooks:
        tried = _json(HELD).get(path.stem, {})
        chapter = [f"make chapters ONLY={path.stem}"] if out_of_date(path) else []
        for each in ledger[path.with_suffix("").as_posix()]:
            each["elsewhere"] = path.stem in others
            each["other_seeds"] = count_of(each, tried.get(each["cell"]))
            behind = {f"make studies ONLY={name}" for name in wrong if is_behind(name, each)}
            each["to_run"] = [*sorted(behind), *chapter]
    write_whole(CLAIMS, as_json(ledger))
    render_pages()
    print_least_room(ledger)
    if others:
        print(
            f"{', '.join(sorted(others))}: executed on a processor that rounds otherwise than the "
            "one whose numbers the text quotes; a few of them may differ from what the claims show"
        )
    print(f"The book is at {(BUILD / 'html' / 'index.html').resolve()}")


def is_behind(study: str, claim: Mapping[str, Any]) -> bool:
    """Whether a claim's numbers come from a study's record."""
    return record_path(study).as_posix() in claim["files"]


def count_of(claim: Mapping[str, Any], tried: Mapping[str, Any] | None) -> str:
    """How often a claim held under other seeds, in words; a dash if that was not tried.

    Raises:
        BuildError: if its numbers reach a committed file that was not made anew under those seeds:
            then one file was read many times.
    """
    if tried is None or claim["label"] not in tried["held"]:
        return "–"
    if read := sorted({*claim["files"]} - {*tried["made_anew"]}):
        raise BuildError(
            f"{HELD} counts seeds for the claim {claim['label']!r}, whose numbers come from "
            f"{', '.join(read)}, which is the same under every seed: take its count out"
        )
    return f"{tried['held'][claim['label']]} of {len(tried['seeds'])}"


def render_pages() -> None:
    """Call Jupyter Book, if anything that pages are made of has changed.

    Raises:
        BuildError: if it warned.
    """
    # Sphinx reads a page again when its file changed. When the extension, the look, the contents
    # or the package changed, all is built again: so when a title did, which all sidebars show.
    titles = (re.findall(rb'(?m)^\s*"?# .*', path.read_bytes())[:1] for path in sources())
    code = (f"src/**/*.{kind}" for kind in ("py", "js", "css", "html", "svg", "png"))
    machinery = files_hash("*.yml", "*.cff", "*.lock", *code)
    whole = machinery + hashlib.sha256(repr([*titles]).encode()).hexdigest()
    pages = ("*.md", "chapters/*", "chapters/**/*.md", "studies/*.json", str(CLAIMS))
    parts = {str(path): file_hash(path) for path in matching(*pages)}
    stamp = BUILD / "rendered.json"
    before = json.loads(stamp.read_text()) if stamp.exists() else {}
    now = {"whole": whole, "parts": parts}
    if before == now and (BUILD / "html").exists():
        return
    # Sphinx goes by dates: what a clock set back has changed, or a backup, is older than its page.
    again = before.get("whole") == whole and all(
        Path(name).stat().st_mtime >= stamp.stat().st_mtime
        for name in differences(before["parts"], parts)
        if name in parts
    )
    stamp.unlink(missing_ok=True)
    if not again:
        shutil.rmtree(BUILD / "html", ignore_errors=True)  # or pages of removed files would stay
    if subprocess.run([*jupyter_book(), *([] if again else ["--all"])], check=False).returncode:
        raise BuildError("the book was not built: see the warnings above")
    write_whole(stamp, as_json(now))


# Not by its script, whose first line can't hold every path; and it leaves with this process.
JUPYTER_BOOK = """
import sys
from book.evidence.workers import leave_with_parent
from jupyter_book.cli.main import main
leave_with_parent(int(sys.argv.pop(1)))
try:
    main()
except RuntimeError as error:  # Sphinx has said why
    sys.exit(str(error))
"""


def jupyter_book() -> list[str]:
    """The command that builds the book, warnings as errors."""
    program = [sys.executable, "-c", JUPYTER_BOOK, str(os.getpid())]
    return [*program, "build", ".", "-W", "-n", "--keep-going", "-q"]


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


def files_hash(*patterns: str) -> str:
    """Of the names and bytes of the files that match."""
    digest = hashlib.sha256()
    for path in matching(*patterns):
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def matching(*patterns: str) -> list[Path]:
    """The files that match, each once, in order."""
    found = {path for pattern in patterns for path in Path().glob(pattern)}
    return sorted(path for path in found if path.is_file())


def print_least_room(ledger: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    """Name the claims that come nearest to their bounds, in standard errors."""
    claims = [each for found in ledger.values() for each in found if each["room"] is not None]
    claims.sort(key=lambda each: each["room"])
    if claims:
        print("The claims with the least room, in standard errors:")
    for each in claims[:LEAST_ROOM]:
        print(f"  {each['room']:5.1f}  {each['label']}: {each['measured']}; {each['expected']}")


def claims_of(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The claims of an executed notebook, in order.

    Each with the committed files behind its numbers, and a hash of the cells that it hangs on.
    """
    cells = code_cells(notebook)
    codes = [Cell(cell.source) for cell in cells]
    found: list[dict[str, Any]] = []
    for i, files in enumerate(files_behind(cells, HELD.parent, Path())):
        outputs = [each.get("metadata", {}) for each in cells[i].outputs]
        claims = [each[METADATA_KEY] for each in outputs if METADATA_KEY in each]
        behind = {"files": files, "cell": hash_needed(codes, i)} if claims else {}
        found += [each | behind for each in claims]
    return found


def cells_fingerprint(cells: Sequence[NotebookNode]) -> str:
    """Hash of a chapter's code; its comments are not part of what comes out."""
    code = [code_hash(cell.source) for cell in cells]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:12]


def repeat_claims(n_seeds: int, only: Sequence[str] = (), *, live: bool = False) -> None:
    """Run chapters under other seeds, and count for the ledger how often each claim held.

    What an earlier call has counted for a claim stands until the cells change that it hangs on.

    Args:
        n_seeds: ``ATTNBOOK_SEED`` is 1, 2 … up to this.
        only: the chapters; all, if none is named.
        live: read the studies as recorded, where otherwise they are run under each seed, too. That
            takes minutes instead of hours, and tries no claim that hangs on a study.

    Raises:
        BuildError: if a claim ever failed or was not reached, or another cell raised.
    """
    if n_seeds < 1:
        raise BuildError(f"SEEDS must be at least 1, got {n_seeds}")
    chosen = choose(only)
    tried = {path: claims_to_try(path, live) for path in chosen}
    noted = {path: tried_before(path) for path in chosen}
    jobs: list[tuple[Path, int | None]] = [
        (path, seed)
        for seed in range(1, n_seeds + 1)
        for path in chosen
        if not claims_of(read(path))  # it was never executed
        or any(seed not in seeds_of(noted[path], claim) for claim in tried[path].values())
    ]
    if live:
        check_records(chosen)
    else:
        make_records_of(jobs)
    errors = []
    for path, seed, notebook, _ in execute_all(jobs, live=live, allow_errors=True):
        assert seed is not None
        came = {each["label"]: each for each in claims_of(notebook)}
        tried[path] |= {label: each for label, each in came.items() if made_anew(each, live)}
        count_seed(noted[path], seed, tried[path], came)
        write_whole(HELD, as_json(_json(HELD) | {path.stem: noted[path]}))
        errors += [
            f"{_name(path, seed)}: {output.ename}: {output.evalue}"
            for cell in code_cells(notebook)
            for output in cell.outputs
            if output.output_type == "error"
        ]
    n_failed = print_counts(tried, noted)
    if errors or n_failed:
        raise BuildError("\n".join(errors) or f"{n_failed} claims did not hold for every seed")


def make_records_of(jobs: Sequence[tuple[Path, int | None]]) -> None:
    """Run the studies that chapters read under other seeds, under the same."""
    for shift in sorted({seed for _, seed in jobs if seed}):
        os.environ["ATTNBOOK_SEED"] = str(shift)
        print(f"Studies, ATTNBOOK_SEED={shift}", flush=True)
        read_by = (studies_in(path) for path, seed in jobs if seed == shift)
        make_records([], sorted({name for names in read_by for name in names}))
        del os.environ["ATTNBOOK_SEED"]


def print_counts(
    tried: Mapping[Path, Mapping[str, Any]], noted: Mapping[Path, Mapping[str, Any]]
) -> int:
    """Say of each claim how often it held; return how many did not under every seed."""
    print()
    n_failed = 0
    for path, claims in tried.items():
        for label, each in claims.items():
            entry = noted[path].get(each["cell"], {"seeds": [], "held": {}})
            count, of = entry["held"].get(label, 0), len(entry["seeds"])
            n_failed += count < of
            mark = "✓" if count == of else "✗"
            print(f"{mark} {count}/{of}  {path.stem}  {label}: {each['statement']}")
    n_claims = sum(map(len, tried.values()))
    print(f"\n{n_claims - n_failed} of {n_claims} claims held for every seed")
    return n_failed


Held = dict[str, dict[str, Any]]
"""Of a chapter: hash of a claim's cells -> seeds, which files were made anew, and what came."""


def claims_to_try(path: Path, live: bool) -> dict[str, dict[str, Any]]:
    """The claims of a chapter that other seeds try: label -> claim."""
    return {each["label"]: each for each in claims_of(read(path)) if made_anew(each, live)}


def made_anew(claim: Mapping[str, Any], live: bool) -> bool:
    """Whether all that a claim's numbers come from is made anew under another seed."""
    return not claim["files"] or (not live and all(map(is_remade, claim["files"])))


def is_remade(file: str) -> bool:
    """Whether ``make claims`` makes a committed file anew: records of studies that need no GPU."""
    path = Path(file)
    return path.parent == FOLDER and not path.name.startswith(GPU)


def seeds_of(noted: Held, claim: Mapping[str, Any]) -> list[int]:
    """The seeds under which a claim was tried."""
    entry = noted.get(claim["cell"], {"seeds": [], "held": {}})
    return entry["seeds"] if claim["label"] in entry["held"] else []


def count_seed(
    noted: Held,
    seed: int,
    tried: Mapping[str, Mapping[str, Any]],
    came: Mapping[str, Mapping[str, Any]],
) -> None:
    """Note what a run under a seed made of each claim; one that it did not reach has not held."""
    new = set()
    for label, claim in tried.items():
        empty: dict[str, Any] = {"seeds": [], "made_anew": claim["files"], "held": {}, "leads": {}}
        entry = noted.setdefault(claim["cell"], empty)
        if seed not in entry["seeds"]:
            entry["seeds"] = sorted([*entry["seeds"], seed])
            new.add(claim["cell"])
        if claim["cell"] in new:
            held = label in came and came[label]["held"]
            entry["held"][label] = entry["held"].get(label, 0) + held
            if label in came and came[label]["lead"] is not None:
                entry["leads"].setdefault(label, []).append(came[label]["lead"])


def tried_before(path: Path) -> Held:
    """What is noted of a chapter's claims whose cells are today's."""
    today = {claim["cell"] for claim in claims_of(read(path))}
    noted: Held = _json(HELD).get(path.stem, {})
    return {cell: entry for cell, entry in noted.items() if cell in today}


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m book.press.build", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("book", help="execute what is out of date, build the HTML")
    commands.add_parser("html", help="build the HTML from the committed outputs")
    commands.add_parser("epub", help="build the book for e-readers")
    commands.add_parser("slides", help="make a deck of each built chapter")
    writing = commands.add_parser("chapters", help="re-execute and write the outputs")
    writing.add_argument("only", nargs="*", metavar="CHAPTER", help="all, if none is named")
    recording = commands.add_parser("studies", help="make the records that are stale")
    recording.add_argument("only", nargs="*", metavar="STUDY", help="these, stale or not")
    recording.add_argument("--same-as", metavar="COMMIT", help="keep records if no number changed")
    repeating = commands.add_parser("claims", help="re-run under other seeds")
    repeating.add_argument("only", nargs="*", metavar="CHAPTER", help="all, if none is named")
    repeating.add_argument("--seeds", type=int, default=3)
    repeating.add_argument("--live", action="store_true", help="with the studies as recorded")
    options = parser.parse_args(arguments)
    if not Path("_toc.yml").exists():
        print(f"{Path.cwd()} is not the book's folder: it has no _toc.yml", file=sys.stderr)
        return 1
    try:
        with alone():
            run(options)
    except (BuildError, ClusterError, StudyError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, or one that is not for writing
        where = f": {error.filename}" if error.filename else ""
        print(f"\n{error.strerror or error}{where}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    if options.command == "book":
        book()
    elif options.command == "html":
        render()
    elif options.command == "epub":
        write_epub()
    elif options.command == "slides":
        sys.stdout.writelines(slides.main())
    elif options.command == "chapters":
        write_chapters(options.only)
    elif options.command == "studies" and options.same_as:
        keep_records(options.same_as, options.only)
    elif options.command == "studies":
        make_records(options.only)
    else:
        repeat_claims(options.seeds, options.only, live=options.live)


if __name__ == "__main__":
    from book.press import build  # under its name, by which a cluster's workers find it

    try:
        sys.exit(build.main())
    except KeyboardInterrupt:
        print("\nStopped", file=sys.stderr, flush=True)
        # At once, and not when the chapters have ended; their kernels leave with their parent.
        os._exit(130)
