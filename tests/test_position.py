import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnbook import (
    ALiBi,
    LearnedPositions,
    Rotary,
    SinusoidalPositions,
    alibi_bias,
    alibi_slopes,
    convert_rotary_weight,
    sinusoidal_positions,
)
from attnbook import position as position_module
from attnbook.position import Layout
from strategies import (
    assert_gradients_are_finite_differences,
    assert_near,
    dtypes,
    in_half_precision,
    layouts,
    on_every_device,
    refused,
    seeds,
    slanted,
    slopes,
    turned,
)

even = st.integers(1, 20).map(lambda half: 2 * half)
bases = st.sampled_from([10000.0, 500000.0, 10.0])


# Sinusoids


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_every_entry_is_the_formula(base: float) -> None:
    n_positions, d_model = 40, 12
    table = sinusoidal_positions(n_positions, d_model, base=base)
    for p in range(n_positions):
        for i in range(d_model // 2):
            angle = p / base ** (2 * i / d_model)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)


def test_base_is_ten_thousand_by_default() -> None:
    assert torch.equal(sinusoidal_positions(9, 6), sinusoidal_positions(9, 6, base=10000.0))


@given(d_model=even, base=bases)
def test_half_split_holds_all_sines_and_then_all_cosines(d_model: int, base: float) -> None:
    interleaved = sinusoidal_positions(30, d_model, base=base)
    assert torch.equal(
        interleaved, sinusoidal_positions(30, d_model, base=base, layout="interleaved")
    )
    half_split = sinusoidal_positions(30, d_model, base=base, layout="half_split")
    assert torch.equal(half_split, torch.cat([interleaved[:, ::2], interleaved[:, 1::2]], dim=-1))


def test_table_is_computed_in_float64_and_given_in_the_default_dtype() -> None:
    exact = sinusoidal_positions(5000, 8)
    torch.set_default_dtype(torch.float32)
    table = sinusoidal_positions(5000, 8)
    assert table.dtype == torch.float32
    assert torch.equal(table, exact.float())


@pytest.mark.parametrize("d_model", [7, 3, 1, 0, -2])
def test_d_model_must_be_even_and_positive(d_model: int) -> None:
    message = f"positions pair a sine with a cosine: the width must be even, got {d_model}"
    with refused(ValueError, message):
        sinusoidal_positions(3, d_model)
    with refused(ValueError, message):
        SinusoidalPositions(3, d_model)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("n_positions", [-1, 2.5])
def test_number_of_positions_is_a_number(n_positions: int) -> None:
    assert sinusoidal_positions(0, 4).shape == (0, 4)
    with refused(ValueError, f"n_positions must be an integer, 0 or more, got {n_positions}"):
        sinusoidal_positions(n_positions, 4)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("base", [0.0, -10.0, math.nan, math.inf, None])
def test_base_must_be_positive_and_finite(base: float) -> None:
    with refused(ValueError, f"base must be positive and finite, got {base}"):
        sinusoidal_positions(3, 4, base=base)
    with refused(ValueError, f"base must be positive and finite, got {base}"):
        Rotary(base=base)
    assert Rotary(base=0.5).base == 0.5


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("layout", ["neox", "", "Interleaved"])
def test_unknown_layouts_are_refused(layout: Layout) -> None:
    message = f"layout must be 'interleaved' or 'half_split', got {layout!r}"
    with refused(ValueError, message):
        sinusoidal_positions(3, 4, layout=layout)
    with refused(ValueError, message):
        Rotary(layout=layout)
    with refused(ValueError, message.replace("layout", "to", 1)):
        convert_rotary_weight(torch.zeros(4, 4), 1, to=layout)


# Tables


