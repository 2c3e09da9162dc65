"""Exercises of chapter 07."""

import math
from functools import partial

import torch
from torch import Generator, Tensor

from book.exercises.mistakes import Exercise, Function, MistakeError


def _packed_gain(fan_in: int, fan_out: int, n_parts: int) -> float:
    return math.sqrt((fan_in + n_parts * fan_out) / (fan_in + fan_out))


check_packed_gain = Exercise(
    "packed_gain",
    "Check ``packed_gain(fan_in, fan_out, n_parts)`` of chapter 07.",
    _packed_gain,
    {
        "is the factor on the variance; a gain multiplies the standard deviation: take the root": (
            lambda *given: _packed_gain(*given) ** 2
        ),
        "makes the entries smaller still; they are too small already": (
            lambda *given: 1 / _packed_gain(*given)
        ),
        "is the root of the number of parts: the fan-in is not repeated": (
            lambda fan_in, fan_out, n_parts: math.sqrt(n_parts)
        ),
        "is the number of parts: the fan-in is not repeated, and the gain is a root": (
            lambda fan_in, fan_out, n_parts: n_parts
        ),
        "is √2, which is correct for three square matrices only": lambda *given: math.sqrt(2),
        "repeats the fan-in in place of the fan-out: the matrices share their input": (
            lambda fan_in, fan_out, n_parts: _packed_gain(fan_out, fan_in, n_parts)
        ),
    },
    lambda: {
        f"{n_parts} matrices from {fan_in} to {fan_out}": (fan_in, fan_out, n_parts)
        for fan_in, fan_out, n_parts in ((512, 512, 3), (40, 10, 5))
    },
)


def _logit_variance(d_model: int, std_q: float, std_k: float, rho: float) -> float:
    return (d_model * std_q**2) * (d_model * std_k**2) * (1 - rho)


check_logit_variance = Exercise(
    "logit_variance",
    "Check ``logit_variance(d_model, std_q, std_k, rho)`` of chapter 07.",
    _logit_variance,
    {
        "leaves rho out: what all keys have in common shifts a whole row, which a softmax does "
        "not see": lambda d, q, k, rho: _logit_variance(d, q, k, 0),
        "takes the common part from the queries too: a query's common part acts like the rest": (
            lambda d, q, k, rho: _logit_variance(d, q, k, rho) * (1 - rho)
        ),
        "multiplies by rho, the common part; it is the rest that differs within a row": (
            lambda d, q, k, rho: _logit_variance(d, q, k, 1 - rho)
        ),
        "is a standard deviation; the variance is its square": (
            lambda *given: math.sqrt(_logit_variance(*given))
        ),
        "takes the standard deviations for variances: they must be squared": (
            lambda d, q, k, rho: _logit_variance(d, math.sqrt(q), math.sqrt(k), rho)
        ),
        "counts d_model once; query and key have a sum over d_model numbers each": (
            lambda d, *given: _logit_variance(d, *given) / d
        ),
        "is the variance of the query; a logit has the key as a second factor": (
            lambda d, q, k, rho: d * q**2
        ),
    },
    lambda: {
        f"d_model {d}, rho {rho}": (d, std_q, std_k, rho)
        for d, std_q, std_k, rho in ((300, 0.05, 0.07, 0.4), (64, 0.1, 0.02, 0.25))
    },
)


def _output_variance_cases() -> dict[str, tuple[Tensor, float, float]]:
    logits = torch.randn(5, 7, generator=Generator().manual_seed(0), dtype=torch.float64)
    return {
        f"{n} keys, values of variance {variance}, rho {rho}": (
            logits[:, :n].softmax(-1),
            variance,
            rho,
        )
        for n, variance, rho in ((7, 3.0, 0.3), (4, 0.5, 0.8))
    }


def _output_variance(weights: Tensor, variance: float, rho: float, *, dim: int = -1) -> Tensor:
    return variance * (rho + (1 - rho) * weights.pow(2).sum(dim))


check_output_variance = Exercise(
    "output_variance",
    "Check ``output_variance(weights, value_variance, rho)`` of chapter 07.",
    _output_variance,
    {
        "leaves rho out: what values have in common passes through a mean": (
            lambda weights, variance, rho: _output_variance(weights, variance, 0)
        ),
        "divides by the number of keys: that is correct for equal weights only": (
            lambda weights, *given: _output_variance((0 * weights).softmax(-1), *given)
        ),
        "sums over queries; a query's output is a mean over keys": (
            partial(_output_variance, dim=-2)
        ),
        "sums the weights and not their squares: that is 1 in every row": (
            lambda weights, *given: _output_variance(weights.sqrt(), *given)
        ),
        "changes rho and 1 − rho: it is the part of its own that is averaged away": (
            lambda weights, variance, rho: _output_variance(weights, variance, 1 - rho)
        ),
        "gives standard deviations; the variance is their square": (
            lambda *given: _output_variance(*given).sqrt()
        ),
        "takes the value's variance for a standard deviation and squares it": (
            lambda weights, variance, rho: _output_variance(weights, variance**2, rho)
        ),
        "gives one number, the mean over queries; each query has its own": (
            lambda *given: _output_variance(*given).mean()
        ),
    },
    _output_variance_cases,
)


