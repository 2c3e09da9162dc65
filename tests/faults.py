"""What the commands say and keep when the machine fails them: ``make faults`` prints the table.

Every row is a copy of this checkout with a book of one chapter and one study, a fault, and a
command. The row holds if the command says in words what happened, every committed file is whole
afterwards, no process stays, and the same command ends well once the fault is gone. Nothing is
installed here: the copies read this environment's packages. Linux only; a fault that this machine
does not allow is a row that says so. The exit code is 1 if a row does not hold.
"""

import base64
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[1]
MARK = "ATTNBOOK_FAULTS"
"""Environment variable: the copy that a process belongs to."""
SECONDS = 240

COMMANDS = {
    "book": "make book",
    "html": "make html",
    "chapters": "make chapters ONLY=01_small",
    "studies": "make studies ONLY=small",
    "claims": "make claims SEEDS=1 ONLY=01_small",
    "epub": "make epub",
    "slides": "make slides",
    "pdf": "make pdf",
    "install": "make .venv/installed",
    "wheel": "make wheel",
    "train": ".venv/bin/python -m attnbook.train --text text.txt --out _build/run --steps 30 "
    "--every 5 --vocab-size 280 --length 16 --d-model 16 --n-heads 2 --n-layers 1 --batch 2",
    "import": ".venv/bin/python -c 'import attnbook; print(attnbook.__version__)'",
}
INSTALLING = {"install", "wheel"}
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels", "PIP_CONFIG_FILE": os.devnull}

CHAPTER = (
    "# What is six times seven?\n\nIt is 42. See [42](#claim-product).",
    'import time\n\nfrom book import claim, study\n\nproduct = study("small")["product"]\n'
    'time.sleep(1)\nclaim("Six times seven is 42", product, label="product", close_to=42, atol=1)',
    "import matplotlib.pyplot as plt\n\nfrom book import use_style\n\nuse_style()\n"
    "plt.plot([1, 2])\nplt.show()",
    "**A line of two points rises.**\n\n## What you can now say\n\n- It is 42.",
)
STUDY = '''"""Six times seven."""

import time

SEEDS = 6


def run(seed: int) -> dict[str, float]:
    """It takes a while."""
    time.sleep(0.3)
    return {"product": 42.0}
'''
# A build backend that needs nothing, and packages as large as an interruption needs.
BACKEND = """import zipfile


def build_wheel(folder, settings=None, metadata=None, *, path="src"):
    name, info = "attnbook-1-py3-none-any.whl", "attnbook-1.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        if path:
            wheel.writestr("attnbook/__init__.py", "")
        else:
            wheel.writestr("_attnbook.pth", "../../../../src")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: attnbook\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name


def build_editable(folder, settings=None, metadata=None):
    return build_wheel(folder, path="")
"""


# Copies


def make_small(folder: Path) -> None:
    """Copy the tracked files, as they are now, and put a small book in the place of this one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        is_content = re.match(r"chapters/|studies/(?!__)", name) and "references.bib" not in name
        if not is_content and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: intro\nchapters:\n- file: chapters/01_small\n"
    )
    (folder / "intro.md").write_text("# A small book\n")
    prose, claimed, drawn, said = CHAPTER
    cells = [
        new_markdown_cell(prose, id="prose"),
        new_code_cell(claimed, id="claimed", metadata={"tags": ["claims"]}),
        new_code_cell(drawn, id="drawn", metadata={"mystnb": {"image": {"alt": "A line"}}}),
        new_markdown_cell(said, id="said"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, folder / "chapters/01_small.ipynb")
    (folder / "studies/small.py").write_text(STUDY)
    (folder / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    make_environment(folder)


def make_environment(folder: Path) -> None:
    """An environment of the copy's code and of this one's packages, that may be moved."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    (packages,) = (folder / ".venv/lib").glob("python*/site-packages")
    lines = ("../../../../src", "../../../..", sysconfig.get_path("purelib"))
    (packages / "attnbook.pth").write_text("\n".join(lines) + "\n")


