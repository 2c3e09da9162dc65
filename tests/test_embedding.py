import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnbook import TokenEmbedding
from strategies import assert_gradients_are_finite_differences


def one_hot(ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return F.one_hot(ids, vocab_size).to(torch.float64)


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    vocab_size=st.integers(1, 9),
    d_model=st.integers(1, 9),
    scaled=st.booleans(),
)
def test_look_up_is_one_hot_times_weight(
    shape: list[int], vocab_size: int, d_model: int, scaled: bool
) -> None:
    embedding = TokenEmbedding(vocab_size, d_model, scaled=scaled)
    ids = torch.randint(vocab_size, shape)
    expected = one_hot(ids, vocab_size) @ embedding.weight * embedding.factor
    assert torch.equal(embedding(ids), expected)


def test_look_up_has_the_gradient_of_one_hot_times_weight() -> None:
    embedding = TokenEmbedding(7, 4, scaled=True)
    ids = torch.tensor([[1, 1, 5], [0, 1, 6]])
    direction = torch.randn(2, 3, 4)
    looked_up = torch.autograd.grad(embedding(ids), embedding.weight, direction)[0]
    product = one_hot(ids, 7) @ embedding.weight * 2.0
    multiplied = torch.autograd.grad(product, embedding.weight, direction)[0]
    torch.testing.assert_close(looked_up, multiplied, rtol=0, atol=1e-15)
    assert torch.equal(looked_up[[2, 3, 4]], torch.zeros(3, 4))


@pytest.mark.parametrize("scaled", [True, False])
def test_gradients_are_those_of_finite_differences(scaled: bool) -> None:
    embedding, ids = TokenEmbedding(4, 3, scaled=scaled), torch.tensor([[1, 1, 3], [0, 1, 3]])
    hidden = torch.randn(2, 3, 3, requires_grad=True)
    assert_gradients_are_finite_differences(lambda: embedding(ids), embedding.weight)
    leaves = hidden, embedding.weight
    assert_gradients_are_finite_differences(lambda: embedding.logits(hidden), *leaves)
    assert_gradients_are_finite_differences(
        lambda: embedding.logits(embedding(ids).tanh()), embedding.weight
    )


@pytest.mark.parametrize("d_model", [1, 16, 50])
def test_factor_is_sqrt_of_d_model_if_scaled_else_one(d_model: int) -> None:
    ids = torch.arange(5)
    scaled, plain = TokenEmbedding(5, d_model, scaled=True), TokenEmbedding(5, d_model)
    assert scaled.factor == math.sqrt(d_model)
    assert torch.equal(scaled(ids), scaled.weight * math.sqrt(d_model))
    assert torch.equal(plain(ids), plain.weight)


def test_output_layer_is_the_transpose_without_the_factor() -> None:
    embedding = TokenEmbedding(7, 4, scaled=True)
    hidden = torch.randn(2, 3, 4)
    torch.testing.assert_close(embedding.logits(hidden), hidden @ embedding.weight.T)


def test_tied_gradient_is_the_sum_of_both_uses() -> None:
    tied, inner, outer = (TokenEmbedding(7, 4, scaled=True) for _ in range(3))
    inner.load_state_dict(tied.state_dict())
    outer.load_state_dict(tied.state_dict())
    ids, targets = torch.randint(7, (2, 10))
    F.cross_entropy(tied.logits(tied(ids).tanh()), targets).backward()
    F.cross_entropy(outer.logits(inner(ids).tanh()), targets).backward()
    both = inner.weight.grad + outer.weight.grad
    torch.testing.assert_close(tied.weight.grad, both, rtol=0, atol=1e-15)
    assert inner.weight.grad.norm() > 0.01
    assert outer.weight.grad.norm() > 0.01


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_any_integer_type_is_looked_up(dtype: torch.dtype) -> None:
    embedding = TokenEmbedding(7, 4)
    assert torch.equal(embedding(torch.tensor([6, 0], dtype=dtype)), embedding.weight[[6, 0]])


@pytest.mark.parametrize(("ids", "smallest", "largest"), [([0, 7], 0, 7), ([[-1], [3]], -1, 3)])
def test_ids_outside_the_vocabulary_are_refused(ids: list, smallest: int, largest: int) -> None:
    message = rf"must be in 0 … 6 \(vocab_size is 7\), got ids from {smallest} to {largest}"
    with pytest.raises(ValueError, match=message):
        TokenEmbedding(7, 4)(torch.tensor(ids))


def test_so_are_those_of_types_that_know_no_order() -> None:
    with pytest.raises(ValueError, match="got ids from 1 to 7"):
        TokenEmbedding(7, 4)(torch.tensor([1, 7], dtype=torch.uint16))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.complex128])
def test_ids_that_are_no_integers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"ids must be integers, got a tensor of {dtype}"):
        TokenEmbedding(7, 4)(torch.ones(3, dtype=dtype))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("size", [0, -1, 4.0])
@pytest.mark.parametrize("name", ["vocab_size", "d_model"])
def test_sizes_must_be_positive(name: str, size: int) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a positive integer, got {size}$"):
        TokenEmbedding(**({"vocab_size": 7, "d_model": 4} | {name: size}))


@pytest.mark.usefixtures("without_shape_checks")
def test_hidden_states_of_another_width_or_type_are_refused() -> None:
    embedding = TokenEmbedding(7, 4)
    with pytest.raises(ValueError, match=r"^hidden must have shape \(…, 4\), got \(2, 3\)$"):
        embedding.logits(torch.zeros(2, 3))
    with pytest.raises(TypeError, match=r"^hidden must be of floating type, got .* torch.int64$"):
        embedding.logits(torch.zeros(2, 4, dtype=torch.int64))


def test_unknown_init_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"unknown initialization 'xavier'; known: .*glorot"):
        TokenEmbedding(7, 4, init="xavier")


def test_printed_module_says_sizes_and_factor() -> None:
    assert str(TokenEmbedding(7, 4, scaled=True)) == "TokenEmbedding(7, 4, factor=2)"


@pytest.mark.usefixtures("without_shape_checks")
def test_scaled_is_true_or_false() -> None:
    with pytest.raises(TypeError, match=r"^scaled must be True or False, got a str$"):
        TokenEmbedding(7, 4, scaled="no")
