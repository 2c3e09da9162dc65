"""x-transformers, Keras, flex_attention: ``python -m benchmarks.doctor.elsewhere``, minutes.

The backend of Keras must be torch: it is set here, before Keras is imported.
"""

import os
import sys
import time
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
import x_transformers
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from x_transformers import Decoder, Encoder, TransformerWrapper

from benchmarks.doctor.libraries import (
    CAUSAL,
    FREE,
    D,
    H,
    V,
    cross,
    given,
    heads_of,
    ids,
    report,
    same,
    x,
)
from benchmarks.doctor.specimens.museum import settings

MASKED, ROTARY = {**FREE, "mask": {"argument": "mask", "shape": "bk"}}, {"position": "rotary"}
KNOWN = ("attn_orthog_projected_values",)
"""Flags under which x-transformers 2.31.10 sees the future: its projection is over the sequence."""
SIZE: dict[str, Any] = {"num_tokens": V, "max_seq_len": 16}
LAYERS: dict[str, Any] = {"depth": 2, "heads": H, "attn_dim_head": 8}
BOTH = {f"{side}_{k}": v for side in ("enc", "dec") for k, v in {**LAYERS, **SIZE}.items()}
Flags = dict[str, Any]


def wrapped(
    kind: type[nn.Module], layers: Flags | None = None, wrapper: Flags | None = None
) -> Any:
    made = kind(dim=D, **{**LAYERS, **(layers or {})})
    return TransformerWrapper(**SIZE, attn_layers=made, **(wrapper or {}))


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
# name → flags of the layers, flags of their wrapper, claims
DECODERS: dict[str, tuple[Flags, Flags, Flags]] = {
    "plain": ({}, {}, {}),
    **{name: ({name: True}, {}, {}) for name in SWITCHES},
    "rotary": ({"rotary_pos_emb": True}, {}, ROTARY),
    "rotary of a part": ({"rotary_pos_emb": True, "rotary_emb_dim": 4}, {}, ROTARY),
    "post-norm": ({"pre_norm": False}, {}, {}),
    "memory keys and values": ({"attn_num_mem_kv": 3}, {}, {}),
    "sparse": ({"attn_sparse_topk": 3}, {}, {}),
    "shift": ({"shift_tokens": 1}, {}, {}),
    "streams": ({"num_residual_streams": 2}, {}, {}),
    "dropped layers": ({"layer_dropout": 0.2}, {}, {}),
    "grouped": ({"heads": 4, "attn_kv_heads": 2}, {}, {"n_heads": 4, "n_kv_heads": 2}),
    "value residual": ({"add_value_residual": True, "learned_value_residual_mix": True}, {}, {}),
    "memory tokens": ({}, {"num_memory_tokens": 2}, {}),
    "tied": ({}, {"tie_embedding": True}, {"tied": True}),
    "no positions": ({}, {"use_abs_pos_emb": False}, {"position": "none"}),
    "sinusoids": ({}, {"scaled_sinu_pos_emb": True}, {"position": "sinusoidal"}),
    "norm of the embedding": ({}, {"post_emb_norm": True, "emb_frac_gradient": 0.1}, {}),
    "ALiBi": ({"alibi_pos_bias": True}, {"use_abs_pos_emb": False}, {"position": "alibi"}),
}
# name → flags of the layers, flags of their wrapper
ENCODERS: dict[str, tuple[Flags, Flags]] = {
    **{f"encoder, {name}": ({name: True}, {})
       for name in ("rel_pos_bias", "alibi_pos_bias", "rotary_pos_emb")},
    "encoder": ({}, {}),
    "encoder, class token": ({}, {"use_cls_token": True}),
}  # fmt: skip
X_TRANSFORMERS = settings({
    **{name: (partial(wrapped, Decoder, layers, wrapper), ids, CAUSAL | claims)
       for name, (layers, wrapper, claims) in DECODERS.items()},
    **{name: (partial(wrapped, Encoder, *flags), ids, MASKED) for name, flags in ENCODERS.items()},
    "loss": (lambda: x_transformers.AutoregressiveWrapper(
        wrapped(Decoder), pad_value=0, ignore_index=0), ids, {"causal": True, "padding_id": 0}),
    "Decoder alone": (partial(Decoder, dim=D, **LAYERS), x(), CAUSAL),
    "Encoder alone": (partial(Encoder, dim=D, **LAYERS), x(), {**MASKED, "position": "none"}),
    "continuous": (lambda: x_transformers.ContinuousTransformerWrapper(
        dim_in=D, dim_out=D, max_seq_len=16, attn_layers=Decoder(dim=D, **LAYERS)), x(), CAUSAL),
    "ViT": (lambda: x_transformers.ViTransformerWrapper(
        image_size=8, patch_size=4, num_classes=5, attn_layers=Encoder(dim=D, **LAYERS)),
        x(2, 3, 8, 8), FREE),
    "XTransformer": (partial(x_transformers.XTransformer, dim=D, **BOTH),
                     lambda: (ids(), ids(2, 6)), {"causal": True}),
})  # fmt: skip


