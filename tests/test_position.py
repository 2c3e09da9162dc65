import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbook import sinusoidal_positions

even = st.integers(1, 20).map(lambda half: 2 * half)


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_every_entry_is_the_formula(base: float) -> None:
    n_positions, d_model = 40, 12
    table = sinusoidal_positions(n_positions, d_model, base=base)
    for p in range(n_positions):
        for i in range(d_model // 2):
            angle = p / base ** (2 * i / d_model)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[p, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)


@given(n_positions=st.integers(0, 50), d_model=even)
def test_every_row_has_norm_sqrt_of_half_d(n_positions: int, d_model: int) -> None:
    norms = sinusoidal_positions(n_positions, d_model).norm(dim=-1)
    expected = torch.full((n_positions,), math.sqrt(d_model / 2))
    torch.testing.assert_close(norms, expected, rtol=1e-14, atol=0)


@given(shift=st.integers(0, 20), d_model=even)
def test_a_shift_turns_every_pair_by_an_angle_that_no_position_changes(
    shift: int, d_model: int
) -> None:
    table = sinusoidal_positions(50, d_model).unflatten(-1, (-1, 2))
    angle = shift * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    sin, cos = table[: 50 - shift].unbind(-1)
    turned = torch.stack(
        [sin * angle.cos() + cos * angle.sin(), cos * angle.cos() - sin * angle.sin()], dim=-1
    )
    torch.testing.assert_close(turned, table[shift:], rtol=0, atol=1e-13)


def test_table_is_computed_in_float64_and_given_in_the_default_dtype() -> None:
    exact = sinusoidal_positions(5000, 8)
    torch.set_default_dtype(torch.float32)
    table = sinusoidal_positions(5000, 8)
    assert table.dtype == torch.float32
    assert torch.equal(table, exact.float())


@pytest.mark.parametrize("d_model", [7, 1, 0, -2])
def test_d_model_must_be_even_and_positive(d_model: int) -> None:
    with pytest.raises(ValueError, match=f"d_model must be even, got {d_model}"):
        sinusoidal_positions(3, d_model)


def test_number_of_positions_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="n_positions must not be negative, got -1"):
        sinusoidal_positions(-1, 4)
