"""Exercises of chapter 04."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from attnbook.attention import attention_logits, attention_weights
from attnbook.book.exercises.mistakes import MistakeError, compare, passed


def check_scaled_weights(scaled_weights: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check ``scaled_weights(query, key)`` of chapter 04: softmax of the scaled dot products.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_scaled_weights(lambda q, k: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1))
        ✓ scaled_weights is right
    """
    generator = Generator().manual_seed(0)
    n_queries, n_keys, d_head = 3, 5, 6
    query = torch.randn(2, n_queries, d_head, generator=generator)
    key = torch.randn(2, n_keys, d_head, generator=generator)
    products = query @ key.mT
    root = math.sqrt(d_head)
    right = attention_weights(attention_logits(query, key))
    mistakes = {
        "the products are not divided by sqrt(d_k)": products.softmax(-1),
        "divides by d_k; it is the square root of d_k": (products / d_head).softmax(-1),
        "multiplies by sqrt(d_k); the factor divides": (products * root).softmax(-1),
        "divides by the root of the number of keys; it is that of d_k, query.shape[-1]": (
            products / math.sqrt(n_keys)
        ).softmax(-1),
        "divides by the root of the number of queries; it is that of d_k, query.shape[-1]": (
            products / math.sqrt(n_queries)
        ).softmax(-1),
        "the softmax runs over the queries; it runs over the keys, dim=-1": (
            products / root
        ).softmax(-2),
        "the softmax runs over the batch; it runs over the keys, dim=-1": (products / root).softmax(
            0
        ),
        "returns the logits: the softmax is missing": products / root,
        "divides after the softmax; rows then don't sum to one": products.softmax(-1) / root,
        "is transposed: rows are queries": right.mT,
    }
    result = scaled_weights(query.clone(), key.clone())
    compare("scaled_weights", result, right, mistakes, "3 queries, 5 keys, d_k 6")
    passed("scaled_weights")


