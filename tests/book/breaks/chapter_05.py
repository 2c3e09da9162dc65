BREAKS = [
    # an attention without a causal mask
    ("heads-reach-right", "q, k, v, causal=True", "q, k, v"),
    # the root of d and not of d_head
    ("heads-loop", "math.sqrt(q.shape[-1])", "math.sqrt(x.shape[-1])"),
    # the block transposed
    ("heads-snippet-is-block", "torch.block_diag(*[block] * n_heads)",
     "torch.block_diag(*[block.T.clone()] * n_heads)"),
    # the mean of W_O's blocks and not their sum
    ("heads-same-is-one", "columns.sum(dim=1)", "columns.mean(dim=1)"),
    # blocks of W_O that are not equal
    ("heads-equal-gradient", "gradient = first_gradient(fresh(seeds(1)[0]))",
     'gradient = first_gradient(fresh(seeds(1)[0], names="QKV"))'),
    # keys and values of every head
    ("heads-cache", "n_kv_heads=n_kv_heads)", "n_kv_heads=8)"),
]  # fmt: skip
