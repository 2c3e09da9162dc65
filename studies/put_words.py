"""Which words does training make similar: those that meet, or those alike?

A small model learns the language of CollocationTask; six points of its
training are measured. Sizes are cosines of centred rows of a table.
"""

import itertools

import torch
from torch import nn

from attnbook import Encoder, LanguageModel, ModelConfig
from attnbook.tasks import (
    CollocationTask,
    pointwise_information,
    shared_contexts,
    train,
)

STEPS, LOOKS = 800, (25, 50, 100, 200, 400, 800)
SIZE = {"d_model": 32, "n_heads": 2, "n_layers": 2, "max_tokens": 12}
NEVER, ANEW, SAME = "never", "anew", "same"
CASES = {
    "causal, untied": {},
    "causal, tied": {"tied": True},
    "masked, untied": {"masked": True},
    "masked, tied": {"masked": True, "tied": True},
    "causal, untied, W_Q = W_K": {"change": "one"},
    "masked, untied, W_Q = W_K": {"masked": True, "change": "one"},
    "causal, untied, no attention": {"change": "none"},
    "causal, tied, no attention": {"tied": True, "change": "none"},
    "causal, untied, same": {"repeats": SAME},
    "causal, untied, anew": {"repeats": ANEW},
    "causal, tied, same": {"tied": True, "repeats": SAME},
}
SEEDS = dict.fromkeys(CASES, 8)


def make_model(task, *, masked, tied, change):
    """Pre-norm, two layers of two heads, learned positions."""
    kind = Encoder if masked else LanguageModel
    model = kind(
        ModelConfig(
            task.vocab_size,
            norm="pre",
            position="learned",
            scaled=False,
            tied=tied,
            **SIZE,
        )
    )
    for block in model.blocks:
        if change == "one":
            block.attention.key = block.attention.query
        if change == "none":
            output = block.attention.output.weight
            nn.init.zeros_(output).requires_grad_(False)
    return model


def cosines(table):
    """Of every two rows, each less the mean row; word 0 is the mask."""
    rows = table[1:] - table[1:].mean(0)
    rows = nn.functional.normalize(rows, dim=-1)
    return nn.functional.pad(rows @ rows.mT, (1, 0, 1, 0))


def first_logits(model):
    """q_i k_j of the first layer, in its spread over all pairs."""
    block = model.blocks[0]
    x = block.attention_residual.norm(model.embedding.weight)
    heads = SIZE["n_heads"]
    q, k = (
        layer(x).unflatten(-1, (heads, -1)).transpose(0, 1)
        for layer in (block.attention.query, block.attention.key)
    )
    logits = (q @ k.mT).mean(0)[1:, 1:]
    logits = (logits - logits.mean()) / logits.std()
    return nn.functional.pad(logits, (1, 0, 1, 0))


def of_pairs(table, task):
    """Means over pairs: interchangeable, collocated, and the others.

    The others are such words of one topic, and of two kinds of clause.
    """
    i, c = task.interchangeable, task.collocated
    others = [
        (a, b)
        for topic in (slice(0, 2), slice(2, 4))
        for one, two in itertools.combinations((*i[topic], *c[topic]), 2)
        for a, b in itertools.product(one, two)
    ]
    both = (table + table.mT) / 2
    chosen = {"interchangeable": i, "collocated": c, "others": others}
    return {
        name: both[tuple(zip(*pairs, strict=True))].mean().item()
        for name, pairs in chosen.items()
    }


def correlations(table, task):
    """Of the cosine with shared contexts, and with information above 0."""
    n = task.neighbours
    above = torch.triu(torch.ones_like(n), 1).bool()
    above[0] = False
    return {
        name: torch.corrcoef(torch.stack([table[above], x[above]]))[
            0, 1
        ].item()
        for name, x in (
            ("with contexts", shared_contexts(n)),
            ("with information", pointwise_information(n).clamp(min=0)),
        )
    }


def groups(model):
    """The matrices whose movement is compared."""
    found = {"E": [model.embedding.weight]}
    if model.output is not None:
        found["output"] = [model.output.weight]
    letters = {"query": "Q", "key": "K", "value": "V", "output": "O"}
    for name, letter in letters.items():
        layers = [getattr(b.attention, name) for b in model.blocks]
        found[f"W_{letter}"] = [layer.weight for layer in layers]
    found["W_1"] = [b.feed_forward.inner.weight for b in model.blocks]
    return {
        name: torch.cat([w.detach().flatten() for w in weights])
        for name, weights in found.items()
    }


def moved(now, start):
    """How far each group is from its start, in the size of its start."""
    return {
        name: ((now[name] - w).norm() / w.norm().clamp(min=1e-12)).item()
        for name, w in start.items()
    }


def homonym(model, task, *, causal, seed):
    """Cosine of the word in two sentences, by layer: two topics, and one.

    Streams less the mean over all words of both topics.
    """
    streams = []
    for topic in (0, 1):
        draws = torch.Generator().manual_seed(seed + 900 + topic)
        ids = task.sentences(800, draws, topic=topic)
        x, found = model.input(ids), []
        for block in (nn.Identity(), *model.blocks):
            x = (
                x
                if isinstance(block, nn.Identity)
                else block(x, causal=causal)
            )
            found.append((x[ids == task.homonym], x.flatten(0, 1).mean(0)))
        streams.append(found)
    result = {"two topics": [], "one topic": []}
    for (a, mean_a), (b, mean_b) in zip(*streams, strict=True):
        mean = (mean_a + mean_b) / 2
        a, b = (nn.functional.normalize(x - mean, dim=-1) for x in (a, b))
        result["two topics"].append((a.mean(0) @ b.mean(0)).item())
        within = [
            ((x.sum(0) @ x.sum(0) - len(x)) / (len(x) * (len(x) - 1))).item()
            for x in (a, b)
        ]
        result["one topic"].append(sum(within) / 2)
    return result


def run(seed, case, steps=None):
    """What the tables are like at six points, and what moved."""
    how = {
        "masked": False, "tied": False, "change": None, "repeats": NEVER,
    } | CASES[case]  # fmt: skip
    task = CollocationTask(how.pop("repeats"))
    torch.manual_seed(seed)
    model = make_model(task, **how)
    batch = task.masked_batch if how["masked"] else task.batch
    start, looks, moves = groups(model), [], []

    def look(model):
        found = cosines(model.embedding.weight)
        looks.append(of_pairs(found, task))
        moves.append(moved(groups(model), start))
        return 0.0

    record = train(
        model,
        lambda g: batch(32, g),
        steps=steps or STEPS,
        learning_rate=3e-3,
        seed=seed,
        evaluate=look,
        evaluate_every=25,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    at = [n // 25 - 1 for n in LOOKS]
    with torch.no_grad():
        last = {"q.k": first_logits(model)}
        if not how["tied"]:
            last["output"] = cosines(model.output.weight)
        last = {
            f"{what} {name}": number
            for what, table in last.items()
            for name, number in of_pairs(table, task).items()
        }
        likeness = homonym(model, task, causal=not how["masked"], seed=seed)
    return (
        numbers
        | {"loss": sum(record.losses[-50:]) / 50}
        | {name: [looks[i][name] for i in at] for name in looks[0]}
        | {f"moved {name}": [moves[i][name] for i in at] for name in start}
        | correlations(cosines(model.embedding.weight), task)
        | last
        | likeness
    )
