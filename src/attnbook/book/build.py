"""The commands behind the Makefile: execute chapters, render the book, re-run the claims.

``python -m attnbook.book.build book | html | chapters | claims --seeds N``
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nbformat
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import JupyterCacheAbstract
from jupyter_cache.cache.main import CacheBundleIn
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from nbformat.reader import NotJSONError

from attnbook.book.arithmetic import EXECUTED, arithmetic
from attnbook.book.claims import METADATA_KEY

BUILD = Path("_build")
# Where jupyter-book looks if _config.yml says nothing else.
CACHE = BUILD / ".jupyter_cache"
CLAIMS = BUILD / "claims.json"
# How often each claim held when it was last tried under other seeds; committed.
HELD = Path("chapters/held.json")
CELL_TIMEOUT = 600


class BuildError(Exception):
    """What stops a command; the message is for the person at the terminal."""


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


def code_fingerprint() -> str:
    """Hash of what a chapter's outputs hang on besides its own cells."""
    digest = hashlib.sha256(sys.version.encode())
    read = sorted(set(Path("chapters").glob("*.json")) - {HELD, EXECUTED})
    for path in [*sorted(Path("src").rglob("*.py")), *sorted(Path().glob("*.txt")), *read]:
        digest.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds the old text or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if path.exists():
            shutil.copymode(path, name)
        else:
            Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def execute(
    path: Path, *, seed: int | None = None, allow_errors: bool = False
) -> tuple[NotebookNode, float]:
    """Run a chapter from top to bottom in a fresh kernel; the file is not touched.

    Returns:
        The executed notebook and the seconds it took.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        allow_errors=allow_errors,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    environment = os.environ | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    if seed is not None:
        environment["ATTNBOOK_SEED"] = str(seed)
    start = time.perf_counter()
    client.execute(env=environment)
    return notebook, time.perf_counter() - start


def execute_all(
    jobs: list[tuple[Path, int | None]], *, allow_errors: bool = False
) -> Iterator[tuple[Path, int | None, NotebookNode, float]]:
    """Run several chapters side by side, saying which begins, which ends and how long it took.

    Raises:
        BuildError: when all are done, if one of them raised; with the cell and its error.
    """
    failed: list[str] = []

    def run(path: Path, seed: int | None) -> tuple[NotebookNode, float]:
        print(f"  {_name(path, seed)} …", flush=True)
        return execute(path, seed=seed, allow_errors=allow_errors)

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        running: dict[Future[tuple[NotebookNode, float]], tuple[Path, int | None]] = {
            pool.submit(run, *job): job for job in jobs
        }
        for done, future in enumerate(as_completed(running), 1):
            path, seed = running[future]
            try:
                notebook, seconds = future.result()
            # RuntimeError: a kernel that died, or never answered (its port was taken).
            except (CellExecutionError, CellTimeoutError, RuntimeError) as error:
                print(f"  {_name(path, seed)} FAILED  [{done}/{len(jobs)}]", flush=True)
                failed.append(f"{path}:\n{error}")
                continue
            print(f"  {_name(path, seed)} {seconds:.1f} s  [{done}/{len(jobs)}]", flush=True)
            yield path, seed, notebook, seconds
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failed:
        raise BuildError("\n\n".join(failed))


def _name(path: Path, seed: int | None) -> str:
    return path.stem if seed is None else f"{path.stem}, ATTNBOOK_SEED={seed}"


def open_cache() -> JupyterCacheAbstract:
    """The executed chapters; emptied if the code under them has changed."""
    stamp = CACHE / "code_fingerprint"
    now = code_fingerprint()
    if not stamp.exists() or stamp.read_text() != now:
        shutil.rmtree(CACHE, ignore_errors=True)
        cache = get_cache(CACHE)
        write_whole(stamp, now)
        return cache
    return get_cache(CACHE)


def keep(cache: JupyterCacheAbstract, path: Path, notebook: NotebookNode, seconds: float) -> None:
    """Put an executed chapter into the cache."""
    bundle = CacheBundleIn(notebook, str(path), data={"execution_seconds": seconds})
    cache.cache_notebook_bundle(bundle, overwrite=True)


def kept(cache: JupyterCacheAbstract, path: Path) -> NotebookNode | None:
    """The chapter with its outputs from the cache, if it has them, and whole."""
    notebook: NotebookNode
    try:
        _, notebook = cache.merge_match_into_notebook(nbformat.read(path, as_version=4))
    except (KeyError, NotJSONError):
        return None
    return notebook


def book() -> None:
    """Execute what is out of date, then render."""
    cache = open_cache()
    stale = [path for path in chapters() if kept(cache, path) is None]
    print(f"Chapters to execute: {len(stale)} of {len(chapters())}", flush=True)
    for path, _, notebook, seconds in execute_all([(path, None) for path in stale]):
        keep(cache, path, notebook, seconds)
    executed = {}
    for path in chapters():
        whole = kept(cache, path)
        if whole is None:
            raise BuildError(f"{path} was changed while it ran: run `make book` again")
        executed[path] = whole
    render(executed, "cache")


def html() -> None:
    """Render from the outputs in the committed notebooks."""
    render({path: nbformat.read(path, as_version=4) for path in chapters()}, "off")


def choose(only: Sequence[str]) -> list[Path]:
    """The chapters with these names; all, if none is named."""
    known = {path.stem: path for path in chapters()}
    if unknown := [name for name in only if name not in known]:
        raise BuildError(
            f"no chapter is called {' or '.join(unknown)}; there are {', '.join(known)}"
        )
    return [path for name, path in known.items() if not only or name in only]


def write_chapters(only: list[str]) -> None:
    """Re-execute chapters and write their outputs into the notebooks.

    Raises:
        BuildError: if a chapter raised, or was changed while it ran; this one is not written.
    """
    cache = open_cache()
    chosen = choose(only)
    before = {path: path.read_bytes() for path in chosen}
    changed = []
    for path, _, notebook, seconds in execute_all([(path, None) for path in chosen]):
        if path.read_bytes() != before[path]:
            changed.append(path.stem)
            continue
        write_whole(path, nbformat.writes(notebook) + "\n")
        write_whole(EXECUTED, _json(executed_under() | {path.stem: arithmetic()}))
        keep(cache, path, notebook, seconds)
    if changed:
        names = " ".join(changed)
        raise BuildError(f'changed while it ran, so not written: make chapters ONLY="{names}"')


def executed_under() -> dict[str, str]:
    """The arithmetic of each chapter's committed outputs."""
    known: dict[str, str] = {}
    if EXECUTED.exists():
        known = json.loads(EXECUTED.read_text(encoding="utf-8"))
    return known


