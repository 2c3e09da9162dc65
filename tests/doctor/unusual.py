"""Right but unusual designs: none of them may raise an error."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attnbook import Encoder, LanguageModel, ModelConfig, MultiHeadAttention, Rotary
from attnbook.doctor import Report, diagnose
from tests.doctor.styles import Block, Decoder, Functional, Loss, Positioned, Separate, rotate

D, H = 16, 2


@dataclass(frozen=True)
class Design:
    """A right design."""

    name: str
    make: Callable[[], Any]
    example: Callable[[], tuple[Any, ...]]
    claims: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] | None = None

    def report(self, *, claimed: bool, seed: int = 0) -> Report:
        """The report on it."""
        torch.manual_seed(seed)
        more = {"keywords": self.keywords} if self.keywords else {}
        return diagnose(self.make(), *self.example(), **(self.claims if claimed else {}), **more)


def x() -> tuple[Any, ...]:
    return (torch.randn(2, 6, D),)


def xxx() -> tuple[Any, ...]:
    return x() * 3


def first() -> tuple[Any, ...]:
    return (torch.randn(6, 2, D),)


def cross() -> tuple[Any, ...]:
    return torch.randn(2, 6, D), torch.randn(2, 5, D)


def ids() -> tuple[Any, ...]:
    return (torch.randint(1, 23, (2, 6)),)


def two() -> tuple[Any, ...]:
    return torch.randint(1, 23, (2, 7)), torch.randint(1, 23, (2, 6))


class Narrow(nn.Module):
    """One small projection for all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D // H, D // H) for _ in "qkv")
        self.o = nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.unflatten(-1, (H, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.q(z), self.k(z), self.v(z))
        return self.o(y.transpose(1, 2).flatten(2))


class WeightNorm(nn.Module):
    """Beside a convolution whose matrix is normed."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Separate(causal=False)
        conv = nn.Conv1d(D, D, 3, padding=1)
        self.conv = nn.utils.parametrizations.weight_norm(conv)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x + self.conv(x.mT).mT)


class ForInference(nn.Module):
    """Nothing has a gradient, and nothing is observed."""

    def __init__(self) -> None:
        super().__init__()
        self.model = language_model()()

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids)


class Variant(nn.Module):
    """Attention with one unusual choice."""

    def __init__(self, kind: str, causal: bool = False) -> None:
        super().__init__()
        self.kind, self.causal = kind, causal
        self.qkv, self.o = nn.Linear(D, 3 * D), nn.Linear(D, D)
        if kind == "cosine":
            self.log_scale = nn.Parameter(torch.zeros(H, 1, 1))
        if kind == "sink":
            self.sink = nn.Parameter(torch.zeros(H))
        if kind in ("gate", "zero gate"):
            self.gate = nn.Linear(D, D)
        if kind in ("zero output", "zero gate"):
            nn.init.zeros_((self.o if kind == "zero output" else self.gate).weight)
        if kind == "layer scale":
            self.gamma = nn.Parameter(torch.full((D,), 1e-6))
        if kind == "null key":
            self.null_k, self.null_v = (nn.Parameter(torch.randn(H, 1, D // H)) for _ in "kv")
        if kind == "qk norm":
            self.qn, self.kn = nn.RMSNorm(D // H), nn.RMSNorm(D // H)
        if kind == "talking heads":
            self.mix = nn.Parameter(torch.eye(H) + 0.1 * torch.randn(H, H))
        if kind == "temperature":
            self.tau = nn.Parameter(torch.tensor(1.5))
        if kind == "differential":
            self.lam = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind, (b, t, _) = self.kind, x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(t, t, dtype=torch.bool)
        if kind == "prefix":
            allowed = allowed.tril() | (torch.arange(t) < 3)
        elif kind == "band":
            allowed = allowed.tril(1).triu(-1)
        elif kind == "dilated":
            i = torch.arange(t)
            allowed = ((i[:, None] - i) % 2 == 0) & allowed.tril()
        elif self.causal:
            allowed = allowed.tril()
        if kind == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            if self.causal:
                s = (q @ k.mT) * allowed
                y = (s @ v) / s.sum(-1, keepdim=True)
            else:
                y = q @ (k.mT @ v) / (q @ k.sum(2)[..., None])
        elif kind == "interleaved heads":
            q, k, v = (
                z.transpose(1, 2).reshape(b, t, D).view(b, t, D // H, H).permute(0, 3, 1, 2)
                for z in (q, k, v)
            )
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            if kind == "cosine":
                q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
                s = q @ k.mT * self.log_scale.exp() * 10
            elif kind == "no scale":
                s = q @ k.mT
            elif kind == "mup":
                s = q @ k.mT / (D // H)
            elif kind == "softcap":
                s = 5 * torch.tanh(q @ k.mT * (D // H) ** -0.5 / 5)
            elif kind == "distance":
                s = -(torch.cdist(q.contiguous(), k.contiguous()) ** 2) / 2
            elif kind == "qk norm":
                s = self.qn(q) @ self.kn(k).mT * (D // H) ** -0.5
            elif kind == "temperature":
                s = q @ k.mT * (D // H) ** -0.5 / self.tau
            elif kind == "quarter":
                s = (q * (D // H) ** -0.25) @ (k * (D // H) ** -0.25).mT
            elif kind == "null key":
                k = torch.cat([self.null_k.expand(b, -1, -1, -1), k], 2)
                v = torch.cat([self.null_v.expand(b, -1, -1, -1), v], 2)
                s = q @ k.mT * (D // H) ** -0.5
                allowed = torch.cat([torch.ones(t, 1, dtype=torch.bool), allowed], 1)
            else:
                s = q @ k.mT * (D // H) ** -0.5
            if kind == "minus 1e9":
                s = s.masked_fill(~allowed, -1e9)
            elif kind == "finfo":
                s = s.masked_fill(~allowed, torch.finfo(s.dtype).min)
            elif kind == "added float":
                s = s + (1.0 - allowed.float()) * -1e4
            else:
                s = s.masked_fill(~allowed, -torch.inf)
            if kind == "sink":
                column = self.sink.view(1, H, 1, 1).expand(b, H, t, 1)
                w = torch.cat([s, column], -1).softmax(-1)[..., :-1]
            elif kind == "softmax plus one":
                top = s.amax(-1, keepdim=True).clamp(min=0)
                e = (s - top).exp()
                w = e / (e.sum(-1, keepdim=True) + (-top).exp())
            elif kind == "sigmoid":
                w = (s - math.log(t)).sigmoid()
            elif kind == "relu":
                w = s.clamp(min=0) / t
            elif kind == "by hand":
                e = (s - s.amax(-1, keepdim=True)).exp()
                w = e / e.sum(-1, keepdim=True)
            elif kind == "float32 softmax":
                w = s.float().softmax(-1).to(x.dtype)
            elif kind == "talking heads":
                w = torch.einsum("bhqk,hg->bgqk", s.softmax(-1), self.mix)
            elif kind == "mask again":
                w = s.softmax(-1).masked_fill(~allowed, 0)
            else:
                w = s.softmax(-1)
            y = w @ v
            if kind == "differential":
                y = y[:, :1] - self.lam * y[:, 1:]
                y = y.expand(-1, H, -1, -1)
        y = y.transpose(1, 2).reshape(b, t, D)
        if kind == "gate":
            y = y * self.gate(x).sigmoid()
        if kind == "zero gate":
            y = y * self.gate(x)
        if kind == "layer scale":
            return x + self.gamma * self.o(y)
        return self.o(y)


class SequenceFirst(nn.Module):
    """(tokens, batch, d_model)."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(D, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x)[0] + x


class CausalConvolution(nn.Module):
    """A convolution to the left, then attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attention = nn.Conv1d(D, D, 3), Separate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        return self.attention(x)


class PostNorm(nn.Module):
    """Norms after the sums; parallel branches as in GPT-J if wanted."""

    def __init__(self, parallel: bool = False) -> None:
        super().__init__()
        self.parallel = parallel
        self.attention, self.mlp = (
            Functional(),
            nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, D)),
        )
        self.n1 = nn.LayerNorm(D)
        if not parallel:
            self.n2 = nn.LayerNorm(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.parallel:
            h = self.n1(x)
            return x + self.attention(h) + self.mlp(h)
        x = self.n1(x + self.attention(x))
        return self.n2(x + self.mlp(x))


class Cross(nn.Module):
    """Cross-attention, by one projection for keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        heads = lambda y: y.unflatten(-1, (H, -1)).transpose(1, 2)  # noqa: E731
        q, (k, v) = heads(self.q(x)), map(heads, self.kv(memory).chunk(2, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Linformer(nn.Module):
    """Keys and values of six tokens projected to three."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.e, self.o = nn.Linear(D, 3 * D), nn.Linear(6, 3, bias=False), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = self.e(k.mT).mT, self.e(v.mT).mT
        return self.o((q @ k.mT / D**0.5).softmax(-1) @ v)


class Recurrent(nn.Module):
    """No attention at all."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(D, D, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


class SharedQK(Functional):
    """Reformer's."""

    def __init__(self) -> None:
        super().__init__("key by query projection")
        self.w = nn.Parameter(torch.randn(2, D, D) * D**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, v = (F.linear(x, w).unflatten(-1, (H, -1)).transpose(1, 2) for w in self.w)
        y = F.scaled_dot_product_attention(q, q, v, is_causal=True)
        return F.linear(y.transpose(1, 2).flatten(2), self.o, self.b)


CAUSAL, FREE = {"causal": True, "n_heads": H}, {"causal": False, "n_heads": H}
KINDS = (
    *("cosine", "sink", "gate", "zero gate", "zero output", "layer scale", "null key", "qk norm"),
    *("talking heads", "temperature", "no scale", "mup", "softcap", "distance", "quarter"),
    *(
        "interleaved heads",
        "softmax plus one",
        "sigmoid",
        "relu",
        "by hand",
        "float32 softmax",
        "linear",
        "differential",
    ),
)
CONFIG: dict[str, Any] = {"vocab_size": 23, "d_model": D, "n_heads": H, "n_layers": 2}


def language_model(**more: Any) -> Callable[[], Any]:
    return lambda: LanguageModel(ModelConfig(**{**CONFIG, **more}))


def transformers_model(name: str, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        size = {"vocab_size": 23, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        config = getattr(transformers, name.split(":")[0] + "Config")(**size, **more)
        return getattr(transformers, name.split(":")[1])(config)

    return make


SMALL = {
    "hidden_size": D,
    "num_attention_heads": H,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
HF_MASK = {"mask": {"argument": "attention_mask", "shape": "bk", "true": "attend", "dtype": "int"}}

UNUSUAL: tuple[Design, ...] = (
    *(Design(kind, lambda k=kind: Variant(k), x, FREE) for kind in KINDS),
    *(
        Design(f"{kind}, causal", lambda k=kind: Variant(k, True), x, CAUSAL)
        for kind in (
            "cosine",
            "sink",
            "gate",
            "softmax plus one",
            "by hand",
            "linear",
            "minus 1e9",
            "finfo",
            "added float",
            "mask again",
            "null key",
        )
    ),
    Design("prefix mask", lambda: Variant("prefix"), x, {"causal": False}),
    Design("band", lambda: Variant("band"), x, {"causal": False}),
    Design("dilated", lambda: Variant("dilated"), x, {"causal": True}),
    Design("sequence first", SequenceFirst, first, {"batch_first": False, "n_heads": H}),
    Design("causal convolution", CausalConvolution, x, CAUSAL),
    Design("post-norm", PostNorm, x, CAUSAL),
    Design("parallel block", lambda: PostNorm(True), x, CAUSAL),
    Design("pre-norm block", lambda: Block(Separate()), x, CAUSAL),
    Design("cross-attention", Cross, cross, {"n_heads": H}),
    Design("Linformer", Linformer, x, {}),
    Design("GRU", Recurrent, x, {"causal": True}),
    Design("shared query and key", SharedQK, x, {"causal": True, "shared": ("query", "key")}),
    Design(
        "multi-query", lambda: Separate(heads=4, kv=1), x, {**CAUSAL, "n_heads": 4, "n_kv_heads": 1}
    ),
    Design(
        "grouped", lambda: Separate(heads=4, kv=2), x, {**CAUSAL, "n_heads": 4, "n_kv_heads": 2}
    ),
    Design(
        "groups tiled",
        lambda: Separate("groups tiled", heads=4, kv=2),
        x,
        {**CAUSAL, "n_heads": 4, "n_kv_heads": 2},
    ),
    Design("one head", lambda: Separate(heads=1), x, {**CAUSAL, "n_heads": 1}),
    Design(
        "rotary, half",
        lambda: Positioned(),
        x,
        {**CAUSAL, "position": "rotary", "cache": Positioned.step},
    ),
    Design(
        "rotary, pairs", lambda: Positioned(pairing="pairs"), x, {**CAUSAL, "position": "rotary"}
    ),
    Design("ALiBi", lambda: Positioned(kind="alibi"), x, {**CAUSAL, "position": "alibi"}),
    Design(
        "ALiBi, both ways",
        lambda: Positioned(kind="alibi", causal=False),
        x,
        {**FREE, "position": "alibi"},
    ),
    Design(
        "relative bias", lambda: Positioned(kind="relative"), x, {**CAUSAL, "position": "relative"}
    ),
    Design("window", lambda: Positioned(window=3), x, {**CAUSAL, "window": 3}),
    Design("dropout", lambda: Functional(p=0.2), x, {**CAUSAL, "dropout": 0.2}),
    Design("no positions, causal", lambda: Decoder("no positions"), ids, {"causal": True}),
    Design(
        "sinusoids",
        lambda: Decoder(position="sinusoidal"),
        ids,
        {"causal": True, "position": "sinusoidal"},
    ),
    Design("tied", lambda: Decoder(tied=True), ids, {"causal": True, "tied": True}),
    Design("loss", Loss, ids, {"causal": True}),
    Design("nll_loss", lambda: Loss(loss="nll"), ids, {"causal": True}),
    Design(
        "torch attention",
        lambda: nn.MultiheadAttention(D, H, batch_first=True),
        xxx,
        {
            "n_heads": H,
            "causal": False,
            "mask": {"argument": "key_padding_mask", "shape": "bk", "true": "blocked"},
        },
    ),
    Design(
        "torch attention, sequence first",
        lambda: nn.MultiheadAttention(D, H),
        lambda: first() * 3,
        {"n_heads": H},
    ),
    Design(
        "torch encoder layer",
        lambda: nn.TransformerEncoderLayer(D, H, 32, batch_first=True),
        x,
        {
            "n_heads": H,
            "mask": {"argument": "src_key_padding_mask", "shape": "bk", "true": "blocked"},
        },
    ),
    Design(
        "torch encoder",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, H, 32, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        ),
        x,
        {"n_heads": H},
    ),
    Design(
        "torch decoder layer",
        lambda: nn.TransformerDecoderLayer(D, H, 32, batch_first=True),
        cross,
        {"n_heads": H},
    ),
    Design(
        "torch decoder layer, padded target",
        lambda: nn.TransformerDecoderLayer(D, H, 32, batch_first=True),
        cross,
        {"mask": {"argument": "tgt_key_padding_mask", "true": "blocked"}},
    ),
    Design("one projection for all heads", Narrow, x, {"n_heads": H, "shared": ("heads",)}),
    Design("weight norm", WeightNorm, x, {"n_heads": H}),
    Design("for inference alone", ForInference, ids, {"causal": True, "position": "learned"}),
    Design(
        "torch transformer",
        lambda: nn.Transformer(D, H, 2, 2, 32, batch_first=True),
        lambda: cross()[::-1],
        {"n_heads": H},
    ),
    Design(
        "F.scaled_dot_product_attention",
        lambda: F.scaled_dot_product_attention,
        lambda: tuple(torch.randn(2, H, n, 8) for n in (6, 5, 5)),
        {},
    ),
    Design(
        "ours",
        lambda: MultiHeadAttention(D, H, position=Rotary()),
        x,
        {
            "n_heads": H,
            "position": "rotary",
            "mask": {"argument": "mask", "shape": "b11k", "true": "attend"},
        },
    ),
    Design(
        "our language model", language_model(), ids, {"causal": True, "n_heads": H, "tied": True}
    ),
    Design(
        "our Llama",
        language_model(
            norm="pre",
            norm_kind="rms",
            activation="swiglu",
            position="rotary",
            tied=False,
            n_kv_heads=1,
        ),
        ids,
        {"causal": True, "n_heads": H, "n_kv_heads": 1, "position": "rotary"},
    ),
    Design(
        "our ALiBi", language_model(position="alibi"), ids, {"causal": True, "position": "alibi"}
    ),
    Design("our DeepNorm", language_model(norm="deepnorm"), ids, {"causal": True}),
    Design(
        "our encoder", lambda: Encoder(ModelConfig(**CONFIG)), ids, {"causal": False, "n_heads": H}
    ),
    Design(
        "GPT-2",
        transformers_model("GPT2:GPT2LMHeadModel", n_embd=D, n_head=H, n_layer=2, n_positions=32),
        ids,
        {"causal": True, "n_heads": H, "tied": True, "cache": True},
    ),
    Design(
        "Llama",
        transformers_model("Llama:LlamaForCausalLM", num_key_value_heads=1, **SMALL),
        ids,
        {
            "causal": True,
            "n_heads": H,
            "n_kv_heads": 1,
            "position": "rotary",
            "cache": True,
            **HF_MASK,
        },
    ),
    Design(
        "Mistral",
        transformers_model(
            "Mistral:MistralForCausalLM", num_key_value_heads=1, sliding_window=3, **SMALL
        ),
        ids,
        {"causal": True, "n_heads": H, "n_kv_heads": 1, "position": "rotary", "window": 3},
    ),
    Design(
        "NeoX",
        transformers_model("GPTNeoX:GPTNeoXForCausalLM", **SMALL),
        ids,
        {"causal": True, "n_heads": H, "position": "rotary"},
    ),
    Design(
        "Bloom",
        transformers_model("Bloom:BloomForCausalLM", hidden_size=D, n_head=H, n_layer=2),
        ids,
        {"causal": True, "n_heads": H, "position": "alibi"},
    ),
    Design(
        "BERT",
        transformers_model("Bert:BertModel", **SMALL),
        ids,
        {"causal": False, "n_heads": H, **HF_MASK, "padding_id": 0},
    ),
    Design(
        "BERT with a head",
        transformers_model("Bert:BertForMaskedLM", **SMALL),
        ids,
        {"causal": False, "n_heads": H},
    ),
    Design(
        "T5",
        transformers_model(
            "T5:T5ForConditionalGeneration",
            d_model=D,
            num_heads=H,
            d_kv=8,
            num_layers=2,
            d_ff=32,
            decoder_start_token_id=0,
        ),
        lambda: two()[:1],
        {"causal": True, "n_heads": H, "scale": 1.0},
        {
            "decoder_input_ids": torch.randint(
                1, 23, (2, 6), generator=torch.Generator().manual_seed(0)
            )
        },
    ),
)

__all__ = ["UNUSUAL", "Design", "rotate"]
