import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbook.tasks import reversal_batch

sizes = st.integers(1, 8)


@given(batch=sizes, length=sizes, vocab_size=sizes, seed=st.integers(0, 100))
def test_target_i_is_token_length_minus_one_minus_i(batch, length, vocab_size, seed):
    ids, targets = reversal_batch(batch, length, vocab_size, Generator().manual_seed(seed))
    assert ids.shape == (batch, length)
    for sequence, target in zip(ids.tolist(), targets.tolist(), strict=True):
        assert target == sequence[::-1]
        assert set(sequence) <= set(range(vocab_size))


def test_tokens_are_uniform_at_every_position():
    ids, _ = reversal_batch(20_000, 3, 4, Generator().manual_seed(0))
    for position in ids.T:
        shares = position.bincount(minlength=4) / 20_000
        torch.testing.assert_close(shares, torch.full((4,), 0.25), rtol=0, atol=0.016)


def test_same_seed_gives_the_same_batch():
    def ids(seed: int) -> torch.Tensor:
        return reversal_batch(2, 8, 9, Generator().manual_seed(seed))[0]

    assert torch.equal(ids(1), ids(1))
    assert not torch.equal(ids(1), ids(2))


@pytest.mark.parametrize("given_sizes", [(0, 4, 5), (2, 0, 5), (2, 4, 0)])
def test_sizes_must_be_positive(given_sizes):
    message = "must be positive, got {}, {} and {}".format(*given_sizes)
    with pytest.raises(ValueError, match=message):
        reversal_batch(*given_sizes, Generator())
