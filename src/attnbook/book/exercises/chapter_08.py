"""Exercises of chapter 08."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from attnbook.blocks import Block
from attnbook.book.exercises.mistakes import MistakeError, compare, passed, same

MATRICES = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "feed_forward.inner",
    "feed_forward.outer",
)
ENDS = ("attention.output", "feed_forward.outer")


def check_scale_branches(scale_branches: Callable[[list[Block]], object]) -> None:
    """Check ``scale_branches(blocks)`` of chapter 08: what ends a branch, divided by sqrt(2N).

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def scale_branches(blocks):
        ...     for block in blocks:
        ...         for linear in (block.attention.output, block.feed_forward.outer):
        ...             linear.weight.data /= (2 * len(blocks)) ** 0.5
        >>> check_scale_branches(scale_branches)
        ✓ scale_branches is right
    """
    n = 5
    right = dict.fromkeys(MATRICES, 1.0) | dict.fromkeys(ENDS, (2 * n) ** -0.5)
    mistakes: dict[str, dict[str, float]] = {
        "nothing has changed: divide the weights in place": {},
        "divides by sqrt(N); a block has two branches, so there are 2N": dict.fromkeys(
            ENDS, n**-0.5
        ),
        "divides by 2N; variances add, so it is the root": dict.fromkeys(ENDS, 0.5 / n),
        "divides W_O alone; half of the branches end in W_2": {ENDS[0]: (2 * n) ** -0.5},
        "divides W_2 alone; half of the branches end in W_O": {ENDS[1]: (2 * n) ** -0.5},
        "divides every matrix; only what ends a branch, W_O and W_2": dict.fromkeys(
            MATRICES, (2 * n) ** -0.5
        ),
        "multiplies by sqrt(2N) instead of dividing": dict.fromkeys(ENDS, (2 * n) ** 0.5),
    }
    state = torch.get_rng_state()
    torch.manual_seed(0)
    blocks = [Block(8, 2, 16) for _ in range(n)]
    torch.set_rng_state(state)
    before = [_weights(block) for block in blocks]
    scale_branches(blocks)
    after = [_weights(block) for block in blocks]

    def multiplied_by(factors: dict[str, float], i: int) -> list[str]:
        """Matrices of block i that were not."""
        return [
            name
            for name in MATRICES
            if not same(after[i][name], factors.get(name, 1.0) * before[i][name])
        ]

    wrong = [i for i in range(n) if multiplied_by(right, i)]
    if wrong:
        for mistake, factors in mistakes.items():
            if not any(multiplied_by(factors, i) for i in range(n)):
                raise MistakeError(f"scale_branches: {mistake}")
        i = wrong[0]
        name = multiplied_by(right, i)[0]
        found = float((after[i][name] / before[i][name]).mean())
        raise MistakeError(
            f"scale_branches: of {n} blocks, {name} of block {i} should be multiplied by "
            f"{right[name]:.4f}, got {found:.4f} on average"
        )
    passed("scale_branches")


def _weights(block: nn.Module) -> dict[str, Tensor]:
    parameters = dict(block.named_parameters())
    return {name: parameters[f"{name}.weight"].detach().clone() for name in MATRICES}


def check_token_cosine(token_cosine: Callable[[Tensor], Tensor]) -> None:
    """Check ``token_cosine(x)`` of chapter 08: mean cosine of different tokens.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def token_cosine(x):
        ...     unit = x / x.norm(dim=-1, keepdim=True)
        ...     return (unit @ unit.T)[~torch.eye(len(x), dtype=torch.bool)].mean()
        >>> check_token_cosine(token_cosine)
        ✓ token_cosine is right
    """
    generator = Generator().manual_seed(0)
    x = torch.randn(5, 7, generator=generator, dtype=torch.float64) + 0.5
    x *= torch.arange(1.0, 6.0)[:, None]  # of different lengths
    different = ~torch.eye(5, dtype=torch.bool)

    def table(x: Tensor) -> Tensor:
        unit = x / x.norm(dim=-1, keepdim=True)
        cosines: Tensor = unit @ unit.T
        return cosines

    right = table(x)[different].mean()
    across = x / x.norm(dim=0)
    mistakes = {
        "counts each token with itself, whose cosine is 1": table(x).mean(),
        "sums the pairs; divide by their number": table(x)[different].sum(),
        "divides by tokens² and leaves out the diagonal: there are n(n − 1) pairs": (
            table(x)[different].sum() / 25
        ),
        "takes dot products, and not cosines: divide by both lengths": (x @ x.T)[different].mean(),
        "subtracts the mean token first; then what they have in common is gone": table(
            x - x.mean(dim=0)
        )[different].mean(),
        "subtracts each token's own mean: that is a correlation": table(
            x - x.mean(dim=1, keepdim=True)
        )[different].mean(),
        "divides by the lengths of the columns; a token is a row": (across @ across.T)[
            different
        ].mean(),
        "compares columns; a token is a row": table(x.T)[~torch.eye(7, dtype=torch.bool)].mean(),
    }
    compare("token_cosine", token_cosine(x.clone()), right, mistakes, "five tokens of width 7")
    passed("token_cosine")


def check_post_norm_cosine(
    post_norm_cosine: Callable[[Tensor, Tensor, Tensor, float], Tensor],
) -> None:
    """Check ``post_norm_cosine(rho, v_f, c_f, alpha)`` of chapter 08.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_post_norm_cosine(
        ...     lambda rho, v_f, c_f, alpha: (alpha**2 * rho + c_f) / (alpha**2 + v_f)
        ... )
        ✓ post_norm_cosine is right
    """
    rho = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    v_f, c_f = torch.full_like(rho, 0.7), torch.tensor([0.2, 0.4, 0.6], dtype=torch.float64)
    alpha = 1.5
    mistakes = {
        "leaves alpha out: it multiplies x": (rho + c_f) / (1 + v_f),
        "multiplies by alpha; variances and covariances are multiplied by its square": (
            (alpha * rho + c_f) / (alpha + v_f)
        ),
        "alpha² is missing below: the variance of alpha x is alpha²": (alpha**2 * rho + c_f)
        / (1 + v_f),
        "alpha² is missing above: the covariance of alpha x is alpha² rho": (rho + c_f)
        / (alpha**2 + v_f),
        "is not divided by the variance: the norm does that": alpha**2 * rho + c_f,
        "divides by the standard deviation; a product of two tokens is divided twice": (
            (alpha**2 * rho + c_f) / (alpha**2 + v_f).sqrt()
        ),
        "leaves out what the branch's outputs have in common, c_f": alpha**2
        * rho
        / (alpha**2 + v_f),
    }
    result = post_norm_cosine(rho.clone(), v_f.clone(), c_f.clone(), alpha)
    right = (alpha**2 * rho + c_f) / (alpha**2 + v_f)
    compare("post_norm_cosine", result, right, mistakes, "alpha = 1.5")
    passed("post_norm_cosine")
