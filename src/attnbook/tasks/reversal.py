"""Reversal: the output is the input read backwards. Only the position says where to look."""

import torch
from jaxtyping import Int64
from torch import Generator, Tensor


def reversal_batch(
    batch: int, length: int, vocab_size: int, generator: Generator
) -> tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]:
    """Random sequences and the same sequences backwards.

    Token i of the target is token length − 1 − i of the input. Tokens are drawn independently and
    uniformly, so nothing but the position tells which one is asked for.

    Raises:
        ValueError: if a size is not positive.

    Example:
        >>> ids, targets = reversal_batch(1, 4, 10, torch.Generator().manual_seed(0))
        >>> bool((ids.flip(-1) == targets).all())
        True
    """
    if batch < 1 or length < 1 or vocab_size < 1:
        raise ValueError(
            f"batch, length and vocab_size must be positive, got {batch}, {length} and {vocab_size}"
        )
    ids = torch.randint(vocab_size, (batch, length), generator=generator)
    return ids, ids.flip(-1)
