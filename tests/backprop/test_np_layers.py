"""Each backward pass against torch's automatic differentiation and finite differences."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from twins import assert_same_gradients

from attnbook import backprop as bp
from strategies import seeds

sizes = st.integers(1, 6)
shapes = st.lists(sizes, min_size=1, max_size=3)


@given(leading=shapes, d_in=sizes, d_out=sizes, bias=st.booleans(), seed=seeds)
def test_linear(leading, d_in, d_out, bias, seed):
    rng = np.random.default_rng(seed)
    tensors = {
        "x": rng.standard_normal((*leading, d_in)),
        "weight": rng.standard_normal((d_out, d_in)),
    }
    if bias:
        tensors["bias"] = rng.standard_normal(d_out)

    def backward(gradient: np.ndarray, x: np.ndarray, weight: np.ndarray, **_: np.ndarray) -> dict:
        gradients = bp.linear_backward(gradient, x, weight)
        return dict(zip(("x", "weight", "bias"), gradients, strict=True))

    assert_same_gradients(
        bp.linear, backward, lambda **t: F.linear(t["x"], t["weight"], t.get("bias")), **tensors
    )


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("relu", F.relu),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    ],
)
@given(shape=shapes, size=st.sampled_from([0.1, 1.0]), seed=seeds)
def test_activations(name, theirs, shape, size, seed):
    activate, activate_backward = bp.ACTIVATIONS[name]
    x = size * np.random.default_rng(seed).standard_normal(shape)
    x += 0.001 * np.sign(x)  # no difference reaches across the kink of the ReLU
    assert_same_gradients(
        activate,
        lambda gradient, x: {"x": activate_backward(gradient, x)},
        lambda x: theirs(x),
        x=x,
    )


def test_relu_has_no_gradient_at_zero():
    x = torch.zeros(3, requires_grad=True)
    F.relu(x).sum().backward()
    assert np.array_equal(bp.relu_backward(np.ones(3), np.zeros(3)), x.grad.numpy())


@given(leading=shapes, width=st.integers(2, 7), shift=st.sampled_from([0.0, 30.0]), seed=seeds)
def test_layer_norm(leading, width, shift, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*leading, width)) + shift
    weight, bias = rng.standard_normal((2, width))

    def backward(gradient: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> dict:
        _, saved = bp.layer_norm(x, weight, bias)
        names = ("x", "weight", "bias")
        return dict(zip(names, bp.layer_norm_backward(gradient, weight, *saved), strict=True))

    assert_same_gradients(
        lambda **t: bp.layer_norm(**t)[0],
        backward,
        lambda **t: F.layer_norm(t["x"], (width,), t["weight"], t["bias"]),
        differences=shift == 0.0 and width > 2,  # they are too coarse for the others
        x=x,
        weight=weight,
        bias=bias,
    )


@given(shape=shapes, probability=st.sampled_from([0.0, 0.1, 0.7]), seed=seeds)
def test_dropout_with_a_given_mask(shape, probability, seed):
    rng = np.random.default_rng(seed)
    kept = rng.random(shape) >= probability
    factor = torch.from_numpy(np.asarray(kept / (1 - probability)))
    assert_same_gradients(
        lambda x: bp.dropout(x, kept, probability),
        lambda gradient, x: {"x": bp.dropout(gradient, kept, probability)},
        lambda x: x * factor,
        x=rng.standard_normal(shape),
    )


@given(shape=shapes, vocab=st.integers(1, 5), factor=st.sampled_from([1.0, 8.0]), seed=seeds)
def test_embedding(shape, vocab, factor, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(vocab, size=shape)
    assert_same_gradients(
        lambda weight: bp.embedding(ids, weight, factor=factor),
        lambda gradient, weight: {
            "weight": bp.embedding_backward(gradient, ids, vocab, factor=factor)
        },
        lambda weight: F.embedding(torch.from_numpy(np.asarray(ids)), weight) * factor,
        weight=rng.standard_normal((vocab, 3)),
    )


def test_positions_are_those_of_the_torch_room():
    from attnbook import sinusoidal_positions

    theirs = sinusoidal_positions(50, 16).numpy()
    assert np.abs(bp.sinusoidal_positions(50, 16) - theirs).max() < 1e-15


@given(leading=shapes, vocab=st.integers(2, 6), left_out=st.booleans(), seed=seeds)
def test_cross_entropy(leading, vocab, left_out, seed):
    rng = np.random.default_rng(seed)
    shape = (*leading, 3)
    targets = rng.integers(vocab, size=shape)
    if left_out:
        targets[..., 1] = -100
    logits = 3 * rng.standard_normal((*shape, vocab))

    def backward(gradient: np.ndarray, logits: np.ndarray) -> dict:
        _, probabilities = bp.cross_entropy(logits, targets)
        return {"logits": gradient * bp.cross_entropy_backward(probabilities, targets)}

    assert_same_gradients(
        lambda logits: np.float64(bp.cross_entropy(logits, targets)[0]),
        backward,
        lambda logits: F.cross_entropy(logits.flatten(0, -2), torch.from_numpy(targets).flatten()),
        logits=logits,
    )


def test_huge_logits_have_a_finite_loss():
    loss, probabilities = bp.cross_entropy(np.array([[1e4, 0.0]]), np.array([1]))
    assert loss == 1e4
    assert np.isfinite(bp.cross_entropy_backward(probabilities, np.array([1]))).all()


def test_the_gradient_of_the_loss_hangs_on_no_memory_order():
    rng = np.random.default_rng(0)
    turned, targets = rng.standard_normal((3, 5, 7)).swapaxes(1, 2), rng.integers(5, size=(3, 7))
    targets[0, 1] = -100
    _, probabilities = bp.cross_entropy(turned, targets)
    assert not probabilities.flags.c_contiguous
    gradient = bp.cross_entropy_backward(probabilities, targets)
    expected = bp.cross_entropy_backward(np.ascontiguousarray(probabilities), targets)
    assert np.array_equal(gradient, expected)
    assert np.abs(gradient.sum(axis=-1)).max() < 1e-15


def test_an_infinite_gradient_stops_at_a_closed_relu():
    assert bp.relu_backward(np.array([np.inf]), np.array([-1.0])) == 0.0
