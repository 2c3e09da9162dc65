"""Causal self-attentions with the same weights, and a check that they compute the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Generator, Tensor, nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from x_transformers.x_transformers import Attention as XTransformersAttention

from attnbook import MultiHeadAttention, pack

OURS = "attnbook"
OURS_BIASED = "attnbook, biases"
PACKED = "attnbook, packed"
PACKED_BIASED = "attnbook, packed, biases"
TEXTBOOK = "textbook"


class Like(TypedDict):
    """Where the numbers lie and of what type they are."""

    device: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Size:
    """Sizes of one row of the tables."""

    d_model: int
    tokens: int
    batch: int

    @property
    def n_heads(self) -> int:
        """Heads 64 wide, but at least four of them."""
        return max(4, self.d_model // 64)

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class Weights:
    """The four matrices, each (d_model out, d_model in)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @classmethod
    def draw(cls, d_model: int, seed: int = 0) -> "Weights":
        """Random ones that keep the variance."""
        generator = Generator().manual_seed(seed)
        shape = (4, d_model, d_model)
        matrices = torch.randn(shape, generator=generator, dtype=torch.float32) / d_model**0.5
        return cls(*matrices)


@dataclass(frozen=True)
class Contender:
    """An attention to time."""

    name: str
    module: nn.Module
    attend: Callable[[Tensor], Tensor]
    """From the tokens, (batch, tokens, d_model), to the output of the same shape."""
    bias: bool = False
    """It has biases, and is compared with ours that have them, too."""

    def forward_backward(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients with respect to the input and to every parameter."""
        return torch.autograd.grad(self.attend(x), [x, *self.module.parameters()], gradient)


class Textbook(nn.Module):
    """Four linear maps and the formula as it is printed, nothing fused."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend; ``mask`` is added to the logits."""
        linears = (self.query, self.key, self.value)
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in linears)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + mask, dim=-1)
        heads: Tensor = (weights @ v).transpose(1, 2).flatten(-2)
        output: Tensor = self.output(heads)
        return output


def contenders(
    size: Size,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    weights: Weights | None = None,
) -> list[Contender]:
    """All of them, ours first, with the same weights; biases, where there are any, are zero."""
    weights = Weights.draw(size.d_model) if weights is None else weights
    like = Like(device=device, dtype=dtype)
    made = [
        _ours(size, weights, like),
        _ours(size, weights, like, bias=True),
        _packed(size, weights, like),
        _packed(size, weights, like, bias=True),
        _torch(size, weights, like),
        _gpt2(size, weights, like),
        _x_transformers(size, weights, like),
        _textbook(size, weights, like),
    ]
    for contender in made:
        for name, parameter in contender.module.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
    return made


def check_equal(
    contenders: list[Contender], x: Tensor, gradient: Tensor, *, tolerance: float = 1e-4
) -> None:
    """Stop unless all give the textbook's output and gradient with respect to the input.

    Raises:
        ValueError: names the one that differs, and by how much.
    """
    x = x.detach().requires_grad_()

    def output_and_gradient(contender: Contender) -> tuple[Tensor, Tensor]:
        output = contender.attend(x)
        return output.detach(), torch.autograd.grad(output, x, gradient)[0]

    (textbook,) = (c for c in contenders if c.name == TEXTBOOK)
    expected = output_and_gradient(textbook)
    for contender in contenders:
        given = output_and_gradient(contender)
        for what, a, b in zip(("output", "gradient"), given, expected, strict=True):
            error = (a - b).abs().max().item()
            if not error <= tolerance:
                raise ValueError(
                    f"{contender.name} has another {what} than the textbook's: {error:.1e} apart"
                )


def causal_bias(size: Size, *, device: str, dtype: torch.dtype) -> Tensor:
    """What the textbook adds to its logits: −∞ ahead, 0 elsewhere."""
    ahead = torch.full((size.tokens, size.tokens), -torch.inf, device=device, dtype=dtype)
    return ahead.triu(1)


@torch.no_grad()
def _fill(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _ours(size: Size, weights: Weights, like: Like, *, bias: bool = False) -> Contender:
    module = MultiHeadAttention(size.d_model, size.n_heads, bias=bias).to(**like)
    linears = (module.query, module.key, module.value, module.output)
    matrices = [weights.query, weights.key, weights.value, weights.output]
    _fill([linear.weight for linear in linears], matrices)
    name = OURS_BIASED if bias else OURS
    return Contender(name, module, lambda x: module(x, causal=True), bias=bias)


def _packed(size: Size, weights: Weights, like: Like, *, bias: bool = False) -> Contender:
    """Ours with W_Q, W_K and W_V in one matrix."""
    module = pack(_ours(size, weights, like, bias=bias).module)
    name = PACKED_BIASED if bias else PACKED
    return Contender(name, module, lambda x: module(x, causal=True), bias=bias)


def _torch(size: Size, weights: Weights, like: Like) -> Contender:
    """With ``is_causal`` it passes the mask on to nobody and takes the fused kernel.

    A mask of floats spares a conversion at each call. Its other path, for evaluation only, needs
    biases and is not fused.
    """
    module = nn.MultiheadAttention(size.d_model, size.n_heads, bias=False, batch_first=True)
    module.to(**like)
    packed = torch.cat([weights.query, weights.key, weights.value])
    _fill([module.in_proj_weight, module.out_proj.weight], [packed, weights.output])
    mask = causal_bias(size, **like)

    def attend(x: Tensor) -> Tensor:
        output: Tensor = module(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return output

    return Contender("torch", module, attend)


def _gpt2(size: Size, weights: Weights, like: Like) -> Contender:
    """Has biases, always; its matrices are (in, out)."""
    config = GPT2Config(
        n_embd=size.d_model,
        n_head=size.n_heads,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="sdpa",
    )
    module = GPT2Attention(config, layer_idx=0).to(**like)
    packed = torch.cat([weights.query, weights.key, weights.value]).T
    _fill([module.c_attn.weight, module.c_proj.weight], [packed, weights.output.T])
    return Contender("HF GPT-2", module, lambda x: module(x)[0], bias=True)


def _x_transformers(size: Size, weights: Weights, like: Like) -> Contender:
    module = XTransformersAttention(
        size.d_model, heads=size.n_heads, dim_head=size.d_head, causal=True, flash=True
    ).to(**like)
    linears = (module.to_q, module.to_k, module.to_v, module.to_out)
    matrices = [weights.query, weights.key, weights.value, weights.output]
    _fill([linear.weight for linear in linears], matrices)
    return Contender("x-transformers", module, module)


def _textbook(size: Size, weights: Weights, like: Like) -> Contender:
    module = Textbook(size.d_model, size.n_heads).to(**like)
    linears = (module.query, module.key, module.value, module.output)
    matrices = [weights.query, weights.key, weights.value, weights.output]
    _fill([linear.weight for linear in linears], matrices)
    mask = causal_bias(size, **like)
    return Contender(TEXTBOOK, module, lambda x: module(x, mask))
