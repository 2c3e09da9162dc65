"""Post-norm, small starts: does depth, the task or the size decide?

Chapter 8's task and chapter 14's text, each at four and at twelve blocks.
"""

import math

import torch

from attnbook import Encoder, LanguageModel, ModelConfig, initialize
from attnbook.tasks import accuracy
from attnbook.tasks import train as learn_task
from attnbook.training import TrainingConfig, train
from studies.deep_step import backwards
from studies.size_small import POST, Size, task_of

STARTS = ("0.02", "tables ×", "matrices ×", "all ×", "Glorot")
"""What of GPT-2's 0.02 is taken times √(768/d)."""
DEPTHS = (4, 12)
WORDS = {"d_model": 32, "n_heads": 4, "d_ff": 64, "vocab_size": 16}
TEXT = Size(128, 4, 4)


@torch.no_grad()
def begin(model, start, d_model, draws=None):
    """GPT-2's start with its factor on W_O and W_2, or parts larger."""
    scheme = "glorot" if start == "Glorot" else "gpt2"
    initialize(model, scheme, generator=draws)
    factor = math.sqrt(768 / d_model)
    for name, p in model.named_parameters():
        part = "matrices" if name.startswith("blocks.") else "tables"
        if scheme == "gpt2" and start in (f"{part} ×", "all ×"):
            p *= factor if p.dim() > 1 else 1.0
    return model


def words(seed, n_blocks, start, warmup, steps=240):
    """Chapter 8: Adam, until 35 % of the test words are correct."""
    torch.manual_seed(seed)
    config = ModelConfig(
        n_layers=n_blocks, max_tokens=8, norm="post", tied=False, **WORDS
    )
    model = begin(Encoder(config), start, config.d_model)
    test = backwards(64, torch.Generator().manual_seed(10**6))
    history = learn_task(
        model,
        lambda g: backwards(8, g),
        steps=steps,
        learning_rate=0.003,
        seed=seed,
        warmup=50 if warmup else 0,
        stop_at=0.35,
        evaluate=lambda m: accuracy(m, *test),
        evaluate_every=20,
    )
    correct = 100 * list(history.evaluations.values())[-1]
    first = {"first losses": history.losses[:20]}
    return first | ({"correct": correct} if steps >= 240 else {})


def text(seed, n_blocks, start, warmup, steps=None):
    """Chapter 14: AdamW, 200 steps; held-out nats a token."""
    task, source = task_of(TEXT)
    config = ModelConfig(
        vocab_size=TEXT.vocab_size,
        d_model=TEXT.d_model,
        n_heads=TEXT.n_heads,
        n_layers=n_blocks,
        max_tokens=TEXT.tokens,
        **POST,
    )
    draws = torch.Generator().manual_seed(seed)
    model = begin(LanguageModel(config), start, config.d_model, draws)
    held_out = task.validation_windows(64)
    history = train(
        model.float(),
        lambda generator: task.batch(TEXT.batch, generator),
        TrainingConfig(
            steps=TEXT.steps,
            learning_rate=0.001,
            seed=seed,
            warmup=TEXT.warmup if warmup else 0,
            schedule="cosine",
            clip=1.0,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            eps=1e-8,
        ),
        evaluate=lambda m: m.loss(*held_out).item(),
        evaluate_every=TEXT.steps // 4,
        stop=lambda history: len(history.losses) == steps,
    )
    first = {"first losses": history.losses[:5], "text": source}
    held = list(history.evaluations.values())
    return first | ({"held out": held} if steps is None else {})


TASKS = {"words": words, "words, warm-up": words, "text, warm-up": text}
SEEDS = {
    f"{task}, {n} blocks, {start}": 6
    if "words" in task
    else 3
    if n == 4
    else 2
    for task in TASKS
    for n in DEPTHS
    for start in STARTS
}


def run(seed, case, steps=None):
    task, n_blocks, start = case.rsplit(", ", 2)
    shorter = {} if steps is None else {"steps": steps}
    return TASKS[task](
        seed, int(n_blocks.split()[0]), start, "warm-up" in task, **shorter
    )
