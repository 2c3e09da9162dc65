BREAKS = [
    # no division by the root of d_head
    ("qkv-module", "S = Q @ K.T / math.sqrt(2)", "S = Q @ K.T"),
    # the key's gradient instead of the query's
    ("qkv-dense", "x.detach().T @ q.grad", "x.detach().T @ k.grad"),
    # copies: a vector compared with itself
    ("qkv-not-copies", "cosine_similarity(a, b)", "cosine_similarity(a, a)"),
    # the logits, which are
    ("qkv-weights-asymmetric", "table.softmax(dim=-1) for", "table for"),
    # transposed where it must be inverted
    ("qkv-gauge", "torch.linalg.inv(G) @ attention.key.weight", "G.T @ attention.key.weight"),
    # with rotary positions it does matter
    ("qkv-key-bias", '[effect("key", s) for s', '[effect("key", s, position=Rotary()) for s'),
    # every token sees all
    ("qkv-first-place", "q, k, v, causal=True", "q, k, v, causal=False"),
    # queries and keys from the same matrix
    ("qkv-figure", "torch.tensor(pair[1]).T", "torch.tensor(pair[0]).T"),
]  # fmt: skip
