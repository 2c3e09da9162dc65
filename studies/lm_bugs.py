"""A small language model, correct and with a bug: what does its loss show?"""

from functools import partial
from statistics import fmean

import torch
import torch.nn.functional as F

from attnbook import LanguageModel, MultiHeadAttention
from attnbook.attention import attention_weights
from attnbook.masks import causal_mask, combine_masks
from attnbook.models import cross_entropy
from attnbook.training import train
from studies.lm_text import (
    PROMPT,
    drawn,
    make_model,
    task,
    tokenizer,
    training,
)

LENGTH, BATCH, STEPS, RATE, WARMUP = 64, 12, 300, 4e-3, 30
SIZE = {"d_model": 96, "n_heads": 4, "n_layers": 2}
WINDOWS, PADDING = 20, 16
EVERY = 10  # the curve is the mean of so many steps


class Attention(MultiHeadAttention):
    """The package's attention, step by step: each bug replaces one step."""

    def forward(
        self, x, mask=None, *, causal=True, positions=None, cache=None
    ):
        n_before = 0 if cache is None else len(cache)
        q, k, v = self.query(x), self.key(x), self.value(x)
        q, k, v = (self.split(each) for each in (q, k, v))
        if positions is None:
            positions = torch.arange(n_before + x.shape[1])
        q, k = self.rotated(q, k, positions[..., n_before:])
        if cache is not None:
            k, v = cache.append(k, v)
        scores = self.scores(q, k)  # (batch, heads, queries, keys)
        weights = self.weights(scores, self.allowed(scores, mask))
        return self.output(self.merged(weights @ v))

    def split(self, x):
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.n_heads, -1).transpose(1, 2)

    def rotated(self, q, k, positions):
        return self.position.rotate_both(q, k, positions)

    def scores(self, q, k):
        return q @ k.mT / self.d_head**0.5

    def allowed(self, scores, mask):
        return combine_masks(mask, causal_mask(*scores.shape[-2:]))

    def weights(self, scores, allowed):
        return attention_weights(scores, allowed)

    def merged(self, heads):
        batch, _, tokens, _ = heads.shape
        return heads.transpose(1, 2).reshape(batch, tokens, -1)


# Of the attention.


class NoCausalMask(Attention):
    """It takes the padding for the whole mask."""

    def allowed(self, scores, mask):
        return mask


class MaskedAfterSoftmax(Attention):
    """The rows no longer sum to one."""

    def weights(self, scores, allowed):
        return scores.softmax(-1) * allowed


class SoftmaxOverQueries(Attention):
    """The columns sum to one, the rows do not."""

    def weights(self, scores, allowed):
        return scores.masked_fill(~allowed, -1e9).softmax(-2)


class MergedByView(Attention):
    """Heads and tokens do not change places again."""

    def merged(self, heads):
        batch, _, tokens, _ = heads.shape
        return heads.reshape(batch, tokens, -1)


class SplitByView(MergedByView):
    """Heads and tokens change places neither before nor after."""

    def split(self, x):
        batch, tokens, _ = x.shape
        return x.view(batch, self.n_heads, tokens, -1)


class OverTheBatch(Attention):
    """It takes (tokens, batch, d_model)."""

    def forward(self, x, *_, **how):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class ScaledByModelWidth(Attention):
    """By 1/√d_model instead of 1/√d_head."""

    def scores(self, q, k):
        return q @ k.mT / self.d_model**0.5


class RotatedByHead(Attention):
    """Rotary positions before heads and tokens change places."""

    def rotated(self, q, k, positions):
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        q, k = self.position.rotate_both(q, k, torch.arange(q.shape[2]))
        return q.transpose(1, 2), k.transpose(1, 2)


class PositionsRestart(Attention):
    """They count the new tokens, not those in the cache."""

    def rotated(self, q, k, positions):
        return super().rotated(q, k, torch.arange(q.shape[2]))


