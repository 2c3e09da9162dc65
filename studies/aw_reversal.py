"""Does reversal train without the factor 1/√d_k, and what costs the time?

Eight tokens in, the same eight backwards out; one layer, one head.
"""

import math

import torch

from attnbook import Encoder, ModelConfig, attention_logits
from attnbook.tasks import accuracy, reversal_batch, train


def with_factor(model, in_formula, start):
    """Take 1/√d_k out of the formula, or not; and scale W_Q's start."""
    attention = model.blocks[0].attention
    root = math.sqrt(attention.query.out_features / attention.n_heads)
    with torch.no_grad():
        attention.query.weight *= start
    if not in_formula:  # queries √d_k times larger: the division is undone
        attention.query.register_forward_hook(lambda m, x, q: q * root)
    return model


def reverser(seed, in_formula=True, start=1.0, scaled=True, norm="pre"):
    torch.manual_seed(seed)
    model = Encoder(
        ModelConfig(
            vocab_size=8,
            d_model=128,
            n_heads=1,
            n_layers=1,
            d_ff=64,
            norm=norm,
            tied=False,
            scaled=scaled,
        )
    )
    return with_factor(model, in_formula, start)


def both_fast(seed, **how):
    """W_Q and W_K stored √d_k times smaller than used."""
    model = reverser(seed, **how)
    key = model.blocks[0].attention.key
    with torch.no_grad():
        key.weight /= ROOT
    key.register_forward_hook(lambda m, x, k: k * ROOT)
    return model


def inside(model, seed):
    """Logits of the only head on 64 test sequences."""
    ids, _ = reversal_batch(64, 8, 8, torch.Generator().manual_seed(seed))
    block = model.blocks[0]
    with torch.no_grad():
        x = model.input(ids)
        if model.config.norm == "pre":
            x = block.attention_residual.norm(x)
        return attention_logits(
            block.attention.query(x), block.attention.key(x)
        )


def variance_in_rows(model, seed):
    """Mean variance of a row's logits, as the softmax sees them."""
    return inside(model, seed).var(-1).mean().item()


def matched(seed, **kind):
    """What gives a model without the factor row variances of 100."""
    kind = {"in_formula": False, **kind}
    before = variance_in_rows(reverser(seed, **kind), seed)
    return kind | {"start": math.sqrt(100 / before)}


def gradient_size(model, seed):
    """RMS of the gradient at W_Q, in thousandths."""
    model.zero_grad()
    generator = torch.Generator().manual_seed(seed)
    model.loss(*reversal_batch(16, 8, 8, generator)).backward()
    gradient = model.blocks[0].attention.query.weight.grad
    return 1e3 * gradient.pow(2).mean().sqrt().item()


ROOT = math.sqrt(128)
SMALLER = {"in_formula": False, "start": 1 / ROOT}
KINDS = {
    f"large, {norm}, {words}": {"scaled": scaled, "norm": norm}
    for words, scaled in (("not scaled", False), ("scaled", True))
    for norm in ("post", "pre")
}
CASES = {
    "the usual one": {},
    "no factor, W_Q smaller": SMALLER,
    "factor, W_Q larger": {"start": ROOT},
    "no factor": {"in_formula": False},
    "both fast": SMALLER | {"build": both_fast},
    "no factor, patient": {"in_formula": False, "steps": 3600},
    "no factor, third of the rate": {
        "in_formula": False,
        "steps": 3600,
        "rate": 1e-3 / 3,
    },
    "60 steps": {"steps": 60, "stop_at": None},
    "60 steps, no factor": {
        "in_formula": False,
        "steps": 60,
        "stop_at": None,
    },
    "600 steps": {"steps": 600, "stop_at": None},
} | KINDS
SEEDS = dict.fromkeys(CASES, 8) | {
    "no factor, W_Q smaller": 24,
    "no factor, third of the rate": 6,
    "60 steps": 24,
    "60 steps, no factor": 24,
    "large, post, not scaled": 12,
    "large, pre, not scaled": 12,
}


def run(seed, case, steps=None):
    """Steps until 99 % are right (all, if never), and the best accuracy."""
    how = {"steps": 400, "rate": 1e-3, "stop_at": 0.99, "build": reverser}
    how |= CASES[case]
    last, rate, stop_at, build = (how.pop(k) for k in list(how)[:4])
    if case in KINDS:
        how = matched(seed, **how)
    model = build(seed, **how)
    test = reversal_batch(64, 8, 8, torch.Generator().manual_seed(seed + 500))
    record = train(
        model,
        lambda g: reversal_batch(16, 8, 8, g),
        steps=steps or last,
        learning_rate=rate,
        seed=seed,
        evaluate_every=20,
        stop_at=stop_at,
        evaluate=lambda model: accuracy(model, *test),
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    return numbers | {
        "steps": record.first_step_with(0.99) or last,
        "best": 100 * max(record.evaluations.values()),
        "row variance": variance_in_rows(model, seed),
        "gradient": gradient_size(model, seed),
    }