def _json(content: object) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def render(notebooks: dict[Path, NotebookNode], execution: str) -> None:
    """Build the HTML, warnings as errors, from executed notebooks."""
    ledger = {path.with_suffix("").as_posix(): claims_of(nb) for path, nb in notebooks.items()}
    held = json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else {}
    here, committed_under = arithmetic(), executed_under()
    others = {path for path in notebooks if committed_under.get(path.stem) != here}
    if execution == "off":  # these are the committed numbers, wherever they are shown
        others = set()
    for path, notebook in notebooks.items():
        committed = {each["label"]: each for each in claims_of(nbformat.read(path, as_version=4))}
        tried = held.get(path.stem, {})
        fresh = tried.get("code") == cells_fingerprint(notebook)
        for each in ledger[path.with_suffix("").as_posix()]:
            known = committed.get(each["label"])
            other_text = known is not None and known["text"] != each["text"]
            each["elsewhere"] = other_text or path in others
            each["other_seeds"] = (
                f"{tried['held'].get(each['label'], 0)} of {tried['seeds']}" if fresh else "–"
            )
    write_whole(CLAIMS, json.dumps(ledger, ensure_ascii=False, indent=1))
    config = yaml.safe_load(Path("_config.yml").read_text(encoding="utf-8"))
    config["execute"]["execute_notebooks"] = execution
    extensions = config["sphinx"]["local_extensions"]  # relative to the file they are said in
    config["sphinx"]["local_extensions"] = {
        k: str(Path(v).resolve()) for k, v in extensions.items()
    }
    write_whole(BUILD / "config.yml", yaml.safe_dump(config, sort_keys=False))

    # Sphinx reads a page again when its file changed. Outputs come from elsewhere, and so do the
    # extension, the look, the contents and the API pages: when those changed, all is built again.
    state = hashlib.sha256((BUILD / "config.yml").read_bytes() + code_fingerprint().encode())
    for folder in ("_ext", "_static", "_templates"):
        for path in sorted(Path(folder).glob("*.*")):
            state.update(str(path).encode() + b"\0" + path.read_bytes())
    state.update(Path("_toc.yml").read_bytes())
    for path in sources():  # the title of each page stands in the sidebar of all
        title = re.search(rb'^\s*"?# .*', path.read_bytes(), re.MULTILINE)
        state.update(title[0] if title else b"")
    for notebook in notebooks.values():
        outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
        state.update(json.dumps(outputs, sort_keys=True).encode())
    stamp = BUILD / "rendered"
    fresh = stamp.exists() and stamp.read_text() == state.hexdigest()
    stamp.unlink(missing_ok=True)
    if not fresh:
        shutil.rmtree(BUILD / "html", ignore_errors=True)  # or pages of removed files would stay

    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        "build",
        ".",
        "-W",
        "-n",
        "--keep-going",
    ]
    command += ["--config", str(BUILD / "config.yml"), *([] if fresh else ["--all"]), "-q"]
    if subprocess.run(command, check=False).returncode:
        raise BuildError("the book was not built: see the warnings above")
    write_whole(stamp, state.hexdigest())
    if others:
        print(
            "This processor rounds otherwise than the one whose numbers the text quotes: a few of "
            "them may differ from what the claims show"
        )
    print(f"The book is at {(BUILD / 'html' / 'index.html').resolve()}")


