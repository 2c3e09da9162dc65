BREAKS = [
    # those that diverge are pooled, too
    ("size-spread-slow", " if max(each) < 6.3", ""),
    # another order at the second size
    ("size-order", "ranks(second), strict", "ranks(second)[::-1], strict"),
    # another start's first loss
    ("size-torch-first", "128 wide, 0.003, torch's default", "128 wide, 0.003, Glorot"),
    # with the factor it reads
    ("size-unscaled", 'above("128 wide", "N(0, 1/d), not', 'above("128 wide", "N(0, 1/d),'),
    # a table that is large without the factor
    ("size-root-gpt2", '"0.02, not scaled", "0.02, scaled"', '"N(0, 1), scaled", "0.02, scaled"'),
    # from matrices that are not small
    ("size-post-small", 'above("128 wide", "post-norm, GPT-2\'s")', 'above("128 wide", "Glorot")'),
    # the other way round
    ("size-rotary-slow", '"GPT-2\'s", "rotary", 0.001', '"rotary", "GPT-2\'s", 0.001'),
    # at the rate at which it learns
    ("size-post-fast-256", '"post-norm, Glorot", 0.003', '"post-norm, Glorot", 0.001'),
]  # fmt: skip
