"""A new token of each sequence, and no work that it does not need.

``LanguageModel.generate(..., fused=True)`` decodes with a :class:`Step`: what the model's
``forward`` computes with a cache, for one token. Weights are laid out as is fastest where it
runs, those of Q, K and V mostly as one; positions and masks are prepared once. On a GPU, where a
token would wait for Python, shapes are fixed and the step is one CUDA graph.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from attnbook.attention import KeyValueCache, MultiHeadAttention
from attnbook.blocks import ACTIVATIONS, Block, FeedForward, Residual
from attnbook.config import ModelConfig
from attnbook.embedding import TokenEmbedding
from attnbook.masks import combine_masks
from attnbook.positions import ALiBi, Rotary, alibi_slopes, count_positions

Rows = Float[Tensor, "batch width"]
Product = Callable[[Tensor], Tensor]
Layout = Callable[[Sequence[Tensor], Sequence[Tensor | None]], Product]

FUSIBLE: dict[str, set[type]] = {
    "embedding": {TokenEmbedding},
    "blocks": {nn.ModuleList, Block, MultiHeadAttention, FeedForward, Residual, nn.Linear}
    | {nn.LayerNorm, nn.RMSNorm, nn.Identity},
    "output": {nn.Linear},
}
"""What the parts of a model may be: others could compute something else."""
TIMED = 2**20
"""Numbers of a matrix that layouts are timed with, at most: it takes some milliseconds."""
ALIGNED = 64
"""Fixed shapes have a multiple of so many keys: a GPU's kernels would copy a mask of others."""


