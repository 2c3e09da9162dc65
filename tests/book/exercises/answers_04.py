"""What chapter 04's checks say beside naming typical mistakes, and other right answers."""

import math

import torch

from attnbook.attention import attention_weights, scaled_dot_product_attention


def masked_in_place(logits, mask):
    """Lets rows without a key see all, so that no softmax is NaN."""
    empty = ~mask.any(-1)
    mask[empty] = True
    return logits.masked_fill(~mask, -math.inf).softmax(-1).masked_fill(empty[:, None], 0.0)


def plain(logits, mask):
    return logits.masked_fill(~mask, -math.inf).softmax(-1)


def divided(logits, mask):
    weights = logits.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


def assigned(query, key, value, edges, *, sums=True):
    """Adds by +=, which keeps a target's last edge."""
    target, source = edges.T
    weight = (query.shape[-1] ** -0.5 * (query[target] * key[source]).sum(-1)).exp()
    total, output = torch.zeros(len(query)), torch.zeros_like(value)
    if sums:
        total.index_add_(0, target, weight)
    else:
        total[target] += weight
    output[target] += (weight / total[target])[:, None] * value[source]
    return output


def edge_attention(query, key, value, edges, *, shift="target"):
    """Over the edges alone, without a table."""
    target, source = edges.T
    logit = query.shape[-1] ** -0.5 * (query[target] * key[source]).sum(-1)
    top = torch.zeros(len(query))
    if shift == "target":
        top = torch.full_like(top, -math.inf).scatter_reduce(0, target, logit, "amax")
    elif shift == "all":
        top = logit.max().expand(len(query))
    weight = (logit - top[target]).exp()
    weight = weight / torch.zeros(len(query)).index_add(0, target, weight)[target]
    return torch.zeros_like(value).index_add(0, target, weight[:, None] * value[source])


def finite(value):
    return lambda s, m: s.masked_fill(~m, value).softmax(-1) * m.any(-1, keepdim=True)


def as_many_as_targets(query, key, value, edges):
    """A node after the last target gets no row."""
    return edge_attention(query, key, value, edges)[: edges[:, 0].max() + 1]


def nan_without_edges(query, key, value, edges):
    mask = torch.zeros(len(query), len(key), dtype=torch.bool)
    mask[edges[:, 0], edges[:, 1]] = True
    return plain(query @ key.T / query.shape[-1] ** 0.5, mask) @ value


def by_table(query, key, value, edges):
    mask = torch.zeros(len(query), len(key), dtype=torch.bool)
    mask[edges[:, 0], edges[:, 1]] = True
    return scaled_dot_product_attention(query, key, value, mask=mask)


def target_by_target(query, key, value, edges):
    output = torch.zeros_like(value)
    for target in edges[:, 0].unique():
        source = edges[edges[:, 0] == target, 1]
        logits = key[source] @ query[target] / query.shape[1] ** 0.5
        output[target] = logits.softmax(0) @ value[source]
    return output


RIGHT = [
    ("edge_attention", target_by_target),
    ("masked_weights", finite(-1e9)),
    ("edge_attention", edge_attention),
]

MISTAKES = [
    (
        "scaled_weights",
        lambda q, k: (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1),
        "raises IndexError: .*from the end",
    ),
    ("scaled_weights", lambda q, k: (q @ k.mT / q.shape[-1] ** 0.5).softmax(2), "from the end"),
    ("edge_attention", as_many_as_targets, "expected shape"),
    ("masked_weights", lambda s, m: attention_weights(s, ~m), "turned round"),
    *(("masked_weights", finite(value), "logits of size 100") for value in (-90, -100)),
    *(("masked_weights", finite(value), "become a finite number") for value in (-30, -50)),
    (
        "masked_weights",
        lambda s, m: (s - 30.0 * ~m).softmax(-1) * m.any(-1, keepdim=True),
        "become a finite number",
    ),
    ("masked_weights", masked_in_place, "changes what it is given"),
    ("masked_weights", plain, "is NaN: the softmax of nothing"),
    ("masked_weights", divided, "or 0/0 where weights are divided"),
    (
        "masked_weights",
        lambda s, m: torch.tensor(attention_weights(s, m).numpy()),
        "logits need a gradient, raises RuntimeError: .*numpy",
    ),
    (
        "masked_weights",
        lambda s, m: (s + torch.where(m, 0.0, -math.inf)).softmax(-1).nan_to_num(0.0),
        "the gradient is NaN",
    ),
    ("masked_weights", lambda s, m: attention_weights(s, m).detach(), "the gradient is missing"),
    ("edge_attention", by_table, "builds 40,000 numbers at once"),
    ("edge_attention", assigned, "keeps each target's last edge only"),
    ("edge_attention", lambda *a: assigned(*a, sums=False), "gets the value of its last edge"),
    ("edge_attention", nan_without_edges, "is NaN; it gets zeros"),
    ("edge_attention", lambda *a: edge_attention(*a, shift=None), "wrong for large ones"),
    ("edge_attention", lambda *a: edge_attention(*a, shift="all"), "wrong for large ones"),
    (
        "edge_attention",
        lambda *a: edge_attention(*a, shift="all").nan_to_num(0.0),
        "wrong for large ones",
    ),
    ("edge_attention", lambda *a: 3 * edge_attention(*a), "should be"),
]