@given(max_tokens=st.integers(1, 9), data=st.data())
def test_modules_give_the_rows_from_the_offset_on(max_tokens: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, max_tokens))
    n_tokens = data.draw(st.integers(0, max_tokens - offset))
    rows = slice(offset, offset + n_tokens)
    fixed, learned = SinusoidalPositions(max_tokens, 6), LearnedPositions(max_tokens, 6)
    expected = sinusoidal_positions(max_tokens, 6)[rows]
    assert torch.equal(fixed(n_tokens, offset=offset), expected)
    assert torch.equal(learned(n_tokens, offset=offset), learned.table[rows])
    if offset == 0:
        assert torch.equal(fixed(n_tokens), expected)
        assert torch.equal(learned(n_tokens), learned.table[rows])


@pytest.mark.parametrize(("n_tokens", "offset"), [(6, 0), (1, 5), (3, 3), (-1, 0), (2, -1)])
def test_rows_beyond_the_table_are_refused(n_tokens: int, offset: int) -> None:
    last = offset + n_tokens - 1
    for module in (SinusoidalPositions(5, 4), LearnedPositions(5, 4)):
        with refused(ValueError, f"the table has positions 0 … 4, got positions {offset} … {last}"):
            module(n_tokens, offset=offset)


def test_sinusoids_are_never_trained_and_never_saved() -> None:
    module = SinusoidalPositions(5, 4)
    assert not list(module.parameters())
    assert not module.state_dict()
    assert module.to(torch.float32)(3).dtype == torch.float32  # but they move with the module


def test_sinusoids_are_exact_in_every_type_and_survive_an_empty_start() -> None:
    exact = sinusoidal_positions(60, 8, dtype=torch.float64)
    module = SinusoidalPositions(60, 8)
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.float64):
        assert torch.equal(module.to(dtype).table, exact.to(dtype))
        assert torch.equal(sinusoidal_positions(60, 8, dtype=dtype), exact.to(dtype))
    with torch.device("meta"):
        module = SinusoidalPositions(60, 8)
    assert module.to(torch.float32).table.is_meta
    assert torch.equal(module.to_empty(device="cpu").table, exact.float())
    assert not module.table.requires_grad
    assert not module.state_dict()
    assert module.share_memory().table.is_shared()


def test_learned_positions_start_as_normal_numbers_of_std_0_02() -> None:
    table = LearnedPositions(500, 200).table
    assert table.shape == (500, 200)
    assert table.requires_grad
    assert table.std().item() == pytest.approx(0.02, rel=0.01)
    assert table.mean().item() == pytest.approx(0.0, abs=3 * 0.02 / math.sqrt(100_000))
    kurtosis = (table / 0.02).pow(4).mean().item()
    assert kurtosis == pytest.approx(3.0, abs=0.1)  # 1.8, were they uniform


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_gradients_of_added_positions_are_those_of_finite_differences(
    kind: type[SinusoidalPositions | LearnedPositions],
) -> None:
    module, x = kind(6, 4), torch.randn(2, 3, 4, requires_grad=True)
    leaves = x, *module.parameters()
    assert_gradients_are_finite_differences(lambda: (x + module(3, offset=2)).sin(), *leaves)


def test_only_the_rows_that_were_used_are_trained() -> None:
    module = LearnedPositions(6, 3)
    module(3, offset=2).sum().backward()
    assert module.table.grad.any(-1).tolist() == [False, False, True, True, True, False]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("size", [0, -1, 4.0])
@pytest.mark.parametrize("name", ["max_tokens", "d_model"])
def test_learned_table_is_not_empty(name: str, size: int) -> None:
    with refused(ValueError, f"{name} must be a positive integer, got {size}"):
        LearnedPositions(**({"max_tokens": 3, "d_model": 4} | {name: size}))
    LearnedPositions(1, 1)


# Rotations


