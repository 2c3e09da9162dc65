"""Who looks at the first token of a text, and what if it is forgotten?

Small models with a token in front and without, and caches of the last few.
"""

from functools import cache

import torch
from torch import nn

from attnbook import LanguageModel, ModelConfig
from attnbook.probes import attended
from attnbook.tasks import TextTask, bpe_tokenizer, python_topics, train

WORDS, LENGTH, STEPS, KEPT = 512, 48, 800, 16
CASES = {"plain": False, "start": True}
SEEDS = dict.fromkeys(CASES, 5)


@cache
def pages():
    text = python_topics()
    return TextTask(text, bpe_tokenizer(text, WORDS), LENGTH)


def in_front(ids, targets, start):
    """With the token in front, whose next one is not asked for."""
    if not start:
        return ids, targets
    pad = nn.functional.pad
    return pad(ids, (1, 0), value=WORDS), pad(targets, (1, 0), value=-100)


def lasting(n, first, last):
    """Who is in a cache of the last tokens, and of the first few."""
    at = torch.arange(n)
    return (at[:, None] - at < last) | (at < first)


@torch.no_grad()
def late_loss(model, ids, targets, mask=None):
    """Of the second half of each window."""
    late = slice(ids.shape[1] - LENGTH // 2, None)
    logits = model(ids, mask=mask)[:, late]
    return nn.functional.cross_entropy(logits.mT, targets[:, late]).item()


def run(seed, case, steps=None):
    """Weight on the first token, and the losses with smaller caches."""
    start = CASES[case]
    torch.manual_seed(seed)
    config = ModelConfig(
        WORDS + 1, n_layers=3, norm="pre", position="rotary", scaled=False,
        tied=False,
    )  # fmt: skip
    model = LanguageModel(config)
    record = train(
        model,
        lambda g: in_front(*pages().batch(16, g), start),
        steps=steps or STEPS,
        learning_rate=3e-3,
        seed=seed,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    ids, targets = in_front(*pages().validation_windows(150), start)
    n = ids.shape[1]
    late = torch.arange(n - LENGTH // 2, n)
    numbers["even"] = (1 / (late + 1)).mean().item()
    numbers["first"] = [
        call.weights[:, :, late, 0].mean((0, 2)).tolist()
        for call in attended(model, ids)
    ]
    numbers["all"] = late_loss(model, ids, targets)
    for first in (0, 1, 4):
        mask = lasting(n, first, KEPT - first)
        numbers[f"{first} kept"] = late_loss(model, ids, targets, mask)
    return numbers
