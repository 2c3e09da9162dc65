import re
from collections.abc import Callable

import pytest
import torch
from compare import (
    BATCH,
    DROPOUT,
    EXACT,
    MASKS,
    TOKENS,
    assert_copied,
    assert_equal_parameters,
    assert_near,
    assert_same_function,
    each_pair,
    masks,
    randomize,
)
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaRotaryEmbedding,
)

from attnbook import ALiBi, MultiHeadAttention, Rotary
from attnbook.interop import from_llama, to_llama

D_MODEL, N_HEADS, N_KV_HEADS, D_HEAD, BASE = 18, 6, 2, 4, 500.0
FLOAT32 = 1e-5
"""Theirs computes the angles and, in the eager implementation, the softmax in float32."""


def config(**options: object) -> LlamaConfig:
    settings = {
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": D_HEAD,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "attn_implementation": "eager",
    }
    return LlamaConfig(hidden_size=D_MODEL, num_attention_heads=N_HEADS, **(settings | options))


def attention(**options: object) -> LlamaAttention:
    return randomize(LlamaAttention(config(**options), layer_idx=0))


Rotations = tuple[Tensor, Tensor]


def their_rotations(theirs: LlamaAttention, x: Tensor) -> Rotations:
    return LlamaRotaryEmbedding(theirs.config)(x, torch.arange(x.shape[1])[None])


def exact_rotations(_: LlamaAttention, x: Tensor) -> Rotations:
    half = BASE ** -(torch.arange(0, D_HEAD, 2) / D_HEAD)
    angle = torch.arange(x.shape[1])[:, None] * torch.cat([half, half])
    return angle.cos()[None], angle.sin()[None]


def run(
    theirs: LlamaAttention,
    x: Tensor,
    added: Tensor,
    rotations: Callable[[LlamaAttention, Tensor], Rotations] = their_rotations,
) -> Tensor:
    return theirs(x, position_embeddings=rotations(theirs, x), attention_mask=added)[0]


KINDS = [
    ("eager", their_rotations, FLOAT32),
    ("sdpa", their_rotations, FLOAT32),
    ("sdpa", exact_rotations, EXACT),  # with angles in float64, nothing is in float32
]


@pytest.mark.parametrize(
    ("mask", "n_kv_heads", "bias", "kind", "train"),
    each_pair(MASKS, [1, N_KV_HEADS, N_HEADS], [True, False], KINDS, [True, False]),
)
def test_same_function(
    mask: str,
    n_kv_heads: int,
    bias: bool,
    kind: tuple[str, Callable[[LlamaAttention, Tensor], Rotations], float],
    train: bool,
) -> None:
    implementation, rotations, atol = kind
    options = {"num_key_value_heads": n_kv_heads, "attention_bias": bias}
    options |= {"attn_implementation": implementation, "attention_dropout": DROPOUT}
    theirs = attention(**options).train(train)
    ours, m = from_llama(theirs), masks(mask, TOKENS)
    assert ours.position == Rotary("half_split", BASE)
    assert_same_function(
        ours,
        theirs,
        lambda x: ours(x, **m.ours()),
        lambda x: run(theirs, x, m.added(TOKENS, TOKENS, always=True), rotations),
        [torch.randn(BATCH, TOKENS, D_MODEL)],
        from_llama,
        atol,
        drops=int(train),
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_and_back_again(dtype: torch.dtype, bias: bool) -> None:
    options = {"attention_bias": bias, "attention_dropout": 0.25}
    theirs, fresh = (attention(**options).to(dtype) for _ in range(2))
    ours = from_llama(theirs.eval())
    fresh.load_state_dict(to_llama(ours))
    assert_equal_parameters(fresh, theirs)
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(to_llama(ours).values(), ours.parameters())
    assert (ours.dropout, ours.training) == (0.25, False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
def test_either_rotary_layout(layout: str, bias: bool) -> None:
    ours = MultiHeadAttention(
        D_MODEL,
        N_HEADS,
        n_kv_heads=N_KV_HEADS,
        d_head=D_HEAD,
        bias=bias,
        position=Rotary(layout, BASE),
    )
    theirs, x = attention(attention_bias=bias), torch.randn(BATCH, TOKENS, D_MODEL)
    theirs.load_state_dict(to_llama(randomize(ours)))
    added = masks("causal", TOKENS).added(TOKENS, TOKENS)
    assert_near(ours(x, causal=True), run(theirs, x, added), FLOAT32)


class TestRefused:
    def test_scaled_rotations(self) -> None:
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": BASE}
        with pytest.raises(ValueError, match=r"LlamaAttention\(rope_type='linear'\): "):
            from_llama(attention(rope_parameters=rope))

    @pytest.mark.parametrize("rope", [None, {"rope_type": "default"}])
    def test_configurations_of_another_version(self, rope: dict[str, str] | None) -> None:
        theirs = attention()
        theirs.config.rope_parameters = rope
        message = (
            f"LlamaAttention(rope_parameters={rope}): its configuration has to name rope_type and "
            f"rope_theta, as transformers 5 does"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            from_llama(theirs)

    def test_scale(self) -> None:
        theirs = attention()
        theirs.scaling = 1.0
        with pytest.raises(
            ValueError, match=r"LlamaAttention\(scaling=1.0\): our logits are scaled"
        ):
            from_llama(theirs)

    def test_weights_kept_elsewhere(self) -> None:
        theirs = attention()
        nn.utils.parametrizations.weight_norm(theirs.k_proj)
        with pytest.raises(ValueError, match=r"k_proj must be of class Linear, got Parametrized"):
            from_llama(theirs)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"position": None}, r"\(position=None\): LlamaAttention is always rotary"),
            ({"position": ALiBi()}, r"\(position=ALiBi\(.*\): LlamaAttention is always rotary"),
            ({"d_value": 5}, r"\(d_value=5\): LlamaAttention needs 4"),
            ({"bias": "qkv"}, r"\(bias='qkv'\): LlamaAttention needs"),
        ],
    )
    def test_ours(self, options: dict[str, object], message: str) -> None:
        options = {"d_head": D_HEAD, "position": Rotary()} | options
        with pytest.raises(ValueError, match=message):
            to_llama(MultiHeadAttention(D_MODEL, N_HEADS, **options))

    @pytest.mark.usefixtures("without_shape_checks")
    def test_something_else(self) -> None:
        message = "expected LlamaAttention of transformers, got .*Linear"
        with pytest.raises(TypeError, match=message):
            from_llama(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="expected MultiHeadAttention of attnbook, got Linear"):
            to_llama(nn.Linear(2, 2))
