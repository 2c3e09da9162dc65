import itertools
import math
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbook import (
    ALiBi,
    KeyValueCache,
    MultiHeadAttention,
    Position,
    Rotary,
    attention_logits,
    attention_weights,
    causal_mask,
    combine_masks,
    scaled_dot_product_attention,
)
from strategies import (
    POSITIONS,
    Call,
    Own,
    assert_gradients_are_finite_differences,
    assert_near,
    assert_rounded,
    attend,
    broadcastable,
    calls,
    dtypes,
    in_a_row,
    in_every_dtype,
    memory_for,
    modules,
    on_both_paths,
    on_every_device,
    rounded,
    run,
    seeds,
    sizes,
    slanted,
    tokens_for,
    turned,
    with_every_position,
    with_random_biases,
)

LINEARS = ["query", "key", "value", "output"]
paths = st.sampled_from(["fused", "explicit"])


def test_shapes_in_the_types_are_checked_here():
    with pytest.raises(jaxtyping.TypeCheckError):
        attention_logits(torch.zeros(5, 4), torch.zeros(7, 3))


# Logits and weights


@given(leading=st.lists(sizes, max_size=2), scale=st.sampled_from([None, 1.0, 0.3, -3.0]))
def test_logits_are_scaled_dot_products(leading, scale):
    query, key = torch.randn(*leading, 3, 16), torch.randn(*leading, 4, 16)
    logits = attention_logits(query, key, scale=scale)
    factor = 1 / 4 if scale is None else scale
    for i, j in itertools.product(range(3), range(4)):
        dot = (query[..., i, :] * key[..., j, :]).sum(-1)
        assert_near(logits[..., i, j], factor * dot, 1e-13)


@given(seed=seeds, leading=st.lists(sizes, max_size=2), keys=sizes, dtype=dtypes, data=st.data())
def test_weights_are_the_softmax_over_the_allowed_keys(seed, leading, keys, dtype, data):
    torch.manual_seed(seed)
    logits, mask = torch.randn(*leading, 3, keys, dtype=dtype), None
    if data.draw(st.booleans()):
        mask = torch.rand(broadcastable(data.draw, logits.shape)) < data.draw(st.floats(0, 1))
    before = logits.clone()
    weights = attention_weights(logits, mask)
    assert torch.equal(logits, before)
    allowed = torch.ones(()).bool() if mask is None else mask
    exps = logits.double().exp() * allowed.expand_as(logits)
    expected = exps / exps.sum(-1, keepdim=True).clamp(min=1e-300)  # an empty row: zeros
    assert torch.equal(weights == 0, exps == 0)
    assert_near(weights.double(), expected, 5 * torch.finfo(dtype).eps)


@in_every_dtype
def test_weights_stay_finite_whatever_the_logits(dtype):
    smallest, some = torch.full((1, 3), torch.finfo(dtype).min, dtype=dtype), torch.arange(3) != 1
    assert attention_weights(smallest, some).tolist() == [[0.5, 0, 0.5]]
    huge = torch.tensor([[6e4, 0.0, -6e4], [-6e4, 6e4, 0.0]], dtype=dtype)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert attention_weights(huge, mask).tolist() == [[1, 0, 0], [1, 0, 0]]
    for held in (-math.inf, math.inf, math.nan):
        logits = torch.full((1, 3), held, dtype=dtype, requires_grad=True)
        weights = attention_weights(logits, torch.zeros(1, 3).bool())
        weights.sum().backward()
        assert not weights.any()
        assert not logits.grad.any()


# The function and its two paths


def by_definition(call: Call) -> tuple[Tensor, Tensor]:
    """Output and weights, one query at a time; query head h uses key head h // group."""
    allowed = call.allowed()
    scale = 1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale
    bias = torch.zeros(()) if call.bias is None else call.bias
    bias, weights = bias.expand_as(allowed), torch.zeros(allowed.shape)
    output = torch.zeros(*allowed.shape[:-1], call.value.shape[-1])
    for row in itertools.product(*map(range, allowed.shape[:-1])):
        head = (*row[:-2], row[-2] // call.group) if len(row) > 1 else ()
        key, value, seen = call.key[head], call.value[head], allowed[row].nonzero().flatten()
        logits = [scale * float(call.query[row] @ key[j]) + float(bias[row][j]) for j in seen]
        total = sum(math.exp(logit) for logit in logits)
        for j, logit in zip(seen, logits, strict=True):
            weights[row][j] = math.exp(logit) / total
            output[row] += weights[row][j] * value[j]
    return output, weights


@given(calls(), dtypes)
def test_both_paths_equal_the_definition(call, dtype):
    call = call.to(dtype)
    output, weights = by_definition(call.to(torch.float64))
    options = {"causal": call.causal, "scale": call.scale, "bias": call.bias}
    tensors = call.query, call.key, call.value, call.mask
    explicit = scaled_dot_product_attention(*tensors, **options, return_weights=True)
    fused = scaled_dot_product_attention(*tensors, **options)
    for result, expected in zip((*explicit, fused), (output, weights, output), strict=True):
        assert result.dtype == dtype
        assert_rounded(result, expected)


@given(calls(), dtypes)
def test_gradients_of_both_paths_equal_the_exact_ones(call, dtype):
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


@pytest.mark.parametrize("extra", ["nothing", "mask", "bias", "both", "causal"])
@on_both_paths
def test_gradients_of_the_function_equal_finite_differences(path, extra):
    shapes = (1, 4, 2, 2), (1, 2, 3, 2), (1, 2, 3, 1), (4, 2, 3)
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]]).bool() if extra in ("mask", "both") else None
    bias = tensors.pop() if extra in ("bias", "both") else None
    options = {"mask": mask, "bias": bias, "causal": extra == "causal"}
    leaves = [*tensors[:3], *([] if bias is None else [bias])]
    assert_gradients_are_finite_differences(lambda: attend(path, *tensors[:3], **options), *leaves)


