"""Exercises of chapter 08."""

import torch
from torch import Generator, Tensor

from attnbook.blocks import Block
from attnbook.config import BlockConfig
from book.exercises.mistakes import Exercise, Function, MistakeError, same

MATRICES = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "feed_forward.inner",
    "feed_forward.outer",
)
ENDS = ("attention.output", "feed_forward.outer")


def _scale_branches_cases() -> dict[str, tuple[list[Block]]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = [Block(BlockConfig(d_model=8, n_heads=2, d_ff=16)) for _ in range(5)]
    what = "factors (block, which of W_Q, W_K, W_V, W_O, W_1, W_2)"
    return {f"{n} blocks: {what}": (blocks[:n],) for n in (5, 3)}


def _scaled(*matrices: str, factor: Function = lambda n: (2 * n) ** -0.5) -> Function:
    """Multiplies these matrices, in place, by a factor that the number of blocks gives."""

    def scale_branches(blocks: list[Block]) -> None:
        for block in blocks:
            for name in matrices:
                block.get_parameter(f"{name}.weight").data *= factor(len(blocks))

    return scale_branches


def _factors(scale_branches: Function, blocks: list[Block]) -> Tensor:
    """What each matrix of each block is multiplied by."""

    def weights() -> list[Tensor]:
        found = [block.get_parameter(f"{name}.weight") for block in blocks for name in MATRICES]
        return [weight.detach().clone() for weight in found]

    before = weights()
    scale_branches(blocks)
    ratios = [each / old for each, old in zip(weights(), before, strict=True)]
    for i, ratio in enumerate(ratios):
        if not same(ratio, ratio.mean().expand_as(ratio)):
            block, name = divmod(i, len(MATRICES))
            raise MistakeError(
                f"scale_branches: {MATRICES[name]} of block {block} is not multiplied by one number"
            )
    return torch.stack([ratio.mean() for ratio in ratios]).view(len(blocks), -1)


check_scale_branches = Exercise(
    "scale_branches",
    "Check ``scale_branches(blocks)`` of chapter 08: what ends a branch, divided by sqrt(2N).",
    _scaled(*ENDS),
    {
        "nothing has changed: divide the weights in place": lambda blocks: None,
        "divides by sqrt(N); a block has two branches, so there are 2N": (
            _scaled(*ENDS, factor=lambda n: n**-0.5)
        ),
        "divides by 2N; variances add, so it is the root": _scaled(*ENDS, factor=lambda n: 0.5 / n),
        "divides W_O alone; half of the branches end in W_2": _scaled(ENDS[0]),
        "divides W_2 alone; half of the branches end in W_O": _scaled(ENDS[1]),
        "divides every matrix; only what ends a branch, W_O and W_2": _scaled(*MATRICES),
        "multiplies by sqrt(2N) instead of dividing": _scaled(
            *ENDS, factor=lambda n: (2 * n) ** 0.5
        ),
    },
    _scale_branches_cases,
    _factors,
)


def _token_cosine_cases() -> dict[str, tuple[Tensor]]:
    x = torch.randn(5, 7, generator=Generator().manual_seed(0), dtype=torch.float64) + 0.5
    x = x * torch.arange(1.0, 6.0)[:, None]  # different lengths
    return {f"{n} tokens of width {width}": (x[:n, :width],) for n, width in ((5, 7), (3, 4))}


def _different(products: Tensor) -> Tensor:
    """The products of two different tokens."""
    return products[~torch.eye(len(products), dtype=torch.bool)]


def _cosines(x: Tensor) -> Tensor:
    unit: Tensor = x / x.norm(dim=-1, keepdim=True)
    return unit @ unit.T


check_token_cosine = Exercise(
    "token_cosine",
    "Check ``token_cosine(x)`` of chapter 08: mean cosine of different tokens.",
    lambda x: _different(_cosines(x)).mean(),
    {
        "counts each token with itself, whose cosine is 1": lambda x: _cosines(x).mean(),
        "sums the pairs; divide by their number": lambda x: _different(_cosines(x)).sum(),
        "divides by tokens² and leaves out the diagonal: there are n(n − 1) pairs": (
            lambda x: _different(_cosines(x)).sum() / len(x) ** 2
        ),
        "takes dot products, and not cosines: divide by both lengths": (
            lambda x: _different(x @ x.T).mean()
        ),
        "subtracts the mean token first; then what they have in common is gone": (
            lambda x: _different(_cosines(x - x.mean(dim=0))).mean()
        ),
        "subtracts each token's own mean: that is a correlation": (
            lambda x: _different(_cosines(x - x.mean(dim=1, keepdim=True))).mean()
        ),
        "divides by the lengths of the columns; a token is a row": (
            lambda x: _different((x / x.norm(dim=0)) @ (x / x.norm(dim=0)).T).mean()
        ),
        "compares columns; a token is a row": lambda x: _different(_cosines(x.T)).mean(),
    },
    _token_cosine_cases,
)


def _post_norm_cosine_cases() -> dict[str, tuple[Tensor, Tensor, Tensor, float]]:
    rho, c_f = torch.tensor([[0.1, 0.5, 0.9], [0.2, 0.4, 0.6]], dtype=torch.float64)
    v_f = torch.tensor([0.7, 0.8, 1.1], dtype=torch.float64)
    return {f"alpha = {alpha}": (rho, v_f, c_f, alpha) for alpha in (1.5, 0.6)}


check_post_norm_cosine = Exercise(
    "post_norm_cosine",
    "Check ``post_norm_cosine(rho, v_f, c_f, alpha)`` of chapter 08.",
    lambda rho, v, c, alpha: (alpha**2 * rho + c) / (alpha**2 + v),
    {
        "leaves alpha out: it multiplies x": lambda rho, v, c, alpha: (rho + c) / (1 + v),
        "multiplies by alpha; variances and covariances are multiplied by its square": (
            lambda rho, v, c, alpha: (alpha * rho + c) / (alpha + v)
        ),
        "alpha² is missing below: the variance of alpha x is alpha²": (
            lambda rho, v, c, alpha: (alpha**2 * rho + c) / (1 + v)
        ),
        "alpha² is missing above: the covariance of alpha x is alpha² rho": (
            lambda rho, v, c, alpha: (rho + c) / (alpha**2 + v)
        ),
        "is not divided by the variance: the norm does that": (
            lambda rho, v, c, alpha: alpha**2 * rho + c
        ),
        "divides by the standard deviation; a product of two tokens is divided twice": (
            lambda rho, v, c, alpha: (alpha**2 * rho + c) / (alpha**2 + v).sqrt()
        ),
        "takes the mean of the branch's variances; each entry has its own": (
            lambda rho, v, c, alpha: (alpha**2 * rho + c) / (alpha**2 + v.mean())
        ),
        "leaves out what the branch's outputs have in common, c_f": (
            lambda rho, v, c, alpha: alpha**2 * rho / (alpha**2 + v)
        ),
    },
    _post_norm_cosine_cases,
)
