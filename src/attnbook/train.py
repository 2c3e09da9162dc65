"""Train a language model on a text: ``python -m attnbook.train --text FILE --out RUN``.

The folder ``RUN`` gets the settings, a tokenizer trained on the text, a checkpoint, from which the
same command goes on, and the model with the lowest held-out loss so far. Ctrl-C saves and ends.
``python -m attnbook.generate RUN "prompt"`` writes with that model. With ``--init``, another run's
model, or one from a folder of Hugging Face's, is trained on, with its own tokenizer: GPT-2, Llama,
Gemma (the first), Mistral, Qwen2 or Qwen3.
"""

import argparse
import dataclasses
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import torch
import torch.distributed as dist
from torch import Generator
from torch.distributed.elastic.multiprocessing.errors import record

from attnbook import files, tasks
from attnbook.config import ModelConfig, check_choice
from attnbook.convert import from_pretrained
from attnbook.initialization import initialize
from attnbook.models import Encoder, LanguageModel
from attnbook.positions import RotaryScaling
from attnbook.training import History, TrainingConfig, load_model, processes, train
from attnbook.training.progress import say

if TYPE_CHECKING:  # --help needs no more than the core
    from tokenizers import Tokenizer

Precision = Literal["float32", "float64", "bfloat16"]
SETTINGS, TOKENIZER, BEST = "settings.json", "tokenizer.json", "best.safetensors"
"""A run's files, of which the last is the model with the lowest held-out loss so far."""
DERIVED = ("fingerprint", "model")
"""What ``settings.json`` has beside the settings: of the text, and of the model of ``init``."""


