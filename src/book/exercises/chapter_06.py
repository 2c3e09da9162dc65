"""Exercises of chapter 06: backward passes in NumPy, held against finite differences."""

import tracemalloc
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from attnbook import backprop
from attnbook.backprop import GradientError, check_gradient
from book.exercises.mistakes import Exercise, Function, MistakeError, kind, parts

Arrays = dict[str, Any]


@dataclass(eq=False, repr=False)
class Backward(Exercise):
    """A backward pass: ``run`` gives gradients by name, and finite differences check them."""

    forward: Function = field(kw_only=True)

    def examine_case(self, function: Function, case: str, arguments: tuple[Any, ...]) -> None:
        """Raise a ``MistakeError`` unless finite differences agree."""
        (tensors,) = arguments

        def backward(gradient: Any, **tensors: Any) -> Arrays:
            result: Arrays = self.run(function, gradient, *tensors.values())
            for each in result.values():
                if not isinstance(each, np.ndarray):
                    raise MistakeError(f"{self.name} must return NumPy arrays, got {kind(each)}")
            return result

        try:
            check_gradient(self.forward, backward, **tensors)
        except GradientError as error:
            shape = np.shape(self.forward(**tensors))
            given = np.random.default_rng(0).standard_normal(shape), *tensors.values()
            result = self.run(function, *deepcopy(given))
            for mistake, mistaken in self.mistakes.items():
                if _same(result, self.run(mistaken, *deepcopy(given))):
                    raise MistakeError(f"{self.name}: {mistake}") from None
            raise MistakeError(f"{self.name}: {error}") from None


def _same(ours: Arrays, theirs: Arrays) -> bool:
    return all(
        ours[tensor].shape == theirs[tensor].shape
        and np.allclose(ours[tensor], theirs[tensor], rtol=1e-7, atol=1e-9)
        for tensor in theirs
    )


def _normal(*cases: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[Arrays]]:
    """Cases of normal numbers, from the shapes of the tensors."""
    rng = np.random.default_rng(0)
    return {
        ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items()): (
            {name: rng.standard_normal(shape) for name, shape in shapes.items()},
        )
        for shapes in cases
    }


def _sum(array: Any, axis: int = -1) -> Any:
    return array.sum(axis=axis, keepdims=True)


# Wrong gradients of the logits, from those of the weights and the weights.
SOFTMAX: dict[str, Function] = {
    "takes a(1 − a) for the Jacobian: that is its diagonal, and a logit moves the other "
    "weights of its row too": lambda da, a: da * a * (1 - a),
    "leaves out the sum over the row: a·da alone": lambda da, a: da * a,
    "subtracts the plain mean of da; it is the mean with the weights a": (
        lambda da, a: a * (da - da.mean(axis=-1, keepdims=True))
    ),
    "subtracts the plain sum of da; it is the sum of a·da": lambda da, a: a * (da - _sum(da)),
    "adds the sum of a·da; it is subtracted": lambda da, a: a * (da + _sum(da * a)),
    "sums over queries; each row has a softmax of its own, over the keys": (
        lambda da, a: a * (da - _sum(da * a, axis=-2))
    ),
    "sums over the whole table; each row has a softmax of its own": (
        lambda da, a: a * (da - (da * a).sum())
    ),
    "forgets a in front: da minus its mean": lambda da, a: da - _sum(da * a),
    "has the sign turned round": lambda da, a: -backprop.softmax_backward(da, a),
}


def _without_a_jacobian(softmax_backward: Function) -> None:
    gradient, weights = np.ones((2, 1000)), np.full((2, 1000), 1e-3)
    tracemalloc.start()
    try:
        check_softmax_backward.guarded(softmax_backward, "2 rows of 1,000")(gradient, weights)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if peak > 100 * gradient.nbytes:
        raise MistakeError(
            "softmax_backward: correct, but for a row of 1,000 it makes a Jacobian of 1,000 × "
            "1,000; the sum of a·da over the row is all that a row needs of it"
        )


check_softmax_backward = Backward(
    "softmax_backward",
    "Check ``softmax_backward(gradient, weights)`` of chapter 06.",
    backprop.softmax_backward,
    SOFTMAX,
    lambda: _normal({"logits": (4, 6)}, {"logits": (5, 3)}),
    lambda function, gradient, logits: {"logits": function(gradient, backprop.softmax(logits))},
    also=_without_a_jacobian,
    forward=lambda logits: backprop.softmax(logits),
)


def _attention_backward(
    gradient: Any,
    query: Any,
    key: Any,
    value: Any,
    weights: Any,
    *,
    of: Function = backprop.softmax_backward,
) -> tuple[Any, Any]:
    """Gradients of query and value; ``of`` makes those of the logits from those of the weights."""
    d_logits = of(gradient @ value.T, weights)
    return d_logits @ key / key.shape[1] ** 0.5, weights.T @ gradient


