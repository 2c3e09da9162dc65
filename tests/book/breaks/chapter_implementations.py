BREAKS = [
    # fairseq's factor forgotten
    ("impl-packed", "gain=1 / math.sqrt(2)", "gain=1"),
    # the root of a head's width
    ("impl-former", "scale=width**-0.5", "scale=(width / 8) ** -0.5"),
    # the axes as they are meant
    ("impl-keras-small", "places * shape[-2], places * shape[-1]", "d, d"),
    # as a module
    ("impl-gelu-function", 'functools.partial(F.gelu, approximate="tanh")', 'nn.GELU("tanh")'),
    # the other implementation
    ("impl-empty-sdpa", "{model}, sdpa, {kind}", "{model}, eager, {kind}"),
    # under the root
    ("impl-norm-tiny", "x.std(-1, keepdim=True) + 1e-6", "(x.var(-1, keepdim=True) + 1e-5).sqrt()"),
]  # fmt: skip
