"""What does not fit is refused in words, and never broadcast into wrong numbers."""

from collections.abc import Callable

import numpy as np
import pytest

from attnbook import ModelConfig, TransformerConfig
from attnbook import backprop as bp
from strategies import refused

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape)


def weights() -> list[bp.Parameter]:
    return [bp.Parameter(ones(2))]


def attention_backward(**changed: np.ndarray) -> None:
    tensors = {
        "gradient": ones(2, 5, 6),
        "query": ones(2, 5, 3),
        "key": ones(2, 7, 3),
        "value": ones(2, 7, 6),
        "weights": ones(2, 5, 7),
    }
    bp.scaled_dot_product_attention_backward(**(tensors | changed))


def attend(**changed: object) -> None:
    tensors = {"query": ones(2, 5, 3), "key": ones(2, 7, 3), "value": ones(2, 7, 6)}
    bp.scaled_dot_product_attention(**(tensors | changed))


SHAPES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: bp.linear_backward(ones(5, 2, 3), ones(2, 5, 4), ones(3, 4)),
        "gradient has shape (5, 2, 3), expected (2, 5, 3)",
    ),
    (
        lambda: bp.relu_backward(ones(1, 4), ones(3, 4)),
        "gradient has shape (1, 4), expected (3, 4)",
    ),
    (lambda: bp.gelu_backward(ones(4), ones(3, 4)), "gradient has shape (4,), expected (3, 4)"),
    (
        lambda: bp.LayerNorm(4).backward(ones(2, 1), bp.LayerNorm(4).forward(ones(2, 4))[1]),
        "gradient has shape (2, 1), expected (2, 4)",
    ),
    (
        lambda: bp.embedding_backward(ones(2), np.array([0, 1, 0]), 4),
        "gradient has shape (2,), expected (3, 2)",
    ),
    (
        lambda: attention_backward(gradient=ones(5, 6)),
        "gradient has shape (5, 6), expected (2, 5, 6)",
    ),
    (
        lambda: attention_backward(weights=ones(5, 7)),
        "weights has shape (5, 7), expected (2, 5, 7)",
    ),
    (
        lambda: attention_backward(key=ones(2, 7, 4)),
        "query has shape (2, 5, 3) but key has (2, 7, 4)",
    ),
    (
        lambda: attend(value=ones(2, 6, 6)),
        "value has shape (2, 6, 6), expected (2, 7, 6)",
    ),
    (
        lambda: attend(query=ones(3, 2, 5, 3)),
        "query has leading dimensions (3, 2) but key has (2,)",
    ),
    (
        lambda: attend(query=ones(2, 8, 3), causal=True),
        "aligned to the end, a causal mask needs at least as many keys as queries, got 8 queries "
        "and 7 keys",
    ),
    (
        lambda: bp.MultiHeadAttention(8, 2).forward(ones(2, 5, 8), ones(1, 3, 8)),
        "x has a batch of 2 but memory of 1",
    ),
    (
        lambda: bp.MultiHeadAttention(8, 2).forward(ones(5, 8)),
        "x must have shape (batch, tokens, 8), got (5, 8)",
    ),
    (
        lambda: bp.MultiHeadAttention(8, 2, d_memory=6).forward(ones(2, 5, 8), ones(2, 5, 8)),
        "memory must have shape (batch, tokens, 6), got (2, 5, 8)",
    ),
    (
        lambda: bp.MultiHeadAttention(8, 2, d_memory=6).forward(ones(2, 5, 8)),
        "a memory of width 6 is needed, x has 8",
    ),
    (
        lambda: bp.softmax(ones(2, 3), np.ones((4, 2, 3), dtype=bool)),
        "mask of shape (4, 2, 3) does not broadcast to (2, 3)",
    ),
    (
        lambda: attend(mask=np.ones((2, 6, 7), dtype=bool)),
        "mask of shape (2, 6, 7) does not broadcast to (2, 5, 7)",
    ),
    (
        lambda: bp.dropout(ones(4), np.ones((3, 4), dtype=bool), 0.5),
        "kept of shape (3, 4) does not broadcast to (4,)",
    ),
    (lambda: bp.LayerNorm(4).forward(ones(2, 1)), "weight has shape (4,), expected (1,)"),
    (
        lambda: bp.layer_norm(ones(2, 4), ones(4), ones(2, 4)),
        "bias has shape (2, 4), expected (4,)",
    ),
    (
        lambda: bp.layer_norm_backward(ones(4, 4), ones(4), ones(4, 4), ones(4)),
        "inverse has shape (4,), expected (4, 1)",
    ),
    (lambda: bp.linear(ones(2, 3), ones(4, 3), ones(2, 4)), "bias has shape (2, 4), expected (4,)"),
    (lambda: bp.FeedForward(4, 0), "d_in and d_out must be positive, got 4 and 0"),
    (
        lambda: bp.sinusoidal_positions(5, 7),
        "positions pair a sine with a cosine: the width must be even, got 7",
    ),
    (
        lambda: bp.LanguageModel(ModelConfig(vocab_size=5, d_model=8)).forward(np.array([1, 2])),
        "ids must have shape (batch, tokens), got (2,)",
    ),
    (lambda: bp.Adam(iter([])), "there are no parameters to change: the iterable is empty"),
    (lambda: bp.Adam(weights(), lr=-0.1), "lr and eps must not be negative, got -0.1 and 1e-08"),
    (lambda: bp.Adam(weights(), betas=(0.9, 1.0)), "betas must be in [0, 1), got (0.9, 1.0)"),
    (
        lambda: bp.embedding_backward(ones(1, 2), np.array([-1]), 4),
        "ids must be in 0 … 3, got -1 to -1",
    ),
    (
        lambda: bp.cross_entropy_backward(ones(2, 3), np.array([0])),
        "there are logits for (2,) targets but targets of shape (1,)",
    ),
    (
        lambda: bp.cross_entropy_backward(ones(2, 3), np.array([0, -1])),
        "targets must be in 0 … 2, or -100 to be left out, got -1 to 0",
    ),
    (
        lambda: bp.check_gradient(
            lambda x: np.log(x), lambda g, x: {"x": 0 * x}, x=np.array([-1.0, 2.0])
        ),
        "forward returns numbers that are not finite: choose another point",
    ),
    (
        lambda: bp.check_gradient(
            lambda x: np.sqrt(x), lambda g, x: {"x": 0 * x}, x=np.array([0.0, 2.0])
        ),
        "forward is not finite near x: choose another point",
    ),
]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize(("call", "message"), SHAPES, ids=[message for _, message in SHAPES])
def test_values_that_do_not_fit(call: Callable[[], object], message: str) -> None:
    with refused(ValueError, message):
        call()


