"""Train a language model on a text: ``python -m attnbook.train --text FILE --out RUN``.

The folder ``RUN`` gets the settings, a tokenizer trained on the text, a checkpoint, from which the
same command goes on, and the model with the lowest held-out loss so far. Ctrl-C saves and ends.
``python -m attnbook.generate RUN "prompt"`` writes with that model.
"""

import argparse
import dataclasses
import json
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Generator
from torch.distributed.elastic.multiprocessing.errors import record
from tqdm import tqdm

from attnbook.blocks import check_choice
from attnbook.initialization import initialize
from attnbook.models import LanguageModel, ModelConfig
from attnbook.tasks.text import TextTask, bpe_tokenizer, fingerprint, python_topics, read_text
from attnbook.training import History, TrainingConfig, processes, train

Precision = Literal["float32", "float64", "bfloat16"]
BEST = "best.safetensors"
"""The model with the lowest held-out loss so far, for ``LanguageModel.load``."""


@dataclass(frozen=True)
class Settings:
    """The options of the command.

    Raises:
        ValueError: if one is of another type than the default, or can't be; the model's sizes,
            rates and steps are checked where they are used.

    Example:
        >>> Settings(n_layers=2).model(vocab_size=500).n_layers
        2
    """

    text: Annotated[str, "a UTF-8 text file; Python's own help texts if not given"] = ""
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
        for name, least in (("length", 2), ("batch", 1), ("every", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")

    def model(self, vocab_size: int) -> ModelConfig:
        """A pre-norm model with rotary positions and SwiGLU, tied."""
        return ModelConfig(
            vocab_size,
            self.d_model,
            self.n_heads,
            self.n_layers,
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


MAY_CHANGE = ("text", "every", "prompt", "compile", "fast")
"""Settings that a run may go on with changed: they decide no step, or its last bits at most. The
text may have moved: its fingerprint has to be the same."""


def begin(folder: Path, given: dict[str, Any]) -> None:
    """Write the run's settings and tokenizer, unless it has a checkpoint that was made with them.

    Raises:
        ValueError: if the run was begun with other settings or another text.
    """
    path = folder / "settings.json"
    begun = (folder / "checkpoint.safetensors").exists()
    before = json.loads(path.read_text("utf-8")) if begun else {}
    settings = settings_of(before | given)
    for name, value in before.items():
        if name in given and name not in MAY_CHANGE and given[name] != value:
            raise ValueError(
                f"{folder} was begun with {name} {value!r}, got {given[name]!r}; "
                "take another folder with --out"
            )
    text = read(settings.text)
    digits = fingerprint(text)
    if before.get("fingerprint", digits) != digits:
        raise ValueError(
            f"{folder} was begun with another text than that of "
            f"{settings.text or 'this Python'}; take another folder with --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not before:
        _write(folder / "tokenizer.json", bpe_tokenizer(text, settings.vocab_size).to_str())
    content = dataclasses.asdict(settings) | {"fingerprint": digits}
    _write(path, json.dumps(content, indent=1) + "\n")


def read(text: str) -> str:
    """The text of a file, or what is trained on without one."""
    return read_text(text) if text else python_topics()


def settings_of(values: dict[str, Any]) -> Settings:
    """The settings among ``values``; the file in a run's folder also has the text's fingerprint.

    Raises:
        ValueError: if there is one that is not known; names those that are.
    """
    known = [f.name for f in dataclasses.fields(Settings)]
    if unknown := values.keys() - {*known, "fingerprint"}:
        raise ValueError(
            f"unknown settings: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    return Settings(**{name: value for name, value in values.items() if name in known})


def make_model(folder: Path) -> tuple[LanguageModel, Tokenizer, Settings]:
    """The untrained model, the tokenizer and the settings of a run.

    Raises:
        ValueError: if there is no run in the folder.
    """
    path = folder / "settings.json"
    if not path.exists():
        raise ValueError(f"expected a folder that attnbook.train made, got {folder}")
    settings = settings_of(json.loads(path.read_text("utf-8")))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = LanguageModel(settings.model(tokenizer.get_vocab_size()))
    model.to(torch.float64 if settings.precision == "float64" else torch.float32)
    draws = Generator().manual_seed(settings.seed)
    return initialize(model, "gpt2", generator=draws), tokenizer, settings


def write(
    model: LanguageModel,
    tokenizer: Tokenizer,
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
        temperature: as in :func:`attnbook.models.sample`, and so are the next two.
        top_k: draw among so many.
        top_p: draw among the likeliest that have this probability together.
        generator: source of randomness, on the model's device; torch's global one if not given.

    Returns:
        The prompt, and then what follows, as it comes.

    Example:
        >>> tokenizer = bpe_tokenizer("to be or not to be " * 20, 260)
        >>> model = LanguageModel(ModelConfig(260, d_model=8, max_tokens=8))
        >>> beginning, *more = write(model, tokenizer, "to be", 20)
        >>> beginning, len(more)
        ('to be', 5)
    """
    yield prompt
    ids = tokenizer.encode(prompt or "\n").ids
    device, longest = next(model.parameters()).device, model.config.max_tokens
    begin, end, shown = len(ids), len(ids) + n_tokens, 0
    while len(ids) < end:
        seen = torch.tensor([ids[-(longest // 2) :]], device=device)
        longer = model.generate(
            seen,
            min(longest - seen.shape[1], end - len(ids)),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
        )
        ids += longer[0, seen.shape[1] :].tolist()
        text = tokenizer.decode(ids[begin:])
        if len(ids) < end:
            text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # bytes of one that has yet to end
        yield text[shown:]
        shown = len(text)


def run(folder: Path) -> None:
    """Train what the folder says, from where it is."""
    model, tokenizer, settings = make_model(folder)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    device = next(model.parameters()).device
    try:
        task = TextTask(read(settings.text), tokenizer, settings.length)
    except ValueError as error:
        raise ValueError(f"{error}; take a longer text or another --length") from None
    ids, targets = (part.to(device) for part in task.validation_windows(32))
    n_characters = len(tokenizer.decode(task.validation.tolist()))
    bits = len(task.validation) / n_characters / math.log(2)

    def evaluated(history: History) -> None:
        (step, loss), lowest = list(history.evaluations.items())[-1], history.step_with_lowest()
        if step == lowest:
            model.save(folder / BEST)
        lines = "".join(write(model, tokenizer, settings.prompt, 60)).splitlines()
        tqdm.write(
            f"\nafter {step} steps: held-out loss {loss:.3f} nats per token, "
            f"{loss * bits:.3f} bits per character"
            + ("\n" if step == lowest else f"; it was lowest after {lowest}\n")
            + "\n".join(line for line in lines if line.strip())
        )

    with _interruption() as interrupted:
        history = train(
            model,
            lambda generator: task.batch(settings.batch, generator),
            settings.training(),
            evaluate=lambda model: float(model.loss(ids, targets)),
            evaluate_every=settings.every,
            evaluated=evaluated,
            stop=lambda history: interrupted(),
            folder=folder,
            save_every=settings.every,
            compile=settings.compile,
            fast=settings.fast,
        )
    is_first, n_steps = processes().rank == 0, len(history.losses)
    if n_steps < settings.steps:
        said = f"\ninterrupted after {n_steps} steps; the same command goes on from there"
        sys.exit(said if is_first else 1)
    if is_first:
        words = ["python", "-m", "attnbook.generate", str(folder), settings.prompt]
        print(
            f"\n{n_steps} steps are done; the held-out loss was lowest after "
            f"{history.step_with_lowest()}. The model of that step writes: {shlex.join(words)}"
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
            given = _settings_in(config) | given
        if given.get("text"):
            given["text"] = str(Path(given["text"]).resolve())
        processes().from_first(lambda: begin(folder, given))
        run(folder)
    except (ValueError, OSError, FloatingPointError) as error:
        if dist.is_torchelastic_launched():
            raise  # torchrun shows the error of the process that failed first
        sys.exit(f"error: {explained(error, folder)}")
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
        return f"{error.strerror}: {error.filename or folder}"
    if isinstance(error, FloatingPointError):
        return f"{error}; take a smaller --learning-rate and another folder with --out"
    return str(error)


def _settings_in(path: Path) -> dict[str, Any]:
    """Those of a JSON file."""
    try:
        values = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON in {path}, got: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object of settings in {path}, got {values!r}")
    return {name: value for name, value in values.items() if name != "fingerprint"}


@contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: the step is finished and saved. The second ends at once."""
    pressed = False

    def note(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_text(text, "utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


if __name__ == "__main__":
    record(main)()
