"""x-transformers, Keras and flex_attention: python -m tests.doctor.elsewhere, by hand, minutes.

The backend of Keras must be torch: it is set here, before Keras is imported.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from x_transformers import (
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)

from tests.doctor.unusual import D, Design, H

V = 29
CAUSAL, FREE = {"causal": True, "n_heads": H}, {"causal": False, "n_heads": H}
MASKED = {**FREE, "mask": {"argument": "mask", "shape": "bk"}}
KERAS_MASKED = {**FREE, "mask": {"argument": "attention_mask", "shape": "bqk"}}
KNOWN = ("attn_orthog_projected_values",)
"""Flags under which x-transformers 2.31.10 sees the future: its projection is over the sequence."""


def ids() -> tuple[Any, ...]:
    return (torch.randint(1, V, (2, 7)),)


def vectors() -> tuple[Any, ...]:
    return (torch.randn(2, 7, D),)


def wrapped(layers: type[nn.Module], wrap: dict[str, Any] | None = None, **more: Any) -> Any:
    size = {"dim": D, "depth": 2, "heads": H, "attn_dim_head": 8}
    made = layers(**{**size, **more})
    return TransformerWrapper(num_tokens=V, max_seq_len=16, attn_layers=made, **(wrap or {}))


SWITCHES = (
    *("attn_qk_norm", "attn_gate_values", "attn_one_kv_head", "sandwich_norm", "macaron"),
    *("attn_pre_talking_heads", "attn_post_talking_heads", "attn_on_attn", "ff_glu", "ff_swish"),
    *("use_scalenorm", "use_rmsnorm", "gate_residual", "scale_residual", "attn_value_rmsnorm"),
    *("ff_relu_squared", "ff_no_bias", "attn_softclamp_logits", "use_simple_rmsnorm"),
    *("attn_head_scale", "attn_selective", "attn_sigmoid", "use_layerscale", "residual_attn"),
    *("attn_laser", "attn_add_zero_kv", "unet_skips", "attn_data_dependent_alibi"),
    *("zero_init_branch_output", "attn_l2_distance", "use_dynamic_tanh", "integrate_layers"),
    *("rotary_xpos", "rel_pos_bias", "dynamic_pos_bias", "attn_flash", *KNOWN),
)
VALUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rotary": ({"rotary_pos_emb": True}, {"position": "rotary"}),
    "rotary of a part": ({"rotary_pos_emb": True, "rotary_emb_dim": 4}, {"position": "rotary"}),
    "post-norm": ({"pre_norm": False}, {}),
    "memory keys and values": ({"attn_num_mem_kv": 3}, {}),
    "sparse": ({"attn_sparse_topk": 3}, {}),
    "shift": ({"shift_tokens": 1}, {}),
    "streams": ({"num_residual_streams": 2}, {}),
    "dropped layers": ({"layer_dropout": 0.2}, {}),
    "grouped": ({"heads": 4, "attn_kv_heads": 2}, {"n_heads": 4, "n_kv_heads": 2}),
    "value residual": ({"add_value_residual": True, "learned_value_residual_mix": True}, {}),
}
WRAPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "memory tokens": ({"num_memory_tokens": 2}, {}),
    "tied": ({"tie_embedding": True}, {"tied": True}),
    "no positions": ({"use_abs_pos_emb": False}, {"position": "none"}),
    "sinusoids": ({"scaled_sinu_pos_emb": True}, {"position": "sinusoidal"}),
    "norm of the embedding": ({"post_emb_norm": True, "emb_frac_gradient": 0.1}, {}),
}


def x_transformers() -> Iterator[Design]:
    def decoder(name: str, claims: Any, wrap: Any = None, **more: Any) -> Design:
        return Design(name, lambda: wrapped(Decoder, wrap, **more), ids, {**CAUSAL, **claims})

    yield decoder("plain", {})
    for name in SWITCHES:
        yield decoder(name, {}, **{name: True})
    for name, (more, claims) in VALUES.items():
        yield decoder(name, claims, **more)
    for name, (wrap, claims) in WRAPS.items():
        yield decoder(name, claims, wrap)
    no_table = {"use_abs_pos_emb": False}
    yield decoder("ALiBi", {"position": "alibi"}, no_table, alibi_pos_bias=True)
    for name in ("rel_pos_bias", "alibi_pos_bias", "rotary_pos_emb"):
        more = {name: True}
        yield Design(f"encoder, {name}", lambda m=more: wrapped(Encoder, **m), ids, MASKED)
    yield Design("encoder", lambda: wrapped(Encoder), ids, MASKED)
    pooled = {"use_cls_token": True}
    yield Design("encoder, class token", lambda: wrapped(Encoder, pooled), ids, MASKED)
    yield Design(
        "loss",
        lambda: AutoregressiveWrapper(wrapped(Decoder), pad_value=0, ignore_index=0),
        ids,
        {"causal": True, "padding_id": 0},
    )
    layers = {"dim": D, "depth": 2, "heads": H, "attn_dim_head": 8}
    yield Design("Decoder alone", lambda: Decoder(**layers), vectors, CAUSAL)
    yield Design(
        "Encoder alone", lambda: Encoder(**layers), vectors, {**MASKED, "position": "none"}
    )
    yield Design(
        "continuous",
        lambda: ContinuousTransformerWrapper(
            dim_in=D, dim_out=D, max_seq_len=16, attn_layers=Decoder(**layers)
        ),
        vectors,
        CAUSAL,
    )
    yield Design(
        "ViT",
        lambda: ViTransformerWrapper(
            image_size=8, patch_size=4, num_classes=5, attn_layers=Encoder(**layers)
        ),
        lambda: (torch.randn(2, 3, 8, 8),),
        FREE,
    )
    both = {
        f"{side}_{name}": value
        for side in ("enc", "dec")
        for name, value in {
            "num_tokens": V,
            "max_seq_len": 16,
            "depth": 2,
            "heads": H,
            "attn_dim_head": 8,
        }.items()
    }
    yield Design(
        "XTransformer",
        lambda: XTransformer(dim=D, **both),
        lambda: (torch.randint(1, V, (2, 7)), torch.randint(1, V, (2, 6))),
        {"causal": True},
    )


def built(make: Callable[[], Any], n: int = 2) -> Callable[[], Any]:
    """A layer of Keras, called once, which makes its weights."""

    def made() -> Any:
        layer = make()
        layer(*[torch.randn(2, 6, D)] * n)
        return layer

    return made


class KerasBlock(nn.Module):
    """A pre-norm block of Keras's layers."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        layers = keras.layers
        self.attention, self.causal = layers.MultiHeadAttention(H, D // H), causal
        self.norm1, self.norm2 = (layers.LayerNormalization(epsilon=1e-5) for _ in "12")
        self.mlp = keras.Sequential([layers.Dense(32, activation="gelu"), layers.Dense(D)])
        self(torch.randn(2, 6, D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, use_causal_mask=self.causal)
        return x + self.mlp(self.norm2(x))


def keras_model(causal: bool, *, mask_zero: bool = False) -> Any:
    layers = keras.layers
    ids = keras.Input((7,), dtype="int64")
    h = layers.Embedding(V, D, mask_zero=mask_zero)(ids)
    for _ in range(2):
        n = layers.LayerNormalization()(h)
        h = h + layers.MultiHeadAttention(H, D // H)(n, n, use_causal_mask=causal)
        n = layers.LayerNormalization()(h)
        h = h + layers.Dense(D)(layers.Dense(32, activation="gelu")(n))
    return keras.Model(ids, layers.Dense(V)(h))


def of_keras() -> Iterator[Design]:
    def same() -> tuple[Any, ...]:
        return vectors() * 2

    def cross() -> tuple[Any, ...]:
        return torch.randn(2, 6, D), torch.randn(2, 5, D)

    def attention(**more: Any) -> Callable[[], Any]:
        return built(lambda: keras.layers.MultiHeadAttention(H, D // H, **more))

    def grouped(n: int) -> Callable[[], Any]:
        return built(lambda: keras.layers.GroupQueryAttention(D // 4, 4, n))

    later = {"use_causal_mask": True}
    four = {"causal": True, "n_heads": 4, "n_kv_heads": 2}
    yield Design("MultiHeadAttention", attention(), same, KERAS_MASKED)
    yield Design("MultiHeadAttention, causal", attention(), same, CAUSAL, later)
    yield Design("MultiHeadAttention, cross", attention(), cross, {"n_heads": H})
    yield Design("MultiHeadAttention, other widths", attention(value_dim=4), same, FREE)
    yield Design("GroupQueryAttention", grouped(2), same, four, later)
    yield Design("GroupQueryAttention, one", grouped(1), same, {**four, "n_kv_heads": 1}, later)
    yield Design("block, causal", lambda: KerasBlock(True), vectors, CAUSAL)
    yield Design("block", lambda: KerasBlock(False), vectors, FREE)
    yield Design("model, causal", lambda: keras_model(True), ids, CAUSAL)
    yield Design("model", lambda: keras_model(False), ids, FREE)
    padded = {**FREE, "padding_id": 0}
    yield Design("model, masked zero", lambda: keras_model(False, mask_zero=True), ids, padded)


def later(score: Any, _batch: Any, _head: Any, i: Any, j: Any) -> Any:
    return torch.where(i >= j, score, -torch.inf)


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=later)


def of_torch() -> Iterator[Design]:
    """What compiles itself, half a minute for a report."""
    three = tuple(torch.randn(2, H, 7, 8) for _ in "qkv")
    yield Design("flex_attention", lambda: flex_attention, lambda: three, {"causal": False})
    yield Design("flex_attention, causal", lambda: flex, lambda: three, {"causal": True})


def main() -> int:
    """A line for each; how many have an error, or had a check that raised."""
    wrong = 0
    libraries = {"x-transformers": x_transformers, "Keras": of_keras, "torch": of_torch}
    for library, designs in libraries.items():
        for design in designs():
            for claimed in (True, False):
                start = time.perf_counter()
                report = design.report(claimed=claimed)
                raised = [n for n in report.not_judged if "check raised" in n.why]
                known = design.name in KNOWN
                wrong += bool(report.errors or raised) and not known
                print(
                    f"{library}, {design.name}: {'claimed' if claimed else 'bare'}, "
                    f"{time.perf_counter() - start:.1f} s, {len(report.errors)} errors, "
                    f"{len(report.warnings)} warnings",
                    *([*report.causes, *raised] or [""]),
                    "(a bug of theirs)" if known else "",
                    flush=True,
                )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
