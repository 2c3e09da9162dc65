import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook import (
    causal_mask,
    combine_masks,
    padding_mask,
    scaled_dot_product_attention,
    sliding_window_mask,
    token_mask,
)
from attnbook.checks import check_boolean
from strategies import broadcastable, on_every_device, refused, seeds

counts = st.integers(0, 6)
offsets = st.integers(-9, 9)
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OTHERS = [torch.float64, torch.float16, torch.bool, torch.complex64]


# Ahead and behind


@given(n_queries=counts, more=counts)
def test_causal_mask_is_aligned_to_the_last_key(n_queries: int, more: int) -> None:
    mask = causal_mask(n_queries, n_queries + more)
    assert mask.dtype == torch.bool
    assert mask.shape == (n_queries, n_queries + more)
    for i in range(n_queries):
        assert mask[i].tolist() == [j <= i + more for j in range(n_queries + more)]


@given(n_queries=counts, n_keys=counts, offset=offsets)
def test_offset_is_the_first_querys_position(n_queries: int, n_keys: int, offset: int) -> None:
    mask = causal_mask(n_queries, n_keys, offset=offset)
    expected = [[j <= i + offset for j in range(n_keys)] for i in range(n_queries)]
    assert mask.tolist() == expected


@given(
    n_queries=counts, n_keys=counts, before=st.integers(0, 7), after=st.integers(0, 7), p=offsets
)
def test_window_reaches_so_far_before_and_after_the_query(
    n_queries: int, n_keys: int, before: int, after: int, p: int
) -> None:
    mask = sliding_window_mask(n_queries, n_keys, before=before, after=after, offset=p)
    expected = [
        [i + p - before <= j <= i + p + after for j in range(n_keys)] for i in range(n_queries)
    ]
    assert mask.dtype == torch.bool
    assert mask.shape == (n_queries, n_keys)
    assert mask.tolist() == expected


def test_long_masks_are_their_formulas() -> None:
    i, j = torch.arange(300)[:, None], torch.arange(700)
    assert torch.equal(causal_mask(300, 700), j <= i + 400)
    window = sliding_window_mask(300, 700, before=150, after=2)
    assert torch.equal(window, (j <= i + 402) & (j >= i + 250))


@given(n_queries=counts, more=counts, before=st.integers(0, 13))
def test_window_is_aligned_to_the_last_key_and_causal_by_default(
    n_queries: int, more: int, before: int
) -> None:
    mask = sliding_window_mask(n_queries, n_queries + more, before=before)
    aligned = sliding_window_mask(n_queries, n_queries + more, before=before, offset=more)
    assert torch.equal(mask, aligned)
    ahead = causal_mask(n_queries, n_queries + more)
    assert not (mask & ~ahead).any()
    if before >= n_queries + more:
        assert torch.equal(mask, ahead)


@pytest.mark.parametrize("far", [10, sys.maxsize, 10**30])
def test_window_without_an_end(far: int) -> None:
    assert torch.equal(sliding_window_mask(3, 5, before=far), causal_mask(3, 5))
    assert sliding_window_mask(3, 5, before=far, after=far).all()
    ahead = sliding_window_mask(3, 5, before=0, after=far)
    assert torch.equal(ahead, causal_mask(3, 5, offset=1).logical_not())


def test_masks_are_square_by_default() -> None:
    assert torch.equal(causal_mask(5), causal_mask(5, 5))
    assert torch.equal(causal_mask(5, offset=-1), causal_mask(5, 5, offset=-1))
    window = sliding_window_mask(5, before=1, after=2)
    assert torch.equal(window, sliding_window_mask(5, 5, before=1, after=2))


def test_offset_zero_is_torchs_own_alignment() -> None:
    query, key, value = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2)
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    ours = scaled_dot_product_attention(query, key, value, causal_mask(3, 5, offset=0))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 2), (1, 0)])
def test_causal_mask_needs_a_key_for_every_query(n_queries: int, n_keys: int) -> None:
    message = (
        "aligned to the end, a causal mask needs at least as many keys as queries, "
        f"got {n_queries} queries and {n_keys} keys"
    )
    with refused(ValueError, message):
        causal_mask(n_queries, n_keys)
    with refused(ValueError, message):
        sliding_window_mask(n_queries, n_keys, before=1)
    assert causal_mask(n_queries, n_keys, offset=0).shape == (n_queries, n_keys)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", [-1, 2.0, True, "2"])
