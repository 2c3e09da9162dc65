"""Twelve blocks learn to write eight words backwards, from many starts."""

import numpy as np
import torch

from attnbook.tasks import accuracy, train
from studies.deep_step import backwards, model_of

RATE, FAST, SLOW = 0.003, 0.01, 0.001
POST = ["glorot", "glorot scaled", "gpt2 plain", "gpt2"]
CASES = [(s, "post", warmup, RATE) for s in POST for warmup in (0, 50)]
CASES += [(s, "pre", 0, RATE) for s in POST]
CASES += [
    ("deepnorm", "deepnorm", 0, RATE),
    ("t_fixup", "none", 0, RATE),
    ("glorot", "rezero", 0, RATE),
    ("gpt2", "post", 0, FAST),
    ("gpt2", "post", 50, FAST),
    ("gpt2", "pre", 0, FAST),
    ("gpt2 plain", "pre", 0, FAST),
    ("glorot", "pre", 0, FAST),
    ("glorot", "pre", 50, FAST),
    ("glorot scaled", "pre", 0, FAST),
    ("glorot", "post", 0, SLOW),
]


def case_name(scheme, norm, warmup, rate):
    return f"{scheme}, {norm}, {rate}" + (", warm-up" if warmup else "")


BY_NAME = {case_name(*case): case for case in CASES}
SEEDS = dict.fromkeys(BY_NAME, 6) | dict.fromkeys(
    [  # where luck counts, more
        "glorot scaled, post, 0.003",
        "glorot, pre, 0.01",
        "glorot, pre, 0.01, warm-up",
        "glorot scaled, pre, 0.01",
        "gpt2, post, 0.01",
        "gpt2, post, 0.01, warm-up",
    ],
    12,
)


def run(seed, case, steps=240):
    """Adam, until 35 % of the test words are right or the steps are used.

    Losses are means of 20 steps.
    """
    scheme, norm, warmup, rate = BY_NAME[case]
    model = model_of(scheme, norm, 12, seed)
    test = backwards(64, torch.Generator().manual_seed(10**6))
    found = train(
        model,
        lambda g: backwards(8, g),
        steps=steps,
        learning_rate=rate,
        seed=seed,
        warmup=warmup,
        stop_at=0.35,
        evaluate=lambda m: accuracy(m, *test),
        evaluate_every=20,
    )
    numbers = {"first losses": found.losses[:20]}
    if steps >= 240:
        losses = np.array(found.losses).reshape(-1, 20).mean(axis=1)
        right = 100 * list(found.evaluations.values())[-1]
        numbers |= {"losses": losses.tolist(), "right": right}
    return numbers
