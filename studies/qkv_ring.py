"""Which of W_Q, W_K and W_V does a head need where the place says it all?

Each place outputs the token of its right neighbour (ring) or of its mirror
image (reversal). One post-norm layer with one head, if not said otherwise.
"""

import copy

import torch

from attnbook import Encoder, ModelConfig
from attnbook.tasks import accuracy, reversal_batch, train


def ring_batch(batch, length, vocab_size, generator):
    ids = torch.randint(vocab_size, (batch, length), generator=generator)
    return ids, ids.roll(-1, dims=1)


def prepare(attention, variant):
    """Change one attention before training."""
    projections = (attention.query, attention.key, attention.value)
    if variant.startswith("one matrix"):
        attention.key = attention.query
    if variant == "two, equal at the start":
        attention.key = copy.deepcopy(attention.query)
    for layer in projections:
        if "identity" in variant:
            torch.nn.init.eye_(layer.weight)
        layer.weight.requires_grad_("fixed" not in variant)
    size = {"one matrix, a quarter": 0.25, "half the identity, fixed": 0.5}
    with torch.no_grad():
        for layer in {attention.query, attention.key}:  # one, if shared
            layer.weight.mul_(size.get(variant, 1))
    frozen = {
        "no attention": attention.output,
        "uniform weights": attention.query,
    }
    if variant in frozen:  # W_O = 0 or W_Q = 0, and so they stay
        torch.nn.init.zeros_(frozen[variant].weight).requires_grad_(False)


def leave_out(attention, variant):
    """W_K or W_V is the identity and stays it, or one makes both."""
    if variant == "one for K and V":
        attention.value = attention.key
    for name, layer in (("no K", attention.key), ("no V", attention.value)):
        if name in variant:
            torch.nn.init.eye_(layer.weight).requires_grad_(False)


def deep_copies(attention, variant):
    """All four matrices begin with the numbers of W_Q."""
    if variant == "copies":
        for name in ("key", "value", "output"):
            setattr(attention, name, copy.deepcopy(attention.query))


def fit(task, variant, seed, change=prepare, steps=400, stop_at=0.99, **more):
    """Train; the model, the record, and % right at each place."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 8, "d_model": 64, "n_layers": 1, "d_ff": 64}
    sizes |= {"n_heads": 1, "norm": "post", "tied": False, "scaled": False}
    model = Encoder(ModelConfig(**sizes | more))
    change(model.blocks[0].attention, variant)
    test = task(256, 8, 8, torch.Generator().manual_seed(seed + 500))
    record = train(
        model,
        lambda g: task(16, 8, 8, g),
        steps=steps,
        learning_rate=3e-3,
        seed=seed,
        evaluate=lambda model: accuracy(model, *test),
        evaluate_every=25,
        stop_at=stop_at,
    )
    with torch.no_grad():
        right = (model(test[0]).argmax(-1) == test[1]).double().mean(dim=0)
    return model, record, (100 * right).tolist()


def neighbour(model, seed):
    """The right neighbour's weight, and at how many places it is largest.

    The weight is a geometric mean over the places of a ring of eight.
    """
    ids, _ = ring_batch(256, 8, 8, torch.Generator().manual_seed(seed + 500))
    with torch.no_grad():
        attention = model.blocks[0].attention
        A = attention(model.input(ids), return_weights=True)[1][:, 0]
    right = (torch.arange(8) + 1) % 8
    largest = (A.argmax(-1) == right).double().mean(dim=0) > 0.5
    return {
        "neighbour": A[:, range(8), right].log().mean().exp().item(),
        "largest": int(largest.sum()),
    }


ONE, EQUAL = "one matrix for Q and K", "two, equal at the start"
IDENTITY = "identity, fixed"
CASES = {  # name: number of seeds, variant, what else differs
    "trained": (10, "trained", {}),
    "identity, then trained": (10, "identity, then trained", {}),
    ONE: (10, ONE, {}),
    IDENTITY: (6, IDENTITY, {}),
    "random, fixed": (6, "random, fixed", {}),
    "no attention": (6, "no attention", {}),
    "identity, fixed, pre-norm": (6, IDENTITY, {"norm": "pre"}),
    f"{ONE}, four heads": (12, ONE, {"n_heads": 4, "steps": 800}),
}
for variant in ("trained", ONE, EQUAL):
    more = {"task": reversal_batch, "steps": 800}
    CASES[f"reversal, {variant}"] = (8, variant, more)
for variant in ("no K", "no V", "one for K and V"):
    CASES[variant] = (8, variant, {"change": leave_out})
for variant, norm in (("copies", "post"), ("drawn", "pre"), ("copies", "pre")):
    more = {"norm": norm, "change": deep_copies, "steps": 800}
    CASES[f"{variant}, {norm}-norm"] = (10, variant, more)
WIDE = {"d_ff": 256, "steps": 600, "stop_at": None}
LEARNED = {"position": "learned", "max_tokens": 8}
CASES[f"{ONE}, wide"] = (6, ONE, WIDE)
CASES[f"{ONE}, wide, learned positions"] = (6, ONE, WIDE | LEARNED)
SEEDS = {name: n for name, (n, _, _) in CASES.items()}


def run(seed, case, steps=None):
    """Steps to 99 % (if it gets there), and % right at each place.

    And % of all tokens that are right after 400 steps, or at the end if it
    is there sooner.
    """
    _, variant, choices = CASES[case]
    choices = {"task": ring_batch, "steps": 400} | choices
    if steps:
        choices["steps"] = steps
    model, record, places = fit(variant=variant, seed=seed, **choices)
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    if "wide" in case:
        numbers |= neighbour(model, seed)
    return numbers | {
        "learned": record.first_step_with(0.99) is not None,
        "steps": record.first_step_with(0.99) or choices["steps"],
        "right": 100 * record.evaluations[min(400, max(record.evaluations))],
        "places": places,
    }
