import pytest
import torch
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
from torch.nn.utils import prune
from transformers.models.bert.modeling_bert import BertAttention, BertConfig, BertLayer

from attnbook import ALiBi, EncoderBlock, MultiHeadAttention
from attnbook.interop import from_bert, to_bert

D_MODEL, N_HEADS, D_FF = 12, 4, 11


def config(**options: object) -> BertConfig:
    settings = {"attention_probs_dropout_prob": DROPOUT, "hidden_dropout_prob": 0.2}
    settings |= {"attn_implementation": "eager", "layer_norm_eps": 1e-3} | options
    return BertConfig(
        hidden_size=D_MODEL, num_attention_heads=N_HEADS, intermediate_size=D_FF, **settings
    )


def attention(*, is_cross_attention: bool = False, **options: object) -> BertAttention:
    return randomize(BertAttention(config(**options), is_cross_attention=is_cross_attention))


def layer(**options: object) -> BertLayer:
    return randomize(BertLayer(config(**options)))


@pytest.mark.parametrize(
    ("mask", "implementation", "train"), each_pair(MASKS, ["eager", "sdpa"], [True, False])
)
def test_self_attention(mask: str, implementation: str, train: bool) -> None:
    theirs = attention(attn_implementation=implementation).train(train)
    ours, m = from_bert(theirs), masks(mask, TOKENS)

    def run(x: Tensor) -> Tensor:  # all of BertAttention but the dropout, the sum and the norm
        heads, _ = theirs.self(x, m.added(TOKENS, TOKENS))
        return theirs.output.dense(heads)

    x = torch.randn(BATCH, TOKENS, D_MODEL)
    assert_same_function(
        ours, theirs, lambda x: ours(x, **m.ours()), run, [x], from_bert, drops=int(train)
    )
    with SameDropout():
        added = theirs.output.dropout(ours(x, **m.ours()))
    with SameDropout():
        whole, _ = theirs(x, m.added(TOKENS, TOKENS))
    assert_near(theirs.output.LayerNorm(added + x), whole)


@pytest.mark.parametrize(
    ("mask", "implementation", "train"), each_pair(CROSS_MASKS, ["eager", "sdpa"], [True, False])
)
def test_cross_attention(mask: str, implementation: str, train: bool) -> None:
    theirs = attention(is_cross_attention=True, attn_implementation=implementation).train(train)
    ours, m = from_bert(theirs), masks(mask, KEYS)

    def run(x: Tensor, memory: Tensor) -> Tensor:
        return theirs.output.dense(theirs.self(x, memory, m.added(TOKENS, KEYS))[0])

    assert_same_function(
        ours,
        theirs,
        lambda x, memory: ours(x, memory, **m.ours()),
        run,
        [torch.randn(BATCH, TOKENS, D_MODEL), torch.randn(BATCH, KEYS, D_MODEL)],
        from_bert,
        drops=int(train),
    )


@pytest.mark.parametrize(
    ("mask", "activation", "train"),
    each_pair(MASKS, ["gelu", "relu", "gelu_new", "gelu_pytorch_tanh"], [True, False]),
)
def test_layer(mask: str, activation: str, train: bool) -> None:
    theirs = layer(hidden_act=activation).train(train)
    ours, m = from_bert(theirs), masks(mask, TOKENS)
    assert isinstance(ours, EncoderBlock)
    assert_same_function(
        ours,
        theirs,
        lambda x: ours(x, **m.ours()),
        lambda x: theirs(x, m.added(TOKENS, TOKENS)),
        [torch.randn(BATCH, TOKENS, D_MODEL)],
        from_bert,
        drops=3 if train else 0,  # weights, and what is added to the stream, twice
    )


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_there_and_back_again(dtype: torch.dtype, cross: bool) -> None:
    theirs, fresh = (attention(is_cross_attention=cross).to(dtype) for _ in range(2))
    ours = from_bert(theirs.eval())
    unexpected = fresh.load_state_dict(to_bert(ours), strict=False).unexpected_keys
    assert not unexpected
    fresh.output.LayerNorm.load_state_dict(theirs.output.LayerNorm.state_dict())
    assert_equal_parameters(fresh, theirs)
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(to_bert(ours).values(), ours.parameters())
    assert not ours.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_there_and_back_again(dtype: torch.dtype) -> None:
    theirs, fresh = layer().to(dtype).eval(), layer().to(dtype)
    ours = from_bert(theirs)
    fresh.load_state_dict(to_bert(ours))
    assert_equal_parameters(fresh, theirs)
    assert_copied(ours.parameters(), theirs.parameters())
    assert_copied(to_bert(ours).values(), ours.parameters())
    assert not any(module.training for module in ours.modules())


