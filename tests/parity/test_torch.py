import functools

import pytest
import torch
import torch.nn.functional as F
from compare import (
    BATCH,
    CROSS_MASKS,
    DROPOUT,
    KEYS,
    MASKS,
    TOKENS,
    SameDropout,
    assert_copied,
    assert_equal_parameters,
    assert_near,
    assert_same_function,
    each_pair,
    masks,
    randomize,
)
from torch import Tensor, nn
from torch.ao.nn import quantizable
from torch.nn.utils import parametrize, prune

from attnbook import ALiBi, DecoderBlock, EncoderBlock, MultiHeadAttention, causal_mask
from attnbook.blocks import Residual
from attnbook.interop import from_torch, to_torch

D_MODEL, N_HEADS, D_FF = 12, 4, 11  # heads are 3 wide

Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def blocked(mask: Tensor | None) -> Tensor | None:
    """torch's boolean masks say who may *not* attend."""
    return None if mask is None else ~mask


def attention(**options: object) -> nn.MultiheadAttention:
    settings = {"dropout": DROPOUT, "batch_first": True} | options
    return randomize(nn.MultiheadAttention(D_MODEL, N_HEADS, **settings))


def layer(kind: type[Layer], **options: object) -> Layer:
    settings = {"dropout": DROPOUT, "layer_norm_eps": 1e-3, "batch_first": True} | options
    return randomize(kind(D_MODEL, N_HEADS, D_FF, **settings))


@pytest.mark.parametrize(("mask", "bias", "train"), each_pair(MASKS, [True, False], [True, False]))
def test_self_attention(mask: str, bias: bool, train: bool) -> None:
    theirs = attention(bias=bias).train(train)
    ours, m = from_torch(theirs), masks(mask, TOKENS)

    def run(x: Tensor) -> Tensor:
        attended, _ = theirs(
            x,
            x,
            x,
            attn_mask=blocked(m.per_query(TOKENS, TOKENS)),
            key_padding_mask=blocked(m.padding),
            need_weights=False,
        )
        return attended

    x = torch.randn(BATCH, TOKENS, D_MODEL)
    assert_same_function(
        ours, theirs, lambda x: ours(x, **m.ours()), run, [x], from_torch, drops=int(train)
    )
    if not train:  # without gradients, torch takes another path
        with torch.no_grad():
            assert_near(ours(x, **m.ours()), run(x))


@pytest.mark.parametrize(
    ("mask", "d_memory", "bias", "train"),
    each_pair(CROSS_MASKS, [D_MODEL, 10], [True, False], [True, False]),
)
def test_cross_attention_and_weights(mask: str, d_memory: int, bias: bool, train: bool) -> None:
    theirs = attention(kdim=d_memory, vdim=d_memory, bias=bias).train(train)
    ours, m = from_torch(theirs), masks(mask, KEYS)

    def run(x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return theirs(
            x,
            memory,
            memory,
            attn_mask=blocked(m.pattern),
            key_padding_mask=blocked(m.padding),
            average_attn_weights=False,
        )

    x, memory = torch.randn(BATCH, TOKENS, D_MODEL), torch.randn(BATCH, KEYS, d_memory)
    assert_same_function(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, **m.ours()),
        lambda x, memory: run(x, memory)[0],
        [x, memory],
        from_torch,
        drops=int(train),
    )
    with SameDropout():
        output_and_weights = ours(x, memory, **m.ours(), return_weights=True)
    with SameDropout():
        expected = run(x, memory)
    for a, b in zip(output_and_weights, expected, strict=True):
        assert_near(a, b)


@pytest.mark.parametrize(
    ("bias", "mask", "norm_first", "activation", "train"),
    each_pair([True, False], MASKS, [True, False], ["relu", "gelu"], [True, False]),
)
def test_encoder_layer(
    bias: bool, mask: str, norm_first: bool, activation: str, train: bool
) -> None:
    options = {"norm_first": norm_first, "activation": activation, "bias": bias}
    theirs = layer(nn.TransformerEncoderLayer, **options).train(train)
    ours, m = from_torch(theirs), masks(mask, TOKENS)
    assert isinstance(ours, EncoderBlock)

    def run(x: Tensor) -> Tensor:
        mask = blocked(m.per_query(TOKENS, TOKENS))
        return theirs(x, src_mask=mask, src_key_padding_mask=blocked(m.padding))

    x = torch.randn(BATCH, TOKENS, D_MODEL)
    drops = 4 if train else 0  # weights, what the attention adds, inner values, what is added
    assert_same_function(
        ours, theirs, lambda x: ours(x, **m.ours()), run, [x], from_torch, drops=drops
    )
    if not train:  # without gradients, torch takes another path
        with torch.no_grad():
            assert_near(ours(x, **m.ours()), run(x))


