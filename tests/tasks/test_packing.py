"""Packed documents are read as each alone, and lose nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook import LanguageModel, ModelConfig
from attnbook.tasks import document_mask, pack
from strategies import assert_near

documents = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8)


@given(documents, st.integers(1, 7))
def test_rows_are_the_documents_one_after_another(documents, length):
    flat = [token for document in documents for token in document]
    if len(flat) <= length:
        with pytest.raises(ValueError, match=f"at least {length + 1} together, got {len(flat)}"):
            pack(documents, length)
        return
    ids, targets, number = pack(documents, length)
    n = ids.numel()
    assert len(flat) - length <= n < len(flat)
    assert ids.flatten().tolist() == flat[:n]
    ends = {sum(map(len, documents[: i + 1])) - 1 for i in range(len(documents))}
    expected = [-100 if i in ends else flat[i + 1] for i in range(n)]
    assert targets.flatten().tolist() == expected
    assert (number.flatten().diff() != 0).nonzero().flatten().tolist() == [
        end for end in sorted(ends) if end < n - 1
    ]


@pytest.mark.parametrize("position", ["rotary", "alibi", "none"])
def test_with_the_mask_each_document_is_read_as_if_alone(position):
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(10, d_model=16, n_heads=2, position=position, max_tokens=12))
    texts = [[1, 2, 3, 9], [4, 5, 9], [6, 7, 8, 1, 9]]
    ids, _, number = pack([*texts, [0]], 12)
    packed, mixed = model(ids, document_mask(number))[0], model(ids)[0]
    alone = torch.cat([model(torch.tensor([text]))[0] for text in texts])
    assert_near(packed, alone, 1e-12)
    assert (mixed - alone)[:4].abs().max() < 1e-12  # the first has nobody before it
    assert (mixed - alone)[4:].abs().max() > 1e-3


TEXTS = [[1, 2, 3, 9], [], [4, 255], [5, 6, 9]]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
def test_tokens_may_be_arrays_and_tensors_of_any_integer_type(dtype, tmp_path):
    np.concatenate(TEXTS).astype(dtype).tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", dtype=dtype, mode="r")
    parts = np.split(mapped, np.cumsum([len(text) for text in TEXTS])[:-1])
    tensors = [torch.tensor(text, dtype=getattr(torch, dtype)) for text in TEXTS]
    expected = pack(TEXTS, 4)
    assert expected.targets.tolist() == [[2, 3, 9, -100], [255, -100, 6, 9]]
    for documents in (parts, tensors, iter(TEXTS)):
        for ours, theirs in zip(pack(documents, 4), expected, strict=True):
            assert ours.dtype == torch.int64
            assert torch.equal(ours, theirs)
    numbers = expected.documents.numpy()
    assert torch.equal(document_mask(numbers), document_mask(expected.documents))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (np.arange(9), "got a int64 of int64 in 0 dimensions"),
        (list(range(9)), "got a int of int64 in 0 dimensions"),
        (["a text"], "got a str of <U6 in 0 dimensions"),
        ([[1.5, 2.0]], "got a list of float64 in 1 dimensions"),
        ([torch.zeros(9, dtype=torch.bool)], "got a Tensor of torch.bool in 1 dimensions"),
        ([np.zeros((2, 9), dtype=int)], "got a ndarray of int64 in 2 dimensions"),
    ],
)
def test_what_is_no_document_is_refused(documents, message):
    with pytest.raises(TypeError, match=f"expected token ids, whole numbers .*, {message}"):
        pack(documents, 4)


def test_a_row_needs_a_length():
    with pytest.raises(ValueError, match="length must be positive, got 0"):
        pack([[1, 2]], 0)
