"""Do attention weights show where a model looks?

Models that reverse eight tokens: with the factor 1/√d_k, until 99 % are
right, and without it, for 400 steps. Place i needs place 7 - i.
"""

import torch

from attnbook.tasks import accuracy, reversal_batch, train
from studies.aw_reversal import inside, reverser

PLACES = torch.arange(7, -1, -1)  # where the answers are
MIRROR = torch.eye(8, dtype=torch.bool).flip(0)  # the edges to them
SEEDS = {"factor": 8, "no factor": 24}


def sequences(seed):
    return reversal_batch(64, 8, 8, torch.Generator().manual_seed(seed))


def share(found):
    return 100 * found.double().mean().item()


def points_right(model, seed):
    """% of the queries whose largest weight is on the right place."""
    return share(inside(model, seed).argmax(-1) == PLACES)


@torch.no_grad()
def right_without(model, seed, edges):
    """% right when these edges are removed."""
    ids, targets = sequences(seed)
    return share(model(ids, ~edges).argmax(-1) == targets)


@torch.no_grad()
def changed(model, seed, further):
    """% of the answers that change when one edge a query is cut."""
    ids, _ = sequences(seed)
    heaviest = inside(model, seed).argmax(-1, keepdim=True)
    cut = (torch.arange(8) == (heaviest + further) % 8)[:, None]
    return share(model(ids).argmax(-1) != model(ids, ~cut).argmax(-1))


@torch.no_grad()
def right_where(model, seed, pointed):
    """% right of the queries whose largest weight is (not) in place."""
    ids, targets = sequences(seed)
    there = inside(model, seed).argmax(-1) == PLACES
    right = model(ids).argmax(-1) == targets
    return share(right[there == pointed])


def effective_keys(model, seed):
    """Mean of 1/Σa² over the rows of weights."""
    weights = inside(model, seed).softmax(-1)
    return (1 / weights.pow(2).sum(-1)).mean().item()


def run(seed, case, steps=400):
    model = reverser(seed, in_formula=case == "factor")
    test = sequences(seed + 500)
    record = train(
        model,
        lambda g: reversal_batch(16, 8, 8, g),
        steps=steps,
        learning_rate=1e-3,
        seed=seed,
        evaluate_every=20,
        stop_at=0.99,
        evaluate=lambda model: accuracy(model, *test),
    )
    numbers = {"first losses": record.losses[:20]}
    if steps < 400:
        return numbers
    numbers["points right"] = points_right(model, seed)
    if case == "factor":
        others = MIRROR.roll(3, 1)
        return numbers | {
            "right without": right_without(model, seed, MIRROR),
            "right without others": right_without(model, seed, others),
        }
    return numbers | {
        "effective keys": effective_keys(model, seed),
        "right there": right_where(model, seed, True),
        "right elsewhere": right_where(model, seed, False),
        "changed": changed(model, seed, 0),
        "changed by another": changed(model, seed, 3),
    }