def claims_of(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The claims of an executed notebook, in order."""
    return [
        output.metadata[METADATA_KEY]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if METADATA_KEY in output.get("metadata", {})
    ]


def cells_fingerprint(notebook: NotebookNode) -> str:
    """Hash of a chapter's code."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def repeat_claims(n_seeds: int, only: Sequence[str] = ()) -> None:
    """Run chapters under other seeds, say how often each claim held, and note it for the ledger.

    Raises:
        BuildError: if a claim ever failed or was not reached, or another cell raised.
    """
    if n_seeds < 1:
        raise BuildError(f"SEEDS must be at least 1, got {n_seeds}")
    chosen = choose(only)
    jobs: list[tuple[Path, int | None]] = [
        (path, seed) for path in chosen for seed in range(1, n_seeds + 1)
    ]
    labels: dict[tuple[Path, str], str] = {}
    held: dict[tuple[Path, str], int] = {}
    notebooks = {path: nbformat.read(path, as_version=4) for path in chosen}
    for path, notebook in notebooks.items():
        for each in claims_of(notebook):
            labels[path, each["label"]] = each["statement"]
    errors = []
    for path, seed, notebook, _ in execute_all(jobs, allow_errors=True):
        for each in claims_of(notebook):
            key = (path, each["label"])
            labels[key] = each["statement"]
            held[key] = held.get(key, 0) + each["held"]
        errors += [
            f"{_name(path, seed)}: {output.ename}: {output.evalue}"
            for cell in notebook.cells
            if cell.cell_type == "code"
            for output in cell.outputs
            if output.output_type == "error"
        ]
    print()
    for (path, label), statement in labels.items():
        count = held.get((path, label), 0)
        mark = "✓" if count == n_seeds else "✗"
        print(f"{mark} {count}/{n_seeds}  {path.stem}  {label}: {statement}")
    noted = json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else {}
    for path, notebook in notebooks.items():
        counts = {label: held.get((where, label), 0) for where, label in labels if where == path}
        code = cells_fingerprint(notebook)
        noted[path.stem] = {"code": code, "seeds": n_seeds, "held": counts}
    write_whole(HELD, _json(noted))
    failed = sum(held.get(key, 0) < n_seeds for key in labels)
    print(f"\n{len(labels) - failed} of {len(labels)} claims held for every seed")
    if errors or failed:
        raise BuildError("\n".join(errors) or f"{failed} claims did not hold for every seed")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m attnbook.book.build", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("book", help="execute what is out of date, build the HTML")
    commands.add_parser("html", help="build the HTML from the committed outputs")
    writing = commands.add_parser("chapters", help="re-execute and write the outputs")
    writing.add_argument("only", nargs="*", metavar="CHAPTER", help="all, if none is named")
    repeating = commands.add_parser("claims", help="re-run under other seeds")
    repeating.add_argument("only", nargs="*", metavar="CHAPTER", help="all, if none is named")
    repeating.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    try:
        if options.command == "book":
            book()
        elif options.command == "html":
            html()
        elif options.command == "chapters":
            write_chapters(options.only)
        else:
            repeat_claims(options.seeds, options.only)
    except BuildError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped", file=sys.stderr, flush=True)
        # At once, and not when the chapters have ended; their kernels leave with their parent.
        os._exit(130)