@runtime_checkable
class Stack(Protocol):
    """What is asked of a language model."""

    config: ModelConfig
    embedding: TokenEmbedding
    blocks: nn.ModuleList
    final_norm: nn.Module
    head: nn.Module | None
    output: nn.Linear | None
    output_bias: Tensor | None

    def __call__(self, ids: Tensor, **settings: Any) -> Tensor:
        """Logits."""

    def input(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """What the first block reads."""

    def new_cache(self, max_tokens: int | None = None) -> list[KeyValueCache]:
        """An empty one for each block."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All parts."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All tensors that are trained."""


def not_fusible(model: Stack) -> str | None:
    """Why a :class:`Step` may compute something else than the model; ``None`` if it does not.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(10))
        >>> hook = model.blocks[0].attention.query.register_forward_hook(lambda *_: None)
        >>> not_fusible(model)
        'blocks.0.attention.query has a hook'
    """
    kind = type(model)
    if (kind.__module__, kind.__name__) != ("attnbook.models", "LanguageModel"):
        return f"the model is a {kind.__name__}"
    if _global_forward_hooks or _global_forward_pre_hooks:
        return "there is a global hook"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{name or 'the model'} has a hook"
        if type(module) not in FUSIBLE.get(name.partition(".")[0], {type(module)}):
            return f"{name} is a {type(module).__name__}"
        for method, own in vars(module).items():
            if callable(own) and callable(getattr(type(module), method, None)):
                return f"{name or 'the model'} has its own {method}"
    kinds = {f"{parameter.dtype} on {parameter.device}" for parameter in model.parameters()}
    if len(kinds) > 1:
        return f"its parameters are {' and '.join(sorted(kinds))}"
    attentions = [block.attention for block in _blocks(model)]
    first = attentions[0]
    if type(first.position) not in (Rotary, ALiBi, type(None)):
        return f"its position is a {type(first.position).__name__}"
    for other in attentions:
        if other.position != first.position:
            return "its blocks' positions differ"
        if (other.n_heads, other.d_head) != (first.n_heads, first.d_head):
            return "its blocks' heads differ"
    return None


def product(*layers: nn.Linear | TokenEmbedding, rows: int = 1, n_calls: int = 1) -> Product:
    r"""Several linear maps of the same rows as one matrix product, outputs side by side.

    .. math:: x\,[W_1; W_2; \dots] + [b_1; b_2; \dots]

    On a CPU the weights are laid out as it takes the least time here, for so many calls with so
    many rows: as they are, as (in, out), or as oneDNN packs float32. Which one is timed, once in a
    process for each shape. Under autocast they are cast here, once.

    Example:
        >>> query, key = nn.Linear(4, 6), nn.Linear(4, 2)
        >>> product(query, key)(torch.randn(1, 4)).shape
        torch.Size([1, 8])
    """
    parts = [dict(layer.named_parameters()) for layer in layers]
    weights = [part["weight"].to(dtype_of(part["weight"])) for part in parts]  # (out, in) each
    biases = [part["bias"].to(weights[0].dtype) if "bias" in part else None for part in parts]
    if not weights[0].is_cpu:
        return side_by_side(weights, biases)
    shapes = tuple((len(weight), weight.shape[1]) for weight in weights)
    times = seconds(shapes, weights[0].dtype, rows, torch.get_num_threads())
    fastest = min(times, key=lambda layout: times[layout][0] + n_calls * times[layout][1])
    return fastest(weights, biases)


def as_they_are(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Product:
    """No copy: a product for each matrix."""
    if len(weights) == 1:
        return partial(F.linear, weight=weights[0], bias=biases[0])
    pairs = list(zip(weights, biases, strict=True))
    return lambda x: torch.cat([F.linear(x, weight, bias) for weight, bias in pairs], dim=-1)


def side_by_side(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Product:
    """As ``nn.Linear`` holds them, (out, in)."""
    weight, bias = _in_one(weights, biases)
    return partial(F.linear, weight=weight, bias=bias)


def turned_over(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Product:
    """Laid out as (in, out)."""
    weight, bias = _in_one(weights, biases)
    weight = weight.T.contiguous()
    return (lambda x: x @ weight) if bias is None else lambda x: torch.addmm(bias, x, weight)


def packed(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Product:
    """As oneDNN packs them: torch.compile's way with frozen weights."""
    weight, bias = _in_one(weights, biases)
    weight = torch.ops.mkldnn._reorder_linear_weight(weight)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, weight, bias, "none", [], "")


@functools.cache
def seconds(
    shapes: tuple[tuple[int, int], ...], dtype: torch.dtype, rows: int, n_threads: int
) -> dict[Layout, tuple[float, float]]:
    """For each layout of matrices of these shapes, what it takes here to make it, and a call.

    The shortest of some; ``n_threads`` is what torch has now.
    """
    layouts: list[Layout] = [as_they_are, turned_over]
    if dtype == torch.float32 and torch.backends.mkldnn.is_available():
        layouts.append(packed)
    share = min(1.0, TIMED / max(1, sum(n_out * n_in for n_out, n_in in shapes)))
    x, *weights = (
        torch.ones(size, dtype=dtype, device="cpu")
        for size in [(rows, shapes[0][1]), *((max(1, int(share * n)), m) for n, m in shapes)]
    )
    none = [None] * len(shapes)
    made = [
        _times({layout: partial(layout, weights, none) for layout in layouts}) for _ in range(2)
    ]
    products = {layout: partial(layout(weights, none), x) for layout in layouts}
    called = [_times(products) for _ in range(9)]  # in turn, so that caches hold no layout
    return {
        layout: (min(t[layout] for t in made) / share, min(t[layout] for t in called) / share)
        for layout in layouts
    }


def _times(calls: Mapping[Layout, Callable[[], object]]) -> dict[Layout, float]:
    """Seconds that each takes."""
    taken = {}
    for layout, call in calls.items():
        begin = time.perf_counter()
        call()
        taken[layout] = time.perf_counter() - begin
    return taken


def _in_one(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Float[Tensor, "out in"], Float[Tensor, "out"] | None]:
    if all(bias is None for bias in biases):
        return _joined(weights), None
    pairs = zip(weights, biases, strict=True)
    return _joined(weights), _joined([w.new_zeros(len(w)) if b is None else b for w, b in pairs])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])  # a copy is dear before any token


class FixedCache:
    """The keys and values of a cache at addresses that stay, as a CUDA graph needs them.

    ``append`` returns all ``max_tokens``, filled or not: who attends needs a mask. The cache that
    they come from is empty afterwards.

    Example:
        >>> cache = KeyValueCache()
        >>> key, value = cache.append(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2))
        >>> fixed = FixedCache(cache, 3, at=torch.tensor([1]))
        >>> len(cache)
        0
        >>> fixed.append(2 * key, value)[0][0, 0]
        tensor([[1., 1.],
                [2., 2.],
                [0., 0.]])
    """

    def __init__(self, cache: KeyValueCache, max_tokens: int, at: Integer[Tensor, "1"]) -> None:
        filled = [x for x in (cache.key, cache.value) if x is not None]
        n_free = max_tokens - len(cache)  # zeros: a weight of 0 times NaN would be NaN
        self.key, self.value = (F.pad(x, (0, 0, 0, n_free)) for x in filled)
        cache.cut(0)  # its memory is free for the next block's
        self.at = at

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new token's at the index ``at``; return all."""
        self.key.index_copy_(2, self.at, key)
        self.value.index_copy_(2, self.at, value)
        return self.key, self.value


class Shared(NamedTuple):
    """What the blocks of a step share."""

    rotate: Product | None  # of queries and keys, (batch, heads, 1, d_head)
    mask: Tensor | None  # added to the logits, (batch or 1, kv_heads or 1, group or 1, keys)
    first: int  # the keys before it are outside the window


class BlockStep:
    """A block, for one token of each sequence."""

    def __init__(
        self, block: Block, cache: KeyValueCache | FixedCache, product: Callable[..., Product]
    ) -> None:
        attention, network = block.attention, block.feed_forward
        self.block, self.cache = block, cache
        self.n_heads = attention.n_heads, attention.n_kv_heads, attention.n_kv_heads
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        inputs = attention.query, attention.key, attention.value
        self.widths = [linear.out_features for linear in inputs]
        self.qkv, self.output = product(*inputs), product(attention.output)
        wide = [network.inner] if network.gate is None else [network.gate, network.inner]
        self.wide, self.outer = product(*wide), product(network.outer)
        self.gated, self.activation = network.gate is not None, ACTIVATIONS[network.activation]

    def __call__(self, x: Rows, shared: Shared) -> Rows:
        """The stream after the block."""
        x = self.block.attention_residual(x, lambda y: self._attend(y, shared))
        stream: Tensor = self.block.feed_forward_residual(x, self._feed_forward)
        return stream

    def _attend(self, x: Rows, shared: Shared) -> Rows:
        parts = zip(self.qkv(x).split(self.widths, dim=-1), self.n_heads, strict=True)
        q, k, v = (x.view(len(x), n, 1, x.shape[1] // n) for x, n in parts)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if shared.rotate is not None:
            q, k = shared.rotate(q), shared.rotate(k)
        n_heads, n_kv_heads, _ = self.n_heads  # a row for each query of the same key
        q = q.view(len(x), n_kv_heads, n_heads // n_kv_heads, q.shape[-1])
        k, v = (x[:, :, shared.first :] for x in self.cache.append(k, v))
        heads = F.scaled_dot_product_attention(q, k, v, shared.mask)  # (batch, kv_heads, group, …)
        return self.output(heads.flatten(1))  # (batch, n_heads · d_value)

    def _feed_forward(self, x: Rows) -> Rows:
        inner = self.wide(x)
        if not self.gated:
            return self.outer(self.activation(inner))
        gate, inner = inner.chunk(2, dim=-1)
        return self.outer(self.activation(gate) * inner)


class Step:
    r"""A model's logits after one more token of each sequence.

    .. math:: \text{logits}_{t+1} = f(\text{id}_t,\; \text{cache of } 1 \dots t-1)

    Args:
        model: one that is :func:`not_fusible` for no reason. Some of its weights are copied: when
            they change, a new step is needed.
        cache: of all tokens but the next; what is decoded is added to it, unless shapes are fixed:
            then it is emptied.
        max_tokens: how many tokens there will be.
        real: ``True`` for real tokens, (batch, tokens), where there is padding.
        fixed: with the same shapes in each step: all ``max_tokens`` keys, and a mask.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model, ids = LanguageModel(ModelConfig(10)), torch.tensor([[1, 2, 3]])
        >>> cache = model.new_cache()
        >>> with torch.no_grad():
        ...     _ = model(ids[:, :2], cache=cache)
        ...     logits = Step(model, cache, max_tokens=3)(ids[:, 2:])
        >>> torch.allclose(logits, model(ids, at=-1), atol=1e-5)
        True
    """

    def __init__(
        self,
        model: Stack,
        cache: list[KeyValueCache],
        max_tokens: int,
        real: Bool[Tensor, "batch tokens"] | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        weight, blocks = model.embedding.weight, _blocks(model)
        attention, device = blocks[0].attention, weight.device
        self.model, self.cache, self.dtype = model, cache, dtype_of(weight)
        self.at: Tensor | None = None
        n_calls, rows = max_tokens - len(cache[0]), 1 if cache[0].key is None else len(cache[0].key)
        laid_out = partial(product, rows=rows, n_calls=n_calls)
        if fixed:
            self.at = torch.tensor([len(cache[0])], device=device)
            max_tokens += -max_tokens % ALIGNED
        caches = [c if self.at is None else FixedCache(c, max_tokens, self.at) for c in cache]
        self.blocks = [BlockStep(b, c, laid_out) for b, c in zip(blocks, caches, strict=True)]
        self.output = laid_out(model.embedding if model.output is None else model.output)
        if real is not None:  # and so is all that will be decoded
            real = F.pad(real, (0, max_tokens - real.shape[1]), value=True)
        self.real = real
        self.positions = count_positions(real, max_tokens, device)  # (tokens,) or (batch, tokens)
        self.rotary = attention.position if isinstance(attention.position, Rotary) else None
        if self.rotary is not None:
            like = weight.new_empty(max_tokens, attention.d_head, dtype=self.dtype)
            self.tables = self.rotary.tables(like, self.positions)  # (…, tokens, d_turned)
        self.slopes: Tensor | None = None
        if isinstance(attention.position, ALiBi):
            wide = torch.promote_types(self.dtype, torch.float32)
            slopes = alibi_slopes(attention.n_heads).to(device, wide)
            self.slopes = slopes.view(attention.n_kv_heads, -1, 1)  # (kv_heads, group, 1)

    def __call__(self, ids: Integer[Tensor, "batch 1"]) -> Float[Tensor, "batch vocab"]:
        """The logits after ``ids``."""
        own = self._row(self.positions, -1)  # (1,) or (batch, 1)
        rotate: Product | None = None
        if self.rotary is not None:
            cos, sin = (self._row(table, -2) for table in self.tables)
            rotate = partial(self.rotary.turn, cos=cos, sin=sin)
        shared = Shared(rotate, *self._visible(own))
        x = self.model.input(ids, own)[:, 0]  # (batch, d_model)
        for block in self.blocks:
            x = block(x, shared)
        if self.at is not None:
            self.at += 1
        x = self.model.final_norm(x)
        logits = self.output(x if self.model.head is None else self.model.head(x))
        bias = self.model.output_bias
        return logits if bias is None else logits + bias

    def _row(self, table: Tensor, dim: int) -> Tensor:
        """The new token's part of a table of all tokens."""
        if self.at is None:
            return table.narrow(dim, len(self.cache[0]), 1)
        return table.index_select(dim, self.at)

    def _visible(self, own: Integer[Tensor, "*batch 1"]) -> tuple[Tensor | None, int]:
        """What is added to the logits of the new token, at position ``own``; and the first key."""
        mask: Tensor | None = None
        if self.at is None:
            n_keys = len(self.cache[0]) + 1
        else:
            n_keys = self.positions.shape[-1]
            mask = torch.arange(n_keys, device=own.device) <= self.at
        first, window = 0, self.model.config.window
        if window is not None and self.at is None and self.real is None:
            first, window = max(0, n_keys - window), None  # cut, not masked
        if window is not None or self.slopes is not None:
            behind = (own - self.positions[..., first:n_keys])[..., None, None, :]
        if window is not None:
            mask = combine_masks(mask, behind < window)  # (…, 1, 1, keys)
        if self.real is not None:
            mask = combine_masks(mask, self.real[:, None, None, :n_keys])
        bias: Tensor | None = None
        if self.slopes is not None:
            bias = (self.slopes * -behind).to(self.dtype)
        elif mask is not None:  # numbers, once and not in each block
            bias = torch.zeros_like(mask, dtype=self.dtype)
        if bias is not None and mask is not None:
            bias = bias.masked_fill(~mask, -torch.inf)
        if bias is not None:  # torch falls back to a slower kernel for a mask of 3 dimensions
            bias = bias[(None,) * (4 - bias.dim())]
        return bias, first


def new_step(
    model: Stack,
    cache: list[KeyValueCache],
    ids: Integer[Tensor, "batch 1"],
    max_tokens: int,
    real: Bool[Tensor, "batch tokens"] | None,
    capture: bool,
) -> "Step | Captured":
    """A :class:`Step` from the end of the cache on; if captured, ``ids`` are like its first."""
    step = Step(model, cache, max_tokens, real, fixed=capture)
    return Captured(step, ids) if capture else step


class Captured:
    """A :class:`Step` with fixed shapes as one CUDA graph: one launch, whatever is inside.

    Source: Nguyen et al. 2021 (the PyTorch blog), "Accelerating PyTorch with CUDA graphs".
    """

    def __init__(self, step: Step, ids: Integer[Tensor, "batch 1"]) -> None:
        assert step.at is not None
        self.ids, begin = ids.clone(), step.at.clone()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(ids.device):  # the graph is the current device's
            here, stream = torch.cuda.current_stream(), _capturing(ids.device)
            stream.wait_stream(here)
            with torch.cuda.stream(stream):  # the first run allocates what a graph may not
                step(self.ids)
                step.at.copy_(begin)
            here.wait_stream(stream)
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.logits = step(self.ids)

    def __call__(self, ids: Integer[Tensor, "batch 1"]) -> Float[Tensor, "batch vocab"]:
        """The logits after ``ids``, until the next call."""
        with torch.cuda.device(ids.device):
            self.ids.copy_(ids)
            self.graph.replay()
        return self.logits


@functools.cache
def _capturing(device: torch.device) -> torch.cuda.Stream:
    """One for each device: torch keeps a workspace for each stream that multiplies."""
    return torch.cuda.Stream(device)


def _blocks(model: Stack) -> list[Block]:
    return cast("list[Block]", list(model.blocks))


def dtype_of(weight: Tensor) -> torch.dtype:
    """The type that products with this weight have, now."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
