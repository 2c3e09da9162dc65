BREAKS = [
    # positions that are half as large
    ("rms-position", "rms(sinusoidal_positions(64, d))", "rms(sinusoidal_positions(64, d) / 2)"),
    # the factor forgotten
    ("rms-token-scaled-1024", "scaled=scaled, init=init", "scaled=False, init=init"),
    # the factor on both terms: the position grows too
    ("share-scaled-512", "position = sinusoidal_positions(n_tokens, d)",
     "position = factor * sinusoidal_positions(n_tokens, d)"),
    # no position: then the LayerNorm does remove the factor
    ("does-not-cancel", "math.sqrt(d), sinusoidal_positions(64, d)",
     "math.sqrt(d), torch.zeros(64, d)"),
    # an output layer of its own instead of the table
    ("first-loss-tied-unit", 'tied=True, scaled=False, embedding_init="unit"',
     'tied=False, scaled=False, embedding_init="unit"'),
    # logits of variance 4
    ("blind-small", "logits = spread *", "logits = 2 * spread *"),
    # the factor that the pitfall warns of, left out
    ("pitfall-ratio", "plain(ids) * math.sqrt(512)", "plain(ids)"),
]  # fmt: skip
