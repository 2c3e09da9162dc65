import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnbook import (
    ALiBi,
    KeyValueCache,
    MultiHeadAttention,
    Rotary,
    causal_mask,
    combine_masks,
)
from strategies import (
    POSITIONS,
    assert_near,
    assert_rounded,
    broadcastable,
    dtypes,
    in_wide_and_narrow,
    memory_for,
    modules,
    on_both_paths,
    on_every_device,
    refused,
    rounded,
    run,
    slanted,
    tokens_for,
    turned,
    with_every_position,
    with_random_biases,
)

LINEARS = ["query", "key", "value", "output"]
NO_POSITION = [None]


def needs_causal(position: Rotary | ALiBi | None) -> bool:
    return isinstance(position, ALiBi) and not position.bidirectional


# What it computes


def head_by_head(
    module: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition: each head with its own slices of the weights; output is the heads' sum.

    Query head h asks key head h // group. Returns the output and all heads' weights.
    """
    group = module.n_heads // module.n_kv_heads
    d_head = module.query.out_features // module.n_heads
    d_value = module.value.out_features // module.n_kv_heads
    mask = mask.expand(len(x), module.n_heads, x.shape[1], memory.shape[1])

    def project(linear: nn.Linear, tokens: Tensor, head: int, width: int) -> Tensor:
        own = slice(head * width, (head + 1) * width)
        projected = tokens @ linear.weight[own].T
        return projected if linear.bias is None else projected + linear.bias[own]

    output = torch.zeros(*x.shape)
    if module.output.bias is not None:
        output = output + module.output.bias
    all_weights = []
    for h in range(module.n_heads):
        q = project(module.query, x, h, d_head)
        k = project(module.key, memory, h // group, d_head)
        v = project(module.value, memory, h // group, d_value)
        if isinstance(module.position, Rotary):
            layout, base = module.position.layout, module.position.base
            q, k = (turned(t, range(t.shape[1]), layout, base) for t in (q, k))
        logits = q @ k.mT / math.sqrt(d_head)
        if isinstance(module.position, ALiBi):
            bidirectional = module.position.bidirectional
            shape = module.n_heads, x.shape[1], memory.shape[1]
            logits = logits + slanted(*shape, bidirectional=bidirectional)[h]
        weights = logits.masked_fill(~mask[:, h], -math.inf).softmax(-1).nan_to_num(0.0)
        own = slice(h * d_value, (h + 1) * d_value)
        output = output + weights @ v @ module.output.weight[:, own].T
        all_weights.append(weights)
    return output, torch.stack(all_weights, dim=1)


@given(module=modules(), batch=st.integers(1, 3), tokens=st.integers(0, 5), data=st.data())
def test_self_attention_is_a_loop_over_the_heads(
    module: MultiHeadAttention, batch: int, tokens: int, data: st.DataObject
) -> None:
    module, exact = rounded(module, data.draw(dtypes))
    x, mask = tokens_for(module, batch, tokens), None
    causal = needs_causal(module.position) or data.draw(st.booleans())
    if data.draw(st.booleans()):
        shape = broadcastable(data.draw, [batch, module.n_heads, tokens, tokens])
        mask = torch.rand(shape) < data.draw(st.sampled_from([0.3, 0.7]))
    ahead = causal_mask(tokens) if causal else torch.ones(()).bool()
    expected = head_by_head(exact, x.double(), x.double(), combine_masks(mask, ahead))
    explicit = module(x, mask=mask, causal=causal, return_weights=True)
    for ours, theirs in zip(explicit, expected, strict=True):
        assert ours.dtype == x.dtype
        assert_rounded(ours, theirs)
    fused = module(x, mask=mask, causal=causal)
    assert fused.dtype == x.dtype
    assert_rounded(fused, expected[0])


@given(
    module=modules(positions=NO_POSITION, other_memory=True),
    queries=st.integers(1, 4),
    more=st.integers(-3, 3),
    data=st.data(),
)
def test_cross_attention_is_a_loop_over_the_heads(
    module: MultiHeadAttention, queries: int, more: int, data: st.DataObject
) -> None:
    keys = max(0, queries + more)
    module, exact = rounded(module, data.draw(dtypes))
    x, memory = tokens_for(module, 2, queries), memory_for(module, 2, keys)
    causal = keys >= queries and data.draw(st.booleans())
    shape = broadcastable(data.draw, [2, module.n_heads, queries, keys])
    mask = torch.rand(shape) < data.draw(st.sampled_from([0.3, 0.7, 1.0]))
    ahead = causal_mask(queries, keys) if causal else None
    expected = head_by_head(exact, x.double(), memory.double(), combine_masks(mask, ahead))
    explicit = module(x, memory, mask, causal=causal, return_weights=True)
    for ours, theirs in zip(explicit, expected, strict=True):
        assert_rounded(ours, theirs)
    assert_rounded(module(x, memory, mask, causal=causal), expected[0])


@with_every_position
def test_gradients_are_those_of_finite_differences(position: Rotary | ALiBi | None) -> None:
    path = "explicit" if position == Rotary() else "fused"  # the function's tests have all of both
    module = MultiHeadAttention(
        3, 4, n_kv_heads=2, d_head=2, d_value=1, bias=True, position=position
    )
    names = dict(with_random_biases(module).named_parameters())
    x = torch.randn(2, 2, 3, requires_grad=True)
    mask = torch.tensor([[[[1, 1]]], [[[0, 1]]]]).bool()  # with causal: an empty row

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        values = dict(zip(names, parameters, strict=True))
        options = {"mask": mask, "causal": True, "return_weights": path == "explicit"}
        result = torch.func.functional_call(module, values, (x,), options)
        return result if path == "fused" else result[0]

    assert torch.autograd.gradcheck(output, (x, *names.values()))


@on_both_paths
def test_gradients_to_a_memory_are_those_of_finite_differences(path: str) -> None:
    module = MultiHeadAttention(2, 2, n_kv_heads=1, d_memory=3, bias="qkv")
    x, memory = torch.randn(1, 2, 2, requires_grad=True), torch.randn(1, 3, 3, requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]]).bool()

    def output(x: Tensor, memory: Tensor, *parameters: Tensor) -> Tensor:
        return run(path, module, x, memory, mask)

    assert torch.autograd.gradcheck(output, (x, memory))


# Order


# Padding


@given(
    module=modules(),
    tokens=st.integers(1, 5),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    dtype=dtypes,
    causal=st.booleans(),
    path=st.sampled_from(["fused", "explicit"]),
)
def test_real_tokens_give_what_they_give_without_padding_on_either_side(
    path: str,
    module: MultiHeadAttention,
    tokens: int,
    before: int,
    after: int,
    dtype: torch.dtype,
    causal: bool,
) -> None:
    x, causal = tokens_for(module.to(dtype), 2, tokens), causal or needs_causal(module.position)
    padded = nn.functional.pad(x, (0, 0, before, after), value=3.0)
    real = nn.functional.pad(torch.ones(tokens), (before, after)).bool()
    output = run(path, module, padded, mask=real, causal=causal)[:, real]
    assert_rounded(output, run(path, module, x, causal=causal))


@on_both_paths
@in_wide_and_narrow
@on_every_device
def test_a_token_that_may_attend_to_nothing_gets_the_output_bias(
    path: str, dtype: torch.dtype, device: str
) -> None:
    module = with_random_biases(MultiHeadAttention(8, 4, n_kv_heads=2, bias=True))
    module.to(dtype=dtype, device=device)
    x = torch.randn(2, 3, 8, dtype=dtype, device=device, requires_grad=True)
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool, device=device)
    mask[0, :, 1] = False
    mask[1] = False
    output = run(path, module, x, mask=mask)
    assert torch.equal(output[0, 1], module.output.bias)
    assert torch.equal(output[1], module.output.bias.expand(3, 8))
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in (x, *module.parameters()))
    assert not x.grad[1].any()


# Positions


def test_causal_alibi_is_refused_without_a_causal_mask() -> None:
    module, x = MultiHeadAttention(8, 2, position=ALiBi()), torch.zeros(1, 3, 8)
    message = (
        "causal ALiBi favours what lies ahead unless a causal mask forbids it: pass causal=True, "
        "or use ALiBi(bidirectional=True)"
    )
    with refused(ValueError, message):
        module(x)
    with refused(ValueError, message):
        module(x, mask=causal_mask(3))
    module(x, causal=True)
    MultiHeadAttention(8, 2, position=ALiBi(bidirectional=True))(x)


@pytest.mark.parametrize("position", POSITIONS[1:], ids=str)
def test_positions_of_two_sequences_do_not_compare(position: Rotary | ALiBi) -> None:
    module, x = MultiHeadAttention(8, 2, position=position), torch.zeros(1, 3, 8)
    message = f"{position} compares positions within one sequence: no memory is possible"
    for memory in (x, torch.zeros(1, 5, 8)):
        with refused(ValueError, message):
            module(x, memory, causal=True)


# How it starts


def test_sizes_are_those_of_the_table() -> None:
    module = MultiHeadAttention(10, 6, n_kv_heads=3, d_head=4, d_value=5, d_memory=7)
    assert (module.d_model, module.d_memory) == (10, 7)
    assert (module.n_heads, module.n_kv_heads, module.dropout) == (6, 3, 0.0)
    assert module.position is None
    expected = {"query": (24, 10), "key": (12, 7), "value": (15, 7), "output": (10, 30)}
    assert {n: getattr(module, n).weight.shape for n in LINEARS} == expected


def test_print_shows_what_no_part_shows() -> None:
    module = MultiHeadAttention(12, 4, n_kv_heads=2, dropout=0.1, position=ALiBi())
    shown = "n_heads=4, n_kv_heads=2, dropout=0.1, position=ALiBi(bidirectional=False)"
    assert str(module).splitlines()[1].strip() == shown


def test_sizes_left_out_follow_from_the_others() -> None:
    module = MultiHeadAttention(12, 4)
    assert module.d_memory == 12
    assert (module.n_heads, module.n_kv_heads) == (4, 4)
    assert all(getattr(module, n).weight.shape == (12, 12) for n in LINEARS)
    module = MultiHeadAttention(12, 4, d_head=5)
    expected = {"query": (20, 12), "key": (20, 12), "value": (20, 12), "output": (12, 20)}
    assert {n: getattr(module, n).weight.shape for n in LINEARS} == expected


@pytest.mark.parametrize(
    ("bias", "which"),
    [(True, LINEARS), (False, []), ("qkv", LINEARS[:3]), ("output", LINEARS[3:]), (None, [])],
)
def test_biases_are_where_they_are_asked_for_and_start_as_zeros(
    bias: bool | str | None, which: list[str]
) -> None:
    options = {} if bias is None else {"bias": bias}
    module = MultiHeadAttention(8, 4, n_kv_heads=2, **options)
    assert [n for n in LINEARS if getattr(module, n).bias is not None] == which
    for name in which:
        linear = getattr(module, name)
        assert torch.equal(linear.bias, torch.zeros(linear.out_features))


def test_matrices_start_as_glorots_each_of_the_four_alone() -> None:
    module = MultiHeadAttention(100, 10, n_kv_heads=5, d_head=30, d_value=20, d_memory=50)
    for name in LINEARS:
        weight = getattr(module, name).weight
        bound = math.sqrt(6 / sum(weight.shape))
        assert weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


@on_both_paths
def test_module_drops_weights_in_training_only(path: str) -> None:
    module, x = MultiHeadAttention(12, 3, dropout=0.5), torch.randn(2, 6, 12)
    assert not torch.equal(run(path, module, x), run(path, module, x))
    _, weights = module(x, return_weights=True)
    assert (weights == 0).double().mean().item() == pytest.approx(0.5, abs=0.15)
    module.eval()
    assert torch.equal(run(path, module, x), run(path, module, x))
    assert_near(module(x, return_weights=True)[1].sum(-1), torch.ones(2, 3, 6))


@with_every_position
@on_every_device
def test_outputs_are_where_the_inputs_are(position: Rotary | ALiBi | None, device: str) -> None:
    for where in (device, "meta"):
        module = MultiHeadAttention(8, 2, position=position).to(where)
        x = torch.randn(2, 3, 8, device=where)
        output, weights = module(x, causal=True, return_weights=True)
        assert {output.device.type, weights.device.type, module(x, causal=True).device.type} == {
            where
        }
        assert weights.shape == (2, 2, 3, 3)


@given(modules(), st.integers(0, 3), st.integers(0, 3))
def test_empty_batches_and_sequences_have_their_shape(
    module: MultiHeadAttention, batch: int, tokens: int
) -> None:
    x = tokens_for(module, batch, tokens)
    output, weights = module(x, causal=True, return_weights=True)
    assert output.shape == module(x, causal=True).shape == x.shape
    assert weights.shape == (batch, module.n_heads, tokens, tokens)


def test_under_autocast_types_may_differ() -> None:
    module, x = MultiHeadAttention(8, 2).float(), torch.zeros(1, 3, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype == torch.bfloat16


@pytest.mark.parametrize("position", [None, Rotary(), ALiBi()])
def test_under_autocast_positions_are_of_the_type_of_the_queries(
    position: Rotary | ALiBi | None,
) -> None:
    module, x = MultiHeadAttention(8, 2, position=position).float(), torch.randn(1, 6, 8).float()
    with torch.autocast("cpu", torch.bfloat16):
        output, cache = module(x, causal=True), KeyValueCache()
        steps = [module(x[:, t : t + 1], causal=True, cache=cache) for t in range(6)]
    torch.testing.assert_close(output.float(), module(x, causal=True), rtol=0, atol=0.1)
    torch.testing.assert_close(torch.cat(steps, dim=1), output, rtol=0, atol=0.1)


# Other projections


class Wrapped(nn.Module):
    """No weight of its own, as around a low-rank adapter."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x)


class Asked(Wrapped):
    """Its weight is a method, as that of torch's quantized layers."""

    def weight(self) -> Tensor:
        return self.base.weight


class Rounded(nn.Module):
    """Its weight is of integers."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        weight = base.weight.detach()
        self.scale = weight.abs().max() / 127
        self.register_buffer("weight", (weight / self.scale).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * self.scale).T


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", [Wrapped, Asked, Rounded])
def test_a_projection_may_be_wrapped_or_quantized(kind: type[nn.Module]) -> None:
    module, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    expected = module(x)
    for name in LINEARS:
        setattr(module, name, kind(getattr(module, name)))
    assert_near(module(x), expected, 0.1 if kind is Rounded else 0.0)
    with refused(TypeError, "x must be of floating type, got a tensor of torch.int64"):
        module(x.long())


# Bad input


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize("d_model", [64, 3])
    @pytest.mark.parametrize("n_heads", [5, 7])
    def test_heads_do_not_divide_the_width(self, n_heads: int, d_model: int) -> None:
        with refused(ValueError, f"n_heads must divide d_model, got {n_heads} heads for {d_model}"):
            MultiHeadAttention(d_model, n_heads)

    @pytest.mark.parametrize("position", ["rotary", Rotary, 42])
    def test_position_is_none_of_the_three(self, position: object) -> None:
        message = f"position must be a Rotary(), an ALiBi() or None, got {position!r}"
        with refused(TypeError, message):
            MultiHeadAttention(8, 2, position=position)

    @pytest.mark.parametrize("position", [Rotary(), ALiBi(bidirectional=True)])
    def test_positions_meet_a_memory_of_another_width(self, position: Rotary | ALiBi) -> None:
        message = f"{position} compares positions within one sequence: no memory of width 5 is"
        with refused(ValueError, f"{message} possible"):
            MultiHeadAttention(8, 2, d_memory=5, position=position)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_tokens_are_of_another_type_than_the_weights(self, dtype: torch.dtype) -> None:
        module, x = MultiHeadAttention(8, 2), torch.zeros(1, 3, 8)
        with refused(TypeError, f"x is {dtype} but the weights are torch.float64"):
            module(x.to(dtype))
        with refused(TypeError, f"memory is {dtype} but the weights are torch.float64"):
            module(x, x.to(dtype))

    def test_what_is_no_tensor_and_no_cache(self) -> None:
        module, x = MultiHeadAttention(8, 2), torch.zeros(1, 3, 8)
        with refused(TypeError, "x must be a Tensor, got a list"):
            module([1.0])
        with refused(TypeError, "memory must be a Tensor, got a ndarray"):
            module(x, np.zeros((1, 3, 8)))
        with refused(TypeError, "cache must be a KeyValueCache, got a dict"):
            module(x, cache={})

    @pytest.mark.parametrize("n_kv_heads", [3, 4, 8])
    def test_key_heads_do_not_divide_the_heads(self, n_kv_heads: int) -> None:
        message = f"n_kv_heads must divide n_heads, got {n_kv_heads} key heads for 2 heads"
        with refused(ValueError, message):
            MultiHeadAttention(64, 2, n_kv_heads=n_kv_heads)

    @pytest.mark.parametrize("size", [0, -2, 4.0, True, "4"])
    @pytest.mark.parametrize(
        "name", ["d_model", "n_heads", "n_kv_heads", "d_head", "d_value", "d_memory"]
    )
    def test_sizes_are_no_positive_integers(self, name: str, size: object) -> None:
        sizes = {"d_model": 8, "n_heads": 2, "d_head": 4} | {name: size}
        with refused(ValueError, f"{name} must be a positive integer, got {size!r}"):
            MultiHeadAttention(**sizes)

    def test_numpys_integers_are_sizes(self) -> None:
        attention = MultiHeadAttention(np.int64(8), np.int64(2))
        assert attention(torch.ones(1, 1, 8)).shape == (1, 1, 8)

    def test_sizes_of_one_are_possible(self) -> None:
        sizes = dict.fromkeys(["d_model", "n_heads", "n_kv_heads", "d_value", "d_memory"], 1)
        x = torch.ones(1, 1, 1)
        assert MultiHeadAttention(**sizes)(x).shape == (1, 1, 1)
        assert MultiHeadAttention(**sizes, d_head=1)(x).shape == (1, 1, 1)

    @pytest.mark.parametrize("bias", ["kv", "all", None, 2])
    def test_bias_is_none_of_the_four(self, bias: object) -> None:
        message = f"bias must be True, False, 'qkv' or 'output', got {bias!r}"
        with refused(ValueError, message):
            MultiHeadAttention(8, 2, bias=bias)

    @pytest.mark.parametrize("dropout", [-0.1, 1.0, math.nan])
    def test_dropout_is_no_probability_below_one(self, dropout: float) -> None:
        with refused(ValueError, f"dropout must be in [0, 1), got {dropout}"):
            MultiHeadAttention(8, 2, dropout=dropout)

    @pytest.mark.parametrize("sizes", [{"d_head": 3}, {}])
    def test_rotary_positions_meet_an_odd_width(self, sizes: dict[str, int]) -> None:
        message = "rotary positions turn pairs: d_head must be even, got 3"
        with refused(ValueError, message):
            MultiHeadAttention(6, 2, **sizes, position=Rotary())
        MultiHeadAttention(6, 2, **sizes, position=ALiBi())

    @pytest.mark.parametrize("shape", [(1, 5, 6), (5, 4), (4,), (1, 2, 5, 4)], ids=str)
    def test_tokens_do_not_fit_the_module(self, shape: tuple[int, ...]) -> None:
        attention, fits, wrong = MultiHeadAttention(4, 2), torch.zeros(1, 5, 4), torch.zeros(shape)
        message = f"must have shape (batch, tokens, 4), got {shape}"
        with refused(ValueError, f"x {message}"):
            attention(wrong)
        with refused(ValueError, f"memory {message}"):
            attention(fits, wrong)

    def test_memory_is_of_another_width(self) -> None:
        attention, x = MultiHeadAttention(4, 2, d_memory=6), torch.zeros(1, 5, 4)
        with refused(ValueError, "memory must have shape (batch, tokens, 6), got (1, 5, 4)"):
            attention(x, x)
        with refused(ValueError, "a memory of width 6 is needed, x has 4"):
            attention(x)

    @pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (3, 1)])
    def test_memory_is_of_another_batch(self, ours: int, theirs: int) -> None:
        x, memory = torch.zeros(ours, 5, 4), torch.zeros(theirs, 5, 4)
        with refused(ValueError, f"x has a batch of {ours} but memory of {theirs}"):
            MultiHeadAttention(4, 2)(x, memory)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
    def test_tokens_are_not_of_floating_type(self, dtype: torch.dtype) -> None:
        attention, x = MultiHeadAttention(4, 2), torch.zeros(1, 5, 4)
        wrong = torch.zeros(1, 5, 4, dtype=dtype)
        with refused(TypeError, f"x must be of floating type, got a tensor of {dtype}"):
            attention(wrong)
        with refused(TypeError, f"memory must be of floating type, got a tensor of {dtype}"):
            attention(x, wrong)
