"""Right answers to the exercises of chapter 08, and typical mistakes."""

import torch


def branches(output=True, outer=True, others=False, factor=lambda n: (2 * n) ** -0.5):
    @torch.no_grad()
    def scale(blocks):
        for block in blocks:
            attention, feed_forward = block.attention, block.feed_forward
            chosen = [attention.output] * output + [feed_forward.outer] * outer
            if others:
                chosen += [attention.query, attention.key, attention.value, feed_forward.inner]
            for linear in chosen:
                linear.weight *= factor(len(blocks))

    return scale


def not_in_place(blocks):
    return [block.attention.output.weight / (2 * len(blocks)) ** 0.5 for block in blocks]


def first_only(blocks):
    branches(factor=lambda n: (2 * 5) ** -0.5)(blocks[:1])


def cosines(x):
    unit = x / x.norm(dim=-1, keepdim=True)
    return unit @ unit.T


def different(table):
    return table[~torch.eye(len(table), dtype=torch.bool)]


def columns(x):
    unit = x / x.norm(dim=0)
    return different(unit @ unit.T).mean()


def post(rho, v_f, c_f, alpha):
    return (alpha**2 * rho + c_f) / (alpha**2 + v_f)


RIGHT = [
    ("scale_branches", branches()),
    ("token_cosine", lambda x: different(cosines(x)).mean()),
    ("post_norm_cosine", post),
]

MISTAKES = [
    ("scale_branches", not_in_place, "nothing has changed"),
    ("scale_branches", branches(factor=lambda n: n**-0.5), "two branches"),
    ("scale_branches", branches(factor=lambda n: 0.5 / n), "it is the root"),
    ("scale_branches", branches(outer=False), "W_O alone"),
    ("scale_branches", branches(output=False), "W_2 alone"),
    ("scale_branches", branches(others=True), "every matrix"),
    ("scale_branches", branches(factor=lambda n: (2 * n) ** 0.5), "instead of dividing"),
    ("scale_branches", branches(factor=lambda n: 0.2), "got 0.2000"),
    ("scale_branches", first_only, "of block 1"),
    ("token_cosine", lambda x: cosines(x).mean(), "with itself"),
    ("token_cosine", lambda x: different(cosines(x)).sum(), "their number"),
    ("token_cosine", lambda x: different(cosines(x)).sum() / len(x) ** 2, "n\\(n − 1\\)"),
    ("token_cosine", lambda x: different(x @ x.T).mean(), "dot products"),
    ("token_cosine", lambda x: different(cosines(x - x.mean(0))).mean(), "mean token"),
    (
        "token_cosine",
        lambda x: different(cosines(x - x.mean(1, keepdim=True))).mean(),
        "a correlation",
    ),
    ("token_cosine", columns, "lengths of the columns"),
    ("token_cosine", lambda x: different(cosines(x.T)).mean(), "compares columns"),
    ("token_cosine", lambda x: different(cosines(x)).mean().item(), "must return"),
    ("token_cosine", lambda x: different(cosines(x)), "expected shape"),
    ("post_norm_cosine", lambda r, v, c, a: (r + c) / (1 + v), "leaves alpha out"),
    ("post_norm_cosine", lambda r, v, c, a: (a * r + c) / (a + v), "its square"),
    ("post_norm_cosine", lambda r, v, c, a: (a**2 * r + c) / (1 + v), "missing below"),
    ("post_norm_cosine", lambda r, v, c, a: (r + c) / (a**2 + v), "missing above"),
    ("post_norm_cosine", lambda r, v, c, a: a**2 * r + c, "not divided"),
    (
        "post_norm_cosine",
        lambda r, v, c, a: (a**2 * r + c) / (a**2 + v).sqrt(),
        "standard deviation",
    ),
    ("post_norm_cosine", lambda r, v, c, a: a**2 * r / (a**2 + v), "have in common"),
    ("post_norm_cosine", lambda r, v, c, a: 0 * r, "entry \\(2\\) should be"),
]
