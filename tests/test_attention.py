import math
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnbook import (
    MultiHeadAttention,
    attention_logits,
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)

sizes = st.integers(1, 6)


@dataclass
class Inputs:
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    """Random tensors with up to two leading dimensions; masks of every shape that broadcasts."""
    torch.manual_seed(draw(st.integers(0, 2**32)))
    leading = draw(st.lists(sizes, max_size=2))
    queries, keys, d_head, d_value = (draw(sizes) for _ in range(4))
    mask = None
    if draw(st.booleans()):
        full = [*leading, queries, keys]
        shape = [draw(st.sampled_from([1, n])) for n in full][draw(st.integers(0, len(full))) :]
        mask = torch.rand(shape) < draw(st.sampled_from([0.2, 0.6]))
    return Inputs(
        torch.randn(*leading, queries, d_head),
        torch.randn(*leading, keys, d_head),
        torch.randn(*leading, keys, d_value),
        mask,
    )


def both_paths(
    *args: Tensor | None, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    fused = scaled_dot_product_attention(*args, causal=causal, scale=scale)
    explicit, _ = scaled_dot_product_attention(
        *args, causal=causal, scale=scale, return_weights=True
    )
    return fused, explicit


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


# The functions


def test_shapes_in_the_types_are_checked_here() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        attention_logits(torch.zeros(5, 4), torch.zeros(7, 3))


def test_logits_are_scaled_dot_products() -> None:
    query, key = torch.randn(5, 16), torch.randn(7, 16)
    logits, unscaled = attention_logits(query, key), attention_logits(query, key, scale=1.0)
    for i in range(5):
        for j in range(7):
            dot = sum(q * k for q, k in zip(query[i].tolist(), key[j].tolist(), strict=True))
            assert logits[i, j].item() == pytest.approx(dot / 4, abs=1e-14)
            assert unscaled[i, j].item() == pytest.approx(dot, abs=1e-14)


def test_weights_are_the_softmax_over_the_allowed_keys() -> None:
    logits = torch.randn(5, 7)
    mask = (torch.rand(5, 7) < 0.5) | (torch.arange(7) == 0)
    weights = attention_weights(logits, mask)
    for i in range(5):
        exps = [math.exp(s) if m else 0.0 for s, m in zip(logits[i], mask[i], strict=True)]
        assert weights[i].tolist() == pytest.approx([e / sum(exps) for e in exps], abs=1e-15)


@given(inputs())
def test_weights_sum_to_one_and_are_zero_where_masked(x: Inputs) -> None:
    logits = attention_logits(x.query, x.key)
    weights = attention_weights(logits, x.mask)
    allowed = torch.ones_like(logits, dtype=torch.bool) if x.mask is None else x.mask
    allowed = allowed.expand_as(logits)
    assert torch.equal(weights == 0, ~allowed)
    torch.testing.assert_close(weights.sum(-1), allowed.any(-1).double(), rtol=0, atol=1e-14)


def test_huge_logits_give_finite_weights() -> None:
    logits = torch.tensor([[1e6, 0.0, -1e6], [-1e6, 1e6, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    expected = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert torch.equal(attention_weights(logits, mask), expected)


@given(inputs(), st.sampled_from([None, 0.3]))
def test_fused_path_is_the_explicit_path(x: Inputs, scale: float | None) -> None:
    tensors = [t.requires_grad_() for t in (x.query, x.key, x.value)]
    fused, explicit = both_paths(*tensors, x.mask, scale=scale)
    assert_near(fused, explicit)
    direction = torch.randn_like(fused)
    gradients = [torch.autograd.grad(out, tensors, direction) for out in (fused, explicit)]
    for one, other in zip(*gradients, strict=True):
        assert_near(one, other)


@given(queries=sizes, more=st.integers(0, 4), masked=st.booleans())
def test_causal_adds_the_causal_mask_in_both_paths(queries: int, more: int, masked: bool) -> None:
    keys = queries + more
    tensors = torch.randn(2, queries, 4), torch.randn(2, keys, 4), torch.randn(2, keys, 3)
    mask = torch.rand(2, queries, keys) < 0.7 if masked else None
    ahead = causal_mask(queries, keys)
    combined = ahead if mask is None else ahead & mask
    _, expected = both_paths(*tensors, combined)
    for output in both_paths(*tensors, mask, causal=True):
        assert_near(output, expected)


def test_more_keys_than_queries_are_the_last_rows_of_the_whole() -> None:
    query, key, value = torch.randn(3, 2, 7, 4)
    whole = scaled_dot_product_attention(query, key, value, causal=True)
    for output in both_paths(query[:, -3:], key, value, causal=True):
        assert_near(output, whole[:, -3:])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("path", [0, 1], ids=["fused", "explicit"])
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_zero_gradient(
    path: int, dtype: torch.dtype
) -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8, dtype=dtype)
    for tensor in (query, key, value):
        tensor.requires_grad_()
    mask = torch.rand(5, 5) < 0.7
    mask[2] = False
    mask[:, 3] = False
    with torch.autograd.detect_anomaly():  # no NaN on the way back either
        output = both_paths(query, key, value, mask)[path]
        output.sum().backward()
    zeros = torch.zeros(2, 4, 8, dtype=dtype)
    assert torch.equal(output[:, :, 2], zeros)
    assert torch.equal(query.grad[:, :, 2], zeros)
    assert torch.equal(key.grad[:, :, 3], zeros)
    assert torch.equal(value.grad[:, :, 3], zeros)
    assert all(t.grad.isfinite().all() and t.grad.any() for t in (query, key, value))


@pytest.mark.parametrize("path", [0, 1], ids=["fused", "explicit"])
def test_gradients_are_those_of_finite_differences(path: int) -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]]).bool()
    tensors = [torch.randn(n, 2, requires_grad=True) for n in (2, 3, 3)]
    assert torch.autograd.gradcheck(lambda *qkv: both_paths(*qkv, mask)[path], tensors)


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


