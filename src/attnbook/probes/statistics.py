"""The numbers of the tables: sums over each call, and what follows from the sums over all calls."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

FAR, LOWEST = 1000.0, -5000.0
"""A logit this far below the largest of its query, or this low, stands for a mask."""


def readable(x: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor with floating-point entries that can be read one by one."""
    return (
        isinstance(x, Tensor)
        and type(x) in (Tensor, nn.Parameter)
        and x.is_floating_point()
        and x.element_size() > 1  # not of 8 bits
        and x.layout == torch.strided
        and x.device.type != "meta"
        and not x.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and x.numel() > 0
    )


@contextmanager
def aside(x: Tensor) -> Iterator[None]:
    """For calculations that the model must not notice: no graph, no autocast, seen by no mode."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                yield
        else:
            yield


def wide(x: Tensor) -> Tensor:
    """In single precision at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def double(x: Tensor) -> Tensor:
    """In double precision where the device has it."""
    return x.to(torch.float32 if x.is_mps else torch.float64)


def norms(x: Float[Tensor, "... width"]) -> Float[Tensor, "..."]:
    """Length of each token, in double precision where single can't hold the squares."""
    lengths: Tensor = torch.linalg.vector_norm(wide(x) if x.is_cpu else double(x), dim=-1)
    if x.is_cpu:
        low, high = lengths.aminmax()
        if not (low > 1e-15 and high < math.inf):
            lengths = torch.linalg.vector_norm(double(x), dim=-1)  # eight times as slow
    return lengths


def norm(x: Tensor) -> Float[Tensor, ""]:
    """Root of the sum of the squares of all entries."""
    length: Tensor = torch.linalg.vector_norm(norms(torch.atleast_1d(x)))
    return length


def activation_sums(x: Tensor, rank_sequences: int | None) -> Float[Tensor, "7"]:
    """Sums over a module's output, for :func:`activation_row`."""
    x = wide(x.detach())
    lengths = double(norms(x))
    sequences = cosines = ranked = ranks = lengths.new_zeros(())
    if x.dim() == 3:  # (batch, tokens, width)
        ratios = torch.stack([participation_ratio(sequence) for sequence in x[:rank_sequences]])
        ranked, ranks = (ratios != 0).sum(), ratios.sum()
        if (tokens := x.shape[1]) > 1:
            sequences = sequences + len(x)
            inverse = torch.where(lengths > 0, 1 / lengths, 0.0).to(x.dtype)
            total = torch.linalg.vector_norm(double(inverse[:, None] @ x))  # |sum of x / |x||
            itself = (lengths > 0).sum()
            cosines = (total.square() - itself) / (tokens * (tokens - 1))
    entries = lengths.new_full((), x.numel())
    sums = entries, x.sum(), lengths.square().sum(), sequences, cosines, ranked, ranks
    return torch.stack([double(each) for each in sums])


def participation_ratio(x: Float[Tensor, "tokens width"]) -> Float[Tensor, ""]:
    r"""How many directions the tokens take; 0 if all are zero.

    .. math:: (\sum_k \sigma_k^2)^2 / \sum_k \sigma_k^4

    with the singular values :math:`\sigma_k` of the matrix of tokens, not centred.

    Source: Gao et al. 2017 (bioRxiv 214262), there of a covariance.

    Example:
        >>> participation_ratio(torch.eye(4))
        tensor(4.)
    """
    x = x / x.abs().amax().clamp(min=torch.finfo(x.dtype).tiny)  # its squares stay finite
    gram = x @ x.mT if x.shape[0] <= x.shape[1] else x.mT @ x
    energy, spread = gram.trace(), torch.linalg.vector_norm(gram)
    return torch.where(spread == 0, spread, energy / spread).square()


def activation_row(sums: list[float]) -> tuple[float | None, ...]:
    """RMS, variance, cosine of different tokens, participation ratio."""
    entries, total, squares, sequences, cosines, ranked, ranks = sums
    mean, square = total / entries, squares / entries
    variance = max(square - mean * mean, 0.0)  # NaN stays NaN
    return math.sqrt(square), variance, ratio(cosines, sequences), ratio(ranks, ranked)


def attention_sums(
    logits: Float[Tensor, "... queries keys"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "8"]:
    """Sums over the pairs and queries of an attention, for :func:`attention_row`.

    Args:
        logits: before the softmax.
        mask: ``True`` = may attend; if not given, logits that are very low are masked.
    """
    logits = wide(logits.detach())
    if mask is None:
        lowest = logits.amax(-1, keepdim=True).clamp(min=LOWEST + FAR) - FAR
        mask = ~(logits < lowest)  # NaN shows
    forbidden = ~mask
    keys = mask.expand(logits.shape).to(logits.dtype).sum(-1)  # (..., queries)
    mean = logits.masked_fill(forbidden, 0.0).sum(-1) / keys.clamp(min=1)
    centred = (logits - mean[..., None]).masked_fill_(forbidden, 0.0)
    in_row = torch.linalg.vector_norm(centred, dim=-1).square()
    centred.masked_fill_(forbidden, -1e30)  # finite: times a weight of zero it is zero
    weights = centred.softmax(-1)
    largest = weights.amax(-1)
    log_sum = centred.amax(-1) - largest.log()  # of the exponentials of the centred logits
    entropy = (log_sum - (weights * centred).sum(-1)).clamp(min=0.0)
    pairs = (keys, keys * mean, in_row + keys * mean.square(), in_row)
    rows = torch.stack([*pairs, torch.ones_like(keys), entropy, entropy.exp(), largest])
    return double(torch.where(keys > 0, rows, 0.0)).flatten(1).sum(1)


def attention_row(sums: list[float]) -> tuple[float | None, ...]:
    """Variances of the logits, overall and in a row, entropy, perplexity, keys, largest weight."""
    pairs, total, squares, in_row, queries, entropy, perplexity, largest = sums
    if not queries:
        return (None,) * 6
    variance = max(squares / pairs - (total / pairs) ** 2, 0.0)
    means = (entropy / queries, perplexity / queries, pairs / queries, largest / queries)
    return variance, in_row / pairs, *means


def are_weights(x: Float[Tensor, "... keys"]) -> Bool[Tensor, ""]:
    """Whether the rows are what a softmax gives: not negative, of sum one, or of nothing.

    Example:
        >>> are_weights(torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
        tensor(True)
    """
    sums = wide(x).sum(-1)
    ones = (sums - 1).abs() < 0.01  # rounded to half precision, perhaps
    return ones.any() & (ones | (sums == 0) | sums.isnan()).all() & ~(x < 0).any()


def ratio(a: float, b: float) -> float | None:
    """Their ratio, or ``None`` if there was nothing to divide by."""
    return a / b if b else None
