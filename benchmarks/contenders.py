"""Causal self-attentions with the same weights, and a check that they compute the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from x_transformers.x_transformers import Attention as XAttention  # type: ignore[import-untyped]

from attnbook import MultiHeadAttention

OURS = "attnbook"
OURS_BIASED = "attnbook, biases"


@dataclass(frozen=True)
class Size:
    """Sizes of one row."""

    d_model: int
    tokens: int
    batch: int

    @property
    def n_heads(self) -> int:
        """Heads 64 wide, but at least four of them."""
        return max(4, self.d_model // 64)


@dataclass(frozen=True)
class Contender:
    """An attention to time."""

    name: str
    module: nn.Module
    attend: Callable[[Tensor], Tensor]
    """From the tokens, (batch, tokens, d_model), to the output of the same shape."""
    bias: bool = False
    """It has biases, and is compared with ours that have them, too."""

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
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


def contenders(size: Size) -> list[Contender]:
    """All of them, ours first, in float32 with the same weights; biases are zero."""
    generator = Generator().manual_seed(0)
    shape = (4, size.d_model, size.d_model)
    weights = torch.randn(shape, generator=generator, dtype=torch.float32) / size.d_model**0.5
    # What is added to logits: −∞ ahead, 0 elsewhere.
    mask = torch.full((size.tokens, size.tokens), -torch.inf, dtype=torch.float32).triu(1)
    made = [
        _ours(size, weights, bias=False),
        _ours(size, weights, bias=True),
        _torch(size, weights, mask),
        _gpt2(size, weights),
        _x_transformers(size, weights),
        _textbook(size, weights, mask),
    ]
    for contender in made:
        contender.module.float()
        for name, parameter in contender.module.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
    return made


def check_equal(
    contenders: list[Contender], x: Tensor, gradient: Tensor, *, tolerance: float = 1e-4
) -> None:
    """Stop unless all give the output and the gradient with respect to the input that ours gives.

    Raises:
        ValueError: names the one that differs, and by how much.
    """

    def output_and_gradient(contender: Contender) -> tuple[Tensor, Tensor]:
        output = contender.attend(x)
        return output.detach(), torch.autograd.grad(output, x, gradient)[0]

    expected = output_and_gradient(contenders[0])
    for contender in contenders[1:]:
        given = output_and_gradient(contender)
        for what, a, b in zip(("output", "gradient"), given, expected, strict=True):
            error = (a - b).abs().max().item()
            if not error <= tolerance:
                raise ValueError(f"{contender.name} has another {what} than ours: {error:.1e} off")


@torch.no_grad()
def _fill(parameters: Sequence[Tensor], values: Sequence[Tensor] | Tensor) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def _ours(size: Size, weights: Tensor, *, bias: bool) -> Contender:
    module = MultiHeadAttention(size.d_model, size.n_heads, bias=bias)
    linears = (module.query, module.key, module.value, module.output)
    _fill([linear.weight for linear in linears], weights)
    name = OURS_BIASED if bias else OURS
    return Contender(name, module, lambda x: module(x, causal=True), bias=bias)


def _torch(size: Size, weights: Tensor, mask: Tensor) -> Contender:
    """With ``is_causal`` it passes the mask on to nobody and takes the fused kernel.

    A mask of floats spares a conversion at each call. Its other path, for evaluation only, needs
    biases and is not fused.
    """
    module = nn.MultiheadAttention(size.d_model, size.n_heads, bias=False, batch_first=True)
    _fill([module.in_proj_weight, module.out_proj.weight], [weights[:3].flatten(0, 1), weights[3]])

    def attend(x: Tensor) -> Tensor:
        output: Tensor = module(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return output

    return Contender("nn.MultiheadAttention", module, attend)


def _gpt2(size: Size, weights: Tensor) -> Contender:
    """Has biases, always; its matrices are (in, out)."""
    config = GPT2Config(
        n_embd=size.d_model,
        n_head=size.n_heads,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )
    module = GPT2Attention(config, layer_idx=0)  # type: ignore[no-untyped-call]
    in_one = weights[:3].flatten(0, 1).T  # (d_model, 3 · d_model)
    _fill([module.c_attn.weight, module.c_proj.weight], [in_one, weights[3].T])
    return Contender("GPT-2 of transformers", module, lambda x: module(x)[0], bias=True)


def _x_transformers(size: Size, weights: Tensor) -> Contender:
    d_head = size.d_model // size.n_heads
    module = XAttention(size.d_model, heads=size.n_heads, dim_head=d_head, causal=True, flash=True)
    linears = (module.to_q, module.to_k, module.to_v, module.to_out)
    _fill([linear.weight for linear in linears], weights)
    return Contender("x-transformers", module, module)


def _textbook(size: Size, weights: Tensor, mask: Tensor) -> Contender:
    module = Textbook(size.d_model, size.n_heads)
    linears = (module.query, module.key, module.value, module.output)
    _fill([linear.weight for linear in linears], weights)
    return Contender("textbook", module, lambda x: module(x, mask))
