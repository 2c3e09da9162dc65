"""Feed-forward network, residual connection and both blocks, against formulas by hand."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attnbook import (
    ALiBi,
    Block,
    BlockConfig,
    DecoderBlock,
    DecoderCache,
    FeedForward,
    Residual,
    Rotary,
    padding_mask,
)
from strategies import assert_gradients_are_finite_differences, assert_near

FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
}
FORMULAS["geglu"] = FORMULAS["gelu_tanh"]
every_activation = pytest.mark.parametrize("activation", FORMULAS)
SIZES = {"d_model": 12, "n_heads": 3, "d_ff": 20}
every_norm = pytest.mark.parametrize("norm", ["pre", "post", "none"])
every_kind = pytest.mark.parametrize("kind", ["layer", "rms"])
either_block = pytest.mark.parametrize("block_class", [Block, DecoderBlock])


def with_random_vectors(module: nn.Module) -> nn.Module:
    """Biases and norms start as zeros and ones, which would hide a mix-up."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return module


def normed(x: Tensor, norm: nn.Module, eps: float) -> Tensor:
    """LayerNorm and RMSNorm by hand."""
    if isinstance(norm, nn.RMSNorm):
        return norm.weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    centred = x - x.mean(-1, keepdim=True)
    y = norm.weight * centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return y if norm.bias is None else y + norm.bias


@every_activation
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_is_its_formula_for_each_token_alone(activation, bias):
    network = with_random_vectors(FeedForward(4, 9, activation=activation, bias=bias))
    x = 2 * torch.randn(2, 3, 4)
    y = network(x)

    def linear(layer: nn.Linear, vector: Tensor) -> Tensor:
        return layer.weight @ vector + (layer.bias if bias else 0)

    for b, t in ((0, 0), (0, 2), (1, 1)):
        inner = linear(network.inner, x[b, t])
        if activation in ("swiglu", "geglu"):
            inner = FORMULAS[activation](linear(network.gate, x[b, t])) * inner
        else:
            inner = FORMULAS[activation](inner)
        assert_near(y[b, t], linear(network.outer, inner))
    leaves = x.requires_grad_(), *network.parameters()
    assert_gradients_are_finite_differences(lambda: network(x), *leaves)


@every_norm
@every_kind
@pytest.mark.parametrize("bias", [True, False])
def test_residual_is_its_formula(norm, kind, bias):
    scale = 2.5 if norm == "post" else 1.0
    options = {"norm": norm, "norm_kind": kind, "scale": scale, "eps": 0.1, "bias": bias}
    residual = with_random_vectors(Residual(3, **options))
    x, f = torch.randn(2, 5, 3, requires_grad=True), torch.sin
    if norm == "pre":
        expected = x + f(normed(x, residual.norm, 0.1))
    else:
        expected = scale * x + f(x)
        expected = normed(expected, residual.norm, 0.1) if norm == "post" else expected
    assert_near(residual(x, f), expected)
    n_vectors = 0 if norm == "none" else 1 + (bias and kind == "layer")
    assert len([*residual.parameters()]) == n_vectors
    leaves = x, *residual.parameters()
    assert_gradients_are_finite_differences(lambda: residual(x, f).cos(), *leaves)


@every_norm
@every_kind
@either_block
def test_block_is_its_parts_one_after_the_other(block_class, kind, norm):
    decoder = block_class is DecoderBlock
    config = BlockConfig(**SIZES, attention_bias=True, norm=norm, norm_kind=kind)
    options = {"d_memory": 7} if decoder else {}
    block = with_random_vectors(block_class(config, position=Rotary(), **options))
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 6, 7)
    mask, memory_mask = padding_mask(torch.tensor([3, 5]), 5), padding_mask(torch.tensor([6, 4]), 6)

    def add(y: Tensor, residual: Residual, part: Callable[[Tensor], Tensor]) -> Tensor:
        if norm == "pre":
            return y + part(normed(y, residual.norm, 1e-5))
        return normed(y + part(y), residual.norm, 1e-5) if norm == "post" else y + part(y)

    y = add(x, block.attention_residual, lambda y: block.attention(y, None, mask, causal=True))
    if decoder:
        cross = block.cross_attention
        y = add(y, block.cross_attention_residual, lambda y: cross(y, memory, memory_mask))
    y = add(y, block.feed_forward_residual, block.feed_forward)
    inputs = (x, memory, mask, memory_mask) if decoder else (x, mask)
    causal = {} if decoder else {"causal": True}
    assert_near(block(*inputs, **causal), y)
    names = [name.split(".")[0] for name, _ in block.named_parameters()]
    order = ["attention", "attention_residual", "cross_attention", "cross_attention_residual"]
    order += ["feed_forward", "feed_forward_residual"]
    assert list(dict.fromkeys(names)) == [name for name in order if name in names]