def built(layer: type[Any], *sizes: int, **more: Any) -> Any:
    """A layer of Keras, called once, which makes its weights."""
    made = layer(*sizes, **more)
    made(*[torch.randn(2, 6, D)] * 2)
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


MHA = partial(built, keras.layers.MultiHeadAttention, H, D // H)
GQA = partial(built, keras.layers.GroupQueryAttention, D // 4, 4)
PAIR = same(times=2)
LATER, FOUR = given(use_causal_mask=True), {"causal": True, "n_heads": 4}
KERAS = settings({
    "MultiHeadAttention": (MHA, PAIR,
                           {**FREE, "mask": {"argument": "attention_mask", "shape": "bqk"}}),
    "MultiHeadAttention, causal": (MHA, PAIR, CAUSAL | LATER),
    "MultiHeadAttention, cross": (MHA, cross, {"n_heads": H}),
    "MultiHeadAttention, other widths": (partial(MHA, value_dim=4), PAIR, FREE),
    "GroupQueryAttention": (partial(GQA, 2), PAIR, {**FOUR, "n_kv_heads": 2, **LATER}),
    "GroupQueryAttention, one": (partial(GQA, 1), PAIR, {**FOUR, "n_kv_heads": 1, **LATER}),
    "block, causal": (partial(KerasBlock, True), x(), CAUSAL),
    "block": (partial(KerasBlock, False), x(), FREE),
    "model, causal": (partial(keras_model, True), ids, CAUSAL),
    "model": (partial(keras_model, False), ids, FREE),
    "model, masked zero": (partial(keras_model, False, mask_zero=True), ids,
                           {**FREE, "padding_id": 0}),
})  # fmt: skip


OTHERS = {"x-transformers": X_TRANSFORMERS, "keras": KERAS}


def later(score: Any, _batch: Any, _head: Any, i: Any, j: Any) -> Any:
    return torch.where(i >= j, score, -torch.inf)


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return flex_attention(q, k, v, score_mod=later)


FLEX = settings({  # compiles itself: half a minute for a report
    "flex_attention": (lambda: flex_attention, heads_of(7, 7, 7), {"causal": False}),
    "flex_attention, causal": (lambda: flex, heads_of(7, 7, 7), {"causal": True}),
})  # fmt: skip


def main() -> int:
    """A line for each; how many have an error, or had a check that raised."""
    wrong = 0
    for library, designs in {**OTHERS, "flex": FLEX}.items():
        for name, make in designs.items():
            for claimed in (True, False):
                start, known = time.perf_counter(), name in KNOWN
                said = report(make, claimed=claimed)
                raised = [n for n in said.not_judged if "check raised" in n.why]
                wrong += bool(said.errors or raised) and not known
                print(
                    f"{library}, {name}: {'claimed' if claimed else 'bare'}, "
                    f"{time.perf_counter() - start:.1f} s, {len(said.errors)} errors, "
                    f"{len(said.warnings)} warnings",
                    *(*said.causes, *raised, *["(a bug of theirs)"] * known),
                    flush=True,
                )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
