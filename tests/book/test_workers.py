"""Rows and chapters on a Dask cluster: the same as here, whatever becomes of a worker."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen

import nbformat
import pytest
from distributed import Client, LocalCluster
from nbformat.v4 import new_code_cell, new_notebook

from book.evidence.workers import workers

STUDY = '''"""Where does a row run?"""

import os
import random
import time

SEEDS = {"short": 3, "long": 4}


def run(seed, case):
    """Note who begins, wait, draw."""
    with open("began", "a") as file:
        file.write(f"{case} {seed} {os.getpid()}\\n")
    time.sleep(1 if case == "long" else 0)
    return {"drawn": random.Random(seed).random()}
'''
CHAPTER = """from book import claim, seeds, study
drawn = study('where')['short', 'drawn']
claim('It is below one', drawn, label='drawn', at_most=1)
claim('It is a seed', seeds(1)[0], label='seed', at_least=1000)"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two processes, in a checkout with one study and one chapter."""
    root = tmp_path_factory.mktemp("checkout")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
        patch.syspath_prepend(root)  # workers take it over
        patch.delenv("ATTNBOOK_SEED", raising=False)
        for folder in ("studies", "chapters"):
            Path(folder).mkdir()
        Path("studies/__init__.py").touch()
        Path("studies/where.py").write_text(STUDY)
        Path("_toc.yml").write_text("format: jb-book\nroot: chapters/one\n")
        Path("requirements.txt").touch()
        cell = new_code_cell(CHAPTER, id="code-0")
        nbformat.write(new_notebook(cells=[cell]), "chapters/one.ipynb")
        with LocalCluster(2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as found:
            yield found


def start(*arguments: str, scheduler: str = "") -> Popen[str]:
    command = [sys.executable, "-m", "book.press.build", *arguments]
    env = os.environ | {"SCHEDULER": scheduler, "WORKERS": "1"}
    return Popen(command, env=env, stdout=PIPE, stderr=PIPE, text=True)


def rows(path: str) -> list[tuple[str, int, dict[str, float]]]:
    record = json.loads(Path(path).read_text())
    return [(row["case"], row["seed"], row["numbers"]) for row in record["rows"]]


def test_record_is_the_same_where_a_worker_was_killed(cluster):
    with start("studies") as here:
        assert here.wait() == 0, here.stderr.read()
    without = rows("studies/where.json")
    Path("studies/where.json").unlink()
    Path("began").unlink()
    with start("studies", scheduler=cluster.scheduler_address) as process:
        deadline = time.monotonic() + 240
        while not (began := [*Path().glob("began")]) or "long" not in began[0].read_text():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        case, seed, worker = Path("began").read_text().splitlines()[-1].split()
        os.kill(int(worker), signal.SIGKILL)
        said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert f"2 workers; dashboard http://127.0.0.1:{cluster.dashboard_link.split(':')[-1]}" in said
    assert rows("studies/where.json") == without
    begun = [line.split()[:2] for line in Path("began").read_text().splitlines()]
    assert begun.count([case, seed]) == 2
    assert len({line.split()[2] for line in Path("began").read_text().splitlines()}) >= 2
    made = json.loads(Path("studies/where.json").read_text())["made"]
    assert made["processor"]
    assert "by" not in json.loads(Path("studies/where.json").read_text())["rows"][0]


def test_claims_are_tried_there_with_their_studies(cluster):
    tried = ["claims", "--seeds", "2"]
    with start("studies", scheduler=cluster.scheduler_address) as process:
        assert process.wait() == 0, process.stderr.read()
    with start(*tried, scheduler=cluster.scheduler_address) as process:
        said, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "✓ 2/2  one  drawn: It is below one" in said
    assert "2 of 2 claims held for every seed" in said
    counted = json.loads(Path("chapters/held.json").read_text())["one"].values()
    assert [each["seeds"] for each in counted] == [[1, 2]] * len(counted)
    assert ["studies/where.json"] in [each["made_anew"] for each in counted]


@pytest.mark.usefixtures("cluster")  # its checkout
def test_without_workers_it_says_what_it_waits_for():
    Path("began").unlink(missing_ok=True)
    with LocalCluster(1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as own:
        own.scale(0)
        wait_until(lambda: not own.scheduler.workers)
        waits = f"waiting for a worker: make worker SCHEDULER={own.scheduler_address}\n"
        with start("studies", "where", scheduler=own.scheduler_address) as process:
            assert waits in iter(process.stdout.readline, "")
            own.scale(1)
            wait_until(Path("began").exists)
            own.scale(0)
            assert waits in iter(process.stdout.readline, "")
            own.scale(1)
            _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


def test_result_is_kept_whose_worker_leaves_when_it_was_fetched(monkeypatch):
    fetch = Client._gather

    async def fetch_and_lose(self, futures, *args, **keywords):
        found = await fetch(self, futures, *args, **keywords)
        for future in futures:
            self._handle_lost_data(future.key)
        return found

    monkeypatch.setattr(Client, "_gather", fetch_and_lose)
    with LocalCluster(1, processes=False, dashboard_address="127.0.0.1:0") as own:
        monkeypatch.setenv("SCHEDULER", own.scheduler_address)
        with workers(ThreadPoolExecutor) as pool:
            assert pool.submit(divmod, 7, 2).result(timeout=60) == (3, 1)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_worker_with_other_code_is_named(cluster):
    """The workers have read the study in the tests above."""
    Path("studies/where.py").write_text(STUDY.replace("else 0", "else 0.1"))
    with start("studies", scheduler=cluster.scheduler_address) as process:
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "has other code in" in errors
    assert "(studies.where): give it this checkout" in errors


def test_scheduler_that_is_not_there_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    with start("studies", "where", scheduler=address) as process:
        _, errors = process.communicate(timeout=240)
    assert process.returncode == 1
    assert f"no scheduler answers at {address}" in errors
    assert "Traceback" not in errors
