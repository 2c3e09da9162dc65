"""Masks: boolean, ``True`` = may attend."""

import torch
from jaxtyping import Bool, Integer
from torch import Tensor


def causal_mask(
    n_queries: int, n_keys: int | None = None, *, device: torch.device | None = None
) -> Bool[Tensor, "queries keys"]:
    r"""Each query may attend to its own position and to what comes before.

    .. math:: M_{ij} = \big(j \le i + (n_\text{keys} - n_\text{queries})\big)

    With more keys than queries (decoding with a cache) the last query sees every key: the mask is
    aligned to the *end*. ``F.scaled_dot_product_attention(is_causal=True)`` aligns to the start.

    Args:
        n_queries: number of queries.
        n_keys: number of keys; as many as queries if not given.
        device: where the mask is made.

    Raises:
        ValueError: if there are fewer keys than queries, or a size is negative.

    Example:
        >>> causal_mask(2, 3).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    n_keys = n_queries if n_keys is None else n_keys
    if n_queries < 0 or n_keys < n_queries:
        raise ValueError(
            f"a causal mask needs at least as many keys as queries, got {n_queries} queries and "
            f"{n_keys} keys"
        )
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def padding_mask(lengths: Integer[Tensor, "batch"], n_keys: int) -> Bool[Tensor, "batch 1 1 keys"]:
    r"""Nobody may attend to padding.

    .. math:: M_{bj} = (j < \text{length}_b)

    The shape broadcasts over heads and queries.

    Args:
        lengths: real tokens of each sequence, the padding follows them.
        n_keys: padded length.

    Raises:
        TypeError: if ``lengths`` is not an integer tensor.
        ValueError: if a length is negative or above ``n_keys``.

    Example:
        >>> padding_mask(torch.tensor([1, 3]), 3)[:, 0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must be integers, got a tensor of {lengths.dtype}")
    if lengths.numel() and (lengths.min() < 0 or lengths.max() > n_keys):
        raise ValueError(
            f"lengths must be in 0 … {n_keys}, got {lengths.min().item()} to {lengths.max().item()}"
        )
    position = torch.arange(n_keys, device=lengths.device)
    return (position < lengths[:, None])[:, None, None, :]
