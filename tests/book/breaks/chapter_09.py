BREAKS = [
    # the decoder sees what is to come
    ("date-by-hand", "before = causal_mask(target.shape[1])", "before = None"),
    # the first prediction of each beginning, not the last
    ("date-one-pass", "target[:, :n + 1])[:, -1]", "target[:, :n + 1])[:, 0]"),
    # the padding of the source in place of the target's
    ("date-mask-target-same", 'lost("without target")', 'lost("without self")'),
    # the future is in sight, and with it the padding
    ("date-torch-target", "tgt_mask=ahead", "tgt_mask=None"),
    # the mask that the causal one covers
    ("date-torch-memory", '(of_real("memory_key', '(of_real("tgt_key'),
]  # fmt: skip