@pytest.mark.parametrize("name", ["n_queries", "n_keys", "before", "after"])
def test_sizes_and_widths_are_numbers_of_tokens(name: str, wrong: int) -> None:
    message = f"{name} must be an integer, 0 or more, got {wrong!r}"
    for offset in (0, None):
        sizes = {"n_queries": 2, "n_keys": 2, "offset": offset} | {name: wrong}
        with refused(ValueError, message):
            sliding_window_mask(**({"before": 1} | sizes))
        if name.startswith("n_"):
            with refused(ValueError, message):
                causal_mask(**sizes)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("offset", [1.5, True, "0"])
def test_offset_is_a_position(offset: int) -> None:
    message = f"offset must be an integer, got {offset!r}"
    with refused(ValueError, message):
        causal_mask(3, offset=offset)
    with refused(ValueError, message):
        sliding_window_mask(3, before=1, offset=offset)


# Padding


@given(lengths=st.lists(st.integers(0, 6), max_size=5), dtype=st.sampled_from(INTEGERS))
def test_padding_mask_allows_the_first_keys_of_each_sequence(
    lengths: list[int], dtype: torch.dtype
) -> None:
    mask = padding_mask(torch.tensor(lengths, dtype=dtype), 6)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(lengths), 1, 1, 6)
    for row, length in zip(mask[:, 0, 0], lengths, strict=True):
        assert row.tolist() == [j < length for j in range(6)]


@given(
    ids=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4),
    padding_id=st.integers(0, 3),
    dtype=st.sampled_from(INTEGERS),
)
def test_token_mask_forbids_one_id_wherever_it_stands(
    ids: list[list[int]], padding_id: int, dtype: torch.dtype
) -> None:
    mask = token_mask(torch.tensor(ids, dtype=dtype), padding_id)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(ids), 1, 1, 4)
    assert mask[:, 0, 0].tolist() == [[i != padding_id for i in row] for row in ids]


@pytest.mark.parametrize("padding_id", [-1, 256])
def test_an_id_that_the_type_cannot_hold_stands_nowhere(padding_id: int) -> None:
    assert token_mask(torch.tensor([[0, 1, 255]], dtype=torch.uint8), padding_id).all()


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_both_padding_masks_say_the_same(lengths: list[int]) -> None:
    ids = torch.tensor([[7] * n + [0] * (6 - n) for n in lengths])
    assert torch.equal(token_mask(ids, padding_id=0), padding_mask(torch.tensor(lengths), 6))


@pytest.mark.parametrize(("lengths", "got"), [([2, 5], "2 to 5"), ([-1, 3], "-1 to 3")])
def test_lengths_outside_the_padded_length_are_refused(lengths: list[int], got: str) -> None:
    with refused(ValueError, f"lengths must be in 0 … 4, got {got}"):
        padding_mask(torch.tensor(lengths), 4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", OTHERS)
def test_lengths_and_ids_that_are_no_integers_are_refused(dtype: torch.dtype) -> None:
    with refused(TypeError, f"lengths must be integers, got a tensor of {dtype}"):
        padding_mask(torch.ones(2, dtype=dtype), 4)
    with refused(TypeError, f"ids must be integers, got a tensor of {dtype}"):
        token_mask(torch.ones(2, 4, dtype=dtype), 0)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_lengths_are_one_number_a_sequence(shape: tuple[int, ...]) -> None:
    with refused(ValueError, f"lengths must have shape (batch,), got {shape}"):
        padding_mask(torch.ones(shape, dtype=torch.int64), 4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)])
def test_ids_are_a_row_a_sequence(shape: tuple[int, ...]) -> None:
    with refused(ValueError, f"ids must have shape (batch, tokens), got {shape}"):
        token_mask(torch.ones(shape, dtype=torch.int64), 0)


# Several masks


