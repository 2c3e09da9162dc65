"""Exercises of chapter 07."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from attnbook.book.exercises.mistakes import MistakeError, compare, passed


def check_packed_gain(packed_gain: Callable[[int, int, int], float]) -> None:
    """Check ``packed_gain(fan_in, fan_out, n_parts)`` of chapter 07.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_packed_gain(lambda n_in, n_out, n: ((n_in + n * n_out) / (n_in + n_out)) ** 0.5)
        ✓ packed_gain is right
    """
    for fan_in, fan_out, n_parts in ((512, 512, 3), (40, 10, 5)):
        alone, packed = fan_in + fan_out, fan_in + n_parts * fan_out
        right = math.sqrt(packed / alone)
        mistakes = {
            "is the factor on the variance; a gain multiplies the standard deviation: take the "
            "root": right**2,
            "makes the entries smaller still; they are too small already": 1 / right,
            "is the root of the number of parts: the fan-in is not repeated": math.sqrt(n_parts),
            "is the number of parts: the fan-in is not repeated, and the gain is a root": n_parts,
            "is √2, which is right for three square matrices only": math.sqrt(2),
            "repeats the fan-in in place of the fan-out: the matrices share their input": (
                math.sqrt((n_parts * fan_in + fan_out) / alone)
            ),
        }
        case = f"{n_parts} matrices from {fan_in} to {fan_out}"
        _number("packed_gain", packed_gain(fan_in, fan_out, n_parts), right, mistakes, case)
    passed("packed_gain")


def check_logit_variance(logit_variance: Callable[[int, float, float, float], float]) -> None:
    """Check ``logit_variance(d_model, std_q, std_k, rho)`` of chapter 07.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_logit_variance(lambda d, q, k, rho: d * q**2 * d * k**2 * (1 - rho))
        ✓ logit_variance is right
    """
    d_model, std_q, std_k, rho = 300, 0.05, 0.07, 0.4
    query, key = d_model * std_q**2, d_model * std_k**2
    right = query * key * (1 - rho)
    mistakes = {
        "leaves rho out: what all keys have in common shifts a whole row, which a softmax does "
        "not see": query * key,
        "takes the common part from the queries too: a query's common part acts like the rest": (
            right * (1 - rho)
        ),
        "multiplies by rho, the common part; it is the rest that differs within a row": (
            query * key * rho
        ),
        "is a standard deviation; the variance is its square": math.sqrt(right),
        "takes the standard deviations for variances: they must be squared": (
            d_model**2 * std_q * std_k * (1 - rho)
        ),
        "counts d_model once; query and key have a sum over d_model numbers each": right / d_model,
        "is the variance of the query; a logit has the key as a second factor": query,
    }
    given = logit_variance(d_model, std_q, std_k, rho)
    _number("logit_variance", given, right, mistakes, f"d_model {d_model}, rho {rho}")
    passed("logit_variance")


def check_output_variance(output_variance: Callable[[Tensor, float, float], Tensor]) -> None:
    """Check ``output_variance(weights, value_variance, rho)`` of chapter 07.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_output_variance(lambda a, v, rho: v * (rho + (1 - rho) * (a**2).sum(-1)))
        ✓ output_variance is right
    """
    generator = Generator().manual_seed(0)
    weights = torch.randn(5, 7, generator=generator, dtype=torch.float64).softmax(-1)
    variance, rho = 3.0, 0.3
    squares = weights.pow(2).sum(-1)
    right = variance * (rho + (1 - rho) * squares)
    mistakes = {
        "leaves rho out: what values have in common passes through a mean": variance * squares,
        "divides by the number of keys: that is right for equal weights only": (
            torch.full_like(right, variance * (rho + (1 - rho) / weights.shape[-1]))
        ),
        "sums over queries; a query's output is a mean over keys": (
            variance * (rho + (1 - rho) * weights.pow(2).sum(-2))
        ),
        "sums the weights and not their squares: that is 1 in every row": (
            torch.full_like(right, variance)
        ),
        "changes rho and 1 − rho: it is the part of its own that is averaged away": (
            variance * ((1 - rho) + rho * squares)
        ),
        "gives standard deviations; the variance is their square": right.sqrt(),
        "takes the value's variance for a standard deviation and squares it": variance * right,
        "gives one number, the mean over queries; each query has its own": right.mean(),
    }
    result = output_variance(weights.clone(), variance, rho)
    compare("output_variance", result, right, mistakes, f"values of variance {variance}, rho {rho}")
    passed("output_variance")


def check_fold_bias(fold_bias: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Check ``fold_bias(output_weight, value_bias, output_bias)`` of chapter 07.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_fold_bias(lambda weight, b_v, b_o: b_o + b_v @ weight.T)
        ✓ fold_bias is right
    """
    generator = Generator().manual_seed(0)
    weight, value, output = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 4), (4,), (4,))
    )
    mistakes = {
        "multiplies with the stored weight: nn.Linear stores (out, in), and computes with its "
        "transpose": output + value @ weight,
        "loses the output's own bias": value @ weight.T,
        "adds the value's bias as it is; it goes through W_O first": output + value,
        "subtracts; both biases add to the output": output - value @ weight.T,
        "sends the output's bias through W_O; it is added behind it": value + weight @ output,
        "sends both biases through W_O; the output's is added behind it": (
            (value + output) @ weight.T
        ),
        "leaves the output's bias as it was": output,
    }
    result = fold_bias(weight.clone(), value.clone(), output.clone())
    compare("fold_bias", result, output + value @ weight.T, mistakes, "a W_O of 4 × 4")
    passed("fold_bias")


