"""Exercises of chapter 12: modules to repair, checked by the doctor.

The doctor knows what an attention must do, not which one was meant: a module that it finds healthy
is also compared with the one meant, on the same parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbook.attention import scaled_dot_product_attention
from attnbook.doctor import diagnose
from attnbook.positions import alibi_bias, sinusoidal_positions
from book.exercises.mistakes import (
    MistakeError,
    compare,
    double_precision,
    guarded,
    kind,
    verdict,
)

Parameters = dict[str, Tensor]
Examples = Sequence[tuple[Tensor, ...]]
D_MODEL, N_HEADS, N_IDS = 32, 4, 30
SHAPES = ((2, 6), (3, 5))  # (batch, tokens): the doctor's example, and one more to compare


def check_repaired_dropout(RepairedDropout: type[nn.Module]) -> None:
    """Check ``RepairedDropout`` of chapter 12: causal, weights dropped in training.

    Raises:
        MistakeError: says what the doctor finds, or where the output differs.

    Example:
        >>> import torch.nn.functional as F
        >>> class RepairedDropout(nn.Module):
        ...     def __init__(self, d=32, n_heads=4, dropout=0.1):
        ...         super().__init__()
        ...         self.n_heads, self.dropout = n_heads, dropout
        ...         self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        ...
        ...     def split(self, x):
        ...         return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        ...
        ...     def forward(self, x):
        ...         q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        ...         y = F.scaled_dot_product_attention(
        ...             q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        ...         return self.o(y.transpose(1, 2).flatten(2))
        >>> check_repaired_dropout(RepairedDropout)
        ✓ repaired_dropout is correct
    """

    def meant(parameters: Parameters, x: Tensor) -> Tensor:
        heads = (_split(_linear(parameters, name, x)) for name in "qkv")
        y = scaled_dot_product_attention(*heads, causal=True)
        return _linear(parameters, "o", _merge(y))

    claims: dict[str, Any] = {"causal": True, "n_heads": N_HEADS, "dropout": 0.1}
    _check("repaired_dropout", RepairedDropout, meant, also=_drops_weights, **claims)


def _drops_weights(module: nn.Module) -> None:
    # A token that comes first has one weight in each head, dropped or not: 2**4 outputs in all.
    first = _vectors()[0][0][:1, :1].expand(256, -1, -1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        outputs = guarded("repaired_dropout", module.train().forward, "in training")(first)
    outputs = outputs.round(decimals=3).unique(dim=0)
    if len(outputs) > 100:  # rounding splits a few
        raise MistakeError(
            "repaired_dropout: in training it drops numbers elsewhere; drop attention weights"
        )


def check_repaired_positions(RepairedPositions: type[nn.Module]) -> None:
    """Check ``RepairedPositions`` of chapter 12: sinusoids tell its tokens' positions.

    Raises:
        MistakeError: says what the doctor finds, or where the output differs.
    """

    def meant(parameters: Parameters, ids: Tensor, first: int = 0) -> Tensor:
        x = parameters["embed.weight"][ids]
        x = x + sinusoidal_positions(first + ids.shape[1], D_MODEL)[first:]
        layer = nn.TransformerEncoderLayer(D_MODEL, N_HEADS, 64, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return _linear(parameters, "out", _loaded(encoder, parameters, "encoder")(x))

    def ids() -> Examples:
        return [(torch.randint(N_IDS, shape, generator=_seeded()),) for shape in SHAPES]

    mistakes = {"counts positions from 1; the first one is 0": partial(meant, first=1)}
    _check(
        "repaired_positions",
        RepairedPositions,
        meant,
        ids,
        mistakes=mistakes,
        position="sinusoidal",
    )


def check_repaired_einsum(RepairedEinsum: type[nn.Module]) -> None:
    """Check ``RepairedEinsum`` of chapter 12: four heads, without a mask.

    Raises:
        MistakeError: says what the doctor finds, or where the output differs.
    """

    def meant(parameters: Parameters, x: Tensor) -> Tensor:
        heads = (torch.einsum("btd,dhk->bhtk", x, parameters[f"w{name}"]) for name in "qkv")
        y = scaled_dot_product_attention(*heads)
        return torch.einsum("bhtk,hkd->btd", y, parameters["wo"])

    claims: dict[str, Any] = {"n_heads": N_HEADS, "scale": "1/sqrt(d_head)"}
    _check("repaired_einsum", RepairedEinsum, meant, **claims)


def check_repaired_distances(RepairedDistances: type[nn.Module]) -> None:
    """Check ``RepairedDistances`` of chapter 12: causal, with ALiBi's biases.

    Raises:
        MistakeError: says what the doctor finds, or where the output differs.
    """

    def meant(parameters: Parameters, x: Tensor) -> Tensor:
        heads = map(_split, _linear(parameters, "qkv", x).chunk(3, dim=-1))
        y = scaled_dot_product_attention(
            *heads, causal=True, bias=alibi_bias(N_HEADS, x.shape[1], dtype=x.dtype)
        )
        return _linear(parameters, "out", _merge(y))

    claims: dict[str, Any] = {"causal": True, "n_heads": N_HEADS, "position": "alibi"}
    _check("repaired_distances", RepairedDistances, meant, **claims)


def check_repaired_mask(RepairedMask: type[nn.Module]) -> None:
    """Check ``RepairedMask`` of chapter 12: no token attends to padding.

    Raises:
        MistakeError: says what the doctor finds, or where the output differs.
    """

    def meant(parameters: Parameters, x: Tensor, real: Tensor) -> Tensor:
        attention = nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True)
        y, _ = _loaded(attention, parameters, "attn")(x, x, x, key_padding_mask=~real)
        return torch.layer_norm(
            x + y, (D_MODEL,), parameters["norm.weight"], parameters["norm.bias"]
        )

    def examples() -> Examples:
        (whole,), (padded,) = _vectors()
        lengths = torch.tensor([[5], [2], [3]])
        return [
            (whole, torch.ones(SHAPES[0], dtype=torch.bool)),
            (padded, torch.arange(SHAPES[1][1]) < lengths),
        ]

    def masks_large(module: nn.Module) -> None:
        padded, real = examples()[1]
        large = 20 * padded, real  # logits of some hundreds
        with torch.no_grad():
            right = _at_real(meant(dict(module.named_parameters()), *large), *large)
            result = _at_real(module(*large), *large).to(right)
            if not torch.allclose(result, right, rtol=0, atol=1e-2):
                raise MistakeError(
                    "repaired_mask: correct for small inputs; in large ones logits may be smaller "
                    "than what masks padding: -inf"
                )

    mask = {"argument": "real", "shape": "bk", "true": "attend"}
    _check("repaired_mask", RepairedMask, meant, examples, masks_large, n_heads=N_HEADS, mask=mask)


def _check(
    name: str,
    module_class: type[nn.Module],
    meant: Callable[..., Tensor],
    examples: Callable[[], Examples] = lambda: _vectors(),
    also: Callable[[nn.Module], None] = lambda module: None,
    mistakes: Mapping[str, Callable[..., Tensor]] = {},
    **claims: Any,
) -> None:
    """Ask the doctor about the first example; compare with what is meant on all."""
    with verdict(name), double_precision():
        if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):
            raise MistakeError(f"{name}: give the class of the module, got {kind(module_class)}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = guarded(name, module_class, "made without arguments")().eval()
        _compare(name, module, meant, examples(), mistakes, **claims)
        also(module)


def _compare(
    name: str,
    module: nn.Module,
    meant: Callable[..., Tensor],
    examples: Examples,
    mistakes: Mapping[str, Callable[..., Tensor]],
    **claims: Any,
) -> None:
    errors = diagnose(module, *examples[0], **claims).errors
    if errors:
        found = "\n".join(str(replace(error, remedy="yours to find")) for error in errors)
        raise MistakeError(f"{name}: the doctor finds\n{found}")
    parameters = {key: p.detach() for key, p in module.named_parameters()}
    for example in examples:
        try:
            right = meant(parameters, *example)
        except (KeyError, RuntimeError) as error:
            raise MistakeError(f"{name}: keep the parameters as they were: {error}") from error
        shape = tuple(example[0].shape)
        result = guarded(name, module.forward, f"shape {shape}")(*example)
        if isinstance(result, Tensor) and result.shape == right.shape:
            result, right = (_at_real(each, *example) for each in (result, right))
            if torch.allclose(result.to(right), right, rtol=0, atol=1e-5):
                continue
        wrong = ((words, each(parameters, *example)) for words, each in mistakes.items())
        compare(name, result, right, wrong, f"the doctor finds no error, but for shape {shape}")


def _at_real(output: Tensor, x: Tensor, *real: Tensor) -> Tensor:
    """The output, where a mask is given with zeros at padding: what that gives does not matter."""
    return output.masked_fill(~real[0][..., None], 0) if real else output


def _vectors() -> Examples:
    return [(torch.randn(*shape, D_MODEL, generator=_seeded()),) for shape in SHAPES]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ parameters[f"{name}.weight"].mT + parameters[f"{name}.bias"]


def _loaded(module: nn.Module, parameters: Parameters, name: str) -> nn.Module:
    prefix = f"{name}."
    module.load_state_dict(
        {key.removeprefix(prefix): p for key, p in parameters.items() if key.startswith(prefix)}
    )
    return module.eval()


def _split(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:2], N_HEADS, -1).transpose(1, 2)  # (batch, heads, tokens, d_head)


def _merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)  # (batch, tokens, d_model)
