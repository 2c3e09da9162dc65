"""When does the first token get the weight, and what is it for?

Words follow each other as in a bigram table, but after one of four triggers
comes the word before the trigger again. So a head has something to say at
the triggers alone (after Guo et al. 2024). And models of text, beside it.
"""

import math
from functools import cache

import torch
from torch import nn

from attnbook import LanguageModel, ModelConfig, MultiHeadAttention
from attnbook import causal_mask
from attnbook.tasks import TextTask, bpe_tokenizer, python_topics, train

WORDS, TRIGGERS, LENGTH, STEPS = 64, 4, 48, 1000
CASES = {
    "plain": {},
    "start": {"start": True},
    "start, one more": {"start": True, "softmax": "one more"},
    "start, no sum": {"start": True, "softmax": "no sum"},
    "start, gates": {"start": True, "gates": True},
    "text, plain": {"text": True},
    "text, start": {"text": True, "start": True},
}
SEEDS = dict.fromkeys(CASES, 8) | {"text, plain": 3, "text, start": 3}


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
        super().__init__(d_model, n_heads)
        self.softmax = softmax
        self.gate = nn.Linear(d_model, d_model) if gates else None

    def forward(self, x, mask=None, *, causal=True, cache=None):
        q, k, v = (
            layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )  # (batch, heads, tokens, d_head)
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
    size = {"n_layers": 3, "n_heads": 4} if text else {
        "n_layers": 1, "n_heads": 1,
    }  # fmt: skip
    model = LanguageModel(
        ModelConfig(
            words + 1, norm="pre", position="learned", scaled=False,
            tied=False, max_tokens=LENGTH + 1, **size,
        )
    )  # fmt: skip
    for block in model.blocks:
        block.attention = Attention(64, size["n_heads"], softmax, gates)
    return model


@cache
def table(seed):
    """The chance of each next word; seldom more than a few are likely."""
    draws = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(WORDS, WORDS, generator=draws)
    return logits.softmax(-1)


def copies(n, generator, seed):
    """Sequences, and at which places the next word is a copy."""
    chances = table(seed)
    ids = torch.randint(WORDS, (n, 1), generator=generator)
    for _ in range(LENGTH):
        last = ids[:, -1]
        new = chances[last].multinomial(1, generator=generator)
        if ids.shape[1] > 1:
            again = (last < TRIGGERS)[:, None]
            new = torch.where(again, ids[:, -2:-1], new)
        ids = torch.cat([ids, new], 1)
    at = ids[:, :-1] < TRIGGERS
    at[:, 0] = False
    return ids, at


@cache
def pages():
    text = python_topics()
    return TextTask(text, bpe_tokenizer(text, 512), LENGTH)


def in_front(ids, start, words):
    """The token in front of each sequence, if there is one."""
    return nn.functional.pad(ids, (1, 0), value=words) if start else ids


@torch.no_grad()
def losses_of(model, ids, targets, start, mask=None):
    """Of each token, in nats."""
    front = in_front(ids, start, model.config.vocab_size - 1)
    logits = model(front, mask=mask)[:, int(start) :]
    return nn.functional.cross_entropy(logits.mT, targets, reduction="none")


def lasting(n, keep, window):
    """Who is in a cache of the last tokens, and of the first few."""
    at = torch.arange(n)
    return (at[:, None] - at < window) | (at < keep)


def run(seed, case, steps=None):
    """Weight on the first token where there is nothing to say, and where."""
    how = {"text": False, "start": False} | CASES[case]
    start, text = how.pop("start"), how["text"]
    words = 512 if text else WORDS
    torch.manual_seed(seed)
    model = make_model(words, **how)

    def draw(n, generator):
        if text:
            ids, targets = pages().batch(n, generator)
            return ids, targets, torch.zeros_like(ids).bool()
        ids, at = copies(n, generator, seed)
        return ids[:, :-1], ids[:, 1:], at

    def batch(generator):
        ids, targets, _ = draw(16, generator)
        front = in_front(ids, start, words)
        return front, targets if not start else nn.functional.pad(
            targets, (1, 0), value=-100
        )

    record = train(
        model,
        batch,
        steps=steps or STEPS,
        learning_rate=3e-3,
        warmup=50,
        seed=seed,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    ids, targets, at = draw(200, torch.Generator().manual_seed(seed + 500))
    losses = losses_of(model, ids, targets, start)
    late = torch.arange(LENGTH) >= LENGTH // 2
    idle, busy = ~at & late, at & late
    heads, values = [], []
    for block in model.blocks:
        A, v = block.attention.seen
        first = A[:, :, int(start) :, 0].transpose(1, 2)  # (…, tokens, heads)
        heads.append(first[idle].mean(0).tolist())
        size = v.norm(dim=-1).mean(0)  # (heads, tokens)
        values.append((size[:, 0] / size[:, 1:].mean(1)).tolist())
    numbers |= {"first": heads, "first value": values}
    numbers["loss"] = losses[late.expand_as(at)].mean().item()
    if not text:
        A, v = model.blocks[0].attention.seen
        A = A[:, 0, int(start) :]
        before = A.diagonal(int(start) - 1, -2, -1)
        numbers |= {
            "first where copied": first[busy].mean().item(),
            "given away": A.sum(-1)[idle].mean().item(),
            "loss where copied": losses[busy].mean().item(),
        }
    n = LENGTH + start
    for keep in (0, 1):
        mask = lasting(n, keep, 12 - keep)
        cut = losses_of(model, ids, targets, start, mask)
        numbers[f"window, {keep} kept"] = cut[late.expand_as(at)].mean().item()
    return numbers
