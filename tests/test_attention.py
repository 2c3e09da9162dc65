import math
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbook import (
    attention_logits,
    attention_weights,
    causal_mask,
    scaled_dot_product_attention,
    sliding_window_mask,
)
from strategies import (
    Call,
    assert_near,
    assert_rounded,
    attend,
    broadcastable,
    calls,
    dtypes,
    in_a_row,
    in_wide_and_narrow,
    on_both_paths,
    on_every_device,
    refused,
    seeds,
    sizes,
)


def test_shapes_in_the_types_are_checked_here() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        attention_logits(torch.zeros(5, 4), torch.zeros(7, 3))


# Logits and weights


@given(leading=st.lists(sizes, max_size=2), scale=st.sampled_from([None, 1.0, 0.3, -3.0]))
def test_logits_are_scaled_dot_products(leading: list[int], scale: float | None) -> None:
    query, key = torch.randn(*leading, 3, 16), torch.randn(*leading, 4, 16)
    logits = attention_logits(query, key, scale=scale)
    factor = 1 / 4 if scale is None else scale
    for i in range(3):
        for j in range(4):
            dot = (query[..., i, :] * key[..., j, :]).sum(-1)
            assert_near(logits[..., i, j], factor * dot, 1e-13)


def test_weights_are_the_softmax_over_the_allowed_keys() -> None:
    logits = torch.randn(5, 7)
    mask = (torch.rand(5, 7) < 0.5) | (torch.arange(7) == 0)
    weights = attention_weights(logits, mask)
    for i in range(5):
        exps = [math.exp(s) if m else 0.0 for s, m in zip(logits[i], mask[i], strict=True)]
        assert weights[i].tolist() == pytest.approx([e / sum(exps) for e in exps], abs=1e-15)


def assert_sums_to_one(weights: Tensor, some: Tensor) -> None:
    """Each row, summed without rounding, or to zero where there is not ``some`` key."""
    assert_near(weights.double().sum(-1), some.double(), 2 * torch.finfo(weights.dtype).eps)


