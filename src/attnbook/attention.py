"""Scaled dot-product attention: the mathematics as functions, the parameters in one module."""

from typing import Literal, overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnbook.initialization import initialize_
from attnbook.masks import causal_mask


def attention_logits(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "... queries keys"]:
    r"""How well each query fits each key, before the softmax.

    .. math:: S = \text{scale} \cdot Q K^\top, \qquad S_{ij} = \text{scale}\; q_i \cdot k_j

    Args:
        query: one row for each position that asks.
        key: one row for each position that is asked.
        scale: factor on the dot products; 1/sqrt(d_head) if not given.

    Raises:
        ValueError: if the widths of query and key differ.

    Source: Vaswani et al. 2017, eq. 1.

    Example:
        >>> attention_logits(torch.eye(2), torch.eye(2), scale=1.0)
        tensor([[1., 0.],
                [0., 1.]])
    """
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has d_head {query.shape[-1]} but key has {key.shape[-1]}")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return (query @ key.mT) * scale


def attention_weights(
    logits: Float[Tensor, "... queries keys"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "... queries keys"]:
    r"""Softmax of each query's logits over the keys it may attend to.

    .. math:: A_{ij} = \frac{M_{ij}\, e^{S_{ij}}}{\sum_l M_{il}\, e^{S_{il}}}

    Every row sums to one. A query that may attend to nothing gets a row of zeros, with gradients
    that are zero and not NaN.

    Args:
        logits: from :func:`attention_logits`.
        mask: ``True`` = may attend; anything that broadcasts to the shape of ``logits``.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the mask does not broadcast to the shape of ``logits``.

    Source: Vaswani et al. 2017, eq. 1 and section 3.2.3.

    Example:
        >>> attention_weights(torch.zeros(1, 4), torch.tensor([True, True, False, False]))
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    if mask is None:
        return logits.softmax(dim=-1)
    _check_mask(mask, logits.shape)
    # A row without any allowed key keeps its logits, so that the softmax and its gradient stay
    # finite; its weights are set to zero afterwards.
    blocked = ~mask & mask.any(dim=-1, keepdim=True)
    return logits.masked_fill(blocked, -torch.inf).softmax(dim=-1).masked_fill(~mask, 0.0)


@overload
def scaled_dot_product_attention(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: Literal[False] = False,
) -> Float[Tensor, "... queries d_value"]: ...
@overload
def scaled_dot_product_attention(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: Literal[True],
) -> tuple[Float[Tensor, "... queries d_value"], Float[Tensor, "... queries keys"]]: ...
def scaled_dot_product_attention(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> (
    Float[Tensor, "... queries d_value"]
    | tuple[Float[Tensor, "... queries d_value"], Float[Tensor, "... queries keys"]]
):
    r"""Each query's weighted mean of the values.

    .. math:: O = A V, \qquad A = \operatorname{softmax}(\text{scale} \cdot Q K^\top)

    Asked for the weights, it computes them step by step, as written here: that is the definition.
    Otherwise it calls torch's fused kernel; a test holds the two together.

    Args:
        query: (…, queries, d_head).
        key: (…, keys, d_head).
        value: (…, keys, d_value).
        mask: ``True`` = may attend; broadcasts to (…, queries, keys).
        causal: also forbid looking ahead (:func:`attnbook.masks.causal_mask`).
        scale: factor on the dot products; 1/sqrt(d_head) if not given.
        dropout: probability with which a weight is dropped, now: pass 0 when evaluating.
        return_weights: return ``(output, weights)``; the weights are those after dropout.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if widths, numbers of keys or the mask's shape do not fit.

    Source: Vaswani et al. 2017, eq. 1.

    Example:
        >>> q, k, v = torch.randn(5, 16), torch.randn(7, 16), torch.randn(7, 3)
        >>> output, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([5, 3]), torch.Size([5, 7]))
    """
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has d_head {query.shape[-1]} but key has {key.shape[-1]}")
    if value.shape[-2] != n_keys:
        raise ValueError(f"there are {n_keys} keys but {value.shape[-2]} values")
    if mask is not None:
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        _check_mask(mask, torch.Size((*batch, n_queries, n_keys)))
    if causal:
        ahead = causal_mask(n_queries, n_keys, device=query.device)
        mask = ahead if mask is None else mask & ahead
    if not return_weights:
        if mask is not None and mask.dim() < 2:  # the kernel takes no such mask
            mask = mask.expand(n_queries, n_keys)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    weights = attention_weights(attention_logits(query, key, scale=scale), mask)
    weights = F.dropout(weights, dropout)
    return weights @ value, weights


def _check_mask(mask: Tensor, shape: torch.Size) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is boolean (True = may attend), got a tensor of {mask.dtype}")
    fits = len(mask.shape) <= len(shape) and all(
        have in (1, want) for have, want in zip(reversed(mask.shape), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to the logits' shape "
            f"(…, queries, keys) = {tuple(shape)}"
        )


class MultiHeadAttention(nn.Module):
    r"""Several attentions side by side, each on its own projections of the input.

    .. math::
        \text{head}_h = \operatorname{attention}(X W_Q^h,\; Y W_K^h,\; Y W_V^h), \qquad
        \operatorname{MHA}(X, Y) = [\text{head}_1; \dots; \text{head}_H]\, W_O

    with the memory :math:`Y = X` in self-attention. The matrices of all heads lie side by side in
    one ``nn.Linear``: head :math:`h` owns the outputs :math:`h\,d_\text{head} \dots
    (h{+}1)\,d_\text{head}{-}1` of ``query``, ``key`` and ``value``, and the same inputs of
    ``output``. No head shares a number with another.

    Args:
        d_model: width of the input and of the output.
        n_heads: number of heads; must divide ``d_model``, and d_head = d_model / n_heads.
        bias: add a bias to each of the four projections.
        dropout: probability with which an attention weight is dropped in training.

    The matrices start as Glorot-uniform, each head's projections counted as one matrix of
    (d_model, d_model), the biases as zeros.

    Raises:
        ValueError: if ``n_heads`` does not divide ``d_model``, or ``dropout`` is not in [0, 1).

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> attention = MultiHeadAttention(64, 4)
        >>> x = torch.randn(2, 10, 64)
        >>> output, weights = attention(x, causal=True, return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 64]), torch.Size([2, 4, 10, 10]))
    """

    def __init__(
        self, d_model: int, n_heads: int, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        if d_model < 1 or n_heads < 1 or d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model, got {n_heads} heads for {d_model}")
        self.n_heads = n_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)
        self.value = nn.Linear(d_model, d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)
        for linear in (self.query, self.key, self.value, self.output):
            initialize_(linear.weight, "glorot", fan_in=d_model, fan_out=d_model)
            if bias:
                nn.init.zeros_(linear.bias)

    @overload
    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        return_weights: Literal[False] = False,
    ) -> Float[Tensor, "batch queries d_model"]: ...
    @overload
    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        return_weights: Literal[True],
    ) -> tuple[
        Float[Tensor, "batch queries d_model"], Float[Tensor, "batch heads queries keys"]
    ]: ...
    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_model"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "batch queries d_model"]
        | tuple[Float[Tensor, "batch queries d_model"], Float[Tensor, "batch heads queries keys"]]
    ):
        """Attend from ``x`` to ``memory``, or to ``x`` itself.

        Args:
            x: the tokens that ask.
            memory: the tokens that are asked (cross-attention); ``x`` if not given.
            mask: ``True`` = may attend; broadcasts to (batch, heads, queries, keys).
            causal: also forbid looking ahead; with more keys than queries the last query sees
                every key, with fewer it raises.
            return_weights: return ``(output, weights)``, the weights of each head, in training
                after dropout.

        Raises:
            TypeError: if the mask is not boolean.
            ValueError: if the shape of ``x``, ``memory`` or the mask does not fit.
        """
        memory = x if memory is None else memory
        d_model = self.query.in_features
        for name, tokens in (("x", x), ("memory", memory)):
            if tokens.dim() != 3 or tokens.shape[-1] != d_model:
                raise ValueError(
                    f"{name} must have shape (batch, tokens, {d_model}), got {tuple(tokens.shape)}"
                )
        q = self._split(self.query(x))  # (batch, heads, queries, d_head)
        k = self._split(self.key(memory))
        v = self._split(self.value(memory))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if return_weights:
            heads, weights = scaled_dot_product_attention(
                q, k, v, mask, causal=causal, dropout=dropout, return_weights=True
            )
        else:
            heads = scaled_dot_product_attention(q, k, v, mask, causal=causal, dropout=dropout)
        output: Tensor = self.output(self._merge(heads))
        return output if weights is None else (output, weights)

    def _split(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> Float[Tensor, "batch heads tokens d_head"]:
        batch, tokens, d_model = x.shape
        return x.view(batch, tokens, self.n_heads, d_model // self.n_heads).transpose(1, 2)

    def _merge(
        self, x: Float[Tensor, "batch heads tokens d_head"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        return x.transpose(1, 2).flatten(-2)
