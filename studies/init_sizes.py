"""The four offsets with Adam, from W_Q and W_K of twelve sizes.

For each size: over how many of the eight keys a query averages at
initialization, the loss in means of five steps, and the steps to 90 %.
"""

import math

import torch

from studies.init_offsets import Layer, learn, queries

SIZES = {  # times the standard (Glorot's)
    "1/100": 1 / 100,
    "1/30": 1 / 30,
    "1/10": 1 / 10,
    "1/6": 1 / 6,
    "1/3": 1 / 3,
    "1/2": 1 / 2,
    "1/√2": math.sqrt(1 / 2),
    "1": 1.0,
    "√2": math.sqrt(2),
    "2": 2.0,
    "2√2": math.sqrt(8),
    "4": 4.0,
}
SEEDS = dict.fromkeys(SIZES, 8) | dict.fromkeys(["1/100", "1"], 48)


def effective_keys(layer, seed, n=64):
    """Of the eight keys, before training: the mean over the queries."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(8, (n, 8), generator=g)
    x = layer.vectors[ids] + layer.vectors[8:]
    with torch.no_grad():
        q, k = (
            (x @ layer.W[name]).view(n, 8, 4, 8).transpose(1, 2)
            for name in "QK"
        )
        A = (q @ k.mT / layer.divisor).softmax(-1)
    return (1 / A.pow(2).sum(-1)).mean().item()


def run(seed, case, steps=300):
    start = queries(SIZES[case])
    took, losses = learn(start, seed, steps)
    found = {"keys": effective_keys(Layer(start, seed), seed)}
    found |= {"first losses": losses[:20]}
    if steps <= 20:
        return found
    fives = zip(*[iter(losses)] * 5, strict=False)
    return found | {"steps": took, "losses": [sum(five) / 5 for five in fives]}
