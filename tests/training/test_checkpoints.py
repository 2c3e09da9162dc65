"""What is killed goes on, bit for bit; what can't be read or written is said."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from spawned import SECONDS, different, results, started, worker
from torch import nn
from worker import MODEL, padded_batch, run

from attnbook import Encoder, LanguageModel, files
from attnbook.training import History, TrainingConfig, load_model, train


@pytest.mark.slow
def test_killed_at_any_moment_and_run_again_gives_the_same_bits(tmp_path):
    # Saving at every step takes more time than the step, so many kills fall into a save.
    case: dict[str, Any] = {"dtype": "float32", "save_every": 1, "config": {"steps": 120}}
    uninterrupted = results(tmp_path / "uninterrupted", case)
    resumed = {**case, "folder": str(tmp_path / "run"), "pause": 0.005}
    checkpoint, moments, steps = tmp_path / "run/checkpoint.safetensors", random.Random(1), []
    for _ in range(3):
        with started(worker(tmp_path / "out", resumed)) as process:
            before = checkpoint.stat().st_ino if checkpoint.exists() else None
            deadline = time.monotonic() + SECONDS
            while not checkpoint.exists() or checkpoint.stat().st_ino == before:
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.2))
            process.kill()
            process.wait(SECONDS)
        steps.append(len(files.read(checkpoint)[0]["history.losses"]))
    assert steps == sorted(steps)
    assert 0 < steps[-1] < 120
    assert not different(uninterrupted, results(tmp_path / "out", resumed))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint.safetensors"]


@pytest.mark.slow
def test_resumed_training_has_the_whole_history(tmp_path):
    options: dict[str, Any] = {
        "evaluate": lambda model: model.loss(*padded_batch(torch.Generator())).item(),
        "evaluate_every": 5,
    }
    whole, _ = run(**options)
    with pytest.raises(RuntimeError, match="ended too soon"):
        run(**options, folder=tmp_path, save_every=4, fail_at=13 * 4)
    assert len(files.read(tmp_path / "checkpoint.safetensors")[0]["history.losses"]) == 12
    resumed, model = run(**options, folder=tmp_path, save_every=4)
    assert resumed == whole
    again = LanguageModel(MODEL)
    load_model(tmp_path, again)
    assert not different(model.state_dict(), again.state_dict())


@pytest.mark.usefixtures("without_shape_checks")
def test_settings_may_be_numpys_numbers(tmp_path):
    def trained(*settings: Any) -> History:
        config = TrainingConfig(*settings)
        return train(LanguageModel(MODEL), padded_batch, config, folder=tmp_path)

    first = trained(np.int64(2), np.float32(0.5))
    assert len(first.losses) == 2
    assert trained(2, 0.5) == first


def test_what_is_complete_or_has_stopped_is_not_trained_further(tmp_path):
    results = iter([0.1, 0.7])
    options: dict[str, Any] = {
        "evaluate_every": 3,
        "stop": lambda history: history.first_step_with(0.5) is not None,
        "folder": tmp_path,
    }
    history, _ = run(**options, evaluate=lambda model: next(results))
    assert history.evaluations == {3: 0.1, 6: 0.7}
    assert run(**options, evaluate=lambda model: 0.0)[0] == history


def test_constant_rate_may_go_on_for_more_steps(tmp_path):
    whole, _ = run(config={"schedule": "constant", "steps": 9})
    run(config={"schedule": "constant", "steps": 5}, folder=tmp_path)
    assert run(config={"schedule": "constant", "steps": 9}, folder=tmp_path)[0] == whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"steps": 21}}, "its steps is 20, and here it is 21"),
        ({"config": {"seed": 1}}, "its seed is 7, and here it is 1"),
        ({"dtype": "float32"}, r"is \(11, 16\) torch.float64, and here it is \(11, 16\) torch.flo"),
    ],
)
def test_checkpoint_of_another_training_is_refused(tmp_path, change, message):
    run(folder=tmp_path)
    with pytest.raises(
        ValueError, match=f"checkpoint.safetensors is of another training: .*{message}"
    ):
        run(**change, folder=tmp_path)


def test_checkpoint_of_another_model_of_the_same_shapes_is_refused(tmp_path):
    run(folder=tmp_path)
    with pytest.raises(ValueError, match=r"its model is LanguageModel.*, and here it is Encoder"):
        load_model(tmp_path, Encoder(MODEL))


@pytest.mark.parametrize("frozen", [(0,), (1, 2)])
@pytest.mark.parametrize("is_frozen_first", [True, False])
def test_checkpoint_with_other_parameters_trained_is_refused(tmp_path, frozen, is_frozen_first):
    stack(2, tmp_path, frozen if is_frozen_first else ())
    there, here = ("frozen", "trained") if is_frozen_first else ("trained", "frozen")
    message = f"its {frozen[0]}.weight is {there}, and here it is {here}"
    with pytest.raises(ValueError, match=message):
        stack(4, tmp_path, () if is_frozen_first else frozen)


def test_frozen_parameters_stay_and_the_others_resume(tmp_path):
    (whole, model), _ = stack(4, None, (1,)), stack(2, tmp_path, (1,))
    resumed, again = stack(4, tmp_path, (1,))
    assert resumed == whole
    assert not different(model.state_dict(), again.state_dict())
    assert different(model.state_dict(), stack(4, None, ())[1].state_dict())
    moments = files.read(tmp_path / "checkpoint.safetensors")[0]
    assert {"adam.0.weight.exp_avg", "adam.2.bias.exp_avg_sq"} <= moments.keys()
    assert not any(name.startswith("adam.1.") for name in moments)
    load_model(tmp_path, stack(1, None, ())[1])  # which parameters were trained does not matter


def stack(n_steps: int, folder: Path | None, frozen: tuple[int, ...]) -> tuple[History, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    for layer in frozen:
        model[layer].requires_grad_(False)
    history = train(
        model,
        lambda generator: (torch.randn(8, 4, generator=generator),),
        TrainingConfig(n_steps, 0.01, weight_decay=0.1),
        loss=lambda model, x: ((model(x) - x).square().sum(), len(x)),
        folder=folder,
    )
    return history, model


def test_file_that_is_no_checkpoint_of_this_version_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    files.write(path, {}, {"format": "attnbook training 1"})
    with pytest.raises(ValueError, match=r"format 'attnbook training 1', .*; another version of"):
        run(folder=tmp_path)
    path.write_bytes(b"half a f")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        run(folder=tmp_path)


def test_folder_that_cannot_be_written_is_found_at_the_first_step(tmp_path):
    (tmp_path / "run").touch()  # root may write into any folder, but not below a file
    with pytest.raises(
        OSError, match=r"after 1 steps can't be written \(.*\); none is: .*run/chec"
    ):
        run(folder=tmp_path / "run")


def test_nothing_is_written_before_a_step_has_worked(tmp_path):
    with pytest.raises(RuntimeError, match="ended too soon"):
        run(folder=tmp_path / "run", fail_at=2)
    assert not (tmp_path / "run").exists()


FULL = """
import json, resource, signal, sys, torch
from worker import run
torch.set_num_threads(1)
run(folder=sys.argv[1], save_every=5, config={"steps": 10, "schedule": "constant"})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
run(folder=sys.argv[1], save_every=5, config={"steps": 20, "schedule": "constant"})
"""


@pytest.mark.slow
def test_full_disk_leaves_the_last_checkpoint(tmp_path):
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    message = (
        "the checkpoint after 11 steps can't be written (File too large); the last one is kept"
    )
    assert message in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    tensors, metadata = files.read(tmp_path / "checkpoint.safetensors")
    assert len(tensors["history.losses"]) == 10
    assert json.loads(metadata["config"])["steps"] == 10
    torch.set_default_dtype(torch.float32)
    longer: dict[str, Any] = {"config": {"steps": 20, "schedule": "constant"}}
    assert run(**longer, folder=tmp_path)[0] == run(**longer)[0]


def test_any_module_with_a_loss_function_resumes(tmp_path):
    def regression(n_steps: int, folder: Path | None) -> tuple[History, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        history = train(
            model,
            lambda generator: (torch.randn(6, 3, generator=generator),),
            TrainingConfig(n_steps, 0.01),
            loss=lambda model, x: ((model(x) - x.sum(1, keepdim=True)).square().sum(), len(x)),
            folder=folder,
        )
        return history, model

    (whole, model), _ = regression(12, None), regression(5, tmp_path)
    resumed, again = regression(12, tmp_path)
    assert resumed == whole
    assert not different(model.state_dict(), again.state_dict())
