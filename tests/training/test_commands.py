"""python -m attnbook.train and attnbook.generate, as a reader types them."""

import signal
import time
from pathlib import Path

import pytest
from spawned import SECONDS, ended, started

from attnbook import files, generate, train

SMALL = [
    *("--vocab-size=280", "--length=16", "--d-model=16", "--n-heads=2", "--n-layers=1"),
    *("--warmup=5", "--batch=2", "--learning-rate=0.01", "--every=10", "--prompt=to"),
]
TEXT = "to be or not to be, that is the question: whether it is nobler in the mind to suffer\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT * 20)
    return str(tmp_path / "text.txt")


def test_training_shows_its_progress_and_the_model_writes(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    train.main(["--text", text, "--out", run, "--steps", "60", *SMALL])
    shown = capsys.readouterr().out
    assert shown.count("nats per token") == 6
    assert shown.count("\nto") >= 6
    assert "60 steps are done. Now: python -m attnbook.generate" in shown
    losses = files.read(f"{run}/checkpoint.safetensors")[0]["history.losses"]
    assert losses[-1] < losses[0] - 2

    generate.main([run, "to be", "--tokens", "40", "--seed", "1"])
    written = capsys.readouterr().out
    assert written.startswith("to be")
    assert len(written) > 40
    generate.main([run, "to be", "--tokens", "40", "--seed", "1"])
    assert capsys.readouterr().out == written


@pytest.mark.slow
def test_killed_training_goes_on_with_the_same_command_under_torchrun(
    tmp_path: Path, text: str
) -> None:
    command = ["-m", "attnbook.train", "--text", text, "--steps", "100", *SMALL]
    assert ended([*command, "--out", str(tmp_path / "whole")])[0] == 0
    checkpoint = tmp_path / "killed/checkpoint.safetensors"
    command += ["--out", str(tmp_path / "killed")]
    with started([*command, "--every", "1"]) as process:  # another pace, so that it can be killed
        deadline = time.monotonic() + SECONDS
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    assert len(files.read(checkpoint)[0]["history.losses"]) < 100
    code, errors = ended(command, 2)
    assert code == 0, errors
    killed, whole = (
        files.read(tmp_path / name / "checkpoint.safetensors")[0] for name in ("killed", "whole")
    )
    assert [name for name in whole if not whole[name].equal(killed[name])] == []


def test_what_contradicts_the_run_is_refused(tmp_path: Path, text: str) -> None:
    run = ["--out", str(tmp_path / "run"), "--text", text]
    train.main([*run, *SMALL, "--steps", "1"])
    with pytest.raises(SystemExit, match=r"was begun with n_layers 1, got 2; take another folder"):
        train.main([*run, "--n-layers", "2"])
    Path(text).write_text(TEXT * 30)
    with pytest.raises(SystemExit, match=r"error: the text has changed since .*run was begun"):
        train.main(run)


def test_settings_come_from_a_file_and_from_options(tmp_path: Path, text: str) -> None:
    train.main(["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"])
    config = ["--config", str(tmp_path / "run/settings.json")]
    train.main(["--out", str(tmp_path / "again"), *config, "--steps", "2"])
    settings = train.make_model(tmp_path / "again")[2]
    assert (settings.steps, settings.d_model, settings.text) == (2, 16, text)
    (tmp_path / "wrong.json").write_text('{"layers": 3}')
    with pytest.raises(SystemExit, match="error: unknown settings: layers"):
        train.main(["--out", str(tmp_path / "b"), "--config", str(tmp_path / "wrong.json")])


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"expected a folder that attnbook.train made, got /"):
        generate.main([str(tmp_path), "to be"])
