"""One, two and four processes under torchrun; what kills one of them."""

import os
import signal
import time
from typing import Any

import pytest
import torch
from spawned import SECONDS, different, ended, results, started, worker

CASES: list[dict[str, Any]] = [
    {"dtype": "float64"},
    {"dtype": "float32"},
    {"dtype": "float32", "config": {"bfloat16": True}},
    {"fast": True},
]


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_bits(tmp_path):
    one, two = (results(tmp_path / str(n), *CASES, n_processes=n) for n in (1, 2))
    exact = {name for name in one if name[0] in "012"}
    assert len(exact) > 60
    assert not exact & {*different(one, two)}  # four go on from two below
    # Fast: another order of additions, and so other bits, but the same training.
    fast = set(one) - exact
    assert fast & set(different(one, two))
    for name in fast:
        torch.testing.assert_close(one[name], two[name], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_killed_process_ends_all_and_another_number_resumes(tmp_path):
    case: dict[str, Any] = {"save_every": 1, "pause": 0.02, "config": {"steps": 60}}
    uninterrupted = results(tmp_path / "uninterrupted", case)
    resumed = {**case, "folder": str(tmp_path / "run")}
    with started(worker(tmp_path / "out", resumed), 2) as process:
        checkpoint = tmp_path / "run/checkpoint.safetensors"
        deadline = time.monotonic() + SECONDS
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(int((tmp_path / "out.pid.1").read_text()), signal.SIGKILL)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert "SIGKILL" in errors
    assert not (tmp_path / "out").exists()
    assert not different(uninterrupted, results(tmp_path / "out", resumed, n_processes=4))


@pytest.mark.slow
def test_compiled_training_is_the_same_to_rounding(tmp_path):
    # In a process of its own: the tests' shape checks can't be compiled.
    case: dict[str, Any] = {"config": {"steps": 3}, "dropout": 0.0}
    found = results(tmp_path / "out", case, {**case, "compile": True})
    plain = {name[2:]: tensor for name, tensor in found.items() if name[0] == "0"}
    for name, tensor in plain.items():
        torch.testing.assert_close(found[f"1.{name}"], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_error_in_one_process_ends_all_and_is_shown(tmp_path):
    code, errors = ended(worker(tmp_path / "out", {"fail_at": 3}), 2)
    assert code != 0
    assert "RuntimeError: the data ended too soon" in errors