@pytest.mark.parametrize("causal", [False, True])
@on_both_paths
@given(data=st.data(), dtype=dtypes)
def test_forbidden_keys_change_nothing_to_the_last_bit(path, causal, data, dtype):
    call = data.draw(calls(causal=causal)).to(dtype)
    t = data.draw(st.integers(0, call.key.shape[-2] - 1))
    sees = call.allowed()[..., t]
    key, value = call.key.clone(), call.value.clone()
    key[..., t, :] += 1.0
    value[..., t, :] += 1e4  # even of the smallest weight something is left
    other = replace(call, key=key, value=value)
    for tensor in (*call.tensors, *other.tensors):
        tensor.requires_grad_()
    before, after = call.by(path), other.by(path)
    assert torch.equal(after[~sees], before[~sees])
    assert (after[sees] != before[sees]).any(-1).all()
    direction = torch.randn_like(before)
    direction[sees] = 0.0
    gradients = torch.autograd.grad(before, call.tensors, direction)
    others = torch.autograd.grad(after, other.tensors, direction)
    for one, another in zip(gradients, others, strict=True):
        assert torch.equal(one, another)
    assert not gradients[1][..., t, :].any()
    assert not gradients[2][..., t, :].any()


@on_both_paths
def test_no_keys_give_zeros_and_no_queries_give_nothing(path):
    some, none = torch.randn(2, 3, 4), torch.randn(2, 0, 4)
    assert torch.equal(attend(path, some, none, none), torch.zeros(2, 3, 4))
    assert attend(path, none, some, some).shape == (2, 0, 4)
    assert attend(path, none, some, some, causal=True).shape == (2, 0, 4)
    assert attend(path, none, none, none, causal=True).shape == (2, 0, 4)
    assert attend(path, some[:0], some[:0], some[:0]).shape == (0, 3, 4)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(("leading", "group"), [((), 1), ((2,), 3), ((2, 2), 1)])
@pytest.mark.parametrize("extra", ["nothing", "bias", "infinite bias", "causal", "more keys"])
@on_both_paths
@in_every_dtype
@on_every_device
def test_empty_rows_give_zeros_and_zero_gradients(path, extra, leading, group, dtype, device):
    heads = (*leading[:-1], leading[-1] * group) if leading else ()
    keys, options = (7 if extra == "more keys" else 5), {"dtype": dtype, "device": device}
    tensors = [torch.randn(*heads, 5, 8, **options)]
    tensors += [torch.randn(*leading, keys, 8, **options) for _ in range(2)]
    mask = torch.rand(5, keys, device=device) < 0.7
    mask[-1, :2] = True
    mask[2], mask[:, 3] = False, False  # query 2 attends to nothing, nobody attends to key 3
    bias = None
    if "bias" in extra:
        tensors.append(torch.randn(*heads[-1:], 5, keys, **options))
        tensors[-1][..., 4] = -math.inf if extra == "infinite bias" else 0.0
        bias = tensors[-1]
    if extra == "infinite bias":  # mask and bias forbid it together
        mask[2, 4] = True
    for tensor in tensors:
        tensor.requires_grad_()
    causal = extra in ("causal", "more keys")
    with torch.autograd.detect_anomaly():  # no NaN on the way back either
        output = attend(path, *tensors[:3], mask, bias=bias, causal=causal)
        (output * torch.randn_like(output)).sum().backward()
    assert output.dtype == dtype
    assert not output[..., 2, :].any()
    query, key, value = (tensor.grad for tensor in tensors[:3])
    assert not query[..., 2, :].any()
    assert not key[..., 3, :].any()
    assert not value[..., 3, :].any()
    if bias is not None:
        assert not bias.grad[..., 2, :].any()
        assert not bias.grad[..., 3].any()
    for tensor in (output, *(t.grad for t in tensors)):
        assert tensor.isfinite().all()
        assert tensor.any()


@pytest.mark.parametrize("leading", [(), (1, 2)])
@on_both_paths
@in_every_dtype
def test_mask_without_any_true_gives_zeros(path, leading, dtype):
    tensors = torch.randn(3, *leading, 3, 8, dtype=dtype).requires_grad_()
    shapes = [(), (1,), (3,), (3, 3), (*leading, 3, 3), *([(2, 1, 1)] if leading else [])]
    for shape, bias in itertools.product(shapes, (None, torch.randn(3, 3, dtype=dtype))):
        output = attend(path, *tensors, torch.zeros(shape).bool(), bias=bias)
        assert not output.any()
        assert not torch.autograd.grad(output.sum(), tensors)[0].any()


def test_bias_of_each_head_is_left_to_the_fused_kernel():
    tensors, bias = torch.randn(3, 1, 2, 4, 8), torch.randn(2, 4, 4)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # another would have to refuse
        output = attend("fused", *tensors, bias=bias)
    assert_near(output, attend("explicit", *tensors, bias=bias))