def check_masked_weights(masked_weights: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Check ``masked_weights(logits, mask)`` of chapter 04: softmax over the allowed keys.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_masked_weights(attention_weights)
        ✓ masked_weights is right
    """
    generator = Generator().manual_seed(0)
    logits = torch.randn(3, 4, generator=generator)
    # neither the mask nor its opposite leaves a query without a key
    some = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    everything = logits.softmax(-1)
    blocked = logits.masked_fill(~some, -torch.inf)
    mistakes = {
        "the mask is turned round: True means may attend": logits.masked_fill(
            some, -torch.inf
        ).softmax(-1),
        "the mask acts after the softmax: rows don't sum to one": everything * some,
        "forbidden logits are set to 0 and not to -inf: e^0 is 1": (logits * some).softmax(-1),
        "the mask is ignored": everything,
        "the mask is added to the logits: True counts as 1": (logits + some).softmax(-1),
        "the softmax runs over the queries; it runs over the keys, dim=-1": blocked.softmax(-2),
    }
    result = masked_weights(logits.clone(), some.clone())
    right = attention_weights(logits, some)
    compare("masked_weights", result, right, mistakes, "every row keeps a key")

    empty = some.clone()
    empty[1] = False
    leaf = logits.clone().requires_grad_()
    result = masked_weights(leaf, empty.clone())
    right = attention_weights(logits, empty)
    nan, even, unmasked = right.clone(), right.clone(), right.clone()
    nan[1], even[1], unmasked[1] = torch.nan, 0.25, everything[1]
    if isinstance(result, Tensor) and result.shape == nan.shape and result[1].isnan().any():
        raise MistakeError(
            "masked_weights: a row without any allowed key is NaN: the softmax of nothing but -inf"
        )
    mistakes = {
        "a row without any allowed key gets equal weights, the forbidden keys among them": even,
        "a row without any allowed key attends as if there were no mask": unmasked,
    }
    compare("masked_weights", result, right, mistakes, "query 1 may attend to nothing")
    if not result.requires_grad:
        raise MistakeError("masked_weights: the gradient is missing: is there a detach()?")
    result[[0, 2]].pow(2).sum().backward()  # the empty row is outside the loss
    if leaf.grad is None or not bool(leaf.grad.isfinite().all()):
        raise MistakeError(
            "masked_weights: the values are right, but the gradient is NaN: the row without any "
            "allowed key was NaN before it was set to zero"
        )
    passed("masked_weights")


def check_softmax_jacobian(softmax_jacobian: Callable[[Tensor], Tensor]) -> None:
    """Check ``softmax_jacobian(weights)`` of chapter 04: the derivative of weights by logits.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_softmax_jacobian(lambda a: torch.diag(a) - torch.outer(a, a))
        ✓ softmax_jacobian is right
    """
    logits = torch.randn(5, generator=Generator().manual_seed(0), dtype=torch.float64)
    weights = logits.softmax(-1)
    right = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), logits)
    outer, diagonal = torch.outer(weights, weights), torch.diag(weights)
    mistakes = {
        "only the diagonal is there: a logit changes every weight of its row": torch.diag(
            weights * (1 - weights)
        ),
        "has a plus: a larger logit makes the other weights smaller": diagonal + outer,
        "the diagonal lacks the term a_i": -outer,
        "the term -a_i a_j is missing: a logit changes the other weights too": diagonal,
        "the term -a_i a_j is missing on the diagonal": diagonal - outer + torch.diag(weights**2),
        "the sign is turned round": outer - diagonal,
        "gives the diagonal as a vector; a matrix was asked for": weights * (1 - weights),
        "takes the softmax of the weights once more: they are weights already": (
            torch.diag(weights.softmax(-1)) - torch.outer(weights.softmax(-1), weights.softmax(-1))
        ),
    }
    compare("softmax_jacobian", softmax_jacobian(weights.clone()), right, mistakes, "5 keys")
    passed("softmax_jacobian")


def check_edge_attention(
    edge_attention: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
) -> None:
    """Check ``edge_attention(query, key, value, edges)`` of chapter 04.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def edge_attention(query, key, value, edges):
        ...     mask = torch.zeros(len(query), len(key), dtype=torch.bool)
        ...     mask[edges[:, 0], edges[:, 1]] = True  # builds the table, but gives the numbers
        ...     return attention_weights(attention_logits(query, key), mask) @ value
        >>> check_edge_attention(edge_attention)
        ✓ edge_attention is right
    """
    generator = Generator().manual_seed(0)
    tokens, d_head, d_value = 6, 4, 3
    query, key = torch.randn(2, tokens, d_head, generator=generator)
    value = torch.randn(tokens, d_value, generator=generator)
    mask = torch.rand(tokens, tokens, generator=generator) < 0.5
    mask[2] = False  # a node without an edge

    def answer(mask: Tensor, scale: float | None = None) -> Tensor:
        return attention_weights(attention_logits(query, key, scale=scale), mask) @ value

    logits = attention_logits(query, key)
    raw = logits.exp() * mask
    over_sources = raw / raw.sum(0, keepdim=True).clamp(min=1e-300)
    right = answer(mask)
    mistakes = {
        "the edges are read as (source, target); a row is (target, source)": answer(mask.T),
        "the products are not divided by sqrt(d_k)": answer(mask, 1.0),
        "the weights of the edges that leave a node sum to one; it is those that end in it": (
            over_sources @ value
        ),
        "the weights are not divided by their sum": raw @ value,
        "one softmax over all edges; each target has its own": raw / raw.sum() @ value,
        "the edges are ignored: every node hears every node": answer(torch.ones_like(mask)),
        "each target gets the plain mean of its sources: the logits are missing": (
            mask / mask.sum(-1, keepdim=True).clamp(min=1) @ value.to(torch.get_default_dtype())
        ),
    }
    result = edge_attention(query.clone(), key.clone(), value.clone(), mask.nonzero())
    if isinstance(result, Tensor) and result.shape == right.shape and result[2].isnan().any():
        raise MistakeError("edge_attention: a target without an edge is NaN; it gets zeros")
    compare("edge_attention", result, right, mistakes, "6 tokens, one of them without an edge")
    big = 1000 * query
    result = edge_attention(big, key.clone(), value.clone(), mask.nonzero())
    expected = attention_weights(attention_logits(big, key), mask) @ value
    if not torch.allclose(result.to(expected.dtype), expected, rtol=1e-4, atol=1e-6):
        raise MistakeError(
            "edge_attention: right for small logits and wrong for large ones: subtract the "
            "largest logit of each target (not that of all edges) before the exponential"
        )
    passed("edge_attention")
