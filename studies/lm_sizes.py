"""Held-out loss by width, depth and number of tokens."""

from attnbook.training import train
from studies.lm_text import make_model, task, training

LENGTH, BATCH, STEPS = 64, 8, 512
AFTER = (64, 128, 256, 512)
SIZES = [(d, n) for d in (32, 64, 128) for n in (1, 2, 4)]
SEEDS = {f"{d} wide, {n} layers": 3 for d, n in SIZES}


def run(seed, case, steps=STEPS):
    """A constant rate, so that each number of steps is a whole training."""
    d_model, n_layers = SIZES[list(SEEDS).index(case)]
    model = make_model(seed, d_model=d_model, n_heads=4, n_layers=n_layers)
    pages = task(512, LENGTH)
    held_out = pages.validation_windows(100)
    config = training(STEPS, seed, schedule="constant")
    history = train(
        model,
        lambda g: pages.batch(BATCH, g),
        config,
        stop=lambda history: len(history.losses) == steps,
        evaluate=lambda model: model.loss(*held_out).item(),
        evaluate_every=64,
    )
    numbers = {"first losses": history.losses[:10]}
    if steps == STEPS:
        numbers["losses"] = [history.evaluations[n] for n in AFTER]
        blocks = model.blocks.parameters()
        numbers["parameters"] = sum(p.numel() for p in blocks)
    return numbers
