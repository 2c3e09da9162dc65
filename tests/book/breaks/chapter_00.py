BREAKS = [
    # no division by the root of d_k
    ("one-weights", "Q @ K.T / math.sqrt(4)  ", "Q @ K.T  "),
    # the network reads the stream before attention
    ("one-answer", "H = (Y @ W_1", "H = (X @ W_1"),
    # the row is replaced and not added to
    ("one-model", "Y = X + D", "Y = D"),
    # the second head without positions
    ("one-order-place", '"turned": True', '"turned": False'),
    # the optimizer does not get the table
    ("one-step", "Adam(stored.values(), lr", "Adam([*stored.values()][1:], lr"),
    # models that have not learned
    ("one-tiny-learned", "learn(seed)", "learn(seed, steps=1)"),
    ("one-agrees", "steps=250", "steps=1"),
    # nothing is cut
    ("one-tiny-cut", "edges=no_cat, stored=each", "stored=each"),
    # another edge is cut
    ("one-cut", "edges[row, 0, at, nouns[:, 0]]", "edges[row, 0, at, nouns[:, 1]]"),
]  # fmt: skip