def test_causal_attention_is_left_to_the_kernels_own_mask(monkeypatch):
    def refuse(*sizes: int, **options: object) -> Tensor:
        raise AssertionError(f"a mask of {sizes}")

    monkeypatch.setattr("attnbook.attention.causal_mask", refuse)
    x = torch.randn(2, 3, 5, 4)
    assert attend("fused", x, x, x, causal=True).shape == x.shape
    assert attend("fused", x[:, :, -1:], x, x, causal=True).shape == (2, 3, 1, 4)


@pytest.mark.parametrize("scale", [0.3, 0.0, -0.3])
@pytest.mark.parametrize("n_queries", [1, 2, 5])
def test_causal_paths_agree_for_every_scale(n_queries, scale):
    x = torch.randn(1, 2, 5, 4)  # of 4 dimensions: a kernel of its own
    tensors, options = (x[:, :, :n_queries], x, x), {"causal": True, "scale": scale}
    assert_near(attend("fused", *tensors, **options), attend("explicit", *tensors, **options))


@pytest.mark.parametrize(("asks", "asked", "scale"), [(40, 40, None), (3000, 1e-3, 100.0)])
@on_both_paths
def test_float16_does_not_overflow_in_either_order(path, asks, asked, scale):
    query, key = (torch.full((1, 1, 3, 64), x, dtype=torch.float16) for x in (asks, asked))
    value = torch.randn(1, 1, 3, 64, dtype=torch.float16)
    mean = value.float().mean(dim=-2, keepdim=True).expand(1, 1, 3, 64)
    assert_near(attend(path, query, key, value, scale=scale).float(), mean, 1e-2)


@pytest.mark.parametrize("n_kv_heads", [2, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_drops_weights_and_scales_up_the_rest(masked, n_kv_heads):
    query, key = torch.randn(2, 100, 4), torch.randn(n_kv_heads, 100, 4)
    mask, value = torch.arange(100) < 90 if masked else None, torch.ones(n_kv_heads, 100, 1)
    tensors, options = (query, key, value, mask), {"dropout": 0.25}
    output, weights = scaled_dot_product_attention(*tensors, **options, return_weights=True)
    _, kept = scaled_dot_product_attention(*tensors, return_weights=True)
    dropped = weights[kept != 0] == 0
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert_near(weights, (kept / 0.75).masked_fill(weights == 0, 0.0))
    assert_near(output, weights @ value.expand(2, -1, -1))
    sums = scaled_dot_product_attention(*tensors, **options)
    assert sums.std() > 0.01
    assert sums.mean().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@on_both_paths
def test_vmap_over_calls_equals_a_loop(path):
    tensors = torch.randn(3, 6, 2, 4, 5, 8)
    masks = torch.rand(6, 5, 5) < 0.7
    mapped = torch.vmap(lambda *args: attend(path, *args))(*tensors, masks)
    each = [attend(path, *tensors[:, i], masks[i]) for i in range(6)]
    assert_near(mapped, torch.stack(each))


@on_both_paths
def test_a_bias_wider_than_the_queries_is_rounded_to_them(path):
    tensors = torch.randn(3, 1, 2, 5, 8).bfloat16()
    bias = torch.randn(2, 5, 5, dtype=torch.float32)
    output = attend(path, *tensors, bias=bias)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, attend(path, *tensors, bias=bias.bfloat16()))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", ["mask", "bias"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "cure"),
    [
        ((2, 6, 6), r"sequence is (mask|bias)\[:, None\]$"),
        ((2, 1, 6), r"sequence is (mask|bias)\[:, None\]$"),
        ((2, 6), r"tokens is (mask|bias)\[:, None, None\]$"),
        ((7,), r"got \(7,\)$"),
        ((6, 7), r"got \(6, 7\)$"),
        ((2, 1, 1, 5), r"got \(2, 1, 1, 5\)$"),
        ((3, 1, 6, 6), r"got \(3, 1, 6, 6\)$"),
        ((2, 3, 6, 6), r"got \(2, 3, 6, 6\)$"),
        ((1, 2, 4, 6, 6), r"got \(1, 2, 4, 6, 6\)$"),
    ],
)
@on_both_paths
def test_what_does_not_broadcast_is_refused_and_the_cure_is_named(path, shape, cure, causal, kind):
    module, x = MultiHeadAttention(32, 4, n_kv_heads=2), torch.randn(2, 6, 32)
    given = torch.ones(shape) if kind == "bias" else torch.ones(shape).bool()
    with pytest.raises(ValueError, match=cure) as caught:
        run(path, module, x, **{kind: given}, causal=causal)
    assert f"the {kind} must broadcast to (…, queries, keys) = (2, 4, 6, 6)" in str(caught.value)
    with pytest.raises(ValueError, match=r"= \(1, 4, 6, 6\), got \(2, 1, 6, 6\)"):
        run(path, module, x[:1], **{kind: given.new_ones(2, 1, 6, 6)}, causal=causal)


@on_both_paths
def test_a_mask_may_be_of_more_sequences_than_the_queries_as_the_keys_are(path):
    query, key = torch.randn(1, 4, 5, 8), torch.randn(3, 2, 7, 8)
    mask = torch.rand(3, 1, 1, 7) < 0.7
    expected = attend(path, query.expand(3, -1, -1, -1), key, key, mask)
    assert_near(attend(path, query, key, key, mask), expected)


# The module


