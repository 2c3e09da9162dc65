"""Right answers to the exercises of chapter 04, and typical mistakes."""

import math

import torch


def scaled_weights(query, key, *, power=0.5, dim=-1):
    return (query @ key.mT / query.shape[-1] ** power).softmax(dim)


def masked_weights(logits, mask):
    empty = ~mask.any(-1, keepdim=True)
    return logits.masked_fill(~mask & ~empty, -math.inf).softmax(-1) * mask


def masked_in_place(logits, mask, *, emptied=True):
    """Lets rows without a key see all, so that no softmax is NaN."""
    empty = ~mask.any(-1)
    mask[empty] = True
    weights = logits.masked_fill(~mask, -math.inf).softmax(-1)
    return weights.masked_fill(empty[:, None], 0.0) if emptied else weights


def plain(logits, mask, fill=-math.inf):
    return logits.masked_fill(~mask, fill).softmax(-1)


def jacobian(a):
    return torch.diag(a) - torch.outer(a, a)


def edge_attention(
    query, key, value, edges, *, scale=None, into=0, normalize=True, shift="target", only_mean=False
):
    target, source = edges.T
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logit = scale * (query[target] * key[source]).sum(-1)
    if only_mean:
        logit = torch.zeros_like(logit)
    group = edges[:, into]
    n = len(query)
    top = torch.zeros(n)
    if shift == "target":
        top = torch.full((n,), -math.inf).scatter_reduce(0, group, logit, "amax")
    elif shift == "all":
        top = logit.max().expand(n)
    weight = (logit - top[group]).exp()
    if normalize:
        weight = weight / torch.zeros(n).index_add(0, group, weight)[group]
    return torch.zeros(n, value.shape[1]).index_add(0, target, weight[:, None] * value[source])


def one_softmax(query, key, value, edges):
    target, source = edges.T
    weight = ((query[target] * key[source]).sum(-1) / query.shape[-1] ** 0.5).softmax(0)
    return torch.zeros(len(query), value.shape[1]).index_add(
        0, target, weight[:, None] * value[source]
    )


def nan_without_edges(query, key, value, edges):
    mask = torch.zeros(len(query), len(key), dtype=torch.bool)
    mask[edges[:, 0], edges[:, 1]] = True
    return plain(query @ key.T / query.shape[-1] ** 0.5, mask) @ value


RIGHT = [
    ("scaled_weights", scaled_weights),
    ("masked_weights", masked_weights),
    ("masked_weights", masked_in_place),
    ("softmax_jacobian", jacobian),
    ("edge_attention", edge_attention),
]

MISTAKES = [
    ("scaled_weights", lambda q, k: scaled_weights(q, k, power=0), "not divided"),
    ("scaled_weights", lambda q, k: scaled_weights(q, k, power=1), "it is the square root"),
    ("scaled_weights", lambda q, k: scaled_weights(q, k, power=-0.5), "the factor divides"),
    (
        "scaled_weights",
        lambda q, k: (q @ k.mT / k.shape[-2] ** 0.5).softmax(-1),
        "number of keys",
    ),
    (
        "scaled_weights",
        lambda q, k: (q @ k.mT / q.shape[-2] ** 0.5).softmax(-1),
        "number of queries",
    ),
    ("scaled_weights", lambda q, k: scaled_weights(q, k, dim=-2), "over the queries"),
    ("scaled_weights", lambda q, k: scaled_weights(q, k, dim=0), "over the batch"),
    ("scaled_weights", lambda q, k: q @ k.mT / q.shape[-1] ** 0.5, "softmax is missing"),
    (
        "scaled_weights",
        lambda q, k: (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5,
        "after the softmax",
    ),
    ("scaled_weights", lambda q, k: scaled_weights(q, k).mT, "rows are queries"),
    ("scaled_weights", lambda q, k: scaled_weights(q, k)[0], "expected shape"),
    ("scaled_weights", lambda q, k: None, "must return a tensor"),
    (
        "masked_weights",
        lambda s, m: masked_in_place(s, m, emptied=False),
        "as if there were no mask",
    ),
    ("masked_weights", lambda s, m: masked_weights(s, ~m), "turned round"),
    ("masked_weights", lambda s, m: plain(s, ~m), "turned round"),
    ("masked_weights", lambda s, m: s.softmax(-1) * m, "after the softmax"),
    ("masked_weights", lambda s, m: (s * m).softmax(-1), "not to -inf"),
    ("masked_weights", lambda s, m: s.softmax(-1), "ignored"),
    ("masked_weights", lambda s, m: (s + m).softmax(-1), "added to the logits"),
    (
        "masked_weights",
        lambda s, m: s.masked_fill(~m, -math.inf).softmax(-2),
        "over the queries",
    ),
    ("masked_weights", plain, "is NaN: the softmax of nothing"),
    ("masked_weights", lambda s, m: plain(s, m, -1e9), "equal weights"),
    (
        "masked_weights",
        lambda s, m: torch.where(m.any(-1, keepdim=True), plain(s, m, -1e9), s.softmax(-1)),
        "as if there were no mask",
    ),
    (
        "masked_weights",
        lambda s, m: (s + torch.where(m, 0.0, -math.inf)).softmax(-1).nan_to_num(0.0),
        "the gradient is NaN",
    ),
    ("masked_weights", lambda s, m: masked_weights(s, m).detach(), "the gradient is missing"),
    ("softmax_jacobian", lambda a: torch.diag(a * (1 - a)), "only the diagonal"),
    ("softmax_jacobian", lambda a: a * (1 - a), "as a vector"),
    ("softmax_jacobian", lambda a: torch.diag(a) + torch.outer(a, a), "has a plus"),
    ("softmax_jacobian", lambda a: -torch.outer(a, a), "lacks the term"),
    ("softmax_jacobian", torch.diag, "-a_i a_j is missing: "),
    ("softmax_jacobian", lambda a: jacobian(a) + torch.diag(a * a), "missing on the diagonal"),
    ("softmax_jacobian", lambda a: -jacobian(a), "turned round"),
    ("softmax_jacobian", lambda a: jacobian(a.softmax(-1)), "weights already"),
    ("softmax_jacobian", lambda a: 2 * jacobian(a), "should be"),
    ("edge_attention", lambda q, k, v, e: edge_attention(q, k, v, e.flip(1)), "read as"),
    ("edge_attention", lambda *a: edge_attention(*a, scale=1.0), "not divided"),
    ("edge_attention", lambda *a: edge_attention(*a, into=1), "that leave a node"),
    (
        "edge_attention",
        lambda *a: edge_attention(*a, normalize=False, shift=None),
        "not divided by their sum",
    ),
    ("edge_attention", one_softmax, "one softmax over all edges"),
    (
        "edge_attention",
        lambda q, k, v, e: scaled_weights(q, k) @ v,
        "every node hears every node",
    ),
    ("edge_attention", lambda *a: edge_attention(*a, only_mean=True), "plain mean"),
    ("edge_attention", nan_without_edges, "is NaN; it gets zeros"),
    ("edge_attention", lambda *a: edge_attention(*a, shift=None), "wrong for large ones"),
    ("edge_attention", lambda *a: edge_attention(*a, shift="all"), "wrong for large ones"),
    ("edge_attention", lambda *a: 3 * edge_attention(*a), "should be"),
]