TYPES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: bp.softmax(ones(1, 4), np.array([0, 0, -np.inf, -np.inf])),
        "mask must be boolean, got an array of float64",
    ),
    (
        lambda: attend(mask=np.ones((5, 7), dtype=np.int64)),
        "mask must be boolean, got an array of int64",
    ),
    (lambda: bp.dropout(ones(2), ones(2), 0.5), "kept must be boolean, got an array of float64"),
    (
        lambda: bp.embedding(np.array([True, False]), ones(2, 3)),
        "ids must be an array of integers, got one of bool",
    ),
    (lambda: bp.embedding([0, 1], ones(2, 3)), "ids must be an array of integers, got a list"),
    (
        lambda: bp.LanguageModel(ModelConfig(vocab_size=5, d_model=8)).forward([[1, 2]]),
        "ids must be an array of integers, got a list",
    ),
    (
        lambda: bp.cross_entropy(ones(2, 3), np.array([0.0, 1.0])),
        "targets must be an array of integers, got one of float64",
    ),
    (
        lambda: bp.LanguageModel(TransformerConfig(vocab_size=11)),
        "config must be a ModelConfig, got a TransformerConfig",
    ),
    (
        lambda: bp.check_gradient(lambda x: x, lambda g, x: (g,), x=ones(2)),
        "backward must return gradients by name, got a tuple",
    ),
    (
        lambda: bp.check_gradient(lambda x: (x, x), lambda g, x: {"x": g}, x=ones(2)),
        "forward must return an array, got a tuple: return its first, perhaps",
    ),
]


@pytest.mark.parametrize(("call", "message"), TYPES, ids=[message for _, message in TYPES])
def test_types_that_do_not_fit(call: Callable[[], object], message: str) -> None:
    with refused(TypeError, message):
        call()


def test_ids_of_a_model_are_checked_before_anything_changes() -> None:
    model = bp.LanguageModel(ModelConfig(vocab_size=5, d_model=8, n_heads=2))
    model.loss_and_gradients(np.array([[1, 2]]), np.array([[2, 1]]))
    before = model.gradients()
    with refused(ValueError, "ids must be in 0 … 4, got 1 to 7"):
        model.loss_and_gradients(np.array([[1, 7]]), np.array([[1, 1]]))
    with refused(ValueError, "targets must be in 0 … 4, or -100 to be left out, got 1 to 9"):
        model.loss_and_gradients(np.array([[1, 2]]), np.array([[1, 9]]))
    assert before["embedding.weight"].any()
    for name, gradient in model.gradients().items():
        assert np.array_equal(gradient, before[name])


def test_a_backward_pass_cannot_spoil_its_own_check() -> None:
    def zeroed(gradient: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
        gradient *= 0
        return {"x": gradient}

    def right(gradient: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
        gradient *= 2 * x
        return {"x": gradient}

    def forward(x: np.ndarray) -> np.ndarray:
        x *= x
        return x

    with pytest.raises(bp.GradientError, match=r"^x: "):
        bp.check_gradient(forward, zeroed, x=ones(5))
    assert bp.check_gradient(forward, right, x=ones(5))["x"] < 1e-6
