"""Studies: experiments too long for a chapter's minute, with recorded results.

``studies/<name>.py`` is the experiment: ``run(seed)`` returns a dictionary of numbers, and
``SEEDS`` says how many seeds there are. One that compares several cases has ``run(seed, case)``,
and ``SEEDS`` is a dictionary: case -> number of seeds. ``studies/<name>.json`` is its record: a row
for each case and seed, and what code ran for them. ``make studies`` writes it; a chapter reads it
with :func:`study` and runs one of its rows again.

A study whose name begins with ``gpu_`` needs one: ``make studies DEVICE=cuda`` makes it, row after
row in one process, and its record may be of the first rows only, or of none. Elsewhere its ``run``
takes the arguments ``TINY``, which make it small enough for any machine.
"""

import ast
import datetime
import hashlib
import importlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from attnbook.tasks.text import fingerprint, python_topics
from book.evidence.arithmetic import arithmetic, processor
from book.evidence.claims import seeds, shift
from book.evidence.code import Code, find_root
from book.evidence.files import BUILD, in_lines, write_whole
from book.evidence.ran import CALLED, Watch, clear_caches, fingerprint_of
from book.evidence.settings import Setting, distinct, recorded
from book.evidence.workers import processes, workers

FOLDER = Path("studies")
PARTIAL = BUILD / "studies"
"""Rows of records that are not complete yet."""
TOLERANCE = 1e-6
"""How far a replayed number may be from the recorded one, relative to its size."""
REPLAY_KEY = "attnbook_replay"
GPU = "gpu_"
"""How the names of studies begin that need one."""
LIVE = "ATTNBOOK_LIVE"
"""Environment variable: under other seeds, too, records are those that are committed."""

Numbers = dict[str, Any]
"""What a run returns: name -> number, or list of numbers."""
Job = tuple[str, str, int]
"""A study, a case and a seed."""
Rows = dict[tuple[str, int], dict[str, Any]]
"""Case and seed -> a row of a record."""


class StudyError(Exception):
    """A record is missing, stale, damaged or contradicted; says which, and what to run."""


class Study:
    """A study's recorded results.

    ``study["case", "number"]`` is one sample for each seed; ``study["number"]``, where there are no
    cases.

    Example:
        >>> sizes = study("init_sizes")  # doctest: +SKIP
        >>> sizes["glorot", "loss"]  # doctest: +SKIP
        [3.21, 3.19, 3.25]
    """

    def __init__(self, name: str, record: dict[str, Any]) -> None:
        self.name = name
        self.record = record
        self.made: dict[str, Any] = record["made"]
        self.rows: dict[tuple[str, int], Numbers] = {
            (row["case"], row["seed"]): row["numbers"] for row in record["rows"]
        }
        if CALLED in os.environ:  # for the settings of claims
            for (case, _), numbers in self.rows.items():
                come_from = frozenset({(name, case)})
                numbers |= {key: recorded(value, come_from) for key, value in numbers.items()}

    def __getitem__(self, key: str | tuple[str, str]) -> list[Any]:
        case, number = ("", key) if isinstance(key, str) else key
        found = [numbers for (of, _), numbers in self.rows.items() if of == case]
        if not found or number not in found[0]:
            known = sorted({of for of, _ in self.rows}) if not found else sorted(found[0])
            raise KeyError(f"study {self.name} has no {case or number!r}; it has {known}")
        return [numbers[number] for numbers in found]

    def seeds(self, case: str = "") -> list[int]:
        """The seeds of a case, in order."""
        return [seed for of, seed in self.rows if of == case]

    def replay(self, case: str = "", **shorter: object) -> None:
        """Run the first row of a case again, now, and compare it with what is recorded.

        Args:
            case: which.
            **shorter: arguments of the study's ``run`` that make it end sooner; the numbers that
                it then returns are compared, and have to be recorded under the same names.

        Under ``make claims LIVE=1`` it does nothing, since the record is no part of what is tried.
        A study that needs a GPU runs at its tiny size, and nothing is compared.

        Raises:
            StudyError: if a number is off by more than a millionth, or none is returned.
        """
        if LIVE in os.environ:
            return
        if self.name.startswith(GPU):
            self._replay_tiny(case)
            return
        seed = self.seeds(case)[0]
        row = f"{f'case {case!r}, ' if case else ''}seed {seed}"
        if self.record["text"] in (None, fingerprint(python_topics())):
            recorded, again = self.rows[case, seed], _run(self.name, case, seed, **shorter)
            if not again or (
                off := {k: v for k, v in again.items() if not _same(v, recorded.get(k))}
            ):
                shown = "".join(
                    f"\n  {k}: {v} now, {recorded.get(k)} recorded" for k, v in off.items()
                )
                raise StudyError(
                    f"study {self.name}, {row}: run again, it gives other numbers than its record:"
                    f"{shown}\nIf the code is right, run: make studies ONLY={self.name}"
                )
            part = "".join(f", {name}={value}" for name, value in shorter.items())
            outcome = f"Run again, {row}{part}: the same numbers."
        else:
            outcome = "Not run again: this Python's help texts differ from those measured."
        runs, minutes = summary(self.record)
        where = f"({self.made['processor']}, {self.made['date']})"
        _show(self.name, f"{runs}, {minutes} on one core {where}. {outcome}")

    def _replay_tiny(self, case: str) -> None:
        tiny = importlib.import_module(f"studies.{self.name}").TINY
        _run(self.name, case, 0, **tiny)
        measured = "not measured yet"
        if self.rows:
            n_rows, n_planned = len(self.rows), len(wanted(self.name))
            where = f"({self.made['device']}, {self.made['date']})"
            minutes = sum(row["seconds"] for row in self.record["rows"]) / 60
            measured = f"{n_rows} of {n_planned} runs, {minutes:.0f} min {where}"
        _show(self.name, f"{measured}. Case {case!r} run here at a tiny size.")