def test_dropout_in_the_fused_path_keeps_the_mean() -> None:
    query, key = torch.randn(2, 100, 4)
    sums = scaled_dot_product_attention(query, key, torch.ones(100, 1), dropout=0.25)
    assert sums.std() > 0.01
    assert sums.mean().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    def test_widths_of_query_and_key_differ(self) -> None:
        query, key = torch.zeros(5, 64), torch.zeros(7, 32)
        with pytest.raises(ValueError, match="query has d_head 64 but key has 32"):
            attention_logits(query, key)
        with pytest.raises(ValueError, match="query has d_head 64 but key has 32"):
            scaled_dot_product_attention(query, key, key)

    def test_numbers_of_keys_and_values_differ(self) -> None:
        query, key, value = torch.zeros(5, 4), torch.zeros(7, 4), torch.zeros(6, 4)
        with pytest.raises(ValueError, match="there are 7 keys but 6 values"):
            scaled_dot_product_attention(query, key, value)

    @pytest.mark.parametrize("shape", [(7, 5), (6,), (3, 5, 7), (1, 2, 5, 7)])
    def test_mask_does_not_broadcast(self, shape: tuple[int, ...]) -> None:
        mask = torch.ones(shape, dtype=torch.bool)
        message = rf"mask of shape \({shape[0]},.*\) does not broadcast .* = \(2, 5, 7\)"
        with pytest.raises(ValueError, match=message):
            attention_weights(torch.zeros(2, 5, 7), mask)
        with pytest.raises(ValueError, match=message):
            both_paths(torch.zeros(2, 5, 4), torch.zeros(2, 7, 4), torch.zeros(2, 7, 4), mask)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
    def test_mask_is_not_boolean(self, dtype: torch.dtype) -> None:
        message = rf"a mask is boolean \(True = may attend\), got a tensor of {dtype}"
        mask, x = torch.ones(5, 5, dtype=dtype), torch.zeros(1, 5, 4)
        with pytest.raises(TypeError, match=message):
            attention_weights(torch.zeros(5, 5), mask)
        with pytest.raises(TypeError, match=message):
            scaled_dot_product_attention(x, x, x, mask)
        with pytest.raises(TypeError, match=message):
            MultiHeadAttention(4, 2)(x, mask=mask)

    def test_mask_does_not_broadcast_to_the_heads(self) -> None:
        mask = torch.ones(3, 5, 5, dtype=torch.bool)
        with pytest.raises(ValueError, match=r"\(3, 5, 5\) does not broadcast .* \(1, 2, 5, 5\)"):
            MultiHeadAttention(4, 2)(torch.zeros(1, 5, 4), mask=mask)

    @pytest.mark.parametrize("shape", [(1, 5, 6), (5, 4)])
    def test_tokens_do_not_fit_the_module(self, shape: tuple[int, ...]) -> None:
        attention, fits, wrong = MultiHeadAttention(4, 2), torch.zeros(1, 5, 4), torch.zeros(shape)
        message = rf"must have shape \(batch, tokens, 4\), got \({shape[0]}, {shape[1]}"
        with pytest.raises(ValueError, match=f"x {message}"):
            attention(wrong)
        with pytest.raises(ValueError, match=f"memory {message}"):
            attention(fits, wrong)

    @pytest.mark.parametrize("n_heads", [5, 0, -2])
    def test_heads_do_not_divide_the_width(self, n_heads: int) -> None:
        with pytest.raises(ValueError, match=f"divide d_model, got {n_heads} heads for 64"):
            MultiHeadAttention(64, n_heads)

    def test_causal_with_fewer_keys_than_queries(self) -> None:
        query, key = torch.zeros(3, 4), torch.zeros(2, 4)
        with pytest.raises(ValueError, match="got 3 queries and 2 keys"):
            scaled_dot_product_attention(query, key, key, causal=True)


