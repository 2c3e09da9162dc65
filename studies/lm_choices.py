"""A small language model; then one choice is made otherwise."""

import math

import torch
from torch import nn

from attnbook.tasks import TextTask
from attnbook.training import TrainingConfig, train
from studies.lm_text import (
    characters_per_token,
    make_model,
    task,
    tokenizer,
    training,
)

LENGTH, BATCH, STEPS = 64, 8, 800
SIZE = {"d_model": 64, "n_heads": 4, "n_layers": 2}
SMALL = 20_000  # tokens of the small text
CASES = {
    "plain": {},
    "learned": {"position": "learned"},
    "sinusoidal": {"position": "sinusoidal"},
    "alibi": {"position": "alibi"},
    "no positions": {"position": "none"},
    "untied": {"tied": False},
    "dropout 0.1": {"dropout": 0.1},
    "constant rate": {"schedule": "constant"},
    "no warm-up": {"warmup": 0},
    "256 tokens": {"vocabulary": 256},
    "1024 tokens": {"vocabulary": 1024},
    "2048 tokens": {"vocabulary": 2048},
    "small text": {"small": True, "weight_decay": 0.0},
    "small text, dropout 0.2": {
        "small": True, "weight_decay": 0.0, "dropout": 0.2,
    },
    "small text, decay 1": {"small": True, "weight_decay": 1.0},
    "small text, decay 1 on all": {
        "small": True, "weight_decay": 1.0, "everything": True,
    },
}  # fmt: skip
SEEDS = dict.fromkeys(CASES, 4)


class DecayAll(TrainingConfig):
    """Weight decay on biases and norms, too."""

    def optimizer(self, model):
        return torch.optim.AdamW(
            model.parameters(), lr=self.learning_rate, betas=self.betas,
            eps=self.eps, weight_decay=self.weight_decay, fused=True,
        )  # fmt: skip


@torch.no_grad()
def losses_at(model, ids, targets, **how):
    """Cross-entropy of each token."""
    logits = model(ids, **how)
    return nn.functional.cross_entropy(logits.mT, targets, reduction="none")


def longer(model, vocabulary):
    """Loss in windows of 256 tokens, by quarter: it has trained on 64."""
    ids, targets = task(vocabulary, 256).validation_windows(40)
    found = losses_at(model, ids, targets).mean(0)
    return found.view(4, 64).mean(1).tolist()


def padded(model, vocabulary):
    """Loss of 32 tokens: alone, and with 32 of padding in front.

    The padding masked and positions from the first real token; masked,
    positions from the edge; not masked.
    """
    ids, targets = task(vocabulary, 32).validation_windows(100)
    filled = nn.functional.pad(ids, (32, 0))
    real = nn.functional.pad(torch.ones_like(ids), (32, 0)).bool()
    keys = real[:, None, None]  # positions count from the edge
    return [
        losses_at(model, ids, targets).mean().item(),
        *(
            nn.functional.cross_entropy(
                model(filled, **how)[:, 32:].mT, targets
            ).item()
            for how in ({"padding_mask": real}, {"mask": keys}, {})
        ),
    ]


def learn(seed, case, steps=None, watch=None):
    """A trained model and its history."""
    settings = dict(CASES[case])
    small = settings.pop("small", False)
    kind = DecayAll if settings.pop("everything", False) else TrainingConfig
    vocabulary = settings.setdefault("vocabulary", 512)
    how = {
        name: settings.pop(name)
        for name in ("schedule", "warmup", "weight_decay")
        if name in settings
    }
    model = make_model(seed, **SIZE | settings)
    pages = task(vocabulary, LENGTH)
    if small:
        pages = small_text(pages)
    whole = 1000 if small else STEPS
    config = training(whole, seed, **how)
    history = train(
        model,
        lambda g: pages.batch(BATCH, g),
        kind(**vars(config)),
        evaluate=watch and (lambda model: watch(model, pages)),
        evaluate_every=50,
        stop=lambda history: len(history.losses) == steps,
    )
    return model.eval(), history


def small_text(pages):
    """The same held-out text after a short text to learn from."""
    less = TextTask.__new__(TextTask)
    vars(less).update(vars(pages), training=pages.training[:SMALL])
    return less


def run(seed, case, steps=None):
    if steps:  # the first of them, as a replay
        return {"first losses": learn(seed, case, steps)[1].losses}
    seen_losses = []

    def watch(model, pages):
        ids, targets = pages.validation_windows(100)
        parts = pages.training[: 100 * LENGTH + 1]
        seen = parts[:-1].view(100, -1), parts[1:].view(100, -1)
        seen_losses.append(model.loss(*seen).item())
        return model.loss(ids, targets).item()

    model, history = learn(seed, case, watch=watch)
    vocabulary = CASES[case].get("vocabulary", 512)
    curve = list(history.evaluations.values())
    per_token = characters_per_token(
        task(vocabulary, LENGTH), tokenizer(vocabulary)
    )
    numbers = {
        "first losses": history.losses[:10],
        "curve": curve,
        "training curve": seen_losses,
        "loss": curve[-1],
        "bits per character": curve[-1] / math.log(2) / per_token,
        "longer": longer(model, vocabulary),
    }
    if vocabulary == 512:
        numbers["padded"] = padded(model, vocabulary)
    return numbers
