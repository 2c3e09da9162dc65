"""What a Transformer stacks: feed-forward network, residual connection, block."""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from attnbook.attention import KeyValueCache, MultiHeadAttention
from attnbook.config import (
    Activation,
    BlockConfig,
    NormKind,
    NormPosition,
    check_choice,
    check_shares,
    check_sizes,
)
from attnbook.initialization import Roles, draw_
from attnbook.positions import Position

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
}
"""``"gelu"`` is exact, as in BERT; ``"gelu_tanh"`` its approximation, as in GPT-2.

:meta hide-value:
"""
GATED = frozenset({"swiglu", "geglu"})
"""Those that a gate goes through, beside ``inner``."""


class FeedForward(nn.Module):
    r"""The same two-layer network for each token.

    .. math::
        \operatorname{FFN}(x) = \phi(x W_1 + b_1)\, W_2 + b_2, \qquad
        \text{gated:}\quad \big(\phi(x W_g + b_g) \odot (x W_1 + b_1)\big) W_2 + b_2

    :math:`W_1` is ``inner``, :math:`W_2` ``outer``, :math:`W_g` ``gate``.

    Args:
        d_model: width of the input and of the output.
        d_ff: width in between.
        activation: :math:`\phi`: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``; or, gated, ``"swiglu"``
            (SiLU) or ``"geglu"`` (as ``"gelu_tanh"``).
        bias: with biases, or without.
        dropout: probability with which an inner value is dropped in training.

    The matrices start as Glorot-uniform, the biases as zeros.

    Source: Vaswani et al. 2017, section 3.3; Hendrycks and Gimpel 2016, section 2, for GELU;
    Shazeer 2020, eq. 6, for SwiGLU and GEGLU.

    Example:
        >>> FeedForward(64, 256)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    roles: ClassVar[Roles] = {"inner": "inner", "gate": "inner", "outer": "outer"}

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, Activation)
        check_sizes(d_model=d_model, d_ff=d_ff)
        check_shares(dropout=dropout)
        self.activation = activation
        self.dropout = dropout
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if activation in GATED else None
        self.outer = nn.Linear(d_ff, d_model, bias=bias)
        for linear in (self.inner, self.gate, self.outer):
            if linear is None:
                continue
            draw_(linear.weight, "glorot", fan_in=linear.in_features, fan_out=linear.out_features)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Apply the network to each token alone."""
        activation = ACTIVATIONS[self.activation]
        if self.gate is None:
            inner = activation(self.inner(x))  # (…, d_ff)
        else:
            inner = activation(self.gate(x)) * self.inner(x)
        output: Tensor = self.outer(torch.dropout(inner, self.dropout, self.training))
        return output

    def extra_repr(self) -> str:
        """What no part shows, for ``print(module)``."""
        return f"activation={self.activation!r}, dropout={self.dropout:g}"