@given(
    seed=seeds,
    leading=st.lists(st.integers(1, 3), max_size=3),
    positions=st.lists(st.integers(-20, 10_000), max_size=5),
    half=st.integers(1, 4),
    layout=layouts,
    base=bases,
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int16]),
)
def test_rotation_is_a_product_of_complex_numbers(
    seed: int,
    leading: list[int],
    positions: list[int],
    half: int,
    layout: Layout,
    base: float,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(*leading, len(positions), 2 * half)
    result = Rotary(layout, base).rotate(x, torch.tensor(positions, dtype=dtype))
    assert_near(result, turned(x, positions, layout, base), 1e-11)
    assert_near(result.norm(dim=-1), x.norm(dim=-1), 1e-14)


@given(
    seed=seeds,
    positions=st.lists(st.integers(0, 10_000), max_size=5),
    half=st.integers(1, 9),
    dtype=dtypes,
)
def test_both_layouts_turn_the_same_pairs_to_the_last_bit(
    seed: int, positions: list[int], half: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    x, where = torch.randn(2, len(positions), 2 * half, dtype=dtype), torch.tensor(positions).long()
    order = torch.cat([torch.arange(0, 2 * half, 2), torch.arange(1, 2 * half, 2)])
    turned = Rotary("interleaved").rotate(x, where)[..., order]
    assert torch.equal(Rotary("half_split").rotate(x[..., order], where), turned)


@given(layout=layouts, position=st.integers(1, 100_000))
def test_angles_are_exact_whatever_the_dtypes(layout: Layout, position: int) -> None:
    rotary, x, where = Rotary(layout), torch.randn(1, 16), torch.tensor([position])
    exact = rotary.rotate(x, where)
    single = rotary.rotate(x.float(), where)
    assert single.dtype == torch.float32
    assert_near(single.double(), exact, 1e-6)  # angles in float32 would be off by up to 4e-3
    torch.set_default_dtype(torch.float32)
    try:
        assert torch.equal(rotary.rotate(x, where), exact)
    finally:
        torch.set_default_dtype(torch.float64)


@in_half_precision
def test_rotations_in_half_precision_are_near(dtype: torch.dtype) -> None:
    x, positions = torch.randn(2, 50, 16).to(dtype), torch.arange(50) + 10_000
    result = Rotary().rotate(x, positions)
    assert result.dtype == dtype
    expected = Rotary().rotate(x.float(), positions)
    torch.testing.assert_close(
        result.float(), expected, rtol=0, atol=20 * 2.0**-11 if dtype == torch.float16 else 0.05
    )


@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
def test_gradients_of_a_rotation_are_those_of_finite_differences(layout: Layout) -> None:
    x, positions = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([5, 0, 70])
    assert torch.autograd.gradcheck(lambda x: Rotary(layout).rotate(x, positions), (x,))


def test_rotary_is_half_split_of_base_ten_thousand_and_does_not_change() -> None:
    assert Rotary() == Rotary("half_split", 10000.0)
    assert ALiBi() == ALiBi(bidirectional=False)
    with pytest.raises(AttributeError):
        Rotary().base = 10.0
    with pytest.raises(AttributeError):
        ALiBi().bidirectional = True


@pytest.mark.parametrize("width", [5, 1])
def test_vectors_of_odd_width_are_not_turned(width: int) -> None:
    message = f"positions pair a sine with a cosine: the width must be even, got {width}"
    with refused(ValueError, message):
        Rotary().rotate(torch.zeros(3, width), torch.arange(3))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bool])
def test_positions_that_are_no_integers_are_refused(dtype: torch.dtype) -> None:
    with refused(TypeError, f"positions must be integers, got a tensor of {dtype}"):
        Rotary().rotate(torch.zeros(3, 4), torch.ones(3, dtype=dtype))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(2,), (1,), (), (2, 3)])
def test_every_token_has_one_position(shape: tuple[int, ...]) -> None:
    with refused(ValueError, f"x has 3 tokens but positions have shape {shape}"):
        Rotary().rotate(torch.zeros(2, 3, 4), torch.zeros(shape, dtype=torch.int64))


