BREAKS = [
    # T5's start without the factor folded in
    ("aw-t5", "(d_model * d_head) ** -0.5", "d_model ** -0.5"),
    # a score in which query and key are multiplied
    ("aw-gat", "(h @ a_1)[:, None] + h @ a_2", "(h * a_1) @ h.T"),
    # the mask before the softmax
    ("aw-leak-after", "return S.softmax(-1) * M", "return mask_before(S, M)"),
    # a network that is half as wide
    ("aw-cost-block", "FeedForward(d, 4 * d)", "FeedForward(d, 2 * d)"),
    # zeros instead of NaN
    ("aw-nan-gradients", "nan_gradients(minus_infinity)", "nan_gradients(attention_weights)"),
    # the mode of training, in which the empty sequence gives zeros
    ("aw-layer-fast", "encoder.train(training)", "encoder.train(True)"),
    # keys as narrow as the values
    ("aw-reach-31", "unreachable(s, 31)", "unreachable(s, 8)"),
]  # fmt: skip
