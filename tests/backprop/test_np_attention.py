"""Attention's backward pass against automatic differentiation, finite differences, and by head."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from twins import assert_same_gradients, assert_same_module

import attnbook
from attnbook import backprop as bp
from strategies import (
    Call,
    assert_near,
    broadcastable,
    calls,
    seeds,
    sizes,
)


@given(leading=st.lists(sizes, max_size=2), queries=sizes, keys=sizes, data=st.data(), seed=seeds)
def test_softmax(leading, queries, keys, data, seed):
    rng = np.random.default_rng(seed)
    full = [*leading, queries, keys]
    density = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    mask = np.asarray(rng.random(broadcastable(data.draw, full)) < density)
    assert_same_gradients(
        lambda logits: bp.softmax(logits, mask),
        lambda gradient, logits: {
            "logits": bp.softmax_backward(gradient, bp.softmax(logits, mask))
        },
        lambda logits: attnbook.attention_weights(logits, torch.from_numpy(mask)),
        logits=rng.standard_normal(full),
    )


@given(calls())
def test_scaled_dot_product_attention(call):
    if call.bias is not None:
        call = Call(call.query, call.key, call.value, call.mask, None, call.causal, call.scale)
    mask = None if call.mask is None else call.mask.numpy()
    options: dict[str, Any] = {"causal": call.causal, "scale": call.scale}

    def backward(gradient: np.ndarray, **tensors: np.ndarray) -> dict:
        _, weights = bp.scaled_dot_product_attention(**tensors, mask=mask, **options)
        gradients = bp.scaled_dot_product_attention_backward(
            gradient, **tensors, weights=weights, scale=call.scale
        )
        return dict(zip(("query", "key", "value"), gradients, strict=True))

    assert_same_gradients(
        lambda **tensors: bp.scaled_dot_product_attention(**tensors, mask=mask, **options)[0],
        backward,
        lambda **tensors: attnbook.scaled_dot_product_attention(
            **tensors, mask=call.mask, **options
        ),
        query=call.query.numpy(),
        key=call.key.numpy(),
        value=call.value.numpy(),
    )


def test_a_query_that_sees_nothing_moves_nothing():
    rng = np.random.default_rng(0)
    query, key, value, upstream = rng.standard_normal((4, 3, 5))
    mask = np.array([[True, True, False], [False, False, False], [True, False, True]])
    output, weights = bp.scaled_dot_product_attention(query, key, value, mask)
    assert not output[1].any()
    gradients = bp.scaled_dot_product_attention_backward(upstream, query, key, value, weights)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[0][1].any()
    other = upstream.copy()
    other[1] += 1.0
    again = bp.scaled_dot_product_attention_backward(other, query, key, value, weights)
    for gradient, same in zip(gradients, again, strict=True):
        assert np.array_equal(gradient, same)


def test_one_key_leaves_query_and_key_without_a_gradient():
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, 5))
    _, weights = bp.scaled_dot_product_attention(query, key, value)
    d_query, d_key, d_value = bp.scaled_dot_product_attention_backward(
        rng.standard_normal((1, 5)), query, key, value, weights
    )
    assert not d_query.any()
    assert not d_key.any()
    assert d_value.all()


OPTIONS = [
    {},
    {"bias": True},
    {"bias": "qkv"},
    {"bias": "output"},
    {"n_kv_heads": 2, "bias": True},
    {"n_kv_heads": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention(options, causal, masked):
    mask = torch.rand(2, 1, 5, 5) < 0.6 if masked else None
    assert_same_module(
        bp.MultiHeadAttention(12, 4, **options),
        attnbook.MultiHeadAttention(12, 4, **options),
        {"x": torch.randn(2, 5, 12)},
        {"mask": mask, "causal": causal},
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_cross_attention_returns_the_gradient_of_the_memory(options):
    assert_same_module(
        bp.MultiHeadAttention(12, 4, d_memory=7, **options),
        attnbook.MultiHeadAttention(12, 4, d_memory=7, **options),
        {"x": torch.randn(2, 5, 12), "memory": torch.randn(2, 6, 7)},
        {"mask": torch.rand(2, 1, 1, 6) < 0.6},
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_one_head_after_another_is_all_heads_packed(options, causal):
    rng = np.random.default_rng(0)
    attention = bp.MultiHeadAttention(12, 4, **options)
    for parameter in attention.parameters():
        parameter.value[...] = rng.standard_normal(parameter.value.shape)
    x, upstream = rng.standard_normal((2, 2, 5, 12))
    mask = rng.random((2, 5, 5)) < 0.6
    output, gradients = bp.multi_head_attention_by_head(attention, x, upstream, mask, causal=causal)
    assert all(not parameter.grad.any() for parameter in attention.parameters())
    packed, saved = attention.forward(x, mask=mask[:, None], causal=causal)
    d_x, _ = attention.backward(upstream, saved)
    assert_near(torch.from_numpy(output), torch.from_numpy(packed), 1e-13)
    expected = {"x": d_x} | attention.gradients()
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert_near(torch.from_numpy(gradient), torch.from_numpy(expected[name]), 1e-12)


def test_other_widths_are_refused_by_the_types():
    with pytest.raises(TypeCheckError):
        bp.scaled_dot_product_attention(np.ones((5, 4)), np.ones((5, 3)), np.ones((5, 3)))


@pytest.mark.usefixtures("without_shape_checks")
def test_integers_and_lists_are_read_as_numbers():
    expected = bp.softmax(np.array([[1.0, 2.0, 3.0]]))
    assert np.array_equal(bp.softmax(np.array([[1, 2, 3]])), expected)
    assert bp.softmax(np.ones((1, 2), dtype=np.float32)).dtype == np.float32
    q = np.eye(3)
    everything, nothing = (bp.scaled_dot_product_attention(q, q, q, m) for m in (True, False))
    assert np.array_equal(everything[1], bp.scaled_dot_product_attention(q, q, q)[1])
    assert not nothing[1].any()
    for mask in ([True, True, False], np.array([True, True, False])):
        weights = bp.scaled_dot_product_attention(q, q, q, mask)[1]
        assert np.array_equal(weights[:, 2], np.zeros(3))
        assert np.allclose(weights, bp.softmax(q / 3**0.5, mask), rtol=1e-14)
    attention, ones = bp.MultiHeadAttention(8, 2), np.ones((1, 3, 8))
    for dtype in (np.int64, np.float32):
        output, gradients = bp.multi_head_attention_by_head(attention, ones.astype(dtype), ones)
        assert output.dtype == gradients["x"].dtype == np.float64
        assert np.allclose(output, attention.forward(ones)[0], rtol=1e-6)
