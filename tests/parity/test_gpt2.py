import pytest
import torch
from compare import (
    BATCH,
    CROSS_MASKS,
    DROPOUT,
    KEYS,
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
from torch.nn.utils import prune
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Config

from attnbook import ALiBi, MultiHeadAttention
from attnbook.interop import from_gpt2, to_gpt2

D_MODEL, N_HEADS = 12, 4
DROPOUTS = {"attn_pdrop": DROPOUT, "resid_pdrop": 0.2}
"""On the weights and on the output; the second belongs to our residual connection."""


def attention(*, is_cross_attention: bool = False, **options: object) -> GPT2Attention:
    settings = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "attn_implementation": "eager"} | options
    config = GPT2Config(n_embd=D_MODEL, n_head=N_HEADS, **settings)
    return randomize(GPT2Attention(config, is_cross_attention=is_cross_attention, layer_idx=1))


@pytest.mark.parametrize(
    ("mask", "train", "implementation"), each_pair(MASKS, [True, False], ["eager", "sdpa"])
)
def test_self_attention(mask: str, train: bool, implementation: str) -> None:
    theirs = attention(**DROPOUTS, attn_implementation=implementation).train(train)
    ours, m = from_gpt2(theirs), masks(mask, TOKENS)
    added = m.added(TOKENS, TOKENS, always=True)
    assert_same_function(
        ours,
        theirs,
        lambda x: theirs.resid_dropout(ours(x, **m.ours())),
        lambda x: theirs(x, attention_mask=added)[0],
        [torch.randn(BATCH, TOKENS, D_MODEL)],
        from_gpt2,
        drops=2 if train else 0,
    )


@pytest.mark.parametrize(("implementation", "causal"), [("eager", False), ("sdpa", True)])
def test_without_a_mask_theirs_is_causal_in_one_implementation(
    implementation: str, causal: bool
) -> None:
    theirs, x = attention(attn_implementation=implementation), torch.randn(BATCH, TOKENS, D_MODEL)
    assert_near(from_gpt2(theirs)(x, causal=causal), theirs(x)[0])


@pytest.mark.parametrize(
    ("mask", "train", "implementation"), each_pair(CROSS_MASKS, [True, False], ["eager", "sdpa"])
)
def test_cross_attention(mask: str, train: bool, implementation: str) -> None:
    options = {"is_cross_attention": True, "attn_implementation": implementation}
    theirs = attention(**DROPOUTS, **options).train(train)
    ours, m = from_gpt2(theirs), masks(mask, KEYS)

    def run(x: Tensor, memory: Tensor) -> Tensor:
        added = m.added(TOKENS, KEYS)
        return theirs(x, encoder_hidden_states=memory, encoder_attention_mask=added)[0]

    assert_same_function(
        ours,
        theirs,
        lambda x, memory: theirs.resid_dropout(ours(x, memory, **m.ours())),
        run,
        [torch.randn(BATCH, TOKENS, D_MODEL), torch.randn(BATCH, KEYS, D_MODEL)],
        from_gpt2,
        drops=2 if train else 0,
    )


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_and_back_again(dtype: torch.dtype, cross: bool) -> None:
    theirs = attention(is_cross_attention=cross, attn_pdrop=0.25).to(dtype).eval()
    fresh = attention(is_cross_attention=cross).to(dtype)
    ours = from_gpt2(theirs)
    fresh.load_state_dict(to_gpt2(ours, cross_attention=cross))
    assert_equal_parameters(fresh, theirs)
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(to_gpt2(ours, cross_attention=cross).values(), ours.parameters())
    assert (ours.dropout, ours.training) == (0.25, False)


@pytest.mark.parametrize("bias", [False, "qkv", "output"])
def test_zeros_stand_where_ours_has_no_biases(bias: bool | str) -> None:
    ours = randomize(MultiHeadAttention(D_MODEL, N_HEADS, bias=bias))
    theirs, x = attention(), torch.randn(BATCH, TOKENS, D_MODEL)
    theirs.load_state_dict(to_gpt2(ours))
    assert_near(theirs(x)[0], ours(x))


class TestRefused:
    @pytest.mark.parametrize(
        "options",
        [
            {"scale_attn_weights": False},
            {"scale_attn_by_inverse_layer_idx": True},
            {"reorder_and_upcast_attn": True},
        ],
    )
    def test_options(self, options: dict[str, bool]) -> None:
        ((name, value),) = options.items()
        with pytest.raises(ValueError, match=rf"GPT2Attention\({name}={value}\): "):
            from_gpt2(attention(**options))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_kv_heads": 2}, r"\(n_kv_heads=2\): GPT2Attention needs 4"),
            ({"d_head": 5}, r"\(d_head=5\): GPT2Attention needs 3"),
            ({"d_value": 5}, r"\(d_value=5\): GPT2Attention needs 3"),
            ({"d_memory": 5}, r"\(d_memory=5\): GPT2Attention needs 12"),
            ({"position": ALiBi()}, r"\(position=ALiBi\(.*\): GPT2Attention needs None"),
        ],
    )
    def test_ours(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_gpt2(MultiHeadAttention(D_MODEL, N_HEADS, **options))

    def test_scale(self) -> None:
        theirs = attention()
        theirs.scaling = 1.0
        with pytest.raises(
            ValueError, match=r"GPT2Attention\(scaling=1.0\): our logits are scaled"
        ):
            from_gpt2(theirs)

    def test_parts_that_were_changed(self) -> None:
        theirs = attention()
        prune.random_unstructured(theirs.c_attn, "bias", amount=1)
        with pytest.raises(ValueError, match=r"has not: c_attn\.bias_mask, c_attn\.bias_orig"):
            from_gpt2(theirs)
        theirs = attention()
        theirs.c_proj = nn.Linear(D_MODEL, D_MODEL)  # the other way round
        with pytest.raises(TypeError, match="expected Conv1D of transformers, got"):
            from_gpt2(theirs)

    def test_heads_that_do_not_add_up(self) -> None:
        theirs = attention()
        theirs.head_dim, theirs.scaling = 6, 6**-0.5
        with pytest.raises(ValueError, match=r"\(head_dim=6\): our heads' widths add up"):
            from_gpt2(theirs)

    def test_another_dropout(self) -> None:
        theirs = attention()
        theirs.attn_dropout = nn.Identity()
        with pytest.raises(ValueError, match=r"attn_dropout must be of class Dropout, got Identi"):
            from_gpt2(theirs)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_something_else(self) -> None:
        with pytest.raises(TypeError, match="expected GPT2Attention of transformers, got torch"):
            from_gpt2(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="expected MultiHeadAttention of attnbook, got Linear"):
            to_gpt2(nn.Linear(2, 2))