def _times(query: Function, value: Function = lambda *widths: 1) -> Function:
    """Multiplies both gradients by what the widths of keys and values give."""

    def attention_backward(gradient: Any, *given: Any) -> Any:
        _, k, v, _ = given
        d_query, d_value = _attention_backward(gradient, *given)
        widths = k.shape[1], v.shape[1]
        return d_query * query(*widths), d_value * value(*widths)

    return attention_backward


def _run_attention_backward(function: Function, *tensors: Any) -> Arrays:
    _, weights = backprop.scaled_dot_product_attention(*tensors[1:])
    given = *tensors, weights
    expected = "two arrays, the gradients of query and value"
    query, value = parts("attention_backward", function(*deepcopy(given)), 2, expected)
    _, d_key, _ = backprop.scaled_dot_product_attention_backward(*given)
    return {"query": query, "key": d_key, "value": value}


check_attention_backward = Backward(
    "attention_backward",
    "Check ``attention_backward(gradient, query, key, value, weights)`` of chapter 06.",
    _attention_backward,
    {
        "leaves 1/sqrt(d_k) out of the gradient of the query: the factor stands in it again": (
            _times(lambda d_key, d_value: d_key**0.5)
        ),
        "divides by the root of d_value; the factor is that of the queries' width": (
            _times(lambda d_key, d_value: (d_key / d_value) ** 0.5)
        ),
        "divides the gradient of the query by d_k; 1/sqrt(d_k) stands in it once": (
            _times(lambda d_key, d_value: d_key**-0.5)
        ),
        "multiplies the gradient of the query by sqrt(d_k); it divides": (
            _times(lambda d_key, d_value: d_key)
        ),
        "divides the gradient of the value by sqrt(d_k), too; the factor is in the logits alone": (
            _times(lambda *widths: 1, lambda d_key, d_value: d_key**-0.5)
        ),
        "sends the gradient of the weights to the query without going through the softmax": (
            partial(_attention_backward, of=lambda da, a: da)
        ),
        "returns the two in the other order: first the query's, then the value's": (
            lambda *given: _attention_backward(*given)[::-1]
        ),
        "gives the value the gradient through the weights' own gradient; it is the weights, "
        "transposed, times the gradient of the output": (
            lambda gradient, query, key, value, weights: (
                _attention_backward(gradient, query, key, value, weights)[0],
                (gradient @ value.T).T @ gradient,
            )
        ),
        **{
            f"the gradient of the logits {words}": partial(_attention_backward, of=wrong)
            for words, wrong in SOFTMAX.items()
        },
    },
    lambda: _normal(
        {"query": (5, 3), "key": (7, 3), "value": (7, 4)},
        {"query": (4, 6), "key": (3, 6), "value": (3, 2)},
    ),
    _run_attention_backward,
    forward=lambda query, key, value: backprop.scaled_dot_product_attention(query, key, value)[0],
)


def _groups(gradient: Any, n_kv_heads: int) -> Any:
    return gradient.reshape(n_kv_heads, -1, *gradient.shape[1:])


N_HEADS = {2: 6, 4: 8}  # by the number of sets of keys


