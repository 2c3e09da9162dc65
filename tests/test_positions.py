import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnbook import (
    ALiBi,
    LearnedPositions,
    Position,
    Rotary,
    RotaryScaling,
    SinusoidalPositions,
    alibi_bias,
    alibi_slopes,
    convert_rotary_weight,
    sinusoidal_positions,
)
from attnbook.positions import Layout
from strategies import (
    DTYPES,
    Own,
    assert_near,
    dtypes,
    in_every_dtype,
    layouts,
    on_every_device,
    seeds,
    slanted,
    slopes,
    turned,
)

both_tables = pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
both_layouts = pytest.mark.parametrize("layout", ["interleaved", "half_split"])

# Tables


@pytest.mark.parametrize("options", [{}, {"base": 100.0}])
def test_sinusoids_are_the_formula(options):
    n_positions, d_model, base = 40, 12, options.get("base", 10000.0)
    table = sinusoidal_positions(n_positions, d_model, **options)
    for p in range(n_positions):
        for i in range(d_model // 2):
            angle = p / base ** (2 * i / d_model)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)
    half_split = sinusoidal_positions(n_positions, d_model, layout="half_split", **options)
    assert torch.equal(half_split, torch.cat([table[:, ::2], table[:, 1::2]], dim=-1))


def test_sinusoids_are_exact_in_every_type_and_survive_an_empty_start():
    exact = sinusoidal_positions(5000, 8, dtype=torch.float64)
    module = SinusoidalPositions(5000, 8)
    for dtype in DTYPES:
        assert torch.equal(module.to(dtype).table, exact.to(dtype))
        assert torch.equal(sinusoidal_positions(5000, 8, dtype=dtype), exact.to(dtype))
    torch.set_default_dtype(torch.float32)
    assert torch.equal(sinusoidal_positions(5000, 8), exact.float())
    assert torch.equal(SinusoidalPositions(5000, 8).double().table, exact)
    with torch.device("meta"):
        module = SinusoidalPositions(5000, 8)
    assert module.table.is_meta
    assert torch.equal(module.to_empty(device="cpu").table, exact.float())


def test_sinusoids_are_never_trained_and_never_saved():
    module = SinusoidalPositions(5, 4)
    assert not list(module.parameters())
    assert not module.state_dict()
    assert not module.float().table.requires_grad


@both_tables
def test_modules_look_up_the_row_of_each_position(kind):
    module = kind(9, 6)
    before = module.table.detach().clone()
    for positions in (torch.tensor([7, 0, 7]), torch.tensor([[1, 2], [8, 3]]), torch.arange(0)):
        rows = module(positions)
        assert rows.shape == (*positions.shape, 6)
        assert torch.equal(rows, module.table[positions])
        rows.detach().add_(1)  # what is done to the rows does not change the table
    assert torch.equal(module.table, before)
    if kind is SinusoidalPositions:
        assert torch.equal(module.table, sinusoidal_positions(9, 6))


def test_learned_positions_start_as_normal_numbers_of_std_0_02():
    table = LearnedPositions(500, 200).table
    assert table.shape == (500, 200)
    assert table.std().item() == pytest.approx(0.02, rel=0.01)
    assert table.mean().item() == pytest.approx(0.0, abs=3 * 0.02 / math.sqrt(100_000))
    kurtosis = (table / 0.02).pow(4).mean().item()
    assert kurtosis == pytest.approx(3.0, abs=0.1)  # 1.8, were they uniform


def test_only_the_rows_that_were_used_are_trained():
    module = LearnedPositions(6, 3)
    module(torch.tensor([4, 2, 3, 2])).sum().backward()
    assert module.table.grad[:, 0].tolist() == [0, 0, 2, 1, 1, 0]


# Rotations


@given(
    seed=seeds,
    heads=st.lists(st.integers(1, 3), max_size=2),
    tokens=st.integers(0, 5),
    batched=st.booleans(),
    layout=layouts,
    base=st.sampled_from([10000.0, 500000.0, 10.0]),
    width=st.sampled_from([(2, 1.0), (8, 1.0), (8, 0.5), (8, 0.25), (10, 0.4), (80, 0.4)]),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int16]),
)
def test_rotation_is_a_product_of_complex_numbers(
    seed, heads, tokens, batched, layout, base, width, dtype
):
    torch.manual_seed(seed)
    d_head, fraction = width
    heads = [2, 3] if batched else heads
    positions = torch.randint(-20, 10_000, (2, tokens) if batched else (tokens,), dtype=dtype)
    rotary, x = Rotary(layout, base, fraction), torch.randn(*heads, tokens, d_head)
    result = rotary.rotate(x, positions)
    assert_near(result, turned(x, positions, rotary), 1e-11)
    assert_near(result.norm(dim=-1), x.norm(dim=-1), 1e-14)
    assert torch.equal(result[..., int(fraction * d_head) :], x[..., int(fraction * d_head) :])


