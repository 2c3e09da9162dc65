BREAKS = [
    # one-hot vectors of the wrong tokens
    ("one-hot", "F.one_hot(ids, V)", "F.one_hot(ids.roll(1), V)"),
    # positions that are half as large
    ("rms-position", "rms(sinusoidal_positions(64, d))", "rms(sinusoidal_positions(64, d) / 2)"),
    # the factor forgotten
    ("rms-token-scaled-64", "scaled=scaled, init=init", "scaled=False, init=init"),
    # another start of the table
    ("rms-token-512", '"inverse_sqrt", 512', '"glorot", 512'),
    # the factor on both terms: the position grows too
    ("share-scaled-512", "place = sinusoidal_positions(n_tokens, d)",
     "place = factor * sinusoidal_positions(n_tokens, d)"),
    # d instead of its root
    ("share-theory-scaled", "lambda d: math.sqrt(d)", "lambda d: d**0.25"),
    # no position: then the LayerNorm does remove the factor
    ("does-not-cancel", "math.sqrt(d), sinusoidal_positions(64, d)",
     "math.sqrt(d), torch.zeros(64, d)"),
    # an output layer of its own instead of the table
    ("first-loss-tied-unit", 'tied=True, scaled=False, embedding_init="unit"',
     'tied=False, scaled=False, embedding_init="unit"'),
    # the start that the pitfall warns of, mended
    ("pitfall-ratio", "plain(ids) * math.sqrt(512)", "plain(ids)"),
    # the mean square in place of the variance over places
    ("share-theory-64", "v = sinusoidal_positions(64, d).var(dim=0).mean().item()",
     "v = sinusoidal_positions(64, d).pow(2).mean().item()"),
    # the gradients of scaled and not scaled models, each taken for the other
    ("gradient-together", "tied=False, scaled=scaled)\n    loss.backward",
     "tied=False, scaled=not scaled)\n    loss.backward"),
    ("gradient-apart", "tied=False, scaled=scaled)\n    loss.backward",
     "tied=False, scaled=not scaled)\n    loss.backward"),
    # words that nobody counted
    ("lm-words", "by_words = -(counts / counts.sum()).log()",
     "by_words = -(torch.ones(500) / 500).log()"),
    # the rate that makes the two models one
    ("not-same-rate", "losses(s, False, 3e-3)", "losses(s, False, 8 * 3e-3)"),
]  # fmt: skip
