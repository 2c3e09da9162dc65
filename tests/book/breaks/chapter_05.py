BREAKS = [
    # the heads' matrices below each other, cut apart in another order
    ("heads-one-product", "torch.cat(W_Q, dim=1)", "torch.cat(W_Q[::-1], dim=1)"),
    # the view without its transpose
    ("heads-split", "names.view(T, H, d_head).transpose(0, 1)", "names.view(H, T, d_head)"),
    # an attention without a causal mask
    ("heads-reach-right", "q, k, v, causal=True", "q, k, v"),
    # the mistake mended
    ("heads-leak-split", '"wrong": lambda x: x.view(2, 8, -1)',
     '"wrong": lambda x: x.view(8, 2, -1).transpose(0, 1)'),
    ("heads-both-wrong-pairs", '"wrong": lambda heads: heads.reshape(8, -1)',
     '"wrong": lambda heads: heads.transpose(0, 1).flatten(1)'),
    # W_O cut into every second row
    ("heads-sum", "W_O.view(H, d_head, d)", "W_O.view(d_head, H, d).transpose(0, 1)"),
    # the root of d and not of d_head
    ("heads-loop", "math.sqrt(q.shape[-1])", "math.sqrt(x.shape[-1])"),
    # the heads moved, and W_O left as it is
    ("heads-exchangeable", "columns[:, order]", "columns[:, :]"),
    # the block transposed
    ("heads-snippet-is-block", "torch.block_diag(*[block] * n_heads)",
     "torch.block_diag(*[block.T.clone()] * n_heads)"),
    # a bias in the small layers
    ("heads-snippet-parameters", "nn.Linear(d_head, d_head, bias=False)",
     "nn.Linear(d_head, d_head)"),
    # the mean of W_O's blocks and not their sum
    ("heads-same-is-one", "columns.sum(dim=1)", "columns.mean(dim=1)"),
    # the proper module in place of the one that sees a slice
    ("heads-sees-slice", "columns_seen(SharedHeads(32, 4))",
     "columns_seen(MultiHeadAttention(32, 4))"),
    # heads of a fixed width
    ("heads-count-parameters", "MultiHeadAttention(32, H)", "MultiHeadAttention(32, H, d_head=8)"),
    # blocks of W_O that are not equal
    ("heads-equal-gradient", "gradient = first_gradient(fresh(seeds(1)[0]))",
     'gradient = first_gradient(fresh(seeds(1)[0], names="QKV"))'),
    # equal blocks of W_O
    ("heads-random-output-gradient", 'gradients_apart(s, "QKV")', 'gradients_apart(s, "QKVO")'),
    # the other order of the groups
    ("heads-tiled", ".repeat(1, n_heads // n_kv, 1, 1)",
     ".repeat_interleave(n_heads // n_kv, dim=1)"),
    # keys and values of every head
    ("heads-cache", "n_kv_heads=n_kv_heads)", "n_kv_heads=8)"),
    # two sets of keys and values
    ("heads-mqa-parameters", "16 * count(MultiHeadAttention(512, 8, n_kv_heads=1))",
     "16 * count(MultiHeadAttention(512, 8, n_kv_heads=2))"),
    # heads of twice the width
    ("heads-rank", "32 // n_heads) for _", "64 // n_heads) for _"),
    # the matrices of two heads changed
    ("heads-torch-separate", "rows[:, 0] = torch.randn(3, 8, 32)",
     "rows[:, :2] = torch.randn(3, 2, 8, 32)"),
    # random heads where equal ones are spoken of
    ("heads-zero-equal", 'output_gradients_apart(seeds(1)[0], "QKV")',
     'output_gradients_apart(seeds(1)[0], "QK")'),
    # a slice of eight columns
    ("heads-frozen-wide", "with_width(128, question)", "with_width(32, question)"),
    # trained to the end
    ("heads-early-mqa", "trained_model(s, name, steps=20)", "trained_model(s, name)"),
    # the proper one in its place
    ("heads-lm-wide", 'gap("sharing", losses=pair)', 'gap("proper", losses=pair)'),
    # a task that can be solved
    ("heads-idle-apart", "for wrong in (0.0, 0.25))\nclaim", "for wrong in (0.0, 0.0))\nclaim"),
]  # fmt: skip