@pytest.mark.parametrize(
    ("bias", "memory_mask", "mask", "norm_first", "activation", "train"),
    each_pair(
        *([True, False], CROSS_MASKS, ["none", "padding"]),
        *([True, False], ["relu", "gelu"], [True, False]),
    ),
)
def test_decoder_layer(
    bias: bool, memory_mask: str, mask: str, norm_first: bool, activation: str, train: bool
) -> None:
    options = {"norm_first": norm_first, "activation": activation, "bias": bias}
    theirs = layer(nn.TransformerDecoderLayer, **options).train(train)
    ours = from_torch(theirs)
    assert isinstance(ours, DecoderBlock)
    own, cross = masks(f"{mask} and causal", TOKENS), masks(memory_mask, KEYS)
    assert_same_function(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, own.ours()["mask"], cross.ours()["mask"]),
        lambda x, memory: theirs(
            x,
            memory,
            tgt_mask=blocked(own.per_query(TOKENS, TOKENS)),
            memory_mask=blocked(cross.pattern),
            tgt_key_padding_mask=blocked(own.padding),
            memory_key_padding_mask=blocked(cross.padding),
        ),
        [torch.randn(BATCH, TOKENS, D_MODEL), torch.randn(BATCH, KEYS, D_MODEL)],
        from_torch,
        drops=6 if train else 0,
    )


@pytest.mark.parametrize(
    "theirs",
    [
        lambda: attention().eval(),
        lambda: attention(bias=False),
        lambda: attention(kdim=10, vdim=10),
        lambda: attention(kdim=10, vdim=10, bias=False),
        lambda: layer(nn.TransformerEncoderLayer, norm_first=True),
        lambda: layer(nn.TransformerEncoderLayer, activation="gelu"),
        lambda: layer(nn.TransformerEncoderLayer, bias=False),
        lambda: layer(nn.TransformerDecoderLayer, bias=False, norm_first=True),
        lambda: layer(nn.TransformerDecoderLayer, norm_first=True),
        lambda: layer(nn.TransformerDecoderLayer, activation="gelu"),
        lambda: layer(nn.TransformerDecoderLayer, dtype=torch.float32).eval(),
    ],
)
def test_there_and_back_again(theirs: object) -> None:
    theirs = theirs()
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert type(back) is type(theirs)
    assert_equal_parameters(back, theirs)
    assert ours.training == theirs.training == back.training
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(back.parameters(), ours.parameters())
    memory = (
        []
        if isinstance(theirs, nn.TransformerEncoderLayer)
        else [torch.randn(BATCH, KEYS, getattr(theirs, "kdim", D_MODEL))]
    )
    memory *= 2 if isinstance(theirs, nn.MultiheadAttention) else 1
    x, *memory = (
        t.to(next(theirs.parameters()).dtype)
        for t in [torch.randn(BATCH, TOKENS, D_MODEL), *memory]
    )
    with SameDropout():
        expected = theirs(x, *memory)
    with SameDropout():
        output = back(x, *memory)
    for a, b in zip(output, expected, strict=True):
        assert_near(a, b)


def test_batch_first_is_no_part_of_the_function() -> None:
    theirs = randomize(nn.MultiheadAttention(D_MODEL, N_HEADS))
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    y = x.transpose(0, 1)
    assert_near(from_torch(theirs)(x), theirs(y, y, y)[0].transpose(0, 1))


