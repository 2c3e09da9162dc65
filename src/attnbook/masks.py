"""Masks: boolean, ``True`` = may attend."""

from functools import reduce

import torch
from jaxtyping import Bool, Integer
from torch import Tensor

from attnbook.checks import check_boolean, check_count, check_integer, is_integer


def causal_mask(
    n_queries: int,
    n_keys: int | None = None,
    *,
    offset: int | None = None,
    device: torch.device | None = None,
) -> Bool[Tensor, "queries keys"]:
    r"""Each query may attend to its own position and to what comes before.

    .. math:: M_{ij} = (j \le i + \text{offset})

    The offset is the position of the first query among the keys. Left out, it is
    :math:`n_\text{keys} - n_\text{queries}`: the mask is aligned to the *end*, and with more keys
    than queries (decoding with a cache) the last query sees every key.
    ``F.scaled_dot_product_attention(is_causal=True)`` aligns to the start, offset 0.

    Args:
        n_queries: number of queries.
        n_keys: number of keys; as many as queries if not given.
        offset: position of query 0, any integer; a query left of all keys sees none.
        device: where the mask is made.

    Raises:
        ValueError: if a size is negative or no integer, or there are fewer keys than queries and
            no offset says where the queries stand.

    Source: Vaswani et al. 2017, section 3.2.3.

    Example:
        >>> causal_mask(2, 3).int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        >>> causal_mask(2, 3, offset=0).int()
        tensor([[1, 0, 0],
                [1, 1, 0]], dtype=torch.int32)
    """
    n_keys = n_queries if n_keys is None else n_keys
    _check_sizes(n_queries, n_keys, offset)
    offset = _aligned_to_end(n_queries, n_keys) if offset is None else offset
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(offset)