@given(seeds, layouts, st.integers(-5, 10_000), st.sampled_from([1.0, 0.5]))
def test_scores_depend_on_the_difference_of_positions(seed, layout, shift, fraction):
    torch.manual_seed(seed)
    query, key = torch.randn(2, 2, 3, 5, 8)
    rotary = Rotary(layout, fraction=fraction, scaling=RotaryScaling(2.0))
    queries, keys = torch.tensor([5, 0, 70, 2, 3]), torch.arange(5)
    scores = rotary.rotate(query, queries) @ rotary.rotate(key, keys).mT
    shifted = rotary.rotate(query, queries + shift) @ rotary.rotate(key, keys + shift).mT
    assert_near(shifted, scores, 1e-10)
    other = rotary.rotate(query, queries + 1) @ rotary.rotate(key, keys).mT
    assert (other - scores).abs().max() > 0.01


@given(seed=seeds, half=st.integers(1, 9), dtype=dtypes)
def test_both_layouts_turn_the_same_pairs_to_the_last_bit(seed, half, dtype):
    torch.manual_seed(seed)
    x, positions = torch.randn(2, 4, 2 * half, dtype=dtype), torch.randint(10_000, (4,))
    order = torch.cat([torch.arange(0, 2 * half, 2), torch.arange(1, 2 * half, 2)])
    interleaved = Rotary("interleaved").rotate(x, positions)[..., order]
    assert torch.equal(Rotary("half_split").rotate(x[..., order], positions), interleaved)


@in_every_dtype
@both_layouts
def test_angles_are_exact_whatever_the_dtype(layout, dtype):
    x, positions = torch.randn(3, 40, 16).to(dtype), torch.arange(40) * 2500
    exact = Rotary(layout).rotate(x.double(), positions)
    torch.set_default_dtype(torch.float32)
    result = Rotary(layout).rotate(x, positions)
    assert result.dtype == dtype
    # In float32 the angles would be off by up to 4e-3.
    assert_near(result.double(), exact, 10 * torch.finfo(dtype).eps)


@both_layouts
def test_gradients_of_rotations_equal_finite_differences(layout):
    x, positions = torch.randn(2, 2, 3, 4, requires_grad=True), torch.tensor([[5, 0, 7], [1, 2, 3]])
    for rotary in (Rotary(layout), Rotary(layout, fraction=0.5, scaling=RotaryScaling(4.0))):
        assert torch.autograd.gradcheck(lambda x, r=rotary: r.rotate(x, positions), (x,))


@given(seed=seeds, layout=layouts, key_heads=st.sampled_from([1, 3]), batched=st.booleans())
def test_queries_and_keys_are_turned_together_as_apart(seed, layout, key_heads, batched):
    torch.manual_seed(seed)
    rotary, positions = Rotary(layout, 50.0, 0.5), torch.tensor([[5, 0, 70], [1, 2, 3]])
    positions = positions if batched else positions[0]
    query, key = torch.randn(2, 3, 3, 8), torch.randn(2, key_heads, 3, 8)
    for position in (rotary, Own()):
        both = position.rotate_both(query, key, positions)
        for result, x in zip(both, (query, key), strict=True):
            assert torch.equal(result, position.rotate(x, positions))


def llama3(factor: float, original: int, low: float, high: float) -> tuple[dict, RotaryScaling]:
    """Settings as transformers has them, and the same scaling here."""
    settings = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low}
    settings |= {"high_freq_factor": high, "original_max_position_embeddings": original}
    return settings, RotaryScaling(factor, original, low=low, high=high)


def yarn(ramp: str, factor: float, original: int, **more: float) -> tuple[dict, RotaryScaling]:
    """The same for YaRN."""
    settings = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    low, high = more.get("beta_slow", 1.0), more.get("beta_fast", 32.0)
    scale = more.get("attention_factor", 0.1 * math.log(factor) + 1)
    settings |= more | {"truncate": ramp == "whole pairs"}
    return settings, RotaryScaling(factor, original, low, high, ramp, scale)


SCALINGS = [
    yarn("whole pairs", 4.0, 8192),
    yarn("pairs", 4.0, 8192),
    yarn("whole pairs", 40.0, 3),  # not one turn in these
    yarn("pairs", 2.0, 900, beta_slow=2.0, beta_fast=9.0, attention_factor=0.7),
    yarn("whole pairs", 2.0, 900, beta_slow=8.9, beta_fast=9.0),
    ({"rope_type": "default"}, None),
    ({"rope_type": "linear", "factor": 8.0}, RotaryScaling(8.0)),
    llama3(8.0, 8192, 1.0, 4.0),
    llama3(32.0, 512, 2.0, 5.0),
]