def stamp(folder: Path) -> None:
    """Let the environment look newer than what it is made from."""
    for name in ("installed", "installed-tests"):
        (folder / ".venv" / name).touch()


def to_install(folder: Path) -> None:
    """Leave no environment, and as packages to install some that lie here."""
    shutil.rmtree(folder / ".venv")
    (folder / "wheels").mkdir()
    files = {f"torch/part_{i}.py": f"x = {i}\n" for i in range(4000)} | {"torch/__init__.py": ""}
    info = "torch-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(
        f"{name},sha256={urlsafe(content)},{len(content)}\n" for name, content in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = folder / "wheels/torch-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    (folder / "requirements.txt").write_text("torch==1.0\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "requirements.lock").write_text(f"torch==1.0 \\\n    --hash=sha256:{digest}\n")
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "tests/wheel.py").write_text("import attnbook, torch.part_3999\n")


def urlsafe(content: str) -> str:
    """A hash as a wheel's table of files has it."""
    digest = hashlib.sha256(content.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Copy:
    """A checkout that a command runs in."""

    def __init__(self, small: Path, folder: Path, command: str) -> None:
        shutil.copytree(small, folder, symlinks=True)
        self.folder, self.mark = folder, f"{folder}{random.random()}"
        self.settings: dict[str, str] = {}
        if command in INSTALLING:
            to_install(folder)
            self.settings = OFFLINE
        elif command == "book":
            (folder / "chapters/executed.json").unlink()
        self.before = self.files()

    def files(self) -> dict[Path, bytes]:
        """What is not built: name -> content."""
        return {
            path.relative_to(self.folder): path.read_bytes()
            for path in self.folder.rglob("*")
            if not {"_build", ".venv", "__pycache__"} & {*path.relative_to(self.folder).parts}
            and path.is_file()
        }

    def start(self, command: str, changes: dict[str, str | None] | None = None) -> "Run":
        """Begin a command, as a terminal does, in an environment with some changes."""
        outside = dict.fromkeys(("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"))
        changes = outside | {MARK: self.mark} | self.settings | (changes or {})
        environment = {k: v for k, v in (os.environ | changes).items() if v is not None}
        output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return Run(process, output)

    def lost(self) -> str:
        """Which files are gone, half written, or too many."""
        now = self.files()
        for path in self.before.keys() | now.keys():
            if path not in now:
                return f"{path} is gone"
            if path not in self.before and path != Path("chapters/executed.json"):
                return f"{path} was left behind"
            if now[path] != self.before.get(path):
                if path.suffix not in (".json", ".ipynb"):
                    return f"{path} was changed"
                try:
                    json.loads(now[path])
                except ValueError:
                    return f"{path} is not whole"
        return ""

    def left(self) -> str:
        """Which processes stay for more than a while."""
        found: list[str] = []
        for _ in range(300):
            found = [*self.processes()]
            if not found:
                break
            time.sleep(0.1)
        return f"still runs: {found[0]}" if found else ""

    def processes(self) -> Iterator[str]:
        """The names of those that belong to the copy."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    yield " ".join(process.cmdline())[:60]


@dataclass
class Run:
    """A command that was begun."""

    process: subprocess.Popen[bytes]
    output: IO[str]
    begun: float = field(default_factory=time.monotonic)

    def end(self) -> tuple[int, str]:
        """The exit code and what was said."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        self.output.seek(0)
        return code, re.sub(r"\x1b\[[0-9;]*m|.*\r", "", self.output.read())


@dataclass
class Row:
    """A line of the table."""

    fault: str
    command: str
    code: int | str
    said: str
    wrong: str

    def __str__(self) -> str:
        said = self.said.replace("|", "\\|")
        cells = (
            self.fault,
            self.command,
            said,
            self.code,
            f"✗ {self.wrong}" if self.wrong else "✓",
        )
        return f"| {' | '.join(map(str, cells))} |"


def judged(
    fault: str,
    command: str,
    ended: tuple[int, str],
    copy: Copy,
    words: str | None = None,
    more: str = "",
) -> Row:
    """A row: what is wrong with how a command ended.

    Args:
        fault: of the machine.
        command: by its name.
        ended: exit code and what it printed.
        copy: where it ran.
        words: what has to be said by a command that may not end well; none, if it has to.
        more: what else is wrong.
    """
    code, output = ended
    lines = [line.strip() for line in output.splitlines() if line.strip()] or [""]
    found = re.search(words, output) if words else None
    said = output[found.start() :].splitlines()[0] if found else lines[-1]
    wrong = [more, copy.lost(), copy.left()]
    if words is None and code:
        wrong.append("failed")
    if words is not None and not code:
        wrong.append("ended as if nothing had happened")
    if words and not found:
        wrong.append("no word of it")
    # venv, pip, and a Python that Ctrl-C finds importing have tracebacks of their own.
    importing = "KeyboardInterrupt" in output and "in main" not in output
    if "Traceback (most recent" in output and command not in INSTALLING and not importing:
        wrong.append("a traceback")
    if any(wrong):
        print(f"--- {fault}, {command}:\n{output[-6000:]}", file=sys.stderr, flush=True)
    said = said.replace(str(copy.folder), "…")[:100]
    return Row(fault, command, code, said, "; ".join(filter(None, wrong)))


def again(fault: str, command: str, copy: Copy) -> Row:
    """The row of the same command, without the fault."""
    ended = copy.start(COMMANDS[command]).end()
    if command in INSTALLING and ended[0] and "rm -r .venv" in ended[1]:
        shutil.rmtree(copy.folder / ".venv")
        fault, ended = f"{fault}, .venv removed as told", copy.start(COMMANDS[command]).end()
    return judged(f"{fault}: then again", command, ended, copy)


# Faults


@contextmanager
def disk(parent: Path) -> Iterator[Path]:
    """A file system of its own in a folder."""
    parent.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "none", parent], check=True)
    try:
        yield parent
    finally:
        subprocess.run(["umount", "--lazy", parent], check=True)