def _fold_bias_cases() -> dict[str, tuple[Tensor, ...]]:
    generator = Generator().manual_seed(0)
    # First square, so that a transposed weight comes through and can be named.
    return {
        f"a W_O of {d_out} × 4": tuple(
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((d_out, 4), (4,), (d_out,))
        )
        for d_out in (4, 3)
    }


check_fold_bias = Exercise(
    "fold_bias",
    "Check ``fold_bias(output_weight, value_bias, output_bias)`` of chapter 07.",
    lambda W, v, o: o + v @ W.T,
    {
        "multiplies with the stored weight: nn.Linear stores (out, in), and computes with its "
        "transpose": lambda W, v, o: o + v @ W,
        "loses the output's own bias": lambda W, v, o: v @ W.T,
        "adds the value's bias as it is; it goes through W_O first": lambda W, v, o: o + v,
        "subtracts; both biases add to the output": lambda W, v, o: o - v @ W.T,
        "sends the output's bias through W_O; it is added behind it": lambda W, v, o: v + o @ W.T,
        "sends both biases through W_O; the output's is added behind it": (
            lambda W, v, o: (v + o) @ W.T
        ),
        "leaves the output's bias as it was": lambda W, v, o: o,
    },
    _fold_bias_cases,
)


def _drawn(deviation: Function) -> Function:
    """Draws uniformly, with the standard deviation that d_model, d_head and n_heads give."""

    def per_head_(weight: Tensor, n_heads: int) -> Tensor:
        n_rows, d_model = weight.shape
        bound = math.sqrt(3) * deviation(d_model, n_rows // n_heads, n_heads)
        return weight.uniform_(-bound, bound)

    return per_head_


def _deviation(per_head_: Function, weight: Tensor, n_heads: int) -> float:
    """The standard deviation of what is drawn, if it is drawn uniformly and alike for all heads."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        per_head_(weight, n_heads)
    largest, std = weight.abs().max().item(), weight.std().item()
    if not largest:
        raise MistakeError("per_head: leaves the weight as it was; it should be redrawn in place")
    if not math.isfinite(largest):
        raise MistakeError("per_head: draws numbers that are not finite")
    if weight.view(n_heads, -1).std(1).min() < 0.9 * std:
        raise MistakeError("per_head: the heads differ in size; each should be drawn alike")
    if torch.equal(*weight.view(n_heads, -1)[:2]):
        raise MistakeError("per_head: gives all heads the same numbers")
    if abs(weight.mean().item()) > 0.1 * std:
        raise MistakeError("per_head: is not uniform on ±a: the mean is not 0")
    if largest > 2 * std:
        raise MistakeError("per_head: is not uniform: some entries are far from all others")
    even = torch.linspace(-largest, largest, weight.numel(), dtype=weight.dtype)
    if (weight.flatten().sort().values - even).abs().max() > 0.05 * largest:
        raise MistakeError("per_head: is not uniform: all numbers between −a and a are as likely")
    return std


check_per_head = Exercise(
    "per_head",
    "Check ``per_head_(weight, n_heads)`` of chapter 07.",
    _drawn(lambda d, d_head, n: math.sqrt(2 / (d + d_head))),
    {
        "counts all heads as one matrix; each head has d_head outputs of its own": (
            _drawn(lambda d, d_head, n: math.sqrt(2 / (d + n * d_head)))
        ),
        "takes the standard deviation for the bound: a uniform distribution on ±a has the "
        "standard deviation a/√3": _drawn(lambda d, d_head, n: math.sqrt(2 / (d + d_head) / 3)),
        "takes the variance for the bound; the bound is √3 times its root": (
            _drawn(lambda d, d_head, n: 2 / (d + d_head) / math.sqrt(3))
        ),
        "counts the fan-in alone": _drawn(lambda d, d_head, n: math.sqrt(2 / d)),
        "divides the fan-in by the heads, too; every head reads the whole token": (
            _drawn(lambda d, d_head, n: math.sqrt(2 / (d / n + d_head)))
        ),
        "takes d_model / n_heads for a head's outputs; they are its rows": (
            _drawn(lambda d, d_head, n: math.sqrt(2 / (d + d / n)))
        ),
        "leaves out the 2 of 2/(fan_in + fan_out)": (
            _drawn(lambda d, d_head, n: math.sqrt(1 / (d + d_head)))
        ),
    },
    lambda: {
        "standard deviation of 4 heads from 400 to 150": (
            torch.zeros(600, 400, dtype=torch.float64),
            4,
        )
    },
    _deviation,
    tolerance=0.01,
    in_place=True,
)
