import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnbook import (
    ALiBi,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    KeyValueCache,
    Rotary,
    padding_mask,
)
from attnbook.blocks import Activation, DecoderCache, NormPlace, Residual
from strategies import (
    assert_gradients_are_finite_differences,
    assert_near,
    refused,
)

both_places = pytest.mark.parametrize("norm", ["pre", "post"])
every_place = pytest.mark.parametrize("norm", ["pre", "post", "none"])


def with_random_vectors(module: nn.Module) -> nn.Module:
    """Biases and norms start as zeros and ones, which would hide a mix-up."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return module


def test_feed_forward_is_the_formula_for_each_token_alone() -> None:
    network, x = with_random_vectors(FeedForward(4, 9)), torch.randn(2, 5, 4)
    y = network(x)
    for b in range(2):
        for t in range(5):
            inner = (network.inner.weight @ x[b, t] + network.inner.bias).clamp(min=0)
            assert_near(y[b, t], network.outer.weight @ inner + network.outer.bias)


@pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("without", ["feed_forward_bias", "norm_bias"])
def test_biases_are_left_out_where_asked(without: str, kind: type[nn.Module]) -> None:
    part = {"feed_forward_bias": "feed_forward.", "norm_bias": ".norm."}[without]

    def biases(**options: bool) -> set[str]:
        names = (name for name, _ in kind(12, 3, 20, **options).named_parameters())
        return {name for name in names if name.endswith("bias")}

    left_out = biases() - biases(**{without: False})
    assert left_out == {name for name in biases() if part in f".{name}"}
    assert left_out


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_gradients_of_a_feed_forward_network(activation: Activation, bias: bool) -> None:
    network = with_random_vectors(FeedForward(3, 4, activation=activation, bias=bias))
    x = torch.randn(2, 2, 3, requires_grad=True)
    assert_gradients_are_finite_differences(lambda: network(x), x, *network.parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("norm", "scale"), [("pre", 1), ("post", 1), ("post", 2.5), ("none", 1)])
def test_gradients_of_a_residual_connection(norm: NormPlace, scale: float, bias: bool) -> None:
    residual = with_random_vectors(Residual(3, norm=norm, scale=scale, bias=bias))
    x, sublayer = torch.randn(2, 2, 3, requires_grad=True), nn.Linear(3, 3)
    leaves = x, *residual.parameters(), *sublayer.parameters()
    assert_gradients_are_finite_differences(lambda: residual(x, sublayer).sin(), *leaves)


@every_place
def test_gradients_are_those_of_finite_differences(norm: NormPlace) -> None:
    causal = norm != "none"
    options = {"norm": norm, "position": Rotary(), "n_kv_heads": 1, "bias": True}
    block = with_random_vectors(EncoderBlock(4, 2, 5, **options))
    x, mask = torch.randn(1, 3, 4, requires_grad=True), torch.tensor([True, False, True])
    leaves = x, *block.parameters()
    assert_gradients_are_finite_differences(lambda: block(x, mask, causal=causal), *leaves)


def test_post_norm_output_is_normalized_and_pre_norm_keeps_the_stream() -> None:
    x = 100 * torch.randn(2, 6, 12)
    post, pre = EncoderBlock(12, 3, 20)(x), EncoderBlock(12, 3, 20, norm="pre")(x)
    torch.testing.assert_close(post.std(-1, correction=0), torch.ones(2, 6), rtol=0, atol=1e-4)
    assert (pre - x).abs().max() < 10


@both_places
def test_block_drops_out_in_training_only(norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm, dropout=0.5), torch.randn(2, 6, 12)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_print_shows_what_no_part_shows() -> None:
    shown = str(EncoderBlock(12, 3, 20, norm="pre", activation="gelu", dropout=0.25))
    assert "activation='gelu', dropout=0.25" in shown
    assert shown.count("'pre', scale=1, dropout=0.25") == 2


# Which dropout does what: each acts alone, the others are switched off.
DROPOUTS = ["attention", "feed_forward", "attention_residual", "feed_forward_residual"]


@both_places
@pytest.mark.parametrize("acting", DROPOUTS)
def test_each_dropout_acts(acting: str, norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm, dropout=0.5), torch.randn(2, 6, 12)
    for name in set(DROPOUTS) - {acting}:
        getattr(block, name).dropout = 0.0
    assert not torch.equal(block(x), block(x))


def test_inner_dropout_drops_inner_values() -> None:
    network = FeedForward(12, 20, dropout=0.5)
    nn.init.eye_(network.inner.weight)
    nn.init.eye_(network.outer.weight)
    x = torch.rand(1000, 12) + 1
    dropped = network(x) == 0
    assert dropped.double().mean().item() == pytest.approx(0.5, abs=0.03)
    assert_near(network.eval()(x), x)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_inner_dropout_comes_after_the_activation(activation: Activation) -> None:
    network = FeedForward(12, 12, activation=activation, dropout=0.5)
    nn.init.eye_(network.inner.weight)
    nn.init.eye_(network.outer.weight)
    x = torch.randn(100, 12)
    kept = network(x)
    whole = network.eval()(x)
    assert_near(kept, torch.where(kept == 0, 0.0, 2 * whole))


@both_places
def test_dropout_acts_on_what_is_added_to_the_stream(norm: NormPlace) -> None:
    block, x = EncoderBlock(12, 3, 20, norm=norm), torch.randn(2, 6, 12)
    for residual in (block.attention_residual, block.feed_forward_residual):
        residual.dropout = 1.0
    normed = block.feed_forward_residual.norm(block.attention_residual.norm(x))
    assert torch.equal(block(x), x if norm == "pre" else normed)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_activations_are_their_formulas(activation: Activation) -> None:
    network, x = FeedForward(1, 1, activation=activation), torch.linspace(-4, 4, 33)[:, None]
    nn.init.ones_(network.inner.weight)
    nn.init.ones_(network.outer.weight)
    cubic = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    expected = {
        "relu": x.clamp(min=0),
        "gelu": x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "gelu_tanh": x * (1 + torch.tanh(cubic)) / 2,
    }
    assert_near(network(x), expected[activation])


def layer_norm(x: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt()


def test_residual_connections_are_their_formulas() -> None:
    x, f = torch.randn(2, 5, 12), torch.sin
    assert_near(Residual(12, norm="pre", eps=0.1)(x, f), x + f(layer_norm(x, 0.1)))
    assert_near(Residual(12, norm="post", eps=0.1)(x, f), layer_norm(x + f(x), 0.1))
    assert_near(Residual(12, norm="none")(x, f), x + f(x))
    assert_near(Residual(12, scale=3.0)(x, f), layer_norm(3 * x + f(x), 1e-5))


def test_block_hands_its_settings_on() -> None:
    settings = {"norm": "post", "n_kv_heads": 2, "position": Rotary(), "bias": True}
    settings |= {"activation": "gelu", "residual_scale": 2.0, "norm_eps": 0.1, "dropout": 0.25}
    for block in (EncoderBlock(16, 4, 20, **settings), DecoderBlock(16, 4, 20, **settings)):
        attention = block.attention
        assert (attention.n_kv_heads, attention.position) == (2, Rotary())
        assert attention.query.bias is not None
        assert block.feed_forward.activation == "gelu"
        residuals = [part for part in block.children() if isinstance(part, Residual)]
        assert [(r.scale, r.norm.eps) for r in residuals] == [(2.0, 0.1)] * len(residuals)
        assert len(residuals) == (2 if isinstance(block, EncoderBlock) else 3)
    cross = block.cross_attention
    assert (cross.n_kv_heads, cross.position, cross.dropout) == (2, None, 0.25)
    assert cross.query.bias is not None


# The decoder's block


DECODER_DROPOUTS = [*DROPOUTS, "cross_attention", "cross_attention_residual"]


@pytest.mark.parametrize("acting", DECODER_DROPOUTS)
def test_each_dropout_of_a_decoder_acts(acting: str) -> None:
    block = DecoderBlock(12, 3, 20, dropout=0.5)
    assert {getattr(block, name).dropout for name in DECODER_DROPOUTS} == {0.5}
    for name in set(DECODER_DROPOUTS) - {acting}:
        getattr(block, name).dropout = 0.0
    x, memory = torch.randn(2, 6, 12), torch.randn(2, 5, 12)
    assert not torch.equal(block(x, memory), block(x, memory))
    assert torch.equal(block.eval()(x, memory), block(x, memory))


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_decoder_block_is_its_three_parts(norm: NormPlace) -> None:
    block = with_random_vectors(DecoderBlock(12, 3, 20, norm=norm, d_memory=7))
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 6, 7)
    mask = padding_mask(torch.tensor([3, 5]), 5)
    memory_mask = padding_mask(torch.tensor([6, 4]), 6)
    y = block.attention_residual(x, lambda x: block.attention(x, None, mask, causal=True))
    y = block.cross_attention_residual(y, lambda x: block.cross_attention(x, memory, memory_mask))
    expected = block.feed_forward_residual(y, block.feed_forward)
    assert torch.equal(block(x, memory, mask, memory_mask), expected)
    for other in (block(x, memory, None, memory_mask), block(x, memory, mask)):
        assert not torch.allclose(other, expected)


def test_decoder_block_step_by_step_does_not_see_what_its_masks_forbid() -> None:
    block, cache = DecoderBlock(12, 3, 20, d_memory=7), DecoderCache()
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 6, 7)
    masks = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 1]]).bool()[:, None, None]
    memory_mask = padding_mask(torch.tensor([6, 4]), 6)
    ends = [(0, 1), (1, 4), (4, 5)]
    steps = [block(x[:, i:j], memory, masks[..., :j], memory_mask, cache=cache) for i, j in ends]
    whole = block(x, memory, masks, memory_mask)
    assert_near(torch.cat(steps, dim=1), whole)
    assert not torch.allclose(whole, block(x, memory, None, memory_mask))


@every_place
def test_decoder_gradients_are_those_of_finite_differences(norm: NormPlace) -> None:
    options = {"norm": norm, "position": ALiBi(), "n_kv_heads": 1, "d_memory": 3, "bias": True}
    block = with_random_vectors(DecoderBlock(4, 2, 5, **options))
    x, memory = torch.randn(1, 2, 4, requires_grad=True), torch.randn(1, 3, 3, requires_grad=True)
    masks = torch.tensor([True, False]), torch.tensor([True, False, True])
    leaves = x, memory, *block.parameters()
    assert_gradients_are_finite_differences(lambda: block(x, memory, *masks), *leaves)


# Bad input


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EncoderBlock(12, 3, 20, norm="sandwich"),
            "norm must be 'pre', 'post' or 'none', got 'sandwich'",
        ),
        (
            lambda: FeedForward(12, 20, activation="swish"),
            "activation must be 'relu', 'gelu' or 'gelu_tanh', got 'swish'",
        ),
        (lambda: EncoderBlock(12, 5, 20), "n_heads must divide d_model, got 5 heads for 12"),
        (lambda: FeedForward(12, 0), "d_ff must be a positive integer, got 0"),
        (lambda: FeedForward(0, 3), "d_model must be a positive integer, got 0"),
        (lambda: FeedForward(4, 3.0), "d_ff must be a positive integer, got 3.0"),
        (lambda: Residual(0), "d_model must be a positive integer, got 0"),
        (lambda: Residual(4, scale=math.nan), "scale must be a finite number, got nan"),
        (lambda: Residual(4, eps="x"), "eps must be a finite number, got 'x'"),
        (lambda: Residual(4, eps=-1e-5), "eps must not be negative, got -1e-05"),
        (lambda: FeedForward(4, 3, dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
        (lambda: Residual(4, dropout=-0.5), r"dropout must be in \[0, 1\), got -0.5"),
        (
            lambda: Residual(4, norm="pre", scale=2.0),
            "only a post-norm stream is scaled, got 2.0 with norm='pre'",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize(
    "sublayer",
    [lambda y: y[:, :1], lambda y: y.mean(-1, keepdim=True), lambda y: y[0], lambda y: y[None]],
)
def test_what_would_only_broadcast_is_not_added(
    sublayer: Callable[[Tensor], Tensor], norm: NormPlace
) -> None:
    x = torch.randn(2, 5, 4)
    given = tuple(sublayer(x).shape)
    with refused(ValueError, f"the sublayer must keep the shape (2, 5, 4), got {given}"):
        Residual(4, norm=norm)(x, sublayer)


BLOCKS = {
    "FeedForward": lambda norm: FeedForward(12, 20),
    "EncoderBlock": lambda norm: EncoderBlock(12, 3, 20, norm=norm),
    "DecoderBlock": lambda norm: DecoderBlock(12, 3, 20, norm=norm),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("name", BLOCKS)
def test_tokens_of_another_width_or_kind_are_refused(name: str, norm: NormPlace) -> None:
    block, memory = BLOCKS[name](norm), [torch.zeros(1, 4, 12)] * (name == "DecoderBlock")
    with refused(ValueError, "x must have shape (…, 12), got (1, 5, 11)"):
        block(torch.zeros(1, 5, 11), *memory)
    with refused(TypeError, "x must be of floating type, got a tensor of torch.int64"):
        block(torch.zeros(1, 5, 12, dtype=torch.int64), *memory)
    with refused(TypeError, "x must be a Tensor, got a ndarray"):
        block(np.zeros((1, 5, 12)), *memory)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_what_is_no_cache_is_refused(norm: NormPlace) -> None:
    x = torch.zeros(1, 5, 12)
    for wrong in ({}, [], DecoderCache()):
        with refused(TypeError, f"cache must be a KeyValueCache, got a {type(wrong).__name__}"):
            EncoderBlock(12, 3, 20, norm=norm)(x, cache=wrong)
    for wrong in ({}, [], KeyValueCache()):
        with refused(TypeError, f"cache must be a DecoderCache, got a {type(wrong).__name__}"):
            DecoderBlock(12, 3, 20, norm=norm)(x, x, cache=wrong)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", [FeedForward, Residual])
def test_biases_are_there_or_not(kind: Callable[..., nn.Module]) -> None:
    sizes = (4, 3) if kind is FeedForward else (4,)
    with refused(TypeError, "bias must be True or False, got a str"):
        kind(*sizes, bias="no")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_decoder_needs_a_memory(norm: NormPlace) -> None:
    block, x = DecoderBlock(12, 3, 20, norm=norm), torch.zeros(1, 5, 12)
    for cache in (None, DecoderCache()):
        with refused(TypeError, "memory must be a Tensor, got a NoneType"):
            block(x, None, cache=cache)
