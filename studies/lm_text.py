"""A language model learns to write; what it writes, at which loss."""

import math
import re
from functools import cache

import torch

from attnbook import LanguageModel, ModelConfig, initialize, sample
from attnbook.tasks import TextTask, bpe_tokenizer, python_topics
from attnbook.training import TrainingConfig, train

VOCABULARY, LENGTH = 512, 128
STEPS, BATCH, RATE, WARMUP = 1500, 4, 2e-3, 100
SIZE = {"d_model": 128, "n_heads": 4, "n_layers": 4}
SEEDS = 5
SHOWN = (0, 10, 30, 100, 200, 400, 800, 1500)
PROMPT = "The"
CONTEXTS = ("a keyword argu", "The value of the", "The method is cal")


@cache
def task(vocabulary=VOCABULARY, length=LENGTH):
    text = python_topics()
    return TextTask(text, bpe_tokenizer(text, vocabulary), length)


@cache
def tokenizer(vocabulary=VOCABULARY):
    return bpe_tokenizer(python_topics(), vocabulary)


def make_model(seed, vocabulary=VOCABULARY, longest=256, **choices):
    """Pre-norm, rotary positions, SwiGLU, tied: as `attnbook.train` makes."""
    settings = {
        "norm": "pre",
        "scaled": False,
        "position": "rotary",
        "activation": "swiglu",
        "max_tokens": longest,
    }
    config = ModelConfig(vocabulary, **settings | choices)
    draws = torch.Generator().manual_seed(seed)
    return initialize(LanguageModel(config), "gpt2", generator=draws)


def training(steps, seed, rate=RATE, **changes):
    """AdamW with a warm-up and a cosine."""
    settings = {
        "warmup": WARMUP,
        "schedule": "cosine",
        "clip": 1.0,
        "weight_decay": 0.1,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
    }
    return TrainingConfig(steps, rate, seed, **settings | changes)


def characters_per_token(task, tokenizer):
    """Of the held-out text."""
    return len(tokenizer.decode(task.validation.tolist())) / len(
        task.validation
    )


# How the next token is chosen: from the logits and all ids before it.


def greedy(logits, ids, draws):
    return logits.argmax(-1)


def drawn(**how):
    return lambda logits, ids, draws: sample(logits, generator=draws, **how)


def penalized(logits, ids, penalty):
    """Logits of tokens that are there already: less likely (CTRL)."""
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    smaller = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, smaller, logits)


WAYS = {
    "greedy": greedy,
    "temperature 0.5": drawn(temperature=0.5),
    "temperature 0.8": drawn(temperature=0.8),
    "temperature 1": drawn(),
    "temperature 1.2": drawn(temperature=1.2),
    "top-k 40": drawn(top_k=40),
    "top-p 0.9": drawn(top_p=0.9),
    "greedy, penalty 1.2": lambda logits, ids, draws: greedy(
        penalized(logits, ids, 1.2), ids, draws
    ),
}


@torch.no_grad()
def continued(model, ids, n_tokens, choose, seed=0):
    """Tokens one after another; and the model's log-probability of each."""
    draws = torch.Generator().manual_seed(seed)
    cache, new, found = model.new_cache(), ids, []
    for _ in range(n_tokens):
        logits = model(new, cache=cache)[:, -1]
        new = choose(logits, ids, draws)[:, None]
        found.append(logits.log_softmax(-1).gather(1, new))
        ids = torch.cat([ids, new], 1)
    return ids, torch.cat(found, 1)


def repeated(ids, n=4):
    """Share of runs of n tokens that were there before, in percent."""
    shares = []
    for row in ids.tolist():
        runs = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
        shares.append(1 - len(set(runs)) / len(runs))
    return 100 * sum(shares) / len(shares)


@cache
def known_words():
    text = tokenizer().decode(task().training.tolist())
    return frozenset(re.findall(r"[a-z]{3,}", text.lower()))


def spelled(ids):
    """Share of words of three letters or more that the training text has."""
    words = []
    for row in ids.tolist():  # without the first and last, which are cut
        words += re.findall(r"[a-z]{3,}", tokenizer().decode(row).lower())[
            1:-1
        ]
    return 100 * sum(w in known_words() for w in words) / max(1, len(words))


