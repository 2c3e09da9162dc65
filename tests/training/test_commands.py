"""python -m attnbook.train and attnbook.generate, as a reader types them."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from spawned import SECONDS, different, ended, started

from attnbook import LanguageModel, ModelConfig, convert, files, generate, train
from attnbook.tasks import TextTask, bpe_tokenizer
from attnbook.train import BEST, load_run

SMALL = [
    *("--vocab-size=280", "--length=16", "--d-model=16", "--n-heads=2", "--n-layers=1"),
    *("--batch=2", "--learning-rate=0.01", "--every=10", "--prompt=to"),
]
THIRTY = [*SMALL, "--steps=30"]
TEXT = "to be or not to be, that is the question: whether it is nobler in the mind to suffer\n"


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text(TEXT * 20)
    return str(tmp_path / "text.txt")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 30 steps that nothing disturbs."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    (folder / "text.txt").write_text(TEXT * 20)
    train.main(["--text", str(folder / "text.txt"), "--out", str(folder / "run"), *THIRTY])
    return folder / "run"


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def read(path: Path) -> dict[str, torch.Tensor]:
    return files.read(path)[0]


def test_training_shows_its_progress_and_the_model_writes(tmp_path, text, capsys):
    run = str(tmp_path / "run")
    train.main(["--text", text, "--out", run, "--steps", "60", *SMALL])
    shown = capsys.readouterr().out
    assert shown.count("nats per token (a fair guess: ") == 6
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


@pytest.mark.slow
def test_model_that_writes_is_the_one_with_the_lowest_held_out_loss(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT * 6 + "Something else comes at last; it is held out.\n")
    command = ["--text", str(tmp_path / "text.txt"), "--out", str(tmp_path), "--steps", "60"]
    train.main([*command, *SMALL])
    metadata = files.read(tmp_path / "checkpoint.safetensors")[1]
    evaluations = {int(n): loss for n, loss in json.loads(metadata["evaluations"]).items()}
    lowest = min(evaluations, key=lambda step: evaluations[step])
    assert 10 <= lowest < 60
    assert f"it was lowest after {lowest}\n" in capsys.readouterr().out
    best, _ = load_run(str(tmp_path))
    last, _ = load_run(tmp_path, last=True)
    assert different(last.state_dict(), best.state_dict())
    checkpoint = read(tmp_path / "checkpoint.safetensors")
    assert last.embedding.weight.equal(checkpoint["model.embedding.weight"])

    again = ["--text", command[1], "--out", str(tmp_path / "again"), "--steps", "60", *SMALL]
    train.main([*again, "--every", str(lowest)])
    same, _ = load_run(tmp_path / "again")
    assert not different(best.state_dict(), same.state_dict())


@pytest.mark.slow
def test_killed_training_goes_on_with_the_same_command_under_torchrun(tmp_path, text):
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
def test_interrupted_training_saves_its_last_step(tmp_path, text):
    command = ["-m", "attnbook.train", "--text", text, "--out", str(tmp_path), *SMALL]
    command += ["--every", "100000", "--steps", "100000"]
    with started(command, 2) as process:
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


def test_what_contradicts_the_run_is_refused(tmp_path, text):
    run = ["--out", str(tmp_path / "run"), "--text", text]
    train.main([*run, *SMALL, "--steps", "1"])
    with pytest.raises(SystemExit, match=r"was begun with --n-layers 1, got 2; take another fold"):
        train.main([*run, "--n-layers", "2"])
    with pytest.raises(
        SystemExit, match=r"--steps 1, got 2; .* --init .*run to train its model on"
    ):
        train.main([*run, "--steps", "2"])
    Path(text).write_text(TEXT * 30)
    with pytest.raises(SystemExit, match=r"run was begun with another text than that of .*text.tx"):
        train.main(run)


def test_run_goes_on_with_a_text_that_moved(tmp_path, text):
    train.main(["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"])
    moved = shutil.move(text, tmp_path / "moved.txt")
    train.main(["--out", str(tmp_path / "run"), "--text", str(moved)])
    assert train.read_run(tmp_path / "run")[0]["text"] == str(moved)


def test_what_failed_before_its_first_checkpoint_is_begun_anew(tmp_path, text):
    run = ["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"]
    for wrong, message in (
        (["--length", "1000"], r"of 1000 tokens need .* take a longer text or another --length"),
        (["--n-heads", "5"], "--d-model must be a multiple of twice --n-heads, got 16 and 5"),
        (["--n-heads", "16"], "--d-model must be a multiple of twice --n-heads, got 16 and 16"),
        (["--batch", str(10**15)], "Storage size calculation overflowed|can't allocate memory"),
    ):
        with pytest.raises((SystemExit, RuntimeError), match=message):
            train.main([*run, *wrong])
        assert not (tmp_path / "run").exists()
    train.main(run)


def test_settings_come_from_a_file_and_from_options(tmp_path, text):
    train.main(["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "1"])
    config = ["--config", str(tmp_path / "run/settings.json")]
    train.main(["--out", str(tmp_path / "again"), *config, "--steps", "2"])
    settings = train.settings_of(train.read_run(tmp_path / "again")[0])
    assert (settings.steps, settings.d_model, settings.text) == (2, 16, text)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"layers": 3}', "unknown settings: layers; there are text, init, vocab_size"),
        ('{"steps": "3"}', "steps must be of type int, got '3'"),
        ('{"steps": true}', "steps must be of type int, got True"),
        ('{"precision": "half"}', "precision must be 'float32', .* or 'bfloat16', got 'half'"),
        ('{"dropout": 1}', "dropout must be at least 0 and below 1, got 1"),
        ('{"every": 0}', "every must be at least 1, got 0"),
        ('{"length": 1}', "length must be at least 2, got 1"),
        ('{"n_layers": 0}', "n_layers must be at least 1, got 0"),
        ('{"n_heads": 0}', "n_heads must be at least 1, got 0"),
        ('{"d_model": 0}', "d_model must be at least 1, got 0"),
        ('{"steps": 0}', "steps must be positive, got 0"),
        ('{"weight_decay": -1}', "weight_decay must not be negative, got -1"),
        ('{"seed": -1}', r"seed must be at least 0 and below 2\*\*64, got -1"),
        ('{"seed": 18446744073709551616}', r"seed must be at least 0 and below 2\*\*64, got 184"),
        ('{"steps"', "expected JSON in .*wrong.json, got: Expecting"),
        ("[3]", r"expected a JSON object of settings in .*wrong.json, got \[3\]"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, content, message):
    (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(SystemExit, match=f"error: {message}"):
        train.main(["--out", str(tmp_path / "b"), "--config", str(tmp_path / "wrong.json")])
    assert not (tmp_path / "b").exists()


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def interrupt(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Send this process a signal when the next sample is written."""

    def written(*args: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(number)
        return iter(["sample"])

    monkeypatch.setattr(train, "write", written)


def same_files(a: Path, b: Path) -> bool:
    return not any(different(read(a / f), read(b / f)) for f in ("checkpoint.safetensors", BEST))


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_told_to_end_it_saves_and_goes_on_to_the_same_bits(
    tmp_path, text, whole, number, monkeypatch
):
    command = ["--text", text, *THIRTY, "--out", str(tmp_path / "run")]
    before = [signal.getsignal(each) for each in SIGNALS]
    interrupt(monkeypatch, number)
    with pytest.raises(SystemExit, match="interrupted after 10 steps; the same command goes on"):
        train.main(command)
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert len(read(tmp_path / "run/checkpoint.safetensors")["history.losses"]) == 10
    train.main(command)
    assert same_files(whole, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_ignored_signal_stays_ignored(tmp_path, text, number, monkeypatch):
    monkeypatch.setattr(signal, "raise_signal", signal.raise_signal)
    before = signal.signal(number, signal.SIG_IGN)  # as nohup does, and sh with & for Ctrl-C
    try:
        interrupt(monkeypatch, number)
        train.main(["--text", text, "--out", str(tmp_path / "run"), *SMALL, "--steps", "20"])
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "output", ["> /dev/full", ">&- 2>&-", "2>&1 | true", "| PYTHONIOENCODING=ascii"]
)
def test_nothing_that_becomes_of_its_output_ends_a_training(tmp_path, text, whole, output):
    command = ["-m", "attnbook.train", "--text", text, *THIRTY, "--out", str(tmp_path / "run")]
    python = shlex.join([sys.executable, *command])
    variable, output = (output[2:], "") if "=" in output else ("", output)
    ended = subprocess.run(
        ["bash", "-c", f"{variable} {python} {output}; exit ${{PIPESTATUS[0]}}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "0"},
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert b"Exception" not in ended.stderr
    assert same_files(whole, tmp_path / "run")


def test_second_command_in_a_folder_is_refused_and_changes_nothing(tmp_path, text, monkeypatch):
    run = tmp_path / "run"
    command = ["--text", text, *SMALL, "--steps", "1", "--out"]
    train.main([*command, str(tmp_path / "other")])
    batch = TextTask.batch

    def begun_meanwhile(*args: Any) -> Any:
        shutil.copytree(tmp_path / "other", run, dirs_exist_ok=True)
        return batch(*args)

    with monkeypatch.context() as patched:
        patched.setattr(TextTask, "batch", begun_meanwhile)
        with pytest.raises(SystemExit, match=r"another command began .*run at the same time"):
            train.main([*command, str(run), "--n-layers", "2", "--vocab-size", "300"])
    with train._alone_in(run), pytest.raises(SystemExit, match="another command is training in "):
        train.main([*command, str(run)])
    for path in (tmp_path / "other").iterdir():
        assert path.read_bytes() == (run / path.name).read_bytes()
    train.main([*command, str(run)])


def test_text_that_cannot_be_read_again_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for given, message in (
        (str(tmp_path / "pipe"), "expected a file on a disk, which a run reads again .*pipe"),
        (str(tmp_path), "expected a readable text file, got .*: Is a directory"),
    ):
        with pytest.raises(SystemExit, match=f"error: {message}"):
            train.main(["--out", str(tmp_path / "run"), "--text", given])
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"error: expected a folder with --out, got the file .*fi"):
        train.main(["--out", str(tmp_path / "file")])


@pytest.mark.slow
def test_run_goes_on_from_the_model_of_another(tmp_path, whole, monkeypatch):
    shutil.copytree(whole, tmp_path / "first")
    (tmp_path / "other.txt").write_text("what a piece of work is a man, how noble in reason\n" * 40)
    command = ["--text", str(tmp_path / "other.txt"), "--init", str(tmp_path / "first")]
    command += ["--steps", "30", "--learning-rate", "0.001", "--every", "10"]
    train.main([*command, "--out", str(tmp_path / "whole")])
    tokenizers = (tmp_path / name / "tokenizer.json" for name in ("first", "whole"))
    assert len({tokenizer.read_text() for tokenizer in tokenizers}) == 1
    first = read(tmp_path / "first" / BEST)
    settings = train.settings_of(train.read_run(tmp_path / "whole")[0])
    assert (settings.d_model, settings.length, settings.dropout) == (16, 16, 0.1)
    change = read(tmp_path / "whole" / BEST)["embedding.weight"] - first["embedding.weight"]
    assert 0 < change.abs().max() < 0.001 * 30  # Adam moves a number by the rate at most

    command += ["--out", str(tmp_path / "run")]
    interrupt(monkeypatch, signal.SIGTERM)
    with pytest.raises(SystemExit, match="interrupted after 10 steps"):
        train.main(command)
    shutil.rmtree(tmp_path / "first")  # a run has all it needs
    train.main(command)
    assert same_files(tmp_path / "whole", tmp_path / "run")
    generate.main([str(tmp_path / "run"), "what", "--last"])


@pytest.mark.slow
def test_converted_model_is_trained_on(tmp_path, text, capsys):
    options = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_tokens": 24, "dropout": 0.0}
    config = ModelConfig(300, norm="pre", scaled=False, position="learned", **options)
    folder = tmp_path / "gpt2"
    folder.mkdir()
    given = LanguageModel(config).half()  # as many are kept
    save_file(convert.to_gpt2(given), folder / "model.safetensors")
    sizes = {"n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    command = ["--text", text, "--out", str(tmp_path / "run"), "--init", str(folder)]
    with pytest.raises(SystemExit, match=r"expected a tokenizer in .*gpt2/tokenizer.json, got: "):
        train.main(command)
    bpe_tokenizer(TEXT, 310).save(str(folder / "tokenizer.json"))
    with pytest.raises(SystemExit, match=r"gpt2 has token 30\d, and the model's last is 299"):
        train.main(command)
    bpe_tokenizer(TEXT, 290).save(str(folder / "tokenizer.json"))
    for wrong, message in (
        ("--d-model=32", "gpt2 has --d-model 16, got 32; leave it out"),
        ("--length=25", "gpt2 holds 24 tokens, got --length 25"),
    ):
        with pytest.raises(SystemExit, match=message):
            train.main([*command, wrong])
    assert not (tmp_path / "run").exists()

    capsys.readouterr()
    generate.main([str(folder), "to be", "--tokens", "5", "--seed", "1"])
    assert capsys.readouterr().out.startswith("to be")
    train.main([*command, "--steps", "1"])
    assert "rate is 0.002, as for a model from scratch; one that" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "run")
    train.main([*command, "--steps", "10", "--every", "5", "--learning-rate", "1e-6"])
    assert "from scratch" not in capsys.readouterr().err
    model, _ = load_run(tmp_path / "run")
    assert model.config.max_tokens == train.read_run(tmp_path / "run")[0]["length"] == 24
    for name, tensor in model.state_dict().items():
        expected = convert.from_pretrained(folder).state_dict()[name].float()
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-5)
    capsys.readouterr()
    generate.main([str(tmp_path / "run"), "to be", "--last"])
    assert capsys.readouterr().out.startswith("to be")


def test_folder_without_a_model_to_start_from_is_refused(tmp_path, text):
    command = ["--text", text, "--out", str(tmp_path / "run"), "--init"]
    for wrong in (text, str(tmp_path)):
        with pytest.raises(SystemExit, match=rf"or one of Hugging Face's .*json, got {wrong}$"):
            train.main([*command, wrong])


def test_loss_that_is_not_finite_says_what_helps(tmp_path, text):
    run = ["--out", str(tmp_path / "run"), "--text", text, *SMALL, "--steps", "9"]
    with pytest.raises(SystemExit, match=r"error: .*take a smaller --learning-rate and another fo"):
        train.main([*run, "--learning-rate", "1e30"])


@pytest.mark.slow
def test_what_cannot_be_compiled_says_so(tmp_path, text, monkeypatch):
    from torch._dynamo.exc import TorchDynamoException

    def no_compiler(*args: Any, **options: Any) -> None:
        raise TorchDynamoException("No working C++ compiler found\n\nand a page more")

    monkeypatch.setattr(train, "train", no_compiler)
    with pytest.raises(SystemExit, match=r"^error: leave out --compile: No working C.* found$"):
        train.main(["--text", text, "--out", str(tmp_path / "run"), *SMALL, "--compile"])


def test_text_comes_in_pieces_that_do_not_cut_a_letter():
    tokenizer = bpe_tokenizer("é漢🙂" * 20, 256)  # bytes: pieces end in a letter
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_tokens": 10}
    config = ModelConfig(tokenizer.get_vocab_size(), **sizes)
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
def test_options_that_cannot_be_are_refused(option, message, capsys):
    with pytest.raises(SystemExit):
        generate.main(["run", option])
    assert message in capsys.readouterr().err


def test_run_that_lacks_a_file_or_has_a_broken_one_names_it(tmp_path, text):
    for option, message in ([], ", or one of Hugging Face's with a config.json"), (["--last"], ""):
        with pytest.raises(SystemExit, match=f"a folder that attnbook.train made{message}, got /"):
            generate.main([str(tmp_path), "to be", *option])
    train.main(["--out", str(tmp_path), "--text", text, *SMALL, "--steps", "1"])
    with pytest.raises(SystemExit, match=r"error: expected a prompt in UTF-8, got 'na\\udcefve'"):
        generate.main([str(tmp_path), b"na\xefve".decode(errors="surrogateescape")])
    for name, content, options, message in (
        ("checkpoint.safetensors", None, ["--last"], "there is no checkpoint: .*"),
        (BEST, "half a f", [], ""),
        ("tokenizer.json", "{", [], "expected a tokenizer in .*"),
        ("tokenizer.json", None, [], "expected a tokenizer in .*"),
        ("settings.json", "{", [], "expected JSON in .*"),
    ):
        path = tmp_path / name
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(SystemExit, match=f"error: {message}{name}|error: .*{name} is not a s"):
            generate.main([str(tmp_path), *options])


@pytest.mark.slow
def test_output_that_cannot_be_written_ends_the_writing_and_is_named(tmp_path, text):
    train.main(["--out", str(tmp_path), "--text", text, *SMALL, "--steps", "1"])
    python = shlex.join([sys.executable, "-m", "attnbook.generate", str(tmp_path), "été 漢"])
    for output, code, errors in (
        ("> /dev/full", 1, b"error: No space left on device: standard output\n"),
        ("| true", 1, b"error: Broken pipe: standard output\n"),
    ):
        ended = subprocess.run(
            ["bash", "-c", f"PYTHONIOENCODING=cp1252 {python} {output}; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (code, errors)


MISSING = """
import sys
sys.modules |= dict.fromkeys(("tqdm", "babel", "matplotlib", "tokenizers"))
from attnbook import generate, load_run, tasks, train
del sys.modules["tokenizers"]
tasks.bpe_tokenizer("to be " * 20, 260)
sys.modules |= {name: None for name in sys.modules if name.startswith("tokenizers")}
del sys.modules["attnbook.tasks.text"]
from attnbook.tasks import accuracy, pack, reversal_batch, token_losses, train as _
for command in (train, generate):
    try:
        command.main(["--help"])
    except SystemExit as ended:
        print("ended", ended.code)
for use in (
    lambda: tasks.DatesTask,
    lambda: tasks.bpe_tokenizer,
    lambda: train.main(["--out", "nowhere"]),
):
    try:
        use()
    except (ModuleNotFoundError, SystemExit) as error:
        print(error)
"""


@pytest.mark.slow
def test_the_core_alone_is_enough_for_what_needs_no_more_and_else_says_what_to_install():
    with started(["-c", MISSING]) as process:
        said, errors = process.communicate(timeout=SECONDS)
    assert "Traceback" not in errors
    assert said.count("ended 0") == 2
    assert said.count('needs pip install -e ".[tasks]" in a checkout: ') == 3
