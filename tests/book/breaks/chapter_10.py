BREAKS = [
    # all attend to all
    ("lm-by-hand", "x = block(x, causal=True)", "x = block(x)"),
    # the token before, given the one after
    ("lm-bigram", "((seen[:-1], seen[1:])", "((seen[1:], seen[:-1])"),
    # padding in sight, and counted
    ("lm-batch", '{"padding_mask": real} if masked else {}', "{}"),
    # one step more
    ("lm-resume", "whole = short_run(8)", "whole = short_run(9)"),
    # per character, not per token
    (
        "lm-vocabulary-bits",
        'exceeds=choices["2048 tokens", "bits per character"]',
        'exceeds=choices["2048 tokens", "loss"]',
    ),
    # what earlier tokens have become has looked ahead
    ("lm-mask-one", "one_layer = make_model(n_layers=1)", "one_layer = make_model(n_layers=2)"),
]
