"""What the tests share: random calls and modules, both paths."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from attnbook import (
    ALiBi,
    MultiHeadAttention,
    Position,
    Rotary,
    scaled_dot_product_attention,
)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])

on_both_paths = pytest.mark.parametrize("path", ["fused", "explicit"])
on_every_device = pytest.mark.parametrize("device", DEVICES)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
in_every_dtype = pytest.mark.parametrize("dtype", DTYPES)

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32)
sizes = st.integers(1, 5)
layouts = st.sampled_from(["interleaved", "half_split"])


def assert_near(actual: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


# How far numbers may be off, in units of eps: about twice the worst of some thousand examples. In
# half precision the kernels compute in float32 and round what they return.
ROUNDINGS = {torch.float64: 10, torch.float32: 10, torch.bfloat16: 5, torch.float16: 5}


def assert_rounded(actual: Tensor, expected: Tensor) -> None:
    """Near for this type: apart by some roundings of the largest number, or of 1."""
    size = max([1.0, *expected.detach().double().abs().flatten().tolist()])
    allowed = ROUNDINGS[actual.dtype] * torch.finfo(actual.dtype).eps
    assert_near(actual.double(), expected.double(), allowed * size)


def in_a_row(tensors: Sequence[Tensor]) -> Tensor:
    """All their numbers."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def assert_gradients_are_finite_differences(call: Callable[[], Tensor], *leaves: Tensor) -> None:
    """Those of what it returns, to leaves that are changed in place."""
    before = jaxtyping.config.jaxtyping_disable
    call()
    jaxtyping.config.update("jaxtyping_disable", True)  # hundreds of calls of the same shapes
    try:
        assert torch.autograd.gradcheck(lambda *_: call(), leaves)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def run(path: str, function: Callable[..., Any], *args: Tensor | None, **options: object) -> Tensor:
    """Output of the function or module by one of the two paths."""
    if path == "fused":
        return function(*args, **options)
    return function(*args, **options, return_weights=True)[0]


def attend(path: str, *args: Tensor | None, **options: object) -> Tensor:
    return run(path, scaled_dot_product_attention, *args, **options)


def broadcastable(draw: st.DrawFn, full: Sequence[int]) -> list[int]:
    """A shape that broadcasts to ``full``: ones instead of sizes, and fewer dimensions."""
    shape = [draw(st.sampled_from([1, n])) for n in full]
    return shape[draw(st.integers(0, len(full))) :]


# One call of the function


@dataclass(frozen=True)
class Call:
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float | None

    @property
    def group(self) -> int:
        """Query heads to a key head."""
        return 1 if self.query.dim() == 2 else self.query.shape[-3] // self.key.shape[-3]

    @property
    def tensors(self) -> list[Tensor]:
        """Query, key, value and the bias, if there is one: what a gradient goes to."""
        return [x for x in (self.query, self.key, self.value, self.bias) if x is not None]

    def to(self, dtype: torch.dtype) -> "Call":
        query, key, value, *bias = (x.to(dtype) for x in self.tensors)
        return replace(self, query=query, key=key, value=value, bias=bias[0] if bias else None)

    def by(self, path: str) -> Tensor:
        """Output of one of the two paths."""
        options = {"causal": self.causal, "scale": self.scale, "bias": self.bias}
        return attend(path, self.query, self.key, self.value, self.mask, **options)

    def allowed(self) -> Tensor:
        """The mask in full, by definition."""
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        allowed = torch.ones(*self.query.shape[:-1], keys, dtype=torch.bool)
        if self.bias is not None:
            allowed = allowed & (self.bias != -math.inf)
        if self.mask is not None:
            allowed = allowed & self.mask
        if self.causal:
            for i in range(queries):
                allowed[..., i, i + keys - queries + 1 :] = False
        return allowed


@st.composite
def calls(draw: st.DrawFn, *, causal: bool | None = None) -> Call:
    """Random tensors of two to five dimensions, in groups; masks and biases that broadcast."""
    torch.manual_seed(draw(seeds))
    small = st.integers(1, 3)
    leading = draw(st.lists(small, max_size=3))
    group = draw(small) if leading else 1
    queries, d_head, d_value = draw(sizes), draw(sizes), draw(sizes)
    causal = draw(st.booleans()) if causal is None else causal
    by_kernel = causal and draw(st.booleans())  # with its own causal mask: for such calls alone
    keys = queries + (0 if by_kernel else draw(st.integers(0, 3))) if causal else draw(sizes)
    heads = [*leading[:-1], leading[-1] * group] if leading else []
    full = [*heads, queries, keys]
    mask = bias = None
    if not by_kernel and draw(st.booleans()):
        mask = torch.rand(broadcastable(draw, full)) < draw(st.sampled_from([0.0, 0.3, 0.7]))
    if not by_kernel and draw(st.booleans()):
        bias = torch.randn(broadcastable(draw, full))
        bias[torch.rand(bias.shape) < draw(st.sampled_from([0.0, 0.3]))] = -math.inf
    return Call(
        torch.randn(*heads, queries, d_head),
        torch.randn(*leading, keys, d_head),
        torch.randn(*leading, keys, d_value),
        mask,
        bias,
        causal,
        draw(st.sampled_from([None, 0.3] if by_kernel else [None, 0.3, 0.0, -0.3])),
    )


