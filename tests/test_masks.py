import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook import causal_mask, padding_mask


@given(n_queries=st.integers(0, 8), more=st.integers(0, 8))
def test_causal_mask_is_aligned_to_the_last_key(n_queries: int, more: int) -> None:
    mask = causal_mask(n_queries, n_queries + more)
    assert mask.shape == (n_queries, n_queries + more)
    for i in range(n_queries):
        assert mask[i].tolist() == [j <= i + more for j in range(n_queries + more)]


def test_causal_mask_is_square_by_default() -> None:
    assert torch.equal(causal_mask(5), causal_mask(5, 5))


@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 2), (1, 0), (-1, 2)])
def test_causal_mask_needs_a_key_for_every_query(n_queries: int, n_keys: int) -> None:
    with pytest.raises(ValueError, match=f"got {n_queries} queries and {n_keys} keys"):
        causal_mask(n_queries, n_keys)


@given(lengths=st.lists(st.integers(0, 6), max_size=5))
def test_padding_mask_allows_the_first_keys_of_each_sequence(lengths: list[int]) -> None:
    mask = padding_mask(torch.tensor(lengths, dtype=torch.int64), 6)
    assert mask.shape == (len(lengths), 1, 1, 6)
    for row, length in zip(mask[:, 0, 0], lengths, strict=True):
        assert row.tolist() == [j < length for j in range(6)]


@pytest.mark.parametrize(("lengths", "got"), [([2, 5], "2 to 5"), ([-1, 3], "-1 to 3")])
def test_lengths_outside_the_padded_length_are_refused(lengths: list[int], got: str) -> None:
    with pytest.raises(ValueError, match=f"lengths must be in 0 … 4, got {got}"):
        padding_mask(torch.tensor(lengths), 4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool])
def test_lengths_that_are_no_integers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"lengths must be integers, got a tensor of {dtype}"):
        padding_mask(torch.ones(2, dtype=dtype), 4)
