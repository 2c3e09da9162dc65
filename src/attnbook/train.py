"""Train a language model on a text: ``python -m attnbook.train --text FILE --out RUN``.

The folder ``RUN`` gets the settings, a tokenizer trained on the text, and a checkpoint; the same
command goes on from there. ``python -m attnbook.generate RUN "prompt"`` writes.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Generator
from torch.distributed.elastic.multiprocessing.errors import record
from tqdm import tqdm

from attnbook.initialization import initialize
from attnbook.models import LanguageModel, ModelConfig
from attnbook.tasks.text import TextTask, bpe_tokenizer, fingerprint, python_topics, read_text
from attnbook.training import TrainingConfig, processes, train

Precision = Literal["float32", "float64", "bfloat16"]


@dataclass(frozen=True)
class Settings:
    """The options of the command.

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
    warmup: Annotated[int, "steps over which the rate grows"] = 100
    weight_decay: Annotated[float, "of matrices and tables"] = 0.1
    seed: Annotated[int, "of initial values, batches and dropout"] = 0
    precision: Annotated[Precision, "bfloat16 is autocast"] = "float32"
    every: Annotated[int, "steps between evaluations, samples and checkpoints"] = 100
    prompt: Annotated[str, "what the samples begin with"] = "The "
    compile: Annotated[bool, "use torch.compile"] = False
    fast: Annotated[bool, "let processes add gradients in any order: other bits, less time"] = False

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
            self.warmup,
            "cosine",
            self.shards,
            clip=1.0,
            weight_decay=self.weight_decay,
            betas=(0.9, 0.95),
            eps=1e-8,
            bfloat16=self.precision == "bfloat16",
        )


MAY_CHANGE = ("every", "prompt", "compile", "fast")
"""Settings that a run may go on with changed: no step depends on them."""


def begin(folder: Path, given: dict[str, Any]) -> None:
    """Write the run's settings and tokenizer, unless they are there.

    Raises:
        ValueError: if the run was begun with other settings or another text.
    """
    path = folder / "settings.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for name, value in given.items() if before else ():
        if name not in MAY_CHANGE and value != before[name]:
            raise ValueError(
                f"{folder} was begun with {name} {before[name]!r}, got {value!r}; "
                "take another folder with --out"
            )
    settings = settings_of(before | given)
    text = read(settings.text)
    digits = fingerprint(text)
    if before.get("fingerprint", digits) != digits:
        raise ValueError(f"the text has changed since {folder} was begun; take another --out")
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
        ValueError: if there is one that is not known.
    """
    known = {f.name for f in dataclasses.fields(Settings)}
    if unknown := values.keys() - known - {"fingerprint"}:
        raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}")
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
    top_k: int = 50,
    generator: Generator | None = None,
) -> str:
    """Continue ``prompt``; what does not fit into the model is written from the latter half on.

    Args:
        model: as ``train`` left it.
        tokenizer: its tokenizer.
        prompt: what the text begins with; a new line if it is empty.
        n_tokens: how many to add.
        temperature: as in :func:`attnbook.models.sample`, and so is the next.
        top_k: draw among so many.
        generator: source of randomness, on the CPU; torch's global one if none is given.

    Example:
        >>> tokenizer = bpe_tokenizer("to be or not to be " * 20, 260)
        >>> model = LanguageModel(ModelConfig(260, d_model=8, max_tokens=8))
        >>> len(tokenizer.encode(write(model, tokenizer, "to be", 20)).ids) > 10
        True
    """
    ids = tokenizer.encode(prompt or "\n").ids
    device, longest = next(model.parameters()).device, model.config.max_tokens
    end = len(ids) + n_tokens
    while len(ids) < end:
        seen = torch.tensor([ids[-(longest // 2) :]], device=device)
        more = min(longest - seen.shape[1], end - len(ids))
        longer = model.generate(
            seen, more, temperature=temperature, top_k=top_k, generator=generator
        )
        ids += longer[0, seen.shape[1] :].tolist()
    text: str = tokenizer.decode(ids)
    return text


def run(folder: Path) -> None:
    """Train what the folder says, from where it is."""
    model, tokenizer, settings = make_model(folder)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    device = next(model.parameters()).device
    task = TextTask(read(settings.text), tokenizer, settings.length)
    ids, targets = (part.to(device) for part in task.validation_windows(32))
    n_characters = len(tokenizer.decode(task.validation.tolist()))
    bits = len(task.validation) / n_characters / math.log(2)

    def evaluate(model: LanguageModel) -> float:
        loss = float(model.loss(ids, targets))
        lines = write(model, tokenizer, settings.prompt, 60).splitlines()
        tqdm.write(
            f"\nheld-out loss {loss:.3f} nats per token, {loss * bits:.3f} bits per character\n"
            + "\n".join(line for line in lines if line.strip())
        )
        return loss

    history = train(
        model,
        lambda generator: task.batch(settings.batch, generator),
        settings.training(),
        evaluate=evaluate,
        evaluate_every=settings.every,
        folder=folder,
        save_every=settings.every,
        compile=settings.compile,
        fast=settings.fast,
    )
    if processes().rank == 0:
        tqdm.write(
            f"\n{len(history.losses)} steps are done. Now: "
            f'python -m attnbook.generate {folder} "{settings.prompt}"'
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
            options["action"] = "store_true"
        else:
            options["help"] += f" ({getattr(Settings, name)})" if getattr(Settings, name) else ""
            options |= {"choices": get_args(kind)} if get_args(kind) else {"type": kind}
        made.add_argument("--" + name.replace("_", "-"), **options)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    given = vars(parser().parse_args(arguments))
    folder, config = given.pop("out"), given.pop("config")
    try:
        if config is not None:
            values = json.loads(read_text(config))
            given = {k: v for k, v in values.items() if k != "fingerprint"} | given
        if given.get("text"):
            given["text"] = str(Path(given["text"]).resolve())
        processes().from_first(lambda: begin(folder, given))
        run(folder)
    except (ValueError, OSError) as error:
        if dist.is_torchelastic_launched():
            raise  # torchrun shows the error of the process that failed first
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the same command goes on from the last checkpoint")
    if dist.is_initialized():
        dist.destroy_process_group()


def _write(path: Path, text: str) -> None:
    """Whole, or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    record(main)()
