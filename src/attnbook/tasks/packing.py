"""Many short documents in rows of one length, so that no place is padding."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor

Tokens = Sequence[int] | Integer[np.ndarray, "_"] | Integer[Tensor, "_"]


class Packed(NamedTuple):
    """Rows of packed documents, see :func:`pack`."""

    ids: Int64[Tensor, "rows length"]
    targets: Int64[Tensor, "rows length"]
    documents: Int64[Tensor, "rows length"]


def as_ids(tokens: Tokens) -> Int64[Tensor, "_"]:
    """Token ids of any integer type, as a model takes them.

    Raises:
        TypeError: if they are not whole numbers in one dimension.

    Example:
        >>> as_ids(np.array([3, 50256], dtype=np.uint16))
        tensor([    3, 50256])
    """
    ids = tokens if isinstance(tokens, Tensor) else np.asarray(tokens)
    is_whole = str(ids.dtype).removeprefix("torch.").startswith(("int", "uint"))
    if ids.ndim != 1 or not (is_whole or len(ids) == 0):
        raise TypeError(
            "expected token ids, whole numbers in one dimension, got a "
            f"{type(tokens).__name__} of {ids.dtype} in {ids.ndim} dimensions"
        )
    if isinstance(ids, Tensor):
        return ids.long()
    return torch.from_numpy(ids.astype(np.int64))  # a copy: a memmap may be for reading only


def pack(documents: Iterable[Tokens], length: int) -> Packed:
    r"""Documents one after another, cut into rows of ``length`` tokens.

    A document that does not fit goes on in the next row, where its beginning is not seen. What does
    not fill a row at the end is left out.

    Args:
        documents: token ids of each, with whatever marks its end: lists, or arrays or tensors of
            any integer type, such as parts of an ``np.memmap``.
        length: tokens of a row.

    Returns:
        ``ids``; the next token of each as ``targets``, −100 where it is another document's: nothing
        before could tell; and ``documents``, the number of the document that each token is of, for
        :func:`document_mask`.

    Raises:
        ValueError: if ``length`` is not positive, or not one row is filled (the last token of all
            has no target).
        TypeError: if a document is something else, or ``documents`` is one document.

    Example:
        >>> packed = pack([[1, 2, 3, 9], [4, 9], [5, 6, 9]], 4)
        >>> packed.ids.tolist()
        [[1, 2, 3, 9], [4, 9, 5, 6]]
        >>> packed.targets.tolist()
        [[2, 3, 9, -100], [9, -100, 6, 9]]
    """
    if length < 1:
        raise ValueError(f"length must be positive, got {length}")
    parts = [as_ids(document) for document in documents]
    ids = torch.cat([as_ids([]), *parts])
    number = torch.arange(len(parts)).repeat_interleave(torch.tensor(list(map(len, parts))))
    n_rows = (len(ids) - 1) // length
    if n_rows < 1:
        raise ValueError(
            f"rows of {length} tokens need documents of at least {length + 1} together, "
            f"got {len(ids)}"
        )
    n = n_rows * length
    targets = ids[1 : n + 1].where(number[1 : n + 1] == number[:n], -100)
    return Packed(*(x.view(n_rows, length) for x in (ids[:n], targets, number[:n])))


def document_mask(
    documents: Integer[Tensor, "batch tokens"] | Integer[np.ndarray, "batch tokens"],
) -> Bool[Tensor, "batch 1 tokens tokens"]:
    r"""A token may attend to those of its own document.

    .. math:: M_{ij} = [\,d_i = d_j\,]

    With it a packed model reads each document as if it were alone, provided that its positions are
    relative (rotary, ALiBi, none) and the document begins in the row. Absolute positions would have
    to begin anew in each document.

    Example:
        >>> document_mask(torch.tensor([[0, 0, 1]]))[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    documents = torch.as_tensor(documents)
    return (documents[:, :, None] == documents[:, None, :])[:, None]