@given(data=st.data())
def test_combination_allows_what_every_mask_allows(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(seeds))
    full = [2, 3, 4]
    shapes = [broadcastable(data.draw, full) for _ in range(data.draw(st.integers(1, 4)))]
    masks = [torch.rand(shape) < 0.7 for shape in shapes]
    with_none = list(masks)
    with_none.insert(data.draw(st.integers(0, len(masks))), None)
    combined = combine_masks(*with_none)
    assert combined.dtype == torch.bool
    assert combined.shape == torch.broadcast_shapes(*shapes)
    everywhere = [mask.expand(full).flatten().tolist() for mask in masks]
    expected = [all(entry) for entry in zip(*everywhere, strict=True)]
    assert combined.expand(full).flatten().tolist() == expected


def test_nothing_forbids_nothing() -> None:
    assert combine_masks() is None
    assert combine_masks(None, None) is None


def test_combined_masks_are_left_as_they_were() -> None:
    masks = torch.rand(2, 3, 3) < 0.5
    before = masks.clone()
    combine_masks(*masks)
    assert torch.equal(masks, before)


def test_masks_that_do_not_broadcast_are_refused() -> None:
    masks = [torch.ones(shape).bool() for shape in [(2, 3), (3,), (4, 1, 2)]]
    message = "these masks do not broadcast to one shape: (2, 3), (3,), (4, 1, 2)"
    with refused(ValueError, message):
        combine_masks(*masks)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_masks_that_are_not_boolean_are_refused(dtype: torch.dtype) -> None:
    message = f"a mask is boolean (True = may attend), got a tensor of {dtype}"
    message += "; of 0 and -inf, pass mask == 0" if dtype.is_floating_point else ""
    with refused(TypeError, message):
        combine_masks(causal_mask(3), None, torch.ones(3, 3, dtype=dtype))
    with refused(TypeError, message):
        check_boolean(torch.ones(3, dtype=dtype))
    check_boolean(causal_mask(3))


@pytest.mark.usefixtures("without_shape_checks")
def test_lists_are_no_tensors() -> None:
    with refused(TypeError, "a mask is a boolean tensor, got a list"):
        check_boolean([True, False])
    with refused(TypeError, "lengths must be an integer tensor, got a list"):
        padding_mask([1, 2], 3)
    with refused(TypeError, "ids must be an integer tensor, got a tuple"):
        token_mask(((1, 2),), 0)


def test_no_keys_at_all_is_a_mask_too() -> None:
    assert padding_mask(torch.zeros(2, dtype=torch.int64), 0).shape == (2, 1, 1, 0)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("n_keys", [-1, 2.5, 3.0, True, None])
def test_padded_length_is_a_number_of_keys(n_keys: int) -> None:
    with refused(ValueError, f"n_keys must be an integer, 0 or more, got {n_keys}"):
        padding_mask(torch.zeros(0, dtype=torch.int64), n_keys)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("padding_id", [0.5, 0.0, None, True])
def test_padding_is_an_id(padding_id: int) -> None:
    with refused(ValueError, f"padding_id must be an integer, got {padding_id}"):
        token_mask(torch.zeros(1, 2, dtype=torch.int64), padding_id)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.uint16, torch.uint64])
def test_lengths_may_be_of_any_integer_type(dtype: torch.dtype) -> None:
    lengths = torch.tensor([1, 3])
    assert torch.equal(padding_mask(lengths.to(dtype), 4), padding_mask(lengths, 4))


@on_every_device
def test_masks_are_made_on_the_device_asked_for(device: str) -> None:
    for where in (torch.device(device), torch.device("meta")):
        assert causal_mask(3, device=where).device.type == where.type
        assert sliding_window_mask(3, before=1, device=where).device.type == where.type
        ids = torch.zeros(2, 3, dtype=torch.int64, device=where)
        assert token_mask(ids, 0).device.type == where.type
        lengths = torch.zeros(0, dtype=torch.int64, device=where)
        assert padding_mask(lengths, 3).device.type == where.type
    lengths = torch.tensor([1, 3], device=device)
    assert padding_mask(lengths, 3).device.type == device