def test_each_dropout_and_each_eps_goes_with_its_part() -> None:
    theirs = layer(nn.TransformerDecoderLayer)
    theirs.self_attn.dropout, theirs.multihead_attn.dropout = 0.1, 0.15
    for i, name in enumerate(["dropout", "dropout1", "dropout2", "dropout3"]):
        getattr(theirs, name).p = 0.2 + i / 10
    for i, name in enumerate(["norm1", "norm2", "norm3"]):
        getattr(theirs, name).eps = 10.0 ** -(i + 2)
    ours = from_torch(theirs)
    assert (ours.attention.dropout, ours.cross_attention.dropout) == (0.1, 0.15)
    assert ours.feed_forward.dropout == 0.2
    residuals = ours.attention_residual, ours.cross_attention_residual, ours.feed_forward_residual
    assert [r.dropout for r in residuals] == pytest.approx([0.3, 0.4, 0.5])
    assert [r.norm.eps for r in residuals] == [1e-2, 1e-3, 1e-4]
    assert str(to_torch(ours)) == str(theirs)
    assert to_torch(ours).multihead_attn.dropout == 0.15
    ahead = blocked(causal_mask(TOKENS))
    assert_same_function(
        ours,
        theirs,
        ours,
        lambda x, memory: theirs(x, memory, tgt_mask=ahead),
        [torch.randn(BATCH, TOKENS, D_MODEL), torch.randn(BATCH, KEYS, D_MODEL)],
        from_torch,
        drops=6,
    )


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (F.relu, "relu"),
        (torch.relu, "relu"),
        (nn.ReLU(), "relu"),
        (F.gelu, "gelu"),
        (nn.GELU(), "gelu"),
    ],
)
def test_an_activation_is_a_name_a_function_or_a_module(given: object, ours: str) -> None:
    theirs = layer(nn.TransformerEncoderLayer, activation=given)
    assert from_torch(theirs).feed_forward.activation == ours


def test_zeros_stand_where_torchs_layers_insist_on_biases() -> None:
    ours = randomize(EncoderBlock(D_MODEL, N_HEADS, D_FF))
    theirs, x = to_torch(ours), torch.randn(BATCH, TOKENS, D_MODEL)
    assert not theirs.self_attn.in_proj_bias.any()
    assert not theirs.self_attn.out_proj.bias.any()
    assert_near(theirs(x), ours(x))


def test_conversion_draws_no_random_numbers() -> None:
    theirs = layer(nn.TransformerDecoderLayer)
    before = torch.get_rng_state()
    to_torch(from_torch(theirs))
    assert torch.equal(torch.get_rng_state(), before)


def pruned(module: nn.Module, name: str) -> nn.Module:
    """What it computes with is no parameter any more."""
    prune.random_unstructured(module.get_submodule(name), "bias", amount=1)
    return module


def parametrized(module: nn.Module, name: str) -> nn.Module:
    parametrize.register_parametrization(module.get_submodule(name), "weight", nn.Tanh())
    return module


def replaced(module: nn.Module, name: str, part: nn.Module) -> nn.Module:
    module.set_submodule(name, part)
    return module


def encoder_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(D_MODEL, N_HEADS, D_FF)


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
@pytest.mark.parametrize("whole", [True, False])
def test_each_part_trains_or_evaluates_as_it_did(kind: type[Layer], whole: bool) -> None:
    theirs = layer(kind, dropout=0.5).train(whole)
    theirs.dropout1.train(not whole)
    theirs.self_attn.train(not whole)
    ours = from_torch(theirs)
    assert [ours.training, ours.feed_forward.training] == [whole, whole]
    assert [ours.attention.training, ours.attention_residual.training] == [not whole, not whole]
    assert ours.feed_forward_residual.training is whole
    again = to_torch(ours)
    for name in ("", "self_attn", "dropout", "dropout1", "dropout2"):
        assert again.get_submodule(name).training is theirs.get_submodule(name).training, name


def test_dropout_that_goes_on_in_evaluation_goes_on_in_ours() -> None:
    theirs = layer(nn.TransformerEncoderLayer, dropout=0.5).eval()
    for part in (theirs.dropout, theirs.dropout1, theirs.dropout2):
        part.train()
    ours, x = from_torch(theirs), torch.randn(BATCH, TOKENS, D_MODEL)
    assert_same_function(ours, theirs, ours, theirs, [x], from_torch, drops=3)