def test_dropouts_and_eps() -> None:
    theirs = layer(attention_probs_dropout_prob=0.1, hidden_dropout_prob=0.2, layer_norm_eps=1e-12)
    ours = from_bert(theirs)
    assert (ours.attention.dropout, ours.feed_forward.dropout) == (0.1, 0.0)
    for residual in (ours.attention_residual, ours.feed_forward_residual):
        assert (residual.dropout, residual.norm.eps) == (0.2, 1e-12)


@pytest.mark.parametrize("bias", [False, "qkv", "output"])
def test_zeros_stand_where_ours_has_no_biases(bias: bool | str) -> None:
    ours = randomize(MultiHeadAttention(D_MODEL, N_HEADS, bias=bias))
    theirs, x = attention().eval(), torch.randn(BATCH, TOKENS, D_MODEL)
    theirs.load_state_dict(to_bert(ours), strict=False)
    assert_near(theirs.output.dense(theirs.self(x)[0]), ours(x))


@pytest.mark.parametrize("whole", [True, False])
def test_each_part_trains_or_evaluates_as_it_did(whole: bool) -> None:
    theirs = layer().train(whole)
    theirs.attention.self.train(not whole)
    theirs.output.dropout.train(not whole)
    ours = from_bert(theirs)
    assert [ours.training, ours.attention_residual.training] == [whole, whole]
    assert [ours.attention.training, ours.feed_forward_residual.training] == [not whole] * 2
    assert from_bert(theirs.attention).training is not whole


