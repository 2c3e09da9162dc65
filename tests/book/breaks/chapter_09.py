BREAKS = [
    # the decoder sees what is to come
    ("date-by-hand", "before = causal_mask(target.shape[1])", "before = None"),
    # the first prediction of each beginning, not the last
    ("date-one-pass", "target[:, :n + 1])[:, -1]", "target[:, :n + 1])[:, 0]"),
    # what earlier positions read
    ("date-gradient-later", "triu(1)", "tril(-1)"),
    # the padding of the source in place of the target's
    ("date-mask-target-same", 'lost("without target")', 'lost("without self")'),
    # the first encoder layer is changed
    ("date-memory-level", "both.encoder_blocks[-1]", "both.encoder_blocks[0]"),
    # the future is in sight, and with it the padding
    ("date-torch-target", "tgt_mask=ahead", "tgt_mask=None"),
    # the mask that the causal one covers
    ("date-torch-memory", '(of_real("memory_key', '(of_real("tgt_key'),
]  # fmt: skip
