import functools
import inspect

import pytest
import torch
import torch.nn.functional as F
from compare import (
    BATCH,
    CROSS_MASKS,
    DROPOUT,
    EXACT,
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
from x_transformers.x_transformers import Attention

from attnbook import MultiHeadAttention, Rotary
from attnbook.interop import from_x_transformers, to_x_transformers

DIM, HEADS, KV_HEADS, DIM_HEAD, DIM_VALUE, DIM_CONTEXT = 18, 6, 2, 4, 5, 10
ATOL = {True: EXACT, False: 1e-5}
"""By ``flash``: without it, the softmax runs in float32 whatever the type."""

DROPOUTS = {HEADS: DROPOUT, KV_HEADS: 0.0, 1: DROPOUT}
"""By the number of key heads: in groups, theirs have another order, and others would drop."""

REFUSED = {
    "pre_talking_heads": True,
    "post_talking_heads": True,
    "pre_scale_post_talking_heads": True,
    "head_scale": True,
    "sparse_topk": 2,
    "num_mem_kv": 3,
    "sublayer_dropout": 0.1,
    "on_attn": True,
    "gate_value_heads": True,
    "gate_values": True,
    "output_gate": True,
    "hard": True,
    "max_attend_past": 0,
    "qk_norm": True,
    "qk_rmsnorm": True,
    "k_rmsnorm": True,
    "value_rmsnorm": True,
    "l2_distance": True,
    "sigmoid": True,
    "gumbel_softmax": True,
    "selective": True,
    "cog_signed": True,
    "custom_attn_fn": torch.relu,
    "hybrid_module": nn.Linear(DIM, HEADS * DIM_HEAD),
    "dim_out": 5,
    "add_zero_kv": True,
    "head_learned_sink": True,
    "rotate_num_heads": 3,
    "data_dependent_alibi": True,
    "use_rel_proj_pos_bias": True,
    "use_cope": True,
    "softclamp_logits": True,
    "learned_value_residual_mix": True,
    "orthog_projected_values": True,
    "orthog_projected_values_per_head": True,
    "laser": True,
    "qkv_receive_diff_residuals": True,
    "project_out": False,
    "use_latent_q": True,
    "use_latent_kv": True,
    "latent_rope_subheads": 2,
    "inverted_attention": True,
}
NEEDS = {
    "selective": {"causal": True},
    "use_cope": {"causal": True},
    "data_dependent_alibi": {"causal": True},
    "use_latent_q": {"dim_latent_q": 8},
    "use_latent_kv": {"dim_latent_kv": 8},
}
WITHOUT_EFFECT_ALONE = {
    "sparse_topk_straight_through": True,
    "swiglu_values": True,
    "gate_values_rank": 2,
    "gate_values_headwise": False,
    "output_gate_rank": 2,
    "output_gate_headwise": True,
    "low_rank_silu_gates": False,
    "qk_norm_groups": 2,
    "qk_norm_scale": 3,
    "qk_norm_dim_scale": True,
    "gumbel_softmax_temp": 2.0,
    "gumbel_softmax_hard": False,
    "hybrid_mask_kwarg": "mask",
    "hybrid_fold_axial_dim": 2,
    "hybrid_learned_mix": True,
    "data_dependent_alibi_per_row": True,
    "data_dependent_alibi_per_row_dim_head": 4,
    "data_dependent_alibi_kwargs": {},
    "rel_proj_num_distance_basis": 4,
    "rel_proj_max_dist": 8,
    "cope_max_pos": 4,
    "cope_soft_onehot_pos": True,
    "cope_talking_heads": True,
    "logit_softclamp_value": 5.0,
    "laser_softclamp_value": 5.0,
    "dim_latent_q": 8,
    "dim_latent_kv": 8,
    # initialization and speed
    "zero_init_output": True,
    "output_proj_depth": 3,
    "onnxable": True,
    "attend_sdp_kwargs": {"enable_math": True},
}
ELSEWHERE = {  # in the tests below
    "dim",
    "dim_head",
    "dim_context",
    "heads",
    "causal",
    "flash",
    "flash_pack_seq",
    "dropout",
    "one_kv_head",
    "kv_heads",
    "value_dim_head",
}


def attention(**options: object) -> Attention:
    settings = {"heads": HEADS, "dim_head": DIM_HEAD} | options
    return randomize(Attention(DIM, **settings))


@pytest.mark.parametrize(
    ("mask", "heads", "flash", "train"),
    each_pair(
        MASKS, [{}, {"kv_heads": KV_HEADS}, {"one_kv_head": True}], [True, False], [True, False]
    ),
)
def test_self_attention(mask: str, heads: dict[str, object], flash: bool, train: bool) -> None:
    m, dropout = masks(mask, TOKENS), DROPOUTS[heads.get("kv_heads", HEADS)]
    theirs = attention(**heads, causal=m.causal, flash=flash, dropout=dropout).train(train)
    ours = from_x_transformers(theirs)
    assert_same_function(
        ours,
        theirs,
        lambda x: ours(x, **m.ours()),
        # ``mask`` would put zeros in the place of the padding's own outputs
        lambda x: theirs(x, context_mask=m.padding),
        [torch.randn(BATCH, TOKENS, DIM)],
        from_x_transformers,
        ATOL[flash],
        drops=int(train and dropout > 0),
    )


@pytest.mark.parametrize(
    ("mask", "kv_heads", "flash", "train"),
    each_pair(CROSS_MASKS, [HEADS, KV_HEADS, 1], [True, False], [True, False]),
)
def test_cross_attention(mask: str, kv_heads: int, flash: bool, train: bool) -> None:
    dropout, sizes = DROPOUTS[kv_heads], {"dim_context": DIM_CONTEXT, "value_dim_head": DIM_VALUE}
    theirs = attention(kv_heads=kv_heads, flash=flash, dropout=dropout, **sizes).train(train)
    ours, m = from_x_transformers(theirs), masks(mask, KEYS)

    def run(x: Tensor, memory: Tensor) -> Tensor:
        return theirs(x, memory, context_mask=m.padding, attn_mask=m.pattern)

    assert_same_function(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, **m.ours()),
        run,
        [torch.randn(BATCH, TOKENS, DIM), torch.randn(BATCH, KEYS, DIM_CONTEXT)],
        from_x_transformers,
        ATOL[flash],
        drops=int(train and dropout > 0),
    )


