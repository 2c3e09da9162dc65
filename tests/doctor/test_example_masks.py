"""A mask in the example hides no bug, and its padding is no false alarm."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbook import LanguageModel, ModelConfig
from attnbook.doctor import diagnose
from benchmarks.doctor.libraries import TRANSFORMERS
from benchmarks.doctor.specimens.museum import healthy

State = tuple[Tensor, Tensor]


class Masked(nn.Module):
    """A causal layer that takes a padding mask in one of several ways."""

    def __init__(self, way: str = "attend", fill: float = -torch.inf, bug: str = "") -> None:
        super().__init__()
        self.way, self.fill, self.bug = way, fill, bug
        self.embedding, self.place = nn.Embedding(23, 12), nn.Embedding(20, 12)
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 23)

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, past: State | None = None
    ) -> tuple[Tensor, State]:
        t, n = ids.shape[1], 0 if past is None else past[0].shape[1]
        at = torch.arange(n, n + t)
        if self.way == "counted" and mask is not None:
            at = (mask.cumsum(1) - 1).clamp(min=0)
        x = self.embedding(ids) + self.place(at)
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None and self.bug != "cache":
            k, v = (torch.cat(z, 1) for z in zip(past, (k, v), strict=True))
        logits = q @ k.mT / (1 if self.bug == "scale" else 12**0.5)
        n = k.shape[1] - t
        allowed = torch.ones(t, n + t, dtype=torch.bool)
        allowed = allowed if self.bug == "future" else allowed.tril(n)
        if self.way == "add":
            logits = logits + (0 if mask is None else mask[:, None])
        elif mask is not None:
            mask = mask.view(len(ids), 1, -1).bool()
            allowed = allowed & (~mask if self.way == "blocked" else mask)
        weights = logits.masked_fill(~allowed, self.fill).softmax(-1)
        if self.bug == "batch":
            v = v.mean(0, keepdim=True).expand_as(v)
        return self.out(x + weights @ v), (k, v)


OF_TRANSFORMERS = (
    *("GPT2:GPT2LMHeadModel", "Llama:LlamaForCausalLM", "GPTNeoX:GPTNeoXForCausalLM"),
    "OPT:OPTForCausalLM",  # counts positions by the mask
    "Bloom:BloomForCausalLM",  # ALiBi by the mask
    "Gemma:GemmaForCausalLM",
)


def from_library(name: str) -> nn.Module:
    module: nn.Module = TRANSFORMERS[name]()[0]
    return module.eval()


def own() -> nn.Module:
    return LanguageModel(ModelConfig(vocab_size=23, d_model=16, n_heads=2, n_layers=2))


def own_step(model: Any, new: Tensor, cache: Any) -> tuple[Tensor, Any]:
    cache = cache or model.new_cache()
    return model(new, cache=cache), cache


def masked_step(model: Any, new: Tensor, past: State | None) -> tuple[Tensor, State]:
    return model(new, past=past)


def added(real: Tensor) -> Tensor:
    return torch.zeros(real.shape).masked_fill(~real, -torch.inf)


Design = tuple[Callable[[], nn.Module], str, Callable[[Tensor], Tensor], Any]
DECODERS: dict[str, Design] = {
    **{
        name: (partial(from_library, name), "attention_mask", torch.Tensor.long, True)
        for name in OF_TRANSFORMERS
    },
    "own": (own, "padding_mask", torch.Tensor.clone, own_step),
    "attend": (Masked, "mask", torch.Tensor.clone, masked_step),
    "finite": (lambda: Masked(fill=-1e9), "mask", torch.Tensor.long, masked_step),
    "blocked": (lambda: Masked("blocked"), "mask", torch.logical_not, masked_step),
    "b11k": (Masked, "mask", lambda real: real[:, None, None], masked_step),
    "counted": (lambda: Masked("counted"), "mask", torch.Tensor.long, masked_step),
    "add": (lambda: Masked("add"), "mask", added, masked_step),
}


def padded(side: str) -> Tensor:
    """What is not padding, of three sequences of seven tokens."""
    real = torch.ones(3, 7, dtype=torch.bool)
    if side == "right":
        real[0, -2:] = real[1, -1:] = False
    if side == "left":
        real[0, :2] = real[1, :1] = False
    return real


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left", "none"])
@pytest.mark.parametrize("name", DECODERS)
def test_padding_in_the_example_is_no_false_alarm(name: str, side: str) -> None:
    make, argument, mask, step = DECODERS[name]
    torch.manual_seed(0)
    ids, given = torch.randint(1, 23, (3, 7)), {argument: mask(padded(side))}
    module = make()
    healthy(diagnose(module, ids, keywords=given))
    healthy(diagnose(module, ids, keywords=given, causal=True, cache=step))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left", "none"])
@pytest.mark.parametrize("bug", ["future", "batch", "scale", "cache"])
def test_a_mask_in_the_example_hides_no_bug(bug: str, side: str) -> None:
    claims = {"causal": True, "scale": "1/sqrt(d_head)", "cache": masked_step}
    ids = torch.randint(1, 23, (3, 7))
    for way in ("attend", "blocked", "add"):
        module, mask = Masked(way, bug=bug), DECODERS[way][2](padded(side))
        without = diagnose(module, ids, **claims).causes
        assert without
        assert diagnose(module, ids, mask, **claims).causes == without


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("fill", [-torch.inf, -1e9])
@pytest.mark.parametrize(("way", "claimed"), [("blocked", "attend"), ("attend", "blocked")])
def test_a_wrong_claim_of_a_mask_is_named(way: str, claimed: str, fill: float, given: bool) -> None:
    torch.manual_seed(0)
    ids, mask = torch.randint(1, 23, (3, 7)), (DECODERS[way][2](padded("right")),)
    claims = {"causal": True, "mask": {"argument": "mask", "true": claimed}}
    error, *_ = diagnose(Masked(way, fill), ids, *mask * given, **claims).errors
    assert error.cause == "inverted mask"
    assert f"(True = {claimed}, as claimed)" in error.done
    assert error.remedy.endswith(f'; or claim "true": "{way}"')