ROOM = {"html": (8, 300), "epub": (500,), "train": (8, 60), "install": (8, 20_000)}
"""How many KB are left for a command, to fail at once or later."""


def full_disk(small: Path, place: Path, command: str) -> Iterator[Row]:
    """A disk on which some kilobytes are left."""
    for room in ROOM.get(command, (8,)):
        fault = f"disk with {room} KB left"
        with disk(place.with_name(f"{place.name}-{room}")) as folder:
            copy = Copy(small, folder / "copy", command)
            left = shutil.disk_usage(folder).free - room * 1024
            with (folder / "filler").open("wb") as filler:
                filler.write(bytes(left))
            ended = copy.start(COMMANDS[command]).end()
            yield judged(fault, command, ended, copy, "No space left on device|is the disk full")
            (folder / "filler").unlink()
            yield again(fault, command, copy)


def read_only(small: Path, place: Path, command: str) -> Iterator[Row]:
    """A disk that can only be read."""
    with disk(place) as folder:
        copy = Copy(small, folder / "copy", command)
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        ended = copy.start(COMMANDS[command]).end()
        yield judged("read-only checkout", command, ended, copy, "Read-only file system")
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
        yield again("read-only checkout", command, copy)


def clock_back(small: Path, place: Path, command: str) -> Iterator[Row]:
    """An hour ahead when it was built, then right; and the other way round."""
    copy = Copy(small, place, command)
    first = copy.start(COMMANDS[command]).end()
    assert first[0] == 0, first[1]
    future = time.time() + 3600
    if command == "install":
        os.utime(copy.folder / "requirements.txt", (future, future))
        ended = copy.start(COMMANDS[command]).end()
        said = "" if "in the future" in ended[1] else "no word of it"
        yield judged("clock set back, then make", command, ended, copy, more=said)
        os.utime(copy.folder / "requirements.txt")
        os.utime(copy.folder / ".venv/installed", (future, future))
        ended = copy.start(COMMANDS[command]).end()
        said = "" if "in the future" in ended[1] else "no word of it"
        yield judged("clock set back, requirements edited", command, ended, copy, more=said)
        return
    for path in copy.folder.rglob("*"):
        os.utime(path, (future, future), follow_symlinks=False)
    chapter = copy.folder / "chapters/01_small.ipynb"
    text = chapter.read_text()
    chapter.write_text(text.replace("It is 42.]", "It is surely 42.]"))
    copy.before = copy.files()
    ended = copy.start(COMMANDS[command]).end()
    page = (copy.folder / "_build/html/chapters/01_small.html").read_text()
    stale = "" if "It is surely 42." in page else "the page is the old one"
    yield judged("clock set back, chapter edited", command, ended, copy, more=stale)