@pytest.mark.parametrize("kv_heads", [HEADS, 3, KV_HEADS, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_and_back_again(dtype: torch.dtype, kv_heads: int) -> None:
    options = {"kv_heads": kv_heads, "dim_context": DIM_CONTEXT, "value_dim_head": DIM_VALUE}
    theirs, fresh = (attention(**options, dropout=0.25).to(dtype) for _ in range(2))
    ours = from_x_transformers(theirs.eval())
    fresh.load_state_dict(to_x_transformers(ours))
    assert_equal_parameters(fresh, theirs)
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(to_x_transformers(ours).values(), ours.parameters())
    assert (ours.dropout, ours.training) == (0.25, False)


def test_the_default_device_does_not_matter() -> None:
    theirs = attention(kv_heads=KV_HEADS)
    with torch.device("meta"):
        ours = from_x_transformers(theirs)
        state = to_x_transformers(ours)
    assert_equal_parameters(ours, from_x_transformers(theirs))
    assert torch.equal(state["to_q.weight"], theirs.to_q.weight)


def test_every_option_is_either_refused_or_tested() -> None:
    options = set(inspect.signature(Attention).parameters)
    assert options == REFUSED.keys() | WITHOUT_EFFECT_ALONE.keys() | ELSEWHERE


@pytest.mark.parametrize("option", WITHOUT_EFFECT_ALONE)
def test_options_without_effect(option: str) -> None:
    theirs = attention(**{option: WITHOUT_EFFECT_ALONE[option]})
    x = torch.randn(BATCH, TOKENS, DIM)
    assert_near(from_x_transformers(theirs)(x), theirs(x), ATOL[False])


def test_biases_that_were_added_go_with_their_heads() -> None:
    theirs = attention(kv_heads=KV_HEADS, flash=True)
    for name in ("to_q", "to_k", "to_v"):
        width = getattr(theirs, name).out_features
        setattr(theirs, name, randomize(nn.Linear(DIM, width)))
    x = torch.randn(BATCH, TOKENS, DIM)
    assert_near(from_x_transformers(theirs)(x), theirs(x))


@pytest.mark.parametrize("whole", [True, False])
def test_it_trains_if_what_drops_does(whole: bool) -> None:
    theirs = attention(dropout=0.5).train(whole)
    theirs.attend.train(not whole)
    assert from_x_transformers(theirs).training is not whole


class TestRefused:
    @pytest.mark.parametrize("option", REFUSED)
    def test_options(self, option: str) -> None:
        theirs = attention(**{option: REFUSED[option]}, **NEEDS.get(option, {}))
        with pytest.raises(ValueError, match=rf"x_transformers.Attention\({option}=.+\): .*our"):
            from_x_transformers(theirs)

    def test_softmax_over_the_queries(self) -> None:
        theirs = attention(custom_attn_fn=functools.partial(torch.softmax, dim=-2))
        with pytest.raises(ValueError, match=r"\(custom_attn_fn=softmax\): "):
            from_x_transformers(theirs)
        theirs = attention(custom_attn_fn=nn.functional.softmax)  # over which axis?
        with pytest.raises(ValueError, match=r"\(custom_attn_fn=softmax\): "):
            from_x_transformers(theirs)
        theirs = attention(custom_attn_fn=functools.partial(nn.functional.softmax, dim=-2))
        with pytest.raises(ValueError, match=r"\(custom_attn_fn=softmax\): "):
            from_x_transformers(theirs)

    def test_packed_sequences(self) -> None:
        theirs = attention(flash=True)
        theirs.attend.flash_pack_seq = True  # as if flash-attn were installed
        with pytest.raises(ValueError, match=r"\(flash_pack_seq=True\)"):
            from_x_transformers(theirs)

    def test_parameters_of_a_later_version(self) -> None:
        theirs = attention()
        theirs.to_r = nn.Linear(DIM, 3)
        with pytest.raises(ValueError, match=r"other side has not: to_r\.bias, to_r\.weight"):
            from_x_transformers(theirs)

    def test_scale(self) -> None:
        theirs = attention()
        theirs.attend.scale = 1.0
        with pytest.raises(ValueError, match=r"\(scale=1.0\): our logits are scaled by 1/sqrt"):
            from_x_transformers(theirs)

    def test_parts_that_were_replaced(self) -> None:
        theirs = attention()
        theirs.to_q = nn.Sequential(theirs.to_q)
        with pytest.raises(ValueError, match=r"other side has not: to_q\.0\.weight"):
            from_x_transformers(theirs)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"bias": True}, r"\(bias=True\): x_transformers.Attention needs False"),
            ({"bias": "output"}, r"\(bias='output'\): x_transformers.Attention needs False"),
            ({"d_head": 4, "position": Rotary()}, r"\(position=Rotary\(.*Attention needs None"),
        ],
    )
    def test_ours(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_x_transformers(MultiHeadAttention(DIM, HEADS, **options))

    def test_a_softmax_of_another_type(self) -> None:
        theirs = attention(custom_attn_fn=functools.partial(F.softmax, dim=-1, dtype=torch.half))
        with pytest.raises(ValueError, match=r"\(custom_attn_fn=softmax\): our weights are"):
            from_x_transformers(theirs)

    def test_two_dropouts(self) -> None:
        theirs = attention(dropout=0.5)
        theirs.attend.attn_dropout.p = 0.0
        with pytest.raises(ValueError, match=r"\(attn_dropout=0.0\): the fused path takes 0.5"):
            from_x_transformers(theirs)

    @pytest.mark.parametrize("part", ["key", "value"])
    def test_a_bias_on_one_projection(self, part: str) -> None:
        ours = MultiHeadAttention(DIM, HEADS, d_head=4)
        ours.get_submodule(part).bias = nn.Parameter(torch.ones(4 * HEADS))
        with pytest.raises(ValueError, match=rf"bias='{part}'\): x_transformers.* needs False"):
            to_x_transformers(ours)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_something_else(self) -> None:
        with pytest.raises(TypeError, match="expected Attention of x_transformers, got torch"):
            from_x_transformers(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="expected MultiHeadAttention of attnbook, got Linear"):
            to_x_transformers(nn.Linear(2, 2))
