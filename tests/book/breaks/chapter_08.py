BREAKS = [
    # the tokens as they are, without the attention
    ("deep-attention-cosine", "output = attention(x)[0]", "output = x[0]"),
    # no skip in the block by hand
    ("deep-package", "added = skip * x + f", "added = f"),
    # only one of them divided
    ("deep-both", 'changed(f"both by sqrt({n})")', 'changed("W_2 by sqrt(48)")'),
    # the line of another scheme
    ("deep-predicted-48", 'predict(48, "glorot", "pre")', 'predict(48, "gpt2", "pre")'),
    # half of the kernel
    ("deep-relu-raises", "np.sqrt(1 - rho**2) + rho * angle", "rho * angle"),
    # branches that are not zero
    ("deep-zero", '"zero_output", "pre", seed)', '"gpt2", "pre", seed)'),
    # layers drawn one by one
    ("deep-torch-equal", "redraw=False", "redraw=True"),
]  # fmt: skip
