"""The readers' checker catches six typical wrong derivations, and names the tensor."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from attnbook import backprop as bp

Gradients = dict[str, np.ndarray]
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (
    RNG.standard_normal((4, 3)),
    RNG.standard_normal((5, 3)),
    RNG.standard_normal((5, 2)),
)


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    return bp.scaled_dot_product_attention(query, key, value)[0]


def attend_backward(
    gradient: np.ndarray,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    through_softmax: Callable[[np.ndarray, np.ndarray], np.ndarray] = bp.softmax_backward,
    scale: float = 3**-0.5,
) -> Gradients:
    _, weights = bp.scaled_dot_product_attention(query, key, value)
    d_logits = through_softmax(gradient @ value.T, weights) * scale
    return {"query": d_logits @ key, "key": d_logits.T @ query, "value": weights.T @ gradient}


def named(error: pytest.ExceptionInfo[bp.GradientError]) -> set[str]:
    """The tensors that a complaint names."""
    return {complaint.split(":")[0] for complaint in str(error.value).split("; ")}


def test_the_right_derivation_passes():
    errors = bp.check_gradient(attend, attend_backward, query=QUERY, key=KEY, value=VALUE)
    assert errors.keys() == {"query", "key", "value"}
    assert max(errors.values()) < 1e-8


def diagonal_jacobian(gradient: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return gradient * weights * (1 - weights)


def other_axis(gradient: np.ndarray, weights: np.ndarray) -> np.ndarray:
    weighted = gradient * weights
    return weighted - weights * weighted.sum(axis=-2, keepdims=True)


@pytest.mark.parametrize(
    "wrong",
    [{"through_softmax": diagonal_jacobian}, {"through_softmax": other_axis}, {"scale": 1.0}],
    ids=["a(1-a) as the Jacobian", "softmax over the wrong axis", "no 1/sqrt(d_k) backward"],
)
def test_a_wrong_way_through_the_logits_is_found_in_query_and_key(wrong):
    def backward(gradient: np.ndarray, **tensors: np.ndarray) -> Gradients:
        return attend_backward(gradient, **tensors, **wrong)

    with pytest.raises(bp.GradientError) as error:
        bp.check_gradient(attend, backward, query=QUERY, key=KEY, value=VALUE)
    assert named(error) == {"query", "key"}


@pytest.mark.parametrize("forgotten", ["query", "key", "value"])
def test_a_forgotten_path_into_x_is_found_in_x(forgotten):
    weights = {name: RNG.standard_normal((6, 6)) for name in ("query", "key", "value")}

    def forward(x: np.ndarray) -> np.ndarray:
        return attend(*(x @ w for w in weights.values()))

    def backward(gradient: np.ndarray, x: np.ndarray, left_out: str | None = None) -> Gradients:
        projected = {name: x @ w for name, w in weights.items()}
        into = attend_backward(gradient, **projected, scale=6**-0.5)
        paths = (d @ weights[name].T for name, d in into.items() if name != left_out)
        return {"x": sum(paths, np.zeros_like(x))}

    x = RNG.standard_normal((4, 6))
    assert bp.check_gradient(forward, backward, x=x)["x"] < 1e-7
    with pytest.raises(bp.GradientError) as error:
        bp.check_gradient(forward, lambda g, x: backward(g, x, forgotten), x=x)
    assert named(error) == {"x"}


@pytest.mark.parametrize("which", ["first", "mean"])
def test_a_missing_sum_over_a_group_is_found_in_key_and_value(which):
    query = RNG.standard_normal((4, 5, 3))
    key, value = RNG.standard_normal((2, 6, 3)), RNG.standard_normal((2, 6, 7))

    def backward(gradient: np.ndarray, **tensors: np.ndarray) -> Gradients:
        repeated = {name: np.repeat(tensors[name], 2, axis=0) for name in ("key", "value")}
        _, weights = bp.scaled_dot_product_attention(tensors["query"], **repeated)
        d_query, d_key, d_value = bp.scaled_dot_product_attention_backward(
            gradient, tensors["query"], **repeated, weights=weights
        )
        by_group = {"key": d_key.reshape(2, 2, 6, 3), "value": d_value.reshape(2, 2, 6, 7)}
        fewer = {
            name: d[:, 0] if which == "first" else d.mean(axis=1) for name, d in by_group.items()
        }
        return {"query": d_query, **fewer}

    with pytest.raises(bp.GradientError) as error:
        bp.check_gradient(attend, backward, query=query, key=key, value=value)
    assert named(error) == {"key", "value"}


@pytest.mark.parametrize("missing", ["both means", "the mean", "the mean along the normed row"])
def test_layer_norm_without_its_mean_terms_is_found_in_x(missing):
    weight, bias = RNG.standard_normal((2, 5))

    def backward(
        gradient: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray
    ) -> Gradients:
        _, (normed, inverse) = bp.layer_norm(x, weight, bias)
        _, d_weight, d_bias = bp.layer_norm_backward(gradient, weight, normed, inverse)
        d_normed = gradient * weight
        d_x = d_normed.copy()
        if missing == "the mean along the normed row":
            d_x -= d_normed.mean(-1, keepdims=True)
        if missing == "the mean":
            d_x -= normed * (d_normed * normed).mean(-1, keepdims=True)
        return {"x": d_x * inverse, "weight": d_weight, "bias": d_bias}

    with pytest.raises(bp.GradientError) as error:
        bp.check_gradient(
            lambda **t: bp.layer_norm(**t)[0],
            backward,
            x=RNG.standard_normal((3, 5)),
            weight=weight,
            bias=bias,
        )
    assert named(error) == {"x"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "x: no gradient was returned"),
        ({"x": np.ones(2)}, r"x: its gradient has shape \(2,\), the tensor \(3,\)"),
        (
            {"x": np.full(3, np.nan)},
            r"^x: at \[2\] the gradient is nan, finite differences give -?\d",
        ),
        (
            {"x": np.array([2.0, 4.0, 6.1])},
            r"^x: at \[2\] the gradient is -?[\d.]+, finite differences give -?[\d.]+$",
        ),
    ],
    ids=["missing", "shape", "nan", "number"],
)
def test_the_complaint_says_what_is_wrong(wrong, message):
    with pytest.raises(bp.GradientError, match=message):
        bp.check_gradient(
            lambda x: np.asarray((x**2).sum()),
            lambda gradient, x: {
                k: (v if v.shape != (3,) else gradient * v) for k, v in wrong.items()
            },
            x=np.array([1.0, 2.0, 3.0]),
            seed=0,
        )


def test_a_gradient_that_is_exactly_zero_passes_and_a_small_wrong_one_does_not():
    def forward(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return bp.softmax(x + shift)

    def backward(gradient: np.ndarray, x: np.ndarray, shift: np.ndarray) -> Gradients:
        d_x = bp.softmax_backward(gradient, bp.softmax(x + shift))
        return {"x": d_x, "shift": np.zeros_like(shift)}

    def wrong(gradient: np.ndarray, x: np.ndarray, shift: np.ndarray) -> Gradients:
        return backward(gradient, x, shift) | {"shift": np.full_like(shift, 1e-6)}

    x, shift = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 1))
    bp.check_gradient(forward, backward, x=x, shift=shift)
    with pytest.raises(bp.GradientError, match=r"^shift: "):
        bp.check_gradient(forward, wrong, x=x, shift=shift)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
def test_the_tolerance_is_relative_to_each_entry(tolerance):
    def check(error: float) -> None:
        def backward(gradient: np.ndarray, x: np.ndarray) -> Gradients:
            return {"x": 2e4 * gradient * x * (1 + error)}

        bp.check_gradient(lambda x: 1e4 * x**2, backward, tolerance=tolerance, x=x)

    x = RNG.standard_normal((3, 4))
    check(0.5 * tolerance)
    with pytest.raises(bp.GradientError, match=r"^x: "):
        check(2 * tolerance)


def test_a_small_gradient_is_measured_by_its_own_size():
    def backward(gradient: np.ndarray, large: np.ndarray, small: np.ndarray) -> Gradients:
        return {"large": 100.0 * gradient, "small": (1.0 + 1e-5) * gradient}

    large, small = RNG.standard_normal((2, 3, 4))
    with pytest.raises(bp.GradientError, match=r"^small: [^;]*$"):
        bp.check_gradient(
            lambda large, small: 100 * large + small, backward, large=large, small=small
        )


@pytest.mark.parametrize("size", [1e-2, 1e-4])
def test_a_wrong_entry_is_found_beside_a_large_one(size):
    """The second gradient is ``size`` times the first; the tolerance is a thousandth of that."""

    def backward(gradient: np.ndarray, x: np.ndarray, factor: float = 1.0) -> Gradients:
        return {"x": 3 * gradient * x**2 * np.array([1.0, factor])}

    x = np.array([100.0, 100.0 * size**0.5])
    assert bp.check_gradient(lambda x: x**3, backward, x=x)["x"] < 1e-8
    with pytest.raises(bp.GradientError, match=r"^x: at \[1\] [^;]*$"):
        bp.check_gradient(lambda x: x**3, lambda g, x: backward(g, x, 1 + 1e-4), x=x)


def in_float32(x: np.ndarray) -> np.ndarray:
    return np.tanh(x.astype("float32")).astype("float64")


def step(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, 1.0, 0.0)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


KINK, PASSES = np.array([-1.0, 0.0, 2.0]), nullcontext()
WRONG = partial(pytest.raises, bp.GradientError)
JUMPS = partial(pytest.raises, ValueError, match="at .* forward jumps, or computes in float32")
# What is computed, its slope as it is claimed to be, where, and what the check says.
CHECKS = {
    # At the first step the differences themselves are off by 1.7e-5.
    "steep": (lambda x: np.exp(1e3 * x), lambda x: 1e3 * np.exp(1e3 * x), KINK / 1e3, PASSES),
    # Beside the point both sides differ by more than the gradient is off.
    "curved": (
        *(lambda x: np.exp(100 * x), lambda x: (100 + 1e-3) * np.exp(100 * x)),
        *(np.array([0.01, 0.02]), WRONG(match=r"^x: at \[\d\] the gradient")),
    ),
    "a kink beside the point": (relu, step, np.array([-1.0, 1e-3, 2.0]), PASSES),
    "a kink to the left": (relu, step, np.array([-1.0, -4e-6, 2.0]), PASSES),
    "a kink to the right": (relu, step, np.array([-1.0, 4e-6, 2.0]), PASSES),
    "a kink": (
        *(relu, step, KINK),
        pytest.raises(ValueError, match=r"^x: at \[1\] forward has a kink: choose another point"),
    ),
    "float32": (in_float32, lambda x: 1 - np.tanh(x) ** 2, RNG.standard_normal(40), JUMPS()),
    "a step": (step, np.zeros_like, KINK, JUMPS()),
    "a sign": (np.sign, np.zeros_like, KINK, JUMPS()),
    "a random forward": (
        *(lambda x: x * (RNG.random(3) > 0.5), np.ones_like, np.ones(3)),
        pytest.raises(ValueError, match=r"^forward is not deterministic"),
    ),
    "zeros": (lambda x: x**2, np.zeros_like, np.ones((9, 9)), WRONG(match="^x: ")),
    "a large constant": (lambda x: x**2 + 1e7, np.zeros_like, np.ones((9, 9)), WRONG(match="^x: ")),
}


@pytest.mark.parametrize(("forward", "slope", "x", "says"), CHECKS.values(), ids=CHECKS)
def test_what_the_check_says_of_a_function_of_one_tensor(forward, slope, x, says):
    with says:
        errors = bp.check_gradient(lambda x: forward(x), lambda g, x: {"x": g * slope(x)}, x=x)
        assert errors["x"] < 1e-6


def test_tensors_are_left_as_they_were():
    x = np.arange(3.0)

    def spoil(gradient: np.ndarray, x: np.ndarray) -> Gradients:
        x += 1.0
        return {"x": gradient}

    bp.check_gradient(lambda x: x.copy(), spoil, x=x)
    assert np.array_equal(x, np.arange(3.0))


def test_zeros_checked_alone_pass_and_nothing_else_does():
    rng = np.random.default_rng(0)
    query, memory, value, matrix = (
        rng.standard_normal(shape) for shape in ((5, 3), (7, 6), (7, 4), (6, 3))
    )

    def forward(bias: np.ndarray) -> np.ndarray:
        return bp.scaled_dot_product_attention(query, memory @ matrix + bias, value)[0]

    def backward(gradient: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
        key = memory @ matrix + bias
        weights = bp.scaled_dot_product_attention(query, key, value)[1]
        _, d_key, _ = bp.scaled_dot_product_attention_backward(gradient, query, key, value, weights)
        return {"bias": d_key.sum(axis=0)}

    bias = np.ones(3)
    assert bp.check_gradient(forward, backward, bias=bias)["bias"] <= 1e-6
    for wrong in (1e-6, np.nan, np.inf, 1j):
        with pytest.raises(bp.GradientError, match=r"^bias: at \["):
            bp.check_gradient(
                forward, lambda g, bias, wrong=wrong: {"bias": 0 * bias + wrong}, bias=bias
            )


def test_differences_of_functions_that_keep_or_change_their_argument():
    def doubled(x: np.ndarray) -> float:
        x *= 2
        return float((x**2).sum())

    assert bp.numerical_gradient(doubled, np.ones(3)) == pytest.approx(8.0)
    assert bp.numerical_gradient(lambda x: x.squeeze(), np.array([2.0])) == pytest.approx(1.0)
    assert bp.numerical_gradient(lambda x: x, np.array(2.0)) == pytest.approx(1.0)


def test_the_entry_that_is_named_is_not_near_zero():
    x = np.array([1e-6, 3.0, 1e-3])
    with pytest.raises(bp.GradientError, match=r"x: at \[1\]"):
        bp.check_gradient(lambda x: x**2, lambda gradient, x: {"x": 2 * x * gradient + 1}, x=x)
