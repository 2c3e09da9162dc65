"""python -m attnbook.train and attnbook.generate, as a reader types them."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from spawned import SECONDS, different, ended, started

from attnbook import LanguageModel, ModelConfig, files, generate, train
from attnbook.tasks import bpe_tokenizer

SMALL = [
    *("--vocab-size=280", "--length=16", "--d-model=16", "--n-heads=2", "--n-layers=1"),
    *("--batch=2", "--learning-rate=0.01", "--every=10", "--prompt=to"),
]
TEXT = "to be or not to be, that is the question: whether it is nobler in the mind to suffer\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT * 20)
    return str(tmp_path / "text.txt")


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def read(path: Path) -> dict[str, torch.Tensor]:
    return files.read(path)[0]


def test_training_shows_its_progress_and_the_model_writes(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    train.main(["--text", text, "--out", run, "--steps", "60", *SMALL])
    shown = capsys.readouterr().out
    assert shown.count("nats per token") == 6
    assert shown.count("\nto") >= 6
    assert f"60. The model of that step writes: python -m attnbook.generate {run} to" in shown
    losses = read(tmp_path / "run/checkpoint.safetensors")["history.losses"]
    assert losses[-1] < losses[0] - 2

    generate.main([run, "to be", "--tokens", "40", "--seed", "1"])
    written = capsys.readouterr().out
    assert written.startswith("to be")
    assert len(written) > 40
    generate.main([run, "--tokens", "40", "--seed", "1", "to be"])
    assert capsys.readouterr().out == written
    generate.main([run, "to be", "--tokens", "40", "--seed", "1", "--top-p", "0.01"])
    likeliest = capsys.readouterr().out
    generate.main([run, "to be", "--tokens", "40", "--temperature", "0"])
    assert capsys.readouterr().out == likeliest != written


def test_model_that_writes_is_the_one_with_the_lowest_held_out_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 6 + "Something else comes at last; it is held out.\n")
    command = ["--text", str(tmp_path / "text.txt"), "--out", str(tmp_path), "--steps", "60"]
    train.main([*command, *SMALL])
    metadata = files.read(tmp_path / "checkpoint.safetensors")[1]
    evaluations = {int(n): loss for n, loss in json.loads(metadata["evaluations"]).items()}
    lowest = min(evaluations, key=lambda step: evaluations[step])
    assert 10 <= lowest < 60
    assert f"it was lowest after {lowest}\n" in capsys.readouterr().out
    best, _ = generate.load(tmp_path)
    last, _ = generate.load(tmp_path, last=True)
    assert different(last.state_dict(), best.state_dict())
    checkpoint = read(tmp_path / "checkpoint.safetensors")
    assert last.embedding.weight.equal(checkpoint["model.embedding.weight"])

    again = ["--text", command[1], "--out", str(tmp_path / "again"), "--steps", "60", *SMALL]
    train.main([*again, "--every", str(lowest)])
    same, _ = generate.load(tmp_path / "again")
    assert not different(best.state_dict(), same.state_dict())


@pytest.mark.slow
def test_killed_training_goes_on_with_the_same_command_under_torchrun(
    tmp_path: Path, text: str
) -> None:
    command = ["-m", "attnbook.train", "--text", text, "--steps", "100", *SMALL]
    assert ended([*command, "--out", str(tmp_path / "whole")])[0] == 0
    checkpoint = tmp_path / "killed/checkpoint.safetensors"
    command += ["--out", str(tmp_path / "killed")]
    with started([*command, "--every", "1"]) as process:  # another pace, so that it can be killed
        wait_for(checkpoint, process)
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    assert len(read(checkpoint)["history.losses"]) < 100
    code, errors = ended(command, 2)
    assert code == 0, errors
    for file in ("checkpoint.safetensors", "best.safetensors"):
        assert not different(read(tmp_path / "killed" / file), read(tmp_path / "whole" / file))


@pytest.mark.slow
@pytest.mark.parametrize("n_processes", [1, 2])
def test_interrupted_training_saves_its_last_step(
    tmp_path: Path, text: str, n_processes: int
) -> None:
    command = ["-m", "attnbook.train", "--text", text, "--out", str(tmp_path), *SMALL]
    command += ["--every", "100000", "--steps", "100000"]
    with started(command, n_processes) as process:
        wait_for(tmp_path / "checkpoint.safetensors", process)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    n_steps = len(read(tmp_path / "checkpoint.safetensors")["history.losses"])
    assert f"interrupted after {n_steps} steps; the same command goes on from there" in errors
    assert process.returncode == 1
    with pytest.raises(SystemExit, match=r"no model yet: train keeps the first after 100000 steps"):
        generate.main([str(tmp_path)])
    generate.main([str(tmp_path), "--last"])


def test_what_contradicts_the_run_is_refused(tmp_path: Path, text: str) -> None:
    run = ["--out", str(tmp_path / "run"), "--text", text]
    train.main([*run, *SMALL, "--steps", "1"])
    with pytest.raises(SystemExit, match=r"was begun with n_layers 1, got 2; take another folder"):
        train.main([*run, "--n-layers", "2"])
    Path(text).write_text(TEXT * 30)
    with pytest.raises(SystemExit, match=r"run was begun with another text than that of .*text.tx"):
        train.main(run)


def test_run_goes_on_with_a_text_that_moved(tmp_path: Path, text: str) -> None:
    train.main(["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"])
    moved = shutil.move(text, tmp_path / "moved.txt")
    train.main(["--out", str(tmp_path / "run"), "--text", str(moved)])
    assert train.make_model(tmp_path / "run")[2].text == str(moved)


def test_what_failed_before_its_first_checkpoint_is_begun_anew(tmp_path: Path, text: str) -> None:
    run = ["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"]
    for wrong, message in (
        (["--length", "1000"], r"of 1000 tokens need .* take a longer text or another --length"),
        (["--n-heads", "5"], "n_heads must divide d_model, got 5 heads for 16"),
    ):
        with pytest.raises(SystemExit, match=f"error: .*{message}"):
            train.main([*run, *wrong])
    train.main(run)


def test_settings_come_from_a_file_and_from_options(tmp_path: Path, text: str) -> None:
    train.main(["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"])
    config = ["--config", str(tmp_path / "run/settings.json")]
    train.main(["--out", str(tmp_path / "again"), *config, "--steps", "2"])
    settings = train.make_model(tmp_path / "again")[2]
    assert (settings.steps, settings.d_model, settings.text) == (2, 16, text)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"layers": 3}', "unknown settings: layers; there are text, vocab_size, length"),
        ('{"steps": "3"}', "steps must be of type int, got '3'"),
        ('{"steps": true}', "steps must be of type int, got True"),
        ('{"precision": "half"}', "precision must be 'float32', .* or 'bfloat16', got 'half'"),
        ('{"dropout": 1}', "dropout must be at least 0 and below 1, got 1"),
        ('{"every": 0}', "every must be at least 1, got 0"),
        ('{"length": 1}', "length must be at least 2, got 1"),
        ('{"seed": -1}', "seed must not be negative, got -1"),
        ('{"steps"', "expected JSON in .*wrong.json, got: Expecting"),
        ("[3]", r"expected a JSON object of settings in .*wrong.json, got \[3\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(SystemExit, match=f"error: {message}"):
        train.main(["--out", str(tmp_path / "b"), "--config", str(tmp_path / "wrong.json")])
    assert not (tmp_path / "b").exists()


def test_loss_that_is_not_finite_says_what_helps(tmp_path: Path, text: str) -> None:
    run = ["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "9"]
    with pytest.raises(SystemExit, match=r"error: .*take a smaller --learning-rate and another fo"):
        train.main([*run, "--learning-rate", "1e30"])


def test_text_comes_in_pieces_that_do_not_cut_a_letter() -> None:
    tokenizer = bpe_tokenizer("é漢🙂" * 20, 256)  # bytes: pieces end in a letter
    config = ModelConfig(tokenizer.get_vocab_size(), 16, 2, 1, max_tokens=10)
    draws = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"temperature": 3.0, "top_k": None, "generator": draws}
    pieces = list(train.write(LanguageModel(config), tokenizer, "🙂", 100, **options))
    assert pieces[0] == "🙂"
    assert len(pieces) > 15
    ids = iter(range(256))

    class Fixed(LanguageModel):
        def generate(self, seen: torch.Tensor, n_tokens: int, **options: Any) -> torch.Tensor:
            more = [following[next(ids)] for _ in range(n_tokens)]
            return torch.cat([seen, torch.tensor([more])], dim=1)

    following = tokenizer.encode("é漢🙂" * 4).ids
    pieces = list(train.write(Fixed(config), tokenizer, "", len(following)))
    assert pieces[0] == ""
    assert "".join(pieces) == "é漢🙂" * 4
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--top-k=0", "--top-k must be at least 1, got 0"),
        ("--top-p=1.5", "--top-p must be above 0, at most 1, got 1.5"),
        ("--temperature=-1", "--temperature must be at least 0, got -1.0"),
        ("--tokens=-1", "--tokens must be at least 0, got -1"),
    ],
)
def test_options_that_cannot_be_are_refused(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        generate.main(["run", option])
    assert message in capsys.readouterr().err


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"expected a folder that attnbook.train made, got /"):
        generate.main([str(tmp_path), "to be"])