def sliding_window_mask(
    n_queries: int,
    n_keys: int | None = None,
    *,
    before: int,
    after: int = 0,
    offset: int | None = None,
    device: torch.device | None = None,
) -> Bool[Tensor, "queries keys"]:
    r"""Each query may attend to its own position and to its neighbours.

    .. math::
        M_{ij} = (p_i - \text{before} \le j \le p_i + \text{after}), \qquad
        p_i = i + \text{offset}

    With ``after=0`` it is causal; Mistral's "sliding window" of :math:`w` tokens, the query's own
    among them, is ``before=w - 1``. Longformer's window is the same number before and after.

    Args:
        n_queries: number of queries.
        n_keys: number of keys; as many as queries if not given.
        before: how many tokens to the left.
        after: how many tokens to the right.
        offset: position of query 0 among the keys; as in :func:`causal_mask`.
        device: where the mask is made.

    Raises:
        ValueError: if a size or a width is negative or no integer, or there are fewer keys than
            queries and no offset says where the queries stand.

    Source: Beltagy et al. 2020 (Longformer), section 3.1; Jiang et al. 2023 (Mistral 7B), section
    2.

    Example:
        >>> sliding_window_mask(4, before=1).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    n_keys = n_queries if n_keys is None else n_keys
    _check_sizes(n_queries, n_keys, offset)
    offset = _aligned_to_end(n_queries, n_keys) if offset is None else offset
    check_count("before", before)
    check_count("after", after)
    everything = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    last, first = min(offset + after, n_keys), max(offset - before, -n_queries)
    return everything.tril(last).triu(first)


def padding_mask(lengths: Integer[Tensor, "batch"], n_keys: int) -> Bool[Tensor, "batch 1 1 keys"]:
    r"""Nobody may attend to padding; made from the lengths.

    .. math:: M_{bj} = (j < \text{length}_b)

    The shape broadcasts over heads and queries.

    Args:
        lengths: real tokens of each sequence, the padding follows them.
        n_keys: padded length.

    Raises:
        TypeError: if ``lengths`` is not an integer tensor.
        ValueError: if ``lengths`` has more or fewer dimensions than one, or one of them is
            negative or above ``n_keys``; if ``n_keys`` is negative or no integer. (Compiled, the
            lengths themselves are not looked at.)

    Source: not in Vaswani et al. 2017, but in their code: ``attention_bias_ignore_padding``
    (tensor2tensor, ``layers/common_attention.py``).

    Example:
        >>> padding_mask(torch.tensor([1, 3]), 3)[:, 0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    check_integer("lengths", lengths)
    if lengths.dim() != 1:
        raise ValueError(f"lengths must have shape (batch,), got {tuple(lengths.shape)}")
    check_count("n_keys", n_keys)
    lengths = lengths.long()
    read = lengths.numel() and not torch.compiler.is_compiling()
    if read and (lengths.min() < 0 or lengths.max() > n_keys):
        raise ValueError(
            f"lengths must be in 0 … {n_keys}, got {lengths.min().item()} to {lengths.max().item()}"
        )
    position = torch.arange(n_keys, device=lengths.device)
    return (position < lengths[:, None])[:, None, None, :]


def token_mask(
    ids: Integer[Tensor, "batch keys"], padding_id: int
) -> Bool[Tensor, "batch 1 1 keys"]:
    r"""Nobody may attend to padding; made from the token ids, wherever the padding stands.

    .. math:: M_{bj} = (\text{id}_{bj} \ne \text{padding})

    The shape broadcasts over heads and queries.

    Args:
        ids: token ids.
        padding_id: the id that stands for padding.

    Raises:
        TypeError: if ``ids`` is not an integer tensor.
        ValueError: if ``ids`` has more or fewer dimensions than two, or ``padding_id`` is no
            integer.

    Source: as :func:`padding_mask`.

    Example:
        >>> token_mask(torch.tensor([[5, 0, 0], [0, 6, 5]]), padding_id=0)[:, 0, 0].int()
        tensor([[1, 0, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    check_integer("ids", ids)
    if ids.dim() != 2:
        raise ValueError(f"ids must have shape (batch, tokens), got {tuple(ids.shape)}")
    if not is_integer(padding_id):
        raise ValueError(f"padding_id must be an integer, got {padding_id!r}")
    return (ids.long() != padding_id)[:, None, None, :]


def combine_masks(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    r"""May attend where every mask says so; their shapes broadcast.

    .. math:: M = M^{(1)} \wedge M^{(2)} \wedge \dots

    Args:
        masks: boolean masks; ``None`` forbids nothing.

    Returns:
        The combination; ``None`` if all are ``None``.

    Raises:
        TypeError: if a mask is not boolean.
        ValueError: if the shapes do not broadcast to each other.

    Source: Vaswani et al. 2017, section 3.2.3: what one of the masks forbids has weight zero.

    Example:
        >>> mask = combine_masks(causal_mask(3), padding_mask(torch.tensor([2, 3]), 3))
        >>> mask.shape
        torch.Size([2, 1, 3, 3])
        >>> mask[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 0]], dtype=torch.int32)
    """
    given = [mask for mask in masks if mask is not None]
    for mask in given:
        check_boolean(mask)
    try:
        torch.broadcast_shapes(*(mask.shape for mask in given))
    except RuntimeError:
        shapes = ", ".join(str(tuple(mask.shape)) for mask in given)
        raise ValueError(f"these masks do not broadcast to one shape: {shapes}") from None
    return reduce(torch.logical_and, given) if given else None


def _aligned_to_end(n_queries: int, n_keys: int) -> int:
    if n_keys < n_queries:
        raise ValueError(
            f"aligned to the end, a causal mask needs at least as many keys as queries, got "
            f"{n_queries} queries and {n_keys} keys"
        )
    return n_keys - n_queries


def _check_sizes(n_queries: int, n_keys: int, offset: int | None) -> None:
    check_count("n_queries", n_queries)
    check_count("n_keys", n_keys)
    if offset is not None and not is_integer(offset):
        raise ValueError(f"offset must be an integer, got {offset!r}")
