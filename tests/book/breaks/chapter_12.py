BREAKS = [
    # the correct model has no causal mask
    ("bug-correct-holds", "BUGS.get(name, Attention)).eval()", 'BUGS["no causal mask"]).eval()'),
    # queries and keys before they are turned
    ("bug-scale-correct", "q, k = module.rotated(q, k, torch.arange(x.shape[1]))", "pass"),
    # nothing is cut off
    (
        "bug-split-cut",
        "gap(model(ids)[:, :t], model(ids[:, :t]))",
        "gap(model(ids)[:, :t], model(ids)[:, :t])",
    ),
    # the last token changes, too
    ("bug-order-head", "[0, 2, 1, *range(3, 12)]", "[0, 2, 1, *range(11, 2, -1)]"),
    # attention over the batch, compared with itself
    (
        "bug-batch-alone",
        'gallery["attention over the batch", number]',
        'gallery["attention over the batch", "held out"]',
    ),
    # not long enough
    ("bug-overfit-correct", "steps=120", "steps=5"),
]
