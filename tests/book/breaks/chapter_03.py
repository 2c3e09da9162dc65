BREAKS = [
    # no division by the root of d_head
    ("qkv-module", "S = Q @ K.T / math.sqrt(2)", "S = Q @ K.T"),
    # copies: a vector compared with itself
    ("qkv-not-copies", "cosine_similarity(a, b)", "cosine_similarity(a, a)"),
    # the key's gradient instead of the query's
    ("qkv-dense", "x.detach().T @ q.grad", "x.detach().T @ k.grad"),
    # later words may be seen
    ("qkv-future-causal", "x = block(x, causal=causal)", "x = block(x, causal=False)"),
    # vectors as small as those of an embedding that is not scaled
    ("qkv-self-64", "x = torch.randn(n_tokens, d)", "x = torch.randn(n_tokens, d) / math.sqrt(d)"),
    # one matrix for both: not only symmetric, each place prefers itself
    ("qkv-ring-symmetric", '"symmetric": q * sign', '"symmetric": q'),
    # two matrices where the claim is about one
    ("qkv-ring-tied", '"same": q}', '"same": x @ W_K}'),
    # transposed where it must be inverted
    ("qkv-gauge", "torch.linalg.inv(G) @ attention.key.weight", "G.T @ attention.key.weight"),
    # no rotation between the two matrices
    ("qkv-gauge-rotary", "d_head=16, position=Rotary())", "d_head=16, position=None)"),
    # the gradient transformed like the matrix
    ("qkv-gradient-query", "to_query @ torch.linalg.inv(G).T", "to_query @ G"),
    # with rotary positions it does matter
    ("qkv-key-bias", '[effect("key", s) for s', '[effect("key", s, position=Rotary()) for s'),
    # two keys to choose from
    ("qkv-one-key", "flows(1, s)", "flows(2, s)"),
    # every token sees all
    ("qkv-first-place", "q, k, v, causal=True", "q, k, v, causal=False"),
    # a circle too small
    ("qkv-circle-best", "A = (radius**2 * waves[1])", "A = (0.1 * radius**2 * waves[1])"),
    # another order of the three parts
    ("qkv-torch-packed", "(ours.query, ours.key, ", "(ours.key, ours.query, "),
    # the pitfall mended
    ("qkv-transpose", "rms(x @ layer.weight - ", "rms(x @ layer.weight.T - "),
    # tokens no more alike than without positions
    ("qkv-louder-sinusoids", '({"position": "none"}, {}, ',
     '({"position": "none"}, {"position": "none"}, '),
    # scaled as the others
    ("qkv-louder-unscaled", '{}, {"scaled": False}))', "{}, {}))"),
    # sinusoids, with which one place fails
    ("qkv-ring-places", 'position="learned", max_tokens=8', "max_tokens=8"),
    # two matrices, which find the neighbour
    ("qkv-ring-places-mean", 'prepare(attention, "one matrix for Q and K")',
     'prepare(attention, "trained")'),
    # tied all the way, not at the start alone
    ("qkv-reversal-start", "attention.key = copy.deepcopy(attention.query)",
     "attention.key = attention.query"),
]  # fmt: skip
