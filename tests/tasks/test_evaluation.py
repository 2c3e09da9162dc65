"""Losses of a long text by windows against the definition, token by token."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook import LanguageModel, ModelConfig
from attnbook.tasks import token_losses
from strategies import assert_near

MODEL = LanguageModel(ModelConfig(7, d_model=12, n_heads=3, max_tokens=9)).double().eval()


@given(st.integers(2, 30), st.integers(1, 9), st.data())
def test_each_token_is_predicted_once_from_as_many_as_its_window_has(n, length, data):
    stride = data.draw(st.integers(1, length))
    ids = torch.randint(7, (n,))
    losses = token_losses(MODEL, ids, length=length, stride=stride)
    expected = []
    for i in range(1, n):
        starts = [s for s in range(0, n, stride) if s < i <= s + length]
        log_probabilities = MODEL(ids[None, starts[0] : i])[0, -1].log_softmax(-1)
        expected.append(-log_probabilities[ids[i]])
        assert i - starts[0] >= min(i, length - stride + 1)
    assert_near(losses, torch.stack(expected).detach(), 1e-10)


def test_by_default_windows_are_the_models_and_overlap_by_half():
    ids = torch.randint(7, (25,))
    assert torch.equal(token_losses(MODEL, ids), token_losses(MODEL, ids, length=9, stride=4))
    assert not torch.equal(token_losses(MODEL, ids), token_losses(MODEL, ids, stride=9))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_ids_may_be_mapped_from_a_file(dtype, tmp_path):
    ids = torch.randint(7, (25,))
    ids.numpy().astype(dtype).tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", dtype=dtype, mode="r")
    for text in (mapped, torch.from_numpy(np.array(mapped))):
        assert torch.equal(token_losses(MODEL, text), token_losses(MODEL, ids))


@pytest.mark.usefixtures("without_shape_checks")
def test_a_batch_is_no_text():
    with pytest.raises(TypeError, match=r"one dimension, got a Tensor .* in 2 dimensions"):
        token_losses(MODEL, torch.zeros(2, 5, dtype=torch.int64))


@pytest.mark.parametrize(
    ("n", "options", "message"),
    [
        (1, {}, "a text has at least two tokens, got 1"),
        (5, {"stride": 0}, "stride must be at least 1 and at most the length 9, got 0"),
        (5, {"length": 3, "stride": 4}, "at most the length 3, got 4"),
    ],
)
def test_windows_that_cannot_be_are_refused(n, options, message):
    with pytest.raises(ValueError, match=message):
        token_losses(MODEL, torch.zeros(n, dtype=torch.long), **options)