def study(name: str) -> Study:
    """Read a study's record.

    Under ``ATTNBOOK_SEED`` it is the one that ``make claims`` has made for those seeds, and with
    ``LIVE=1`` the committed one. One that needs a GPU and has no record has no rows.

    Raises:
        StudyError: if the record is missing, damaged, incomplete, or made by other code.
    """
    root = find_root()
    path = record_path(name)
    if waits_for_gpu(root, name):
        return Study(name, {"made": {}, "rows": []})
    return Study(name, checked_record(root, name, path))


def asks(root: Path, name: str) -> str:
    """What a study asks: the first line of its module."""
    tree = ast.parse((root / FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or name).partition("\n")[0].rstrip(".")


def waits_for_gpu(root: Path, name: str) -> bool:
    """Whether a study has no record because none of these machines had a GPU yet."""
    return name.startswith(GPU) and not (root / record_path(name)).exists()


def names(root: Path) -> list[str]:
    """All studies, by name."""
    paths = sorted((root / FOLDER).glob("*.py"))
    return [path.stem for path in paths if not path.stem.startswith("_")]


def studies_of(tree: ast.AST) -> list[str]:
    """The names of the studies that some code reads."""
    return [
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "study"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def record_path(name: str, seed: int | None = None) -> Path:
    """From the root: where the record for an ``ATTNBOOK_SEED`` is, today's if none is given."""
    seed = shift() if seed is None else seed
    committed = not seed or LIVE in os.environ or name.startswith(GPU)
    return FOLDER / f"{name}.json" if committed else PARTIAL / str(seed) / f"{name}.json"


def checked_record(root: Path, name: str, path: Path) -> dict[str, Any]:
    """The record, if it is whole, unchanged and of today's code.

    Raises:
        StudyError: if not; says what to run.
    """
    remedy = f"run: make studies ONLY={name}"
    if name.startswith(GPU):
        remedy = f"on a machine with a GPU, run: make studies DEVICE=cuda ONLY={name}"
    if name not in names(root):
        raise StudyError(f"there is no study {name!r}; there are {', '.join(names(root))}")
    if not (root / path).exists():
        raise StudyError(f"study {name} has no record {path}; {remedy}")
    try:
        record = json.loads((root / path).read_text(encoding="utf-8"))
        unchanged = record["digest"] == _digest(record)
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"{path} is not a whole record of study {name}; {remedy}") from None
    if not unchanged:
        raise StudyError(f"{path} is not what was recorded: a number was changed; {remedy}")
    if changed := differences(record["ran"], code_that_ran(root, name, record["ran"])):
        raise StudyError(f"{path} is stale ({', '.join(changed)} changed since); {remedy}")
    assert isinstance(record, dict)
    return record


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """The names that are not in both, or not the same in both."""
    return sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))


