"""What chapter 08's checks say beside naming typical mistakes."""

from book.exercises.chapter_08 import check_scale_branches, check_token_cosine


def columns(blocks):
    check_scale_branches.correct(blocks)
    blocks[2].feed_forward.outer.weight.data[:, 0] = 1.0


RIGHT = [("token_cosine", lambda x: check_token_cosine.correct(x).item())]

MISTAKES = [
    (
        "scale_branches",
        lambda blocks: check_scale_branches.correct(blocks[:1]),
        r"entry \(1, 5\) should",
    ),
    (
        "scale_branches",
        lambda blocks: [block.attention.output.weight / 10**0.5 for block in blocks],
        "nothing has changed",
    ),
    ("scale_branches", columns, "feed_forward.outer of block 2 is not multiplied by one number"),
    ("token_cosine", lambda x: x[0], "expected shape"),
    ("post_norm_cosine", lambda r, v, c, a: 0 * r, r"entry \(2\) should be"),
]