@every_norm
@either_block
def test_gradients_of_a_block_are_those_of_finite_differences(block_class, norm):
    choices = {"norm": norm, "n_kv_heads": 1, "attention_bias": True}
    choices |= {"activation": "swiglu"} if norm == "pre" else {}
    config = BlockConfig(d_model=4, n_heads=2, d_ff=5, **choices)
    options = {"position": ALiBi(), "d_memory": 3}
    options = options if block_class is DecoderBlock else {"position": Rotary()}
    block = with_random_vectors(block_class(config, **options))
    x, memory = torch.randn(1, 3, 4, requires_grad=True), torch.randn(1, 2, 3, requires_grad=True)
    mask, memory_mask = torch.tensor([True, False, True]), torch.tensor([False, True])
    decoder = block_class is DecoderBlock
    inputs = (x, memory, mask, memory_mask) if decoder else (x, mask)
    leaves = [*block.parameters(), x, *([memory] if decoder else [])]
    assert_gradients_are_finite_differences(lambda: block(*inputs), *leaves)


@either_block
def test_block_hands_its_settings_on(block_class):
    choices = {"n_kv_heads": 2, "d_head": 6, "attention_bias": "qkv", "norm": "deepnorm"}
    choices |= {"activation": "gelu", "norm_eps": 0.1, "dropout": 0.25, "qk_norm": True}
    block = block_class(BlockConfig(d_model=16, **choices), position=Rotary(), residual_scale=2.0)
    attentions = {"attention": Rotary()}
    attentions |= {"cross_attention": None} if block_class is DecoderBlock else {}
    for name, position in attentions.items():
        attention = getattr(block, name)
        assert (attention.n_kv_heads, attention.d_head, attention.position) == (2, 6, position)
        assert attention.query.bias is not None
        assert attention.output.bias is None
        assert attention.query_norm.eps == attention.key_norm.eps == 0.1
    assert block.feed_forward.activation == "gelu"
    assert block.feed_forward.inner.out_features == 4 * 16
    residuals = [part for part in block.children() if isinstance(part, Residual)]
    assert [(r.scale, r.norm.eps) for r in residuals] == [(2.0, 0.1)] * (len(attentions) + 1)


@either_block
@pytest.mark.parametrize(
    ("setting", "part"), [("feed_forward_bias", "feed_forward."), ("norm_bias", ".norm.")]
)
def test_biases_are_left_out_where_asked(setting, part, block_class):
    def biases(**choices: bool) -> set[str]:
        block = block_class(BlockConfig(**SIZES, attention_bias=True, **choices))
        names = (name for name, _ in block.named_parameters())
        return {name for name in names if name.endswith("bias")}

    left_out = biases() - biases(**{setting: False})
    assert left_out == {name for name in biases() if part in f".{name}"} != set()


# Dropout: each acts alone, the others are switched off.

DROPOUTS = ["attention", "feed_forward", "attention_residual", "feed_forward_residual"]
DROPOUTS += ["cross_attention", "cross_attention_residual"]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("acting", DROPOUTS)
def test_each_dropout_acts_in_training_only(acting, norm):
    block = DecoderBlock(BlockConfig(**SIZES, norm=norm, dropout=0.5))
    x, memory = torch.randn(2, 6, 12), torch.randn(2, 5, 12)
    for name in DROPOUTS:
        assert getattr(block, name).dropout == 0.5
        getattr(block, name).dropout = 0.5 * (name == acting)
    assert not torch.equal(block(x, memory), block(x, memory))
    assert torch.equal(block.eval()(x, memory), block(x, memory))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_inner_dropout_comes_after_the_activation(activation):
    network = FeedForward(12, 12, activation=activation, dropout=0.25)
    nn.init.eye_(network.inner.weight)
    nn.init.eye_(network.outer.weight)
    x = torch.rand(200, 12) - 0.2
    kept, whole = network(x), network.eval()(x)
    assert_near(kept, torch.where(kept == 0, 0.0, whole / 0.75))
    dropped = (kept == 0)[whole != 0]
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_dropout_acts_on_what_is_added_and_not_on_the_stream(norm):
    residual, x = Residual(12, norm=norm, dropout=1.0), torch.randn(2, 6, 12)
    assert torch.equal(residual(x, torch.exp), residual.norm(x) if norm == "post" else x)


