"""Right answers to the exercises of chapter 05, and typical mistakes."""

import torch


def split(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def view_alone(x, n_heads):
    batch, tokens, width = x.shape
    return x.view(batch, n_heads, tokens, width // n_heads)


def merge(heads):
    return heads.transpose(1, 2).flatten(-2)


def full(block, n_heads):
    return torch.block_diag(*[block] * n_heads)


def from_tiled(weight, n_heads, n_kv_heads):
    order = torch.arange(n_heads).view(-1, n_kv_heads).T.flatten()
    return weight.unflatten(0, (n_heads, -1))[order].flatten(0, 1)


def to_tiled(weight, n_heads, n_kv_heads):
    order = torch.arange(n_heads).view(n_kv_heads, -1).T.flatten()
    return weight.unflatten(0, (n_heads, -1))[order].flatten(0, 1)


def rows_moved(weight, n_heads, n_kv_heads):
    return weight[torch.arange(len(weight)).view(-1, n_kv_heads).T.flatten()]


def cache_bytes(n_layers, n_tokens, n_kv_heads, d_head, bytes_each):
    return 2 * n_layers * n_tokens * n_kv_heads * d_head * bytes_each


def zeros_after_the_first(block, n_heads):
    empty = torch.zeros_like(block)
    return torch.block_diag(block, *[empty] * (n_heads - 1))


RIGHT = [
    ("split_heads", split),
    ("merge_heads", merge),
    ("shared_as_full", full),
    ("from_tiled", from_tiled),
    ("cache_bytes", cache_bytes),
]

MISTAKES = [
    ("split_heads", view_alone, "at once"),
    ("split_heads", lambda x, n: x.unflatten(-1, (n, -1)), "transpose is missing"),
    (
        "split_heads",
        lambda x, n: x.unflatten(-1, (-1, n)).permute(0, 3, 1, 2),
        "every n_heads-th column",
    ),
    ("split_heads", lambda x, n: split(x, n).mT, "last two sizes"),
    ("split_heads", lambda x, n: split(x, n).transpose(0, 1), "batch and heads"),
    ("split_heads", lambda x, n: split(x, n).flip(1), "from the end"),
    ("split_heads", lambda x, n: split(x, 2), "expected shape"),
    ("split_heads", lambda x, n: split(x, n) + 1, "should be"),
    ("split_heads", lambda x, n: None, "must return a tensor"),
    ("merge_heads", lambda h: h.reshape(len(h), h.shape[2], -1), "without transposing back"),
    ("merge_heads", lambda h: h.transpose(1, 2), "side by side"),
    ("merge_heads", lambda h: h.permute(0, 2, 3, 1).flatten(-2), "mixes the columns"),
    ("merge_heads", lambda h: h.sum(1), "adds the heads up"),
    ("merge_heads", lambda h: h.mean(1), "takes the mean"),
    ("merge_heads", lambda h: merge(h).flip(1), "should be"),
    ("shared_as_full", lambda b, n: b.repeat(n, n), "everywhere"),
    ("shared_as_full", lambda b, n: b.repeat(1, n), "side by side"),
    ("shared_as_full", lambda b, n: b.repeat(n, 1), "below each other"),
    ("shared_as_full", lambda b, n: full(b.T.contiguous(), n), "transposes the block"),
    ("shared_as_full", lambda b, n: torch.kron(b, torch.eye(n)), "spreads each number"),
    ("shared_as_full", zeros_after_the_first, "leaves the other heads zero"),
    ("shared_as_full", lambda b, n: 2 * full(b, n), "should be"),
    ("from_tiled", lambda w, n, n_kv: w, "as they are"),
    ("from_tiled", to_tiled, "goes the other way"),
    ("from_tiled", rows_moved, "single rows"),
    (
        "from_tiled",
        lambda w, n, n_kv: w.unflatten(0, (n, -1)).flip(0).flatten(0, 1),
        "turns the order",
    ),
    ("from_tiled", lambda *a: from_tiled(*a).unflatten(0, (a[1], -1)), "below each other again"),
    ("from_tiled", lambda *a: from_tiled(*a) + 1, "should be"),
    ("cache_bytes", lambda *a: cache_bytes(*a) // 2, "keys or the values"),
    ("cache_bytes", lambda *a: cache_bytes(*a) // 2 * 3, "queries too"),
    ("cache_bytes", lambda n, *a: cache_bytes(1, *a), "one layer"),
    ("cache_bytes", lambda n, t, *a: cache_bytes(n, 1, *a), "one token"),
    ("cache_bytes", lambda n, t, h, *a: cache_bytes(n, t, 1, *a), "one set"),
    ("cache_bytes", lambda n, t, h, d, b: cache_bytes(n, t, h, 1, b), "leaves d_head out"),
    ("cache_bytes", lambda *a: cache_bytes(*a[:4], 1), "counts numbers"),
    ("cache_bytes", lambda *a: a[1] * cache_bytes(*a), "grows with the square"),
    ("cache_bytes", lambda *a: 8 * cache_bytes(*a), "counts bits"),
    ("cache_bytes", lambda *a: 5, "got 5"),
]
