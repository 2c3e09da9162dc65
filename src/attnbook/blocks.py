"""The blocks that a Transformer stacks."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnbook.attention import (
    KeyValueCache,
    MultiHeadAttention,
    ProjectionBias,
    restored_on_error,
)
from attnbook.checks import (
    check_dropout,
    check_finite,
    check_flags,
    check_floating,
    check_kind,
    check_sizes,
)
from attnbook.draw import draw_
from attnbook.position import ALiBi, Rotary

NormPlace = Literal["pre", "post", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""``"gelu"`` is exact, as in BERT; ``"gelu_tanh"`` its approximation, as in GPT-2.

:meta hide-value:
"""


class FeedForward(nn.Module):
    r"""The same two-layer network for each token.

    .. math:: \operatorname{FFN}(x) = \phi(x W_1 + b_1)\, W_2 + b_2

    Args:
        d_model: width of the input and of the output.
        d_ff: width in between.
        activation: :math:`\phi`: ``"relu"``, ``"gelu"`` or ``"gelu_tanh"``.
        bias: with :math:`b_1` and :math:`b_2`, or without.
        dropout: probability with which an inner value is dropped in training.

    The matrices start as Glorot-uniform, the biases as zeros.

    Raises:
        ValueError: if a size is not positive, the activation is unknown, or ``dropout`` is not in
            [0, 1).

    Source: Vaswani et al. 2017, section 3.3; Hendrycks and Gimpel 2016, section 2, for GELU.

    Example:
        >>> FeedForward(64, 256)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

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
        check_sizes(d_model=d_model, d_ff=d_ff)
        _check_choice("activation", activation, Activation)
        check_flags(bias=bias)
        check_dropout(dropout)
        self.d_model = d_model
        self.activation = activation
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.outer = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = dropout
        for linear in (self.inner, self.outer):
            draw_(linear.weight, "glorot", fan_in=linear.in_features, fan_out=linear.out_features)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Apply the network to each token alone.

        Raises:
            TypeError: if ``x`` is not a tensor of floating type.
            ValueError: if it is not d_model wide.
        """
        check_floating("x", x, self.d_model)
        inner = ACTIVATIONS[self.activation](self.inner(x))
        output: Tensor = self.outer(torch.dropout(inner, self.dropout, self.training))
        return output

    def extra_repr(self) -> str:
        """What no part shows, for ``print(module)``."""
        return f"activation={self.activation!r}, dropout={self.dropout:g}"


