"""x-transformers, Keras and flex_attention: python -m tests.doctor.elsewhere, by hand, minutes.

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

from tests.doctor.libraries import CAUSAL, FREE, D, H, V, cross, given, heads_of, report, same, x
from tests.doctor.specimens.museum import settings

MASKED = {**FREE, "mask": {"argument": "mask", "shape": "bk"}}
KNOWN = ("attn_orthog_projected_values",)
"""Flags under which x-transformers 2.31.10 sees the future: its projection is over the sequence."""


LAYERS: dict[str, Any] = {"dim": D, "depth": 2, "heads": H, "attn_dim_head": 8}


def ids(t: int = 7) -> torch.Tensor:
    return torch.randint(1, V, (2, t))


def wrapped(layers: type[nn.Module], wrap: dict[str, Any] | None = None, **more: Any) -> Any:
    made = layers(**{**LAYERS, **more})
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


ALIBI = {"use_abs_pos_emb": False}
BOTH = {
    f"{side}_{name}": value
    for side in ("enc", "dec")
    for name, value in {**LAYERS, "num_tokens": V, "max_seq_len": 16}.items()
    if name != "dim"
}
X_TRANSFORMERS = settings({
    "plain": (partial(wrapped, Decoder), ids, CAUSAL),
    **{name: (partial(wrapped, Decoder, **{name: True}), ids, CAUSAL) for name in SWITCHES},
    **{name: (partial(wrapped, Decoder, **more), ids, CAUSAL | claims)
       for name, (more, claims) in VALUES.items()},
    **{name: (partial(wrapped, Decoder, wrap), ids, CAUSAL | claims)
       for name, (wrap, claims) in WRAPS.items()},
    "ALiBi": (partial(wrapped, Decoder, ALIBI, alibi_pos_bias=True), ids,
              {**CAUSAL, "position": "alibi"}),
    **{f"encoder, {name}": (partial(wrapped, Encoder, **{name: True}), ids, MASKED)
       for name in ("rel_pos_bias", "alibi_pos_bias", "rotary_pos_emb")},
    "encoder": (partial(wrapped, Encoder), ids, MASKED),
    "encoder, class token": (partial(wrapped, Encoder, {"use_cls_token": True}), ids, MASKED),
    "loss": (lambda: AutoregressiveWrapper(wrapped(Decoder), pad_value=0, ignore_index=0), ids,
             {"causal": True, "padding_id": 0}),
    "Decoder alone": (partial(Decoder, **LAYERS), x(), CAUSAL),
    "Encoder alone": (partial(Encoder, **LAYERS), x(), {**MASKED, "position": "none"}),
    "continuous": (lambda: ContinuousTransformerWrapper(
        dim_in=D, dim_out=D, max_seq_len=16, attn_layers=Decoder(**LAYERS)), x(), CAUSAL),
    "ViT": (lambda: ViTransformerWrapper(
        image_size=8, patch_size=4, num_classes=5, attn_layers=Encoder(**LAYERS)),
        x(2, 3, 8, 8), FREE),
    "XTransformer": (partial(XTransformer, dim=D, **BOTH), lambda: (ids(), ids(6)),
                     {"causal": True}),
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


def pair() -> tuple[torch.Tensor, ...]:
    return same()()[:2]


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
LATER, FOUR = given(use_causal_mask=True), {"causal": True, "n_heads": 4}
KERAS = settings({
    "MultiHeadAttention": (MHA, pair,
                           {**FREE, "mask": {"argument": "attention_mask", "shape": "bqk"}}),
    "MultiHeadAttention, causal": (MHA, pair, CAUSAL | LATER),
    "MultiHeadAttention, cross": (MHA, cross, {"n_heads": H}),
    "MultiHeadAttention, other widths": (partial(MHA, value_dim=4), pair, FREE),
    "GroupQueryAttention": (partial(GQA, 2), pair, {**FOUR, "n_kv_heads": 2, **LATER}),
    "GroupQueryAttention, one": (partial(GQA, 1), pair, {**FOUR, "n_kv_heads": 1, **LATER}),
    "block, causal": (partial(KerasBlock, True), x(), CAUSAL),
    "block": (partial(KerasBlock, False), x(), FREE),
    "model, causal": (partial(keras_model, True), ids, CAUSAL),
    "model": (partial(keras_model, False), ids, FREE),
    "model, masked zero": (partial(keras_model, False, mask_zero=True), ids,
                           {**FREE, "padding_id": 0}),
})  # fmt: skip


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
    libraries = {"x-transformers": X_TRANSFORMERS, "Keras": KERAS, "torch": FLEX}
    for library, designs in libraries.items():
        for name, make in designs.items():
            for claimed in (True, False):
                start = time.perf_counter()
                said = report(make, claimed=claimed)
                raised = [n for n in said.not_judged if "check raised" in n.why]
                known = name in KNOWN
                wrong += bool(said.errors or raised) and not known
                print(
                    f"{library}, {name}: {'claimed' if claimed else 'bare'}, "
                    f"{time.perf_counter() - start:.1f} s, {len(said.errors)} errors, "
                    f"{len(said.warnings)} warnings",
                    *([*said.causes, *raised] or [""]),
                    "(a bug of theirs)" if known else "",
                    flush=True,
                )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
