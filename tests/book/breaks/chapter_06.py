BREAKS = [
    # the outer product forgotten: the diagonal alone
    ("bp-jacobian", " - A[:, :, None] * A[:, None, :]", " * (1 - A[:, None, :])"),
    # the Jacobian's diagonal in place of all of it
    ("bp-jacobian-bytes", "np.diag(row) - np.outer(row, row)", "row * (1 - row)"),
    # the output's own square
    ("bp-d", "short = (d_out * (A @ V))", "short = (A @ V * (A @ V))"),
    # weights from the logits alone, without the number kept for each row
    ("bp-blocks", "K[some].T - ell)", "K[some].T)"),
    # the table kept after all
    ("bp-kept", "kept(8192, weights=False)", "kept(8192)"),
    # autograd is given another gradient of the output
    ("bp-steps", "(output * torch.tensor(G)).sum()", "output.sum()"),
    # the scale of the embedding's width
    ("bp-package", "dQ = dS @ K / math.sqrt(d_k)", "dQ = dS @ K / math.sqrt(d)"),
    # another mask than torch's
    ("bp-heads", "G.numpy(), causal=True", "G.numpy()"),
    # no correction for the mean
    ("bp-norm-ones", "d_hat - d_hat.mean(-1, keepdims=True) - x_hat", "d_hat - x_hat"),
    # no correction along the row
    ("bp-norm-along", " - x_hat * along", ""),
    # without a division by sigma
    ("bp-norm-size", "x_hat * along) / sigma", "x_hat * along)"),
    # not the mean but the sum over the predictions
    ("bp-loss", "(p - np.eye(9)[targets]) / 5", "p - np.eye(9)[targets]"),
    # no biases on the keys
    ("bp-reached", "attention_bias=True", 'attention_bias="output"'),
    # no mask
    ("bp-masked", "(q, k, v, causal=True)", "(q, k, v)"),
    # the second token, with two keys
    ("bp-one-key", "np.abs(dS[0]).max()", "np.abs(dS[1]).max()"),
    # sums over the queries
    ("bp-row-sums", "dS.sum(axis=1)).max()", "dS.sum(axis=0)).max()"),
    # padding that others may look at
    ("bp-padding", "mask=real)", "mask=None)"),
    # a smaller distance
    ("bp-underflow", "far_apart(800.0)", "far_apart(700.0)"),
    # a vector added to one value only
    ("bp-common", "(v + common).T", "np.vstack([v[:1] + common, v[1:]]).T"),
    # the right formula is not refused
    ("bp-found", '"none": lambda dA, A: 0 * dA', '"none": through_softmax'),
    # a(1 - a) turned round
    ("bp-alike", "lambda dA, A: dA * A * (1 - A)", "lambda dA, A: -dA * A * (1 - A)"),
    # another scale
    ("bp-torch-ell", "S = q @ k.mT / math.sqrt(8)", "S = q @ k.mT"),
    # W_O random
    ("bp-zero-output", 'model.W["O"].value[...] = 0.0', "pass"),
    # more digits
    ("bp-noise-single", "dtype=torch.float32)", "dtype=torch.float64)"),
    # the mend left out
    ("bp-shared-keys", "centred(dA * A * (1 - A), A)", "dA * A * (1 - A)"),
    # the smaller logit
    ("bp-saturated-larger", "first_gap(0, np.float64)", "first_gap(1, np.float64)"),
    # a first row that sees all keys
    ("bp-one-key-fused-size", "is_causal=True", "is_causal=False"),
    # the batch that it is compared with
    ("bp-moved-one", "size=1)", "size=32)"),
    # another gradient than that of the logits
    ("bp-first-logits", 'made["logits"] = np.linalg.norm(dS)', 'made["logits"] = made["Q"]'),
    # tokens as large as before
    ("bp-memory-values-large", "memory_paths(s, 4.0)", "memory_paths(s)"),
    # with the factor for without, and without for with
    ("bp-ratio-late-not", "spread(unscaled)", "spread(scaled)"),
    ("bp-ratio-late-scaled", "spread(scaled)", "spread(unscaled)"),
    # the second step in place of the last ones
    ("bp-late-value", 'mean_of_last(run, "V") / run[0]["V"]', 'run[1]["V"] / run[0]["V"]'),
    # the right axis
    ("bp-wrong-axis-stuck", "dA - (A * dA).sum(axis=-2", "dA - (A * dA).sum(axis=-1"),
    # one model's own two gradients
    ("bp-query-key-other", "pairwise(starts)", "zip(starts, starts, strict=True)"),
    # the usual rate
    ("bp-slow-diagonal", "TRIED[name], rate=1e-3)", "TRIED[name])"),
    # tokens multiplied as usual
    ("bp-tied-unscaled", "both(s, scaled=False)", "both(s)"),
]  # fmt: skip
