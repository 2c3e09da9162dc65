BREAKS = [
    # one token more than is counted
    ("cost-counted", "equals=forward_operations(small, 100).total",
     "equals=forward_operations(small, 101).total"),
    # the kernel's memory, with the matrix
    ("cost-kept-fused", "return_weights=definition))", "return_weights=True))"),
    # a larger logit comes, and the old sum is not corrected
    ("cost-online", "shrink * total + e.sum()", "total + e.sum()"),
    # one number a row, but another
    ("cost-recomputed", "logits.logsumexp(1, keepdim=True)", "logits.amax(1, keepdim=True)"),
    # a token less in the cache
    ("cost-cache", "torch.randint(500, (4, 50))", "torch.randint(500, (4, 49))"),
    # a refused proposal is proposed again
    ("cost-draft", "accepted + (1 - accepted.sum()) * rest", "accepted / accepted.sum()"),
    # another head's matrix is folded
    ("cost-latent", 'torch.einsum("hqd,hdr->hqr", q, U)',
     'torch.einsum("hqd,hdr->hqr", q, U.flip(0))'),
    # a window that is one wider
    ("cost-reach", "near[:, None] - near < window", "near[:, None] - near <= window"),
    # after a refusal the draft goes on
    ("cost-draft-pairs", "refused[:, None] * then_p", "refused[:, None] * then_q"),
    # tables counted as Kaplan's rule does not
    ("cost-six-kaplan", 'fewer.total - fewer["embedding"] - fewer["positions"]', "fewer.total"),
    # all pairs, though a causal kernel is asked about
    ("cost-six-causal", 'pairs="causal"', 'pairs="all"'),
]  # fmt: skip
