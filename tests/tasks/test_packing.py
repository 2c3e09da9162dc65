"""Packed documents are read as each alone, and lose nothing."""

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


def test_a_row_needs_a_length():
    with pytest.raises(ValueError, match="length must be positive, got 0"):
        pack([[1, 2]], 0)
