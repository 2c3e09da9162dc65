BREAKS = [
    # those that diverge are pooled, too
    ("size-spread-slow", 'and row["held out"][-1] < 7', ""),
    # another order at the second size
    ("size-order", "ranks(second), strict", "ranks(second)[::-1], strict"),
    # another start's first loss
    ("size-torch-first", "128 wide, 0.003, torch's default", "128 wide, 0.003, Glorot"),
    # with the factor it reads
    ("size-unscaled", '"N(0, 1/d), not scaled")) - unigram', '"N(0, 1/d), scaled")) - unigram'),
    # a table that is large without the factor
    ("size-root-gpt2", '"0.02, not scaled", "0.02, scaled"', '"N(0, 1), scaled", "0.02, scaled"'),
    # from matrices that are not small
    ("size-post-small", "post-norm, GPT-2's\")) - unigram", 'post-norm, Glorot")) - unigram'),
]  # fmt: skip