def test_print_shows_what_no_part_shows():
    shown = str(Block(BlockConfig(**SIZES, norm="pre", activation="gelu", dropout=0.25)))
    assert "activation='gelu', dropout=0.25" in shown
    assert shown.count("'pre', scale=1, dropout=0.25") == 2


def test_decoder_block_step_by_step_is_the_whole_under_its_masks():
    block = DecoderBlock(BlockConfig(**SIZES), d_memory=7, position=Rotary())
    cache = DecoderCache()
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 6, 7)
    masks = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]]).bool()[:, None, None]
    memory_mask, steps = padding_mask(torch.tensor([6, 4]), 6), []
    whole = block(x, memory, masks, memory_mask)
    for i, j in ((0, 1), (1, 4), (4, 5)):
        steps.append(block(x[:, i:j], memory, masks[..., :j], memory_mask, cache=cache))
        assert (len(cache), len(cache.cross_attention)) == (j, 6)
        if j == 4:  # the sequences change places, as in beam search
            order = torch.tensor([1, 0])
            cache.reorder(order)
            x, memory, masks, memory_mask = (y[order] for y in (x, memory, masks, memory_mask))
    assert_near(torch.cat([*steps[:2], steps[2][[1, 0]]], dim=1), whole)


# Bad input


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "given", "expected"),
    [
        (lambda: Residual(12, norm="sandwich"), "'sandwich'", "'pre', 'post' or 'none'"),
        (lambda: Residual(12, norm_kind="batch"), "'batch'", "'layer' or 'rms'"),
        (lambda: FeedForward(12, 20, activation="swish"), "'swish'", "'swiglu' or 'geglu'"),
        (lambda: Residual(4, norm="pre", scale=2.0), "2.0 with norm='pre'", "only a post-norm"),
        (lambda: Residual(4, dropout=1.5), "got 1.5", "dropout must be from 0 to 1"),
        (lambda: Residual(4, eps=-1.0), "got -1.0", "eps must not be negative"),
        (lambda: Residual(0), "got 0", "d_model must be at least 1"),
        (lambda: FeedForward(8, 0), "got 0", "d_ff must be at least 1"),
        (lambda: FeedForward(0, 0), "got 0", "d_model must be at least 1"),
        (lambda: FeedForward(8, 8, dropout=-0.1), "got -0.1", "dropout must be from 0 to 1"),
        (lambda: DecoderBlock(BlockConfig(), d_memory=0), "got 0", "d_memory must be at least 1"),
        (lambda: Block(BlockConfig(n_heads=5)), "5 heads for 64", "n_heads must divide d_model"),
        (lambda: Block(BlockConfig(norm="pre"), residual_scale=2.0), "2.0", "only a post-norm"),
        (lambda: BlockConfig(norm="sandwich"), "'sandwich'", "'pre', 'post', 'none' or 'deepnorm'"),
        (lambda: BlockConfig(dropout=1.0), "got 1.0", "dropout must be at least 0 and below 1"),
        (lambda: BlockConfig(d_ff=0), "got 0", "d_ff must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, given, expected):
    with pytest.raises(ValueError, match=given) as caught:
        make()
    assert expected in str(caught.value)


@pytest.mark.usefixtures("without_shape_checks")
@every_norm
@pytest.mark.parametrize(
    "sublayer",
    [lambda y: y[:, :1], lambda y: y.mean(-1, keepdim=True), lambda y: y[0], lambda y: y[None]],
)
def test_what_would_only_broadcast_is_not_added(sublayer, norm):
    x = torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match=r"keep the shape \(2, 5, 4\)") as caught:
        Residual(4, norm=norm)(x, sublayer)
    assert str(caught.value).endswith(f"got {tuple(sublayer(x).shape)}")
