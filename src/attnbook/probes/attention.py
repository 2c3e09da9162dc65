"""How attentions are read: the calls of torch functions that a model makes."""

import math
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnbook import attention
from attnbook.probes.statistics import are_weights, aside, attention_sums, readable, wide

ENTRIES_AT_ONCE = 2**20
"""Logits of a kernel computed at a time, to spare memory."""

ATTENTION = re.compile(r"attention|attn|transformer_encoder|(?<!log_)softm(ax|in)")
"""In the name of a function of torch, or of one that is registered there: it may attend."""

NORMALIZATION = re.compile(r"(exp2?|div|divide|true_divide|normalize)_?(\.|$)")
"""A softmax that is written out ends with one of these."""


KERNEL, MULTI_HEAD = torch._C._nn.scaled_dot_product_attention, F.multi_head_attention_forward
"""Torch's own functions, also where the names in ``F`` are given to others that call them."""


class AttentionReader(TorchFunctionMode):
    """Sees each call of a torch function; reads the attentions and notes what may be one.

    Attentions are ``F.scaled_dot_product_attention``, ``F.multi_head_attention_forward`` and this
    package's definition, whose :func:`attnbook.attention.attention_weights` is replaced meanwhile.

    Args:
        running: the module that computes now, if it is one to look at.
    """

    def __init__(self, running: Callable[[], nn.Module | None]) -> None:
        super().__init__()
        self.running = running
        self.sums: dict[nn.Module, list[Tensor]] = {}
        self.unread: dict[nn.Module, str] = {}  # the name of a function
        self._perhaps: list[tuple[nn.Module, str, Tensor]] = []
        self._weights = attention.attention_weights

    def __enter__(self) -> "AttentionReader":
        attention.attention_weights = self._definition
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        attention.attention_weights = self._weights
        if error[0] is None:
            self.settle()

    def settle(self) -> None:
        """Find out what has not been read."""
        for module, name, attends in self._perhaps:
            if attends:
                self.unread.setdefault(module, name)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is KERNEL:
            return self._kernel(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        output, name = function(*args, **kwargs), getattr(function, "__name__", "")
        if ATTENTION.search(name) or NORMALIZATION.match(name):
            self._note(name, output, args, kwargs)
        return output

    def _read(self, sums: Callable[..., Tensor], *args: Any, **kwargs: Any) -> None:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if (module := self.running()) is None:
            return
        if all(readable(x) or x.dtype == torch.bool for x in given):
            with aside(given[0]):
                self.sums.setdefault(module, []).append(sums(*args, **kwargs))
        elif all(x.numel() for x in given):
            self.unread.setdefault(
                module, "scaled_dot_product_attention of other than plain tensors"
            )

    def _kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        output = KERNEL(*args, **kwargs)
        self._read(kernel_sums, *args, **kwargs)
        return output

    def _definition(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        self._read(attention_sums, logits, mask)
        with torch._C.DisableTorchFunction():  # its softmax is not to be noted
            return self._weights(logits, mask)

    def _softmax(self, logits: Tensor, dim: int) -> Tensor:
        self._read(attention_sums, logits)
        return F.softmax(logits, dim)

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Torch's function, with the attention in it replaced by the same ones, read."""
        read = {
            "scaled_dot_product_attention": self._kernel,
            "softmax": self._softmax,  # if the weights are returned
        }
        return unasked(MULTI_HEAD, **read)(*args, **kwargs)

    def _note(self, name: str, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, dim = (*args, None, None)[:2]
        x, dim = kwargs.get("input", x), kwargs.get("dim", dim)
        if (module := self.running()) is None or module in self.unread:
            return
        if "softm" in name and isinstance(x, Tensor) and isinstance(dim, int):
            batched = torch._C._functorch.is_functorch_wrapped_tensor(x)  # a dimension more
            if x.dim() + batched > 2 and dim % x.dim() + batched > 1:
                self.unread[module] = name
        elif ATTENTION.search(name) and "softm" not in name:
            self.unread[module] = name
        elif readable(output) and output.dim() > 2:
            with aside(output):  # the answer is read at the end: a GPU would have to wait for it
                self._perhaps.append((module, name, are_weights(output)))


def unasked(function: Any, **others: object) -> FunctionType:
    """A function of torch that asks no mode before it begins, with other names in it.

    Called as it is, with the mode on, it would hand the call back before its first line; and other
    functions put into ``F`` itself would be there for all threads and other modes. So it is a
    second function of the same code.
    """
    asks = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda _: False)
    names = {**function.__globals__, **asks, **others}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def kernel_sums(
    query: Float[Tensor, "... queries d_head"],
    key: Float[Tensor, "... keys d_head"],
    value: Float[Tensor, "... keys d_value"],
    attn_mask: Float[Tensor, "..."] | Bool[Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "8"]:
    """Sums over an attention of torch's kernel, whose logits are computed again."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]) or (1,)
    shape = (*leading, query.shape[-2], key.shape[-2])  # (batch, heads, queries, keys)
    query, key = (wide(x).expand(*leading, *x.shape[-2:]) for x in (query, key))
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    mask = query.new_ones(shape[-2:], dtype=torch.bool) if attn_mask is None else attn_mask
    mask = (mask.tril() if is_causal else mask).expand(shape)
    at_once = max(1, ENTRIES_AT_ONCE * len(query) // math.prod(shape))
    pieces = []
    for q, k, m in zip(*(x.split(at_once) for x in (query, key, mask)), strict=True):
        by_value = mask.dtype != torch.bool
        pieces.append(attention_sums(q @ k.mT + m) if by_value else attention_sums(q @ k.mT, m))
    return torch.stack(pieces).sum(0)
