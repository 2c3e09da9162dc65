"""Who may attend to whom: boolean masks, ``True`` = may attend, aligned to the end."""

from functools import reduce

import torch
from jaxtyping import Bool, Integer
from torch import Tensor


def causal_mask(
    n_queries: int,
    n_keys: int | None = None,
    *,
    offset: int | None = None,
    device: torch.device | None = None,
) -> Bool[Tensor, "queries keys"]:
    r"""Each query may attend to its own position and to those before.

    .. math:: M_{ij} = (j \le i + \text{offset})

    The offset is the position of the first query among the keys. Without one it is
    :math:`n_\text{keys} - n_\text{queries}`: the mask is aligned to the *end*, so that with more
    keys than queries (decoding with a cache) the last query sees every key.
    ``F.scaled_dot_product_attention(is_causal=True)`` aligns to the start, offset 0.

    Raises:
        ValueError: if there are fewer keys than queries and no offset.

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

    With ``after=0`` it is causal. Mistral's window of :math:`w` tokens counts the query's own
    position, and is ``before=w - 1``. Longformer's has as many tokens before as after.

    Args:
        n_queries: number of queries.
        n_keys: number of keys; as many as queries if not given.
        before: how many tokens to the left.
        after: how many tokens to the right.
        offset: position of query 0 among the keys, as in :func:`causal_mask`.
        device: where the mask is made.

    Raises:
        ValueError: if there are fewer keys than queries and no offset, or the window is empty.

    Source: Beltagy et al. 2020 (Longformer), section 3.1; Jiang et al. 2023 (Mistral 7B),
    section 2.

    Example:
        >>> sliding_window_mask(4, before=1).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    n_keys = n_queries if n_keys is None else n_keys
    offset = _aligned_to_end(n_queries, n_keys) if offset is None else offset
    if before + after < 0:
        raise ValueError(f"the window has no token, got before={before} and after={after}")
    everything = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return everything.tril(offset + after).triu(offset - before)


def padding_mask(
    lengths: Integer[Tensor, "batch"], n_keys: int, *, left: bool = False
) -> Bool[Tensor, "batch 1 1 keys"]:
    r"""Nobody may attend to padding; made from the number of real tokens.

    .. math:: M_{bj} = (j < \text{length}_b), \qquad
              \text{left:}\quad M_{bj} = (j \ge n_\text{keys} - \text{length}_b)

    The shape broadcasts over heads and queries.

    Args:
        lengths: number of real tokens of each sequence; whoever has ``True`` for real tokens has
            the mask already, ``real[:, None, None]``, and ids have :func:`token_mask`.
        n_keys: padded length.
        left: the padding comes first, as in a batch of prompts that are to be continued.

    Raises:
        TypeError: if lengths are not whole numbers, one of each sequence.
        ValueError: if a length is negative or more than ``n_keys`` (where values can be read: not
            on a GPU, compiled, traced or vectorized).

    Source: not in Vaswani et al. 2017, but in their code: ``attention_bias_ignore_padding``
    (tensor2tensor, ``layers/common_attention.py``).

    Example:
        >>> padding_mask(torch.tensor([1, 3]), 3)[:, 0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if not isinstance(lengths, Tensor) or lengths.dim() != 1 or lengths.dtype not in _WHOLE:
        raise TypeError(
            "lengths are a tensor of whole numbers, one of each sequence, got "
            f"{_described(lengths)}: of ids, token_mask makes a mask"
        )
    if wrong := [length for length in known(lengths) if not 0 <= length <= n_keys]:
        raise ValueError(f"lengths must be in 0 … {n_keys}, got {wrong[0]}")
    position = torch.arange(n_keys, device=lengths.device)
    position = n_keys - 1 - position if left else position
    return (position < lengths[:, None])[:, None, None, :]


def token_mask(
    ids: Integer[Tensor, "batch keys"], padding_id: int
) -> Bool[Tensor, "batch 1 1 keys"]:
    r"""Nobody may attend to padding; made from the token ids, wherever the padding is.

    .. math:: M_{bj} = (\text{id}_{bj} \ne \text{padding})

    Source: as :func:`padding_mask`.

    Example:
        >>> token_mask(torch.tensor([[5, 0, 0], [0, 6, 5]]), padding_id=0)[:, 0, 0].int()
        tensor([[1, 0, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    if padding_id is None or padding_id != int(padding_id):
        raise TypeError(f"padding_id is a token's number, got {padding_id}")
    return (ids != padding_id)[:, None, None, :]


def near_mask(
    positions: Integer[Tensor, "*batch keys"], n_before: int, window: int | None
) -> Bool[Tensor, "..."] | None:
    """Who is nearer than ``window`` to whom: the queries are the keys from ``n_before`` on.

    Example:
        >>> near_mask(torch.arange(3), 0, 2).int()
        tensor([[1, 1, 0],
                [1, 1, 1],
                [0, 1, 1]], dtype=torch.int32)
    """
    if window is None:
        return None
    distance = positions[..., n_before:, None] - positions[..., None, :]  # (…, queries, keys)
    near = distance.abs() < window
    return near if near.dim() == 2 else near[:, None]


def combine_masks(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    r"""May attend where every mask says so.

    .. math:: M = M^{(1)} \wedge M^{(2)} \wedge \dots

    Args:
        masks: boolean, of shapes that broadcast; ``None`` forbids nothing.

    Returns:
        The combination; ``None`` if all are ``None``.

    Raises:
        TypeError: if a mask is not boolean: 0 and -inf, or ``True`` for what is blocked, are
            other libraries' conventions.

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
    given = [mask for mask in map(checked, masks) if mask is not None]
    return reduce(torch.logical_and, given) if given else None


def checked(mask: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """The mask itself, if it is boolean.

    Example:
        >>> checked(torch.tensor([True, False]))
        tensor([ True, False])
    """
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool):
        raise TypeError(f"a mask is a boolean tensor (True = may attend), {_cure(mask)}")
    return mask


_WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def known(numbers: Integer[Tensor, "n"]) -> list[int]:
    """The numbers, or none: not where they can't be read, or only by waiting for a GPU.

    Example:
        >>> known(torch.tensor([3, 1]))
        [3, 1]
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or not numbers.is_cpu:
        return []
    try:
        return [int(number) for number in numbers.tolist()]
    except RuntimeError:  # inside vmap or FakeTensorMode
        return []


def _described(given: object) -> str:
    if isinstance(given, Tensor):
        return f"{given.dtype} of shape {tuple(given.shape)}"
    return f"a {type(given).__module__}.{type(given).__name__}".replace("builtins.", "")


def _cure(given: object) -> str:
    """What was given for a mask, and what its owner may have meant."""
    if not isinstance(given, Tensor):
        return f"got {_described(given)}: write torch.as_tensor(mask)"
    if given.is_floating_point():
        return (
            f"got {given.dtype}: numbers to add to the logits are bias=…; and MultiHeadAttention "
            "takes no values: attention(query, memory) makes keys and values from the memory"
        )
    return f"got {given.dtype}: write mask.bool() if 1 = may attend"


def _aligned_to_end(n_queries: int, n_keys: int) -> int:
    if n_keys < n_queries:
        raise ValueError(
            f"a mask aligned to the end needs at least as many keys as queries, got {n_queries} "
            f"queries and {n_keys} keys"
        )
    return n_keys - n_queries
