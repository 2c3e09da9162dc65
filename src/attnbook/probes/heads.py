"""How heads are read: the weights, values and output matrix of each attention that runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnbook.probes.attention import AttentionReader
from attnbook.probes.probe import Probe


@dataclass(frozen=True)
class Attended:
    r"""One call of an attention: who attended to whom, and what was there to be read.

    .. math:: \text{what is added to the stream} = \textstyle\sum_h A^h V^h W_O^h + b_O

    unless the model does something to it first, as a norm (Gemma 2), LayerScale or a factor.

    Args:
        name: of the module that attended; a model that is one attention is ``"(model)"``.
        weights: :math:`A`, before dropout.
        values: :math:`V`, those of grouped heads repeated for each query head.
        output: :math:`W_O`, by which the heads, side by side, were multiplied next; ``None`` if no
            matrix was, as after a dropout or a gate.
    """

    name: str
    weights: Float[Tensor, "batch heads queries keys"]
    values: Float[Tensor, "batch heads keys d_value"]
    output: Float[Tensor, "heads d_value d_model"] | None


class HeadReader(AttentionReader):
    """Keeps what each attention computes; or, with ``change``, changes what its heads give.

    A softmax is followed until it multiplies something, which are the values. The output matrix is
    the one that then multiplies the very numbers that the heads gave, side by side.
    """

    __enter__ = TorchFunctionMode.__enter__  # our definition is read as any softmax
    __exit__ = TorchFunctionMode.__exit__

    def __init__(
        self, running: Callable[[], nn.Module | None], names: dict[nn.Module, str]
    ) -> None:
        super().__init__(running)
        self.names = names
        self.change: Callable[[str, Tensor], Tensor] | None = None
        self.calls: list[Attended] = []
        self._followed: list[tuple[Tensor, Tensor]] = []  # the softmax, now and before dropout
        self._side_by_side: Tensor | None = None  # (batch, queries, heads · d_value)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.multi_head_attention_forward:
            with self:  # see what it calls
                return self._multi_head(function)(*args, **(kwargs or {}))
        output = super().__torch_function__(function, types, args, kwargs)
        if function is F.scaled_dot_product_attention or not isinstance(output, Tensor):
            return output
        name, first, second = (getattr(function, "__name__", ""), *args, None, None)[:3]
        weights = [before for after, before in self._followed if any(after is x for x in args)]
        by_weights = any(after is first for after, _ in self._followed)
        if name == "softmax" and (kwargs or {}).get("dim", second) in (-1, output.dim() - 1):
            self._followed = [(output, output)]
        elif by_weights and name in ("matmul", "bmm") and first.dim() == second.dim() > 1:
            return self._attended(lambda: (weights[0], second), output)
        elif weights and output.shape[-2:] == weights[0].shape[-2:]:
            self._followed.append((output, weights[0] if name == "dropout" else output))
        elif name in ("linear", "matmul", "addmm") and self._side_by_side is not None:
            x, matrix = args[1:3] if name == "addmm" else args[:2]
            self._multiplied(x, matrix.t() if name == "linear" else matrix, self._side_by_side)
        return output

    def _multi_head(self, function: Any) -> FunctionType:
        """Torch's function, as if no mode were there to be asked before it begins."""
        names = {**function.__globals__, "has_torch_function": lambda _: False}
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__)

    def _kernel(self, *args: Any, **kwargs: Any) -> Tensor:
        output = F.scaled_dot_product_attention(*args, **kwargs)
        return self._attended(partial(_kernel_weights, *args, **kwargs), output)

    def _attended(self, read: Callable[[], tuple[Tensor, Tensor]], output: Tensor) -> Tensor:
        """Keep the weights and values that gave this output; or return another one."""
        if (module := self.running()) is None:
            return output
        n_heads = module.num_heads if isinstance(module, nn.MultiheadAttention) else 1
        outputs, name = _unpacked(_by_head(output, n_heads), module), self.names[module]
        if self.change is not None:
            return self.change(name, outputs).reshape(output.shape)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            weights, values = (_by_head(x, n_heads).detach() for x in read())
            weights = _unpacked(weights, module)
            values = values.repeat_interleave(weights.shape[1] // values.shape[1], dim=1)
            values = values.expand(len(weights), -1, -1, -1)
            self._side_by_side = outputs.transpose(1, 2).flatten(2)
        self.calls.append(Attended(name, weights, values, None))
        self.unread.pop(module, None)
        return output

    def _multiplied(self, x: Tensor, matrix: Tensor, heads: Tensor) -> None:
        """Keep the matrix if it multiplies the last attention's heads, batch or tokens first."""
        like = x.numel() == heads.numel() and x.dtype == heads.dtype
        if like and matrix.dim() == 2 and len(matrix) == heads.shape[-1]:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                if any(x.reshape(y.shape).equal(y) for y in (heads, heads.transpose(0, 1))):
                    by_head = matrix.detach().unflatten(0, (self.calls[-1].weights.shape[1], -1))
                    self.calls[-1] = replace(self.calls[-1], output=by_head)
                    self._side_by_side = None


def _by_head(x: Tensor, n_heads: int) -> Float[Tensor, "batch heads tokens width"]:
    """With one dimension of batches and one of heads, which three dimensions have in one."""
    x = x[None] if x.dim() == 2 else x
    return x.unflatten(0, (-1, n_heads)) if x.dim() == 3 else x.flatten(0, -4)


def _unpacked(
    x: Float[Tensor, "batch some_heads some_queries width"], module: nn.Module
) -> Float[Tensor, "batch heads queries width"]:
    """With all heads as heads: transformers decode one token with a group's heads as queries."""
    n_heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    groups = n_heads, getattr(module, "num_key_value_groups", 1)
    packed = x.shape[1] != n_heads and (x.shape[1] * x.shape[2], x.shape[2]) == groups
    return x.flatten(1, 2)[:, :, None] if packed else x


def _kernel_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weights of torch's kernel, its output for the identity as values; and the values."""
    unit = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
    unit = unit.expand(*key.shape[:-2], -1, -1)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    weights = F.scaled_dot_product_attention(query, key, unit, attn_mask, 0.0, is_causal, **options)
    return weights, value


class HeadProbe(Probe):
    """A probe that keeps heads and nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._read = set()
        self._reader = self.heads = HeadReader(self._attending, self._modules)

    def _watch_parameters(self) -> None:
        pass