def code_that_ran(root: Path, name: str, called: Iterable[str]) -> dict[str, str]:
    """Fingerprint of the functions that a study's rows called."""
    return fingerprint_of(root, called, f"import studies.{name}")


def study_code(root: Path, name: str) -> dict[str, str]:
    """Hashes of the study's module and of all that it reaches, whether it runs or not."""
    return Code(root).hashes(f"import studies.{name}")


def _digest(record: dict[str, Any], without: Sequence[str] = ("digest",)) -> str:
    content = {key: value for key, value in record.items() if key not in without}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def hash_shown(path: Path) -> str:
    """Hash of what a chapter can show of a record: not the code that ran for it, nor settings."""
    try:
        return _digest(json.loads(path.read_text(encoding="utf-8")), ("digest", "ran", "settings"))
    except ValueError:
        return "damaged"


def _same(now: Any, recorded: Any) -> bool:
    if isinstance(now, list) and isinstance(recorded, list):
        return len(now) == len(recorded) and all(map(_same, now, recorded))
    if isinstance(now, list) or recorded is None:
        return False
    if isinstance(now, str):
        return bool(now == recorded)
    return math.isclose(now, recorded, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _run(name: str, case: str, seed: int, **shorter: object) -> Numbers:
    """One row, the same whatever ran before it."""
    module = importlib.import_module(f"studies.{name}")
    run = module.run
    if name.startswith(GPU) and not torch.cuda.is_available():
        shorter = module.TINY | shorter
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    quiet = os.environ.get("TQDM_DISABLE")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    os.environ["TQDM_DISABLE"] = "1"  # a training's own bar, inside the bar over rows
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            numbers = run(seed, case, **shorter) if case else run(seed, **shorter)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        os.environ.pop("TQDM_DISABLE")
        if quiet is not None:
            os.environ["TQDM_DISABLE"] = quiet
    return {key: _plain(value, f"study {name}, {key!r}") for key, value in numbers.items()}


def _plain(value: Any, what: str) -> Any:
    """Numbers and texts as JSON keeps them."""
    if isinstance(value, (list, tuple)):
        return [_plain(each, what) for each in value]
    if isinstance(value, str):
        return value
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, (bool, int, float)):
        raise TypeError(f"{what} must be a number, a text or a list of these, got {value!r}")
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}: a record holds finite numbers")
    return number


def summary(record: dict[str, Any]) -> tuple[str, str]:
    """How many runs a record holds, in words, and the minutes that they took on one core."""
    cases = list(dict.fromkeys(row["case"] for row in record["rows"]))
    counts = sorted({sum(row["case"] == case for row in record["rows"]) for case in cases})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    runs = f"{n} seeds" if cases == [""] else f"{len(cases)} cases, {n} seeds each"
    minutes = sum(row["seconds"] for row in record["rows"]) / 60
    return runs, f"{minutes:.0f} min" if minutes >= 1 else "under a minute"


def _show(name: str, line: str) -> None:
    from IPython import get_ipython

    text = f"✓ Study {name}: {line}"
    if get_ipython() is None:
        print(text)
        return
    from IPython.display import display

    html = f'<div class="replay" id="study-{name}">{text}</div>'
    display({"text/plain": text, "text/html": html}, metadata={REPLAY_KEY: name}, raw=True)


# What `make studies` does.


def wanted(name: str) -> list[tuple[str, int]]:
    """The (case, seed) of each row that the record has to have."""
    counts = importlib.import_module(f"studies.{name}").SEEDS
    counts = counts if isinstance(counts, dict) else {"": counts}
    return [(case, seed) for case, n in counts.items() for seed in seeds(n)]