@torch.no_grad()
def written(model):
    """For each way to choose: how likely, how repetitive, how well spelled."""
    beginnings, real = task().validation_windows(32)
    beginnings, real = beginnings[:, :16], real[:, 15:111]
    numbers = {}
    for way, choose in WAYS.items():
        ids, log_p = continued(model, beginnings, 96, choose)
        numbers[way] = [
            -log_p.mean().item(),
            repeated(ids[:, 16:]),
            spelled(ids[:, 16:]),
        ]
    whole = torch.cat([beginnings, real], 1)
    log_p = model(whole[:, :-1]).log_softmax(-1)[:, 15:]
    log_p = log_p.gather(2, real[..., None])
    numbers["real text"] = [
        -log_p.mean().item(),
        repeated(real),
        spelled(real),
    ]
    return numbers


def text_of(model, choose, n_tokens=60):
    ids = torch.tensor([tokenizer().encode(PROMPT).ids])
    ids, _ = continued(model, ids, n_tokens, choose)
    return tokenizer().decode(ids[0].tolist())


@torch.no_grad()
def after(model, prompt):
    """Logits of the next token, to three digits."""
    ids = torch.tensor([tokenizer().encode(prompt).ids])
    return [round(each, 3) for each in model(ids)[0, -1].tolist()]


@torch.no_grad()
def by_position(model, length=LENGTH):
    """Held-out loss of each token of a window."""
    ids, targets = task(VOCABULARY, length).validation_windows(160)
    log_p = model(ids).log_softmax(-1).gather(2, targets[..., None])
    return -log_p[..., 0].mean(0)


@torch.no_grad()
def unmasked(model):
    """Loss of the last token of a window; and when all attend to all."""
    ids, targets = task().validation_windows(160)
    found = []
    for causal in (True, False):
        model.causal = causal
        log_p = model(ids)[:, -1].log_softmax(-1)
        found.append(-log_p.gather(1, targets[:, -1:]).mean().item())
    del model.causal
    return found


def run(seed, steps=STEPS):
    model = make_model(seed, **SIZE)
    ids, targets = task().validation_windows(24)
    seen = task().training[: 24 * LENGTH + 1]  # of the text it trains on
    seen = seen[:-1].view(24, LENGTH), seen[1:].view(24, LENGTH)
    curve, texts = {}, {}

    def look(model, step):
        with torch.no_grad():
            losses = [model.loss(ids, targets), model.loss(*seen)]
        curve[step] = [each.item() for each in losses]
        if step in SHOWN:
            texts[step] = [
                text_of(model, greedy),
                text_of(model, drawn(temperature=0.8)),
            ]

    taken = iter(range(1, STEPS + 1))

    def evaluate(model):
        step = next(taken)
        if step in SHOWN or step % (20 if step <= 300 else 100) == 0:
            look(model, step)
        return 0.0

    config = training(STEPS, seed)
    if steps < STEPS:  # the first of them, as a replay
        history = train(
            model, lambda g: task().batch(BATCH, g), config,
            stop=lambda history: len(history.losses) == steps,
        )  # fmt: skip
        return {"first losses": history.losses}
    look(model.eval(), 0)
    history = train(
        model, lambda g: task().batch(BATCH, g), config,
        evaluate=evaluate, evaluate_every=1,
    )  # fmt: skip
    model.eval()
    ids, targets = task().validation_windows(160)
    loss = torch.tensor(
        [model.loss(*part).item() for part in zip(
            ids.split(32), targets.split(32), strict=True
        )]
    ).mean().item()  # fmt: skip
    bits = loss / math.log(2) / characters_per_token(task(), tokenizer())
    return {
        "first losses": history.losses[:10],
        "steps": list(curve),
        "held out": [here for here, _ in curve.values()],
        "training": [there for _, there in curve.values()],
        "shown": list(texts),
        "greedy texts": [texts[step][0] for step in texts],
        "drawn texts": [texts[step][1] for step in texts],
        "loss": loss,
        "bits per character": bits,
        "by position": by_position(model).tolist(),
        "unmasked": unmasked(model),
        "contexts": [after(model, prompt) for prompt in CONTEXTS],
        **{f"written, {way}": found for way, found in written(model).items()},
    }