def check_per_head(per_head_: Callable[[Tensor, int], object]) -> None:
    """Check ``per_head_(weight, n_heads)`` of chapter 07.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def per_head_(weight, n_heads):
        ...     bound = (6 / (weight.shape[1] + weight.shape[0] // n_heads)) ** 0.5
        ...     return weight.uniform_(-bound, bound)
        >>> check_per_head(per_head_)
        ✓ per_head is right
    """
    d_model, n_heads, d_head = 400, 4, 150
    weight = torch.zeros(n_heads * d_head, d_model, dtype=torch.float64)
    with torch.no_grad():
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
    right = math.sqrt(2 / (d_model + d_head))
    mistakes = {
        "counts all heads as one matrix; each head has d_head outputs of its own": math.sqrt(
            2 / (d_model + n_heads * d_head)
        ),
        "takes the standard deviation for the bound: a uniform distribution on ±a has the "
        "standard deviation a/√3": right / math.sqrt(3),
        "takes the variance for the bound; the bound is √3 times its root": right**2 / math.sqrt(3),
        "counts the fan-in alone": math.sqrt(2 / d_model),
        "divides the fan-in by the heads, too; every head reads the whole token": math.sqrt(
            2 / (d_model / n_heads + d_head)
        ),
        "leaves out the 2 of 2/(fan_in + fan_out)": math.sqrt(1 / (d_model + d_head)),
    }
    case = f"standard deviation of {n_heads} heads from {d_model} to {d_head}"
    _number("per_head", std, right, mistakes, case, tolerance=0.005)
    passed("per_head")


def _number(
    name: str,
    given: object,
    right: float,
    mistakes: Mapping[str, float],
    case: str,
    *,
    tolerance: float = 1e-9,
) -> None:
    """Raise a ``MistakeError`` unless the number is right."""
    if not isinstance(given, int | float):
        raise MistakeError(f"{name} must return a number, got {type(given).__name__}")
    if math.isclose(given, right, rel_tol=tolerance):
        return
    for mistake, wrong in mistakes.items():
        if math.isclose(given, wrong, rel_tol=tolerance):
            raise MistakeError(f"{name}: {mistake}")
    raise MistakeError(f"{name}: {case}, should be {right:.10g}, got {given:.10g}")