def make_records(only: Sequence[str] = (), among: Sequence[str] | None = None) -> None:
    """Make the records that are stale (of all studies, or ``among`` some), or those named.

    Those that need a GPU are left out.

    They are those of today's ``ATTNBOOK_SEED``.

    Rows are run side by side, here or on the cluster of ``SCHEDULER``, and kept as they come: what
    is killed goes on where it was. Records are replaced when they are complete.

    Raises:
        StudyError: if a name is unknown, or a run raised; the others are completed.
    """
    root = Path()
    _check_names(root, only)
    if gpu := [name for name in only if name.startswith(GPU)]:
        raise StudyError(f"{' and '.join(gpu)} needs a GPU: make studies DEVICE=cuda")
    among = [n for n in (names(root) if among is None else among) if not n.startswith(GPU)]
    chosen = only or [name for name in among if _stale(root, name)]
    if not chosen:
        print("All studies are up to date")
        return
    codes = {name: study_code(root, name) for name in chosen}
    rows, errors = _run_missing([(name, *row) for name in chosen for row in wanted(name)], codes)
    for name, made in rows.items():
        if all(each in made for each in wanted(name)):
            if study_code(root, name) != codes[name]:
                errors.append(f"study {name} was changed while it ran: make studies ONLY={name}")
                continue
            _complete(name, [made[each] for each in wanted(name)])
    if errors:
        raise StudyError("\n".join(errors))


def _check_names(root: Path, only: Sequence[str]) -> None:
    if unknown := sorted(set(only) - set(names(root))):
        raise StudyError(
            f"no study is called {' or '.join(unknown)}; there are {', '.join(names(root))}"
        )


def make_gpu_records(only: Sequence[str] = (), minutes: float = math.inf) -> None:
    """Make the rows that are missing in the records that need a GPU, while there is time.

    In one process, so that what is compiled stays. A seed of every case comes first, in the order
    of ``SEEDS``; the record is written after each row, and a later call goes on from it.

    Raises:
        StudyError: if a name is unknown, there is no GPU, or the record's rows were made on another
            machine's text or GPU.
    """
    root, end = Path(), time.monotonic() + 60 * minutes
    _check_names(root, only)
    if not torch.cuda.is_available():
        raise StudyError("torch finds no GPU here")
    for name in only or [name for name in names(root) if name.startswith(GPU)]:
        rows = Rows()
        if not _stale(root, name):
            record = json.loads((root / record_path(name)).read_text(encoding="utf-8"))
            settings = record.get("settings", {})
            rows = {
                (row["case"], row["seed"]): row
                | {"called": record["ran"], "settings": settings.get(row["case"], [])}
                for row in record["rows"]
            }
        order = wanted(name)
        missing = sorted((job for job in order if job not in rows), key=lambda job: job[1])
        for case, seed in tqdm(missing, name, unit="row"):
            if time.monotonic() > end:
                break
            rows[case, seed] = _row(name, case, seed)
            _complete(name, [dict(rows[job]) for job in order if job in rows])


def _run_missing(
    jobs: Sequence[Job], codes: dict[str, dict[str, str]]
) -> tuple[dict[str, Rows], list[str]]:
    """The rows of each study, those that an earlier call has left and those run now; and errors."""
    rows = {name: _kept(name, code) for name, code in codes.items()}
    missing = [job for job in jobs if job[1:] not in rows[job[0]]]
    print(f"{', '.join(rows)}: {len(missing)} rows to run", flush=True)
    errors = []
    for (name, case, seed), row in _run_all(missing):
        if isinstance(row, Exception):
            errors.append(f"study {name}, {case!r}, seed {seed}: {type(row).__name__}: {row}")
            continue
        rows[name][case, seed] = row
        left = {"code": codes[name], "rows": [*rows[name].values()]}
        write_whole(_partial(name), json.dumps(left))
    return rows, errors


