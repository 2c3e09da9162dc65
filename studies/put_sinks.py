"""Where does a head look that has nothing to say?

Two layers learn to look up what followed (put_induction); among the new
words there is nothing to look up. What differs is a token in front, and the
softmax. Beside them, models of text.
"""

import math
from functools import cache

import torch
from torch import nn

from attnbook import (
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    Rotary,
    causal_mask,
)
from attnbook.tasks import TextTask, bpe_tokenizer, python_topics, train
from studies.put_induction import LENGTH, WORDS, rounds

STEPS = 1600
CASES = {
    "plain": {},
    "start": {"start": True},
    "start, one more": {"start": True, "softmax": "one more"},
    "start, no sum": {"start": True, "softmax": "no sum"},
    "start, gates": {"start": True, "gates": True},
    "text, plain": {"text": True},
    "text, start": {"text": True, "start": True},
}
SEEDS = dict.fromkeys(CASES, 6) | {"text, plain": 3, "text, start": 3}


def weights_of(logits, allowed, softmax):
    """From logits (…, queries, keys), where the mask lets them."""
    logits = logits.masked_fill(~allowed, -torch.inf)
    if softmax == "one more":  # in the denominator: e to the 0
        none = torch.zeros_like(logits[..., :1])
        return torch.cat([none, logits], -1).softmax(-1)[..., 1:]
    if softmax == "no sum":
        return (logits - allowed.sum(-1, keepdim=True).log()).sigmoid()
    return logits.softmax(-1)


class Attention(MultiHeadAttention):
    """The usual one, written out, with another softmax or gates."""

    def __init__(self, d_model, n_heads, softmax, gates):
        super().__init__(d_model, n_heads, position=Rotary())
        self.softmax = softmax
        self.gate = nn.Linear(d_model, d_model) if gates else None

    def forward(self, x, mask=None, *, causal=True, cache=None):
        q, k, v = (
            layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )  # (batch, heads, tokens, d_head)
        q, k = self.position.rotate_both(q, k, torch.arange(x.shape[1]))
        allowed = causal_mask(x.shape[1])
        allowed = allowed if mask is None else allowed & mask
        logits = q @ k.mT / math.sqrt(self.d_head)
        A = weights_of(logits, allowed, self.softmax)
        self.seen = A.detach(), v.detach()
        context = (A @ v).transpose(1, 2).flatten(-2)
        if self.gate is not None:
            context = context * self.gate(x).sigmoid()
        return self.output(context)


def make_model(words, *, text, softmax="usual", gates=False):
    n_layers, n_heads = (3, 4) if text else (2, 2)
    config = ModelConfig(
        words + 1, 64, n_heads, n_layers, 128, norm="pre",
        position="rotary", scaled=False, tied=False,
    )  # fmt: skip
    model = LanguageModel(config)
    for block in model.blocks:
        block.attention = Attention(64, n_heads, softmax, gates)
    return model


@cache
def pages():
    text = python_topics()
    return TextTask(text, bpe_tokenizer(text, 512), LENGTH)


def draw(n, generator, *, text, start):
    """Ids, targets, and which of these can be looked up."""
    if text:
        ids, targets = pages().batch(n, generator)
        known = torch.zeros_like(ids, dtype=torch.bool)
    else:
        ids, known = rounds(n, generator)
        ids, targets = ids[:, :-1], ids[:, 1:]
    if start:
        front = 512 if text else WORDS
        ids = nn.functional.pad(ids, (1, 0), value=front)
        targets = nn.functional.pad(targets, (1, 0), value=-100)
        known = nn.functional.pad(known, (1, 0))
    return ids, targets, known


@torch.no_grad()
def loss_of(model, ids, targets, chosen, mask=None):
    logits = model(ids, mask=mask)[chosen]
    return nn.functional.cross_entropy(logits, targets[chosen]).item()


def lasting(n, keep, last):
    """Who is in a cache of the last tokens, and of the first few."""
    at = torch.arange(n)
    return (at[:, None] - at < last) | (at < keep)


def run(seed, case, steps=None):
    """Weight on the first token where nothing can be looked up, and where."""
    how = {"text": False, "start": False} | CASES[case]
    where = {"text": how["text"], "start": how.pop("start")}
    torch.manual_seed(seed)
    model = make_model(512 if how["text"] else WORDS, **how)
    record = train(
        model,
        lambda g: draw(32 if not how["text"] else 16, g, **where)[:2],
        steps=steps or STEPS,
        learning_rate=3e-3,
        seed=seed,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    draws = torch.Generator().manual_seed(seed + 500)
    ids, targets, known = draw(200, draws, **where)
    late = torch.arange(ids.shape[1]) >= 6  # with some others to look at
    idle, busy = ~known & late, known & late
    chosen = idle if how["text"] else busy
    numbers["loss"] = loss_of(model, ids, targets, chosen)
    for block in model.blocks:
        A, v = block.attention.seen
        first = A[..., 0].transpose(1, 2)  # (batch, tokens, heads)
        size = v.norm(dim=-1).mean(0)  # (heads, tokens)
        for name, row in {
            "first where idle": first[idle].mean(0),
            "first where known": first[busy].mean(0),
            "given where idle": A.sum(-1).transpose(1, 2)[idle].mean(0),
            "first value": size[:, 0] / size[:, 1:].mean(1),
        }.items():
            numbers.setdefault(name, []).append(row.nan_to_num().tolist())
    at = torch.arange(ids.shape[1])
    numbers["even"] = (1 / (at + 1)).expand_as(idle)[idle].mean().item()
    for keep in (0, 1):
        mask = lasting(ids.shape[1], keep, 18 - keep)
        cut = loss_of(model, ids, targets, chosen & (at >= 18), mask)
        full = loss_of(model, ids, targets, chosen & (at >= 18))
        numbers[f"window, {keep} kept"] = cut - full
    return numbers