def two_at_once(small: Path, place: Path, command: str) -> Iterator[Row]:
    """The same command twice in one checkout."""
    copy = Copy(small, place, command)
    runs = [copy.start(COMMANDS[command]) for _ in range(2)]
    ended = sorted(run.end() for run in runs)
    fault = "two at once"
    yield judged(f"{fault}: one", command, ended[0], copy)
    words = "another (make|command) .*" if ended[1][0] else None
    yield judged(f"{fault}: the other", command, ended[1], copy, words)
    yield again(fault, command, copy)


SECONDS_OF: dict[str, float] = {}
"""How long some commands take here."""
LENGTHS = {"pdf": 2.0, "install": 0.5, "train": 0.7}
"""How long a command takes, where `chapters` takes 1."""


def interrupt(run: Run) -> None:
    """Ctrl-C."""
    os.killpg(run.process.pid, signal.SIGINT)


def kill(run: Run) -> None:
    """``kill -9``."""
    os.killpg(run.process.pid, signal.SIGKILL)


def kill_main(run: Run) -> None:
    """The first process below make that is no shell."""
    make = psutil.Process(run.process.pid)
    below = [each for each in make.children(recursive=True) if each.name() not in ("sh", "bash")]
    (below or [make])[0].kill()


def interrupted(small: Path, place: Path, command: str) -> Iterator[Row]:
    """Three times at a random moment; then it is left alone."""
    copy = Copy(small, place, command)
    for name, how, words in (
        ("Ctrl-C", interrupt, "(?i)stopped|interrupt|aborted"),
        ("kill -9 of all", kill, ""),
        ("kill -9 of one", kill_main, "Killed"),
    ):
        if command == "train" and how is kill_main:
            continue  # it is one process
        moment = random.uniform(0.1, LENGTHS.get(command, 1) * SECONDS_OF["chapters"])
        run = copy.start(COMMANDS[command])
        with suppress(subprocess.TimeoutExpired):
            run.process.wait(moment)
        fault = f"{name} after {moment:.1f} s"
        if run.process.poll() is None:
            how(run)
            code, said = run.end()
            row = judged(fault, command, (code, said), copy, words)
        else:
            row = judged(f"{fault}: too late", command, run.end(), copy)
        yield row
    yield again("interrupted", command, copy)


def environment(name: str, changes: dict[str, str | None]) -> Callable[..., Iterator[Row]]:
    """A fault that other environment variables make."""

    def fault(small: Path, place: Path, command: str) -> Iterator[Row]:
        copy = Copy(small, place, command)
        ended = copy.start(COMMANDS[command], changes).end()
        chapter = Path("chapters/01_small.ipynb")
        other = "" if copy.files()[chapter] == copy.before[chapter] else "other outputs"
        yield judged(name, command, ended, copy, more=other)

    fault.__name__ = name.replace(" ", "_")
    return fault