class TestRefused:
    def test_decoders(self) -> None:
        with pytest.raises(ValueError, match=r"BertAttention\(is_decoder=True\): "):
            from_bert(attention(is_decoder=True))
        with pytest.raises(ValueError, match=r"BertAttention\(is_causal=True\): "):
            from_bert(BertAttention(config(), is_causal=True))
        with pytest.raises(ValueError, match=r"BertAttention\(is_decoder=True\): "):
            from_bert(layer(is_decoder=True))
        with pytest.raises(ValueError, match=r"BertLayer\(add_cross_attention=True\): "):
            from_bert(layer(is_decoder=True, add_cross_attention=True))

    def test_scale(self) -> None:
        theirs = attention()
        theirs.self.scaling = 1.0
        with pytest.raises(
            ValueError, match=r"BertAttention\(scaling=1.0\): our logits are scaled"
        ):
            from_bert(theirs)

    def test_parts_that_were_changed(self) -> None:
        class Derived(nn.Linear):
            pass

        theirs = layer()
        theirs.intermediate.intermediate_act_fn = nn.Tanh()
        with pytest.raises(ValueError, match=r"\(hidden_act='.*'\), an Tanh: it must be one of"):
            from_bert(theirs)
        theirs = attention()
        theirs.self.value = Derived(D_MODEL, D_MODEL)
        with pytest.raises(ValueError, match=r"self\.value must be of class Linear, got Derived"):
            from_bert(theirs)
        theirs = attention()
        theirs.self.dropout = nn.Identity()
        with pytest.raises(ValueError, match=r"self\.dropout must be of class Dropout"):
            from_bert(theirs)
        theirs = attention()
        theirs.output = nn.Identity()
        with pytest.raises(TypeError, match=r"expected BertSelfOutput of transformers, got"):
            from_bert(theirs)
        theirs = attention()
        prune.random_unstructured(theirs.output.dense, "bias", amount=1)
        with pytest.raises(ValueError, match=r"has not: output\.dense\.bias_mask"):
            from_bert(theirs)
        ours = EncoderBlock(D_MODEL, N_HEADS, D_FF)
        prune.random_unstructured(ours.feed_forward.inner, "bias", amount=1)
        with pytest.raises(ValueError, match=r"has not: feed_forward\.inner\.bias_mask"):
            to_bert(ours)
        for norm in (nn.RMSNorm(D_MODEL), nn.Identity()):
            ours = EncoderBlock(D_MODEL, N_HEADS, D_FF)
            ours.attention_residual.norm = norm
            with pytest.raises(ValueError, match=r"residual\.norm must be of class LayerNorm, got"):
                to_bert(ours)

    def test_activation(self) -> None:
        with pytest.raises(
            ValueError, match=r"BertLayer\(hidden_act='silu'\), an SiLU.*: it must be one"
        ):
            from_bert(layer(hidden_act="silu"))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_kv_heads": 2}, r"\(n_kv_heads=2\): BertAttention needs 4"),
            ({"d_head": 5}, r"\(d_head=5\): BertAttention needs 3"),
            ({"d_value": 5}, r"\(d_value=5\): BertAttention needs 3"),
            ({"d_memory": 5}, r"\(d_memory=5\): BertAttention needs 12"),
            ({"position": ALiBi()}, r"\(position=ALiBi\(.*\): BertAttention needs None"),
        ],
    )
    def test_our_attention(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_bert(MultiHeadAttention(D_MODEL, N_HEADS, **options))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"norm": "pre"}, r"EncoderBlock\(norm='pre'\): BertLayer has post"),
            ({"residual_scale": 2.0}, r"EncoderBlock\(residual_scale=2.0\): BertLayer"),
            ({"n_kv_heads": 1}, r"MultiHeadAttention\(n_kv_heads=1\): BertAttention needs 4"),
        ],
    )
    def test_our_block(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_bert(EncoderBlock(D_MODEL, N_HEADS, D_FF, **options))

    def test_heads_that_do_not_add_up(self) -> None:
        theirs = attention()
        theirs.self.num_attention_heads = 2  # theirs never looks at it again
        with pytest.raises(ValueError, match=r"\(attention_head_size=3\): our heads' widths add"):
            from_bert(theirs)

    def test_what_a_block_drops_or_norms_otherwise(self) -> None:
        with pytest.raises(ValueError, match=r"\(feed_forward_dropout=0.1\): BertLayer has none"):
            to_bert(EncoderBlock(D_MODEL, N_HEADS, D_FF, dropout=0.1))
        ours = EncoderBlock(D_MODEL, N_HEADS, D_FF)
        ours.feed_forward_residual.dropout = 0.2
        with pytest.raises(ValueError, match=r"\(residual_dropout=0.2\): the first has 0.0"):
            to_bert(ours)
        ours = EncoderBlock(D_MODEL, N_HEADS, D_FF)
        ours.feed_forward_residual.norm.eps = 0.1
        with pytest.raises(ValueError, match=r"\(norm_eps=0.1\): the first has 1e-05"):
            to_bert(ours)

    @pytest.mark.parametrize("part", ["inner", "outer"])
    def test_a_feed_forward_network_without_one_bias(self, part: str) -> None:
        ours = EncoderBlock(D_MODEL, N_HEADS, D_FF)
        ours.feed_forward.get_submodule(part).bias = None
        with pytest.raises(ValueError, match=r"\(feed_forward_bias=False\): BertLayer has them"):
            to_bert(ours)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_something_else(self) -> None:
        message = "expected BertAttention or BertLayer of transformers, got torch.*Linear"
        with pytest.raises(TypeError, match=message):
            from_bert(nn.Linear(2, 2))
        message = "expected MultiHeadAttention or EncoderBlock of attnbook, got Linear"
        with pytest.raises(TypeError, match=message):
            to_bert(nn.Linear(2, 2))
