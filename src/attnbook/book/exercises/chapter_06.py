"""Exercises of chapter 06: backward passes in NumPy, held against finite differences."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbook import backprop
from attnbook.backprop import GradientError, check_gradient
from attnbook.book.exercises.mistakes import MistakeError, passed

Arrays = dict[str, Any]
RNG = np.random.default_rng(0)


def check_softmax_backward(softmax_backward: Callable[..., Any]) -> None:
    """Check ``softmax_backward(gradient, weights)`` of chapter 06.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_softmax_backward(
        ...     lambda gradient, weights: weights
        ...     * (gradient - (gradient * weights).sum(axis=-1, keepdims=True))
        ... )
        ✓ softmax_backward is right
    """

    def all_as_one(gradient: Any, weights: Any) -> Any:
        return gradient * weights - weights * (gradient * weights).sum()

    def wrong_axis(gradient: Any, weights: Any) -> Any:
        return gradient * weights - weights * (gradient * weights).sum(axis=-2, keepdims=True)

    mistakes = {
        "takes a(1 − a) for the Jacobian: that is its diagonal, and a logit moves the other "
        "weights of its row too": lambda gradient, weights: gradient * weights * (1 - weights),
        "leaves out the sum over the row: a·da alone": lambda gradient, weights: gradient * weights,
        "subtracts the plain mean of da; it is the mean with the weights a": (
            lambda gradient, weights: weights * (gradient - gradient.mean(axis=-1, keepdims=True))
        ),
        "sums over queries; each row has a softmax of its own, over the keys": wrong_axis,
        "sums over the whole table; each row has a softmax of its own": all_as_one,
        "forgets a in front: da minus its mean": (
            lambda gradient, weights: gradient - (gradient * weights).sum(axis=-1, keepdims=True)
        ),
        "has the sign turned round": (
            lambda gradient, weights: -backprop.softmax_backward(gradient, weights)
        ),
    }

    def of(function: Callable[..., Any]) -> Callable[..., Arrays]:
        return lambda gradient, logits: {"logits": function(gradient, backprop.softmax(logits))}

    _check(
        "softmax_backward",
        lambda logits: backprop.softmax(logits),
        of(softmax_backward),
        {mistake: of(wrong) for mistake, wrong in mistakes.items()},
        {"logits": RNG.standard_normal((4, 6))},
    )


def check_attention_backward(attention_backward: Callable[..., Any]) -> None:
    """Check ``attention_backward(gradient, query, key, value, weights)`` of chapter 06.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def attention_backward(gradient, query, key, value, weights):
        ...     d_weights = gradient @ value.T
        ...     d_logits = weights * (d_weights - (gradient * (weights @ value)).sum(1)[:, None])
        ...     return d_logits @ key / key.shape[1] ** 0.5, weights.T @ gradient
        >>> check_attention_backward(attention_backward)
        ✓ attention_backward is right
    """

    def right(gradient: Any, query: Any, key: Any, value: Any, weights: Any) -> tuple[Any, Any]:
        d_query, _, d_value = backprop.scaled_dot_product_attention_backward(
            gradient, query, key, value, weights
        )
        return d_query, d_value

    def with_query(change: Callable[..., Any]) -> Callable[..., Any]:
        def wrong(gradient: Any, query: Any, key: Any, value: Any, weights: Any) -> Any:
            d_query, d_value = right(gradient, query, key, value, weights)
            return change(d_query, gradient, key, value, weights), d_value

        return wrong

    mistakes = {
        "leaves 1/sqrt(d_k) out of the gradient of the query: the factor stands in it again": (
            with_query(lambda d_query, gradient, key, *_: d_query * key.shape[1] ** 0.5)
        ),
        "divides by the root of d_value; the factor is that of the queries' width": (
            with_query(
                lambda d_query, gradient, key, value, _: (
                    d_query * (key.shape[1] / value.shape[1]) ** 0.5
                )
            )
        ),
        "sends the gradient of the weights to the query without going through the softmax": (
            with_query(
                lambda _, gradient, key, value, __: gradient @ value.T @ key / key.shape[1] ** 0.5
            )
        ),
        "takes a(1 − a) for the softmax's Jacobian": (
            with_query(
                lambda _, gradient, key, value, weights: (
                    (gradient @ value.T * weights * (1 - weights)) @ key / key.shape[1] ** 0.5
                )
            )
        ),
        "returns the two in the other order: first the query's, then the value's": (
            lambda *given: right(*given)[::-1]
        ),
        "gives the value the gradient through the weights' own gradient; it is the weights, "
        "transposed, times the gradient of the output": (
            lambda gradient, query, key, value, weights: (
                right(gradient, query, key, value, weights)[0],
                (gradient @ value.T).T @ gradient,
            )
        ),
    }

    def of(function: Callable[..., Any]) -> Callable[..., Arrays]:
        def backward(gradient: Any, query: Any, key: Any, value: Any) -> Arrays:
            _, weights = backprop.scaled_dot_product_attention(query, key, value)
            given = gradient, query, key, value, weights
            result = function(*(array.copy() for array in given))
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise MistakeError(
                    "attention_backward must return two arrays, the gradients of query and value"
                )
            everything = backprop.scaled_dot_product_attention_backward(*given)
            return {"query": result[0], "key": everything[1], "value": result[1]}

        return backward

    _check(
        "attention_backward",
        lambda query, key, value: backprop.scaled_dot_product_attention(query, key, value)[0],
        of(attention_backward),
        {mistake: of(wrong) for mistake, wrong in mistakes.items()},
        {
            "query": RNG.standard_normal((5, 3)),
            "key": RNG.standard_normal((7, 3)),
            "value": RNG.standard_normal((7, 4)),
        },
    )


def check_sum_groups(sum_groups: Callable[..., Any]) -> None:
    """Check ``sum_groups(gradient, n_kv_heads)`` of chapter 06.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def sum_groups(gradient, n_kv_heads):
        ...     return gradient.reshape(n_kv_heads, -1, *gradient.shape[1:]).sum(axis=1)
        >>> check_sum_groups(sum_groups)
        ✓ sum_groups is right
    """
    n_kv_heads, group = 2, 3

    def grouped(gradient: Any) -> Any:
        return gradient.reshape(n_kv_heads, group, *gradient.shape[1:])

    mistakes = {
        "takes the mean over a group; what was used three times gets the sum": (
            lambda gradient, _: grouped(gradient).mean(axis=1)
        ),
        "keeps the gradient of one query head of each group": (
            lambda gradient, _: grouped(gradient)[:, 0]
        ),
        "sums heads that stand n_kv_heads apart; neighbours share a set of keys": (
            lambda gradient, _: gradient.reshape(group, n_kv_heads, *gradient.shape[1:]).sum(axis=0)
        ),
        "returns one gradient for each query head; there are n_kv_heads sets of keys": (
            lambda gradient, _: gradient
        ),
        "sums over all heads: each set of keys serves its own group": (
            lambda gradient, _: gradient.sum(axis=0, keepdims=True).repeat(n_kv_heads, axis=0)
        ),
    }

    def of(function: Callable[..., Any]) -> Callable[..., Arrays]:
        return lambda gradient, key: {"key": function(gradient, n_kv_heads)}

    _check(
        "sum_groups",
        lambda key: key.repeat(group, axis=0),
        of(sum_groups),
        {mistake: of(wrong) for mistake, wrong in mistakes.items()},
        {"key": RNG.standard_normal((n_kv_heads, 5, 4))},
    )


def check_layer_norm_backward(layer_norm_backward: Callable[..., Any]) -> None:
    """Check ``layer_norm_backward(gradient, normed, sigma)`` of chapter 06.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def layer_norm_backward(gradient, normed, sigma):
        ...     along = (gradient * normed).mean(axis=-1, keepdims=True)
        ...     return (gradient - gradient.mean(axis=-1, keepdims=True) - normed * along) / sigma
        >>> check_layer_norm_backward(layer_norm_backward)
        ✓ layer_norm_backward is right
    """

    def part(*, shift: bool = True, along: bool = True, axis: int = -1) -> Callable[..., Any]:
        def function(gradient: Any, normed: Any, sigma: Any) -> Any:
            result = gradient.copy()
            if shift:
                result -= gradient.mean(axis=axis, keepdims=True)
            if along:
                result -= normed * (gradient * normed).mean(axis=axis, keepdims=True)
            return result / sigma

        return function

    mistakes = {
        "treats mean and deviation as constants: both depend on every entry of the row": (
            part(shift=False, along=False)
        ),
        "treats the deviation as a constant: the part along x̂ is missing": part(along=False),
        "treats the mean as a constant: the part along the ones is missing": part(shift=False),
        "takes means over the tokens; each row is normed by itself": part(axis=0),
        "multiplies by sigma; the gradient of a division is divided": (
            lambda gradient, normed, sigma: part()(gradient, normed, sigma) * sigma**2
        ),
        "forgets to divide by sigma": (
            lambda gradient, normed, sigma: part()(gradient, normed, sigma) * sigma
        ),
        "takes sums in place of means": (
            lambda gradient, normed, sigma: (
                (
                    gradient
                    - gradient.sum(axis=-1, keepdims=True)
                    - normed * (gradient * normed).sum(axis=-1, keepdims=True)
                )
                / sigma
            )
        ),
    }
    ones, zeros = np.ones(6), np.zeros(6)

    def of(function: Callable[..., Any]) -> Callable[..., Arrays]:
        def backward(gradient: Any, x: Any) -> Arrays:
            _, (normed, inverse) = backprop.layer_norm(x, ones, zeros)
            return {"x": function(gradient, normed, 1 / inverse)}

        return backward

    _check(
        "layer_norm_backward",
        lambda x: backprop.layer_norm(x, ones, zeros)[0],
        of(layer_norm_backward),
        {mistake: of(wrong) for mistake, wrong in mistakes.items()},
        {"x": 2.0 * RNG.standard_normal((4, 6)) + 1.0},
    )


def check_tied_gradient(tied_gradient: Callable[..., Any]) -> None:
    """Check ``tied_gradient(d_looked_up, ids, d_logits, hidden, vocab_size)`` of chapter 06.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def tied_gradient(d_looked_up, ids, d_logits, hidden, vocab_size):
        ...     result = d_logits.T @ hidden
        ...     np.add.at(result, ids, d_looked_up)
        ...     return result
        >>> check_tied_gradient(tied_gradient)
        ✓ tied_gradient is right
    """
    vocab_size, ids = 7, np.array([2, 0, 2, 5])
    table = RNG.standard_normal((vocab_size, 3))
    mix = RNG.standard_normal((4, 4))

    def look_up(d_looked_up: Any, ids: Any) -> Any:
        result = np.zeros_like(table)
        np.add.at(result, ids, d_looked_up)
        return result

    def assigned(d_looked_up: Any, ids: Any, d_logits: Any, hidden: Any, _: int) -> Any:
        result = d_logits.T @ hidden
        result[ids] += d_looked_up
        return result

    mistakes = {
        "keeps the output layer's part only; the look-up is a use of the table too": (
            lambda d_looked_up, ids, d_logits, hidden, _: d_logits.T @ hidden
        ),
        "keeps the look-up's part only; the output layer is a use of the table too": (
            lambda d_looked_up, ids, d_logits, hidden, _: look_up(d_looked_up, ids)
        ),
        "counts a word once that stands in the batch twice: result[ids] += … adds one of its "
        "gradients only, np.add.at adds them all": assigned,
        "averages the two parts; a table used twice gets their sum": (
            lambda d_looked_up, ids, d_logits, hidden, _: (
                (look_up(d_looked_up, ids) + d_logits.T @ hidden) / 2
            )
        ),
        "gives the look-up's part to all rows in order; row ids[t] gets it": (
            lambda d_looked_up, ids, d_logits, hidden, _: (
                d_logits.T @ hidden + look_up(d_looked_up, np.arange(len(ids)))
            )
        ),
    }

    # A model as small as can be: look up, mix the tokens, and give logits by the same table.
    def forward(table: Any) -> Any:
        return (mix @ table[ids]) @ table.T

    def of(function: Callable[..., Any]) -> Callable[..., Arrays]:
        def backward(gradient: Any, table: Any) -> Arrays:
            hidden = mix @ table[ids]
            d_looked_up = mix.T @ (gradient @ table)
            return {"table": function(d_looked_up, ids.copy(), gradient, hidden, vocab_size)}

        return backward

    _check(
        "tied_gradient",
        forward,
        of(tied_gradient),
        {mistake: of(wrong) for mistake, wrong in mistakes.items()},
        {"table": table},
    )


def _check(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Arrays],
    mistakes: Mapping[str, Callable[..., Arrays]],
    tensors: Arrays,
) -> None:
    """Pass if finite differences agree; else name the mistake that gives the same gradients."""

    def arrays_only(gradient: Any, **given: Any) -> Arrays:
        result = backward(gradient, **given)
        for each in result.values():
            if not isinstance(each, np.ndarray):
                raise MistakeError(f"{name} must return NumPy arrays, got {type(each).__name__}")
        return result

    try:
        check_gradient(forward, arrays_only, **tensors)
    except GradientError as error:
        gradient = RNG.standard_normal(np.shape(forward(**tensors)))
        given = backward(gradient.copy(), **tensors)
        for mistake, wrong in mistakes.items():
            if _same(given, wrong(gradient, **tensors)):
                raise MistakeError(f"{name}: {mistake}") from None
        raise MistakeError(f"{name}: {error}") from None
    passed(name)


def _same(ours: Arrays, theirs: Arrays) -> bool:
    return all(
        ours[tensor].shape == theirs[tensor].shape
        and np.allclose(ours[tensor], theirs[tensor], rtol=1e-7, atol=1e-9)
        for tensor in theirs
    )
