BREAKS = [
    # the table on its side
    ("one-lookup", "X = one_hot @ E  ", "X = one_hot @ E.T  "),
    # no division by the root of d_head
    ("one-weights", "Q @ K.T / math.sqrt(2)  ", "Q @ K.T  "),
    # the heads in the other order
    ("one-heads", "both = torch.cat([O1, O2]", "both = torch.cat([O2, O1]"),
    # the network reads the stream itself
    ("one-block", "inner = norm(stream) @", "inner = stream @"),
    # so does the output layer
    ("one-loss", "norm(out) @ W_out", "out @ W_out"),
    # the optimizer gets the blocks alone
    ("one-step", "    model.parameters(), lr", "    model.blocks.parameters(), lr"),
    # a model that has not learned
    ("one-agrees", "steps=250", "steps=1"),
    # another edge is cut
    ("one-cut", "edges[row, 0, at, nouns[:, 0]]", "edges[row, 0, at, nouns[:, 1]]"),
    # with positions the order counts
    ("one-order", 'position="none"', 'position="sinusoidal"'),
]  # fmt: skip
