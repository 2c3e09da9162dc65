BREAKS = [
    # a sequence nine times as long
    ("aw-not-stored", "for n in (10, 100)]\nclaim", "for n in (10, 90)]\nclaim"),
    # queries and keys that are the same vectors
    ("aw-variance-64", "q, k = torch.randn(2, 8, 64, d_head)",
     "q = k = torch.randn(8, 64, d_head)"),
    # the division forgotten
    ("aw-variance-scaled", "[logit_variance(512, s) for s", "[logit_variance(512, s, 1.0) for s"),
    # queries and keys of different matrices
    ("aw-self", "attention_logits(q, q if same else k)", "attention_logits(q, k)"),
    # the factor in place
    ("aw-dead-1024", "scale=None if scaled else 1", "scale=None"),
    ("aw-rms-1024", "scale=None if scaled else 1", "scale=None"),
    # the wrong axis
    ("aw-package", "S.exp().sum(-1, keepdim=True) @ v", "S.exp().sum(-2, keepdim=True) @ v"),
    # values that are all alike do not average out
    ("aw-shrinks", "q, k, v = torch.randn(3, n, d_head)",
     "q, k, v = torch.randn(3, n, d_head); v = v[:1].expand(n, -1)"),
    # a score in which query and key are multiplied
    ("aw-gat", "F.leaky_relu(q @ a_1 + k @ a_2, 0.2)", "F.leaky_relu((q * k) @ a_2, 0.2)"),
    # the mask before the softmax
    ("aw-leak-after", "return S.softmax(-1) * M", "return mask_before(S, M)"),
    ("aw-leak-axis", "masked_fill(~M, -math.inf).softmax(-2)",
     "masked_fill(~M, -math.inf).softmax(-1)"),
    # the mask after it
    ("aw-no-leak", "max(leak(mask_before, s)", "max(leak(mask_after, s)"),
    # zeros instead of NaN
    ("aw-nan-gradients", "nan_gradients(minus_infinity)", "nan_gradients(attention_weights)"),
    # a very negative number that is not negative enough
    ("aw-same-bits", "masked_fill(~M, -1e9)", "masked_fill(~M, -10.0)"),
    # no dropout
    ("aw-dropout-spread", "dropout=p", "dropout=0.0"),
    # a type in which -1e9 exists
    ("aw-half", "minus_billion(S.half(), M)", "minus_billion(S.bfloat16(), M)"),
    # the mode of training, in which the empty sequence gives zeros
    ("aw-layer-fast", "encoder.train(training)", "encoder.train(True)"),
    ("aw-torch-fast", "module.train(training)", "module.train(True)"),
    # the weights asked for
    ("aw-torch-zero", "pad, need_weights=False", "pad, need_weights=True"),
    # T5's start without the factor folded in
    ("aw-t5", "(d_model * d_head) ** -0.5", "d_model ** -0.5"),
    # all keys alike
    ("aw-effective-tied", "v @ v.T / 8", "v @ v.T * 0"),
    # embeddings that are never scaled
    ("aw-places-scaled", "for scaled in (False, True) for norm",
     "for scaled in (False, False) for norm"),
    # keys as narrow as the values
    ("aw-reach-31", "unreachable(s, 31)", "unreachable(s, 8)"),
    # and as many as it takes
    ("aw-reach-8", "unreachable(s, 8)", "unreachable(s, 31)"),
    # the weights asked for
    ("aw-torch-odd", "w, w, w, key_padding_mask=pad, need_weights=False",
     "w, w, w, key_padding_mask=pad, need_weights=True"),
    # the padding handed on
    ("aw-encoder-packed", "nn.TransformerEncoder(encoder, 1)",
     "nn.TransformerEncoder(encoder, 1, enable_nested_tensor=False)"),
    # at the queries, behind the factor
    ("aw-rms-logits", "zip(per_seed(1024, False, 3, rms)",
     "zip(per_seed(1024, False, 2, rms)"),
    # a W_K that moves at its usual rate
    ("aw-both-fast", "build=both_fast", "**started"),
    # the factor in place
    ("aw-patient-third", "rate=1e-3 / 3, steps=3600, in_formula=False", "rate=1e-3, steps=3600"),
    # more keys in place of fewer
    ("aw-dead-few", "rows(1024, False, s, n=8)", "rows(1024, False, s, n=256)"),
]  # fmt: skip