class Residual(nn.Module):
    r"""Adds what a sublayer makes of the stream to the stream, and norms one or the other.

    .. math::
        \text{pre:}\quad x + f(\operatorname{LN}(x)) \qquad
        \text{post:}\quad \operatorname{LN}(\alpha x + f(x)) \qquad
        \text{none:}\quad x + f(x)

    Args:
        d_model: width of the stream.
        norm: ``"pre"``, ``"post"`` or ``"none"``.
        scale: the factor α of DeepNorm; 1 for everyone else, and always 1 unless post-norm.
        eps: added to the variance in the LayerNorm.
        bias: the LayerNorm adds a bias.
        dropout: on what is added, in training.

    Raises:
        ValueError: if a size is not positive, ``norm`` is none of the three, ``dropout`` is not in
            [0, 1), ``scale`` or ``eps`` is not finite or ``eps`` is negative, or there is a
            ``scale`` other than 1 and the norm's place is not ``"post"``.

    Source: Xiong et al. 2020, figure 1; Wang et al. 2022 (DeepNet), section 3, for α.

    Example:
        >>> residual = Residual(64, norm="pre")
        >>> residual(torch.randn(2, 10, 64), torch.tanh).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm: NormPlace = "post",
        scale: float = 1.0,
        eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model)
        _check_choice("norm", norm, NormPlace)
        check_flags(bias=bias)
        check_finite(scale=scale, eps=eps)
        check_dropout(dropout)
        if eps < 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        if scale != 1 and norm != "post":
            raise ValueError(f"only a post-norm stream is scaled, got {scale} with norm={norm!r}")
        self.place = norm
        self.scale = scale
        self.norm = nn.Identity() if norm == "none" else nn.LayerNorm(d_model, eps=eps, bias=bias)
        self.dropout = dropout

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        sublayer: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "batch tokens d_model"]:
        """The stream after ``sublayer``.

        Raises:
            ValueError: if ``sublayer`` gives another shape, which adding could broadcast.
        """
        added = sublayer(self.norm(x) if self.place == "pre" else x)
        if added.shape != x.shape:
            raise ValueError(
                f"the sublayer must keep the shape {tuple(x.shape)}, got {tuple(added.shape)}"
            )
        added = torch.dropout(added, self.dropout, self.training)
        if self.place == "pre":
            return x + added
        normed: Tensor = self.norm(torch.add(added, x, alpha=self.scale))
        return normed

    def extra_repr(self) -> str:
        """What no part shows, for ``print(module)``."""
        return f"{self.place!r}, scale={self.scale:g}, dropout={self.dropout:g}"


class EncoderBlock(nn.Module):
    r"""Self-attention, then a feed-forward network, each added to what came in.

    .. math::
        x \leftarrow x \oplus \operatorname{MHA}(x), \qquad
        x \leftarrow x \oplus \operatorname{FFN}(x)

    with :math:`\oplus` the :class:`Residual` connection. With ``causal=True`` it is the block of a
    decoder-only model.

    Args:
        d_model: width of a token.
        n_heads: attention heads.
        d_ff: inner width of the feed-forward network.
        norm: ``"post"`` (Vaswani et al. 2017), ``"pre"`` (most models since GPT-2) or ``"none"``.
        n_kv_heads: key and value heads, as in :class:`attnbook.attention.MultiHeadAttention`.
        position: rotary positions or ALiBi, as there.
        bias: biases of the attention's projections, as there.
        activation: of the feed-forward network.
        residual_scale: DeepNorm's α, post-norm only.
        norm_eps: added to the variance in each LayerNorm.
        feed_forward_bias: biases in the feed-forward network.
        norm_bias: biases in the LayerNorms.
        dropout: on the attention weights, inside the feed-forward network and on what is added to
            the stream.

    Raises:
        ValueError: if ``n_heads`` does not divide ``d_model``, or a choice is unknown.

    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020, figure 1.

    Example:
        >>> EncoderBlock(64, 4, 256)(torch.randn(2, 10, 64), causal=True).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: NormPlace = "post",
        n_kv_heads: int | None = None,
        position: Rotary | ALiBi | None = None,
        bias: ProjectionBias = False,
        activation: Activation = "relu",
        residual_scale: float = 1.0,
        norm_eps: float = 1e-5,
        feed_forward_bias: bool = True,
        norm_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()

        def residual() -> Residual:
            return Residual(
                d_model,
                norm=norm,
                scale=residual_scale,
                eps=norm_eps,
                bias=norm_bias,
                dropout=dropout,
            )

        self.d_model = d_model
        self.attention = MultiHeadAttention(
            d_model, n_heads, n_kv_heads=n_kv_heads, bias=bias, dropout=dropout, position=position
        )
        self.attention_residual = residual()
        self.feed_forward = FeedForward(
            d_model, d_ff, activation=activation, bias=feed_forward_bias, dropout=dropout
        )
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Run the block on ``x``; the rest, and what is refused, as in ``MultiHeadAttention``."""
        check_floating("x", x, self.d_model)
        if cache is not None:
            check_kind("cache", cache, KeyValueCache)
        with restored_on_error([] if cache is None else [cache]):
            x = self.attention_residual(
                x, lambda y: self.attention(y, mask=mask, causal=causal, cache=cache)
            )
            stream: Tensor = self.feed_forward_residual(x, self.feed_forward)
            return stream


class DecoderCache:
    """What a :class:`DecoderBlock` has seen: its own tokens, and the memory.

    Two :class:`attnbook.attention.KeyValueCache`, ``attention`` and ``cross_attention``.

    Source: as :class:`attnbook.attention.KeyValueCache`.

    Example:
        >>> cache = DecoderCache()
        >>> len(cache)
        0
    """

    def __init__(self) -> None:
        self.attention = KeyValueCache()
        self.cross_attention = KeyValueCache()

    def __len__(self) -> int:
        """Number of the decoder's own tokens in the cache."""
        return len(self.attention)


