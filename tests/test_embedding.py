import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnbook import TokenEmbedding
from strategies import assert_gradients_are_finite_differences, assert_near


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    vocab_size=st.integers(1, 9),
    d_model=st.integers(1, 9),
    scaled=st.booleans(),
)
def test_look_up_is_one_hot_times_weight_times_factor_and_output_its_transpose(
    shape, vocab_size, d_model, scaled
):
    embedding = TokenEmbedding(vocab_size, d_model, scaled=scaled)
    ids = torch.randint(vocab_size, shape)
    one_hot = F.one_hot(ids, vocab_size).double()
    factor = math.sqrt(d_model) if scaled else 1.0
    assert embedding.factor == factor
    assert torch.equal(embedding(ids), one_hot @ embedding.weight * factor)
    logits = embedding.logits(one_hot @ embedding.weight)  # without the factor
    assert_near(logits, one_hot @ embedding.weight @ embedding.weight.T)


def test_token_embedding_is_torchs_own_embedding():
    embedding = TokenEmbedding(7, 4, scaled=True)
    theirs = nn.Embedding(7, 4)
    assert isinstance(embedding, nn.Embedding)
    assert (embedding.num_embeddings, embedding.embedding_dim) == (7, 4)
    assert embedding.weight.shape == (7, 4)
    theirs.load_state_dict(embedding.state_dict())
    ids = torch.tensor([[1, 6], [0, 1]])
    assert torch.equal(embedding(ids), 2 * theirs(ids))
    assert str(embedding) == "TokenEmbedding(7, 4, factor=2)"
    assert TokenEmbedding(5, 9).factor == 1


@pytest.mark.parametrize("scaled", [True, False])
def test_gradients_equal_finite_differences(scaled):
    embedding, ids = TokenEmbedding(4, 3, scaled=scaled), torch.tensor([[1, 1, 3], [0, 1, 3]])
    hidden = torch.randn(2, 3, 3, requires_grad=True)
    assert_gradients_are_finite_differences(lambda: embedding(ids), embedding.weight)
    assert_gradients_are_finite_differences(
        lambda: embedding.logits(hidden), hidden, embedding.weight
    )
    assert_gradients_are_finite_differences(  # tied: the sum of both uses
        lambda: embedding.logits(embedding(ids).tanh()), embedding.weight
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ids_of_both_integer_types_are_looked_up(dtype):
    embedding = TokenEmbedding(7, 4)
    assert torch.equal(embedding(torch.tensor([6, 0], dtype=dtype)), embedding.weight[[6, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenEmbedding(7, 4)(torch.tensor([0, 7])), "in 0 … 6, got 0 … 7"),
        (lambda: TokenEmbedding(7, 4)(torch.tensor([[-1], [3]])), "in 0 … 6, got -1 … 3"),
        (lambda: TokenEmbedding(7, 4, init="xavier"), "'xavier'; known: .*glorot"),
    ],
)
def test_refusal_says_what_was_given_and_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
