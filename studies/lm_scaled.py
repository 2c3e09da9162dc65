"""Sinusoidal positions and embeddings times sqrt(d_model), as lm_choices."""

import studies.lm_choices as choices

choices.CASES["scaled"] = {"position": "sinusoidal", "scaled": True}
SEEDS = 4


def run(seed, steps=None):
    return choices.run(seed, "scaled", steps)
