BREAKS = [
    # positions added: attention no longer reads a set
    ("pos-set", "attend(x[order]), label", "attend(x[order] + torch.eye(3, 2)), label"),
    # positions in the encoder that has none
    ("pos-encoder-set", 'gap("none", s', 'gap("rotary", s'),
    # two layers instead of one
    ("pos-causal-1", "max(by_depth[1])", "max(by_depth[2])"),
    # one layer instead of two
    ("pos-causal-2", "by_depth[2], label", "by_depth[1], label"),
    # the shift's angles of other frequencies
    ("pos-shift", "k * 10000.0 ** (-2 * i / d))", "k * 10000.0 ** (-i / d))"),
    # rows and columns of the rotation swapped: it moves back
    ("pos-look-back", "[cos, -sin, sin, cos]", "[cos, sin, -sin, cos]"),
    # a table of random numbers where sinusoids are promised
    ("pos-shift-exact", "best_shift(sinusoidal_positions(128, 16))", "best_shift(random_table(0))"),
    # sines alone: the product knows more than the distance
    ("pos-distance-only", "gram = P @ P.T", "gram = P[:, ::2] @ P[:, ::2].T"),
    # W_Q = W_K = identity: the diagonal is back
    ("pos-explained", "(places @ W_Q) @ (places @ W_K).T", "places @ places.T"),
    # a matrix of its own for the place
    ("pos-concat", "torch.cat([W, W])", "torch.cat([W, W.T])"),
    # a word that is not ten times as large
    ("pos-learned-quiet", 'scaled word": (1, 0.02)', 'scaled word": (0.1, 0.02)'),
    # a thousand times the same word can't be told apart
    ("pos-word-64", "torch.randn(1000, d)", "torch.randn(1, d).expand(1000, -1)"),
    # every sequence reaches every row
    ("pos-rows", "n_tokens=16", "n_tokens=64"),
    # only the queries turned
    ("pos-relative", "return q @ k.T", "return q @ key.T"),
    # the weights left as they were
    ("pos-converted", "layout_swap(True, s)", "layout_swap(False, s)"),
    # rotary positions tell left from right
    ("pos-alibi-mirror", 'gap("alibi", s, mirror)', 'gap("rotary", s, mirror)'),
    # a penalty on the square of the distance
    ("pos-alibi-weights", "torch.arange(12)\n", "torch.arange(12) ** 2\n"),
    # the right angle for each pair
    ("pos-mispaired", ".repeat_interleave(2, dim=-1)", ".repeat(1, 2)"),
    # the query turned by its own place
    ("pos-restarted", "(n - 1, 0)", "(n - 1, n - 1)"),
    # the order kept where it should be shuffled
    ("pos-explained-chance", "[torch.randperm(64)", "[torch.arange(64)"),
    # a word as loud as if it were scaled
    ("pos-place-quiet", '"unscaled": 64**-0.5', '"unscaled": 1.0'),
    # random rows a hundredth as large
    ("pos-word-random", "else 0.5**0.5 * torch.randn", "else 0.005 * torch.randn"),
    # a score that sees the fastest pair alone
    ("pos-alias", "torch.arange(0, 4, 2) / 16", "torch.arange(0, 2, 2) / 16"),
    # the base left as it was
    ("pos-alias-1000", "most_alike(1000.0, 2)", "most_alike(10000.0, 2)"),
    # positions, with which a second copy stands elsewhere
    ("pos-proportions", 'untrained("none", seed), torch', 'untrained("sinusoidal", seed), torch'),
]  # fmt: skip