class Residual(nn.Module):
    r"""Adds a sublayer's output to the stream, with a norm before or after.

    .. math::
        \text{pre:}\quad x + f(\operatorname{LN}(x)) \qquad
        \text{post:}\quad \operatorname{LN}(\alpha x + f(x)) \qquad
        \text{none:}\quad x + f(x)

    Args:
        d_model: width of the stream.
        norm: ``"pre"``, ``"post"`` or ``"none"``; kept as ``norm_position``.
        norm_kind: ``"layer"`` (LayerNorm) or ``"rms"`` (RMSNorm).
        scale: the factor α of DeepNorm, post-norm only.
        eps: added to the variance in the norm.
        bias: the LayerNorm adds a bias.
        dropout: on what is added, in training.

    Raises:
        ValueError: if a stream is to be scaled that is not post-norm.

    Source: Xiong et al. 2020, figure 1; Wang et al. 2022 (DeepNet), section 3, for α; Zhang and
    Sennrich 2019, section 4, for RMSNorm.

    Example:
        >>> residual = Residual(64, norm="pre")
        >>> residual(torch.randn(2, 10, 64), torch.tanh).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm: NormPosition = "post",
        norm_kind: NormKind = "layer",
        scale: float = 1.0,
        eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NormPosition)
        check_sizes(d_model=d_model)
        check_shares(dropout=dropout, eps=eps)
        if scale != 1 and norm != "post":
            raise ValueError(f"only a post-norm stream is scaled, got {scale} with norm={norm!r}")
        self.norm_position = norm
        self.scale = scale
        self.norm = nn.Identity() if norm == "none" else make_norm(norm_kind, d_model, eps, bias)
        self.dropout = dropout

    def forward(
        self,
        x: Float[Tensor, "... d_model"],
        sublayer: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "... d_model"]:
        """The stream after ``sublayer``.

        Raises:
            ValueError: if ``sublayer`` gives another shape, which adding could broadcast.
        """
        added = sublayer(self.norm(x) if self.norm_position == "pre" else x)
        if added.shape != x.shape:
            raise ValueError(
                f"the sublayer must keep the shape {tuple(x.shape)}, got {tuple(added.shape)}"
            )
        added = torch.dropout(added, self.dropout, self.training)
        if self.norm_position == "pre":
            return x + added
        normed: Tensor = self.norm(torch.add(added, x, alpha=self.scale))
        return normed

    def extra_repr(self) -> str:
        """What no part shows, for ``print(module)``."""
        return f"{self.norm_position!r}, scale={self.scale:g}, dropout={self.dropout:g}"


class Block(nn.Module):
    r"""Self-attention, then a feed-forward network, each added to what came in.

    .. math::
        x \leftarrow x \oplus \operatorname{MHA}(x), \qquad
        x \leftarrow x \oplus \operatorname{FFN}(x)

    with :math:`\oplus` the :class:`Residual` connection: an encoder's block, or with
    ``causal=True`` that of a decoder-only model.

    Args:
        config: sizes and choices.
        position: how the self-attention is told where tokens are, as in
            :class:`attnbook.attention.MultiHeadAttention`.
        residual_scale: DeepNorm's α, post-norm only.

    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020, figure 1.

    Example:
        >>> block = Block(BlockConfig(d_model=64, n_heads=4))
        >>> block(torch.randn(2, 10, 64), causal=True).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        position: Position | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.attention = make_attention(config, position=position)
        self.attention_residual = make_residual(config, residual_scale)
        self.feed_forward = FeedForward(
            config.d_model,
            config.d_ff or 4 * config.d_model,
            activation=config.activation,
            bias=config.feed_forward_bias,
            dropout=config.dropout,
        )
        self.feed_forward_residual = make_residual(config, residual_scale)

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        positions: Integer[Tensor, "*batch keys"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Run the block on ``x``; the rest as in ``MultiHeadAttention``."""
        where = {} if positions is None else {"positions": positions}
        x = self.attention_residual(
            x, lambda y: self.attention(y, mask=mask, causal=causal, cache=cache, **where)
        )
        stream: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return stream


def make_attention(
    config: BlockConfig, *, position: Position | None = None, d_memory: int | None = None
) -> MultiHeadAttention:
    """A block's attention: to its own tokens, or to a memory."""
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        d_memory=d_memory,
        bias=config.attention_bias,
        dropout=config.dropout,
        position=position,
        qk_norm=config.qk_norm,
        norm_eps=config.norm_eps,
    )


def make_residual(config: BlockConfig, scale: float) -> Residual:
    """The connection around each of a block's parts."""
    return Residual(
        config.d_model,
        norm="post" if config.norm == "deepnorm" else config.norm,
        norm_kind=config.norm_kind,
        scale=scale,
        eps=config.norm_eps,
        bias=config.norm_bias,
        dropout=config.dropout,
    )


def make_norm(kind: NormKind, d_model: int, eps: float, bias: bool) -> nn.Module:
    """A LayerNorm or an RMSNorm, which has no bias."""
    check_choice("norm_kind", kind, NormKind)
    if kind == "rms":
        return nn.RMSNorm(d_model, eps=eps)
    return nn.LayerNorm(d_model, eps=eps, bias=bias)