no_home = environment("no home", {"HOME": "/dev/null/home"})
unset_home = environment("HOME unset", {"HOME": None})
ASCII = {"LC_ALL": "C", "LANG": None, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
no_locale = environment("no locale", ASCII)
ascii_output = environment("output in ASCII", ASCII | {"PYTHONIOENCODING": "ascii"})


def odd_path(small: Path, place: Path, command: str) -> Iterator[Row]:
    """A folder with a space, quotes, and letters of other alphabets in its name."""
    copy = Copy(small, place / "a b" / "é ü'\"#%", command)
    yield judged("odd path", command, copy.start(COMMANDS[command]).end(), copy)


def served(small: Path, place: Path, command: str) -> Iterator[Row]:
    """``make serve`` from such a folder."""
    copy = Copy(small, place / "a b" / "é ü'\"#%", command)
    (copy.folder / "_build/html").mkdir(parents=True)
    (copy.folder / "_build/html/index.html").write_text("read")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run, content = copy.start(f"make serve PORT={port}"), ""
    for _ in range(100):
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
            content = page.read().decode()
            break
        time.sleep(0.1)
    second = copy.start(f"make serve PORT={port}").end()
    interrupt(run)
    ended = run.end()
    yield judged(
        "odd path, Ctrl-C", command, ended, copy, "(?i)interrupt", "" if content else "no page"
    )
    yield judged("two at once: the other", command, second, copy, "in use")


EVERY = ["book", "html", "chapters", "studies", "claims", "epub", "slides", "pdf"]
EVERY += ["install", "wheel", "train"]  # `make lock` needs a network
TABLE: list[tuple[Callable[..., Iterator[Row]], list[str]]] = [
    (full_disk, ["html", "chapters", "studies", "claims", "epub", "install", "train"]),
    (read_only, ["html", "chapters", "studies", "claims", "install", "train"]),
    (clock_back, ["html", "book", "install"]),
    (two_at_once, ["html", "chapters", "studies", "claims", "slides", "install", "train"]),
    (interrupted, EVERY),
    (no_home, ["html", "chapters", "claims", "train", "import"]),
    (unset_home, ["chapters", "import"]),
    (no_locale, ["html", "chapters", "claims", "train", "import"]),
    (ascii_output, ["html", "chapters", "studies"]),
    (
        odd_path,
        ["html", "chapters", "studies", "slides", "epub", "pdf", "install", "wheel", "train"],
    ),
    (served, ["serve"]),
]
NEEDS_MOUNT = (full_disk, read_only)


def main(only: list[str]) -> int:
    """Print the table; 1 if a row does not hold."""
    may_mount = "ATTNBOOK_MAY_MOUNT" in os.environ
    jobs = [(fault, command) for fault, commands in TABLE for command in commands]
    jobs = [(f, c) for f, c in jobs if not only or {f.__name__, c, f"{f.__name__}:{c}"} & {*only}]
    wrong = 0
    print("| Fault | Command | Said | Exit | Nothing lost |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "small")
        make_small(small)
        stamp(small)
        first = Copy(small, Path(folder, "first"), "")
        for command in ("studies", "chapters"):
            run = first.start(COMMANDS[command])
            code, said = run.end()
            assert code == 0, said
            SECONDS_OF[command] = time.monotonic() - run.begun
        shutil.rmtree(first.folder / "_build")
        (first.folder / "chapters/held.json").write_text("{}\n")
        stamp(first.folder)

        def rows(job: tuple[int, tuple[Callable[..., Iterator[Row]], str]]) -> list[Row]:
            number, (fault, command) = job
            if fault in NEEDS_MOUNT and not may_mount:
                return [
                    Row(fault.__name__, command, "–", "not tried: no mount is allowed here", "")
                ]
            return [*fault(first.folder, Path(folder, str(number)), command)]

        with ThreadPoolExecutor(2) as pool:
            for found in pool.map(rows, enumerate(jobs)):
                for row in found:
                    print(row, flush=True)
                    wrong += bool(row.wrong)
    print(f"\n{wrong} rows do not hold" if wrong else "\nAll rows hold")
    return min(wrong, 1)


if __name__ == "__main__":
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if "ATTNBOOK_MAY_MOUNT" not in os.environ and shutil.which("unshare"):
        allowed = subprocess.run([*unshare, "true"], check=False).returncode == 0
        if allowed:
            os.environ["ATTNBOOK_MAY_MOUNT"] = "1"
            os.execvp("unshare", [*unshare, sys.executable, *sys.argv])
    sys.exit(main(sys.argv[1:]))