@dataclass(frozen=True)
class Settings:
    """The options of the command.

    Raises:
        ValueError: if one is of another type than the default, or can't be.

    Example:
        >>> Settings(n_layers=2).model(vocab_size=500).n_layers
        2
    """

    text: Annotated[str, "a UTF-8 text file; Python's own help texts if not given"] = ""
    init: Annotated[str, "a run, or a folder of Hugging Face's, whose model is trained on"] = ""
    vocab_size: Annotated[int, "tokens of the byte-pair encoding"] = 2048
    length: Annotated[int, "tokens that the model sees at once"] = 128
    d_model: Annotated[int, "width of a token"] = 128
    n_heads: Annotated[int, "attention heads"] = 4
    n_layers: Annotated[int, "blocks"] = 4
    dropout: Annotated[float, "share of activations set to zero in training"] = 0.1
    steps: Annotated[int, "updates"] = 1000
    batch: Annotated[int, "windows of text in a shard"] = 4
    shards: Annotated[int, "shards a step, spread over the processes"] = 4
    learning_rate: Annotated[float, "largest rate of AdamW"] = 2e-3
    warmup: Annotated[int, "steps over which the rate grows, at most a tenth of all"] = 100
    weight_decay: Annotated[float, "of matrices and tables"] = 0.1
    seed: Annotated[int, "of initial values, batches and dropout"] = 0
    precision: Annotated[Precision, "bfloat16 is autocast"] = "float32"
    every: Annotated[int, "steps between evaluations, samples and checkpoints"] = 100
    prompt: Annotated[str, "what the samples begin with"] = "The"
    compile: Annotated[bool, "use torch.compile"] = False
    fast: Annotated[bool, "let processes add gradients in any order: other bits, less time"] = False

    def __post_init__(self) -> None:
        """Refuse now what would fail after the first checkpoint."""
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_args(hint):
                check_choice(name, value, hint)
            elif type(value) is not hint and not (hint is float and type(value) is int):
                raise ValueError(f"{name} must be of type {hint.__name__}, got {value!r}")
        for name in ("length", "batch", "every", "d_model", "n_heads", "n_layers"):
            least = 2 if name == "length" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.init and self.d_model % (2 * self.n_heads):  # heads turn pairs of numbers
            raise ValueError(
                "--d-model must be a multiple of twice --n-heads, got "
                f"{self.d_model} and {self.n_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        self.training()  # checks the rest

    def model(self, vocab_size: int) -> ModelConfig:
        """A pre-norm model with rotary positions and SwiGLU, tied."""
        return ModelConfig(
            vocab_size,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            max_tokens=self.length,
            norm="pre",
            scaled=False,
            dropout=self.dropout,
            position="rotary",
            activation="swiglu",
        )

    def training(self) -> TrainingConfig:
        """AdamW, a warm-up and a cosine; β₂ as for GPT-3 (Brown et al. 2020, appendix B)."""
        return TrainingConfig(
            self.steps,
            self.learning_rate,
            self.seed,
            min(self.warmup, self.steps // 10),
            "cosine",
            self.shards,
            clip=1.0,
            weight_decay=self.weight_decay,
            betas=(0.9, 0.95),
            eps=1e-8,
            bfloat16=self.precision == "bfloat16",
        )


SIZES = ("vocab_size", "d_model", "n_heads", "n_layers")
"""Settings that ``init`` decides."""
MAY_CHANGE = ("text", "every", "prompt", "compile", "fast")
"""Settings that a run may go on with changed: they decide no step, or its last bits at most. The
text may have moved: its fingerprint has to be the same."""


def prepare(folder: Path, given: dict[str, Any]) -> tuple[bool, dict[str, Any], str]:
    """Whether a run has begun, and what its settings and its tokenizer are; nothing is written.

    Raises:
        ValueError: if the run was begun with other settings or another text, or if these can't be.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"expected a folder with --out, got the file {folder}")
    if (folder / BEST).is_symlink():  # the model would be written where it leads
        raise ValueError(f"expected a model in the folder of its run, got the link {folder / BEST}")
    begun = has_begun(folder)
    before = _values_in(folder / SETTINGS) if begun else {}
    for name, value in before.items():
        if name in given and name not in MAY_CHANGE and given[name] != value:
            raise ValueError(
                f"{folder} was begun with {_option(name)} {value}, got {given[name]}; "
                "take another folder with --out"
                + ("" if name in SIZES else f", and --init {folder} to train its model on")
            )
    values = before | given
    source = settings_of(values).text
    say(f"reading {source or 'the help texts of this Python'}", error=True)
    text = read(source)
    values["fingerprint"] = tasks.fingerprint(text)
    if before.get("fingerprint", values["fingerprint"]) != values["fingerprint"]:
        raise ValueError(
            f"{folder} was begun with another text than that of "
            f"{source or 'this Python'}; take another folder with --out, and --init {folder} to "
            "train its model on"
        )
    if begun:
        tokenizer = tasks.read_tokenizer(folder / TOKENIZER)
    else:
        values, tokenizer = _begin(values, text)
    derived = {name: values[name] for name in DERIVED if name in values}
    return begun, dataclasses.asdict(settings_of(values)) | derived, tokenizer.to_str()


def _begin(values: dict[str, Any], text: str) -> "tuple[dict[str, Any], Tokenizer]":
    """Settings and tokenizer of a new run: of the model in ``init``, or one made of the text."""
    if init := values.get("init"):
        model, tokenizer = starting_point(Path(init))
        if "learning_rate" not in values:
            say(
                f"the learning rate is {Settings.learning_rate}, as for a model from scratch; one "
                "that is trained already mostly takes less: --learning-rate 1e-4",
                error=True,
            )
        return _with_sizes_of(model.config, values), tokenizer
    size = settings_of(values).vocab_size
    say(f"making a vocabulary of {size:,} tokens of {len(text):,} characters", error=True)
    return values, tasks.bpe_tokenizer(text, size)


def starting_point(folder: Path) -> "tuple[LanguageModel, Tokenizer]":
    """The best model of a run, or the one in a folder of Hugging Face's, and its tokenizer.

    Raises:
        ValueError: if there is no whole model, or no tokenizer of its size.
    """
    model: Encoder
    if (folder / SETTINGS).exists():
        model, tokenizer = load_run(folder)
    elif (folder / "config.json").exists():
        model, tokenizer = from_pretrained(folder), tasks.read_tokenizer(folder / TOKENIZER)
    else:
        raise ValueError(
            "expected a folder that attnbook.train made, or one of Hugging Face's with a "
            f"config.json, got {folder}"
        )
    if not isinstance(model, LanguageModel):
        raise ValueError(f"expected a language model in {folder}, got an Encoder")
    largest = max(tokenizer.get_vocab().values())
    if largest >= model.config.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder} has token {largest}, and the model's last is "
            f"{model.config.vocab_size - 1}"
        )
    return model, tokenizer


def _with_sizes_of(config: ModelConfig, values: dict[str, Any]) -> dict[str, Any]:
    """Settings with the sizes of the model that a run starts from, which can't be others."""
    sizes = {name: getattr(config, name) for name in SIZES}
    for name, size in sizes.items():
        if values.get(name, size) != size:
            raise ValueError(
                f"{values['init']} has {_option(name)} {size}, got {values[name]}; leave it out"
            )
    if values.get("length", 0) > config.max_tokens:
        raise ValueError(
            f"{values['init']} holds {config.max_tokens} tokens, got --length {values['length']}"
        )
    free = {"dropout": config.dropout, "length": min(Settings.length, config.max_tokens)}
    values = free | values | sizes
    return values | {
        "model": dataclasses.asdict(dataclasses.replace(config, dropout=values["dropout"]))
    }


def read(text: str) -> str:
    """The text of a file, or what is trained on without one.

    Raises:
        ValueError: if it can't be read again, when the run goes on.
    """
    if not text:
        return tasks.python_topics()
    path = Path(text)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(
            f"expected a file on a disk, which a run reads again when it goes on, got {text}"
        )
    return tasks.read_text(path)


def settings_of(values: dict[str, Any]) -> Settings:
    """The settings among ``values``; the file in a run's folder has more than these.

    Raises:
        ValueError: if there is one that is not known; names those that are.
    """
    known = [f.name for f in dataclasses.fields(Settings)]
    if unknown := values.keys() - {*known, *DERIVED}:
        raise ValueError(
            f"unknown settings: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    return Settings(**{name: value for name, value in values.items() if name in known})


def read_run(folder: Path) -> "tuple[dict[str, Any], Tokenizer]":
    """What ``settings.json`` of a run holds, and its tokenizer.

    Raises:
        ValueError: if there is no run in the folder.
    """
    path = folder / SETTINGS
    if not path.exists():
        raise ValueError(f"expected a folder that attnbook.train made, got {folder}")
    return _values_in(path), tasks.read_tokenizer(folder / TOKENIZER)


def build(values: dict[str, Any], tokenizer: "Tokenizer") -> LanguageModel:
    """The untrained model; with ``init``, one of that model's configuration."""
    settings = settings_of(values)
    dtype = torch.float64 if settings.precision == "float64" else torch.float32
    if settings.init:
        config = dict(values["model"])
        if config["rotary_scaling"] is not None:
            config["rotary_scaling"] = RotaryScaling(**config["rotary_scaling"])
        return LanguageModel(ModelConfig(**config)).to(dtype)
    model = LanguageModel(settings.model(tokenizer.get_vocab_size())).to(dtype)
    return initialize(model, "gpt2", generator=Generator().manual_seed(settings.seed))


def load_run(folder: str | Path, *, last: bool = False) -> tuple[LanguageModel, "Tokenizer"]:
    """A run's model with the lowest held-out loss, or its last one, and its tokenizer.

    Raises:
        ValueError: if there is no run in the folder, or no model yet.

    Source: the command ``python -m attnbook.train``.

    Example:
        >>> model, tokenizer = load_run("RUN")  # doctest: +SKIP
        >>> ids = torch.tensor([tokenizer.encode("The").ids])  # doctest: +SKIP
        >>> tokenizer.decode(model.generate(ids, 20)[0].tolist())  # doctest: +SKIP
    """
    folder = Path(folder)
    values, tokenizer = read_run(folder)
    if last:
        model = build(values, tokenizer)
        load_model(folder, model)
        return model, tokenizer
    if not (folder / BEST).exists():
        every = settings_of(values).every
        raise ValueError(f"{folder} has no model yet: train keeps the first after {every} steps")
    return LanguageModel.load(folder / BEST), tokenizer


def write(
    model: LanguageModel,
    tokenizer: "Tokenizer",
    prompt: str,
    n_tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    generator: Generator | None = None,
) -> Iterator[str]:
    """Continue ``prompt``, piece by piece; what the model can't hold is cut to its latter half.

    Args:
        model: as ``train`` left it.
        tokenizer: its tokenizer.
        prompt: what the text begins with; a new line if it is empty.
        n_tokens: how many to add.
        temperature: as in :func:`attnbook.generation.sample`, and so are the next three.
        top_k: draw among so many.
        top_p: draw among the likeliest that have this probability together.
        generator: source of randomness, on the model's device.

    Returns:
        The prompt, and then what follows, as it comes.

    Raises:
        ValueError: if the prompt came from bytes that are not UTF-8.

    Example:
        >>> tokenizer = tasks.bpe_tokenizer("to be or not to be " * 20, 260)
        >>> model = LanguageModel(ModelConfig(260, d_model=8, max_tokens=8))
        >>> len(list(write(model, tokenizer, "to be", 20)))
        6
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected a prompt in UTF-8, got {prompt!r}") from None
    yield prompt
    ids = tokenizer.encode(prompt or "\n").ids
    device, longest = next(model.parameters()).device, model.config.max_tokens
    end, shown = len(ids) + n_tokens, len(tokenizer.decode(ids))
    while len(ids) < end:
        seen = torch.tensor([ids[-(longest // 2) :]], device=device)
        longer = model.generate(
            seen,
            min(longest - seen.shape[1], end - len(ids)),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
            fused=True,
        )
        ids += longer[0, seen.shape[1] :].tolist()
        text = tokenizer.decode(ids)
        if len(ids) < end:
            text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # bytes of one that has yet to end
        yield text[shown:]
        shown = len(text)


def run(folder: Path, begun: bool, values: dict[str, Any], tokenizer: "Tokenizer") -> None:
    """Train what :func:`prepare` prepared, from where it is."""
    settings, is_first = settings_of(values), processes().rank == 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(values, tokenizer).to(device)
    if settings.init and not begun:
        model.load_state_dict(starting_point(Path(settings.init))[0].state_dict())
    task = _task(settings, tokenizer)
    ids, targets = (part.to(device) for part in task.validation_windows(32))
    n_characters = len(tokenizer.decode(task.validation.tolist()))
    bits_per_character = len(task.validation) / n_characters / math.log(2)
    guess = math.log(model.config.vocab_size)
    if is_first:
        n_parameters = sum(p.numel() for p in model.parameters())
        say(f"training {n_parameters:,} parameters on {len(task.training):,} tokens", error=True)

    with _interruption() as interrupted, ExitStack() as held:

        @cache  # once
        def take() -> None:
            """Make the folder this command's: nothing is written before the first step worked."""
            held.enter_context(_alone_in(folder))
            if has_begun(folder) != begun:
                raise ValueError(f"another command began {folder} at the same time")
            files.write_whole(folder / TOKENIZER, tokenizer.to_str().encode())
            files.write_whole(folder / SETTINGS, f"{json.dumps(values, indent=1)}\n".encode())

        def stop(history: History) -> bool:
            if history.losses:
                take()
            return interrupted()

        def evaluated(history: History) -> None:
            take()
            if len(history.losses) == history.step_with_lowest():
                model.save(folder / BEST)
            sample = "".join(write(model, tokenizer, settings.prompt, 60))
            say(_report(history, guess, bits_per_character, sample))

        if begun and is_first:
            take()
        history = train(
            model,
            lambda generator: task.batch(settings.batch, generator),
            settings.training(),
            evaluate=lambda model: float(model.loss(ids, targets)),
            evaluate_every=settings.every,
            evaluated=evaluated,
            stop=stop,
            folder=folder,
            save_every=settings.every,
            compile=settings.compile,
            fast=settings.fast,
        )
    if (n_steps := len(history.losses)) < settings.steps:
        ended = f"\ninterrupted after {n_steps} steps; the same command goes on from there"
        sys.exit(ended if is_first else 1)
    if is_first:
        say(_conclusion(history, folder, settings.prompt))


def _task(settings: Settings, tokenizer: "Tokenizer") -> "tasks.TextTask":
    try:
        return tasks.TextTask(read(settings.text), tokenizer, settings.length)
    except ValueError as error:
        raise ValueError(f"{error}; take a longer text or another --length") from None


def _report(history: History, guess: float, bits_per_character: float, sample: str) -> str:
    """What the last evaluation found, and how the model writes.

    Args:
        history: with an evaluation after its last step.
        guess: the loss if all tokens are alike, ln V.
        bits_per_character: of a nat per token.
        sample: a text by the model.
    """
    step, lowest = len(history.losses), history.step_with_lowest()
    loss = history.evaluations[step]
    lines = [line for line in sample.splitlines() if line.strip()]
    return (
        f"\nafter {step} steps: held-out loss {loss:.3f} nats per token "
        f"(a fair guess: {guess:.2f}), {loss * bits_per_character:.3f} bits per character"
        + ("\n" if step == lowest else f"; it was lowest after {lowest}\n")
        + "\n".join(lines)
    )


def _conclusion(history: History, folder: Path, prompt: str) -> str:
    """What was reached, and the command that writes with it."""
    words = ["python", "-m", "attnbook.generate", str(folder), prompt]
    command = shlex.join(words) if os.name == "posix" else subprocess.list2cmdline(words)
    return (
        f"\n{len(history.losses)} steps are done; the held-out loss was lowest after "
        f"{history.step_with_lowest()}. The model of that step writes: {command}"
    )


def parser() -> argparse.ArgumentParser:
    """The command line: an option for each setting."""
    made = argparse.ArgumentParser(
        prog="python -m attnbook.train", description=(__doc__ or "").replace("``", "")
    )
    made.add_argument("--out", type=Path, required=True, help="the run's folder; goes on from it")
    made.add_argument(
        "--config", type=Path, help="a JSON file with settings, such as another run's"
    )
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        kind, (explanation,) = hint.__origin__, hint.__metadata__
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": explanation}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["help"] += "" if kind is str else f" ({getattr(Settings, name)})"
            options |= {"choices": get_args(kind)} if get_args(kind) else {"type": kind}
        made.add_argument("--" + name.replace("_", "-"), **options)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    given = vars(parser().parse_args(arguments))
    folder, config = given.pop("out"), given.pop("config")
    try:
        if config is not None:
            values = _values_in(config)
            given = {n: value for n, value in values.items() if n not in DERIVED} | given
        for name in ("text", "init"):
            if given.get(name):
                given[name] = str(Path(given[name]).resolve())
        with _ended_at_once():
            begun, values, tokenizer = processes().from_first(lambda: prepare(folder, given))
        from tokenizers import Tokenizer

        run(folder, begun, values, Tokenizer.from_str(tokenizer))
    except (ValueError, OSError, FloatingPointError, ModuleNotFoundError) as error:
        if dist.is_torchelastic_launched():
            raise  # torchrun shows the error of the process that failed first
        sys.exit(f"error: {explained(error, folder)}")
    except RuntimeError as error:
        from torch._dynamo.exc import TorchDynamoException  # seconds, and there only if it compiled

        if not isinstance(error, TorchDynamoException):
            raise
        sys.exit(f"error: leave out --compile: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from the last checkpoint")
    if dist.is_initialized():
        dist.destroy_process_group()


def explained(error: Exception, folder: Path) -> str:
    """What went wrong, where, and what helps.

    Example:
        >>> import errno
        >>> explained(OSError(errno.ENOSPC, "No space left on device"), Path("run"))
        'No space left on device: run'
    """
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or folder}"
    if isinstance(error, FloatingPointError):
        return f"{error}; take a smaller --learning-rate and another folder with --out"
    return str(error)


def has_begun(folder: Path) -> bool:
    """True if there is a checkpoint to go on from."""
    return (folder / "checkpoint.safetensors").exists()


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _values_in(path: Path) -> dict[str, Any]:
    """The settings by name in a JSON file."""
    text = tasks.read_text(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in {path}, got: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object of settings in {path}, got {values!r}")
    return values


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """While a vocabulary is made, which does not look up, Ctrl-C ends the process."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Whether the command was told to end: it finishes the step and saves.

    By Ctrl-C, whose second ends at once, by ``kill``, as a batch system does, or because the
    terminal went away. Those that are ignored, as under ``nohup``, stay so.
    """
    pressed = False

    def note(number: int, _: Any) -> None:
        nonlocal pressed
        pressed = True
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    numbers = [signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {n: handler for n, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Make the folder, and keep others that train out of it: by a lock, which a kill releases."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = files.lock(folder / ".lock")
    except BlockingIOError:
        raise ValueError(f"another command is training in {folder}") from None
    with held:
        yield


if __name__ == "__main__":
    record(main)()
