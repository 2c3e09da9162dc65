"""Starts workers, alone or under torchrun, on this machine and bounded in time."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbook import files

ROOT = Path(__file__).parents[2]
SECONDS = 300


@contextmanager
def started(command: list[str], n_processes: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A Python process, or so many under torchrun, that does not outlive the test."""
    python = [sys.executable, "-W", "ignore"]
    if n_processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        python += ["-m", "torch.distributed.run", "--nproc-per-node", str(n_processes)]
        python += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    one_machine = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*python, *command],
        env={**os.environ, **one_machine, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # torchrun passes it on
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def ended(command: list[str], n_processes: int = 1) -> tuple[int, str]:
    """Return code and standard error."""
    with started(command, n_processes) as process:
        _, errors = process.communicate(timeout=SECONDS)
        return process.returncode, errors


def worker(out: Path, *cases: dict[str, Any]) -> list[str]:
    """The command that runs tests/training/worker.py."""
    return [str(Path(__file__).with_name("worker.py")), str(out), *map(json.dumps, cases)]


def results(out: Path, *cases: dict[str, Any], n_processes: int = 1) -> dict[str, Tensor]:
    """Parameters and losses of each case."""
    code, errors = ended(worker(out, *cases), n_processes)
    assert code == 0, errors
    return files.read(out)[0]


def different(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that are not the same to the last bit."""
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]
