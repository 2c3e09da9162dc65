"""Scaled dot-product attention: the mathematics as functions, the parameters in one module."""

from typing import Any, ClassVar, Never

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from attnbook.config import ProjectionBias, check_shares, check_sizes
from attnbook.initialization import Roles, draw_
from attnbook.masks import causal_mask, checked, combine_masks
from attnbook.positions import Position


def attention_logits(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    *,
    scale: float | None = None,
) -> Float[Tensor, "... queries keys"]:
    r"""How well each query fits each key, before the softmax.

    .. math:: S = \text{scale} \cdot Q K^\top, \qquad S_{ij} = \text{scale}\; q_i \cdot k_j

    Args:
        query: one row for each query.
        key: one row for each key.
        scale: factor on the dot products; 1/sqrt(d_head) if not given.

    Source: Vaswani et al. 2017, eq. 1.

    Example:
        >>> attention_logits(torch.eye(2), torch.eye(2), scale=1.0)
        tensor([[1., 0.],
                [0., 1.]])
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    # In the order that keeps numbers small: float16 ends at 65,504.
    return (query * scale) @ key.mT if abs(scale) < 1 else (query @ key.mT) * scale


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

    Source: Vaswani et al. 2017, eq. 1 and section 3.2.3.

    Example:
        >>> attention_weights(torch.zeros(1, 4), torch.tensor([True, True, False, False]))
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    mask = checked(mask)
    if mask is None:
        return logits.softmax(dim=-1)
    # A row without any allowed key is computed from zeros, so that its softmax and its gradient
    # stay finite; its weights are set to zero afterwards.
    some = mask.any(dim=-1, keepdim=True)
    filler = torch.where(some, -torch.inf, 0.0).to(logits.dtype)
    return torch.where(mask, logits, filler).softmax(dim=-1).masked_fill(~some, 0.0)


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
) -> Any:
    r"""Each query's weighted mean of the values.

    .. math:: O = A V, \qquad A = \operatorname{softmax}(\text{scale} \cdot Q K^\top + B)

    With ``return_weights`` it is computed step by step, as written here: that is the definition.
    Otherwise torch's fused kernel computes the same without keeping the weights. Tests hold the
    two together. (The kernel may have no second derivatives; the definition has them.)

    The heads, the last of the leading dimensions, may be fewer in ``key`` and ``value``. Then each
    of their heads serves a group of neighbouring query heads (grouped-query attention): query head
    :math:`h` of :math:`H` attends to key head :math:`\lfloor h\,H_\text{kv} / H \rfloor`.

    Args:
        query: (…, queries, d_head).
        key: (…, keys, d_head).
        value: (…, keys, d_value).
        mask: ``True`` = may attend; broadcasts to (…, queries, keys).
        causal: also forbid looking ahead (:func:`attnbook.masks.causal_mask`).
        scale: factor on the dot products; 1/sqrt(d_head) if not given.
        bias: added to the logits, :math:`B`; broadcasts as the mask does. Where it is −inf, a query
            may not attend.
        dropout: probability with which a weight is dropped, now: pass 0 when evaluating.
        return_weights: return the weights, too, those after dropout.

    Returns:
        The output, (…, queries, d_value); with ``return_weights`` also the weights, (…, queries,
        keys).

    Raises:
        TypeError: if the mask is not boolean, or the bias is.
        ValueError: if there are not as many values as keys, or heads of them; their heads do not
            divide those of the queries; mask or bias would not broadcast, or are on another
            device; or, causal, there are fewer keys than queries.

    Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023, section 2.2, for the groups.

    Example:
        >>> q, k, v = torch.randn(5, 16), torch.randn(7, 16), torch.randn(7, 3)
        >>> output, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([5, 3]), torch.Size([5, 7]))
    """
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"there are {key.shape[-2]} keys but {value.shape[-2]} values")
    heads, key_heads = query.shape[-3:-2], key.shape[-3:-2]  # of one number, or empty
    if key_heads != value.shape[-3:-2]:
        raise ValueError(
            f"keys and values must have as many heads, got {tuple(key.shape)} and "
            f"{tuple(value.shape)}"
        )
    n_kv_heads = key_heads[0] if key_heads else 0
    if heads not in ((), (1,), key_heads) and (not n_kv_heads or heads[0] % n_kv_heads):
        raise ValueError(
            f"key heads must divide query heads, got {tuple(key.shape)} for {tuple(query.shape)}"
        )
    check_shares(dropout=dropout)
    if return_weights:
        return _by_definition(query, key, value, mask, bias, causal, dropout, scale)
    return _by_kernel(query, key, value, mask, bias, causal, dropout, scale)


def _by_definition(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    mask: Bool[Tensor, "..."] | None,
    bias: Float[Tensor, "..."] | None,
    causal: bool,
    dropout: float,
    scale: float | None = None,
) -> tuple[Float[Tensor, "... queries d_value"], Float[Tensor, "... queries keys"]]:
    mask, bias = _fitting(query, key, mask, bias)
    if (group := _group(query, key)) > 1:
        key, value = (x.repeat_interleave(group, dim=-3) for x in (key, value))
    if causal:
        mask = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], device=query.device))
    logits = attention_logits(query, key, scale=scale)  # (…, queries, keys)
    if bias is not None:
        logits, mask = logits + bias, combine_masks(mask, bias != -torch.inf)
    weights = F.dropout(attention_weights(logits, mask), dropout)
    return weights @ value, weights


def _by_kernel(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    mask: Bool[Tensor, "..."] | None,
    bias: Float[Tensor, "..."] | None,
    causal: bool,
    dropout: float,
    scale: float | None = None,
) -> Float[Tensor, "... queries d_value"]:
    mask, bias = _fitting(query, key, mask, bias)
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    # The kernel's own causal mask saves half of the work. It is aligned to the start, which is the
    # same for as many queries as keys, and scaled with the logits, which needs a scale above 0.
    by_kernel, plain = False, mask is None and bias is None and (scale is None or scale > 0)
    if causal and plain and n_queries == n_keys:
        by_kernel = True
    elif causal and (n_queries != 1 or n_keys == 0):  # one at the end sees all
        mask = combine_masks(mask, causal_mask(n_queries, n_keys, device=query.device))
    # Branches, not comparisons: what is compiled or traced has sizes that are not numbers.
    grouped = True if _group(query, key) > 1 else False  # noqa: SIM210
    added: Tensor | None = mask
    if bias is not None:
        added = bias if mask is None else torch.where(mask, bias, -torch.inf)
    if added is not None:  # torch falls back to a slower kernel for a mask of 3 dimensions
        added = added[(None,) * (query.dim() - added.dim())]
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=added,
        is_causal=by_kernel,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=grouped,
    )


def _fitting(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    mask: Bool[Tensor, "..."] | None,
    bias: Float[Tensor, "..."] | None,
) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
    """Mask and bias, the bias as wide as the queries; refused if one would not broadcast."""
    mask = checked(mask)
    if bias is not None:
        if bias.dtype == torch.bool:
            raise TypeError("a bias is numbers, got torch.bool: True = may attend is mask=…")
        bias = bias.to(query.dtype)  # under autocast the bias may be the wider one
    for name, given in (("mask", mask), ("bias", bias)):
        if given is None:
            continue
        if given.device != query.device and given.dim():
            raise ValueError(f"the {name} is on {given.device}, the queries on {query.device}")
        n_more = max(query.dim(), key.dim()) - 2
        leading = [(1,) * n_more + tuple(x.shape[:-2]) for x in (query, key)]
        whole = (
            *map(max, *(x[len(x) - n_more :] for x in leading)),
            query.shape[-2],
            key.shape[-2],
        )
        shape, wanted = given.shape, whole[len(whole) - given.dim() :]
        if given.dim() > len(whole) or any(
            have not in (1, want) for have, want in zip(shape, wanted, strict=True)
        ):
            raise ValueError(
                f"the {name} must broadcast to (…, queries, keys) = {whole}, got {tuple(shape)}"
                f"{_cure(name, tuple(shape), whole)}"
            )
    return mask, bias


def _cure(name: str, shape: tuple[int, ...], whole: tuple[int, ...]) -> str:
    """What to write instead, if one thing fits."""
    batch, n_queries, n_keys = whole[0], *whole[-2:]
    if len(whole) == 4 and len(shape) == 3 and shape[1] in (1, n_queries) and shape[0] == batch:
        return f": one for each sequence is {name}[:, None]"
    if len(whole) == 4 and shape == (batch, n_keys):
        return f": one of each sequence's tokens is {name}[:, None, None]"
    return ""


def _group(query: Tensor, key: Tensor) -> int:
    """How many query heads share a key head."""
    return query.shape[-3] // key.shape[-3] if query.dim() > 2 and key.shape[-3] else 1


class KeyValueCache:
    """Keys and values of the tokens that an attention has already seen.

    Decoding one token after another, a model computes the keys and values of the new token alone
    and finds those before it here. Make one for each attention and each run. In cross-attention it
    holds the memory's keys and values after the first call, and belongs to that memory.

    ``key`` and ``value`` have the shapes (batch, kv_heads, keys, d_head) and (batch, kv_heads,
    keys, d_value), and are ``None`` while the cache is empty.

    Args:
        max_tokens: memory for so many is allocated once, and new tokens are written into it:
            ``key`` and ``value`` are views of its filled part. This is for evaluation: gradients
            need what would be overwritten. If not given, every append copies all to new memory.

    Source: Shazeer 2019, section 2.4: incremental attention.

    Example:
        >>> attention, cache = MultiHeadAttention(16, 2), KeyValueCache(max_tokens=8)
        >>> x = torch.randn(1, 5, 16)
        >>> with torch.no_grad():
        ...     steps = [attention(x[:, t : t + 1], causal=True, cache=cache) for t in range(5)]
        >>> len(cache), cache.nbytes  # 2 · batch · kv_heads · max_tokens · d_head · 4 bytes
        (5, 1024)
        >>> torch.allclose(torch.cat(steps, dim=1), attention(x, causal=True), atol=1e-5)
        True
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.key: Float[Tensor, "batch kv_heads keys d_head"] | None = None
        self.value: Float[Tensor, "batch kv_heads keys d_value"] | None = None
        self._allocated: list[Tensor] = []  # for keys and for values, of max_tokens

    def __len__(self) -> int:
        """Number of tokens in the cache."""
        return 0 if self.key is None else self.key.shape[-2]

    @property
    def nbytes(self) -> int:
        """Memory that the keys and values occupy, with what is allocated and not filled yet."""
        held = [x for x in (self.key, self.value) if x is not None]
        return sum(x.untyped_storage().nbytes() for x in held)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads new d_head"],
        value: Float[Tensor, "batch kv_heads new d_value"],
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_value"]
    ]:
        """Add the new tokens' keys and values; return all.

        Raises:
            ValueError: if they are more than ``max_tokens``, of another batch, other heads or
                another type than what is there, or not as many keys as values.
        """
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                "keys and values must be of as many sequences, heads and tokens, got "
                f"{tuple(key.shape)} and {tuple(value.shape)}"
            )
        for new, held in ((key, self.key), (value, self.value)):
            if held is not None and _kind(new) != _kind(held):
                raise ValueError(
                    f"the cache holds (batch, kv_heads, width) = {_kind(held)}, got {_kind(new)}"
                )
        if self.max_tokens is not None:
            key, value = self._written(self.max_tokens, key, value)
        elif self.key is not None and self.value is not None:
            key = torch.cat([self.key, key], dim=-2)
            value = torch.cat([self.value, value], dim=-2)
        self.key, self.value = key, value
        return key, value

    def cut(self, n_tokens: int) -> None:
        """Forget all tokens after the first ``n_tokens``."""
        if n_tokens == 0:
            self.key = self.value = None
        elif self.key is not None and self.value is not None:
            self.key, self.value = self.key[:, :, :n_tokens], self.value[:, :, :n_tokens]

    def reorder(self, index: Integer[Tensor, "new_batch"]) -> None:
        """Keep these sequences of the batch, in this order: what beam search does at each step."""
        if self.key is not None and self.value is not None:
            key, value = self.key[index], self.value[index]
            self.cut(0)
            self.append(key, value)

    def _written(self, max_tokens: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, after the new ones were written behind those that are there."""
        if self.key is None:
            self._allocated = [
                new.new_empty(*new.shape[:2], max_tokens, new.shape[-1]) for new in (key, value)
            ]
        n_seen, n_new = len(self), key.shape[-2]
        keys, values = self._allocated
        if n_seen + n_new > max_tokens:
            raise ValueError(f"the cache takes {max_tokens - n_seen} more tokens, got {n_new}")
        keys.narrow(2, n_seen, n_new).copy_(key)
        values.narrow(2, n_seen, n_new).copy_(value)
        return keys.narrow(2, 0, n_seen + n_new), values.narrow(2, 0, n_seen + n_new)

    def __repr__(self) -> str:
        """Number of tokens, for ``print``."""
        return f"KeyValueCache({len(self)} tokens)"


def _kind(x: Float[Tensor, "batch heads tokens width"]) -> tuple[object, ...]:
    """What would be broadcast or rounded into memory of another kind."""
    return *x.shape[:2], x.shape[-1], x.dtype, x.device


ELSEWHERE = {
    "key_padding_mask": "write mask=~key_padding_mask[:, None, None], since True is padding there",
    "attn_mask": "write mask=~attn_mask, since True is forbidden there, or bias= for numbers",
    "attention_mask": "write mask=attention_mask.bool()[:, None, None]",
    "is_causal": "write causal=",
    "need_weights": "write return_weights=",
    "key": "keys are made from the memory: write attention(query, memory)",
    "value": "values are made from the memory: write attention(query, memory)",
}
"""What torch's and transformers' attentions take, and what to write here."""


class MultiHeadAttention(nn.Module):
    r"""Several attentions side by side, each on its own projections of the input.

    .. math::
        \text{head}_h = \operatorname{attention}(X W_Q^h,\; Y W_K^h,\; Y W_V^h), \qquad
        \operatorname{MHA}(X, Y) = [\text{head}_1; \dots; \text{head}_H]\, W_O

    with the memory :math:`Y = X` in self-attention. The matrices of all heads are side by side in
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

    With ``qk_norm`` each head's queries and keys go through ``query_norm`` and ``key_norm``, one
    RMSNorm over ``d_head`` for all heads, before the position turns them: logits then can't grow
    with the weights.

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
        position: :class:`attnbook.positions.Rotary`, :class:`attnbook.positions.ALiBi`, a
            :class:`attnbook.positions.Position` of your own, or none.
        qk_norm: norm queries and keys.
        norm_eps: added to the mean square in these norms.

    The sizes, ``dropout`` and ``position`` are attributes under these names. The matrices start as
    Glorot-uniform, each of the four counted as one matrix, the biases as zeros.

    Raises:
        ValueError: if ``n_heads`` does not divide ``d_model`` and no ``d_head`` is given,
            ``n_kv_heads`` does not divide ``n_heads``, or a size or ``dropout`` can't be.

    Source: Vaswani et al. 2017, section 3.2.2; Shazeer 2019 (multi-query), section 3;
    Ainslie et al. 2023 (grouped-query), section 2.2; Henry et al. 2020 (query-key normalization),
    section 2, and Dehghani et al. 2023 (ViT-22B), section 2.1, for ``qk_norm``, here with RMSNorm.

    Example:
        >>> from attnbook import Rotary
        >>> attention = MultiHeadAttention(64, 4, n_kv_heads=2, position=Rotary())
        >>> x = torch.randn(2, 10, 64)
        >>> output, weights = attention(x, causal=True, return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 10, 64]), torch.Size([2, 4, 10, 10]))
    """

    roles: ClassVar[Roles] = {"query": "query", "key": "key", "value": "value", "output": "output"}

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
        position: Position | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads)
        check_sizes(d_head=d_head, d_value=d_value, d_memory=d_memory)
        check_shares(dropout=dropout, norm_eps=norm_eps)
        if d_head is None and d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model, got {n_heads} heads for {d_model}")
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if n_heads % n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_heads, got {n_kv_heads} key heads for {n_heads} heads"
            )
        if bias not in (True, False, "qkv", "output"):
            raise ValueError(f"bias must be True, False, 'qkv' or 'output', got {bias!r}")
        self.d_model = d_model
        self.d_memory = d_model if d_memory is None else d_memory
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.d_value = self.d_head if d_value is None else d_value
        self.dropout = dropout
        self.position = position
        inner, outer = bias in (True, "qkv"), bias in (True, "output")
        self.query = nn.Linear(d_model, n_heads * self.d_head, bias=inner)
        self.key = nn.Linear(self.d_memory, n_kv_heads * self.d_head, bias=inner)
        self.value = nn.Linear(self.d_memory, n_kv_heads * self.d_value, bias=inner)
        self.output = nn.Linear(n_heads * self.d_value, d_model, bias=outer)
        self.query_norm = nn.RMSNorm(self.d_head, eps=norm_eps) if qk_norm else None
        self.key_norm = nn.RMSNorm(self.d_head, eps=norm_eps) if qk_norm else None
        for linear in (self.query, self.key, self.value, self.output):
            draw_(linear.weight, "glorot", fan_in=linear.in_features, fan_out=linear.out_features)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        memory: Float[Tensor, "batch keys d_memory"] | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        *,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        positions: Integer[Tensor, "*batch keys"] | None = None,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
        **elsewhere: Never,
    ) -> (
        Float[Tensor, "batch queries d_model"]
        | tuple[Float[Tensor, "batch queries d_model"], Float[Tensor, "batch n_heads queries keys"]]
    ):
        """Attend from ``x`` to ``memory``, or to ``x`` itself.

        Args:
            x: the tokens that attend.
            memory: the tokens that are attended to (cross-attention); ``x`` if not given.
            mask: ``True`` = may attend; broadcasts to (batch, heads, queries, keys), the keys in
                the cache among them. One mask for each sequence is ``mask[:, None]``; one of its
                tokens, (batch, keys), is ``mask[:, None, None]``: two dimensions are (queries,
                keys), even where there are as many sequences as tokens. Where a query may attend
                to nothing, its heads are zeros.
            bias: added to the logits; broadcasts as the mask does.
            causal: also forbid looking ahead; with more keys than queries the last query sees
                every key.
            positions: of all keys, the cached ones too; 0, 1, 2, … if not given.
            cache: in self-attention, ``x`` are the tokens after those in the cache, and are added
                to it. In cross-attention it keeps the memory's keys and values after the first
                call.
            return_weights: return the weights of each head, too, in training after dropout.
            elsewhere: nothing: what other libraries' attentions take is refused with what to write.

        Returns:
            The output, (batch, queries, d_model); with ``return_weights`` also the weights,
            (batch, heads, queries, keys).

        Raises:
            ValueError: if positions meet a memory, or causal ALiBi is used without ``causal``.
            TypeError: if the mask is not boolean: the third argument is not the values.
        """
        for name in elsewhere:
            raise TypeError(
                f"no argument is called {name}: {ELSEWHERE.get(name, 'see help(forward)')}"
            )
        # (batch, heads, queries, d_head), and for keys (batch, kv_heads, keys, d_head)
        q = self._split(self.query(x), self.n_heads, self.query_norm)
        if memory is None:
            k, v = self._keys_and_values(x)
            if self.position is not None:
                if self.position.needs_causal and not causal:
                    raise ValueError(f"{self.position} is for causal attention: pass causal=True")
                n_before = 0 if cache is None else len(cache)
                q, k, bias = self._placed(self.position, q, k, bias, positions, n_before)
            if cache is not None:
                k, v = cache.append(k, v)
        else:
            k, v = self._of_memory(memory, cache)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if return_weights:
            heads, weights = _by_definition(q, k, v, mask, bias, causal, dropout)
        else:
            heads = _by_kernel(q, k, v, mask, bias, causal, dropout)
        output: Tensor = self.output(heads.transpose(1, 2).flatten(-2))  # heads side by side
        return output if weights is None else (output, weights)

    def _keys_and_values(
        self, x: Float[Tensor, "batch keys d_memory"]
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_value"]
    ]:
        key = self._split(self.key(x), self.n_kv_heads, self.key_norm)
        return key, self._split(self.value(x), self.n_kv_heads)

    def _of_memory(
        self, memory: Float[Tensor, "batch keys d_memory"], cache: KeyValueCache | None
    ) -> tuple[
        Float[Tensor, "batch kv_heads keys d_head"], Float[Tensor, "batch kv_heads keys d_value"]
    ]:
        """The memory's keys and values, computed in the first call."""
        if self.position is not None:
            raise ValueError(f"{self.position} is for one sequence, got a memory, too")
        if cache is not None and cache.key is not None and cache.value is not None:
            return cache.key, cache.value
        key, value = self._keys_and_values(memory)
        return (key, value) if cache is None else cache.append(key, value)

    def _placed(
        self,
        position: Position,
        query: Float[Tensor, "batch heads queries d_head"],
        key: Float[Tensor, "batch kv_heads queries d_head"],
        bias: Float[Tensor, "..."] | None,
        positions: Integer[Tensor, "*batch keys"] | None,
        n_before: int,
    ) -> tuple[
        Float[Tensor, "batch heads queries d_head"],
        Float[Tensor, "batch kv_heads queries d_head"],
        Float[Tensor, "..."] | None,
    ]:
        """Queries, keys and bias, changed according to where the tokens are."""
        if positions is None:
            positions = torch.arange(n_before + query.shape[2], device=query.device)
        own = positions[..., n_before:]
        query, key = position.rotate_both(query, key, own)
        added = position.bias(self.n_heads, own, positions, query.dtype)
        if added is not None:
            bias = added if bias is None else bias + added
        return query, key, bias

    def extra_repr(self) -> str:
        """What no part shows, for ``print(module)``."""
        heads = f"n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}"
        return f"{heads}, dropout={self.dropout:g}, position={self.position}"

    @staticmethod
    def _split(
        x: Float[Tensor, "batch tokens width"], n_heads: int, norm: nn.Module | None = None
    ) -> Float[Tensor, "batch heads tokens d_head"]:
        batch, tokens, width = x.shape
        heads = x.view(batch, tokens, n_heads, width // n_heads)
        return (heads if norm is None else norm(heads)).transpose(1, 2)
