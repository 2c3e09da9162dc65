"""Words for the same thing, for the search and for the ledger's filter."""

# As in "which word mattered".
MATTERS = [
    f"{what} {how}"
    for what in ("word", "words", "token", "tokens")
    for how in ("matter", "mattered")
]

# A search for one finds the others, too. Spaces also stand for hyphens or nothing. For the search
# the glossary adds what it says is "also called" something; for the ledger, subjects add their
# titles and words.
SYNONYMS: list[list[str]] = [
    ["sqrt", "square root", "root"],
    ["initialize", "initialise", "init", "initial values", "initial weights", "start values"],
    ["norm", "normalize", "normalise"],
    ["LayerNorm", "LN", "layer norm", "layer normalization"],
    ["RoPE", "rotary", "rotary positions", "rotary embeddings"],
    ["KV cache", "key value cache"],
    ["GQA", "grouped query attention", "grouped queries"],
    ["MQA", "multi query attention"],
    ["MHA", "multi head attention"],
    ["FFN", "MLP", "feed forward", "feed forward network"],
    ["weight tying", "tied", "tie weights", "shared weights", "share weights", "shared embedding"],
    ["W_Q", "Q", "query matrix"],
    ["W_K", "K", "key matrix"],
    ["W_V", "V", "value matrix"],
    ["QKV", "query key value", "queries keys values", "W_Q W_K W_V", "Q K V"],
    ["W_O", "output projection", "output matrix"],
    ["sinusoidal", "sinusoids", "sine", "cosine positions"],
    ["position", "positional encoding", "positional embedding", "place"],
    ["backpropagation", "backprop", "backward pass"],
    ["gradient", "derivative"],
    ["NaN", "not a number"],
    ["decay", "collapse", "oversmoothing", "over smoothing"],
    ["residual", "skip connection", "shortcut"],
    ["pre norm", "pre LN", "pre layer norm", "norm first", "norm before", "LayerNorm before"],
    ["post norm", "post LN", "post layer norm", "norm after", "LayerNorm after"],
    ["GPT-2", "GPT2"],
    ["Hugging Face", "transformers library"],
    ["PyTorch", "torch"],
    ["memory", "RAM"],
    ["quadratic", "n^2", "O(n^2)", "square of the length"],
    ["FlashAttention", "flash"],
    ["token", "word"],
    ["generate", "sample", "decode"],
    ["learning rate", "lr", "rate"],
    ["warmup", "warm up"],
    ["dimension", "width", "d_model"],
    ["unit variance", "variance 1"],
    ["scale", "multiply", "factor"],
    ["vanish", "zero gradients"],
    ["graph neural network", "GNN", "message passing", "graph"],
    ["explain", "explanation", "interpret", "important", "weights mean", "weights show", *MATTERS],
    ["share", "shared", "same"],
    ["specialize", "differ", "different"],
    ["remove", "drop", "omit", "without", "left out", "leave out", "leaving out", "do without"],
    ["equal", "identical", "equals"],
    ["longer", "extrapolate", "length generalization"],
    ["saturate", "saturation"],
    [
        "what does attention do",
        "what is attention",
        "what is self attention",
        "how does attention work",
        "how does self attention work",
        "attention explained",
        "explain attention",
        "introduction to attention",
        "attention mechanism",
    ],
    [
        "a whole transformer",
        "what is a transformer",
        "how does a transformer work",
        "how do transformers work",
        "transformer explained",
        "transformer from scratch",
        "build a transformer",
        "implement a transformer",
        "encoder decoder from scratch",
    ],
]