@given(
    seed=seeds,
    layout=layouts,
    base=st.floats(2, 1e4),
    leading=st.sampled_from([((), ()), ((3,), (2,)), ((2, 3), (2, 1)), ((2, 3), (2, 3))]),
)
def test_queries_and_keys_are_turned_together_as_apart(
    seed: int, layout: Layout, base: float, leading: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    torch.manual_seed(seed)
    rotary, positions = Rotary(layout, base), torch.tensor([5, 0, 70])
    query, key = (torch.randn(*shape, 3, 8) for shape in leading)
    both = rotary.rotate_both(query, key, positions)
    for turned_, x in zip(both, (query, key), strict=True):
        assert torch.equal(turned_, rotary.rotate(x, positions))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(2, 4, 8), (2, 3, 6)])
def test_queries_and_keys_turned_together_are_of_the_same_tokens(shape: tuple[int, ...]) -> None:
    message = f"query and key must be of the same tokens and width, got (2, 3, 8) and {shape}"
    with refused(ValueError, message):
        Rotary().rotate_both(torch.zeros(2, 3, 8), torch.zeros(shape), torch.arange(3))


@pytest.mark.usefixtures("without_shape_checks")
def test_queries_and_keys_turned_together_are_of_one_type() -> None:
    with refused(TypeError, "query is torch.float64 but key is torch.float32"):
        Rotary().rotate_both(torch.zeros(3, 8), torch.zeros(3, 8).float(), torch.arange(3))
    x, wrong = torch.zeros(3, 8), np.zeros((3, 8))
    for pair, name in [((wrong, x), "query"), ((x, wrong), "key")]:
        with refused(TypeError, f"{name} must be a Tensor, got a ndarray"):
            Rotary().rotate_both(*pair, torch.arange(3))


# From one rotary layout to the other


@given(seed=seeds, n_heads=st.integers(1, 3), half=st.integers(1, 4), to=layouts)
def test_converted_weights_give_the_same_scores(
    seed: int, n_heads: int, half: int, to: Layout
) -> None:
    torch.manual_seed(seed)
    other = "interleaved" if to == "half_split" else "half_split"
    d_head, positions = 2 * half, torch.tensor([3, 0, 11])
    x = torch.randn(2, 3, 5)

    def scores(layout: Layout, weights: list[torch.Tensor]) -> torch.Tensor:
        q, k = (
            (x @ w.T + b).unflatten(-1, (n_heads, d_head)).transpose(1, 2)
            for w, b in (weights[:2], weights[2:])
        )
        return Rotary(layout).rotate(q, positions) @ Rotary(layout).rotate(k, positions).mT

    shapes = [(n_heads * d_head, 5), (n_heads * d_head,)] * 2
    weights = [torch.randn(shape) for shape in shapes]
    converted = [convert_rotary_weight(w, n_heads, to=to) for w in weights]
    assert_near(scores(to, converted), scores(other, weights))
    for weight, there in zip(weights, converted, strict=True):
        assert there.shape == weight.shape
        assert torch.equal(convert_rotary_weight(there, n_heads, to=other), weight)


