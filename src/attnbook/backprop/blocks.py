"""Feed-forward network, residual connection and block, with their backward passes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.random import Generator

from attnbook.backprop.attention import MultiHeadAttention
from attnbook.backprop.layers import ACTIVATIONS, LayerNorm, Linear
from attnbook.backprop.module import Array, Module


class FeedForward(Module):
    """Two dense layers with an activation between them, as :class:`attnbook.blocks.FeedForward`.

    Raises:
        ValueError: if the activation is none of :data:`attnbook.backprop.layers.ACTIVATIONS`.

    Example:
        >>> y, saved = FeedForward(8, 32).forward(np.ones((2, 5, 8)))
        >>> y.shape
        (2, 5, 8)
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: str = "relu", seed: int | Generator = 0
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}"
            )
        rng = np.random.default_rng(seed)
        self.activation = activation
        self.inner = Linear(d_model, d_ff, rng=rng)
        self.outer = Linear(d_ff, d_model, rng=rng)

    def forward(
        self, x: Float[np.ndarray, "... d_model"]
    ) -> tuple[Float[np.ndarray, "... d_model"], tuple[Array, Array, Array]]:
        """Output; and input, and the hidden layer before and after the activation."""
        activate, _ = ACTIVATIONS[self.activation]
        before, _ = self.inner.forward(x)
        after = activate(before)
        return self.outer.forward(after)[0], (x, before, after)

    def backward(
        self, gradient: Float[np.ndarray, "... d_model"], saved: tuple[Array, Array, Array]
    ) -> Float[np.ndarray, "... d_model"]:
        """The gradient of the input."""
        _, activate_backward = ACTIVATIONS[self.activation]
        x, before, after = saved
        d_after = self.outer.backward(gradient, after)
        return self.inner.backward(activate_backward(d_after, before), x)


class Residual(Module):
    r"""Adds what a sublayer makes of the stream to it, as :class:`attnbook.blocks.Residual`.

    .. math::
        \text{pre:}\quad x + f(\operatorname{LN}(x)) \qquad
        \text{post:}\quad \operatorname{LN}(x + f(x)) \qquad
        \text{none:}\quad x + f(x)

    Two paths lead back to :math:`x`, so two gradients are added up.

    Raises:
        ValueError: if ``norm`` is none of the three.

    Example:
        >>> residual = Residual(4, norm="pre")
        >>> y, saved = residual.forward(np.ones((2, 4)), lambda x: (2 * x, None))
        >>> residual.backward(np.ones((2, 4)), saved, lambda gradient, _: 2 * gradient).shape
        (2, 4)
    """

    def __init__(self, d_model: int, *, norm: str = "post") -> None:
        if norm not in ("pre", "post", "none"):
            raise ValueError(f"norm must be 'pre', 'post' or 'none', got {norm!r}")
        self.norm_position = norm
        self.norm = None if norm == "none" else LayerNorm(d_model)

    def forward(
        self,
        x: Float[np.ndarray, "... d_model"],
        sublayer: Callable[[Array], tuple[Array, Any]],
    ) -> tuple[Float[np.ndarray, "... d_model"], tuple[Any, Any]]:
        """The stream after ``sublayer``; and what the norm and the sublayer saved."""
        if self.norm is None:
            added, saved = sublayer(x)
            return x + added, (None, saved)
        if self.norm_position == "pre":
            normed, of_norm = self.norm.forward(x)
            added, saved = sublayer(normed)
            return x + added, (of_norm, saved)
        added, saved = sublayer(x)
        stream, of_norm = self.norm.forward(x + added)
        return stream, (of_norm, saved)

    def backward(
        self,
        gradient: Float[np.ndarray, "... d_model"],
        saved: tuple[Any, Any],
        sublayer_backward: Callable[[Array, Any], Array],
    ) -> Float[np.ndarray, "... d_model"]:
        """The gradient of the stream before."""
        of_norm, of_sublayer = saved
        if self.norm is None:
            return gradient + sublayer_backward(gradient, of_sublayer)
        if self.norm_position == "pre":
            d_normed = sublayer_backward(gradient, of_sublayer)
            return gradient + self.norm.backward(d_normed, of_norm)
        d_sum = self.norm.backward(gradient, of_norm)
        return d_sum + sublayer_backward(d_sum, of_sublayer)


class Block(Module):
    """Self-attention, then a feed-forward network, as :class:`attnbook.blocks.Block`.

    Args:
        d_model: width of a token.
        n_heads: attention heads.
        d_ff: inner width of the feed-forward network.
        norm: ``"post"``, ``"pre"`` or ``"none"``.
        n_kv_heads: key and value heads.
        bias: biases of the attention's projections, as in
            :class:`attnbook.backprop.attention.MultiHeadAttention`.
        activation: of the feed-forward network.
        seed: of the initial weights, or the generator to draw them from.

    Example:
        >>> block = Block(8, 2, 32, norm="pre")
        >>> y, saved = block.forward(np.ones((2, 5, 8)), causal=True)
        >>> block.backward(np.ones((2, 5, 8)), saved).shape
        (2, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: str = "post",
        n_kv_heads: int | None = None,
        bias: bool | str = False,
        activation: str = "relu",
        seed: int | Generator = 0,
    ) -> None:
        rng = np.random.default_rng(seed)  # a generator stays itself
        self.attention = MultiHeadAttention(
            d_model, n_heads, n_kv_heads=n_kv_heads, bias=bias, seed=rng
        )
        self.attention_residual = Residual(d_model, norm=norm)
        self.feed_forward = FeedForward(d_model, d_ff, activation=activation, seed=rng)
        self.feed_forward_residual = Residual(d_model, norm=norm)

    def forward(
        self,
        x: Float[np.ndarray, "batch tokens d_model"],
        mask: Bool[np.ndarray, "..."] | None = None,
        *,
        causal: bool = False,
    ) -> tuple[Float[np.ndarray, "batch tokens d_model"], tuple[Any, Any]]:
        """The stream after the block; and what both halves saved."""
        x, of_attention = self.attention_residual.forward(
            x, lambda y: self.attention.forward(y, mask=mask, causal=causal)
        )
        x, of_feed_forward = self.feed_forward_residual.forward(x, self.feed_forward.forward)
        return x, (of_attention, of_feed_forward)

    def backward(
        self, gradient: Float[np.ndarray, "batch tokens d_model"], saved: tuple[Any, Any]
    ) -> Float[np.ndarray, "batch tokens d_model"]:
        """The gradient of the stream before the block."""
        of_attention, of_feed_forward = saved
        gradient = self.feed_forward_residual.backward(
            gradient, of_feed_forward, self.feed_forward.backward
        )
        return self.attention_residual.backward(
            gradient, of_attention, lambda d, saved: self.attention.backward(d, saved)[0]
        )
