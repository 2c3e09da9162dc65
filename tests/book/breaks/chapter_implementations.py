BREAKS = [
    # fairseq's factor forgotten in one of the rules
    ("impl-rules", "(square, gain=1 / math.sqrt(2))", "(square)"),
    # as many outputs as inputs
    ("impl-packed-exact", "w + 3 * w", "w + w"),
    # the axes as they are meant
    ("impl-keras-small", "places * shape[-2], places * shape[-1]", "d, d"),
    # as a module
    ("impl-gelu-function", 'functools.partial(F.gelu, approximate="tanh")', 'nn.GELU("tanh")'),
    # the other implementation
    ("impl-empty-sdpa", "{model}, sdpa, {kind}", "{model}, eager, {kind}"),
    # under the root
    ("impl-norm-tiny", "x.std(-1, keepdim=True) + 1e-6", "(x.var(-1, keepdim=True) + 1e-5).sqrt()"),
]  # fmt: skip
