"""Which words of a real text does training make similar?

A language model of Python's help texts, by words. Pairs of its 300 most
frequent words: the 20 that meet most beyond chance, with any neighbours or
with few in common, and the 20 that never meet and have the most in common.
"""

from functools import cache

import torch
from torch import nn

from attnbook import LanguageModel, ModelConfig
from attnbook.tasks import (
    TextTask,
    neighbours_in,
    pointwise_information,
    python_topics,
    shared_contexts,
    train,
    word_tokenizer,
)

WORDS, FREQUENT, LENGTH, STEPS, PAIRS = 1000, 300, 32, 1000, 20
CASES = {
    "untied": {"tied": False},
    "tied": {"tied": True},
    "tied, no attention": {"tied": True, "attention": False},
}
SEEDS = dict.fromkeys(CASES, 5)


@cache
def tokenizer():
    return word_tokenizer(python_topics(), WORDS)


@cache
def pages():
    return TextTask(python_topics(), tokenizer(), LENGTH)


@cache
def measures():
    """Information and shared contexts of the frequent words' pairs."""
    ids = pages().training
    seen = neighbours_in(ids, WORDS)
    alphabetic = [
        i for i in range(1, WORDS)
        if tokenizer().id_to_token(i).isalpha()
    ]  # fmt: skip
    words = torch.tensor(alphabetic[:FREQUENT])  # by their frequency
    information = pointwise_information(seen)[words][:, words]
    shared = shared_contexts(seen)[words][:, words]
    return words, information, shared


@cache
def pairs():
    """Three lists of pairs, as places among the frequent words."""
    words, information, shared = measures()
    a, b = torch.triu_indices(len(words), len(words), 1)
    near, alike = information[a, b], shared[a, b]
    meet = near.masked_fill(alike > alike.median(), -torch.inf)
    never = alike.masked_fill(near > -torch.inf, -torch.inf)
    return {
        name: [(a[i].item(), b[i].item()) for i in score.topk(PAIRS).indices]
        for name, score in (
            ("met most", near),
            ("collocated", meet),
            ("interchangeable", never),
        )
    }


def cosines(table):
    """Of every two frequent words, each less the mean of all words."""
    rows = (table - table.mean(0))[measures()[0]]
    rows = nn.functional.normalize(rows, dim=-1)
    return rows @ rows.mT


def plurals():
    """Words of the vocabulary that are there with an s at the end, too."""
    of = tokenizer().get_vocab()
    known = sorted(
        w for w in of if w.isalpha() and len(w) > 2 and f"{w}s" in of
    )
    return torch.tensor([(of[w], of[f"{w}s"]) for w in known])


def analogies(table):
    """% of a's - a + b nearest to b's; and of b alone, nearest to b's.

    Over all pairs of nouns; three of the four words are left out, as in
    word2vec's test, or, the third number, none is.
    """
    rows = nn.functional.normalize(table - table.mean(0), dim=-1)
    one, many = plurals().T
    a, b = torch.cartesian_prod(*[torch.arange(len(one))] * 2).T
    a, b = a[a != b], b[a != b]
    asked = rows[many[a]] - rows[one[a]] + rows[one[b]]
    near = asked @ rows.mT
    whole = near.argmax(1) == many[b]
    alone = rows[one[b]] @ rows.mT
    at = torch.arange(len(a))
    for left_out in (one[a], many[a], one[b]):
        near[at, left_out] = -torch.inf
        alone[at, left_out] = -torch.inf
    hits = (near.argmax(1) == many[b], alone.argmax(1) == many[b], whole)
    return [100 * hit.double().mean().item() for hit in hits]


def run(seed, case, steps=None):
    """Cosines of the three kinds of pairs, and what goes with all of them."""
    how = {"attention": True} | CASES[case]
    torch.manual_seed(seed)
    model = LanguageModel(
        ModelConfig(
            WORDS, norm="pre", position="learned", scaled=False,
            tied=how["tied"], max_tokens=LENGTH,
        )
    )  # fmt: skip
    for block in model.blocks:
        if not how["attention"]:
            nn.init.zeros_(block.attention.output.weight).requires_grad_(False)
    record = train(
        model,
        lambda g: pages().batch(8, g),
        steps=steps or STEPS,
        learning_rate=3e-3,
        seed=seed,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    words, information, shared = measures()
    tables = {"": model.embedding.weight.detach()}
    if not how["tied"]:
        tables["output "] = model.output.weight.detach()
    a, b = torch.triu_indices(len(words), len(words), 1)
    for name, table in tables.items():
        found = cosines(table)
        numbers |= {
            f"{name}{kind}": torch.stack(
                [found[pair] for pair in chosen]
            ).mean().item()
            for kind, chosen in pairs().items()
        }  # fmt: skip
        numbers[f"{name}others"] = found[a, b].mean().item()
        for what, x in (
            ("contexts", shared),
            ("information", information.clamp(min=0)),
        ):
            both = torch.stack([found[a, b], x[a, b]])
            numbers[f"{name}with {what}"] = torch.corrcoef(both)[0, 1].item()
        numbers[f"{name}analogies"] = analogies(table)
    with torch.no_grad():
        numbers["loss"] = model.loss(*pages().validation_windows(100)).item()
    return numbers
