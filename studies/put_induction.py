"""How does a head come to look up what followed the last time?

Random words without repetition, again and again: after the first round,
each next word is known. Rotary positions, two heads a layer.
"""

import contextlib

import torch
from torch import nn

from attnbook import LanguageModel, ModelConfig
from attnbook.tasks import train

WORDS, LENGTH, STEPS, EVERY = 64, 32, 800, 20
SHORTEST, LONGEST = 6, 16  # words until the round begins again
CASES = {
    "two layers": {},
    "one layer": {"n_layers": 1},
    "one layer, keys of the word before": {"n_layers": 1, "shifted": True},
    "one layer, always ten words": {"n_layers": 1, "periods": (10, 10)},
    "two layers, always ten words": {"periods": (10, 10)},
}
SEEDS = {
    "two layers": 10,
    "one layer": 6,
    "one layer, keys of the word before": 6,
    "one layer, always ten words": 6,
    "two layers, always ten words": 6,
}


class OfTheWordBefore(nn.Module):
    """A projection that each word gets from the word before it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):  # (batch, tokens, d_model)
        return self.layer(nn.functional.pad(x[:, :-1], (0, 0, 1, 0)))


def make_model(*, n_layers=2, shifted=False):
    model = LanguageModel(
        ModelConfig(
            WORDS, d_model=64, n_heads=2, n_layers=n_layers, d_ff=128,
            norm="pre", position="rotary", scaled=False, tied=False,
        )
    )  # fmt: skip
    if shifted:
        attention = model.blocks[0].attention
        attention.key = OfTheWordBefore(attention.key)
    return model


def rounds(n, generator, periods=(SHORTEST, LONGEST)):
    """Sequences, and which of their words can be known."""
    noise = torch.rand(n, WORDS, generator=generator)
    words = noise.argsort(-1)  # (n, WORDS): none twice
    low, high = periods
    period = torch.randint(low, high + 1, (n, 1), generator=generator)
    at = torch.arange(LENGTH + 1)
    ids = words.gather(1, at % period)
    return ids, at[1:] >= period  # whether the next word is known


def batch(n, generator, periods):
    ids, _ = rounds(n, generator, periods)
    return ids[:, :-1], ids[:, 1:]


@torch.no_grad()
def weights_of(model, ids):
    """The weights of each layer: (batch, heads, tokens, tokens)."""
    x, found = model.input(ids), []
    for block in model.blocks:
        normed = block.attention_residual.norm(x)
        found.append(
            block.attention(normed, causal=True, return_weights=True)[1]
        )
        x = block(x, causal=True)
    return found


@torch.no_grad()
def examined(model, ids, known):
    """% of the known words predicted, and their loss."""
    logits = model(ids[:, :-1])
    targets = ids[:, 1:]
    right = (logits.argmax(-1) == targets)[known].double().mean()
    loss = nn.functional.cross_entropy(logits[known], targets[known])
    return 100 * right.item(), loss.item()


def scores(model, ids):
    """Of each head: weight on the word before, and on what followed.

    The second over words that were there before, on the words after them.
    """
    ids = ids[:, :-1]
    same = (ids[:, :, None] == ids[:, None]).tril(-1)
    after = nn.functional.pad(same[..., :-1], (1, 0))
    again = after.any(-1)
    previous, prefix = [], []
    for A in weights_of(model, ids):
        before = A.diagonal(-1, -2, -1).mean((0, 2))
        followed = (A * after[:, None]).sum(-1).transpose(0, 1)
        previous.append(before.tolist())
        prefix.append(followed[:, again].mean(1).tolist())
    return previous, prefix


@contextlib.contextmanager
def cut(model, layer, head):
    """The head adds nothing to the stream."""
    attention = model.blocks[layer].attention
    d, weight = attention.d_head, attention.output.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:, head * d : (head + 1) * d] = 0
    yield
    with torch.no_grad():
        weight.copy_(before)


def largest(rows):
    """Layer and head of the largest number."""
    return max(
        ((layer, head) for layer, row in enumerate(rows)
         for head in range(len(row))),
        key=lambda at: rows[at[0]][at[1]],
    )  # fmt: skip


def when_cut(model, test, previous, prefix):
    """% of known words predicted without each head."""
    first = (0, largest(previous[:1])[1])
    second = (1, largest(prefix[1:])[1])
    left = {
        "without it, previous": first,
        "without it, prefix": second,
        "without the other of layer 1": (0, 1 - first[1]),
        "without the other of layer 2": (1, 1 - second[1]),
    }
    found = {}
    for name, at in left.items():
        with cut(model, *at):
            found[name] = examined(model, *test)[0]
    return found


def run(seed, case, steps=None):
    """Over training: % of known words predicted, and the best scores."""
    how = dict(CASES[case])
    periods = how.pop("periods", (SHORTEST, LONGEST))
    torch.manual_seed(seed)
    model = make_model(**how)
    draws = torch.Generator().manual_seed(seed + 500)
    test = rounds(128, draws, periods)
    right, losses, best = [], [], {"previous": [], "prefix": []}

    def look(model):
        percent, loss = examined(model, *test)
        right.append(percent)
        losses.append(loss)
        previous, prefix = scores(model, test[0])
        best["previous"].append(max(previous[0]))
        best["prefix"].append(max(prefix[-1]))
        return percent

    record = train(
        model,
        lambda g: batch(32, g, periods),
        steps=steps or STEPS,
        learning_rate=3e-3,
        seed=seed,
        evaluate=look,
        evaluate_every=EVERY,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    previous, prefix = scores(model, test[0])
    numbers |= {"right": right, "loss": losses} | best
    numbers |= {"previous of heads": previous, "prefix of heads": prefix}
    longer = rounds(128, draws, (20, 24))
    numbers["right, longer"] = examined(model, *longer)[0]
    if case == "two layers":
        numbers |= when_cut(model, test, previous, prefix)
    return numbers