class PaddingNotMasked(Attention):
    """It takes the mask and does not use it."""

    def allowed(self, scores, mask):
        return causal_mask(*scores.shape[-2:])


# Of the loss.


class TargetsNotShifted(LanguageModel):
    """Each token is its own target."""

    def loss(self, ids, targets, **how):
        return super().loss(ids, ids, **how)


class SoftmaxBeforeLoss(LanguageModel):
    """The cross-entropy has a softmax of its own."""

    def loss(self, ids, targets, **how):
        return cross_entropy(self(ids).softmax(-1), targets, **how)


BUGS = {
    "targets not shifted": TargetsNotShifted,
    "softmax before the loss": SoftmaxBeforeLoss,
    "no causal mask": NoCausalMask,
    "masked after the softmax": MaskedAfterSoftmax,
    "softmax over queries": SoftmaxOverQueries,
    "attention over the batch": OverTheBatch,
    "heads merged by view": MergedByView,
    "heads split by view": SplitByView,
    "rotated by head": RotatedByHead,
    "scaled by model width": ScaledByModelWidth,
    "positions restart": PositionsRestart,
    "padding not masked": PaddingNotMasked,
}
SEEDS = dict.fromkeys(["correct", *BUGS], 5)


def plant(model, bug):
    """Each part that the bug is a version of becomes that version."""
    for part in model.modules():
        if issubclass(bug, type(part)):
            part.__class__ = bug
    return model


@torch.no_grad()
def alone(model, ids, targets):
    """Loss of each token of one text, predicted from those before it.

    Nothing else is there: neither later tokens nor other texts.
    """
    logits = [model(ids[None, :n], at=-1) for n in range(1, len(ids) + 1)]
    return F.cross_entropy(torch.cat(logits), targets).item()


def behind_padding(model):
    """Reads one token after another, with a cache.

    Padding comes first, as in a batch with a longer beginning.
    """
    cache = model.new_cache()

    def read(token):
        n = len(cache[0]) + 1
        real = (torch.arange(n) >= PADDING)[None]
        return model(token[None, None], padding_mask=real, cache=cache, at=-1)

    for _ in range(PADDING):
        read(torch.tensor(0))
    return read


@torch.no_grad()
def written(model, ids, targets):
    """Loss of each token of one text, predicted as the model generates."""
    read = behind_padding(model)
    logits = [read(token) for token in ids]
    return F.cross_entropy(torch.cat(logits), targets).item()


@torch.no_grad()
def text_of(model, n_tokens=48):
    read, choose = behind_padding(model), drawn(temperature=0.8)
    draws = torch.Generator().manual_seed(0)
    ids = tokenizer().encode(PROMPT).ids
    for _ in range(n_tokens):
        logits = read(torch.tensor(ids[-1]))
        ids += choose(logits, ids, draws).tolist()
    return tokenizer().decode(ids)


def run(seed, case, steps=STEPS):
    model = make_model(seed, **SIZE)
    if case != "correct":
        plant(model, BUGS[case])
    history = train(
        model,
        lambda g: task(512, LENGTH).batch(BATCH, g),
        training(STEPS, seed, rate=RATE, warmup=WARMUP),
        stop=lambda history: len(history.losses) == steps,
    )
    if steps < STEPS:  # the first of them, as a replay
        return {"first losses": history.losses}
    model.eval()
    ids, targets = task(512, LENGTH).validation_windows(WINDOWS)
    with torch.no_grad():
        held_out = model.loss(ids, targets).item()
    curve = torch.tensor(history.losses).view(-1, EVERY).mean(1)
    return {
        "first losses": history.losses[:10],
        "curve": [round(each, 4) for each in curve.tolist()],
        "held out": held_out,
        "alone": fmean(map(partial(alone, model), ids, targets)),
        "written": fmean(map(partial(written, model), ids, targets)),
        "text": text_of(model),
    }
