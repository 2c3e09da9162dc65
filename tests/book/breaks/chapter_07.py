BREAKS = [
    # He's rule on a rectangular matrix
    ("init-rectangle-forward", '"glorot", fan_in=n_in', '"he", fan_in=n_in'),
    # forward in place of backward
    ("init-rectangle-backward", "mean_square(dy @ W.T)", "mean_square(x @ W)"),
    # a sum without the tokens
    ("init-matrix", "mean_square(x.T @ dy) / tokens", "mean_square(x.T @ dy)"),
    # the fused count with two matrices in place of three
    ("init-package", "math.sqrt(2 / (4 * d)), math.sqrt(2 / (4 * d))",
     "math.sqrt(2 / (3 * d)), math.sqrt(2 / (3 * d))"),
    # a gain of one half, as if it stood for the variance
    ("init-fairseq", "gain=1 / math.sqrt(2)", "gain=1 / 2"),
    # keys of the same width: one packed matrix
    ("init-torch-separate", "kdim=256", "kdim=512"),
    # the query's variance in place of the output's
    ("init-torch-output", "mean_square(W_O)", "mean_square(W_Q)"),
    # a matrix and not a convolution
    ("init-keras", "window = math.prod(shape[:-2])", "window = 1"),
    # something is added in front of the LayerNorm
    ("init-ln-alone", "lambda x, f: norm(f(x))", "lambda x, f: norm(x + f(x))"),
    # nothing is added
    ("init-ln-post", "lambda x, f: norm(x + f(x))", "lambda x, f: norm(f(x))"),
    # no LayerNorm: the gradient does not fall
    ("init-ln-gradient", "lambda x, f: norm(f(x))", "lambda x, f: f(x)"),
    # the rate that Adam would need
    ("init-ln-rate", "rate=16.0", "rate=4.0"),
    # b_V added as it is, not through W_O
    ("init-fold", "+ b_V @ W_O", "+ b_V"),
    # an empty row elsewhere
    ("init-fold-empty", "nobody[3] = False", "nobody[4] = False"),
    # the shift's effect on the values is not taken back
    ("init-shift", "-shift @ W_V @ W_O", "0 * shift"),
    # one of the two matrices random
    ("init-stationary", 'first_gradients("query", "key")', 'first_gradients("query")'),
    # apply also reaches bare parameters
    ("init-apply-packed", "isinstance(module, nn.Linear):\n        nn.init.normal_(module.weight",
     "isinstance(module, nn.MultiheadAttention):\n"
     "        nn.init.normal_(module.in_proj_weight"),
    # another formula for the fused count
    ("init-probe-logits", "nn.TransformerEncoder(torch_layer, 2)",
     "nn.TransformerEncoder(torch_layer, 2).double().apply("
     "lambda m: nn.init.xavier_uniform_(m.self_attn.in_proj_weight, 2**0.5)"
     " if hasattr(m, 'self_attn') else m)"),
    # tokens of one kind
    ("init-real-scaled", "words + sinusoidal_positions(T, d)", "words"),
    # a rule that looks at the fan
    ("init-wide", "0.02 * torch.randn(width, 64", "width**-0.5 * torch.randn(width, 64"),
    # as many tokens
    ("init-length", "output_at(1024, s)", "output_at(512, s)"),
    # an output that is large beside epsilon
    ("init-ln-epsilon", 'module = start("gpt2", seed)', 'module = start("glorot", seed)'),
]  # fmt: skip
