BREAKS = [
    # the outer product forgotten: the diagonal alone
    ("bp-jacobian", " - A[:, :, None] * A[:, None, :]", " * (1 - A[:, None, :])"),
    # the output's own square
    ("bp-d", "short = (d_out * (A @ V))", "short = (A @ V * (A @ V))"),
    # weights from the logits alone, without the number kept for each row
    ("bp-blocks", "K[some].T - ell)", "K[some].T)"),
    # no mask
    ("bp-masked", "(q, k, v, causal=True)", "(q, k, v)"),
    # not the mean but the sum over the predictions
    ("bp-loss", "(p - np.eye(9)[targets]) / 5", "p - np.eye(9)[targets]"),
]