@pytest.mark.parametrize("fraction", [1.0, 0.25])
@pytest.mark.parametrize(("settings", "scaling"), SCALINGS)
def test_scaled_and_partial_rotations_are_those_of_transformers(settings, scaling, fraction):
    neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    config = neox.GPTNeoXConfig(hidden_size=256, num_attention_heads=2, num_hidden_layers=1)
    config.rope_parameters = settings | {"rope_theta": 5e5, "partial_rotary_factor": fraction}
    query, key = torch.randn(2, 2, 2, 9, 128, dtype=torch.float32)
    positions = torch.randint(100, (2, 9))
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(query, positions)
    theirs = neox.apply_rotary_pos_emb(query, key, cos, sin)
    rotary = Rotary(base=5e5, fraction=fraction, scaling=scaling)
    own = rotary.rotate_both(query, key, positions)
    torch.testing.assert_close(own, theirs, rtol=0, atol=1e-4)
    far = torch.full((2, 9), 9000)  # where theirs are exact to a thousandth
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(query, far)
    theirs = neox.apply_rotary_pos_emb(query, key, cos, sin)
    torch.testing.assert_close(rotary.rotate_both(query, key, far), theirs, rtol=0, atol=1e-2)
    plain = Rotary(base=5e5, fraction=fraction).rotate(query, positions)
    assert torch.equal(plain, own[0]) == (scaling is None)


def test_llama3_scaling_keeps_fast_frequencies_and_divides_slow_ones():
    assert RotaryScaling(8.0, 100) == RotaryScaling(8.0, 100, low=1.0, high=4.0)
    turns = torch.tensor([9.0, 4.0, 2.5, 1.0, 0.5])  # in 100 tokens
    scaled = RotaryScaling(8.0, 100).apply(2 * math.pi * turns / 100)
    expected = torch.tensor([9.0, 4.0, (2.5 + 2.5 / 8) / 2, 1 / 8, 0.5 / 8])
    assert_near(scaled, 2 * math.pi * expected / 100)


def test_rotary_is_half_split_of_base_ten_thousand_and_does_not_change():
    assert Rotary() == Rotary("half_split", 10000.0, 1.0, None)
    assert ALiBi() == ALiBi(bidirectional=False)
    for frozen, name in ((Rotary(), "base"), (ALiBi(), "bidirectional"), (RotaryScaling(2), "low")):
        with pytest.raises(AttributeError):
            setattr(frozen, name, 1.0)


# From one rotary layout to the other


@given(seed=seeds, n_heads=st.integers(1, 3), half=st.integers(1, 4), to=layouts)
def test_converted_weights_give_the_same_scores(seed, n_heads, half, to):
    torch.manual_seed(seed)
    other = "interleaved" if to == "half_split" else "half_split"
    d_head, positions, x = 2 * half, torch.tensor([3, 0, 11]), torch.randn(2, 3, 5)

    def scores(layout: Layout, weights: list[Tensor]) -> Tensor:
        q, k = (
            (x @ w.T + b).unflatten(-1, (n_heads, d_head)).transpose(1, 2)
            for w, b in (weights[:2], weights[2:])
        )
        return Rotary(layout).rotate(q, positions) @ Rotary(layout).rotate(k, positions).mT

    weights = [torch.randn(shape) for shape in [(n_heads * d_head, 5), (n_heads * d_head,)] * 2]
    converted = [convert_rotary_weight(w, n_heads, to=to) for w in weights]
    assert_near(scores(to, converted), scores(other, weights))
    for weight, there in zip(weights, converted, strict=True):
        assert there.shape == weight.shape
        assert torch.equal(convert_rotary_weight(there, n_heads, to=other), weight)


def test_conversion_moves_pairs_apart_head_by_head():
    order = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    for tensor in (torch.arange(12.0), torch.arange(36.0).view(12, 3)):
        assert torch.equal(convert_rotary_weight(tensor, 2, to="half_split"), tensor[order])


# Biases


@pytest.mark.parametrize("n_heads", range(1, 18))
def test_slopes_are_those_of_the_authors_recursion(n_heads):
    assert alibi_slopes(n_heads).tolist() == pytest.approx(slopes(n_heads), rel=1e-14)


def test_slopes_of_8_12_and_16_heads_are_the_papers():
    eight, between = [2.0**-h for h in range(1, 9)], [2.0 ** -(h / 2) for h in range(1, 17)]
    assert alibi_slopes(8).tolist() == eight
    assert alibi_slopes(16).tolist() == pytest.approx(between, rel=1e-15)
    assert alibi_slopes(12).tolist() == pytest.approx(eight + between[:8:2], rel=1e-15)


