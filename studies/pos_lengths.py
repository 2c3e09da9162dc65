"""Sequences longer than in training, read with five kinds of positions."""

import torch

from attnbook import LanguageModel, ModelConfig, sliding_window_mask
from attnbook.tasks import train

TRAINED, LONGEST = 16, 64
BASE_1000 = {"kind": "rotary", "base": 1000.0}
ALIBI_900 = {"kind": "alibi", "steps": 900}
CASES = {
    "sinusoidal": {"kind": "sinusoidal"},
    "learned": {"kind": "learned"},
    "rotary": {"kind": "rotary"},
    "alibi": {"kind": "alibi"},
    "none": {"kind": "none"},
    "none, one layer": {"kind": "none", "layers": 1},
    "base 1000": BASE_1000,
    "alibi, 900 steps": ALIBI_900,
    "rotary, three back": {"kind": "rotary", "back": 3},
    "alibi, 900 steps, three back": ALIBI_900 | {"back": 3},
}
SEEDS = dict.fromkeys(CASES, 8) | {
    "rotary": 24,
    "none, one layer": 6,
    "alibi, 900 steps": 6,
    "rotary, three back": 6,
    "alibi, 900 steps, three back": 6,
}


def steps_back(back, batch, length, generator):
    """Random tokens; the target is the token ``back`` places before."""
    ids = torch.randint(16, (batch, length), generator=generator)
    targets = ids.roll(back, dims=1)
    targets[:, :back] = -100  # there is none: left out of the loss
    return ids, targets


def trained(kind, seed, back=1, layers=2, base=10000.0, steps=300):
    """A model, and its losses."""
    torch.manual_seed(seed)
    model = LanguageModel(
        ModelConfig(
            vocab_size=16,
            d_model=64,
            n_heads=4,
            n_layers=layers,
            d_ff=64,
            position=kind,
            max_tokens=LONGEST,
            rotary_base=base,
        )
    )
    record = train(
        model,
        lambda g: steps_back(back, 8, TRAINED, g),
        steps=steps,
        learning_rate=3e-3,
        seed=seed,
    )
    return model, record.losses


@torch.no_grad()
def right_by_place(model, seed, back=1, mask=None):
    """% right at each of 64 places, on 100 sequences."""
    generator = torch.Generator().manual_seed(seed + 500)
    ids, targets = steps_back(back, 100, LONGEST, generator)
    right = model(ids, mask).argmax(dim=-1) == targets
    return right.sum(dim=0).tolist()  # of 100


def all_but(*distances):
    """May attend to all keys but those at these distances, give or take 1."""
    distance = torch.arange(LONGEST)[:, None] - torch.arange(LONGEST)
    hidden = [(distance - d).abs() <= 1 for d in distances]
    return ~torch.stack(hidden).any(dim=0)


MASKS = {
    "all keys": None,
    "the last 16": sliding_window_mask(LONGEST, before=TRAINED - 1),
    "without 20, 39, 58": all_but(20, 39, 58),
    "without 25, 33, 48": all_but(25, 33, 48),
    "without 32, 45": all_but(32, 45),
}


def run(seed, case, steps=None):
    """% right by place, for each mask; the first losses of the training."""
    choices = CASES[case] | ({"steps": steps} if steps else {})
    model, losses = trained(seed=seed, **choices)
    numbers = {"first losses": losses[:20]}
    if steps is None:
        rotary = choices["kind"] == "rotary"
        for name in MASKS if rotary else ("all keys", "the last 16"):
            numbers[name] = right_by_place(
                model, seed, choices.get("back", 1), MASKS[name]
            )
    return numbers