@given(seed=seeds, leading=st.lists(sizes, max_size=2), keys=sizes, dtype=dtypes, data=st.data())
def test_weights_sum_to_one_and_are_zero_where_masked(
    seed: int, leading: list[int], keys: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    logits, mask = torch.randn(*leading, 3, keys, dtype=dtype), None
    if data.draw(st.booleans()):
        mask = torch.rand(broadcastable(data.draw, logits.shape)) < data.draw(st.floats(0, 1))
    weights = attention_weights(logits, mask)
    allowed = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand_as(logits)
    assert torch.equal(weights == 0, ~allowed)
    assert_sums_to_one(weights, allowed.any(-1))


def test_huge_logits_give_finite_weights() -> None:
    logits = torch.tensor([[1e6, 0.0, -1e6], [-1e6, 1e6, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    expected = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert torch.equal(attention_weights(logits, mask), expected)


def test_logits_are_left_as_they_were() -> None:
    logits = torch.randn(3, 4)
    before = logits.clone()
    attention_weights(logits, torch.rand(3, 4) < 0.5)
    assert torch.equal(logits, before)


def test_gradients_of_logits_and_weights_are_those_of_finite_differences() -> None:
    query, key = (torch.randn(2, n, 3, requires_grad=True) for n in (2, 4))
    assert torch.autograd.gradcheck(attention_logits, (query, key))
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    logits = torch.randn(2, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: attention_weights(s, mask), (logits,))
    assert torch.autograd.gradcheck(attention_weights, (logits,))


# The function and its two paths


def by_definition(call: Call) -> tuple[Tensor, Tensor]:
    """One query at a time, over the keys it may attend to; query head h asks key head h // group.

    Returns the output and the weights.
    """
    allowed, group = call.allowed(), call.group
    queries, keys = allowed.shape[-2:]
    scale = 1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale
    query, key, value = (x.reshape(-1, *x.shape[-2:]) for x in (call.query, call.key, call.value))
    bias = torch.zeros(()) if call.bias is None else call.bias
    bias = bias.expand_as(allowed).reshape(-1, queries, keys)
    output = torch.zeros(len(query), queries, value.shape[-1])
    weights = torch.zeros(len(query), queries, keys)
    for h, rows in enumerate(allowed.reshape(-1, queries, keys)):
        for i, row in enumerate(rows):
            js = row.nonzero().flatten().tolist()
            exps = {
                j: math.exp(scale * float(query[h, i] @ key[h // group, j]) + float(bias[h, i, j]))
                for j in js
            }
            for j in js:
                weights[h, i, j] = exps[j] / sum(exps.values())
                output[h, i] += weights[h, i, j] * value[h // group, j]
    return output.reshape(*allowed.shape[:-1], -1), weights.reshape(allowed.shape)


@given(calls(), dtypes)
def test_both_paths_are_the_definition(call: Call, dtype: torch.dtype) -> None:
    call = call.to(dtype)
    explicit, fused = call.both(), call.by("fused")
    assert explicit[0].dtype == explicit[1].dtype == fused.dtype == dtype
    output, weights = by_definition(call.to(torch.float64))
    assert_rounded(explicit[0], output)
    assert_rounded(explicit[1], weights)
    assert_rounded(fused, output)


@given(calls(), dtypes)
def test_gradients_of_both_paths_are_the_definitions(call: Call, dtype: torch.dtype) -> None:
    call = call.to(dtype)
    exact = call.to(torch.float64)
    for tensor in (*call.tensors, *exact.tensors):
        tensor.requires_grad_()
    output = exact.by("explicit")
    direction = torch.randn_like(output).to(dtype)
    expected = torch.autograd.grad(output, exact.tensors, direction.double())
    for path in ("fused", "explicit"):
        gradients = torch.autograd.grad(call.by(path), call.tensors, direction)
        assert_rounded(in_a_row(gradients), in_a_row(expected))


@pytest.mark.parametrize("extra", ["nothing", "mask", "bias", "both", "causal", "window"])
@on_both_paths
def test_gradients_are_those_of_finite_differences(path: str, extra: str) -> None:
    queries, keys, leading, heads = 2, 3, (1, 2), (1, 4)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]]).bool() if extra in ("mask", "both") else None
    mask = sliding_window_mask(queries, keys, before=0) if extra == "window" else mask
    tensors = [torch.randn(*heads, queries, 2), torch.randn(*leading, keys, 2)]
    tensors.append(torch.randn(*leading, keys, 1))
    if extra in ("bias", "both"):
        tensors.append(torch.randn(*heads[-1:], queries, keys))
    for tensor in tensors:
        tensor.requires_grad_()

    def output(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        return attend(path, query, key, value, mask, bias=bias, causal=extra == "causal")

    assert torch.autograd.gradcheck(output, tensors)


@given(calls(causal=False), seeds, dtypes)
@on_both_paths
def test_keys_have_no_order(path: str, call: Call, seed: int, dtype: torch.dtype) -> None:
    torch.manual_seed(seed)
    call = call.to(dtype)
    order = torch.randperm(call.key.shape[-2])

    def permuted(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.dim() == 0 or x.shape[-1] == 1 else x[..., order]

    other = replace(
        call,
        key=call.key[..., order, :],
        value=call.value[..., order, :],
        mask=permuted(call.mask),
        bias=permuted(call.bias),
    )
    assert_rounded(other.by(path), call.by(path))


@pytest.mark.parametrize("causal", [False, True])
@on_both_paths
@given(data=st.data(), dtype=dtypes)
def test_what_a_query_may_not_attend_to_is_not_seen_to_the_last_bit(
    path: str, causal: bool, data: st.DataObject, dtype: torch.dtype
) -> None:
    call = data.draw(calls(causal=causal)).to(dtype)
    t = data.draw(st.integers(0, call.key.shape[-2] - 1))
    sees = call.allowed()[..., t]
    key, value = call.key.clone(), call.value.clone()
    key[..., t, :] += 1.0
    value[..., t, :] += 1e4  # even of the smallest weight something is left
    before, after = call.by(path), replace(call, key=key, value=value).by(path)
    assert torch.equal(after[~sees], before[~sees])
    assert (after[sees] != before[sees]).any(-1).all()


@pytest.mark.parametrize("causal", [False, True])
@on_both_paths
@given(data=st.data(), dtype=dtypes)
def test_so_it_gets_no_gradient_and_leaves_that_of_others_as_it_is(
    path: str, causal: bool, data: st.DataObject, dtype: torch.dtype
) -> None:
    call = data.draw(calls(causal=causal)).to(dtype)
    t = data.draw(st.integers(0, call.key.shape[-2] - 1))
    key, value = call.key.clone(), call.value.clone()
    key[..., t, :], value[..., t, :] = 10.0, -10.0
    other = replace(call, key=key, value=value)
    for tensor in (*call.tensors, *other.tensors):
        tensor.requires_grad_()
    direction = torch.randn(*call.query.shape[:-1], value.shape[-1], dtype=dtype)
    direction[call.allowed()[..., t]] = 0.0
    before = torch.autograd.grad(call.by(path), call.tensors, direction)
    after = torch.autograd.grad(other.by(path), other.tensors, direction)
    for ours, theirs in zip(after, before, strict=True):
        assert torch.equal(ours, theirs)
    assert not before[1][..., t, :].any()
    assert not before[2][..., t, :].any()


@on_both_paths
def test_no_keys_give_zeros_and_no_queries_give_nothing(path: str) -> None:
    some, none = torch.randn(2, 3, 4), torch.randn(2, 0, 4)
    assert torch.equal(attend(path, some, none, none), torch.zeros(2, 3, 4))
    assert attend(path, none, some, some).shape == (2, 0, 4)
    assert attend(path, none, some, some, causal=True).shape == (2, 0, 4)
    assert attend(path, none, none, none, causal=True).shape == (2, 0, 4)
    assert attend(path, some[:0], some[:0], some[:0]).shape == (0, 3, 4)


# Rows without a key


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    ("leading", "group"), [((), 1), ((2,), 3), ((2, 2), 1)], ids=["2D", "3D-GQA", "4D"]
)
@pytest.mark.parametrize("extra", ["nothing", "bias", "causal", "causal-offset", "per-head"])
@on_both_paths
@in_wide_and_narrow
@on_every_device
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_zero_gradient(
    path: str, extra: str, leading: tuple[int, ...], group: int, dtype: torch.dtype, device: str
) -> None:
    heads = (*leading[:-1], leading[-1] * group) if leading else ()
    keys, options = (7 if extra == "causal-offset" else 5), {"dtype": dtype, "device": device}
    query = torch.randn(*heads, 5, 8, **options)
    key, value = torch.randn(2, *leading, keys, 8, **options)
    bias = torch.randn(*heads[-1:], 5, keys, **options) if extra == "bias" else None
    mask = torch.rand(5, keys, device=device) < 0.7
    mask[-1, :2] = True
    mask[2], mask[:, 3] = False, False  # query 2 attends to nothing, nobody attends to key 3
    mask = mask.expand(*heads, 5, keys) if extra == "per-head" else mask
    tensors = [query, key, value] if bias is None else [query, key, value, bias]
    for tensor in tensors:
        tensor.requires_grad_()
    with torch.autograd.detect_anomaly():  # no NaN on the way back either
        output = attend(path, query, key, value, mask, bias=bias, causal=extra.startswith("causal"))
        (output * torch.randn_like(output)).sum().backward()
    assert output.dtype == dtype
    assert not output[..., 2, :].any()
    assert not query.grad[..., 2, :].any()
    assert not key.grad[..., 3, :].any()
    assert not value.grad[..., 3, :].any()
    if bias is not None:
        assert not bias.grad[..., 2, :].any()
        assert not bias.grad[..., 3].any()
    for tensor in (output, *(t.grad for t in tensors)):
        assert tensor.isfinite().all()
        assert tensor.any()


@pytest.mark.parametrize("leading", [(), (1, 2)], ids=str)
@on_both_paths
@in_wide_and_narrow
@on_every_device
def test_where_every_query_may_attend_to_nothing_all_is_zero(
    path: str, leading: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    tensors = torch.randn(3, *leading, 3, 8, dtype=dtype, device=device).requires_grad_()
    shapes = [(), (1,), (3,), (3, 3), (*leading, 3, 3), *([(2, 1, 1)] if leading else [])]
    for shape in shapes:
        for bias in (None, torch.randn(3, 3, dtype=dtype, device=device)):
            mask = torch.zeros(shape, dtype=torch.bool, device=device)
            output = attend(path, *tensors, mask, bias=bias)
            assert not output.any()
            assert not torch.autograd.grad(output.sum(), tensors)[0].any()


@in_wide_and_narrow
def test_the_smallest_logit_is_still_more_than_a_forbidden_one(dtype: torch.dtype) -> None:
    logits = torch.full((1, 3), torch.finfo(dtype).min, dtype=dtype)
    weights = attention_weights(logits, torch.tensor([True, False, True]))
    assert weights.tolist() == [[0.5, 0, 0.5]]


@pytest.mark.parametrize("held", [-math.inf, math.inf, math.nan])
def test_rows_that_attend_to_nothing_may_hold_any_logits(held: float) -> None:
    logits = torch.full((2, 3), held, requires_grad=True)
    mask = torch.tensor([[False, False, False], [False, True, False]])
    weights = attention_weights(torch.where(mask, 0.0, logits), mask)
    assert weights.tolist() == [[0, 0, 0], [0, 1, 0]]
    weights.sum().backward()
    assert not logits.grad.any()


@on_both_paths
def test_what_mask_and_bias_forbid_together_gives_zeros(path: str) -> None:
    tensors = torch.randn(3, 2, 4).requires_grad_()
    mask, bias = torch.tensor([True, False]), torch.tensor([-math.inf, 0.0])
    output = attend(path, *tensors, mask, bias=bias)
    assert not output.any()
    assert not torch.autograd.grad(output.sum(), tensors)[0].any()


@on_both_paths
@in_wide_and_narrow
def test_minus_infinity_in_the_bias_forbids(path: str, dtype: torch.dtype) -> None:
    tensors = torch.randn(3, 1, 2, 4, 8, dtype=dtype).requires_grad_()
    bias = torch.zeros(4, 4, dtype=dtype)
    bias[1], bias[:, 2] = -math.inf, -math.inf
    output = attend(path, *tensors, bias=bias)
    assert_near(output, attend(path, *tensors, bias == 0), 1e-12)
    gradient = torch.autograd.grad(output.sum(), tensors)[0]
    assert not output[..., 1, :].any()
    assert gradient.isfinite().all()
    assert not gradient[1:, ..., 2, :].any()


def test_a_bias_for_each_head_is_left_to_the_fused_kernel() -> None:
    tensors, bias = torch.randn(3, 1, 2, 4, 8), torch.randn(2, 4, 4)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # another would have to refuse
        output = attend("fused", *tensors, bias=bias)
    assert_near(output, attend("explicit", *tensors, bias=bias))


# Precision and dropout


@pytest.mark.parametrize(("asks", "asked", "scale"), [(40, 40, None), (3000, 1e-3, 100.0)])
@on_both_paths
def test_what_overflows_in_one_order_alone_does_not(
    path: str, asks: float, asked: float, scale: float | None
) -> None:
    query, key = (torch.full((1, 1, 3, 64), x, dtype=torch.float16) for x in (asks, asked))
    value = torch.randn(1, 1, 3, 64, dtype=torch.float16)
    mean = value.float().mean(dim=-2, keepdim=True).expand(1, 1, 3, 64)
    assert_near(attend(path, query, key, value, scale=scale).float(), mean, 1e-2)


def test_dropout_drops_weights_and_scales_up_the_rest() -> None:
    query, key, value = torch.randn(3, 100, 4)
    output, weights = scaled_dot_product_attention(
        query, key, value, dropout=0.25, return_weights=True
    )
    kept = attention_weights(attention_logits(query, key)) / 0.75
    dropped = weights == 0
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert_near(weights, kept.masked_fill(dropped, 0.0))
    assert_near(output, weights @ value)


@pytest.mark.parametrize("n_kv_heads", [2, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_in_the_fused_path_keeps_the_mean(masked: bool, n_kv_heads: int) -> None:
    query, key = torch.randn(2, 100, 4), torch.randn(n_kv_heads, 100, 4)
    mask, value = torch.arange(100) < 90 if masked else None, torch.ones(n_kv_heads, 100, 1)
    sums = scaled_dot_product_attention(query, key, value, mask, dropout=0.25)
    assert sums.std() > 0.01
    assert sums.mean().item() == pytest.approx(1.0, abs=0.05)


@on_every_device
@on_both_paths
def test_outputs_are_where_the_inputs_are(path: str, device: str) -> None:
    for where in (device, "meta"):
        query, key = torch.randn(2, 3, 4, device=where), torch.randn(2, 5, 4, device=where)
        mask = torch.ones(5, dtype=torch.bool, device=where)
        for options in ({}, {"causal": True}):
            for given_mask in (None, mask):
                output = attend(path, query, key, key, given_mask, **options)
                assert output.device.type == where
                assert output.shape == (2, 3, 4)


# Bad input


def zeros(*shapes: tuple[int, ...], dtype: torch.dtype | None = None) -> list[Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize("leading", [(), (3,), (2, 3)], ids=str)
    def test_widths_of_query_and_key_differ(self, leading: tuple[int, ...]) -> None:
        query, key = zeros((*leading, 5, 64), (*leading, 7, 32))
        with refused(ValueError, "query has d_head 64 but key has 32"):
            attention_logits(query, key)
        with refused(ValueError, "query has d_head 64 but key has 32"):
            scaled_dot_product_attention(query, key, key)

    @pytest.mark.parametrize(("query", "key"), [((4,), (5, 4)), ((5, 4), (4,)), ((), ())])
    def test_vectors_without_tokens(self, query: tuple[int, ...], key: tuple[int, ...]) -> None:
        q, k = zeros(query, key)
        message = f"query and key need shapes (…, tokens, d_head), got {query} and {key}"
        with refused(ValueError, message):
            attention_logits(q, k)
        with refused(ValueError, message):
            scaled_dot_product_attention(q, k, k)

    def test_numbers_of_keys_and_values_differ(self) -> None:
        with refused(ValueError, "there are 7 keys but 6 values"):
            scaled_dot_product_attention(*zeros((5, 4), (7, 4), (6, 4)))

    @pytest.mark.parametrize("leading", [(2,), (3, 2), ()], ids=str)
    def test_leading_dimensions_of_key_and_value_differ(self, leading: tuple[int, ...]) -> None:
        message = f"key has leading dimensions (3,) but value has {leading}"
        with refused(ValueError, message):
            scaled_dot_product_attention(*zeros((3, 5, 4), (3, 7, 4), (*leading, 7, 4)))

    @pytest.mark.parametrize(
        ("ours", "theirs"), [((2,), ()), ((), (2,)), ((4, 2), (2,)), ((4, 2), (2, 2))], ids=str
    )
    def test_leading_dimensions_of_query_and_key_differ(
        self, ours: tuple[int, ...], theirs: tuple[int, ...]
    ) -> None:
        query, key = zeros((*ours, 5, 4), (*theirs, 7, 4))
        message = f"query has leading dimensions {ours} but key has {theirs}"
        with refused(ValueError, message):
            scaled_dot_product_attention(query, key, key)
        with refused(ValueError, message):
            attention_logits(query, key)

    @pytest.mark.parametrize(("heads", "kv_heads"), [(4, 3), (2, 4), (4, 0), (0, 2)])
    def test_key_heads_do_not_divide_query_heads(self, heads: int, kv_heads: int) -> None:
        query, key = zeros((2, heads, 5, 4), (2, kv_heads, 7, 4))
        message = (
            f"query has leading dimensions {(2, heads)} but key has {(2, kv_heads)}: "
            "the heads of key must divide those of query"
        )
        with refused(ValueError, message):
            scaled_dot_product_attention(query, key, key)

    def test_logits_know_no_groups(self) -> None:
        with refused(ValueError, "query has leading dimensions (4,) but key has (2,)"):
            attention_logits(*zeros((4, 5, 4), (2, 7, 4)))

    @pytest.mark.parametrize("shape", [(7, 5), (6,), (3, 5, 7), (1, 2, 5, 7), (2, 5, 2), (0,)])
    def test_mask_or_bias_does_not_broadcast(self, shape: tuple[int, ...]) -> None:
        message = (
            f"of shape {shape} does not broadcast to the logits' shape "
            "(…, queries, keys) = (2, 5, 7)"
        )
        tensors, mask = zeros((2, 5, 4), (2, 7, 4), (2, 7, 4)), torch.ones(shape).bool()
        with refused(ValueError, f"mask {message}"):
            attention_weights(torch.zeros(2, 5, 7), mask)
        for path in ("fused", "explicit"):
            with refused(ValueError, f"mask {message}"):
                attend(path, *tensors, mask)
            with refused(ValueError, f"bias {message}"):
                attend(path, *tensors, bias=torch.ones(shape))

    @pytest.mark.parametrize(
        ("shape", "hint"),
        [
            ((3, 5, 7), "; one for each sequence is {}[:, None]"),
            ((3, 1, 7), "; one for each sequence is {}[:, None]"),
            ((4, 5, 7), ""),
            ((3, 7), "; of each sequence's keys it is {}[:, None, None]"),
            ((3, 8), ""),
            ((4, 7), ""),
        ],
    )
    def test_one_mask_for_each_sequence(self, shape: tuple[int, ...], hint: str) -> None:
        message = (
            f"of shape {shape} does not broadcast to the logits' shape "
            "(…, queries, keys) = (3, 6, 5, 7)"
        )
        tensors = zeros((3, 6, 5, 4), (3, 6, 7, 4), (3, 6, 7, 4))
        with refused(ValueError, f"mask {message}{hint.format('mask')}"):
            attend("fused", *tensors, torch.ones(shape).bool())
        with refused(ValueError, f"bias {message}{hint.format('bias')}"):
            attend("explicit", *tensors, bias=torch.ones(shape))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.uint8])
    def test_mask_is_not_boolean(self, dtype: torch.dtype) -> None:
        message = f"a mask is boolean (True = may attend), got a tensor of {dtype}"
        message += "; of 0 and -inf, pass mask == 0" if dtype.is_floating_point else ""
        mask, x = torch.ones(5, 5, dtype=dtype), torch.zeros(1, 5, 4)
        with refused(TypeError, message):
            attention_weights(torch.zeros(5, 5), mask)
        for path in ("fused", "explicit"):
            with refused(TypeError, message):
                attend(path, x, x, x, mask)

    def test_logits_are_not_of_floating_type(self) -> None:
        with refused(TypeError, "logits must be of floating type, got a tensor of torch.int64"):
            attention_weights(torch.zeros(2, 2, dtype=torch.int64))

    @pytest.mark.parametrize("place", range(3))
    def test_what_is_no_tensor(self, place: int) -> None:
        tensors: list[object] = zeros((5, 4), (5, 4), (5, 4))
        tensors[place] = np.zeros((5, 4))
        message = f"{['query', 'key', 'value'][place]} must be a Tensor, got a ndarray"
        with refused(TypeError, message):
            scaled_dot_product_attention(*tensors)

    def test_mask_is_not_a_tensor(self) -> None:
        with refused(TypeError, "a mask is a boolean tensor, got a list"):
            attention_weights(torch.zeros(5, 5), [True] * 5)

    @pytest.mark.parametrize("path", ["fused", "explicit"])
    def test_value_has_no_keys_and_query_no_width(self, path: str) -> None:
        x = torch.zeros(3, 4)
        with refused(ValueError, "value needs a shape (…, keys, d_value), got (3,)"):
            attend(path, x, x, torch.zeros(3))
        with refused(ValueError, "query and key have d_head 0"):
            attend(path, x[:, :0], x[:, :0], x)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
    def test_tensors_are_not_of_floating_type(self, dtype: torch.dtype) -> None:
        x, wrong = torch.zeros(5, 4), torch.zeros(5, 4, dtype=dtype)
        for args, name in [
            ((wrong, wrong, wrong), "query"),
            ((x, wrong, x), "key"),
            ((x, x, wrong), "value"),
        ]:
            with refused(TypeError, f"{name} must be of floating type, got a tensor of {dtype}"):
                scaled_dot_product_attention(*args)
        with refused(TypeError, f"query must be of floating type, got a tensor of {dtype}"):
            attention_logits(wrong, x)
        with refused(TypeError, f"key must be of floating type, got a tensor of {dtype}"):
            attention_logits(x, wrong)
        bias = torch.zeros(5, 5, dtype=dtype)
        with refused(TypeError, f"bias must be of floating type, got a tensor of {dtype}"):
            scaled_dot_product_attention(x, x, x, bias=bias)

    def test_tensors_are_of_several_types(self) -> None:
        x, other = zeros((5, 4))[0], zeros((5, 4), dtype=torch.float32)[0]
        message = "query is torch.float64 but {} is torch.float32"
        with refused(TypeError, message.format("key")):
            attention_logits(x, other)
        with refused(TypeError, message.format("key")):
            scaled_dot_product_attention(x, other, x)
        with refused(TypeError, message.format("value")):
            scaled_dot_product_attention(x, x, other)
        with refused(TypeError, message.format("bias")):
            scaled_dot_product_attention(x, x, x, bias=torch.zeros(5, 5, dtype=torch.float32))

    @pytest.mark.parametrize(("queries", "keys"), [(3, 2), (1, 0)])
    def test_causal_with_fewer_keys_than_queries(self, queries: int, keys: int) -> None:
        query, key = zeros((queries, 4), (keys, 4))
        message = (
            "aligned to the end, a causal mask needs at least as many keys as queries, "
            f"got {queries} queries and {keys} keys"
        )
        for path in ("fused", "explicit"):
            with refused(ValueError, message):
                attend(path, query, key, key, causal=True)

    @pytest.mark.parametrize("path", ["fused", "explicit"])
    def test_scale_is_no_finite_number(self, path: str) -> None:
        x = torch.zeros(5, 4)
        for scale in (math.nan, math.inf, "1", True):
            with refused(ValueError, f"scale must be a finite number, got {scale!r}"):
                attend(path, x, x, x, scale=scale)

    @pytest.mark.parametrize("path", ["fused", "explicit"])
    def test_causal_is_neither_true_nor_false(self, path: str) -> None:
        x = torch.zeros(5, 4)
        for causal in (causal_mask(5), "no", None, 1):
            message = f"causal must be True or False, got a {type(causal).__name__}"
            with refused(TypeError, message):
                attend(path, x, x, x, causal=causal)

    @pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan, None])
    def test_dropout_is_no_probability_below_one(self, dropout: float) -> None:
        x = torch.zeros(5, 4)
        for path in ("fused", "explicit"):
            with refused(ValueError, f"dropout must be in [0, 1), got {dropout}"):
                attend(path, x, x, x, dropout=dropout)