def test_entries_2i_go_to_i_and_the_next_to_i_plus_half_head_by_head() -> None:
    n_heads, d_head = 2, 6
    bias = torch.arange(12.0)
    for tensor in (bias, bias[:, None].expand(12, 3)):
        converted = convert_rotary_weight(tensor, n_heads, to="half_split")
        for h in range(n_heads):
            for i in range(d_head // 2):
                start = h * d_head
                assert torch.equal(converted[start + i], tensor[start + 2 * i])
                assert torch.equal(converted[start + i + 3], tensor[start + 2 * i + 1])


@pytest.mark.parametrize(("outputs", "n_heads"), [(6, 2), (4, 3), (8, 0), (8, -1), (2, 2)])
def test_outputs_are_heads_of_even_width(outputs: int, n_heads: int) -> None:
    with refused(ValueError, f"{outputs} outputs are not {n_heads} heads of an even width"):
        convert_rotary_weight(torch.zeros(outputs, 3), n_heads, to="half_split")


@pytest.mark.usefixtures("without_shape_checks")
def test_what_has_no_outputs_is_not_converted() -> None:
    with refused(TypeError, "weight must be a Tensor, got a ndarray"):
        convert_rotary_weight(np.zeros((4, 3)), 2, to="half_split")
    with refused(ValueError, "weight needs a shape (outputs, …), got ()"):
        convert_rotary_weight(torch.tensor(1.0), 2, to="half_split")


# Biases


@pytest.mark.parametrize("n_heads", range(1, 18))
def test_slopes_are_those_of_the_authors_recursion(n_heads: int) -> None:
    assert alibi_slopes(n_heads).tolist() == pytest.approx(slopes(n_heads), rel=1e-14)


def test_slopes_of_8_and_16_heads_are_the_papers() -> None:
    eight = [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(8).tolist() == eight
    between = [2.0 ** -(h / 2) for h in range(1, 17)]
    assert alibi_slopes(16).tolist() == pytest.approx(between, rel=1e-15)
    assert alibi_slopes(12).tolist() == pytest.approx(eight + between[:8:2], rel=1e-15)


@given(
    n_heads=st.integers(1, 9),
    n_queries=st.integers(0, 6),
    more=st.integers(0, 6),
    bidirectional=st.booleans(),
)
def test_bias_is_slope_times_distance(
    n_heads: int, n_queries: int, more: int, bidirectional: bool
) -> None:
    n_keys = n_queries + more
    bias = alibi_bias(n_heads, n_queries, n_keys, bidirectional=bidirectional)
    assert_near(bias, slanted(n_heads, n_queries, n_keys, bidirectional=bidirectional))
    assert torch.equal(ALiBi(bidirectional).bias(n_heads, n_queries, n_keys), bias)
    if more == 0:
        assert torch.equal(alibi_bias(n_heads, n_queries, bidirectional=bidirectional), bias)
        assert torch.equal(ALiBi(bidirectional).bias(n_heads, n_queries), bias)


def test_bias_is_causal_by_default() -> None:
    assert torch.equal(alibi_bias(2, 3, 5), alibi_bias(2, 3, 5, bidirectional=False))
    assert torch.equal(ALiBi().bias(2, 3, 5), alibi_bias(2, 3, 5))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("n_heads", [0, -1, 2.0])
def test_slopes_need_a_head(n_heads: int) -> None:
    with refused(ValueError, f"n_heads must be a positive integer, got {n_heads}"):
        alibi_slopes(n_heads)
    with refused(ValueError, f"n_heads must be a positive integer, got {n_heads}"):
        alibi_bias(n_heads, 3)


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_what_is_done_to_the_rows_in_place_stays_there(
    kind: type[SinusoidalPositions | LearnedPositions],
) -> None:
    positions = kind(5, 4)
    before = positions.table.detach().clone()
    positions(3).detach().add_(1)
    assert torch.equal(positions.table, before)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", [-1, 3.0])
@pytest.mark.parametrize("name", ["n_queries", "n_keys"])
def test_sizes_of_a_bias_are_numbers(name: str, wrong: int) -> None:
    with refused(ValueError, f"{name} must be an integer, 0 or more, got {wrong}"):
        alibi_bias(2, **({"n_queries": 2, "n_keys": 2} | {name: wrong}))


@pytest.mark.usefixtures("without_shape_checks")
def test_bias_falls_to_both_sides_or_not() -> None:
    with refused(TypeError, "bidirectional must be True or False, got a int"):
        ALiBi(8)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_positions_are_asked_for_by_number(
    kind: type[SinusoidalPositions | LearnedPositions],
) -> None:
    message = "n_tokens and offset must be integers, got a {}, a {}"
    with refused(TypeError, message.format("Tensor", "int")):
        kind(5, 4)(torch.zeros(2, 3, 4))
    with refused(TypeError, message.format("int", "float")):
        kind(5, 4)(2, offset=1.0)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(3, 2), (1, 0)])
