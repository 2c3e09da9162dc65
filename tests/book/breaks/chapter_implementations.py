BREAKS = [
    # three matrices in place of a packed one
    (
        "impl-torch-query",
        'sigmas(attention, "in_proj_weight")',
        'sigmas(lambda: attention(kdim=256), "q_proj_weight")',
    ),
    # the packed matrix for a separate one
    (
        "impl-torch-output",
        'sigmas(attention, "out_proj.weight")',
        'sigmas(attention, "in_proj_weight")',
    ),
    # the packed matrix for a separate one
    (
        "impl-torch-transformer",
        'sigmas(transformer, inside + "out_proj.weight")',
        'sigmas(transformer, inside + "in_proj_weight")',
    ),
    # heads of the usual width
    ("impl-tf-query", '"Keras, key_dim=512", "query"', '"Keras MultiHeadAttention", "query"'),
    # fairseq's factor forgotten in one of the rules
    ("impl-rules", "(square, gain=1 / math.sqrt(2))", "(square)"),
    # the axes as they are meant
    ("impl-weights-uniform", 'largest(rules["G as a convolution"])', "largest(glorot())"),
    # logits divided by nothing
    ("impl-weights-gpt2", "(x @ W_Q, x @ W_K).softmax", "(x @ W_Q, x @ W_K, scale=1.0).softmax"),
    # behind a norm
    ("impl-weights-d2l", "x *= size", "x *= 1.0"),
    # as many outputs as inputs
    ("impl-packed-exact", "w + 3 * w", "w + w"),
    # without fairseq's factor
    ("impl-packed", "torch.empty(d, d), gain=1 / math.sqrt(2))", "torch.empty(d, d))"),
    # the axes as they are meant
    ("impl-keras-small", "places * shape[-2], places * shape[-1]", "d, d"),
    ("impl-keras-logits", "places * shape[-2], places * shape[-1]", "d, d"),
    # the heads forgotten
    ("impl-keras-shape", "Fraction(n + w // n, 2)", "Fraction(w // n, 2)"),
    # the axes as they are meant
    ("impl-tf-old", "glorot(*as_convolution((d, heads, d)))", "glorot(d, heads * d)"),
    # another matrix of the same model
    ("impl-gpt2-output", 'measured(HF + "GPT-2", "output")', 'measured(HF + "GPT-2", "query")'),
    # Keras's rule for the others
    ("impl-x", 'measured("x-transformers", "query")', 'measured("x-transformers", "embedding")'),
    # the factor forgotten
    ("impl-token-t2t", "normal(d**-0.5) * root),", "normal(d**-0.5)),"),
    # a vocabulary of the table's own size
    ("impl-token-annotated", "lambda: as_matrix() * root", "lambda: as_matrix(d) * root"),
    # another table
    ("impl-share-annotated", 'shares(rules["G on (V, d), × √d"])', "shares(1.0)"),
    # layers that were drawn one by one
    (
        "impl-copies",
        "nn.TransformerEncoder(new_layer(), 4)",
        "nn.Transformer(32, 4, 4, 1, 64).encoder",
    ),
    # the first layer beside itself
    ("impl-biases", "differ(whole[0], whole[3])),", "differ(whole[0], whole[0])),"),
    # drawn separately
    ("impl-copies-cosine", "if not copies:", "if copies:"),
    # a rate that is lower and not higher
    ("impl-copies-rate", "rate=1e-2", "rate=1e-3"),
    # as a module
    ("impl-gelu-function", 'functools.partial(F.gelu, approximate="tanh")', 'nn.GELU("tanh")'),
    # the weights asked for in both calls
    ("impl-empty-torch", "need_weights=each", "need_weights=True"),
    # the tanh form kept
    ("impl-gelu", "return slow, layer(x)", "return slow, slow"),
    # the ways of two types mixed up
    ("impl-empty-llama64", 'eager, float64"]', 'eager, float32"]'),
    # the other implementation
    ("impl-empty-sdpa", "{model}, sdpa, {kind}", "{model}, eager, {kind}"),
    ("impl-eager-boolean", "forbidden['eager']", "forbidden['sdpa']"),
    # the two orders exchanged
    ("impl-groups", "f\"{sets[HF + 'Llama']}, \"", "f\"{sets['x-transformers']}, \""),
    # an epsilon as small as GPT-2's
    ("impl-eps-keras", "after_norm(1e-3, s)", "after_norm(1e-5, s)"),
    # under the root
    ("impl-norm-tiny", "x.std(-1, keepdim=True) + 1e-6", "(x.var(-1, keepdim=True) + 1e-5).sqrt()"),
    # the width of a head
    ("impl-former", "logits_of(d, s).var()", "logits_of(64, s).var()"),
]  # fmt: skip
