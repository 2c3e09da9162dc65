"""Scaled dot-product attention: the mathematics as functions, the parameters in one module."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnbook.checks import (
    check_boolean,
    check_count,
    check_dropout,
    check_finite,
    check_flags,
    check_floating,
    check_kind,
    check_sizes,
)
from attnbook.draw import draw_
from attnbook.masks import causal_mask, combine_masks
from attnbook.position import ALiBi, Rotary

ProjectionBias = bool | Literal["qkv", "output"]


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
        TypeError: if query and key are not floating-point tensors of one type.
        ValueError: if the widths or the leading dimensions of query and key differ.

    Source: Vaswani et al. 2017, eq. 1.

    Example:
        >>> attention_logits(torch.eye(2), torch.eye(2), scale=1.0)
        tensor([[1., 0.],
                [0., 1.]])
    """
    _check_types(query=query, key=key)
    _check_shapes(query, key)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    # In the order that keeps numbers small: float16 ends at 65,504.
    return (query * scale) @ key.mT if abs(scale) < 1 else (query @ key.mT) * scale


def attention_weights(
    logits: Float[Tensor, "... queries keys"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "... queries keys"]:
    r"""Softmax of each query's logits over the keys it may attend to.

    .. math:: A_{ij} = \frac{M_{ij}\, e^{S_{ij}}}{\sum_l M_{il}\, e^{S_{il}}}

    Every row sums to one. A query that may attend to nothing gets a row of zeros, with gradients
    that are zero and not NaN. (So says the mask; a row of logits that are all −inf gives NaN.)

    Args:
        logits: from :func:`attention_logits`.
        mask: ``True`` = may attend; anything that broadcasts to the shape of ``logits``.

    Raises:
        TypeError: if the logits are not of floating type or the mask is not boolean.
        ValueError: if the mask does not broadcast to the shape of ``logits``.

    Source: Vaswani et al. 2017, eq. 1 and section 3.2.3.

    Example:
        >>> attention_weights(torch.zeros(1, 4), torch.tensor([True, True, False, False]))
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    _check_types(logits=logits)
    if mask is None:
        return logits.softmax(dim=-1)
    check_boolean(mask)
    _check_broadcast("mask", mask, logits.shape)
    # A row without any allowed key is computed from zeros, so that its softmax and its gradient
    # stay finite; its weights are set to zero afterwards.
    some = mask.any(dim=-1, keepdim=True)
    filler = torch.where(some, -torch.inf, 0.0).to(logits.dtype)
    return torch.where(mask, logits, filler).softmax(dim=-1).masked_fill(~some, 0.0)


@overload
def scaled_dot_product_attention(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Float[Tensor, "..."] | None = None,
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
    bias: Float[Tensor, "..."] | None = None,
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
    bias: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> (
    Float[Tensor, "... queries d_value"]
    | tuple[Float[Tensor, "... queries d_value"], Float[Tensor, "... queries keys"]]
):
    r"""Each query's weighted mean of the values.

    .. math:: O = A V, \qquad A = \operatorname{softmax}(\text{scale} \cdot Q K^\top + B)

    Asked for the weights, it computes them step by step, as written here: that is the definition.
    Otherwise torch's fused kernel computes the same without keeping them. Tests hold the two
    together. (The kernel may have no second derivatives and none in forward mode, where the
    definition has them; and without a mask torch's kernel for CPUs makes zeros of a query that is
    NaN, where the definition stays NaN.)

    The leading dimensions of the three are the same, with one exception: the last of them, the
    heads, may be fewer in ``key`` and ``value``. Then each of their heads serves a group of
    neighbouring query heads (grouped-query attention): query head :math:`h` of :math:`H` asks key
    head :math:`\lfloor h\,H_\text{kv} / H \rfloor`.

    Args:
        query: (…, queries, d_head).
        key: (…, keys, d_head).
        value: (…, keys, d_value).
        mask: ``True`` = may attend; broadcasts to (…, queries, keys).
        causal: also forbid looking ahead (:func:`attnbook.masks.causal_mask`).
        scale: factor on the dot products; 1/sqrt(d_head) if not given.
        bias: added to the logits, :math:`B`; broadcasts as the mask does. Where it is −inf, a query
            may not attend, as where the mask is ``False``.
        dropout: probability with which a weight is dropped, now: pass 0 when evaluating.
        return_weights: return ``(output, weights)``; the weights are those after dropout.

    Raises:
        TypeError: if query, key, value and bias are not floating-point tensors of one type, or the
            mask is not boolean, or ``causal`` is neither ``True`` nor ``False``.
        ValueError: if widths, leading dimensions, numbers of keys, or the shape of mask or bias do
            not fit, ``dropout`` is not in [0, 1), or ``scale`` is not finite.

    Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023, section 2.2, for the groups.

    Example:
        >>> q, k, v = torch.randn(5, 16), torch.randn(7, 16), torch.randn(7, 3)
        >>> output, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([5, 3]), torch.Size([5, 7]))
    """
    _check_types(query=query, key=key, value=value)
    group = _check_shapes(query, key, value)
    check_flags(causal=causal)
    check_dropout(dropout)
    if scale is not None:
        check_finite(scale=scale)
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    logits_shape = (*query.shape[:-1], n_keys)
    if mask is not None:
        check_boolean(mask)
        _check_broadcast("mask", mask, logits_shape)
    if bias is not None:
        _check_types(query=query, bias=bias)
        _check_broadcast("bias", bias, logits_shape)

    if return_weights:
        if group > 1:
            key, value = (x.repeat_interleave(group, dim=-3) for x in (key, value))
        ahead = causal_mask(n_queries, n_keys, device=query.device) if causal else None
        logits, allowed = attention_logits(query, key, scale=scale), combine_masks(mask, ahead)
        if bias is not None:
            logits, allowed = logits + bias, combine_masks(allowed, bias != -torch.inf)
        weights = F.dropout(attention_weights(logits, allowed), dropout)
        return weights @ value, weights

    # The kernel's own causal mask spares half of the work. It is aligned to the start, which is
    # the same for as many queries as keys, and it is scaled with the logits, so a scale of 0 or
    # less would spoil it. A single query at the end sees everything.
    by_kernel = False
    alone = mask is None and bias is None and (scale is None or scale > 0)
    if causal and alone and n_queries == n_keys:
        by_kernel = True
    elif causal and (n_queries != 1 or n_keys == 0):
        mask = combine_masks(mask, causal_mask(n_queries, n_keys, device=query.device))
    forbidden: Tensor | None = mask
    if bias is not None:
        forbidden = bias if mask is None else torch.where(mask, bias, -torch.inf)
    if forbidden is not None:  # torch falls back to a slower kernel for a mask of 3 dimensions
        forbidden = forbidden[(None,) * (query.dim() - forbidden.dim())]
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=forbidden,
        is_causal=by_kernel,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=group > 1,
    )


class KeyValueCache:
    """Keys and values of the tokens that an attention has already seen.

    Decoding one token after another, a model computes the keys and values of the new token alone
    and finds those before it here. Make one for each attention and each run, and pass it to
    :class:`MultiHeadAttention` at every step. ``key`` and ``value`` have the shapes (batch,
    kv_heads, keys, d_head) and (batch, kv_heads, keys, d_value), and are ``None`` while the cache
    is empty. What was computed without gradients stays without: to the later steps it is a
    constant. (With activation checkpointing, which runs each step twice, use no cache.)

    Source: Shazeer 2019, section 2.4: incremental attention.

    Example:
        >>> attention, cache = MultiHeadAttention(16, 2), KeyValueCache()
        >>> x = torch.randn(1, 5, 16)
        >>> steps = [attention(x[:, t : t + 1], causal=True, cache=cache) for t in range(5)]
        >>> len(cache)
        5
        >>> torch.allclose(torch.cat(steps, dim=1), attention(x, causal=True), atol=1e-5)
        True
    """

    def __init__(self) -> None:
        self.key: Float[Tensor, "batch kv_heads keys d_head"] | None = None
        self.value: Float[Tensor, "batch kv_heads keys d_value"] | None = None
        self.memory: Float[Tensor, "batch keys d_memory"] | None = None
        """In cross-attention, the memory that the keys and values were computed from."""

    def __len__(self) -> int:
        """Number of tokens in the cache."""
        return 0 if self.key is None else self.key.shape[-2]

    def with_new(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_value"],
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_value"]
    ]:
        """All keys and values, the new tokens' among them; the cache stays as it is.

        Raises:
            TypeError: if they are of another type than what the cache holds.
            ValueError: if batch, heads or widths are not those of what the cache holds.

        Example:
            >>> cache, new = KeyValueCache(), torch.randn(1, 2, 3, 4)
            >>> cache.keep(*cache.with_new(new, new))
            >>> key, value = cache.with_new(new, new)
            >>> len(cache), key.shape
            (3, torch.Size([1, 2, 6, 4]))
        """
        if self.key is not None and self.value is not None:
            for name, held, new in (("keys", self.key, key), ("values", self.value, value)):
                if held.dtype != new.dtype:
                    raise TypeError(
                        f"the cache holds {name} of {held.dtype}, the new are {new.dtype}"
                    )
                if (*held.shape[:2], held.shape[3]) != (*new.shape[:2], new.shape[3]):
                    raise ValueError(
                        f"the cache holds {name} of shape (batch, heads, tokens, width) = "
                        f"{tuple(held.shape)}, the new ones have {tuple(new.shape)}"
                    )
            key = torch.cat([self.key, key], dim=-2)
            value = torch.cat([self.value, value], dim=-2)
        return key, value

    def cut(self, n_tokens: int) -> None:
        """Forget all tokens after the first ``n_tokens``, those of a memory too.

        Raises:
            ValueError: if ``n_tokens`` is negative or no integer.
        """
        check_count("n_tokens", n_tokens)
        if n_tokens == 0:
            self.key = self.value = self.memory = None
        elif self.key is not None and self.value is not None and n_tokens < len(self):
            self.key, self.value = self.key[:, :, :n_tokens], self.value[:, :, :n_tokens]
            self.memory = None if self.memory is None else self.memory[:, :n_tokens]

    def keep(
        self,
        key: Float[Tensor, "batch kv_heads keys d_head"],
        value: Float[Tensor, "batch kv_heads keys d_value"],
        memory: Float[Tensor, "batch keys d_memory"] | None = None,
    ) -> None:
        """Replace what is held.

        Raises:
            ValueError: if keys and values have no four dimensions, or other ones but for the width.
        """
        if key.dim() != 4 or key.shape[:3] != value.shape[:3]:
            raise ValueError(
                "keys and values need the same batch, heads and tokens, (batch, heads, tokens, "
                f"width), got {tuple(key.shape)} and {tuple(value.shape)}"
            )
        self.key, self.value, self.memory = key, value, memory

    def __repr__(self) -> str:
        """Number of tokens, for ``print``."""
        return f"KeyValueCache({len(self)} tokens)"


@contextmanager
def restored_on_error(caches: Iterable[KeyValueCache]) -> Iterator[None]:
    """If anything inside raises, what it added to these caches is forgotten.

    Example:
        >>> cache = KeyValueCache()
        >>> with restored_on_error([cache]):
        ...     _ = MultiHeadAttention(8, 2)(torch.randn(1, 3, 8), cache=cache)
        ...     raise ValueError("something else")
        Traceback (most recent call last):
        ValueError: something else
        >>> cache
        KeyValueCache(0 tokens)
    """
    held = [(cache, len(cache)) for cache in caches]  # no tensor, which would live on
    try:
        yield
    except BaseException:
        for cache, length in held:
            cache.cut(length)
        raise


class MultiHeadAttention(nn.Module):
    r"""Several attentions side by side, each on its own projections of the input.

    .. math::
        \text{head}_h = \operatorname{attention}(X W_Q^h,\; Y W_K^h,\; Y W_V^h), \qquad
        \operatorname{MHA}(X, Y) = [\text{head}_1; \dots; \text{head}_H]\, W_O

    with the memory :math:`Y = X` in self-attention. The matrices of all heads lie side by side in
    one ``nn.Linear``: head :math:`h` owns the outputs :math:`h\,d_\text{head} \dots
    (h{+}1)\,d_\text{head}{-}1` of ``query`` and ``key``, and likewise :math:`d_\text{value}`
    outputs of ``value`` and inputs of ``output``. No head shares a number with another, unless
    ``n_kv_heads`` says so.

    ============  ====================================  =========================================
    module        from                                  to
    ============  ====================================  =========================================
    ``query``     d_model                               n_heads · d_head
    ``key``       d_memory                              n_kv_heads · d_head
    ``value``     d_memory                              n_kv_heads · d_value
    ``output``    n_heads · d_value                     d_model
    ============  ====================================  =========================================

    Args:
        d_model: width of the input and of the output.
        n_heads: number of query heads.
        n_kv_heads: number of key and value heads, a divisor of ``n_heads``: as many as there are
            query heads if not given (multi-head), 1 for multi-query, in between grouped-query
            attention.
        d_head: width of a query and a key; d_model / n_heads if not given.
        d_value: width of a value; ``d_head`` if not given.
        d_memory: width of the memory in cross-attention; ``d_model`` if not given.
        bias: add a bias to all four projections, to none, to ``"qkv"`` or to ``"output"`` alone.
        dropout: probability with which an attention weight is dropped in training.
        position: :class:`attnbook.position.Rotary`, :class:`attnbook.position.ALiBi` or none.

    The sizes, ``dropout`` and ``position`` are attributes under these names. The matrices start as
    Glorot-uniform, each of the four counted as one matrix, the biases as zeros.

    Raises:
        ValueError: if ``n_heads`` does not divide ``d_model`` and no ``d_head`` is given,
            ``n_kv_heads`` does not divide ``n_heads``, a size is not positive, ``dropout`` is not
            in [0, 1), ``bias`` is none of the four, or positions meet a memory of another width,
            or rotary ones an odd ``d_head``.
        TypeError: if ``position`` is none of the three.

    Source: Vaswani et al. 2017, section 3.2.2; Shazeer 2019 (multi-query), section 3;
    Ainslie et al. 2023 (grouped-query), section 2.2.

    Example:
        >>> attention = MultiHeadAttention(64, 4, n_kv_heads=2, position=Rotary())
        >>> x = torch.randn(2, 10, 64)
        >>> output, weights = attention(x, causal=True, return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 64]), torch.Size([2, 4, 10, 10]))
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_value: int | None = None,
        d_memory: int | None = None,
        bias: ProjectionBias = False,
        dropout: float = 0.0,
        position: Rotary | ALiBi | None = None,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        if position is not None and not isinstance(position, Rotary | ALiBi):
            raise TypeError(f"position must be a Rotary(), an ALiBi() or None, got {position!r}")
        check_sizes(d_model=d_model, n_heads=n_heads)
        if d_head is None:
            if d_model % n_heads:
                raise ValueError(f"n_heads must divide d_model, got {n_heads} heads for {d_model}")
            d_head = d_model // n_heads
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        d_value = d_head if d_value is None else d_value
        d_memory = d_model if d_memory is None else d_memory
        check_sizes(n_kv_heads=n_kv_heads, d_head=d_head, d_value=d_value, d_memory=d_memory)
        if n_heads % n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads, got {n_kv_heads} key heads for {n_heads} heads"
            )
        if bias not in (True, False, "qkv", "output"):
            raise ValueError(f"bias must be True, False, 'qkv' or 'output', got {bias!r}")
        if position is not None and d_memory != d_model:
            raise ValueError(
                f"{position} compares positions within one sequence: no memory of width {d_memory} "
                f"is possible"
            )
        if isinstance(position, Rotary) and d_head % 2:
            raise ValueError(f"rotary positions turn pairs: d_head must be even, got {d_head}")
        self.d_model, self.d_memory = d_model, d_memory
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head, self.d_value = d_head, d_value
        self.dropout = dropout
        self.position = position
        inner, outer = bias in (True, "qkv"), bias in (True, "output")
        self.query = nn.Linear(d_model, n_heads * d_head, bias=inner)
        self.key = nn.Linear(d_memory, n_kv_heads * d_head, bias=inner)
        self.value = nn.Linear(d_memory, n_kv_heads * d_value, bias=inner)
        self.output = nn.Linear(n_heads * d_value, d_model, bias=outer)
        for linear in (self.query, self.key, self.value, self.output):
            draw_(linear.weight, "glorot", fan_in=linear.in_features, fan_out=linear.out_features)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @overload
    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_memory"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: Literal[False] = False,
    ) -> Float[Tensor, "batch queries d_model"]: ...
    @overload
    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_memory"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: Literal[True],
    ) -> tuple[
        Float[Tensor, "batch queries d_model"], Float[Tensor, "batch heads queries keys"]
    ]: ...
    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_memory"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "batch queries d_model"]
        | tuple[Float[Tensor, "batch queries d_model"], Float[Tensor, "batch heads queries keys"]]
    ):
        """Attend from ``x`` to ``memory``, or to ``x`` itself.

        Args:
            x: the tokens that ask.
            memory: the tokens that are asked (cross-attention); ``x`` if not given.
            mask: ``True`` = may attend; broadcasts to (batch, heads, queries, keys), the keys in
                the cache among them. One mask for each sequence is ``mask[:, None]``; one of its
                tokens, (batch, keys), is ``mask[:, None, None]``: as it is, it would be read as
                (queries, keys). What is masked must be finite all the same: 0 · NaN is NaN. Where
                a query may attend to nothing, its heads are zeros, and the output is the bias of
                ``output``, if there is one.
            causal: also forbid looking ahead; with more keys than queries the last query sees
                every key, with fewer it raises.
            cache: in self-attention, ``x`` are the tokens after those in the cache, and are added
                to it; a call that raises leaves it as it was. Several at a time still need
                ``causal=True``. In cross-attention the cache keeps the keys and values of the
                memory: later steps with the same memory, or an equal one, do not compute them
                again. Not noticed: a memory that was changed in place meanwhile, or an attention
                of the same sizes and other weights.
            return_weights: return ``(output, weights)``, the weights of each head, in training
                after dropout.

        Raises:
            TypeError: if ``x`` or ``memory`` is not of the weights' floating type (except under
                ``torch.autocast``), the cache is of another one or no cache, or the mask is not
                boolean.
            ValueError: if the shape of ``x``, ``memory`` or the mask does not fit; the cache is of
                another batch, of other sizes or of another memory; positions meet a memory; or
                causal ALiBi is used without ``causal``.
        """
        self._check_tokens("x", x, self.d_model)
        if memory is not None:
            self._check_tokens("memory", memory, self.d_memory)
            if memory.shape[0] != x.shape[0]:
                raise ValueError(f"x has a batch of {len(x)} but memory of {len(memory)}")
            if self.position is not None:
                raise ValueError(
                    f"{self.position} compares positions within one sequence: no memory is possible"
                )
        elif self.d_memory != self.d_model:
            raise ValueError(f"a memory of width {self.d_memory} is needed, x has {x.shape[-1]}")
        if cache is not None:
            check_kind("cache", cache, KeyValueCache)
        if memory is None:
            q, k, v = self._queries_keys_and_values(x)
            if isinstance(self.position, Rotary):
                start = 0 if cache is None else len(cache)
                positions = torch.arange(start, start + x.shape[1], device=x.device)
                q, k = self.position.rotate_both(q, k, positions)
            if cache is not None:
                if cache.memory is not None:
                    raise ValueError(
                        "the cache holds a memory's keys: self-attention needs its own"
                    )
                k, v = cache.with_new(k, v)
        else:
            q = self._split(self.query(x), self.n_heads)  # (batch, heads, queries, d_head)
            k, v = self._memory_keys_and_values(memory, cache)
        bias = None
        if isinstance(self.position, ALiBi):
            if not (causal or self.position.bidirectional):
                raise ValueError(
                    "causal ALiBi favours what lies ahead unless a causal mask forbids it: pass "
                    "causal=True, or use ALiBi(bidirectional=True)"
                )
            bias = self.position.bias(
                self.n_heads, q.shape[2], k.shape[2], dtype=q.dtype, device=q.device
            )
        dropout = self.dropout if self.training else 0.0
        weights = None
        if return_weights:
            heads, weights = scaled_dot_product_attention(
                q, k, v, mask, causal=causal, bias=bias, dropout=dropout, return_weights=True
            )
        else:
            heads = scaled_dot_product_attention(
                q, k, v, mask, causal=causal, bias=bias, dropout=dropout
            )
        output: Tensor = self.output(heads.transpose(1, 2).flatten(-2))  # heads side by side
        if cache is not None:  # nothing is kept of a call that failed
            cache.keep(k, v, memory)
        return output if weights is None else (output, weights)

    def extra_repr(self) -> str:
        """What no part shows, for ``print(module)``."""
        heads = f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}"
        return f"{heads}, dropout={self.dropout:g}, position={self.position}"

    def _queries_keys_and_values(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> tuple[
        Float[Tensor, "batch heads tokens d_head"],
        Float[Tensor, "batch kv_heads tokens d_head"],
        Float[Tensor, "batch kv_heads tokens d_value"],
    ]:
        return self._split(self.query(x), self.n_heads), *self._keys_and_values(x)

    def _keys_and_values(
        self, tokens: Float[Tensor, "batch keys d_memory"]
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_value"]
    ]:
        key, value = self.key(tokens), self.value(tokens)
        return self._split(key, self.n_kv_heads), self._split(value, self.n_kv_heads)

    def _memory_keys_and_values(
        self, memory: Float[Tensor, "batch keys d_memory"], cache: KeyValueCache | None
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_value"]
    ]:
        if cache is None:
            return self._keys_and_values(memory)
        if cache.key is None or cache.value is None:
            return self._keys_and_values(memory)
        if cache.memory is not memory and not _equal(cache.memory, memory):
            raise ValueError("the cache holds keys and values of something else than this tensor")
        held = cache.key.shape[1], cache.key.shape[3], cache.value.shape[3]
        if held != (self.n_kv_heads, self.d_head, self.d_value):
            raise ValueError(
                f"the cache holds (heads, d_head, d_value) = {held}, this attention has "
                f"{(self.n_kv_heads, self.d_head, self.d_value)}"
            )
        return cache.key, cache.value

    @staticmethod
    def _split(
        x: Float[Tensor, "batch tokens width"], n_heads: int
    ) -> Float[Tensor, "batch heads tokens d_head"]:
        batch, tokens, width = x.shape
        return x.view(batch, tokens, n_heads, width // n_heads).transpose(1, 2)

    def _entrance(self) -> nn.Module:
        """The first to see the tokens."""
        return self.query

    def _check_tokens(self, name: str, tokens: Tensor, width: int) -> None:
        check_kind(name, tokens, Tensor)
        if tokens.dim() != 3 or tokens.shape[-1] != width:
            raise ValueError(
                f"{name} must have shape (batch, tokens, {width}), got {tuple(tokens.shape)}"
            )
        weight = getattr(self._entrance(), "weight", None)
        if tokens.dtype == getattr(weight, "dtype", None):
            return
        check_floating(name, tokens)
        if not isinstance(weight, Tensor) or not weight.is_floating_point():
            return  # wrapped or quantized, a projection judges for itself
        if not torch.is_autocast_enabled(tokens.device.type):
            raise TypeError(f"{name} is {tokens.dtype} but the weights are {weight.dtype}")


def _equal(a: Tensor | None, b: Tensor) -> bool:
    """A copy of the same numbers, which no gradient has to find its way back to."""
    if a is None or a.requires_grad or b.requires_grad or b.is_meta:
        return False
    return a.device == b.device and a.equal(b)


def _check_types(**tensors: Tensor) -> None:
    """All of floating type, and of the same one."""
    (first, reference), *_ = tensors.items()
    for name, tensor in tensors.items():
        check_floating(name, tensor)
        if tensor.dtype != reference.dtype:
            raise TypeError(f"{first} is {reference.dtype} but {name} is {tensor.dtype}")


def _check_shapes(query: Tensor, key: Tensor, value: Tensor | None = None) -> int:
    """How many query heads share a key head: 1, unless there are fewer key heads."""
    if min(query.dim(), key.dim()) < 2:
        raise ValueError(
            f"query and key need shapes (…, tokens, d_head), got {tuple(query.shape)} and "
            f"{tuple(key.shape)}"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has d_head {query.shape[-1]} but key has {key.shape[-1]}")
    if query.shape[-1] == 0:
        raise ValueError("query and key have d_head 0")
    if value is not None and value.dim() < 2:
        raise ValueError(f"value needs a shape (…, keys, d_value), got {tuple(value.shape)}")
    if value is not None and value.shape[:-2] != key.shape[:-2]:
        raise ValueError(
            f"key has leading dimensions {tuple(key.shape[:-2])} but value has "
            f"{tuple(value.shape[:-2])}"
        )
    if value is not None and value.shape[-2] != key.shape[-2]:
        raise ValueError(f"there are {key.shape[-2]} keys but {value.shape[-2]} values")
    ours, theirs = query.shape[:-2], key.shape[:-2]
    if ours == theirs:
        return 1
    grouped = value is not None and len(ours) == len(theirs) and ours[:-1] == theirs[:-1]
    if not grouped or 0 in (ours[-1], theirs[-1]) or ours[-1] % theirs[-1]:
        raise ValueError(
            f"query has leading dimensions {tuple(ours)} but key has {tuple(theirs)}"
            + (": the heads of key must divide those of query" if grouped else "")
        )
    return ours[-1] // theirs[-1]


def _check_broadcast(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    if not _fits(tensor.shape, shape):
        hint, given = "", tuple(tensor.shape)
        if len(given) == 3 and _fits((given[0], 1, *given[1:]), shape):
            hint = f"; one for each sequence is {name}[:, None]"
        elif len(given) == 2 and len(shape) == 4 and given == (shape[0], shape[-1]):
            hint = f"; of each sequence's keys it is {name}[:, None, None]"
        raise ValueError(
            f"{name} of shape {given} does not broadcast to the logits' shape "
            f"(…, queries, keys) = {tuple(shape)}{hint}"
        )


def _fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether it broadcasts to the target, and not beyond."""
    return len(shape) <= len(target) and all(
        have in (1, want) for have, want in zip(reversed(shape), reversed(target), strict=False)
    )