class DecoderBlock(nn.Module):
    r"""Causal self-attention, attention to a memory, then a feed-forward network.

    .. math::
        x \leftarrow x \oplus \operatorname{MHA}(x), \qquad
        x \leftarrow x \oplus \operatorname{MHA}(x, Y), \qquad
        x \leftarrow x \oplus \operatorname{FFN}(x)

    with the memory :math:`Y` and :math:`\oplus` the :class:`Residual` connection.

    Args:
        d_model: width of a token.
        n_heads: heads of both attentions.
        d_ff: inner width of the feed-forward network.
        norm: as in :class:`EncoderBlock`, and so are the others below.
        d_memory: width of the memory; ``d_model`` if not given.
        n_kv_heads: key and value heads of both attentions.
        position: rotary positions or ALiBi, in the self-attention.
        bias: biases of the attentions' projections.
        activation: of the feed-forward network.
        residual_scale: DeepNorm's α, post-norm only.
        norm_eps: added to the variance in each LayerNorm.
        feed_forward_bias: biases in the feed-forward network.
        norm_bias: biases in the LayerNorms.
        dropout: on attention weights, inside the feed-forward network and on what is added.

    Raises:
        ValueError: if ``n_heads`` does not divide ``d_model``, or a choice is unknown.

    Source: Vaswani et al. 2017, section 3.1 and figure 1.

    Example:
        >>> x, memory = torch.randn(2, 10, 64), torch.randn(2, 7, 64)
        >>> DecoderBlock(64, 4, 256)(x, memory).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        norm: NormPlace = "post",
        d_memory: int | None = None,
        n_kv_heads: int | None = None,
        position: Rotary | ALiBi | None = None,
        bias: ProjectionBias = False,
        activation: Activation = "relu",
        residual_scale: float = 1.0,
        norm_eps: float = 1e-5,
        feed_forward_bias: bool = True,
        norm_bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()

        def residual() -> Residual:
            return Residual(
                d_model,
                norm=norm,
                scale=residual_scale,
                eps=norm_eps,
                bias=norm_bias,
                dropout=dropout,
            )

        self.d_model = d_model
        self.attention = MultiHeadAttention(
            d_model, n_heads, n_kv_heads=n_kv_heads, bias=bias, dropout=dropout, position=position
        )
        self.attention_residual = residual()
        self.cross_attention = MultiHeadAttention(
            d_model, n_heads, n_kv_heads=n_kv_heads, d_memory=d_memory, bias=bias, dropout=dropout
        )
        self.cross_attention_residual = residual()
        self.feed_forward = FeedForward(
            d_model, d_ff, activation=activation, bias=feed_forward_bias, dropout=dropout
        )
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        memory: Float[Tensor, "batch keys d_memory"],
        mask: Bool[Tensor, "..."] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        *,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Run the block on ``x``.

        Args:
            x: the decoder's tokens; none sees a later one.
            memory: the encoder's output.
            mask: which tokens of ``x`` may be attended to, besides the causal mask.
            memory_mask: which tokens of the memory may be attended to.
            cache: see :class:`DecoderCache`; ``x`` then are the tokens after those in it. A call
                that raises leaves it as it was.

        Raises:
            TypeError: if there is no ``memory``, or ``cache`` is no ``DecoderCache``; and as
                ``MultiHeadAttention``.
            ValueError: as ``MultiHeadAttention``.
        """
        check_floating("x", x, self.d_model)
        check_kind("memory", memory, Tensor)  # without one, x itself would be seen as a whole
        if cache is not None:
            check_kind("cache", cache, DecoderCache)
        caches = [] if cache is None else [cache.attention, cache.cross_attention]
        own, cross = caches or (None, None)
        with restored_on_error(caches):
            x = self.attention_residual(
                x, lambda y: self.attention(y, mask=mask, causal=True, cache=own)
            )
            x = self.cross_attention_residual(
                x, lambda y: self.cross_attention(y, memory, memory_mask, cache=cross)
            )
            stream: Tensor = self.feed_forward_residual(x, self.feed_forward)
            return stream


def _check_choice(name: str, given: str, choices: object) -> None:
    known = get_args(choices)
    if given not in known:
        *others, last = (repr(choice) for choice in known)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {given!r}")