def keep_records(commit: str, only: Sequence[str] = ()) -> None:
    """Keep stale records whose code was rewritten since ``commit`` without changing a number.

    The first row of each case is run, of a row longer than ten seconds the first twenty steps.
    Where it is off the record by more than a millionth, as a training is on a processor that
    rounds otherwise, the code of that commit is run, too, and has to give the same to the last
    bit. Then the record stands, under today's code.

    Raises:
        StudyError: if a record is not of that commit's code, or a number differs; the others are
            kept.
    """
    root = Path()
    chosen = only or [name for name in names(root) if not waits_for_gpu(root, name)]
    stale = [name for name in chosen if _stale(root, name)]
    if not stale:
        print("All studies are up to date")
        return
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "--detach", old, commit], check=True)
        try:
            records = {name: checked_record(old, name, record_path(name)) for name in stale}
            first = _first_rows(records)
            today = _run_by(root, first)
            doubted = {
                job: row
                for job, row in first.items()
                if not today[job][0]
                or not all(
                    _same(number, row["numbers"].get(k)) for k, number in today[job][0].items()
                )
            }
            before = _run_by(old, doubted) if doubted else {}
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", old], check=True)
    off = [job for job in doubted if today[job][0] != before[job][0]]
    for name in sorted({*stale} - {name for name, _, _ in off}):
        # What ran before counts, too: twenty steps do not call all that a whole row calls.
        called, settings = {*records[name]["ran"]}, {**records[name].get("settings", {})}
        for (study, case, seed), (_, functions, met) in today.items():
            if study == name:
                called.update(functions)
                if first[study, case, seed]["seconds"] <= LONG:  # it ran whole
                    settings[case] = met
        ran = code_that_ran(root, name, called).items()
        still_there = {key: value for key, value in ran if value != "missing"}
        _write_record(name, records[name] | {"ran": still_there, "settings": settings})
        print(f"{name}: the same numbers, record kept", flush=True)
    if off:
        raise StudyError(f"other numbers than at {commit}: {off}; run: make studies")


def _first_rows(records: dict[str, dict[str, Any]]) -> dict[Job, dict[str, Any]]:
    """The first row of each case, the longest first, so that two workers end together."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for name, record in records.items():
        made = [(row["case"], row["seed"]) for row in record["rows"]]
        planned = wanted(name)
        if name.startswith(GPU):
            planned = [job for job in planned if job in made]
        if made != planned:
            raise StudyError(f"study {name} has other cases or seeds now; run: make studies")
        for row in record["rows"]:
            first.setdefault((name, row["case"]), row)
    longest = sorted(first.items(), key=lambda item: -item[1]["seconds"])
    return {(name, case, row["seed"]): row for (name, case), row in longest}


RUN_ROWS = """
import importlib, inspect, json, sys
from book.evidence.code import find_root
from book.evidence.ran import Watch, clear_caches
from book.evidence.records import _run
for job, shorter in json.loads(sys.argv[1]):
    run = importlib.import_module(f"studies.{job[0]}").run
    known = inspect.signature(run).parameters
    clear_caches()
    with Watch(find_root()) as watch:
        numbers = _run(*job, **{k: v for k, v in shorter.items() if k in known})
    met = watch.observer.settings if hasattr(watch, "observer") else []
    print(json.dumps([job, [numbers, watch.called, met]]), flush=True)