# Positions, written down a second time


def turned(x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """Rotary positions in complex numbers, one pair at a time; without scaling."""
    width, result = int(rotary.fraction * x.shape[-1]), x.clone()
    where = positions if positions.dim() == 1 else positions[:, None]  # the same in all heads
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if rotary.layout == "interleaved" else (i, i + width // 2)
        angle = where * rotary.base ** (-2 * i / width)
        number = torch.complex(x[..., a], x[..., b]) * torch.polar(torch.ones_like(angle), angle)
        result[..., a], result[..., b] = number.real, number.imag
    return result


def slopes(n_heads: int) -> list[float]:
    """ALiBi's slopes as the authors' code has them: by recursion, as a geometric series."""
    if math.log2(n_heads).is_integer():
        ratio = 2 ** (-8 / n_heads)
        return [ratio ** (h + 1) for h in range(n_heads)]
    lower = 2 ** math.floor(math.log2(n_heads))
    return slopes(lower) + slopes(2 * lower)[::2][: n_heads - lower]


def slanted(n_heads: int, queries: Tensor, keys: Tensor, *, bidirectional: bool = False) -> Tensor:
    """ALiBi's bias for these positions, one entry at a time."""
    batch, n_queries, n_keys = queries.shape[:-1], queries.shape[-1], keys.shape[-1]
    bias = torch.empty(*batch, n_heads, n_queries, n_keys)
    for h, slope in enumerate(slopes(n_heads)):
        for i in range(n_queries):
            for j in range(n_keys):
                steps = queries[..., i] - keys[..., j]
                bias[..., h, i, j] = -slope * (steps.abs() if bidirectional else steps)
    return bias


class Own(Position):
    """A reader's own: each vector and each logit depends on where its token is."""

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        where = positions if positions.dim() == 1 else positions[:, None]
        return x * (1 + where[..., None]).to(x).rsqrt()

    def bias(
        self, n_heads: int, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype
    ) -> Tensor:
        where = query_positions[..., :, None] - 0.5 * key_positions[..., None, :]
        heads = torch.arange(1, n_heads + 1, device=where.device)[:, None, None]
        return (where[..., None, :, :].sin() / heads).to(dtype)


# Modules


def with_random_biases(module: MultiHeadAttention) -> MultiHeadAttention:
    """Biases start as zeros, which would hide a mix-up."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return module


POSITIONS = [
    None,
    Rotary(),
    Rotary("interleaved", base=50.0, fraction=0.5),
    ALiBi(),
    ALiBi(bidirectional=True),
    Own(),
]

with_every_position = pytest.mark.parametrize("position", POSITIONS)


@st.composite
def modules(
    draw: st.DrawFn,
    *,
    positions: Sequence[Position | None] = POSITIONS,
    other_memory: bool = False,
) -> MultiHeadAttention:
    """Random sizes, groups, biases and positions; the memory as wide as the input, or not."""
    torch.manual_seed(draw(seeds))
    n_kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    module = MultiHeadAttention(
        draw(sizes),
        n_kv_heads * group,
        n_kv_heads=n_kv_heads,
        d_head=draw(st.sampled_from([4, 8])),
        d_value=draw(st.none() | sizes),
        d_memory=draw(sizes) if other_memory else None,
        bias=draw(st.sampled_from([True, False, "qkv", "output"])),
        position=draw(st.sampled_from(positions)),
        qk_norm=draw(st.booleans()),
        norm_eps=0.1,
    )
    return with_random_biases(module)


def rounded(
    module: MultiHeadAttention, dtype: torch.dtype
) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    """The module in this type, and in float64 one of the same rounded numbers."""
    module.to(dtype)
    return module, copy.deepcopy(module).double()


def tokens_for(module: MultiHeadAttention, batch: int, tokens: int) -> Tensor:
    return torch.randn(batch, tokens, module.d_model).to(module.query.weight.dtype)


def memory_for(module: MultiHeadAttention, batch: int, tokens: int) -> Tensor:
    return torch.randn(batch, tokens, module.d_memory).to(module.key.weight.dtype)