check_sum_groups = Backward(
    "sum_groups",
    "Check ``sum_groups(gradient, n_kv_heads)`` of chapter 06.",
    lambda g, n: _groups(g, n).sum(axis=1),
    {
        "takes the mean over a group; what was used several times gets the sum": (
            lambda g, n: _groups(g, n).mean(axis=1)
        ),
        "keeps the gradient of one query head of each group": lambda g, n: _groups(g, n)[:, 0],
        "sums heads that stand n_kv_heads apart; neighbours share a set of keys": (
            lambda g, n: _groups(g, len(g) // n).sum(axis=0)
        ),
        "returns one gradient for each query head; there are n_kv_heads sets of keys": (
            lambda g, n: g
        ),
        "sums over all heads: each set of keys serves its own group": (
            lambda g, n: _sum(g, axis=0).repeat(n, axis=0)
        ),
    },
    lambda: _normal({"key": (2, 5, 4)}, {"key": (4, 3, 6)}),
    lambda function, gradient, key: {"key": function(gradient, len(key))},
    forward=lambda key: key.repeat(N_HEADS[len(key)] // len(key), axis=0),
)


def _layer_norm_backward(
    gradient: Any,
    normed: Any,
    sigma: Any,
    *,
    shift: float = 1,
    along: float = 1,
    mean: Function = np.mean,
    axis: int = -1,
) -> Any:
    """``shift`` and ``along`` multiply what is subtracted: along the ones, and along x̂."""
    result = gradient - shift * mean(gradient, axis=axis, keepdims=True)
    result -= along * normed * mean(gradient * normed, axis=axis, keepdims=True)
    return result / sigma


def _layer_norm(x: Any) -> Any:
    return backprop.layer_norm(x, np.ones(x.shape[1]), np.zeros(x.shape[1]))


def _run_layer_norm_backward(function: Function, gradient: Any, x: Any) -> Arrays:
    _, (normed, inverse) = _layer_norm(x)
    return {"x": function(gradient, normed, 1 / inverse)}


check_layer_norm_backward = Backward(
    "layer_norm_backward",
    "Check ``layer_norm_backward(gradient, normed, sigma)`` of chapter 06.",
    _layer_norm_backward,
    {
        "treats mean and deviation as constants: both depend on every entry of the row": (
            partial(_layer_norm_backward, shift=0, along=0)
        ),
        "treats the deviation as a constant: the part along x̂ is missing": (
            partial(_layer_norm_backward, along=0)
        ),
        "treats the mean as a constant: the part along the ones is missing": (
            partial(_layer_norm_backward, shift=0)
        ),
        "adds the part along x̂; it is subtracted": partial(_layer_norm_backward, along=-1),
        "adds the part along the ones; it is subtracted": partial(_layer_norm_backward, shift=-1),
        "subtracts the mean of g·x̂ and not x̂ times it": (
            lambda gradient, normed, sigma: (
                (
                    gradient
                    - gradient.mean(axis=-1, keepdims=True)
                    - (gradient * normed).mean(axis=-1, keepdims=True)
                )
                / sigma
            )
        ),
        "multiplies x̂ by the mean of g; it is that of g·x̂": (
            lambda gradient, normed, sigma: (
                (gradient - (1 + normed) * gradient.mean(axis=-1, keepdims=True)) / sigma
            )
        ),
        "divides by d − 1; means over a row divide by d": (
            partial(
                _layer_norm_backward,
                mean=lambda x, axis, keepdims: _sum(x, axis) / (x.shape[axis] - 1),
            )
        ),
        "divides by sigma²; the factor is 1/sigma": (
            lambda gradient, normed, sigma: _layer_norm_backward(gradient, normed, sigma**2)
        ),
        "takes means over the tokens; each row is normed by itself": (
            partial(_layer_norm_backward, axis=0)
        ),
        "multiplies by sigma; the gradient of a division is divided": (
            lambda gradient, normed, sigma: _layer_norm_backward(gradient, normed, 1 / sigma)
        ),
        "forgets to divide by sigma": (
            lambda gradient, normed, sigma: _layer_norm_backward(gradient, normed, 1)
        ),
        "takes sums in place of means": partial(_layer_norm_backward, mean=np.sum),
    },
    lambda: _normal({"x": (4, 6)}, {"x": (3, 5)}),
    _run_layer_norm_backward,
    forward=lambda x: _layer_norm(x)[0],
)


IDS = np.array([2, 0, 2, 5])
MIX = np.random.default_rng(2).standard_normal((4, 4))


# A model as small as can be: look up, mix the tokens, and give logits by the same table.
def _forward(table: Any) -> Any:
    return (MIX @ table[IDS]) @ table.T


def _run_tied_gradient(function: Function, gradient: Any, table: Any) -> Arrays:
    d_looked_up = MIX.T @ (gradient @ table)
    return {"table": function(d_looked_up, IDS.copy(), gradient, MIX @ table[IDS], len(table))}


def _looked_up(d_looked_up: Any, ids: Any, d_logits: Any, hidden: Any, vocab_size: int) -> Any:
    result = np.zeros((vocab_size, hidden.shape[1]))
    np.add.at(result, ids, d_looked_up)
    return result


def _at_output(d_looked_up: Any, ids: Any, d_logits: Any, hidden: Any, vocab_size: int) -> Any:
    return d_logits.T @ hidden


def _tied_gradient(*given: Any) -> Any:
    return _looked_up(*given) + _at_output(*given)


def _assigned(d_looked_up: Any, ids: Any, *others: Any) -> Any:
    result = _at_output(d_looked_up, ids, *others)
    result[ids] += d_looked_up
    return result


check_tied_gradient = Backward(
    "tied_gradient",
    "Check ``tied_gradient(d_looked_up, ids, d_logits, hidden, vocab_size)`` of chapter 06.",
    _tied_gradient,
    {
        "keeps the output layer's part only; the look-up is a use of the table too": _at_output,
        "keeps the look-up's part only; the output layer is a use of the table too": _looked_up,
        "counts a word once that stands in the batch twice: result[ids] += … adds one of its "
        "gradients only, np.add.at adds them all": _assigned,
        "averages the two parts; a table used twice gets their sum": (
            lambda *given: _tied_gradient(*given) / 2
        ),
        "gives the look-up's part to all rows in order; row ids[t] gets it": (
            lambda d, ids, *others: _tied_gradient(d, np.arange(len(ids)), *others)
        ),
    },
    lambda: _normal({"table": (7, 3)}, {"table": (9, 2)}),
    _run_tied_gradient,
    forward=_forward,
)
