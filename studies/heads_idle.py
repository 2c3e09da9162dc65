"""What becomes of heads that a solved task has no need for?

One offset, asked for four times: a single pattern is all it takes.
"""

import torch

from attnbook import scaled_dot_product_attention
from studies.heads_sharing import (
    ARRANGEMENTS,
    OFFSETS,
    LookAhead,
    look_ahead,
    loss_of,
    per_head,
    train,
)

ONE = (1, 1, 1, 1)
SEEDS = {"clean": 8, "a quarter wrong": 16}


@torch.no_grad()
def patterns(model, seed):
    """(heads, places, places): mean attention weights."""
    ids, _ = look_ahead(200, OFFSETS, torch.Generator().manual_seed(seed))
    x = (model.words[ids] + model.places)[:, None]
    q, k, v = (x @ per_head(model.W[name], 4) for name in "QKV")
    _, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
    return weights.mean(dim=0)


@torch.no_grad()
def make_equal(model, noise=0.0, names="QKVO"):
    """Give every head the numbers of head 0, plus some noise."""
    for name in names:
        W = model.W[name]
        heads = W.view(4, 8, 32) if name == "O" else W
        heads.copy_(heads[:1] + noise * torch.randn_like(heads))


def fresh(seed, **how):
    model = LookAhead(seed, *ARRANGEMENTS["own matrices (proper)"])
    make_equal(model, **how)
    return model


def distances(model, seed, offsets=OFFSETS, steps=200, wrong=0.0):
    """Largest difference between two heads' W_Q, after each step."""
    found = []

    def look(_, model):
        W = model.W["Q"].detach()
        found.append((W - W[:1]).abs().max().item())

    train(model, seed, steps, offsets, after_step=look, wrong=wrong)
    return found


def run(seed, case, steps=1000):
    """From a random start, the head that turns to the offset least.

    Its weight on it, and on the place ahead that it likes best. And how far
    heads end apart that start a billionth apart.
    """
    wrong = 0.25 if case == "a quarter wrong" else 0.0
    model = LookAhead(seed, *ARRANGEMENTS["own matrices (proper)"])
    train(model, seed, steps, ONE, wrong=wrong)
    if steps <= 20:
        return {"loss after 20": loss_of(model, seed)}
    weights, i = patterns(model, seed), torch.arange(8)
    ahead = torch.stack(
        [weights[:, i, (i + n) % 8].mean(dim=-1) for n in range(8)], dim=-1
    )
    head = ahead[ahead[:, 1].argmin()]
    apart = distances(fresh(seed, noise=1e-9), seed, ONE, steps, wrong)[-1]
    early = LookAhead(seed, *ARRANGEMENTS["own matrices (proper)"])
    train(early, seed, 20, ONE, wrong=wrong)
    return {
        "least": head[1].item(),
        "best": head.max().item(),
        "apart": apart,
        "loss after 20": loss_of(early, seed),
    }
