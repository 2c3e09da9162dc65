"""How does a head come to look up what followed the last time?

Random words, none twice, and then these again from one of them on: the next
word is the one that followed before. Rotary positions, two heads a layer.
"""

import torch
from torch import nn

from attnbook import LanguageModel, ModelConfig
from attnbook.probes import ablated, attended
from attnbook.tasks import train

WORDS, LENGTH, STEPS, EVERY = 64, 32, 1600, 50
ANEW = 6, 16, True  # new words, at least and at most; then from any
ROUND = 10, 10, False  # always ten words, from the first again
LONGER = 20, 24, True
CASES = {
    "two layers": {},
    "two layers, one head": {"n_heads": 1},
    "one layer": {"n_layers": 1},
    "one layer, keys of the word before": {"n_layers": 1, "shifted": True},
    "one layer, a round of ten": {"n_layers": 1, "words": ROUND},
    "two layers, a round of ten": {"words": ROUND},
}
SEEDS = dict.fromkeys(CASES, 5) | {"two layers": 12}


class OfTheWordBefore(nn.Module):
    """A projection that each word gets from the word before it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):  # (batch, tokens, d_model)
        return self.layer(nn.functional.pad(x[:, :-1], (0, 0, 1, 0)))


def make_model(*, n_layers=2, n_heads=2, shifted=False):
    model = LanguageModel(
        ModelConfig(
            WORDS, d_model=64, n_heads=n_heads, n_layers=n_layers, d_ff=128,
            norm="pre", position="rotary", scaled=False, tied=False,
        )
    )  # fmt: skip
    if shifted:
        attention = model.blocks[0].attention
        attention.key = OfTheWordBefore(attention.key)
    return model


def rounds(n, generator, how=ANEW):
    """Sequences, and which of their next words can be known.

    New words; then from one of them on, round and round. With which one it
    goes on can't be known, nor, at first, what follows the last one.
    """
    low, high, anywhere = how
    noise = torch.rand(n, WORDS, generator=generator)
    words = noise.argsort(-1)  # (n, WORDS): none twice
    size = torch.randint(low, high + 1, (n, 1), generator=generator)
    start = (torch.rand(n, 1, generator=generator) * size).long() * anywhere
    t = torch.arange(LENGTH + 1)
    at = torch.where(t < size, t, (t - size + start) % size)
    known = (t > size) & (at > 0)
    return words.gather(1, at), known[:, 1:]


def batch(n, generator, how):
    ids, _ = rounds(n, generator, how)
    return ids[:, :-1], ids[:, 1:]


@torch.no_grad()
def examined(model, ids, known):
    """% of the known words predicted, and their loss."""
    logits = model(ids[:, :-1])
    targets = ids[:, 1:]
    right = (logits.argmax(-1) == targets)[known].double().mean()
    loss = nn.functional.cross_entropy(logits[known], targets[known])
    return 100 * right.item(), loss.item()


def looks(model, ids, known):
    """Of each head of each layer: where it looks, as weights.

    `back` has the weight so many words back, 0 to 8; `after` that on the
    words 0 to 8 after an earlier place of the same word, where the next
    word is known. For `after` 1 this is the prefix score.
    """
    ids = ids[:, :-1]
    same = (ids[:, :, None] == ids[:, None]).tril(-1).double()
    places = [nn.functional.pad(same, (n, 0))[..., :LENGTH] for n in range(9)]
    back, after = [], []
    for call in attended(model, ids):
        A = call.weights  # (batch, heads, tokens, tokens)
        back.append([A.diagonal(-n, -2, -1).mean((0, 2)) for n in range(9)])
        on = [(A * at[:, None]).sum(-1).transpose(1, 2) for at in places]
        after.append([weight[known].mean(0) for weight in on])
    return (
        [torch.stack(layer, 1).tolist() for layer in back],
        [torch.stack(layer, 1).tolist() for layer in after],
    )  # [layer][head][how many]


def when_cut(model, test):
    """% of known words predicted when a head gives zero, or its mean."""
    found = {}
    for how, mean in (("zero", None), ("mean", (test[0][:, :-1],))):
        found[how] = []
        for layer, block in enumerate(model.blocks):
            where = f"blocks.{layer}.attention"
            for head in range(block.attention.n_heads):
                with ablated(model, where, head, mean=mean):
                    found[how].append(examined(model, *test)[0])
    return found


def run(seed, case, steps=None):
    """Over training: % of known words predicted, and where heads look."""
    how = dict(CASES[case])
    words = how.pop("words", ANEW)
    torch.manual_seed(seed)
    model = make_model(**how)
    draws = torch.Generator().manual_seed(seed + 500)
    test = rounds(128, draws, words)
    right, losses = [], []

    def look(model):
        percent, loss = examined(model, *test)
        right.append(percent)
        losses.append(loss)
        return percent

    record = train(
        model,
        lambda g: batch(32, g, words),
        steps=steps or STEPS,
        learning_rate=3e-3,
        seed=seed,
        evaluate=look,
        evaluate_every=EVERY,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    back, after = looks(model, *test)
    numbers |= {"right": right, "loss": losses, "back": back, "after": after}
    for name, other in (("anew", ANEW), ("longer", LONGER)):
        percent, _ = examined(model, *rounds(128, draws, other))
        numbers[f"right, {name}"] = percent
    return numbers | when_cut(model, test)