class TestRefused:
    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (pruned(nn.MultiheadAttention(4, 2), "out_proj"), r"has not: out_proj\.bias_mask, out"),
            (parametrized(nn.MultiheadAttention(4, 2), "out_proj"), r"out_proj\.parametrizations"),
            (
                pruned(encoder_layer(), "linear1"),
                r"linear1 holds what .* has not: bias_mask, bias_orig",
            ),
            (pruned(encoder_layer(), "self_attn.out_proj"), r"has not: out_proj\.bias_mask"),
            (
                replaced(encoder_layer(), "norm1", nn.RMSNorm(D_MODEL)),
                r"norm1 must be of class LayerNorm",
            ),
            (
                replaced(encoder_layer(), "linear2", nn.Identity()),
                "linear2 must be of class Linear, got",
            ),
            (
                replaced(encoder_layer(), "dropout1", nn.Identity()),
                "dropout1 must be of class Dropout, got",
            ),
            (
                replaced(encoder_layer(), "norm1", nn.LayerNorm(D_MODEL, bias=False)),
                r"TransformerEncoderLayer\.norm1 has no bias",
            ),
            (
                replaced(encoder_layer(), "adapter", nn.Linear(2, 2)),
                r"has not: adapter\.bias, adapter\.w",
            ),
        ],
    )
    def test_parts_that_were_changed(self, module: nn.Module, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            from_torch(module)

    @pytest.mark.parametrize("name", ["output", "query"])
    def test_ours_with_a_part_that_was_changed(self, name: str) -> None:
        ours = EncoderBlock(D_MODEL, N_HEADS, D_FF, bias=True)
        pruned(ours.attention, name)
        with pytest.raises(ValueError, match=rf"has not: {name}\.bias_mask, {name}\.bias_orig"):
            to_torch(ours.attention)
        with pytest.raises(ValueError, match=rf"has not: {name}\.bias_mask, {name}\.bias_orig"):
            to_torch(ours)
        ours = pruned(EncoderBlock(D_MODEL, N_HEADS, D_FF), "feed_forward.outer")
        with pytest.raises(ValueError, match=r"has not: bias_mask, bias_orig"):
            to_torch(ours)

    @pytest.mark.parametrize(
        ("name", "part", "kind"),
        [
            ("attention.query", nn.Sequential(nn.Linear(D_MODEL, D_MODEL)), "Linear"),
            ("feed_forward.inner", nn.Sequential(nn.Linear(D_MODEL, D_FF)), "Linear"),
            ("feed_forward_residual.norm", nn.RMSNorm(D_MODEL), "LayerNorm"),
            ("feed_forward", nn.Identity(), "FeedForward"),
        ],
    )
    def test_ours_with_a_part_that_was_replaced(
        self, name: str, part: nn.Module, kind: str
    ) -> None:
        ours = EncoderBlock(D_MODEL, N_HEADS, D_FF)
        if name == "feed_forward":
            part.activation = "relu"
        ours.set_submodule(name, part)
        with pytest.raises(ValueError, match=rf"{name.split('.')[-1]} must be of class {kind}"):
            to_torch(ours)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_derived_classes(self) -> None:
        class Attention(MultiHeadAttention):
            pass

        class Activation(nn.ReLU):
            pass

        with pytest.raises(TypeError, match=r"expected MultiHeadAttention, .* got .*Attention"):
            to_torch(Attention(4, 2))
        with pytest.raises(ValueError, match=r"activation=Activation\(\)\): it must be ReLU or"):
            from_torch(nn.TransformerEncoderLayer(4, 2, 8, activation=Activation()))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"add_bias_kv": True}, r"nn.MultiheadAttention\(add_bias_kv=True\)"),
            ({"add_zero_attn": True}, r"nn.MultiheadAttention\(add_zero_attn=True\)"),
            ({"kdim": 10, "vdim": 7}, r"nn.MultiheadAttention\(vdim=7\): .* kdim=10"),
            ({"vdim": 7}, r"nn.MultiheadAttention\(vdim=7\): .* kdim=12"),
        ],
    )
    def test_attention(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            from_torch(attention(**options))

    @pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"activation": torch.tanh}, r"\(activation=<.*tanh.*>\): it must be ReLU or"),
            ({"activation": nn.GELU("tanh")}, r"\(activation=GELU\(approximate='tanh'\)\)"),
            (
                {"activation": functools.partial(F.gelu, approximate="tanh")},
                r"\(activation=functools.partial",
            ),
        ],
    )
    def test_layer(self, kind: type[Layer], options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=rf"nn.{kind.__name__}{message}"):
            from_torch(layer(kind, **options))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_kv_heads": 2}, r"n_kv_heads=2\): nn.MultiheadAttention needs 4"),
            ({"d_head": 5}, r"d_head=5\): nn.MultiheadAttention needs 3"),
            ({"d_value": 5}, r"d_value=5\): nn.MultiheadAttention needs 3"),
            ({"position": ALiBi()}, r"position=ALiBi\(bidirectional=False\)\): .* needs None"),
            ({"bias": "qkv"}, r"bias='qkv'\): nn.MultiheadAttention needs"),
            ({"bias": "output"}, r"bias='output'\): nn.MultiheadAttention needs"),
        ],
    )
    def test_our_attention(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=rf"MultiHeadAttention\({message}"):
            to_torch(MultiHeadAttention(D_MODEL, N_HEADS, **options))

    @pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"norm": "none"}, r"Block\(norm='none'\): nn.Transformer.*Layer has pre or post"),
            ({"residual_scale": 2.0}, r"Block\(residual_scale=2.0\): nn.*does not scale"),
            ({"norm_bias": False}, r"Block\(norm_bias=False\): nn.*Layer has them"),
            ({"feed_forward_bias": False}, r"Block\(feed_forward_bias=False\): nn.* has them"),
            ({"activation": "gelu_tanh"}, r"Block\(activation='gelu_tanh'\): .* relu or gelu"),
            ({"n_kv_heads": 1}, r"MultiHeadAttention\(n_kv_heads=1\): nn.Transformer.*needs 4"),
            ({"position": ALiBi()}, r"MultiHeadAttention\(position=ALiBi"),
        ],
    )
    def test_our_block(
        self, kind: type[EncoderBlock | DecoderBlock], options: dict[str, object], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            to_torch(kind(D_MODEL, N_HEADS, D_FF, **options))

    def test_memory_of_another_width_in_a_layer(self) -> None:
        with pytest.raises(ValueError, match=r"\(d_memory=10\): nn.TransformerDecoderLayer needs"):
            to_torch(DecoderBlock(D_MODEL, N_HEADS, D_FF, d_memory=10))

    @pytest.mark.parametrize("part", ["query", "key", "value"])
    def test_a_bias_on_one_projection(self, part: str) -> None:
        ours = MultiHeadAttention(D_MODEL, N_HEADS)
        ours.get_submodule(part).bias = nn.Parameter(torch.ones(D_MODEL))
        with pytest.raises(ValueError, match=rf"bias='{part}'\): nn.MultiheadAttention needs Fal"):
            to_torch(ours)
        ours = MultiHeadAttention(D_MODEL, N_HEADS, bias=True)
        ours.get_submodule(part).bias = None
        with pytest.raises(ValueError, match=r"bias='\w+ and \w+ and output'\): nn.Multi.* needs"):
            to_torch(ours)

    @pytest.mark.parametrize(
        ("kind", "part"),
        [
            (EncoderBlock, "feed_forward_residual"),
            (DecoderBlock, "cross_attention_residual"),
            (DecoderBlock, "feed_forward_residual"),
        ],
    )
    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_norms_in_different_places(
        self, kind: type[EncoderBlock | DecoderBlock], part: str, norm: str
    ) -> None:
        ours = kind(D_MODEL, N_HEADS, D_FF, norm="pre" if norm == "post" else "post")
        ours.set_submodule(part, Residual(D_MODEL, norm=norm))
        with pytest.raises(ValueError, match=rf"{part}\(norm='{norm}'\): .* has all in one place"):
            to_torch(ours)

    def test_a_norm_of_another_shape(self) -> None:
        theirs = replaced(encoder_layer(), "norm1", nn.LayerNorm((TOKENS, D_MODEL)))
        with pytest.raises(
            ValueError, match=r"norm1 has \{'weight': \(5, 12\), .* side \{'weight'"
        ):
            from_torch(theirs)

    def test_another_activation_than_in_the_fast_path(self) -> None:
        theirs = encoder_layer()  # made with ReLU
        theirs.activation = F.gelu
        with pytest.raises(
            ValueError, match=r"activation=<.*gelu.*>\): .* in the fast path the same"
        ):
            from_torch(theirs)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_something_else(self) -> None:
        class Derived(nn.MultiheadAttention):
            pass

        message = (
            "expected MultiheadAttention, TransformerEncoderLayer or .* of torch.nn.modules, got"
        )
        with pytest.raises(TypeError, match=f"{message} torch.nn.modules.linear.Linear"):
            from_torch(nn.Linear(2, 2))
        with pytest.raises(TypeError, match=f"{message} .*Derived"):
            from_torch(Derived(4, 2))
        with pytest.raises(TypeError, match=f"{message} torch.ao.nn.quantizable"):
            from_torch(quantizable.MultiheadAttention(4, 2))
        layer = nn.TransformerDecoderLayer(4, 2, 8)
        layer.multihead_attn = Derived(4, 2)
        with pytest.raises(TypeError, match=r"expected MultiheadAttention of .*Derived"):
            from_torch(layer)
        message = (
            "expected MultiHeadAttention, EncoderBlock or DecoderBlock of attnbook, got Linear"
        )
        with pytest.raises(TypeError, match=message):
            to_torch(nn.Linear(2, 2))
