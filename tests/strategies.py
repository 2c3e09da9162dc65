"""What the tests share: random calls, modules and models, both paths, whole messages."""

import cmath
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import jaxtyping
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from attnbook import (
    ALiBi,
    ModelConfig,
    MultiHeadAttention,
    Rotary,
    TransformerConfig,
    scaled_dot_product_attention,
)
from attnbook.position import Layout

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])

on_both_paths = pytest.mark.parametrize("path", ["fused", "explicit"])
on_every_device = pytest.mark.parametrize("device", DEVICES)
in_half_precision = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
in_wide_and_narrow = pytest.mark.parametrize("dtype", [torch.float64, torch.float16])

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


@contextmanager
def refused(error: type[Exception], message: str) -> Iterator[None]:
    """The block raises ``error`` with this message: the whole of it."""
    with pytest.raises(error) as caught:
        yield
    assert str(caught.value) == message


def attend(path: str, *args: Tensor | None, **options: object) -> Tensor:
    """Output of one of the two paths."""
    if path == "fused":
        return scaled_dot_product_attention(*args, **options)
    return scaled_dot_product_attention(*args, **options, return_weights=True)[0]


def run(path: str, module: MultiHeadAttention, *args: Tensor | None, **options: object) -> Tensor:
    """Output of the module by one of the two paths."""
    if path == "fused":
        return module(*args, **options)
    return module(*args, **options, return_weights=True)[0]


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

    def both(self) -> tuple[Tensor, Tensor]:
        """Output and weights of the explicit path."""
        options = {"causal": self.causal, "scale": self.scale, "bias": self.bias}
        return scaled_dot_product_attention(
            self.query, self.key, self.value, self.mask, **options, return_weights=True
        )

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


def turned(x: Tensor, positions: Sequence[int], layout: Layout, base: float) -> Tensor:
    """Rotary positions in complex numbers, one pair at a time."""
    d_head = x.shape[-1]
    result = torch.empty_like(x)
    for t, position in enumerate(positions):
        for i in range(d_head // 2):
            pair = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + d_head // 2)
            number = torch.complex(x[..., t, pair[0]], x[..., t, pair[1]])
            number = number * cmath.exp(1j * position * base ** (-2 * i / d_head))
            result[..., t, pair[0]], result[..., t, pair[1]] = number.real, number.imag
    return result


def slopes(n_heads: int) -> list[float]:
    """ALiBi's slopes as the authors' code has them: by recursion, as a geometric series."""
    if math.log2(n_heads).is_integer():
        ratio = 2 ** (-8 / n_heads)
        return [ratio ** (h + 1) for h in range(n_heads)]
    lower = 2 ** math.floor(math.log2(n_heads))
    return slopes(lower) + slopes(2 * lower)[::2][: n_heads - lower]


def slanted(n_heads: int, queries: int, keys: int, *, bidirectional: bool = False) -> Tensor:
    """ALiBi's bias, one entry at a time."""
    bias = torch.empty(n_heads, queries, keys, dtype=torch.float64)
    for h, slope in enumerate(slopes(n_heads)):
        for i in range(queries):
            for j in range(keys):
                steps = i + keys - queries - j
                bias[h, i, j] = -slope * (abs(steps) if bidirectional else steps)
    return bias


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
    Rotary("interleaved", base=50.0),
    ALiBi(),
    ALiBi(bidirectional=True),
]

with_every_position = pytest.mark.parametrize("position", POSITIONS, ids=str)
with_every_group = pytest.mark.parametrize("n_kv_heads", [4, 2, 1], ids=["MHA", "GQA", "MQA"])


@st.composite
def modules(
    draw: st.DrawFn,
    *,
    positions: Sequence[Rotary | ALiBi | None] = POSITIONS,
    other_memory: bool = False,
) -> MultiHeadAttention:
    """Random sizes, groups, biases and positions; the memory as wide as the input, or not."""
    torch.manual_seed(draw(seeds))
    n_kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    module = MultiHeadAttention(
        draw(sizes),
        n_kv_heads * group,
        n_kv_heads=n_kv_heads,
        d_head=2 * draw(st.integers(1, 2)),
        d_value=draw(st.none() | sizes),
        d_memory=draw(sizes) if other_memory else None,
        bias=draw(st.sampled_from([True, False, "qkv", "output"])),
        position=draw(st.sampled_from(positions)),
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


# Models


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Small ones: every kind of position, norm and group, tied or not."""
    torch.manual_seed(draw(seeds))
    return ModelConfig(
        7,
        d_model=8,
        n_heads=4,
        n_layers=draw(st.integers(1, 2)),
        d_ff=draw(sizes),
        max_tokens=9,
        norm=draw(st.sampled_from(["pre", "post", "none", "deepnorm"])),
        tied=draw(st.booleans()),
        n_kv_heads=draw(st.sampled_from([4, 2, 1])),
        position=draw(st.sampled_from(["sinusoidal", "learned", "rotary", "alibi", "none"])),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh"])),
        attention_bias=draw(st.booleans()),
    )


def pairs(**choices: object) -> st.SearchStrategy[TransformerConfig]:
    """The same for an encoder-decoder."""
    return configs().map(lambda config: TransformerConfig(**asdict(config), **choices))
