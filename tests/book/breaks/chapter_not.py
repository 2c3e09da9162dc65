BREAKS = [
    # nothing learns
    ("symptom-by-heart", "Adam(parameters, 3e-3)", "Adam(parameters, 0.0)"),
    # logits, as they should be
    ("symptom-floor", "super().forward(ids).softmax(-1)", "super().forward(ids)"),
    # the rows tell themselves apart at once
    ("symptom-by-heart-floor", "torch.cat([torch.zeros_like(ids[:, :1]), ids], 1)", "ids"),
    # no leak
    (
        "symptom-noise-trained",
        "for attention in (NoTranspose, Attention)]",
        "for attention in (Attention, Attention)]",
    ),
    # the weights are not asked for
    ("symptom-kept", "need_weights=need_weights", "need_weights=False"),
    # or always
    ("symptom-kept-not", "need_weights=need_weights", "need_weights=True"),
    # the cache is not used
    ("symptom-read-cached", '"with a cache": True', '"with a cache": False'),
    # or always
    ("symptom-read", "*args, cached=cached)", "*args)"),
]