def test_bias_needs_a_key_for_every_query(n_queries: int, n_keys: int) -> None:
    message = (
        f"ALiBi needs at least as many keys as queries, got {n_queries} queries and {n_keys} keys"
    )
    with refused(ValueError, message):
        alibi_bias(2, n_queries, n_keys)
    with refused(ValueError, message):
        ALiBi().bias(2, n_queries, n_keys)


@on_every_device
def test_rotations_stay_on_the_device_of_their_input(device: str) -> None:
    for where in (device, "meta"):
        x, positions = torch.randn(2, 3, 4, device=where), torch.arange(3, device=where)
        for layout in ("half_split", "interleaved"):
            assert Rotary(layout).rotate(x, positions).device.type == where


class OnMPS(torch.Tensor):
    """Says that it lies on a device that has no float64, and that this build of torch has not."""

    @property
    def device(self) -> torch.device:
        """Where it says it is."""
        return torch.device("mps")

    def cpu(self) -> torch.Tensor:
        """Back."""
        return self.as_subclass(torch.Tensor)


@pytest.mark.usefixtures("without_shape_checks")
def test_angles_need_no_device_with_float64() -> None:
    x, positions = torch.randn(2, 3, 4), torch.arange(3)
    away = positions.as_subclass(OnMPS)
    assert torch.equal(Rotary().rotate(x, away), Rotary().rotate(x, positions))


def test_angles_of_elsewhere_come_to_where_they_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(2, 3, 4, device="meta")
    assert Rotary().rotate(x, torch.arange(3)).device.type == "meta"
    # As for MPS:
    monkeypatch.setattr(position_module, "_angles", lambda *_: torch.zeros(3, 2, device="cpu"))
    with torch.device("meta"):
        assert sinusoidal_positions(3, 4).device.type == "meta"


def test_tables_are_made_where_default_tensors_are() -> None:
    with torch.device("meta"):
        tables = [sinusoidal_positions(3, 4), alibi_slopes(4), alibi_bias(4, 3)]
    assert {table.device.type for table in tables} == {"meta"}


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_turned_is_refused() -> None:
    x, positions = torch.zeros(3, 4), torch.arange(3)
    with refused(TypeError, "positions must be integers, got a tensor of torch.complex128"):
        Rotary().rotate(x, positions.to(torch.complex128))
    with refused(TypeError, "x must be of floating type, got a tensor of torch.int64"):
        Rotary().rotate(x.long(), positions)
    with refused(ValueError, "x needs a shape (…, tokens, d_head), got (4,)"):
        Rotary().rotate(x[0], positions)


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_alibi_is_computed_in_float64_whatever_the_default(default: torch.dtype) -> None:
    exact = alibi_bias(12, 300)
    torch.set_default_dtype(default)
    assert torch.equal(alibi_bias(12, 300, dtype=torch.float64), exact)
    assert alibi_bias(12, 300).dtype == alibi_slopes(12).dtype == default
    assert torch.equal(ALiBi().bias(12, 300), exact.to(default))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: sinusoidal_positions(3, 4, dtype=dtype),
        lambda dtype: alibi_bias(4, 3, dtype=dtype),
        lambda dtype: ALiBi().bias(4, 3, dtype=dtype),
    ],
)
def test_tables_are_of_floating_type(make: Callable[[object], Tensor]) -> None:
    assert make(torch.float16).dtype == torch.float16
    with refused(TypeError, "dtype must be a floating type, got torch.int64"):
        make(torch.int64)
    with refused(TypeError, "dtype must be a dtype, got a str"):
        make("float32")