@given(
    n_heads=st.integers(1, 9),
    n_queries=st.integers(0, 5),
    more=st.integers(0, 5),
    bidirectional=st.booleans(),
    seed=seeds,
)
def test_alibi_is_slope_times_distance(n_heads, n_queries, more, bidirectional, seed):
    torch.manual_seed(seed)
    n_keys = n_queries + more
    at_the_end = torch.arange(more, n_keys), torch.arange(n_keys)
    table = alibi_bias(n_heads, n_queries, n_keys, bidirectional=bidirectional)
    assert_near(table, slanted(n_heads, *at_the_end, bidirectional=bidirectional))
    if more == 0:
        assert torch.equal(alibi_bias(n_heads, n_queries, bidirectional=bidirectional), table)
    anywhere = torch.randint(50, (2, n_queries)), torch.randint(50, (2, n_keys))
    for positions in (at_the_end, anywhere):
        bias = ALiBi(bidirectional).bias(n_heads, *positions, torch.float64)
        assert_near(bias, slanted(n_heads, *positions, bidirectional=bidirectional))


def test_alibi_is_causal_by_default_and_says_so():
    assert torch.equal(alibi_bias(2, 3, 5), alibi_bias(2, 3, 5, bidirectional=False))
    assert ALiBi().needs_causal
    assert not ALiBi(bidirectional=True).needs_causal


@in_every_dtype
def test_alibi_is_exact_whatever_the_default(dtype):
    exact, positions = alibi_bias(8, 300), torch.arange(300)  # 8 slopes are powers of two
    uneven = alibi_bias(12, 300)
    torch.set_default_dtype(torch.bfloat16)
    assert alibi_slopes(12).dtype == alibi_bias(12, 3).dtype == torch.bfloat16
    assert torch.equal(alibi_bias(8, 300, dtype=dtype), exact.to(dtype))
    assert torch.equal(ALiBi().bias(8, positions, positions, dtype), exact.to(dtype))
    errors = (alibi_bias(12, 300, dtype=dtype).double() - uneven).abs()
    once, twice = 0.51 * torch.finfo(dtype).eps, 1.01 * torch.finfo(dtype).eps  # rounded
    assert (errors <= (once if dtype.itemsize == 2 else twice) * uneven.abs()).all()


def test_position_of_itself_does_nothing():
    x, positions = torch.randn(2, 3, 4), torch.arange(3)
    assert Position().rotate(x, positions) is x
    assert Position().bias(2, positions, positions, torch.float64) is None
    assert not Position().needs_causal
    assert not Rotary().needs_causal


# Devices and refusals


@on_every_device
@both_layouts
def test_positions_stay_on_the_device_of_their_input(layout, device):
    for where in (device, "meta"):
        x, positions = torch.randn(2, 3, 4, device=where), torch.arange(3, device=where)
        assert Rotary(layout).rotate(x, positions).device.type == where
        assert ALiBi().bias(2, positions, positions, torch.float64).device.type == where
        with torch.device(where):
            tables = sinusoidal_positions(3, 4, layout=layout), alibi_slopes(4), alibi_bias(4, 3)
        assert {table.device.type for table in tables} == {where}


class OnMPS(torch.Tensor):
    """Says that it is on a device without float64, for which this build of torch has no code."""

    @property
    def device(self) -> torch.device:
        return torch.device("mps")

    def cpu(self) -> Tensor:
        return self.as_subclass(Tensor)


@pytest.mark.usefixtures("without_shape_checks")
def test_angles_need_no_device_with_float64():
    x, positions = torch.randn(2, 3, 4), torch.arange(3)
    away = Rotary().rotate(x, positions.as_subclass(OnMPS))
    assert torch.equal(away, Rotary().rotate(x, positions))


X = torch.zeros(3, 10)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoidal_positions(3, 7), "even, got 7"),
        (lambda: SinusoidalPositions(3, 7), "even, got 7"),
        (lambda: Rotary().rotate(X[:, :5], torch.arange(3)), "even, got 5"),
        (lambda: Rotary(fraction=0.5).rotate(X, torch.arange(3)), "even, got 5"),
        (lambda: sinusoidal_positions(3, 4, layout="x"), "'interleaved' or 'half_split', got 'x'"),
        (lambda: Rotary("x"), "'interleaved' or 'half_split', got 'x'"),
        (
            lambda: Rotary(base=1.0, scaling=RotaryScaling(2.0, 8, ramp="pairs")),
            "base must not be 1 where a scaling counts pairs",
        ),
        (lambda: convert_rotary_weight(X[:2], 1, to="x"), "or 'half_split', got 'x'"),
        (lambda: LearnedPositions(5, 4)(torch.tensor([0, 5])), "positions 0 … 4, got 0 … 5"),
        (lambda: SinusoidalPositions(5, 4)(torch.tensor([-1])), "positions 0 … 4, got -1 … -1"),
    ],
)
def test_refusal_says_what_was_given_and_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
