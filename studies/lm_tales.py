"""Who remembers a name? Small writers of tales, from three starts."""

from functools import cache
from random import Random

import torch

from attnbook import LanguageModel, ModelConfig, initialize
from attnbook.tasks.tales import CHOICES, TalesTask, tell, tokenizer
from attnbook.training import train
from studies.lm_text import training

STEPS, BATCH, RATE, EVERY, LENGTH = 400, 8, 1e-3, 25, 140
CASES = {
    "GPT-2's start": ("gpt2", 1),
    "Glorot's start": ("glorot", 1),
    # q and k, v and W_O multiply as they do in a model 768 wide
    "GPT-2's start, times √6": ("gpt2", 6**0.5),
}
SEEDS = dict.fromkeys(CASES, 3)
KINDS = ("name", "guest", "thing")


def make_model(seed, scheme, factor):
    config = ModelConfig(
        tokenizer().get_vocab_size(), d_model=128, n_heads=4, n_layers=2,
        norm="pre", scaled=False, position="rotary", activation="swiglu",
    )  # fmt: skip
    draws = torch.Generator().manual_seed(seed)
    model = initialize(LanguageModel(config), scheme, generator=draws)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "blocks" in name and weight.ndim == 2:
                weight *= factor
    return model


@cache
def examined():
    """New tales, and where each kind of word, of one token, is said again."""
    random = Random(2**20)
    line = tokenizer().encode("\n").ids
    rows = [
        line + tokenizer().encode(tell(random).text).ids + line
        for _ in range(60)
    ]
    longest = max(map(len, rows))
    ids = torch.tensor([row + line * (longest - len(row)) for row in rows])
    again = {}
    for kind in KINDS:
        words = [tokenizer().encode(f" {o[kind]}").ids for o in CHOICES[kind]]
        single = [word[0] for word in words if len(word) == 1]
        said = torch.isin(ids[:, 1:], torch.tensor(single))
        again[kind] = said & (said.cumsum(1) > 1)
    return ids[:, :-1], ids[:, 1:], again


@torch.no_grad()
def forgetting(model):
    """Loss of a word that was said before, by kind."""
    ids, targets, again = examined()
    log_p = model(ids).log_softmax(-1).gather(2, targets[..., None])[..., 0]
    return {kind: -log_p[at].mean().item() for kind, at in again.items()}


def run(seed, case, steps=STEPS):
    model, task = make_model(seed, *CASES[case]), TalesTask(LENGTH)
    curve = []

    def look(model):
        curve.append(forgetting(model))
        return 0.0

    history = train(
        model, lambda draws: task.batch(BATCH, draws),
        training(STEPS, seed, rate=RATE),
        evaluate=look, evaluate_every=EVERY,
        stop=lambda history: len(history.losses) == steps,
    )  # fmt: skip
    if steps < STEPS:  # the first of them, as a replay
        return {"first losses": history.losses}
    return {
        "first losses": history.losses[:10],
        "steps": list(range(EVERY, STEPS + 1, EVERY)),
        **{kind: [each[kind] for each in curve] for kind in KINDS},
    }
