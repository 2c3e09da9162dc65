"""Many short documents in rows of one length, so that no place is padding."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64, Integer
from torch import Tensor


class Packed(NamedTuple):
    """Rows of packed documents, see :func:`pack`."""

    ids: Int64[Tensor, "rows length"]
    targets: Int64[Tensor, "rows length"]
    documents: Int64[Tensor, "rows length"]


def pack(documents: Sequence[Sequence[int]], length: int) -> Packed:
    r"""Documents one after another, cut into rows of ``length`` tokens.

    A document that does not fit goes on in the next row, where its beginning is not seen. What does
    not fill a row at the end is left out.

    Args:
        documents: token ids of each, with whatever marks its end.
        length: tokens of a row.

    Returns:
        ``ids``; the next token of each as ``targets``, −100 where it is another document's: nothing
        before could tell; and ``documents``, the number of the document that each token is of, for
        :func:`document_mask`.

    Raises:
        ValueError: if ``length`` is not positive, or not one row is filled (the last token of all
            has no target).

    Example:
        >>> packed = pack([[1, 2, 3, 9], [4, 9], [5, 6, 9]], 4)
        >>> packed.ids.tolist()
        [[1, 2, 3, 9], [4, 9, 5, 6]]
        >>> packed.targets.tolist()
        [[2, 3, 9, -100], [9, -100, 6, 9]]
    """
    if length < 1:
        raise ValueError(f"length must be positive, got {length}")
    ids = torch.tensor([token for document in documents for token in document])
    number = torch.tensor([i for i, document in enumerate(documents) for _ in document])
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
    documents: Integer[Tensor, "batch tokens"],
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
    return (documents[:, :, None] == documents[:, None, :])[:, None]
