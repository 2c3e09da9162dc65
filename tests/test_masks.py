import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from attnbook import (
    causal_mask,
    combine_masks,
    padding_mask,
    sliding_window_mask,
    token_mask,
)
from strategies import broadcastable, on_every_device, seeds


def test_masks_are_their_formulas_for_every_offset():
    for n_queries, n_keys, p in itertools.product((0, 1, 3), (0, 2, 5), range(-2, 6)):
        sizes = n_queries, n_keys
        i, j = torch.arange(n_queries)[:, None] + p, torch.arange(n_keys)
        assert torch.equal(causal_mask(*sizes, offset=p), j <= i)
        for before, after in itertools.product((0, 1, 3, 99), (0, 2, 99)):
            window = sliding_window_mask(*sizes, before=before, after=after, offset=p)
            assert torch.equal(window, (i - before <= j) & (j <= i + after))


@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 3), (3, 5), (1, 4), (0, 2)])
def test_masks_are_aligned_to_the_end_by_default(n_queries, n_keys):
    sizes, more = (n_queries, n_keys), n_keys - n_queries
    assert torch.equal(causal_mask(*sizes), causal_mask(*sizes, offset=more))
    for before, after in itertools.product((0, 1, 99), (0, 1)):
        window = sliding_window_mask(*sizes, before=before, after=after)
        same = sliding_window_mask(*sizes, before=before, after=after, offset=more)
        assert torch.equal(window, same)
    assert torch.equal(sliding_window_mask(*sizes, before=99), causal_mask(*sizes))


def test_masks_are_square_by_default():
    assert causal_mask(5).equal(causal_mask(5, 5))
    window = sliding_window_mask(5, before=1, after=2)
    assert window.equal(sliding_window_mask(5, 5, before=1, after=2))


def test_offset_zero_is_the_alignment_of_torch():
    query, key, value = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2)
    theirs = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    own = F.scaled_dot_product_attention(query, key, value, causal_mask(3, 5, offset=0))
    torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_padding_mask_allows_the_tokens_of_each_sequence(dtype):
    lengths = [0, 1, 4, 6]
    right = padding_mask(torch.tensor(lengths, dtype=dtype), 6)
    left = padding_mask(torch.tensor(lengths, dtype=dtype), 6, left=True)
    assert right.dtype == left.dtype == torch.bool
    assert right.shape == left.shape == (4, 1, 1, 6)
    assert right[:, 0, 0].tolist() == [[j < n for j in range(6)] for n in lengths]
    assert left[:, 0, 0].tolist() == [[j >= 6 - n for j in range(6)] for n in lengths]
    assert padding_mask(torch.zeros(2, dtype=dtype), 0).shape == (2, 1, 1, 0)


def test_lengths_are_not_read_where_there_are_no_numbers():
    lengths = torch.tensor([[2, 9], [0, 1]])
    mapped = torch.vmap(lambda each: padding_mask(each, 3))(lengths)
    assert torch.equal(mapped[:, :, 0, 0], torch.arange(3) < lengths[..., None])
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(lengths).flatten()
        assert padding_mask(fake, 3).shape == (4, 1, 1, 3)


def test_token_mask_forbids_one_id_wherever_it_is():
    ids = torch.tensor([[5, 0, 0], [0, 6, 5]])
    assert torch.equal(token_mask(ids, padding_id=0), (ids != 0)[:, None, None])
    assert torch.equal(token_mask(ids, padding_id=5), (ids != 5)[:, None, None])


@given(data=st.data(), seed=seeds)
def test_combination_allows_what_every_mask_allows(data, seed):
    torch.manual_seed(seed)
    full = [2, 3, 4]
    shapes = [broadcastable(data.draw, full) for _ in range(data.draw(st.integers(1, 4)))]
    masks = [torch.rand(shape) < 0.7 for shape in shapes]
    before = [mask.clone() for mask in masks]
    combined = combine_masks(None, *masks, None)
    assert combined.dtype == torch.bool
    assert combined.shape == torch.broadcast_shapes(*shapes)
    everywhere = [mask.expand(full).flatten().tolist() for mask in before]
    expected = [all(entry) for entry in zip(*everywhere, strict=True)]
    assert combined.expand(full).flatten().tolist() == expected
    assert all(mask.equal(old) for mask, old in zip(masks, before, strict=True))


def test_combination_of_nothing_is_none():
    assert combine_masks() is combine_masks(None, None) is None


@on_every_device
def test_masks_are_made_on_the_device_asked_for(device):
    for where in (torch.device(device), torch.device("meta")):
        numbers = torch.zeros(2, 3, dtype=torch.int64, device=where)
        masks: list[Tensor] = [
            causal_mask(3, device=where),
            sliding_window_mask(3, before=1, device=where),
            token_mask(numbers, 0),
            padding_mask(numbers[:, 0], 3),
        ]
        assert {mask.device.type for mask in masks} == {where.type}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: causal_mask(3, 2), ValueError, "as many keys as queries.* 3 queries and 2 keys"),
        (lambda: causal_mask(1, 0), ValueError, "as many keys as queries.* 1 queries and 0 keys"),
        (
            lambda: sliding_window_mask(3, 2, before=1),
            ValueError,
            "as many keys as queries.* 3 queries and 2 keys",
        ),
        (
            lambda: combine_masks(causal_mask(2), torch.ones(2, 2)),
            TypeError,
            r"boolean .*True = may attend.* got torch\.float64",
        ),
        (
            lambda: combine_masks(torch.ones(2).long()),
            TypeError,
            r"boolean .* torch\.int64.*bool\(",
        ),
        (
            lambda: sliding_window_mask(3, before=-1),
            ValueError,
            "no token, got before=-1 and after=0",
        ),
        (lambda: token_mask(torch.ones(1, 2).long(), None), TypeError, "padding_id .* got None"),
        (lambda: token_mask(torch.ones(1, 2).long(), 2.7), TypeError, "padding_id .* got 2.7"),
        (lambda: combine_masks([[True]]), TypeError, "boolean tensor .* got a list"),
        (lambda: combine_masks(np.ones(2, bool)), TypeError, r"got a numpy\.ndarray.*as_tensor"),
        (lambda: padding_mask(torch.tensor([3, 9]), 6), ValueError, "in 0 … 6, got 9"),
        (lambda: padding_mask(torch.tensor([-1]), 6, left=True), ValueError, "in 0 … 6, got -1"),
        (
            lambda: padding_mask(torch.tensor([200, 50], dtype=torch.uint8), 60),
            *(ValueError, "in 0 … 60, got 200"),
        ),
        (lambda: padding_mask(torch.tensor([2.7]), 6), TypeError, "whole numbers.* torch.float64"),
        (lambda: padding_mask([3], 6), TypeError, "a tensor of whole numbers.* got a list"),
        (
            lambda: padding_mask(torch.ones(3, 3) == 1, 3),
            *(TypeError, r"torch.bool of shape \(3, 3\).*token_mask"),
        ),
        (
            lambda: padding_mask(torch.ones(3, 3).long(), 3),
            *(TypeError, r"one of each sequence, got torch.int64 of shape \(3, 3\)"),
        ),
    ],
)
def test_refusal_says_what_was_given_and_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()
