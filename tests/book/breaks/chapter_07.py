BREAKS = [
    # He's rule on a rectangular matrix
    ("init-rectangle-forward", '"glorot", fan_in=n_in', '"he", fan_in=n_in'),
    # a gain of one half, as if it stood for the variance
    ("init-fairseq", "gain=1 / math.sqrt(2)", "gain=1 / 2"),
    # the query's variance in place of the output's
    ("init-torch-output", "mean_square(W_O)", "mean_square(W_Q)"),
    # nothing is added
    ("init-ln-post", "lambda x, f: norm(x + f(x))", "lambda x, f: norm(f(x))"),
    # b_V added as it is, not through W_O
    ("init-fold", "+ b_V @ W_O", "+ b_V"),
    # a matrix and not a convolution
    ("init-keras", "window = math.prod(shape[:-2])", "window = 1"),
]  # fmt: skip
