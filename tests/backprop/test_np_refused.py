"""What does not fit is refused in words, and never broadcast into wrong numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attnbook import ModelConfig, RotaryScaling, TransformerConfig
from attnbook import backprop as bp

pytestmark = pytest.mark.usefixtures("without_shape_checks")
RNG = np.random.default_rng(0)
CONFIG = {"vocab_size": 5, "d_model": 8, "n_heads": 2, "max_tokens": 9}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers)


def yes(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=bool)


def weights() -> list[bp.Parameter]:
    return [bp.Parameter(ones(2))]


def model(**changes: object) -> bp.LanguageModel:
    return bp.LanguageModel(ModelConfig(**(CONFIG | changes)))


def heads(*sizes: int, **options: object) -> bp.MultiHeadAttention:
    return bp.MultiHeadAttention(*sizes, **options)


def attend(**changed: object) -> None:
    tensors = {"query": ones(2, 5, 3), "key": ones(2, 7, 3), "value": ones(2, 7, 6)}
    bp.scaled_dot_product_attention(**(tensors | changed))


def backward(**changed: np.ndarray) -> None:
    tensors = {"query": ones(2, 5, 3), "key": ones(2, 7, 3), "value": ones(2, 7, 6)}
    more = {"gradient": ones(2, 5, 6), "weights": ones(2, 5, 7)}
    bp.scaled_dot_product_attention_backward(**(tensors | more | changed))


def check(forward: Callable, gradients: Callable = lambda g, x: {"x": 0 * x}, x: float = 1) -> None:
    bp.check_gradient(forward, gradients, x=np.array([x, 2.0]))


def check_named(**given: Any) -> None:
    bp.check_gradient(lambda **_: ones(2), lambda g, **_: {}, **given)


def norm_backward(*shape: int) -> None:
    bp.LayerNorm(4).backward(ones(*shape), bp.LayerNorm(4).forward(ones(2, 4))[1])


# The call, what was given and what was expected: the message has both.
REFUSED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: bp.linear_backward(ones(5, 2, 3), ones(2, 5, 4), ones(3, 4)), "(5, 2, 3)", "(2, 5, 3"),
    (lambda: bp.relu_backward(ones(1, 4), ones(3, 4)), "gradient has shape (1, 4)", "(3, 4)"),
    (lambda: bp.gelu_backward(ones(4), ones(3, 4)), "gradient has shape (4,)", "(3, 4)"),
    (lambda: bp.gelu_tanh_backward(ones(4), ones(3, 4)), "gradient has shape (4,)", "(3, 4)"),
    (lambda: norm_backward(2, 1), "gradient has shape (2, 1)", "(2, 4)"),
    (lambda: bp.embedding_backward(ones(2), ids(0, 1, 0), 4), "gradient has shape (2,)", "(3, 2)"),
    (lambda: bp.softmax_backward(ones(3), ones(2, 3)), "gradient has shape (3,)", "(2, 3)"),
    (lambda: backward(gradient=ones(5, 6)), "gradient has shape (5, 6)", "(2, 5, 6)"),
    (lambda: backward(weights=ones(5, 7)), "weights has shape (5, 7)", "(2, 5, 7)"),
    (lambda: backward(key=ones(2, 7, 4)), "key has (2, 7, 4)", "query has shape (2, 5, 3)"),
    (lambda: attend(value=ones(2, 6, 6)), "value has shape (2, 6, 6)", "(2, 7, 6)"),
    (lambda: attend(query=ones(3, 2, 5, 3)), "leading dimensions (3, 2)", "key has (2,)"),
    (lambda: attend(query=ones(3, 5, 3)), "query has 3 heads", "multiple of the 2 of key"),
    (lambda: attend(query=ones(2, 8, 3), causal=True), "8 queries and 7 keys", "as many keys as"),
    (lambda: attend(mask=yes(2, 6, 7)), "mask of shape (2, 6, 7)", "(2, 5, 7)"),
    (lambda: attend(mask=ones(5, 7)), "an array of float64", "mask must be boolean"),
    (lambda: bp.softmax(ones(2, 3), yes(4, 2, 3)), "mask of shape (4, 2, 3)", "(2, 3)"),
    (lambda: bp.softmax(ones(1, 4), ones(4)), "an array of float64", "mask must be boolean"),
    (lambda: bp.dropout(ones(4), yes(3, 4), 0.5), "kept of shape (3, 4)", "(4,)"),
    (lambda: bp.dropout(ones(2), ones(2), 0.5), "an array of float64", "kept must be boolean"),
    (lambda: bp.dropout(ones(2), yes(2), 1.0), "got 1.0", "probability must be in [0, 1)"),
    (lambda: bp.LayerNorm(4).forward(ones(2, 1)), "weight has shape (4,)", "(1,)"),
    (lambda: bp.layer_norm(ones(2, 4), ones(4), ones(2, 4)), "bias has shape (2, 4)", "(4,)"),
    (
        lambda: bp.layer_norm_backward(ones(4, 4), ones(4), ones(4, 4), ones(4)),
        "inverse has shape (4,)",
        "(4, 1)",
    ),
    (lambda: bp.linear(ones(2, 3), ones(4, 3), ones(2, 4)), "bias has shape (2, 4)", "(4,)"),
    (lambda: bp.FeedForward(4, 0), "got 4 and 0", "must be positive"),
    (lambda: bp.FeedForward(4, 8, activation="swish"), "'swish'", "relu, gelu, gelu_tanh"),
    (lambda: bp.Residual(4, norm="sandwich"), "'sandwich'", "'pre', 'post' or 'none'"),
    (lambda: heads(10, 4), "4 heads for 10", "n_heads must divide d_model"),
    (lambda: heads(12, 4, n_kv_heads=3), "3 key heads for 4", "n_kv_heads must divide"),
    (lambda: heads(12, 4, bias="all"), "'all'", "True, False, 'qkv' or 'output'"),
    (lambda: heads(8, 2).forward(ones(2, 5, 8), ones(1, 3, 8)), "memory of 1", "batch of 2"),
    (lambda: heads(8, 2).forward(ones(5, 8)), "got (5, 8)", "x must have shape (batch, tokens, 8)"),
    (
        lambda: heads(8, 2, d_memory=6).forward(ones(2, 5, 8), ones(2, 5, 8)),
        "got (2, 5, 8)",
        "memory must have shape (batch, tokens, 6)",
    ),
    (lambda: heads(8, 2, d_memory=6).forward(ones(2, 5, 8)), "x has 8", "width 6 is needed"),
    (lambda: bp.sinusoidal_positions(5, 7), "got 7", "even"),
    (lambda: bp.embedding(ids(2, 4), ones(4, 3)), "got 2 to 4", "ids must be in 0 … 3"),
    (lambda: bp.embedding(ids(2, -1), ones(4, 3)), "got -1 to 2", "ids must be in 0 … 3"),
    (lambda: bp.embedding_backward(ones(1, 2), ids(-1), 4), "got -1 to -1", "0 … 3"),
    (lambda: bp.embedding(np.array([True]), ones(2, 3)), "one of bool", "array of integers"),
    (lambda: bp.embedding([0, 1], ones(2, 3)), "a list", "ids must be an array of integers"),
    (lambda: bp.cross_entropy(ones(2, 3), ids(0)), "targets of shape (1,)", "(2,) targets"),
    (lambda: bp.cross_entropy(ones(2, 3), ids(0, 3)), "got 0 to 3", "targets must be in 0 … 2"),
    (lambda: bp.cross_entropy(ones(2, 3), ids(-100, -100)), "all 2 are -100", "no target is left"),
    (lambda: bp.cross_entropy(ones(2, 3), ones(2)), "one of float64", "array of integers"),
    (lambda: bp.cross_entropy_backward(ones(2, 3), ids(0)), "of shape (1,)", "(2,) targets"),
    (lambda: bp.cross_entropy_backward(ones(2, 3), ids(0, -1)), "got -1 to 0", "0 … 2"),
    (lambda: bp.Adam(iter([])), "the iterable is empty", "no parameters"),
    (lambda: bp.Adam(weights(), lr=-0.1), "got -0.1 and 1e-08", "not be negative"),
    (lambda: bp.Adam(weights(), betas=(0.9, 1.0)), "got (0.9, 1.0)", "betas must be in [0, 1)"),
    (lambda: check(lambda x: np.log(x), x=-1), "not finite", "choose another point"),
    (lambda: check(lambda x: np.sqrt(x), x=0), "not finite near x", "choose another point"),
    (lambda: check(lambda x: x, lambda g, x: (g,)), "a tuple", "gradients by name"),
    (lambda: check(lambda x: (x, x)), "a tuple", "forward must return an array"),
    (lambda: check(lambda x: 1j * x), "returns complex128", "must compute in float64"),
    (lambda: check(lambda x: x.astype("float32")), "returns float32", "must compute in float64"),
    (lambda: check(lambda x: x > 0), "returns bool", "must compute in float64"),
    (lambda: check_named(ids=ids(0, 1)), "got int64", "ids must be of floating-point numbers"),
    (lambda: check_named(mask=yes(2)), "got bool", "mask must be of floating-point numbers"),
    (lambda: check_named(x=1j * ones(2)), "got complex128", "x must be of floating-point numbers"),
    (lambda: check_named(seed=ones(2)), "seed is an option", "another name"),
    (lambda: check_named(tolerance=ones(2)), "tolerance is an option", "another name"),
    (lambda: check_named(x=ones(2), tolerance=math.nan), "got nan", "between 0 and 1"),
    (lambda: check_named(x=ones(2), tolerance=1.0), "got 1.0", "between 0 and 1"),
    (lambda: check_named(), "no tensors", "are given"),
    (
        lambda: bp.numerical_gradient(lambda x: 1.0, 1j * ones(2)),
        "got complex128",
        "floating-point",
    ),
    (lambda: model().forward(ids(1, 2)), "got (2,)", "ids must have shape (batch, tokens)"),
    (lambda: model().forward([[1, 2]]), "a list", "ids must be an array of integers"),
    (lambda: model().forward(np.zeros((1, 10), dtype=int)), "got 10", "9 tokens at most"),
    (lambda: bp.LanguageModel(TransformerConfig(5, padding_id=0)), "got 0", "padding_id must be"),
]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(("call", "given", "expected"), REFUSED)
def test_what_does_not_fit_is_refused(call, given, expected):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert given in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "setting",
    [
        *({"position": "alibi"}, {"position": "rotary"}, {"norm": "deepnorm"}, {"dropout": 0.1}),
        *({"norm_bias": False}, {"feed_forward_bias": False}, {"embedding_init": "unit"}),
        *({"activation": "swiglu"}, {"norm_kind": "rms"}, {"norm_eps": 0.1}, {"window": 3}),
        *({"final_norm": False}, {"d_head": 8}, {"embedding_norm": True}),
        *({"prediction_head": True}, {"qk_norm": True}, {"rotary_scaling": RotaryScaling(2.0)}),
    ],
    ids=str,
)
def test_settings_that_numpy_cannot_compute_are_refused(setting):
    [(name, value)] = setting.items()
    with pytest.raises(ValueError, match=f"^{name} must be .* in NumPy, got ") as caught:
        model(**setting)
    assert str(caught.value).endswith(repr(value))


def test_ids_of_a_model_are_checked_before_anything_changes():
    ours = model()
    ours.loss_and_gradients(np.array([[1, 2]]), np.array([[2, 1]]))
    before = ours.gradients()
    for given, targets in (([[1, 7]], [[1, 1]]), ([[1, 2]], [[1, 9]])):
        with pytest.raises(ValueError, match=r"must be in 0 … 4.* got 1 to [79]"):
            ours.loss_and_gradients(np.array(given), np.array(targets))
    assert before["embedding.weight"].any()
    for name, gradient in ours.gradients().items():
        assert np.array_equal(gradient, before[name])


def test_a_backward_pass_cannot_spoil_its_own_check():
    def forward(x: np.ndarray) -> np.ndarray:
        x *= x
        return x

    def backward(gradient: np.ndarray, x: np.ndarray, factor: float) -> dict[str, np.ndarray]:
        gradient *= factor * x
        return {"x": gradient}

    with pytest.raises(bp.GradientError, match=r"^x: "):
        bp.check_gradient(forward, lambda g, x: backward(g, x, 0.0), x=ones(5))
    assert bp.check_gradient(forward, lambda g, x: backward(g, x, 2.0), x=ones(5))["x"] < 1e-6
