"""Scaled dot-product attention: forward, and every gradient derived by hand."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy.random import Generator

from attnbook.backprop.checks import check_boolean, check_broadcast, check_shape
from attnbook.backprop.layers import Linear, linear, linear_backward
from attnbook.backprop.module import Array, Module


def softmax(
    logits: Float[np.ndarray, "... queries keys"], mask: Bool[np.ndarray, "..."] | None = None
) -> Float[np.ndarray, "... queries keys"]:
    r"""Softmax of each row over the keys that it may attend to.

    .. math:: A_{ij} = \frac{M_{ij}\, e^{S_{ij}}}{\sum_l M_{il}\, e^{S_{il}}}

    A row that may attend to nothing is all zeros.

    Args:
        logits: one row for each query.
        mask: ``True`` = may attend; broadcasts to the shape of ``logits``.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it does not broadcast to the shape of ``logits``.

    Example:
        >>> softmax(np.zeros((1, 4)), np.array([True, True, False, False]))
        array([[0.5, 0.5, 0. , 0. ]])
    """
    if mask is not None:
        check_boolean("mask", mask)
        check_broadcast("mask", mask, logits.shape)
    weights = logits.astype(np.result_type(logits, 0.0))  # integers become floating numbers
    if mask is not None:
        np.copyto(weights, -np.inf, where=np.logical_not(mask))
    _softmax_in_place(weights)
    return weights


def softmax_backward(
    gradient: Float[np.ndarray, "... queries keys"],
    weights: Float[np.ndarray, "... queries keys"],
) -> Float[np.ndarray, "... queries keys"]:
    r"""From the gradient of the weights to that of the logits.

    .. math:: dS_{ij} = A_{ij} \Big(dA_{ij} - \sum_l A_{il}\, dA_{il}\Big)

    The Jacobian of a row, :math:`\operatorname{diag}(a) - a a^\top`, is never formed: its product
    with a vector takes two passes over the row. Where a weight is zero, so is the gradient: masked
    entries and empty rows need no case of their own.

    Args:
        gradient: of the weights.
        weights: what :func:`softmax` returned.

    Example:
        >>> softmax_backward(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
        array([[ 0.25, -0.25]])
    """
    check_shape("gradient", gradient, weights.shape)
    mean = np.vecdot(gradient, weights)[..., None]
    result = gradient - mean
    result *= weights
    return result


def scaled_dot_product_attention(
    query: Float[np.ndarray, "... queries d_head"],
    key: Float[np.ndarray, "... keys d_head"],
    value: Float[np.ndarray, "... keys d_value"],
    mask: Bool[np.ndarray, "..."] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Float[np.ndarray, "... queries d_value"], Float[np.ndarray, "... queries keys"]]:
    r"""Each query's weighted mean of the values, and the weights.

    .. math:: O = A V, \qquad A = \operatorname{softmax}(\text{scale} \cdot Q K^\top)

    As :func:`attnbook.attention.scaled_dot_product_attention`: fewer heads in ``key`` and
    ``value`` than in ``query`` serve groups of neighbouring query heads, and a causal mask is
    aligned to the end.

    Args:
        query: (…, queries, d_head).
        key: (…, keys, d_head).
        value: (…, keys, d_value).
        mask: ``True`` = may attend; broadcasts to (…, queries, keys).
        causal: also forbid looking ahead.
        scale: factor on the dot products; 1/sqrt(d_head) if not given.

    Returns:
        Output and weights; the backward pass needs the weights.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if widths, leading dimensions or numbers of keys do not fit, or there are more
            queries than keys under a causal mask.

    Source: Vaswani et al. 2017, eq. 1.

    Example:
        >>> q, k, v = np.ones((5, 16)), np.ones((7, 16)), np.ones((7, 3))
        >>> output, weights = scaled_dot_product_attention(q, k, v)
        >>> output.shape, weights.shape
        ((5, 3), (5, 7))
    """
    group = _check_shapes(query, key, value)
    weights = (query * _scale(query, scale)) @ _repeat(key, group).mT  # the logits, so far
    if mask is not None:
        check_boolean("mask", mask)
        check_broadcast("mask", mask, weights.shape)
        np.copyto(weights, -np.inf, where=np.logical_not(mask))
    if causal:
        n_queries, n_keys = weights.shape[-2:]
        if n_queries > n_keys:
            raise ValueError(
                f"aligned to the end, a causal mask needs at least as many keys as queries, got "
                f"{n_queries} queries and {n_keys} keys"
            )
        ahead = ~np.tri(n_queries, n_keys, n_keys - n_queries, dtype=bool)
        np.copyto(weights, -np.inf, where=ahead)
    _softmax_in_place(weights)
    return weights @ _repeat(value, group), weights


def scaled_dot_product_attention_backward(
    gradient: Float[np.ndarray, "... queries d_value"],
    query: Float[np.ndarray, "... queries d_head"],
    key: Float[np.ndarray, "... keys d_head"],
    value: Float[np.ndarray, "... keys d_value"],
    weights: Float[np.ndarray, "... queries keys"],
    *,
    scale: float | None = None,
) -> tuple[
    Float[np.ndarray, "... queries d_head"],
    Float[np.ndarray, "... keys d_head"],
    Float[np.ndarray, "... keys d_value"],
]:
    r"""From the gradient of the output to those of query, key and value.

    .. math::
        dV = A^\top dO, \qquad dA = dO\, V^\top, \qquad
        dS_{ij} = A_{ij} (dA_{ij} - \textstyle\sum_l A_{il}\, dA_{il}), \\
        dQ = \text{scale} \cdot dS\, K, \qquad dK = \text{scale} \cdot dS^\top Q

    With groups, the gradients of the query heads that share a key head are added up.

    Args:
        gradient: of the output.
        query: as in the forward pass, and so are the others.
        key: as there.
        value: as there.
        weights: what the forward pass returned.
        scale: as there.

    Raises:
        ValueError: if a shape does not fit the others.

    Source: the chain rule; as in Dao et al. 2022 (FlashAttention), appendix B.2, who compute the
    weights again in place of keeping them.

    Example:
        >>> q, k, v = np.ones((5, 16)), np.ones((7, 16)), np.ones((7, 3))
        >>> output, weights = scaled_dot_product_attention(q, k, v)
        >>> gradients = scaled_dot_product_attention_backward(np.ones((5, 3)), q, k, v, weights)
        >>> [gradient.shape for gradient in gradients]
        [(5, 16), (7, 16), (7, 3)]
    """
    group = _check_shapes(query, key, value)
    check_shape("weights", weights, (*query.shape[:-1], key.shape[-2]))
    check_shape("gradient", gradient, (*query.shape[:-1], value.shape[-1]))
    d_value = weights.mT @ gradient
    d_logits = softmax_backward(gradient @ _repeat(value, group).mT, weights)
    factor = _scale(query, scale)
    d_query = (d_logits @ _repeat(key, group)) * factor
    d_key = (d_logits.mT @ query) * factor
    return d_query, _sum_groups(d_key, group), _sum_groups(d_value, group)


class SavedAttention(NamedTuple):
    """What the backward pass of :class:`MultiHeadAttention` needs."""

    x: Array
    memory: Array | None
    query: Array
    key: Array
    value: Array
    weights: Array
    heads: Array
    """The heads' outputs, side by side."""


class MultiHeadAttention(Module):
    r"""The attention of :class:`attnbook.attention.MultiHeadAttention`, without its torch.

    Args:
        d_model: width of the input and of the output.
        n_heads: number of query heads, a divisor of ``d_model``.
        n_kv_heads: number of key and value heads, a divisor of ``n_heads``, which is the default.
        d_memory: width of the memory in cross-attention; ``d_model`` if not given.
        bias: biases of all four projections (``True``), of none, of ``"qkv"`` or of ``"output"``.
        seed: of the initial weights, or the generator to draw them from: Glorot-uniform, each
            matrix counted alone.

    Raises:
        ValueError: if a size is not positive, the heads do not divide what they have to, or
            ``bias`` is none of the four.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, section 2.2, for the groups.

    Example:
        >>> attention = MultiHeadAttention(64, 4, n_kv_heads=2)
        >>> x = np.ones((2, 10, 64))
        >>> y, saved = attention.forward(x, causal=True)
        >>> d_x, _ = attention.backward(np.ones_like(y), saved)
        >>> d_x.shape, attention.key.weight.grad.shape
        ((2, 10, 64), (32, 64))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_memory: int | None = None,
        bias: bool | str = False,
        seed: int | Generator = 0,
    ) -> None:
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        d_memory = d_model if d_memory is None else d_memory
        if min(d_model, n_heads, n_kv_heads, d_memory) < 1:
            sizes = f"{d_model}, {n_heads}, {n_kv_heads} and {d_memory}"
            raise ValueError(
                f"d_model, n_heads, n_kv_heads and d_memory must be positive, got {sizes}"
            )
        if d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model, got {n_heads} heads for {d_model}")
        if n_heads % n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads, got {n_kv_heads} key heads for {n_heads} heads"
            )
        if bias not in (True, False, "qkv", "output"):
            raise ValueError(f"bias must be True, False, 'qkv' or 'output', got {bias!r}")
        rng = np.random.default_rng(seed)
        self.d_model, self.d_memory = d_model, d_memory
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        inner, outer = bias in (True, "qkv"), bias in (True, "output")
        d_keys = n_kv_heads * (d_model // n_heads)
        self.query = Linear(d_model, d_model, bias=inner, rng=rng)
        self.key = Linear(d_memory, d_keys, bias=inner, rng=rng)
        self.value = Linear(d_memory, d_keys, bias=inner, rng=rng)
        self.output = Linear(d_model, d_model, bias=outer, rng=rng)

    def forward(
        self,
        x: Float[np.ndarray, "batch queries d_model"],
        memory: Float[np.ndarray, "batch keys d_memory"] | None = None,
        mask: Bool[np.ndarray, "..."] | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Float[np.ndarray, "batch queries d_model"], SavedAttention]:
        """Attend from ``x`` to ``memory``, or to ``x`` itself.

        Raises:
            TypeError: if the mask is not boolean.
            ValueError: if the shape of ``x``, ``memory`` or the mask does not fit.
        """
        asked = x if memory is None else memory
        _check_tokens("x", x, self.d_model)
        if memory is not None:
            _check_tokens("memory", memory, self.d_memory)
            if len(memory) != len(x):
                raise ValueError(f"x has a batch of {len(x)} but memory of {len(memory)}")
        elif self.d_memory != self.d_model:
            raise ValueError(f"a memory of width {self.d_memory} is needed, x has {self.d_model}")
        query = _split(self.query.forward(x)[0], self.n_heads)
        key = _split(self.key.forward(asked)[0], self.n_kv_heads)
        value = _split(self.value.forward(asked)[0], self.n_kv_heads)
        by_head, weights = scaled_dot_product_attention(query, key, value, mask, causal=causal)
        heads = _merge(by_head)
        output, _ = self.output.forward(heads)
        return output, SavedAttention(x, memory, query, key, value, weights, heads)

    def backward(
        self, gradient: Float[np.ndarray, "batch queries d_model"], saved: SavedAttention
    ) -> tuple[
        Float[np.ndarray, "batch queries d_model"], Float[np.ndarray, "batch keys d_memory"] | None
    ]:
        """The gradients of ``x`` and of ``memory``: in self-attention three paths lead to ``x``."""
        x, memory, query, key, value, weights, heads = saved
        asked = x if memory is None else memory
        d_heads = _split(self.output.backward(gradient, heads), self.n_heads)
        d_query, d_key, d_value = scaled_dot_product_attention_backward(
            d_heads, query, key, value, weights
        )
        d_x = self.query.backward(_merge(d_query), x)
        d_asked = self.key.backward(_merge(d_key), asked)
        d_asked += self.value.backward(_merge(d_value), asked)
        return (d_x + d_asked, None) if memory is None else (d_x, d_asked)


def multi_head_attention_by_head(
    attention: MultiHeadAttention,
    x: Float[np.ndarray, "batch queries d_model"],
    gradient: Float[np.ndarray, "batch queries d_model"],
    mask: Bool[np.ndarray, "batch queries keys"] | None = None,
    *,
    causal: bool = False,
) -> tuple[Float[np.ndarray, "batch queries d_model"], dict[str, Array]]:
    r"""Self-attention forward and backward, one head after another, each with its own matrices.

    .. math::
        Y = \sum_h O^h W_O^h + b_O, \qquad
        dX = \sum_h \big(dQ^h W_Q^{h\top} + dK^h W_K^{h\top} + dV^h W_V^{h\top}\big)

    Slower than :class:`MultiHeadAttention`, which packs the heads side by side; a test holds the
    two together. Heads that share a key head add to the gradient of the same matrix.

    Args:
        attention: its matrices are read, its gradients are left alone.
        x: the tokens.
        gradient: of the output.
        mask: ``True`` = may attend, the same for each head.
        causal: also forbid looking ahead.

    Returns:
        The output, and the gradients of ``"x"`` and of each parameter by name.

    Example:
        >>> attention, x = MultiHeadAttention(8, 2), np.ones((1, 3, 8))
        >>> y, gradients = multi_head_attention_by_head(attention, x, np.ones((1, 3, 8)))
        >>> sorted(gradients)
        ['key.weight', 'output.weight', 'query.weight', 'value.weight', 'x']
    """
    group = attention.n_heads // attention.n_kv_heads
    d_head = x.shape[-1] // attention.n_heads
    values = dict(attention.named_parameters())
    gradients = {"x": np.zeros(x.shape)}
    gradients |= {name: np.zeros_like(p.value) for name, p in values.items()}
    output = np.zeros(x.shape)
    if attention.output.bias is not None:
        output += attention.output.bias.value
        gradients["output.bias"] += gradient.sum(axis=(0, 1))

    for h in range(attention.n_heads):
        rows = {"query": slice(h * d_head, (h + 1) * d_head)}
        shared = h // group
        rows["key"] = rows["value"] = slice(shared * d_head, (shared + 1) * d_head)
        q, k, v = (
            linear(
                x,
                values[f"{name}.weight"].value[rows[name]],
                values[f"{name}.bias"].value[rows[name]] if f"{name}.bias" in values else None,
            )
            for name in ("query", "key", "value")
        )
        head, weights = scaled_dot_product_attention(q, k, v, mask, causal=causal)
        w_o = attention.output.weight.value[:, rows["query"]]
        output += linear(head, w_o)

        d_head_output, d_w_o, _ = linear_backward(gradient, head, w_o)
        gradients["output.weight"][:, rows["query"]] += d_w_o
        d_projected = scaled_dot_product_attention_backward(d_head_output, q, k, v, weights)
        for name, d_rows in zip(("query", "key", "value"), d_projected, strict=True):
            weight = values[f"{name}.weight"].value[rows[name]]
            d_x, d_weight, d_bias = linear_backward(d_rows, x, weight)
            gradients["x"] += d_x
            gradients[f"{name}.weight"][rows[name]] += d_weight
            if f"{name}.bias" in values:
                gradients[f"{name}.bias"][rows[name]] += d_bias
    return output, gradients


def _softmax_in_place(logits: Array) -> None:
    """Forbidden entries are minus infinity; a row of nothing else becomes zeros."""
    largest = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    largest[np.isneginf(largest)] = 0.0
    logits -= largest
    np.exp(logits, out=logits)
    total = logits.sum(axis=-1, keepdims=True)
    total[total == 0.0] = 1.0
    logits /= total


def _check_tokens(name: str, tokens: Array, width: int) -> None:
    if tokens.ndim != 3 or tokens.shape[-1] != width:
        raise ValueError(f"{name} must have shape (batch, tokens, {width}), got {tokens.shape}")


def _split(packed: Array, n_heads: int) -> Array:
    """From (batch, tokens, heads · d) to (batch, heads, tokens, d)."""
    batch, tokens, width = packed.shape
    return packed.reshape(batch, tokens, n_heads, width // n_heads).swapaxes(1, 2)


def _merge(by_head: Array) -> Array:
    """From (batch, heads, tokens, d) to (batch, tokens, heads · d)."""
    batch, heads, tokens, width = by_head.shape
    return by_head.swapaxes(1, 2).reshape(batch, tokens, heads * width)


def _scale(query: Array, scale: float | None) -> float:
    return float(query.shape[-1] ** -0.5) if scale is None else scale


def _check_shapes(query: Array, key: Array, value: Array) -> int:
    """How many query heads share a key head, if everything else fits."""
    if query.ndim < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has shape {query.shape} but key has {key.shape}")
    check_shape("value", value, (*key.shape[:-1], value.shape[-1]))
    if query.shape[:-2] == key.shape[:-2]:
        return 1
    if query.ndim != key.ndim or query.shape[:-3] != key.shape[:-3]:
        raise ValueError(
            f"query has leading dimensions {query.shape[:-2]} but key has {key.shape[:-2]}"
        )
    n_heads, n_kv_heads = query.shape[-3], key.shape[-3]
    if n_kv_heads == 0 or n_heads % n_kv_heads:
        raise ValueError(f"query has {n_heads} heads, no multiple of the {n_kv_heads} of key")
    return int(n_heads // n_kv_heads)


def _repeat(shared: Array, group: int) -> Array:
    return shared if group == 1 else shared.repeat(group, axis=-3)


def _sum_groups(gradient: Array, group: int) -> Array:
    """What was repeated forward is added up backward."""
    if group == 1:
        return gradient
    *leading, heads, tokens, width = gradient.shape
    return gradient.reshape(*leading, heads // group, group, tokens, width).sum(axis=-3)
