"""GPT-2's architecture on Python's sources: do answers change with size?

``gpu_gpt2`` is the same code at GPT-2's size.
"""

import sysconfig
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Generator

from attnbook import LanguageModel, ModelConfig, initialize
from attnbook.initialization import draw_
from attnbook.tasks.text import TextTask, bpe_tokenizer, fingerprint
from attnbook.training import TrainingConfig, train
from studies.heads_language import SharedHeads


@dataclass(frozen=True)
class Size:
    """A model's sizes, and how long it learns on how much text."""

    d_model: int
    n_layers: int
    n_heads: int
    vocab_size: int = 2048
    tokens: int = 128
    batch: int = 8
    steps: int = 200
    megabytes: float = 4

    @property
    def warmup(self) -> int:
        """A sixth of the steps."""
        return self.steps // 6


SIZES = {
    "tiny": Size(32, 2, 2, 300, 16, 4, 12, 0.2),
    "128 wide": Size(128, 4, 4),
    "256 wide": Size(256, 4, 8),
}

GPT2 = {
    "norm": "pre",
    "position": "learned",
    "activation": "gelu_tanh",
    "attention_bias": True,
    "scaled": False,
}
SINUSOIDS = GPT2 | {"position": "sinusoidal"}
POST = GPT2 | {"norm": "post"}


@dataclass(frozen=True)
class Case:
    """What differs from GPT-2."""

    choices: tuple = tuple(GPT2.items())
    scheme: str = "gpt2"
    table: str | None = None  # how the embedding is drawn instead
    query_key: float = 1.0  # factor on W_Q and W_K
    unscaled: bool = False  # without GPT-2's factor on W_O and W_2
    shared: str = ""  # "heads": one small W_Q, W_K, W_V; "query": W_K is W_Q
    warmup: bool = True


def sinusoids(table, scaled):
    choices = SINUSOIDS | {"scaled": scaled}
    return Case(tuple(choices.items()), table=table)


CASES = {
    "GPT-2's": Case(),
    "without its factor on W_O": Case(unscaled=True),
    "W_O and W_2 = 0": Case(scheme="zero_output"),
    "Glorot": Case(scheme="glorot"),
    "Glorot, Q, K, V as one": Case(scheme="glorot_fused"),
    "Q, K × 0.1": Case(query_key=0.1),
    "Q, K × 4": Case(query_key=4.0),
    "torch's default": Case(scheme="torch_default"),
    "N(0, 1/d), not scaled": sinusoids("inverse_sqrt", False),
    "N(0, 1/d), scaled": sinusoids("inverse_sqrt", True),
    "0.02, not scaled": sinusoids("gpt2", False),
    "0.02, scaled": sinusoids("gpt2", True),
    "N(0, 1), scaled": sinusoids("unit", True),
    "one Q, K, V for all heads": Case(shared="heads"),
    "W_Q = W_K": Case(shared="query"),
    "post-norm, Glorot": Case(tuple(POST.items()), "glorot"),
    "post-norm, GPT-2's": Case(tuple(POST.items())),
    "post-norm, Glorot, no warm-up": Case(
        tuple(POST.items()), "glorot", warmup=False
    ),
    "rotary": Case(tuple((GPT2 | {"position": "rotary"}).items())),
}


def python_sources(megabytes):
    """The standard library's, in an order that mixes its parts."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.py")]
    found, left = [], round(megabytes * 1e6)
    for name in sorted(names, key=fingerprint):
        path = root / name
        if "-packages/" in name:  # installed by somebody
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except ValueError:  # a few are in other encodings
            continue
        found.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return "\n".join(found)


@cache
def task_of(size):
    text = python_sources(size.megabytes)
    tokenizer = bpe_tokenizer(text, size.vocab_size)
    return TextTask(text, tokenizer, size.tokens), fingerprint(text)


@cache
def model_of(size, choices, shared, device):
    """One for each kind, to be drawn anew: it is compiled once."""
    config = ModelConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        n_heads=size.n_heads,
        n_layers=size.n_layers,
        max_tokens=size.tokens,
        **dict(choices),
    )
    model = LanguageModel(config)
    if shared == "heads":
        for block in model.blocks:
            own = SharedHeads(size.d_model, size.n_heads)
            own.output = block.attention.output
            block.attention = own
    return model.float().to(device)


def begin(model, case, seed):
    """Draw the model as the case says, on the CPU: the same on any device."""
    draws = Generator().manual_seed(seed)
    device = next(model.parameters()).device
    attentions = [block.attention for block in model.blocks]
    if case.shared == "query":  # a key of its own, only to be drawn
        for each in attentions:
            each.key = deepcopy(each.query)
    initialize(model.cpu(), case.scheme, generator=draws)
    if case.shared == "query":
        for each in attentions:
            each.key = each.query
    with torch.no_grad():
        if case.table is not None:
            vocab_size, d_model = model.embedding.weight.shape
            draw_(
                model.embedding.weight,
                case.table,
                fan_in=vocab_size,
                fan_out=d_model,
                generator=draws,
            )
        for block in model.blocks:
            block.attention.query.weight *= case.query_key
            if case.shared != "query":
                block.attention.key.weight *= case.query_key
            if case.unscaled:
                factor = (2 * len(model.blocks)) ** 0.5
                block.attention.output.weight *= factor
                block.feed_forward.outer.weight *= factor
    return model.to(device)


def matrices(model):
    """Of the middle block, and the table."""
    block = model.blocks[len(model.blocks) // 2]
    found = {
        "W_Q": block.attention.query.weight,
        "W_O": block.attention.output.weight,
        "W_1": block.feed_forward.inner.weight,
        "table": model.embedding.weight,
    }
    return {name: each.detach().clone() for name, each in found.items()}


def learn(seed, case, size, rate, steps=None, device="cpu", compile=False):
    """Held-out loss in nats a token, the losses on the way, what moved."""
    case, task, text = CASES[case], *task_of(size)
    model = model_of(size, case.choices, case.shared, device)
    model = begin(model, case, seed)
    before = matrices(model)
    held_out = [x.to(device) for x in task.validation_windows(64)]
    config = TrainingConfig(
        steps=size.steps,
        learning_rate=rate,
        seed=seed,
        warmup=size.warmup if case.warmup else 0,
        schedule="cosine",
        clip=1.0,
        weight_decay=0.1,
        betas=(0.9, 0.95),
        eps=1e-8,
        bfloat16=device == "cuda",
    )
    history = train(
        model,
        lambda generator: task.batch(size.batch, generator),
        config,
        evaluate=lambda model: model.loss(*held_out).item(),
        evaluate_every=size.steps // 4,
        stop=lambda history: len(history.losses) == steps,
        compile=compile,
        fast=device == "cuda",
    )
    numbers = {"first losses": history.losses[:5], "text": text}
    if steps is not None:
        return numbers
    tenth = size.steps // 10 or 1
    means = torch.tensor(history.losses)[: 10 * tenth].view(10, tenth).mean(1)
    moved = {
        f"moved {name}": ((after - before[name]).norm() / after.norm()).item()
        for name, after in matrices(model).items()
    }
    held = list(history.evaluations.values())
    return numbers | moved | {"curve": means.tolist(), "held out": held}


RATES = (1e-3, 3e-3)
SEEDS = {
    f"{size}, {rate}, {case}": 3 if size == "128 wide" else 1
    for size in ("128 wide", "256 wide")
    for rate in RATES
    for case in CASES
}


def run(seed, case, steps=None):
    size, rate, name = case.split(", ", 2)
    return learn(seed, name, SIZES[size], float(rate), steps)