"""
Ran = tuple[Numbers, list[str], list[Setting]]
LONG, SHORTER = 10, {"steps": 20}


def _run_by(root: Path, rows: Mapping[Job, dict[str, Any]]) -> dict[Job, Ran]:
    """By a checkout's code, the numbers of these rows, the functions they called, their settings.

    They are kept for the next call as they come.
    """
    kept = {name: _kept_by(root, name) for name, _, _ in rows}
    ran = {path: json.loads(path.read_text()) if path.exists() else [] for path in kept.values()}
    known = {tuple(job) for each in ran.values() for job, _ in each}
    jobs = [(job, SHORTER if row["seconds"] > LONG else {}) for job, row in rows.items()]
    missing = [job for job in jobs if job[0] not in known]
    print(f"By the code in {root.resolve()}: {len(missing)} rows to run", flush=True)
    progress, lock = tqdm(desc="rows", total=len(missing), unit="row"), threading.Lock()
    places = (root / "src").resolve(), root.resolve()

    def run(some: Sequence[object]) -> int:
        with subprocess.Popen(
            [sys.executable, "-c", RUN_ROWS, json.dumps(some)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                with lock:
                    job, numbers = json.loads(line)
                    path = kept[job[0]]
                    ran[path].append((job, numbers))
                    write_whole(path, json.dumps(ran[path]))
                    progress.update()
        return process.returncode

    n = int(os.environ.get("WORKERS", os.cpu_count() or 1))
    with ThreadPoolExecutor(n) as pool:
        if any([*pool.map(run, filter(None, (missing[i::n] for i in range(n))))]):
            raise StudyError(f"the code in {root.resolve()} did not run here: see above")
    return {tuple(job): numbers for each in ran.values() for job, numbers in each}


def _kept_by(root: Path, name: str) -> Path:
    code = json.dumps(study_code(root, name))
    return PARTIAL / f"{name}.{hashlib.sha256(code.encode()).hexdigest()[:12]}.json"


def _stale(root: Path, name: str) -> bool:
    try:
        checked_record(root, name, record_path(name))
    except StudyError:
        return True
    return False


def _partial(name: str) -> Path:
    return PARTIAL / str(shift()) / f"{name}.rows.json"


def _kept(name: str, code: dict[str, str]) -> Rows:
    """The rows that an earlier call has left of this code."""
    try:
        partial = json.loads(_partial(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if partial["code"] != code:
        return {}
    return {(row["case"], row["seed"]): row for row in partial["rows"]}


def _complete(name: str, rows: list[dict[str, Any]]) -> None:
    makers = [row.pop("by", _maker()) for row in rows]
    made = {key: ", ".join(sorted({maker[key] for maker in makers})) for key in _maker()}
    ran = code_that_ran(Path(), name, set().union(*(row.pop("called") for row in rows)))
    settings: dict[str, list[Setting]] = {}
    for row in rows:
        settings[row["case"]] = distinct(settings.get(row["case"], []) + row.pop("settings"))
    uses_text = "attnbook.tasks.text:python_topics" in ran
    record: dict[str, Any] = {
        "study": name,
        "made": {"date": datetime.date.today().isoformat()}
        | made
        | (_gpu() if name.startswith(GPU) else {}),
        "text": fingerprint(python_topics()) if uses_text else None,
        "ran": ran,
        "settings": settings,
        "rows": rows,
    }
    _write_record(name, record)


def _gpu() -> dict[str, str]:
    driver = Path("/proc/driver/nvidia/version")  # its first line has the number
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver.read_text().partition("\n")[0] if driver.exists() else "unknown",
        "cuda": str(torch.version.cuda),
    }


def _write_record(name: str, record: dict[str, Any]) -> None:
    record["digest"] = _digest(record)
    write_whole(record_path(name), f"{in_lines(record, 2)}\n")
    _partial(name).unlink(missing_ok=True)


def _run_all(jobs: Sequence[Job]) -> Iterable[tuple[Job, dict[str, Any] | Exception]]:
    ours = {name: _identity(name) for name in {name for name, _, _ in jobs}}
    with workers(processes) as pool:
        running = {pool.submit(_row_of, ours[job[0]], *job): job for job in jobs}
        for future in tqdm(as_completed(running), "rows", len(jobs), unit="row"):
            if future.cancelled():
                raise StudyError("the scheduler is gone; the rows until now are kept")
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield running[future], error or future.result()


@cache
def _identity(name: str) -> dict[str, str]:
    """What rows hang on, as it is when a worker first asks."""
    versions = {"torch": torch.__version__.partition("+")[0], "NumPy": np.__version__}
    text = {"Python's help texts": fingerprint(python_topics())}
    return study_code(find_root(), name) | versions | text


def _row_of(ours: dict[str, str], name: str, case: str, seed: int) -> dict[str, Any]:
    """A row, and what made it; by a worker that may be on another machine."""
    if changed := differences(ours, _identity(name)):
        raise StudyError(
            f"worker {platform.node()} has other code in {find_root()} ({', '.join(changed)}): "
            "give it this checkout, and start it anew"
        )
    return _row(name, case, seed) | {"by": _maker()}


@cache
def _maker() -> dict[str, str]:
    return {
        "processor": processor().get("model name", platform.processor() or "unknown"),
        "arithmetic": arithmetic(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
    }


@cache
def _forget(name: str, case: str) -> None:
    """Before a process's first row of a case: what others have left would not be called again."""
    clear_caches()


def _row(name: str, case: str, seed: int) -> dict[str, Any]:
    _forget(name, case)
    start = time.perf_counter()
    with Watch(find_root()) as watch:
        numbers = _run(name, case, seed)
    seconds = round(time.perf_counter() - start, 1)
    row = {"case": case, "seed": seed, "seconds": seconds, "numbers": numbers}
    return row | {"called": watch.called, "settings": watch.observer.settings}
