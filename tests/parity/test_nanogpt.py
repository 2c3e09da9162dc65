"""nanoGPT is no package: its attention is written here again, from its layout."""

import pytest
import torch
import torch.nn.functional as F
from compare import (
    BATCH,
    DROPOUT,
    MASKS,
    TOKENS,
    assert_copied,
    assert_equal_parameters,
    assert_near,
    assert_same_function,
    masks,
    randomize,
)
from torch import Tensor, nn

from attnbook import ALiBi, MultiHeadAttention
from attnbook.interop import from_nanogpt, to_nanogpt
from strategies import refused

D_MODEL, N_HEADS = 12, 4


class CausalSelfAttention(nn.Module):
    """What karpathy/nanoGPT 3adf61e, model.py computes, with a mask that need not be causal."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(D_MODEL, 3 * D_MODEL, bias=bias)
        self.c_proj = nn.Linear(D_MODEL, D_MODEL, bias=bias)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        heads = [
            part.view(*part.shape[:2], N_HEADS, D_MODEL // N_HEADS).transpose(1, 2)
            for part in self.c_attn(x).split(D_MODEL, dim=2)
        ]
        dropout = DROPOUT if self.training else 0.0
        y = F.scaled_dot_product_attention(*heads, attn_mask=allowed, dropout_p=dropout)
        return self.c_proj(y.transpose(1, 2).reshape(x.shape))


def convert(module: nn.Module) -> MultiHeadAttention:
    return from_nanogpt(module.state_dict(), N_HEADS)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_same_function(mask: str, bias: bool, train: bool) -> None:
    theirs = randomize(CausalSelfAttention(bias=bias)).train(train)
    ours, m = convert(theirs).train(train), masks(mask, TOKENS)
    ours.dropout = DROPOUT  # which the weights do not tell
    assert_same_function(
        ours,
        theirs,
        lambda x: ours(x, **m.ours()),
        lambda x: theirs(x, m.allowed(TOKENS, TOKENS)),
        [torch.randn(BATCH, TOKENS, D_MODEL)],
        convert,
        drops=int(train),
    )


@pytest.mark.parametrize("bias", [True, False])
def test_there_and_back_again(bias: bool) -> None:
    theirs, fresh = (randomize(CausalSelfAttention(bias=bias)) for _ in range(2))
    ours = convert(theirs)
    fresh.load_state_dict(to_nanogpt(ours))
    assert_equal_parameters(fresh, theirs)
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(to_nanogpt(ours).values(), ours.parameters())


def test_their_causal_mask_is_no_bias() -> None:
    state = randomize(CausalSelfAttention(bias=False)).state_dict()
    ours = from_nanogpt(state | {"bias": torch.ones(1, 1, 8, 8).tril()}, N_HEADS)
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    assert ours.output.bias is None
    assert_near(ours(x), from_nanogpt(state, N_HEADS)(x))


class TestRefused:
    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"c_attn.weight": None}, r"got \{'c_proj.weight': \(12, 12\)\}"),
            ({"c_proj.weight": None}, r"got \{'c_attn.weight': \(36, 12\)\}"),
            ({"c_attn.weight": torch.zeros(12, 36)}, r"\(3d, d\).* got .*\(12, 36\)"),
            ({"c_attn.bias": torch.zeros(12)}, r"c_attn.bias \(3d,\).* got .*\(12,\)"),
            ({"q_norm.weight": torch.zeros(3)}, "got .*q_norm.weight"),
        ],
    )
    def test_weights(self, changed: dict[str, Tensor | None], message: str) -> None:
        state = CausalSelfAttention(bias=False).state_dict() | changed
        state = {name: tensor for name, tensor in state.items() if tensor is not None}
        with pytest.raises(ValueError, match=message):
            from_nanogpt(state, N_HEADS)

    @pytest.mark.parametrize("n_heads", [5, 0])
    def test_heads(self, n_heads: int) -> None:
        state = CausalSelfAttention(bias=False).state_dict()
        with pytest.raises(ValueError, match=f"n_heads must divide .* got {n_heads} and 12"):
            from_nanogpt(state, n_heads)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_kv_heads": 2}, r"\(n_kv_heads=2\): nanoGPT needs 4"),
            ({"d_head": 5}, r"\(d_head=5\): nanoGPT needs 3"),
            ({"d_value": 5}, r"\(d_value=5\): nanoGPT needs 3"),
            ({"d_memory": 5}, r"\(d_memory=5\): nanoGPT needs 12"),
            ({"position": ALiBi()}, r"\(position=ALiBi\(.*\): nanoGPT needs None"),
            ({"bias": "qkv"}, r"\(bias='qkv'\): nanoGPT needs"),
        ],
    )
    def test_ours(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_nanogpt(MultiHeadAttention(D_MODEL, N_HEADS, **options))

    @pytest.mark.usefixtures("without_shape_checks")
    def test_what_is_no_state(self) -> None:
        state = CausalSelfAttention(bias=False).state_dict()
        with refused(TypeError, "state must be a Mapping, got a CausalSelfAttention"):
            from_nanogpt(CausalSelfAttention(bias=False), N_HEADS)
        with refused(TypeError, "c_proj.weight must be a Tensor, got a ndarray"):
            from_nanogpt(state | {"c_proj.weight": state["c_proj.weight"].numpy()}, N_HEADS)
        with refused(ValueError, "n_heads must divide the queries' width, got 4 and 12"):
            from_nanogpt(state, "4")

    def test_weights_of_two_types(self) -> None:
        state = CausalSelfAttention(bias=False).state_dict()
        state["c_proj.weight"] = state["c_proj.weight"].half()
        message = "the weights are of different types: torch.float16, torch.float64"
        with refused(ValueError, message):
            from_nanogpt(state, N_HEADS)
