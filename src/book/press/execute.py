"""Run chapters, several side by side, here or on a cluster's workers; write what came out."""

import datetime
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from book.evidence.arithmetic import EXECUTED
from book.evidence.cells import behind
from book.evidence.files import as_json, in_lines, write_whole
from book.evidence.ran import CALLED
from book.evidence.records import LIVE, differences, record_path
from book.evidence.settings import SETTINGS
from book.evidence.workers import SCHEDULER, ClusterError, workers
from book.press import contents
from book.press.contents import BuildError

CELL_TIMEOUT = 600
CALLED_KEY = "attnbook_called"
# The kernel's first line, in no name of the chapter's.
WATCHED = "__import__('book.evidence.ran', fromlist=['ran']).watch_kernel()"


def execute(
    path: Path, *, seed: int | None = None, live: bool = False, allow_errors: bool = False
) -> tuple[NotebookNode, float]:
    """Run a chapter from top to bottom in a fresh kernel; the file is not touched.

    Returns:
        The executed notebook, with the functions that it called and what it met in its metadata,
        and the seconds it took.
    """
    notebook = contents.read(path)
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
    expected = contents.reached_by if SCHEDULER in os.environ else lambda _: None
    with workers(lambda: ThreadPoolExecutor(os.cpu_count())) as pool:
        running: dict[Future[tuple[NotebookNode, float]], tuple[Path, int | None]] = {
            pool.submit(
                execute_same, path, expected(path), _records(path, seed), seed, live, allow_errors
            ): (path, seed)
            for path, seed in jobs
        }
        for n_done, future in enumerate(as_completed(running), 1):
            path, seed = running[future]
            try:
                notebook, seconds = future.result()
            except CancelledError:
                raise BuildError("the scheduler is gone") from None
            # RuntimeError: a kernel that died, or never answered (its port was taken).
            except (CellExecutionError, CellTimeoutError, RuntimeError, ClusterError) as error:
                print(f"  {label_of(path, seed)} FAILED  [{n_done}/{len(jobs)}]", flush=True)
                failed.append(f"{path}:\n{error}")
                continue
            print(f"  {label_of(path, seed)} {seconds:.1f} s  [{n_done}/{len(jobs)}]", flush=True)
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
    if expected and (changed := differences(expected, contents.reached_by(path))):
        raise ClusterError(
            f"worker {platform.node()} has other code in {Path.cwd()} ({', '.join(changed)}): give "
            "it this checkout, and start it anew"
        )
    for file, text in records.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_whole(file, text)
    print(f"  {label_of(path, seed)} …", flush=True)
    return execute(path, seed=seed, live=live, allow_errors=allow_errors)


def _records(path: Path, seed: int | None) -> dict[Path, str]:
    """The records of a chapter that were made under a seed."""
    files = [record_path(name, seed) for name in contents.studies_in(path)] if seed else []
    return {file: file.read_text(encoding="utf-8") for file in files if file.exists()}


def label_of(path: Path, seed: int | None) -> str:
    """A chapter's name, and the seed that it runs under."""
    return path.stem if seed is None else f"{path.stem}, ATTNBOOK_SEED={seed}"


def write_outputs(paths: Sequence[Path], *, quoted: bool) -> None:
    """Execute chapters, and write outputs into the notebooks with a note what they were made from.

    Args:
        paths: the slowest first, so that two of them end together.
        quoted: is the prose to quote the digits that come out here? ``make chapters`` is an
            author's command; a reader's ``make book`` may run on another processor.

    Raises:
        BuildError: if a chapter raised, or was changed while it ran; this one is not written.
    """
    known = contents.executed()
    seconds_of = {name: entry["seconds"] for name, entry in known.items()}
    paths = sorted(paths, key=lambda path: -seconds_of.get(path.stem, 0))
    before = {path: (path.read_bytes(), contents.reached_by(path)) for path in paths}
    changed = []
    for path, _, notebook, seconds in execute_all([(path, None) for path in paths]):
        if (path.read_bytes(), contents.reached_by(path)) != before[path]:
            changed.append(path.stem)
            continue
        met = notebook.metadata.pop(CALLED_KEY)
        write_whole(path, nbformat.writes(notebook) + "\n")
        earlier = known.get(path.stem, {}).get("quoted")
        entry = {
            "made_from": contents.made_from(path, met["called"]),
            "under": contents.measured_under(),
            "quoted": contents.measured_under() if quoted or earlier is None else earlier,
            "seconds": round(seconds, 1),
            "date": datetime.date.today().isoformat(),
        }
        _note(EXECUTED, path, entry, as_json)
        _note(
            SETTINGS, path, behind(map(tuple, met["seen"])), lambda noted: f"{in_lines(noted, 3)}\n"
        )
    if changed:
        names = " ".join(changed)
        raise BuildError(f'changed while it ran, so not written: make chapters ONLY="{names}"')


def _note(
    file: Path, path: Path, entry: dict[str, Any], written: Callable[[dict[str, Any]], str]
) -> None:
    """Put a chapter's entry into a file, in the order of the contents."""
    noted = contents.noted_in(file) | {path.stem: entry}
    in_order = {p.stem: noted[p.stem] for p in contents.chapters() if p.stem in noted}
    write_whole(file, written(in_order))