def normed(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Divided by the root of the mean square."""
    return norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()


def head_by_head(
    module: MultiHeadAttention,
    x: Tensor,
    memory: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """The definition: each head with its own slices of the weights; output is the heads' sum.

    Query head h uses key head h // group. Returns the output and all heads' weights.
    """
    group, position = module.n_heads // module.n_kv_heads, module.position
    shape = len(x), module.n_heads, x.shape[1], memory.shape[1]
    added = torch.zeros(shape) if bias is None else bias.expand(shape)
    mask = torch.ones(shape).bool() if mask is None else mask.expand(shape)
    if isinstance(position, ALiBi):
        sides = {"bidirectional": position.bidirectional}
        added = added + slanted(module.n_heads, positions, positions, **sides)
    elif isinstance(position, Own):
        added = added + position.bias(module.n_heads, positions, positions, torch.float64)

    def project(linear: nn.Linear, tokens: Tensor, head: int, n_heads: int) -> Tensor:
        width = linear.out_features // n_heads
        own = slice(head * width, (head + 1) * width)
        projected = tokens @ linear.weight[own].T
        return projected if linear.bias is None else projected + linear.bias[own]

    output = torch.zeros(*x.shape)
    if module.output.bias is not None:
        output = output + module.output.bias
    all_weights = []
    for h in range(module.n_heads):
        q = project(module.query, x, h, module.n_heads)
        k = project(module.key, memory, h // group, module.n_kv_heads)
        v = project(module.value, memory, h // group, module.n_kv_heads)
        if module.query_norm is not None:
            q, k = normed(q, module.query_norm), normed(k, module.key_norm)
        if isinstance(position, Rotary):
            q, k = (turned(t[:, None], positions, position)[:, 0] for t in (q, k))
        elif isinstance(position, Own):
            q, k = (position.rotate(t[:, None], positions)[:, 0] for t in (q, k))
        logits = q @ k.mT / math.sqrt(q.shape[-1]) + added[:, h]
        weights = logits.masked_fill(~mask[:, h], -math.inf).softmax(-1).nan_to_num(0.0)
        own = slice(h * v.shape[-1], (h + 1) * v.shape[-1])
        output = output + weights @ v @ module.output.weight[:, own].T
        all_weights.append(weights)
    return output, torch.stack(all_weights, dim=1)


def needs_causal(position: Position | None) -> bool:
    return position == ALiBi()


@given(module=modules(), batch=st.integers(1, 3), tokens=st.integers(0, 5), data=st.data())
def test_self_attention_equals_a_loop_over_the_heads(module, batch, tokens, data):
    module, exact = rounded(module, data.draw(dtypes))
    x, full = tokens_for(module, batch, tokens), [batch, module.n_heads, tokens, tokens]
    causal = needs_causal(module.position) or data.draw(st.booleans())
    mask = bias = positions = None
    if data.draw(st.booleans()):
        mask = torch.rand(broadcastable(data.draw, full)) < data.draw(st.sampled_from([0.3, 0.7]))
    if data.draw(st.booleans()):
        bias = torch.randn(broadcastable(data.draw, full)).to(x.dtype)
        bias[torch.rand(bias.shape) < data.draw(st.sampled_from([0.0, 0.3]))] = -math.inf
    if data.draw(st.booleans()):
        positions = torch.randint(9, data.draw(st.sampled_from([(tokens,), (batch, tokens)])))
    allowed = combine_masks(mask, causal_mask(tokens) if causal else None)
    where = torch.arange(tokens) if positions is None else positions
    expected = head_by_head(exact, x.double(), x.double(), allowed, bias, where)
    options = {"mask": mask, "bias": bias, "causal": causal, "positions": positions}
    for result, theirs in zip(module(x, **options, return_weights=True), expected, strict=True):
        assert result.dtype == x.dtype
        assert_rounded(result, theirs)
    fused = module(x, **options)
    assert fused.dtype == x.dtype
    assert_rounded(fused, expected[0])


@with_every_position
@on_both_paths
def test_bias_of_a_call_is_added_to_that_of_the_position(path, position):
    module = MultiHeadAttention(8, 4, n_kv_heads=2, d_head=4, position=position)
    x, bias = torch.randn(2, 5, 8), torch.randn(2, 4, 5, 5)
    expected, _ = head_by_head(module, x, x, causal_mask(5), bias, torch.arange(5))
    assert_near(run(path, module, x, bias=bias, causal=True), expected)


@given(
    module=modules(positions=[None], other_memory=True),
    queries=st.integers(1, 4),
    more=st.integers(-3, 3),
    data=st.data(),
)
def test_cross_attention_equals_a_loop_over_the_heads(module, queries, more, data):
    keys = max(0, queries + more)
    module, exact = rounded(module, data.draw(dtypes))
    x, memory = tokens_for(module, 2, queries), memory_for(module, 2, keys)
    causal, full = keys >= queries and data.draw(st.booleans()), [2, module.n_heads, queries, keys]
    mask = torch.rand(broadcastable(data.draw, full)) < data.draw(st.sampled_from([0.3, 0.7, 1.0]))
    bias = torch.randn(broadcastable(data.draw, full)).to(x.dtype)
    ahead = combine_masks(mask, causal_mask(queries, keys) if causal else None)
    expected = head_by_head(exact, x.double(), memory.double(), ahead, bias, torch.arange(0))
    explicit = module(x, memory, mask, bias=bias, causal=causal, return_weights=True)
    for result, theirs in zip(explicit, expected, strict=True):
        assert_rounded(result, theirs)
    assert_rounded(module(x, memory, mask, bias=bias, causal=causal), expected[0])


@pytest.mark.parametrize(
    ("position", "cross"), [*((position, False) for position in POSITIONS), (None, True)]
)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_gradients_of_the_module_equal_finite_differences(position, cross, qk_norm):
    path = "explicit" if position == Rotary() else "fused"  # the function's tests have both
    options = {"n_kv_heads": 2, "d_head": 4, "d_value": 1, "bias": True, "position": position}
    module = with_random_biases(MultiHeadAttention(3, 4, **options, qk_norm=qk_norm))
    inputs = [torch.randn(2, 2, 3, requires_grad=True) for _ in range(1 + cross)]
    bias = torch.randn(4, 2, 2, requires_grad=True)
    mask = torch.tensor([[[[1, 1]]], [[[0, 1]]]]).bool()  # with causal: an empty row
    assert_gradients_are_finite_differences(
        lambda: run(path, module, *inputs, mask=mask, bias=bias, causal=True),
        *(*inputs, bias, *module.parameters()),
    )


@pytest.mark.parametrize("position", POSITIONS)
@on_both_paths
def test_padded_sequences_equal_each_alone(path, position):
    module, lengths = MultiHeadAttention(8, 2, position=position), [2, 5, 3]
    sequences = [torch.randn(1, n, 8) for n in lengths]
    for left in (True, False):
        pads = [(0, 0, *((5 - n, 0) if left else (0, 5 - n))) for n in lengths]
        x = torch.cat([nn.functional.pad(s, p) for s, p in zip(sequences, pads, strict=True)])
        real = torch.stack([torch.arange(5) >= 5 - n for n in lengths])
        real = real if left else real.flip(-1)
        positions = (real.cumsum(-1) - 1).clamp(min=0)
        mask = real[:, None, None]
        outputs = run(path, module, x, mask=mask, causal=True, positions=positions)
        for output, keep, sequence in zip(outputs, real, sequences, strict=True):
            alone = run(path, module, sequence, causal=True)[0]
            assert_near(output[keep], alone)


@on_both_paths
@in_every_dtype
def test_token_that_may_attend_to_nothing_gets_the_output_bias(path, dtype):
    module = with_random_biases(MultiHeadAttention(8, 4, n_kv_heads=2, bias=True)).to(dtype)
    x = torch.randn(2, 3, 8, dtype=dtype, requires_grad=True)
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    mask[0, :, 1], mask[1] = False, False
    output = run(path, module, x, mask=mask)
    assert torch.equal(output[0, 1], module.output.bias)
    assert torch.equal(output[1], module.output.bias.expand(3, 8))
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *module.parameters()))
    assert not x.grad[1].any()


def test_norms_change_no_draw_and_no_name_of_the_rest():
    torch.manual_seed(1)
    plain = MultiHeadAttention(8, 2, bias=True)
    torch.manual_seed(1)
    state = MultiHeadAttention(8, 2, bias=True, qk_norm=True).state_dict()
    assert list(state)[:-2] == list(plain.state_dict())
    assert all(torch.equal(state[name], x) for name, x in plain.state_dict().items())


def test_sizes_are_those_of_the_table():
    def shapes(module: MultiHeadAttention) -> list[tuple[int, ...]]:
        return [tuple(module.get_submodule(name).weight.shape) for name in LINEARS]

    module = MultiHeadAttention(10, 6, n_kv_heads=3, d_head=4, d_value=5, d_memory=7)
    assert shapes(module) == [(24, 10), (12, 7), (15, 7), (10, 30)]
    names = ["d_model", "d_memory", "n_heads", "n_kv_heads", "d_head", "d_value", "dropout"]
    assert [getattr(module, name) for name in names] == [10, 7, 6, 3, 4, 5, 0.0]
    assert module.position is None
    module = MultiHeadAttention(12, 4)
    assert shapes(module) == [(12, 12)] * 4
    assert [getattr(module, name) for name in names] == [12, 12, 4, 4, 3, 3, 0.0]
    assert shapes(MultiHeadAttention(12, 4, d_head=5)) == [(20, 12)] * 3 + [(12, 20)]


def test_print_shows_what_no_part_shows():
    module = MultiHeadAttention(12, 4, n_kv_heads=2, dropout=0.1, position=ALiBi())
    shown = "n_heads=4, n_kv_heads=2, dropout=0.1, position=ALiBi(bidirectional=False)"
    assert str(module).splitlines()[1].strip() == shown


@pytest.mark.parametrize(
    ("options", "which"),
    [
        ({}, []),
        ({"bias": False}, []),
        ({"bias": True}, LINEARS),
        ({"bias": "qkv"}, LINEARS[:3]),
        ({"bias": "output"}, LINEARS[3:]),
    ],
)
def test_matrices_start_as_glorot_and_biases_as_zeros(options, which):
    sizes = {"n_kv_heads": 5, "d_head": 30, "d_value": 20, "d_memory": 50}
    module = MultiHeadAttention(100, 10, **sizes, **options)
    assert [n for n in LINEARS if module.get_submodule(n).bias is not None] == which
    for linear in module.children():
        assert linear.bias is None or not linear.bias.any()
        bound = math.sqrt(6 / sum(linear.weight.shape))
        assert bound * 0.99 < linear.weight.abs().max().item() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


@on_both_paths
def test_module_drops_weights_in_training_only(path):
    module, x = MultiHeadAttention(12, 3, dropout=0.5), torch.randn(2, 6, 12)
    assert not torch.equal(run(path, module, x), run(path, module, x))
    _, weights = module(x, return_weights=True)
    assert (weights == 0).double().mean().item() == pytest.approx(0.5, abs=0.15)
    module.eval()
    assert torch.equal(run(path, module, x), run(path, module, x))
    assert_near(module(x, return_weights=True)[1].sum(-1), torch.ones(2, 3, 6))


@with_every_position
@on_every_device
def test_outputs_are_where_the_inputs_are(position, device):
    for where in (device, "meta"):
        module = MultiHeadAttention(8, 2, position=position).to(where)
        x = torch.randn(2, 3, 8, device=where)
        output, weights = module(x, causal=True, return_weights=True)
        devices = {output.device.type, weights.device.type, module(x, causal=True).device.type}
        assert devices == {where}
        assert weights.shape == (2, 2, 3, 3)


@with_every_position
@on_both_paths
def test_module_under_autocast_is_near(path, position):
    module, x = MultiHeadAttention(8, 2, position=position).float(), torch.randn(1, 6, 8).float()
    bias = torch.randn(2, 6, 6).float()
    bias[0, 2] = -math.inf
    with torch.autocast("cpu", torch.bfloat16):
        output = run(path, module, x, bias=bias, causal=True)
        steps = step_by_step(path, module, x, [4, 2], bias=bias)
        assert module(x.bfloat16(), causal=True).dtype == output.dtype == torch.bfloat16
    expected = module(x, bias=bias, causal=True)
    assert_near(output.float(), expected, 0.1)
    assert_near(steps.float(), expected, 0.1)


def test_projection_may_be_any_module():
    module, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    expected = module(x)
    for name in LINEARS:
        module.set_submodule(name, nn.Sequential(module.get_submodule(name)))
    assert torch.equal(module(x), expected)


# The cache


def step_by_step(
    path: str,
    module: MultiHeadAttention,
    x: Tensor,
    chunks: list[int],
    max_tokens: int | None = None,
    **options: Tensor | None,
) -> Tensor:
    """Outputs of all tokens, so many at a time; rows and columns of mask and bias as they come."""
    cache, outputs, start = KeyValueCache(max_tokens), [], 0
    for size in chunks:
        end, now = start + size, {}
        for name, full in options.items():
            now[name] = full if full is None else full[..., :end]
            if full is not None and name != "positions" and full.shape[-2] > 1:
                now[name] = full[..., start:end, :end]
        outputs.append(run(path, module, x[:, start:end], **now, causal=True, cache=cache))
        start = end
        assert len(cache) == end
    return torch.cat(outputs, dim=1)


@given(
    module=modules(),
    chunks=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    batch=st.integers(1, 3),
    free=st.integers(0, 2),
    kinds=st.tuples(*[st.sampled_from(["none", "keys", "queries", "all"])] * 3),
    seed=seeds,
    dtype=dtypes,
    path=paths,
)
def test_cache_equals_full_pass(path, module, chunks, batch, free, kinds, seed, dtype):
    torch.manual_seed(seed)
    tokens = sum(chunks)
    x = tokens_for(module.to(dtype), batch, tokens)
    shapes = {
        "keys": (batch, 1, 1, tokens),
        "queries": (tokens, tokens),
        "all": (batch, module.n_heads, tokens, tokens),
    }
    options: dict[str, Tensor | None] = {
        "mask": torch.rand(shapes[kinds[0]]) < 0.6 if kinds[0] in shapes else None,
        "bias": torch.randn(shapes[kinds[1]]).to(dtype) if kinds[1] in shapes else None,
        "positions": {
            "queries": torch.randint(9, (tokens,)),
            "all": torch.randint(9, (batch, tokens)),
        }.get(kinds[2]),
    }
    expected = run(path, module, x, causal=True, **options)
    assert_rounded(step_by_step(path, module, x, chunks, **options), expected)
    with torch.no_grad():
        allocated = step_by_step(path, module, x, chunks, tokens + free, **options)
    assert_rounded(allocated, expected)


def test_gradients_through_a_cache_equal_those_without():
    module = MultiHeadAttention(8, 4, n_kv_heads=2, position=Rotary(fraction=1.0))
    x = torch.randn(2, 5, 8, requires_grad=True)
    inputs, direction = (x, *module.parameters()), torch.randn(2, 5, 8)
    with_cache = step_by_step("fused", module, x, [2, 1, 2])
    gradients = torch.autograd.grad(with_cache, inputs, direction)
    expected = torch.autograd.grad(module(x, causal=True), inputs, direction)
    for one, another in zip(gradients, expected, strict=True):
        assert_near(one, another)


@pytest.mark.parametrize("position", [p for p in POSITIONS if not needs_causal(p)])
def test_without_a_causal_mask_new_tokens_see_each_other(position):
    module, cache = MultiHeadAttention(8, 2, position=position), KeyValueCache()
    x = torch.randn(2, 5, 8)
    module(x[:, :2], cache=cache)
    assert_near(module(x[:, 2:], cache=cache), module(x)[:, 2:])


@pytest.mark.parametrize("qk_norm", [False, True])
def test_cache_holds_rotated_keys_and_the_values_of_its_own_heads(qk_norm):
    sizes = {"n_kv_heads": 2, "d_value": 3, "qk_norm": qk_norm}
    module = MultiHeadAttention(16, 4, **sizes, position=Rotary())
    cache, x = KeyValueCache(), torch.randn(2, 6, 16)
    module(x[:, :4], cache=cache)
    module(x[:, 4:], cache=cache)
    keys = module.key(x).unflatten(-1, (2, 4)).transpose(1, 2)
    keys = normed(keys, module.key_norm) if qk_norm else keys
    assert_near(cache.key, Rotary().rotate(keys, torch.arange(6)))
    assert_near(cache.value, module.value(x).unflatten(-1, (2, 3)).transpose(1, 2))


either_cache = pytest.mark.parametrize("max_tokens", [None, 5, 7])


@either_cache
def test_cache_appends_cuts_and_reorders(max_tokens):
    cache, key, value = KeyValueCache(max_tokens), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    cache.cut(0)
    cache.cut(2)
    cache.reorder(torch.tensor([0]))
    assert len(cache) == 0
    assert cache.key is cache.value is None
    for start, end in [(0, 2), (2, 2), (2, 5)]:
        keys, values = cache.append(key[:, :, start:end], value[:, :, start:end])
        assert keys is cache.key
        assert values is cache.value
        assert torch.equal(keys, key[:, :, :end])
        assert torch.equal(values, value[:, :, :end])
        assert len(cache) == end
    assert repr(cache) == "KeyValueCache(5 tokens)"
    order = torch.tensor([1, 1, 0])
    cache.reorder(order)
    cache.cut(9)  # nothing to cut
    cache.cut(3)
    assert len(cache) == 3
    assert torch.equal(cache.key, key[order, :, :3])
    assert torch.equal(cache.value, value[order, :, :3])
    cache.append(key[order, :, 3:] + 1, value[order, :, 3:] + 1)  # what was cut is written over
    assert torch.equal(cache.key, torch.cat([key[:, :, :3], key[:, :, 3:] + 1], dim=2)[order])
    cache.cut(0)
    assert cache.key is cache.value is None
    assert cache.nbytes == 0
    cache.append(key[:1], value[:1])  # a run of another batch
    assert torch.equal(cache.value, value[:1])


def test_memory_is_allocated_once_and_is_the_formula():
    module, cache = MultiHeadAttention(32, 4, n_kv_heads=2, position=Rotary()), KeyValueCache(9)
    module, x, places = module.float(), torch.randn(3, 9, 32, dtype=torch.float32), set()
    with torch.no_grad():
        for part in x.split([4, 1, 1, 3], dim=1):
            module(part, causal=True, cache=cache)
            assert cache.nbytes == 2 * 3 * 2 * 9 * 8 * 4  # keys and values, float32
            places.add((cache.key.data_ptr(), cache.value.data_ptr()))
    assert len(places) == 1
    concatenated = KeyValueCache()
    concatenated.append(cache.key, cache.value)
    concatenated.append(cache.key, cache.value)
    assert concatenated.nbytes == 2 * cache.nbytes


@pytest.mark.parametrize(
    ("batch", "new", "message"),
    [(2, 3, "takes 2 more tokens, got 3"), (1, 1, r"= \(2, 1, 4, .*, got \(1, 1, 4, ")],
)
def test_what_has_no_memory_is_refused(batch, new, message):
    cache = KeyValueCache(5)
    cache.append(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4))
    with pytest.raises(ValueError, match=message):
        cache.append(torch.randn(batch, 1, new, 4), torch.randn(batch, 1, new, 4))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("changed", ["key", "value"])
@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(2, 1, 1, 4),  # one head into two
        torch.zeros(1, 2, 1, 4),  # one sequence into two
        torch.zeros(2, 2, 2, 4),  # as many keys as values
        torch.zeros(2, 2, 1, 1),
        torch.full((2, 2, 1, 4), 1e6, dtype=torch.float32),  # infinite in half precision
    ],
)
@either_cache
def test_what_would_be_broadcast_or_rounded_into_the_cache_is_refused(max_tokens, other, changed):
    cache, held = KeyValueCache(max_tokens), torch.randn(2, 2, 3, 4).half()
    cache.append(held, held)
    new = {"key": held[:, :, :1], "value": held[:, :, :1]} | {changed: other}
    if other.dtype == torch.float64:
        new[changed] = other.half()
    with pytest.raises(ValueError, match=r"^(the cache holds|keys and values must) .*, got|got \("):
        cache.append(**new)
    assert torch.equal(cache.key, held)
    assert torch.equal(cache.value, held)


def test_backward_through_memory_that_was_written_over_is_an_error():
    module, cache = MultiHeadAttention(8, 2), KeyValueCache(2)
    x = torch.randn(1, 2, 8)
    steps = [module(x[:, t : t + 1], causal=True, cache=cache) for t in range(2)]
    with pytest.raises(RuntimeError, match="inplace operation"):
        torch.cat(steps, dim=1).sum().backward()


@either_cache
@with_every_position
def test_attention_goes_on_after_a_cut_and_a_new_order(position, max_tokens):
    module, cache = MultiHeadAttention(8, 2, position=position), KeyValueCache(max_tokens)
    x, order = torch.randn(3, 5, 8), torch.tensor([2, 0, 0, 1])
    module(x, causal=True, cache=cache)
    cache.cut(2)
    cache.reorder(order)
    new = torch.randn(4, 3, 8)
    whole = module(torch.cat([x[order, :2], new], dim=1), causal=True)
    assert_near(module(new, causal=True, cache=cache), whole[:, 2:])


@given(
    module=modules(positions=[None], other_memory=True),
    chunks=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    keys=st.integers(0, 4),
    seed=seeds,
    path=paths,
)
def test_keys_of_a_memory_are_computed_once(path, module, chunks, keys, seed):
    torch.manual_seed(seed)
    cache, runs = KeyValueCache(), []
    for linear in (module.key, module.value):
        linear.register_forward_hook(lambda *_: runs.append(1))
    x, memory = tokens_for(module, 2, sum(chunks)), memory_for(module, 2, keys)
    mask = torch.rand(2, 1, 1, keys) < 0.7
    steps = [run(path, module, part, memory, mask, cache=cache) for part in x.split(chunks, 1)]
    assert len(runs) == 2
    assert len(cache) == keys
    assert_rounded(torch.cat(steps, dim=1), run(path, module, x, memory, mask))
    cache.reorder(order := torch.tensor([1, 1]))
    again = run(path, module, x, memory[order], mask[order], cache=cache)
    assert_rounded(again, run(path, module, x, memory[order], mask[order]))


# Refusals

X = torch.zeros(1, 3, 8, dtype=torch.float64)
H = torch.zeros(1, 8, 3, 8, dtype=torch.float64)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda path: attend(path, X, X, X[:, :2]), ValueError, "3 keys but 2 values"),
        (lambda path: attend(path, X, X, X, X[0, :, :3]), TypeError, "boolean.* got torch.float64"),
        (
            lambda path: run(path, MultiHeadAttention(8, 2), X, X, X),
            *(TypeError, r"takes no values: attention\(query, memory\)"),
        ),
        (
            lambda path: attend(path, X, X, X, np.ones((3, 3), bool)),
            *(TypeError, r"got a numpy.ndarray: write torch.as_tensor\(mask\)"),
        ),
        (
            lambda path: attend(path, X, X[:, :2], X[:, :2], causal=True),
            *(ValueError, "as many keys as queries, got 3 queries and 2 keys"),
        ),
        (
            lambda path: attend(path, X[:, :1], X[:, :0], X[:, :0], causal=True),
            *(ValueError, "as many keys as queries, got 1 queries and 0 keys"),
        ),
        (
            lambda path: attend(path, H[:, :4], H[:, :2], H[:, :4]),
            *(ValueError, r"as many heads, got \(1, 2, 3, 8\) and \(1, 4, 3, 8\)"),
        ),
        *(
            (
                lambda path, n=n: attend(path, H[:, :4], H[:, :n], H[:, :n]),
                *(ValueError, rf"key heads must divide query heads, got \(1, {n}, 3, 8\) for"),
            )
            for n in (0, 3, 8)
        ),
        (
            lambda path: attend(path, H[0, :4], H[0, 0], H[0, 0]),
            *(ValueError, r"divide query heads, got \(3, 8\) for \(4, 3, 8\)"),
        ),
        *(
            (
                lambda path, p=p: attend(path, X, X, X, dropout=p),
                *(ValueError, f"dropout must be from 0 to 1, got {p}"),
            )
            for p in (1.5, -0.1, math.nan)
        ),
        (lambda _: attention_weights(X, X), TypeError, "boolean.* got torch.float64"),
        (
            lambda path: attend(path, X, X, X, bias=X[0, :, :3] == 0),
            *(TypeError, "a bias is numbers, got torch.bool: True = may attend is mask="),
        ),
        *(
            (
                lambda path, given=given: attend(path, X, X, X, **given),
                ValueError,
                "on meta, .* on cpu",
            )
            for given in (
                {"mask": torch.ones(3, 3, device="meta") > 0},
                {"bias": torch.ones(3, 3, device="meta")},
            )
        ),
        *(
            (
                lambda path, name=name: MultiHeadAttention(8, 2)(X, **{name: X[..., 0] == 0}),
                *(TypeError, f"no argument is called {name}: {write}"),
            )
            for name, write in {
                "key_padding_mask": r"write mask=~key_padding_mask\[:, None, None\]",
                "attn_mask": "write mask=~attn_mask",
                "need_weights": "write return_weights=",
                "value": r"values are made .* attention\(query, memory\)",
                "masks": r"see help\(",
            }.items()
        ),
        *(
            (
                lambda _, name=name, value=value: MultiHeadAttention(8, 2, **{name: value}),
                *(ValueError, f"{name} must .*, got {value}"),
            )
            for name, value in [
                *((size, 0) for size in ("d_head", "d_value", "d_memory", "n_kv_heads")),
                *(("d_head", -2), ("dropout", 1.5), ("dropout", math.nan), ("norm_eps", -1e-5)),
            ]
        ),
        (lambda _: MultiHeadAttention(0, 2), ValueError, "d_model must be at least 1, got 0"),
        (lambda _: MultiHeadAttention(8, 0), ValueError, "n_heads must be at least 1, got 0"),
        (lambda _: MultiHeadAttention(8, 3), ValueError, "divide d_model, got 3 heads for 8"),
        (
            lambda _: MultiHeadAttention(8, 4, n_kv_heads=3),
            *(ValueError, "divide n_heads, got 3 key heads for 4"),
        ),
        (lambda _: MultiHeadAttention(8, 2, bias="kv"), ValueError, "'qkv' or 'output', got 'kv'"),
        (
            lambda path: run(path, MultiHeadAttention(8, 2, position=Rotary()), X, X),
            *(ValueError, "Rotary.* one sequence, got a memory"),
        ),
        (
            lambda path: run(path, MultiHeadAttention(8, 2, position=ALiBi()), X, mask=X[0] == 0),
            *(ValueError, r"ALiBi\(bidirectional=False\) is for causal .*causal=True"),
        ),
    ],
)
@on_both_paths
def test_refusal_says_what_was_given_and_expected(path, call, error, message):
    with pytest.raises(error, match=message):
        call(path)