# The module


def head_by_head(
    attention: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition: each head with its own slices of the weights; output is the heads' sum."""
    d_head = x.shape[-1] // attention.n_heads
    output, all_weights = attention.output.bias.expand_as(x), []
    for h in range(attention.n_heads):
        own = slice(h * d_head, (h + 1) * d_head)
        q = x @ attention.query.weight[own].T + attention.query.bias[own]
        k = memory @ attention.key.weight[own].T + attention.key.bias[own]
        v = memory @ attention.value.weight[own].T + attention.value.bias[own]
        weights = (q @ k.mT / math.sqrt(d_head)).masked_fill(~mask, -math.inf).softmax(-1)
        output = output + weights @ v @ attention.output.weight[:, own].T
        all_weights.append(weights)
    return output, torch.stack(all_weights, dim=1)


def with_random_biases(attention: MultiHeadAttention) -> MultiHeadAttention:
    for linear in (attention.query, attention.key, attention.value, attention.output):
        nn.init.normal_(linear.bias)
    return attention


def test_module_is_a_loop_over_the_heads() -> None:
    attention = with_random_biases(MultiHeadAttention(12, 3, bias=True))
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    mask = (torch.rand(5, 7) < 0.6) | (torch.arange(7) == 0)
    output, weights = attention(x, memory, mask, return_weights=True)
    expected_output, expected_weights = head_by_head(attention, x, memory, mask)
    assert_near(output, expected_output)
    assert_near(weights, expected_weights)
    assert_near(attention(x, memory, mask), output)


def test_self_attention_is_attention_to_oneself() -> None:
    attention, x = MultiHeadAttention(12, 3), torch.randn(2, 5, 12)
    assert torch.equal(attention(x), attention(x, x))


def in_torchs_layout(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters, or their gradients, as torch.nn.MultiheadAttention names and packs them."""
    packed = {"out_proj.weight": ours["output.weight"]}
    packed["in_proj_weight"] = torch.cat([ours[f"{n}.weight"] for n in ("query", "key", "value")])
    if "output.bias" in ours:
        packed["out_proj.bias"] = ours["output.bias"]
        packed["in_proj_bias"] = torch.cat([ours[f"{n}.bias"] for n in ("query", "key", "value")])
    return packed


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_module_agrees_with_torchs_in_values_and_gradients(
    bias: bool, return_weights: bool
) -> None:
    ours = MultiHeadAttention(12, 3, bias=bias)
    if bias:
        with_random_biases(ours)
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=True)
    theirs.load_state_dict(in_torchs_layout(dict(ours.named_parameters())))
    x, memory = torch.randn(2, 5, 12, requires_grad=True), torch.randn(2, 7, 12, requires_grad=True)
    x2, memory2 = (t.detach().clone().requires_grad_() for t in (x, memory))
    mask = (torch.rand(5, 7) < 0.6) | (torch.arange(7) == 0)

    output = ours(x, memory, mask, return_weights=return_weights)
    expected, expected_weights = theirs(
        x2, memory2, memory2, attn_mask=~mask, average_attn_weights=False
    )
    if return_weights:
        output, weights = output
        assert_near(weights, expected_weights)
    assert_near(output, expected)

    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    assert_near(x.grad, x2.grad)
    assert_near(memory.grad, memory2.grad)
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for name, gradient in in_torchs_layout(gradients).items():
        assert_near(gradient, theirs.get_parameter(name).grad)


@pytest.mark.parametrize("return_weights", [False, True])
def test_changing_a_token_leaves_every_output_before_it_as_it_was(return_weights: bool) -> None:
    def output(x: Tensor) -> Tensor:
        y = attention(x, causal=True, return_weights=return_weights)
        return y[0] if return_weights else y

    attention, x = MultiHeadAttention(12, 3), torch.randn(2, 8, 12)
    before = output(x)
    for t in range(8):
        changed = x.clone()
        changed[:, t] += 1.0
        after = output(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(-1).all()


def test_padding_changes_nothing_for_the_real_tokens() -> None:
    attention, x = MultiHeadAttention(12, 3), torch.randn(2, 6, 12)
    padded = attention(x, mask=padding_mask(torch.tensor([4, 6]), 6))
    assert_near(padded[:1, :4], attention(x[:1, :4]))
    assert_near(padded[1:], attention(x[1:]))


def test_module_knows_no_order() -> None:
    attention, x, order = MultiHeadAttention(12, 3), torch.randn(2, 6, 12), torch.randperm(6)
    assert_near(attention(x[:, order]), attention(x)[:, order])


def test_module_gradients_are_those_of_finite_differences() -> None:
    attention = MultiHeadAttention(4, 2, bias=True)
    names = dict(attention.named_parameters())
    x = torch.randn(1, 3, 4, requires_grad=True)

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(attention, values, (x,), {"causal": True})

    assert torch.autograd.gradcheck(output, (x, *names.values()))


@pytest.mark.parametrize("return_weights", [False, True])
def test_module_drops_weights_in_training_only(return_weights: bool) -> None:
    def output() -> Tensor:
        y = attention(x, return_weights=return_weights)
        return y[0] if return_weights else y

    attention, x = MultiHeadAttention(12, 3, dropout=0.5), torch.randn(2, 6, 12)
    assert not torch.equal(output(), output())
    attention.eval()
    assert torch.equal(output(), output())


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_that_is_no_probability_below_one_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=rf"dropout must be in \[0, 1\), got {dropout}"):
        MultiHeadAttention(8, 2, dropout=dropout)


def test_width_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="n_heads must divide d_model, got 1 heads for 0"):
        MultiHeadAttention(0, 1)
