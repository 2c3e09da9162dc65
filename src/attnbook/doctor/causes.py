"""The causes that the doctor tells apart, what each explains, and the line to write."""

import re
from dataclasses import dataclass

from attnbook.doctor.report import Finding, Level


@dataclass(frozen=True)
class Cause:
    """What to write, and which checks fail because of it."""

    remedy: str
    explains: tuple[str, ...] = ()


GROUPS: dict[str, tuple[str, ...]] = {
    "all": ("*",),
    "leaks": (
        *("future", "batch", "padding", "order", "prefix", "cache", "mixing", "train = eval"),
        *("order of sequences", "empty rows", "half precision", "training"),
    ),
    "the loss": (
        *("padding in the loss", "training", "first loss", "finite", "sequences in the loss"),
    ),
}
GROUPS["what follows"] = (
    *(*GROUPS["leaks"], "masks", "finite", "gradients", "residual", "norms", "positions"),
)
FOLLOWS: dict[str, tuple[str, ...]] = {
    "finite": ("first loss", "mixing", "train = eval", "dropout", "gradients", "training"),
    "mixing": ("positions", "gradients"),
    "evaluation is deterministic": (*GROUPS["leaks"], "dropout"),
}
"""Checks that fail because another one does: where outputs are NaN, or nothing moves them."""
TABLE = """
the example can't be called: diagnose(module, *arguments of one plain call)

[masks]
no causal mask -> prefix, cache, training, window, padding in the loss: logits =
    logits.masked_fill(causal.logical_not(), -torch.inf) before the softmax, with causal =
    torch.ones(T, T, dtype=torch.bool).tril()
causal mask off by one -> prefix, cache, training, window, padding in the loss:
    torch.ones(T, T, dtype=torch.bool).tril() allows, .triu(diagonal=1) forbids
inverted mask -> what follows: masked_fill fills where True:
    masked_fill(may_attend.logical_not(), -torch.inf); F.scaled_dot_product_attention: True = may
    attend; nn.MultiheadAttention: True = blocked
masked with a finite number -> future, prefix, cache, padding, training, window: fill with
    -torch.inf, not with a small or positive number such as 1e-9 or 0
mask added as a number -> future, prefix, cache, padding, training, window, train = eval:
    logits.masked_fill(forbidden, -torch.inf): a boolean that is added counts as 0 and 1
causal against the claim -> prefix, order: no causal mask in an encoder; or claim causal=True
mask after the softmax -> leaks: fill the logits with -torch.inf before the softmax: then the rows
    no longer sum to 1
mask not everywhere -> prefix, cache, padding, training, window: give the mask to every layer, head
    and sequence
mask of another shape -> future, prefix, cache, training, window: print the mask as it meets the
    logits, (batch, heads, queries, keys)
mask forbids everything -> what follows: ~mask is never 0 if mask holds whole numbers: mask == 0, or
    ~mask.bool()
mask ignored -> padding: use the argument: combine it with the causal mask
mask on the queries -> padding, empty rows: a padding mask forbids keys: mask[:, None, None, :], not
    mask[:, None, :, None]
mask of another sequence -> padding, batch, empty rows: a mask for batch × heads is
    mask.repeat_interleave(n_heads, 0), not mask.repeat(n_heads, 1, 1); or let mask[:, None, None,
    :] broadcast
padding is attended to -> padding: make the mask (ids != padding_id)[:, None, None, :] and give it
    to every attention; torch's modules take key_padding_mask=(ids == padding_id), True = blocked
NaN where the mask forbids -> padding, empty rows, finite: fill with -torch.inf, not +inf or 0 *
    -inf; real tokens need one key that is open
pooling includes padding -> padding, empty rows: (x * real[..., None]).sum(1) / real.sum(1,
    keepdim=True): a mean over real tokens
padding has an effect -> padding: compare a padded call with one that is cut, stage by stage: what
    first differs at a real token lets it in
convolution over padding -> padding: x = x * real[..., None] before the convolution
a token does not attend to itself -> leaks, gradients, finite: torch.ones(T, T,
    dtype=torch.bool).tril(): .tril(-1) forbids the diagonal
mask at the upper left -> cache: torch.ones(new, all, dtype=torch.bool).tril(all - new): the last
    query attends to all
fully masked rows give NaN: a softmax over nothing is 0/0: give such rows zeros, as
    attnbook.attention_weights does

[softmax and scale]
softmax over the queries -> what follows: logits.softmax(dim=-1): over the keys
softmax over the heads -> what follows: logits.softmax(dim=-1): over the keys
softmax over the batch -> what follows: logits.softmax(dim=-1): over the keys
softmax over an axis of one -> what follows: scores of (batch, tokens, 1): scores.softmax(dim=1)
softmax twice -> leaks: weights = logits.softmax(dim=-1), once
no softmax -> what follows: weights = logits.softmax(dim=-1); weights @ value
weights transposed -> leaks: weights @ value, not weights.mT @ value
weights do not sum to one -> leaks, positions: logits.softmax(dim=-1), and nothing after it
scaled after the softmax -> scale: (query @ key.mT * d_head**-0.5).softmax(dim=-1)
other scale: query @ key.mT * d_head**-0.5, once; F.scaled_dot_product_attention does it
no scale: query @ key.mT * d_head**-0.5
scale of d_model: query @ key.mT * d_head**-0.5, with d_head = d_model / n_heads
scale of the heads: query @ key.mT * d_head**-0.5: by the width, not the number
scale of the tokens -> prefix, cache, padding: query @ key.mT * d_head**-0.5, with d_head =
    query.shape[-1], not shape[-2]
scaled twice: query @ key.mT * d_head**-0.5, once: F.scaled_dot_product_attention scales by itself
multiplied by the root: divide by sqrt(d_head): query @ key.mT * d_head**-0.5
scale on the values: scale the logits, not the values

[heads]
split without transposing -> leaks, positions: x.view(batch, tokens, n_heads, d_head).transpose(1,
    2), not x.view(batch, n_heads, tokens, d_head)
channels not transposed -> what follows: x.flatten(2).transpose(1, 2), not x.view(batch, tokens,
    channels)
axes not transposed -> leaks: a reshape joins neighbouring axes only: x.transpose(1, 2).flatten(0,
    1) makes a sequence of each column
merge without transposing -> what follows: heads.transpose(1, 2).reshape(batch, tokens, n_heads *
    d_head)
heads and sequences exchanged -> what follows: what was made by view(batch * n_heads, …) is taken
    apart by view(batch, n_heads, …)
heads not concatenated -> leaks, number of heads: heads.transpose(1, 2).flatten(2), or
    torch.cat(heads, dim=-1): no sum or mean of heads
sequences in groups -> leaks: what was made by view(batch, n, …) is taken apart by view(batch, n, …)
keys not transposed -> leaks: query @ key.transpose(-2, -1), not query @ key.reshape(…, d_head,
    tokens)
attention between heads -> mixing, order, padding, positions: x.view(batch, tokens, n_heads,
    d_head).transpose(1, 2) before query @ key.mT
wrong number of heads: split the width into n_heads parts of d_head = d_model / n_heads
other groups of heads: key.repeat_interleave(n_heads // n_kv_heads, dim=1), not key.repeat(1,
    groups, 1, 1)
heads overlap -> gradients, heads: query[..., h * d_head : (h + 1) * d_head] for the head h, not
    [..., h : h + d_head]
one projection for two -> gradients: self.query(x), self.key(x), self.value(x): three projections
identical heads -> gradients: make each head anew: nn.ModuleList(Head() for _ in range(n)), and draw
    its weights
input has no effect -> leaks, gradients: queries come from x, keys and values from the memory
causal mask on the memory -> padding, empty rows, finite, order, prefix, cache, mixing: the causal
    mask is for self-attention alone
missing residual connection: x = x + attention(norm1(x)); x = x + mlp(norm2(x)), not x =
    mlp(norm2(x))
residual adds a stale input: x = x + attention(norm1(x)); x = x + mlp(norm2(x)): both add to the
    newest x
no activation: down(F.gelu(up(x))), not down(up(x)), and keep what F.gelu returns
norm not before the branch: x = x + attention(norm(x)), not of or to norm(x) alone
norm not after the sum: x = norm(x + attention(x)), not x + attention(norm(x))
other embedding scale: x = embedding(ids) * d_model**0.5 + positions
norm that does not normalise -> positions, gradients, first loss, finite, half precision, training:
    x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), or divide by the root of the variance
layers start alike: nn.TransformerEncoder copies one layer: draw the matrices of each anew
one layer many times: nn.ModuleList(Layer() for _ in range(n)), not [Layer()] * n
heads share one projection: project first, then split: nn.Linear(d_model, d_model), .view(…,
    n_heads, d_head)

[tokens and batch]
norm over the tokens -> leaks, norms, gradients: nn.LayerNorm(d_model): over the last axis alone
statistic over the batch -> leaks: normalise each token: nn.LayerNorm(d_model)
non-causal convolution -> leaks: pad on the left alone: F.pad(x, (kernel_size - 1, 0)) and no
    padding=
tokens mix outside the attention -> leaks: print (one - other).abs().amax(-1) after each module,
    with one token changed: the first that differs at another token mixes them
sequences mixed -> leaks: print (one - other).abs().flatten(1).amax(1) after each module, with
    sequence 0 changed: the first that differs at another sequence mixes them
batch and tokens exchanged -> what follows, targets, shift, sequences in the loss: x.transpose(0,
    1), not a reshape; or make it batch-first throughout, or claim batch_first=False
no token attends to another: look at the axes of query @ key.mT: (…, tokens, tokens)
depends on the sequence's number -> positions, prefix, order, mixing, batch: positions count along
    the tokens: torch.arange(x.shape[1])
depends on the order: claim position=…, or find what counts the tokens

[positions]
a logit depends on a third token -> padding, batch: padding and viewing shifts rows correctly under
    a causal mask alone: gather by i - j
positions have no effect -> prefix, order, mixing, gradients: add positions to the tokens, or rotate
    queries and keys by torch.arange(tokens)
positions not relative -> cache, prefix: rotate queries and keys alike, with pairs (x[i], x[i +
    d/2]) and cos, sin of the same frequency for both halves
rotary angles of d_model: base ** (-torch.arange(0, d_head, 2) / d_head): d_head in both, not
    d_model
other rotary base: base ** (-torch.arange(0, d_head, 2) / d_head), with that base
queries turned ahead of keys -> cache: rotate queries and keys by the same positions,
    torch.arange(tokens)
angles in half precision: torch.outer(positions.float(), frequencies.float()), and only then
    .to(x.dtype)
gain after the rotation: norm queries and keys first, then rotate: rotate(q_norm(q)), not
    q_norm(rotate(q)); or give the norm no gain
values are rotated: rotate queries and keys only
bias rises with distance -> order: bias = -slope * (query position - key position)
one slope for all heads: slopes 2**(-8 * (h + 1) / n_heads), one for each head
slopes begin at one: slopes 2**(-8 * (h + 1) / n_heads) for h = 0, 1, …
other slopes: slopes 2**(-8 * (h + 1) / n_heads), added to logits that are scaled
other window -> prefix, cache, training, window: a window of w allows 0 ≤ query position - key
    position < w
other sinusoids: angle = t / 10000**(2 * i / d_model); table[:, 0::2] = sin(angle), [:, 1::2] =
    cos(angle)

[cache]
positions restart with the cache: positions = n_cached + torch.arange(new tokens)
the cache is not attended to: key = torch.cat([cache.key, key], dim=-2); so the values
chunks see their future: with n cached keys the mask is torch.ones(T, n + T,
    dtype=torch.bool).tril(n)
chunks do not see the cache: is_causal=True aligns the mask to the start: with n cached keys it is
    tril(n), and none for one token
slots of the cache exchanged: token n is written into slot n % window, over the oldest; slot s then
    holds the token that is (n - s) % window before n
cache in another order -> prefix: torch.cat([cache.key, key], dim=-2), the cache first; so the
    values
cached keys turned again: rotate new keys by n_cached + torch.arange(new tokens) and put them into
    the cache; or cache them as they are, and rotate all of them in each call
free slots are attended to -> prefix, cache: a cache of fixed size needs a mask: torch.arange(size)
    <= position of the query
layers share one cache: layer(x, caches[i]) for the layer i, not caches[0]
cached differs from full: compare the cache's keys and values with the full pass's, layer by layer:
    in the first layer, a wrong key or value; if they agree, positions of the queries, or the mask

[modes]
random in evaluation -> all: F.dropout(x, p, training=self.training); dropout_p=self.p if
    self.training else 0.0
layer made in forward -> all: make it in __init__, as self.layer: it is drawn once
changes modes -> dropout, train = eval, gradients: no eval(), train() or set_grad_enabled() in
    forward: with torch.no_grad(): ends by itself
seeds the generator: no torch.manual_seed in forward: all dropout after it is the same in every step
mask only in training -> leaks: the mask belongs in both modes
mask only in evaluation -> leaks: the mask belongs in both modes
training differs from evaluation: nothing but dropout may differ
no dropout in training: nn.Dropout(p) on the weights and branches, as claimed
other dropout: p is the probability to drop, not to keep
dropout before the softmax: drop weights: F.dropout(logits.softmax(-1), p)
remembers the last call -> all: keep nothing in self between calls: pass the cache in and out
changes its arguments -> all: x = x + y, not x += y
depends on the length -> cache: slice tables by the tokens that there are

[gradients]
parameter gets no gradient: no .detach(), .data, no_grad() or argmax on its way
weights all equal -> all: draw them: nn.init.normal_(weight, std=0.02)
zeros that stay zeros -> gradients, mixing: of two matrices that are multiplied, one may begin with
    zeros: the output's, say
parameter not used: call it in forward, and use what it returns: x = x.add(y), not x.add(y); or
    remove it
part of a matrix not used -> gradients: use what each third gives; or two letters for two axes in
    einsum: "btd,de->bte", not "btd,dd->btd", which takes the diagonal
parameter not registered -> evaluation is deterministic, train = eval, dropout, gradients:
    nn.ModuleList(layers), not a list
copied, not tied -> gradients: self.output.weight = self.embedding.weight
not tied: self.output.weight = self.embedding.weight

[numbers]
NaN or infinity -> all: softmax of logits minus their largest; -torch.inf only in rows with an open
    key
overflow: logits - logits.amax(-1, keepdim=True) before exp, or torch.softmax
not in half precision: torch.finfo(x.dtype).min or -torch.inf instead of -1e9; x.dtype

[loss]
loss without shift -> the loss: F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
loss shifted twice -> the loss: shift in the data or in the loss, not in both
loss shifted backwards -> the loss: logits[:, :-1] predict ids[:, 1:]
targets are copied -> future: position t may see ids[: t + 1] and predicts ids[t + 1]: check the
    shift and the mask
a batch is not learned: look at the gradients, the learning rate (1e-2 here), and what the loss
    compares
logits reshaped across tokens -> the loss: logits.transpose(1, 2), or logits.flatten(0, 1)
cross-entropy of probabilities -> the loss: F.cross_entropy takes logits: no softmax before it
nll_loss of logits -> the loss: F.cross_entropy(logits, targets), or log_softmax before nll_loss
padding counts in the loss -> the loss: F.cross_entropy(..., ignore_index=padding_id), or (losses *
    real).sum() / real.sum()
real targets are ignored -> training, targets, sequences in the loss: ignore_index=padding_id, and
    nothing else: an end of text with the id of padding is none
differs from the other: with equal inputs and weights, one head and two tokens, compare what goes
    into the first stage that differs, and what it does
first loss is not ln V: draw the output layer small (0.02), scale a tied embedding by d_model**-0.5
"""
"""A row is ``cause: remedy``, or ``cause -> checks and groups that it explains: remedy``."""


def _causes(table: str) -> dict[str, Cause]:
    """Read the rows of the table, which go on where a line is indented."""
    causes = {}
    for row in re.sub(r"\n {4}", " ", table).splitlines():
        head, _, remedy = row.partition(": ")
        name, _, explains = head.partition(" -> ")
        if remedy:
            checks = [GROUPS.get(check, (check,)) for check in explains.split(", ") if check]
            causes[name] = Cause(remedy, tuple(check for group in checks for check in group))
    return causes


CAUSES = _causes(TABLE)


def finding(cause: str, done: str, found: str, right: str, level: Level = "error") -> Finding:
    """A finding with the remedy of its cause; the registry of checks names its check."""
    return Finding(level, "", cause, done, found, right, CAUSES[cause].remedy)
