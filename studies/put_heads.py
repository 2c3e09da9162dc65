"""May weights be read as reasons? The heads of a small model of text.

Four layers of four heads, d_head 16, trained on Python's help texts: what a
weight says, what cutting says, and how many heads are needed.
"""

import itertools

import torch
from torch import nn

from attnbook.probes import (
    ablated,
    attended,
    contributions,
    logit_lens,
    mean_cosine,
)
from attnbook.training import train
from studies.lm_text import make_model, task, training

VOCABULARY, LENGTH, BATCH, STEPS, LAYERS, HEADS = 512, 64, 8, 800, 4, 4
CASES = {
    "four heads": 4,
    "two heads from the start": 2,
    "one head from the start": 1,
}
SEEDS = dict.fromkeys(CASES, 4)
ALL = list(itertools.product(range(LAYERS), range(HEADS)))


def data():
    return task(VOCABULARY, LENGTH)


@torch.no_grad()
def loss_without(model, heads, ids, targets, mean=None):
    """When these (layer, head) give zero, or their mean of some batch."""
    layers = {layer for layer, _ in heads}

    def loss(left):
        if not left:
            return model.loss(ids, targets).item()
        layer = left[0]
        chosen = [h for at, h in heads if at == layer]
        where = f"blocks.{layer}.attention"
        with ablated(model, where, chosen, mean=mean and mean[layer]):
            return loss(left[1:])

    return loss(sorted(layers))


@torch.no_grad()
def means(model, ids):
    """Of what each layer's heads give: (heads, d_value)."""
    return [
        (call.weights @ call.values).mean((0, 2))
        for call in attended(model, ids)
    ]


def pruned(model, effects, ids, targets, mean):
    """The loss when those go first that alone cost least."""
    order = sorted(ALL, key=lambda head: effects[ALL.index(head)])
    return [
        loss_without(model, order[:n], ids, targets, mean)
        for n in (0, 4, 8, 12, 16)
    ]


def ranks(x):
    return x.argsort().argsort().double()


def rank_correlation(x, y):
    return torch.corrcoef(torch.stack([ranks(x), ranks(y)]))[0, 1].item()


@torch.no_grad()
def predictions_without(model, ids, layer, edges):
    """The last token's log-probabilities, without one edge a sequence.

    An edge is a head and a key: what that key gives the last token there is
    taken away.
    """
    head, key = edges
    n = torch.arange(len(ids))
    x = model.input(ids)
    for i, block in enumerate(model.blocks):
        normed = block.attention_residual.norm(x)
        added, A = block.attention(normed, causal=True, return_weights=True)
        if i == layer:
            v = block.attention.value(normed).unflatten(-1, (HEADS, -1))
            W_O = block.attention.output.weight.unflatten(1, (HEADS, -1))
            given = A[n, head, -1, key, None] * v[n, key, head]
            added[:, -1] -= torch.einsum("nv,dnv->nd", given, W_O[:, head])
        x = x + added
        x = block.feed_forward_residual(x, block.feed_forward)
    logits = model.output(model.final_norm(x)) if model.output else (
        model.final_norm(x) @ model.embedding.weight.T
    )  # fmt: skip
    return logits[:, -1].log_softmax(-1)


@torch.no_grad()
def edges(model, ids, generator):
    """How well two sizes order edges by what cutting them does."""
    calls, n = attended(model, ids), torch.arange(len(ids))
    whole = model(ids)[:, -1].log_softmax(-1)
    weights, written, changes = [], [], []
    for layer, call in enumerate(calls):
        head = torch.randint(HEADS, (len(ids),), generator=generator)
        last = call.weights[n, head, -1]  # (sequences, keys)
        some = torch.randint(8, (len(ids),), generator=generator)
        key = last.argsort(-1, descending=True)[n, some]
        cut = predictions_without(model, ids, layer, (head, key))
        weights.append(last[n, key])
        written.append(contributions(call)[n, head, -1, key])
        changes.append((whole.exp() * (whole - cut)).sum(-1))
    a, c, change = map(torch.cat, (weights, written, changes))
    return rank_correlation(a, change), rank_correlation(c, change)


def run(seed, case, steps=None):
    """The loss; of four heads also what weights and cuts say."""
    n_heads = CASES[case]
    model = make_model(
        seed, VOCABULARY, LENGTH, d_model=64, n_heads=n_heads, d_head=16,
        n_layers=LAYERS,
    )  # fmt: skip
    record = train(
        model,
        lambda g: data().batch(BATCH, g),
        training(STEPS, seed),
        stop=lambda h: len(h.losses) == (steps or STEPS),
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    ids, targets = data().validation_windows(60)
    numbers["loss"] = model.loss(ids, targets).item()
    if n_heads < HEADS:
        return numbers
    draws = torch.Generator().manual_seed(seed + 500)
    mean = means(model, data().batch(60, draws)[0])
    for how, put in (("zero", None), ("mean", mean)):
        numbers[how] = [
            loss_without(model, [head], ids, targets, put) - numbers["loss"]
            for head in ALL
        ]
    effects = torch.tensor(numbers["mean"])
    calls = attended(model, ids)
    largest = torch.cat([c.weights.amax(-1).mean((0, 2)) for c in calls])
    numbers["sharp and needed"] = rank_correlation(largest, effects)
    differ = [
        (c.weights.argmax(-1) != contributions(c).argmax(-1))[..., 1:]
        for c in calls
    ]
    numbers["another key writes most"] = 100 * torch.stack(
        [d.double().mean() for d in differ]
    ).mean().item()  # fmt: skip
    long = data().batch(400, draws)[0]
    by_weight, by_written = edges(model, long, draws)
    numbers |= {"by weight": by_weight, "by written": by_written}
    numbers["pruned"] = pruned(model, numbers["mean"], ids, targets, mean)
    lens = logit_lens(model, ids)
    numbers["lens loss"] = [
        nn.functional.cross_entropy(logits.mT, targets).item()
        for logits in lens
    ]
    best = lens.argmax(-1)
    numbers["lens agrees"] = (
        100 * (best == best[-1]).double().mean((1, 2))
    ).tolist()
    x, likeness = model.input(ids), []
    for block in (None, *model.blocks):
        x = x if block is None else block(x, causal=True).detach()
        likeness.append([mean_cosine(x), mean_cosine(x, centred=True)])
    return numbers | {"cosines": likeness}
