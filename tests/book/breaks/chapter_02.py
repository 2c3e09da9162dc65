BREAKS = [
    # positions added: attention no longer reads a set
    ("pos-set", "attend(x[order]), label", "attend(x[order] + torch.eye(3, 2)), label"),
    # two layers instead of one
    ("pos-causal-1", "max(by_depth[1])", "max(by_depth[2])"),
    # the shift's angles of other frequencies
    ("pos-shift", "k * 10000.0 ** (-2 * i / d))", "k * 10000.0 ** (-i / d))"),
    # a matrix of its own for the position
    ("pos-concat", "torch.cat([W, W])", "torch.cat([W, W.T])"),
    # only the queries turned
    ("pos-relative", "return q @ k.T", "return q @ key.T"),
    # a score that sees the fastest pair alone
    ("pos-alias", "torch.arange(0, 4, 2) / 16", "torch.arange(0, 2, 2) / 16"),
]
