BREAKS = [
    # no ReLU: unrelated tokens stay unrelated
    ("deep-relu", "torch.randn(64, 256)).relu()", "torch.randn(64, 256))"),
    # half of the kernel
    ("deep-relu-raises", "np.sqrt(1 - rho**2) + rho * angle", "rho * angle"),
    # logits twice as large in the theory
    ("deep-attention-256", "expected, shared = overlaps(1.0, 0.0)",
     "expected, shared = overlaps(4.0, 0.0)"),
    # the tokens as they are, without the attention
    ("deep-attention-cosine", "output = attention(x)[0]", "output = x[0]"),
    # no skip in the block by hand
    ("deep-package", "added = skip * x + f", "added = f"),
    # only one of them
    ("deep-both", "glorot_divided(s, n**0.5, n**0.5)", "glorot_divided(s, n**0.5)"),
    # both of them
    ("deep-outer-only", "glorot_divided(s, outer=48**0.5)", "glorot_divided(s, 48**0.5, 48**0.5)"),
    # without the factor
    ("deep-query-scaled", '"glorot scaled", "post", s)', '"glorot", "post", s)'),
    # in pre-norm gradients grow on the way back
    ("deep-back-96", '"glorot", "post", 4, n=96)', '"glorot", "pre", 4, n=96)'),
    # GPT-2's start at the width it belongs to
    ("deep-literal", "math.sqrt(D / 768)", "1.0"),
    # the norm before the branch
    ("deep-query-dead", 'query_gradients("glorot", "post", s)',
     'query_gradients("glorot", "pre", s)'),
    # large branches
    ("deep-query-alive", 'query_gradients("gpt2", "pre", s)',
     'query_gradients("glorot", "pre", s)'),
    # the way through the logits cut in both
    ("deep-back-logits", "for fixed in (False, True)", "for fixed in (True, True)"),
    # and of what it is compared with
    ("deep-back-share", "for logits in (True, False)", "for logits in (True, True)"),
    # what different tokens' gradients share, lost in attention
    ("deep-back-own-pre", "[[p, (T - 1) * p_other]", "[[p, 0.0]"),
    # the way through the logits left out of the theory
    ("deep-back-rare", "    if logits:\n", "    if False:\n"),
    # branches that are not zero
    ("deep-zero", '"zero_output", "pre", seed)', '"gpt2", "pre", seed)'),
    # layers drawn one by one
    ("deep-torch-equal", "redraw=False", "redraw=True"),
    # ReLU passes on half
    ("deep-gelu", 'F.gelu(z, approximate="tanh")', "torch.relu(z)"),
]  # fmt: skip
