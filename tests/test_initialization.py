import math
from collections.abc import Callable
from typing import NamedTuple, cast

import pytest
import torch
from torch import Generator, Tensor, nn

from attnbook import (
    SCHEMES,
    DecoderBlock,
    Encoder,
    FeedForward,
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    initialize,
)
from attnbook.blocks import Residual
from attnbook.transformer import deepnorm_constants, deepnorm_pair

V, D, F, N = 500, 48, 80, 6  # vocabulary, d_model, d_ff, layers
KV = 24  # outputs of W_K and of W_V: half as many key heads as heads


class Drawn(NamedTuple):
    distribution: str
    std: float


def uniform(variance: float) -> Drawn:
    return Drawn("uniform", math.sqrt(variance))


def normal(variance: float) -> Drawn:
    return Drawn("normal", math.sqrt(variance))


def row(
    draw: Callable[[int, int], Drawn], tables: tuple[float, float] = (1 / D, 0.02**2)
) -> dict[str, Drawn]:
    """A row of the table without exceptions: one rule for each matrix, another for tables."""
    fans = {
        "query": (D, D),
        "key": (D, KV),
        "value": (D, KV),
        "output": (D, D),
        "inner": (D, F),
        "outer": (F, D),
        "unembedding": (D, V),
    }
    matrices = {role: draw(*sizes) for role, sizes in fans.items()}
    return matrices | {"embedding": normal(tables[0]), "positions": normal(tables[1])}


def glorot(fan_in: int, fan_out: int) -> Drawn:
    return uniform(2 / (fan_in + fan_out))


FUSED = uniform(2 / (D + D + KV + KV))
BETA = (8 * N) ** -0.25
FIXUP = 0.67 * N**-0.25


def times(factor: float, drawn: Drawn) -> Drawn:
    return Drawn(drawn.distribution, factor * drawn.std)


def some_times(factor: float, drawn: dict[str, Drawn], *roles: str) -> dict[str, Drawn]:
    return drawn | {role: times(factor, drawn[role]) for role in roles}


INNER = ("value", "output", "inner", "outer")
# Written a second time, from the papers, for a stack of N blocks.
EXPECTED: dict[str, dict[str, Drawn]] = {
    "glorot": row(glorot),
    "glorot_fused": row(glorot) | {"query": FUSED, "key": FUSED, "value": FUSED},
    "he": row(lambda fan_in, fan_out: normal(2 / fan_in)),
    "lecun": row(lambda fan_in, fan_out: normal(1 / fan_in)),
    "torch_default": row(lambda fan_in, fan_out: uniform(1 / (3 * fan_in)), (1.0, 1.0)),
    "gpt2": some_times(
        1 / math.sqrt(2 * N),
        row(lambda fan_in, fan_out: normal(0.02**2), (0.02**2, 0.02**2)),
        *("output", "outer"),
    ),
    "deepnorm": some_times(BETA, row(lambda i, o: normal(2 / (i + o))), *INNER),
    "t_fixup": some_times((9 * N) ** -0.25, some_times(FIXUP, row(glorot), *INNER), "embedding"),
    "zero_output": row(glorot) | {"output": normal(0), "outer": normal(0)},
    "small": row(lambda fan_in, fan_out: normal(2 / (5 * D))),
}
NORM = {"deepnorm": "deepnorm", "t_fixup": "none"}


def language_model(scheme: str, **changes: object) -> LanguageModel:
    settings = {"n_heads": 4, "n_kv_heads": 2, "n_layers": N, "d_ff": F, "max_tokens": 300}
    settings |= {"tied": False, "position": "learned", "attention_bias": True}
    settings |= {"norm": NORM.get(scheme, "pre")}
    return LanguageModel(ModelConfig(V, D, **(settings | changes)))


def matrices(model: LanguageModel) -> dict[str, list[Tensor]]:
    """Each role's matrices, one of each block."""
    found = {
        name: [getattr(block.attention, name).weight for block in model.blocks]
        for name in ("query", "key", "value", "output")
    }
    for name in ("inner", "outer"):
        found[name] = [getattr(block.feed_forward, name).weight for block in model.blocks]
    found["unembedding"] = [model.output.weight]
    return found | {"embedding": [model.embedding.weight], "positions": [model.positions.table]}


def assert_drawn(weights: list[Tensor], expected: Drawn) -> None:
    """Mean, standard deviation and shape of the distribution, each within five standard errors."""
    values = torch.cat([weight.flatten() for weight in weights])
    n, std = len(values), expected.std
    if std == 0:
        assert not values.any()
        return
    assert abs(values.mean().item()) < 5 * std / math.sqrt(n)
    assert values.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
    largest = values.abs().max().item() / std
    if expected.distribution == "uniform":
        assert math.sqrt(3) * (1 - 50 / n) < largest <= math.sqrt(3)
    else:
        assert 3 < largest < 7


def test_every_scheme_has_an_expectation() -> None:
    assert EXPECTED.keys() == SCHEMES.keys()


@pytest.mark.parametrize("scheme", EXPECTED)
def test_each_matrix_of_a_model_is_drawn_as_the_table_says(scheme: str) -> None:
    model = language_model(scheme)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    assert initialize(model, scheme, generator=Generator().manual_seed(1)) is model
    for role, weights in matrices(model).items():
        assert_drawn(weights, EXPECTED[scheme][role])
        assert len({weight.sum().item() for weight in weights}) == len(weights) or (
            EXPECTED[scheme][role].std == 0
        )


@pytest.mark.parametrize("scheme", EXPECTED)
def test_biases_are_zeros_except_torchs_and_norms_the_identity(scheme: str) -> None:
    model = initialize(language_model(scheme), scheme)
    for block in model.blocks:
        for linear in (
            *(block.attention.query, block.attention.output),
            *(block.feed_forward.inner, block.feed_forward.outer),
        ):
            if scheme != "torch_default":
                assert not linear.bias.any()
        wide = [block.feed_forward.inner, block.feed_forward.outer, block.attention.query]
        for linear in wide if scheme == "torch_default" else []:
            assert_drawn([linear.bias], uniform(1 / (3 * linear.in_features)))
        for norm in (block.attention_residual.norm, block.feed_forward_residual.norm):
            if isinstance(norm, nn.LayerNorm):
                assert torch.equal(norm.weight, torch.ones(D))
                assert torch.equal(norm.bias, torch.zeros(D))


def test_norms_that_were_trained_start_again() -> None:
    model = language_model("gpt2")
    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    for norm in norms:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    initialize(model, "gpt2")
    assert len(norms) == 2 * N + 1
    for norm in norms:
        assert torch.equal(norm.weight, torch.ones(D))
        assert torch.equal(norm.bias, torch.zeros(D))


def test_the_plain_scheme_is_how_a_model_is_made() -> None:
    for role, weights in matrices(language_model("glorot")).items():
        assert_drawn(weights, EXPECTED["glorot"][role])


# Encoder-decoder: what depends on depth differs between the two stacks.
N_ENC, N_DEC = 2, 3


def encoder_decoder(scheme: str) -> Transformer:
    settings = {"n_heads": 4, "n_kv_heads": 2, "n_layers": N_ENC, "n_decoder_layers": N_DEC}
    settings |= {"d_ff": F, "max_tokens": 300, "tied": False, "position": "learned"}
    settings |= {"attention_bias": True, "target_vocab_size": V, "norm": NORM.get(scheme, "pre")}
    model = Transformer(TransformerConfig(V, D, **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    return initialize(model, scheme, generator=Generator().manual_seed(1))


both = (N_ENC**4 * N_DEC) ** (1 / 16)


# Which matrices have a factor, and that of a single stack, of the encoder and of the decoder.
FACTORS = {
    "gpt2": (("output", "outer"), (2 * N) ** -0.5, (2 * N_ENC) ** -0.5, (3 * N_DEC) ** -0.5),
    "deepnorm": (INNER, BETA, 0.87 / both, (12 * N_DEC) ** -0.25),
    "t_fixup": (INNER, FIXUP, 0.67 * N_ENC**-0.25, (9 * N_DEC) ** -0.25),
}


@pytest.mark.parametrize("scheme", EXPECTED)
def test_encoder_and_decoder_each_have_their_own_factor(scheme: str) -> None:
    model, single = encoder_decoder(scheme), EXPECTED[scheme]
    roles, alone, in_encoder, in_decoder = FACTORS.get(scheme, ((), 1.0, 1.0, 1.0))
    for blocks, factor in ((model.encoder_blocks, in_encoder), (model.decoder_blocks, in_decoder)):
        expected = some_times(factor / alone, single, *roles)
        attentions = [part for part in blocks.modules() if isinstance(part, MultiHeadAttention)]
        for role in ("query", "key", "value", "output"):
            for one in attentions:
                assert_drawn([getattr(one, role).weight], expected[role])
        for role in ("inner", "outer"):
            for block in blocks:
                assert_drawn([getattr(block.feed_forward, role).weight], expected[role])
    assert_drawn([model.output.weight], single["unembedding"])
    depth = (N_DEC / N) ** -0.25 if scheme == "t_fixup" else 1.0
    for embedding in (model.embedding, model.target_embedding):
        assert_drawn([embedding.weight], times(depth, single["embedding"]))
    for positions in (model.positions, model.target_positions):
        assert_drawn([positions.table], single["positions"])


def test_deepnorm_scales_each_stack_by_its_alpha() -> None:
    model = encoder_decoder("deepnorm")
    block = model.encoder_blocks[0]
    assert block.attention_residual.scale == pytest.approx(0.81 * both)
    for residual in (
        model.decoder_blocks[0].cross_attention_residual,
        model.decoder_blocks[0].feed_forward_residual,
    ):
        assert residual.scale == pytest.approx((3 * N_DEC) ** 0.25)
    alone = language_model("deepnorm").blocks[0].attention_residual
    assert alone.scale == pytest.approx((2 * N) ** 0.25)


def test_zero_output_makes_each_block_the_identity() -> None:
    model, x = initialize(language_model("glorot"), "zero_output"), torch.randn(2, 7, D)
    assert torch.equal(model.blocks[0](x), x)


# Parts, seeds and refusals


def test_a_part_knows_its_matrices_and_is_told_its_depth() -> None:
    attention = initialize(MultiHeadAttention(200, 4), "gpt2", n_layers=8)
    assert attention.query.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert attention.output.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    decoder = initialize(DecoderBlock(200, 4, 300), "gpt2", n_layers=8)
    assert decoder.feed_forward.outer.weight.std().item() == pytest.approx(
        0.02 / math.sqrt(24), rel=0.02
    )


def test_told_depth_replaces_the_counted_one() -> None:
    model = initialize(language_model("gpt2"), "gpt2", n_layers=50)
    assert_drawn(matrices(model)["outer"], Drawn("normal", 0.02 / 10))


def test_wider_values_and_memories_count_as_they_are() -> None:
    attention = MultiHeadAttention(100, 4, d_head=10, d_value=30, d_memory=60)
    initialize(attention, "glorot_fused")
    assert attention.value.weight.std().item() == pytest.approx(
        math.sqrt(2 / (60 + 40 + 40 + 120)), rel=0.03
    )
    initialize(attention, "lecun")
    assert attention.output.weight.std().item() == pytest.approx(120**-0.5, rel=0.03)
    initialize(attention, "small")
    assert attention.query.weight.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.03)
    assert attention.value.weight.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.03)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_same_seed_gives_the_same_model(scheme: str) -> None:
    def draw(seed: int) -> list[Tensor]:
        model = language_model(scheme, n_layers=1)
        initialize(model, scheme, generator=Generator().manual_seed(seed))
        return [parameter.clone() for parameter in model.parameters()]

    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def unchanged(model: nn.Module) -> Callable[[], bool]:
    before = [parameter.clone() for parameter in model.parameters()]
    return lambda: all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", ["gpt2", None, nn.Linear])
def test_what_is_no_model_is_refused(wrong: object) -> None:
    name = type(wrong).__name__
    with pytest.raises(TypeError, match=f"^model must be a Module, got a {name}$"):
        initialize(wrong, "gpt2")


@pytest.mark.parametrize("scheme", ["gpt2", "deepnorm", "t_fixup"])
def test_scheme_that_needs_a_depth_is_refused_without_one(scheme: str) -> None:
    part = MultiHeadAttention(8, 2)
    same = unchanged(part)
    with pytest.raises(ValueError, match=f"'{scheme}' depends on the model's depth: pass n_lay"):
        initialize(part, scheme)
    assert same()


@pytest.mark.parametrize(
    ("scheme", "norm", "message"),
    [
        ("deepnorm", "post", "make the model with norm='deepnorm'"),
        ("deepnorm", "pre", "make the model with norm='deepnorm'"),
        ("t_fixup", "post", "make the model with norm='none'"),
    ],
)
def test_half_of_a_method_is_refused(scheme: str, norm: str, message: str) -> None:
    model = Encoder(ModelConfig(7, 8, 2, 1, norm=norm))
    same = unchanged(model)
    with pytest.raises(ValueError, match=message):
        initialize(model, scheme)
    assert same()


def refused(model: nn.Module, scheme: str, message: str, n_layers: int | None = None) -> None:
    same = unchanged(model)
    with pytest.raises(ValueError, match=message):
        initialize(model, scheme, n_layers=n_layers)
    assert same()


def test_deepnorm_for_another_depth_is_refused() -> None:
    model = language_model("deepnorm", n_layers=8)
    message = "for 100 blocks belongs to a stream scaled by α = 3.761, got a model made with α = 2$"
    refused(model, "deepnorm", message, n_layers=100)
    assert initialize(model, "deepnorm", n_layers=8) is model
    del model.blocks[4:]
    refused(model, "deepnorm", "for 4 blocks belongs to .* α = 1.682, got .* α = 2$")
    assert initialize(model.blocks[0], "deepnorm", n_layers=8) is model.blocks[0]


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ("encoder_blocks", "attention_residual"),
        ("decoder_blocks", "cross_attention_residual"),
        ("decoder_blocks", "feed_forward_residual"),
    ],
)
def test_deepnorm_looks_at_every_residual_of_both_stacks(stack: str, part: str) -> None:
    model = encoder_decoder("deepnorm")
    alpha = getattr(getattr(model, stack)[1], part).scale
    getattr(getattr(model, stack)[1], part).scale = 1.01 * alpha
    message = f"for 2 and 3 blocks .* α = {alpha:.4g}, got a model made with α = {1.01 * alpha:.4g}"
    refused(model, "deepnorm", message)


def test_one_stack_of_two_has_another_alpha() -> None:
    model = encoder_decoder("deepnorm")
    refused(model.encoder_blocks, "deepnorm", "for 2 blocks belongs to")


@pytest.mark.parametrize("n_layers", [None, N])
def test_a_shared_block_counts_for_each_layer(n_layers: int | None) -> None:
    model = language_model("gpt2")
    for i in range(1, N):
        model.blocks[i] = model.blocks[0]
    initialize(model, "gpt2", n_layers=n_layers)
    expected = Drawn("normal", 0.02 / math.sqrt(2 * N))
    assert_drawn([model.blocks[0].attention.output.weight], expected)


def test_t_fixup_refuses_a_layer_norm_anywhere() -> None:
    message = "make the model with norm='none'"
    model = language_model("t_fixup")
    model.final_norm = nn.LayerNorm(D)
    refused(model, "t_fixup", message)
    model = language_model("t_fixup")
    model.blocks[1].feed_forward_residual = Residual(D, norm="post")
    refused(model, "t_fixup", message)
    refused(nn.Sequential(FeedForward(8, 8), nn.LayerNorm(8)), "t_fixup", message, n_layers=3)


def test_a_cross_attention_alone_counts_as_of_a_single_stack() -> None:
    part = Transformer(TransformerConfig(9, 200, n_heads=4)).decoder_blocks[0].cross_attention
    initialize(part, "gpt2", n_layers=8)
    assert part.output.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)


@pytest.mark.usefixtures("without_shape_checks")
def test_scheme_that_is_no_name_is_refused_too() -> None:
    with pytest.raises(ValueError, match=r"unknown scheme \['he'\]; known: glorot"):
        initialize(FeedForward(4, 4), cast("str", ["he"]))


def test_unknown_scheme_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="unknown scheme 'xavier'; known: glorot, glorot_fused"):
        initialize(FeedForward(4, 4), "xavier")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("n_layers", [0, -1, 2.5, True])
def test_depth_must_be_a_positive_int(n_layers: float) -> None:
    with pytest.raises(ValueError, match=f"n_layers must be a positive integer, got {n_layers}"):
        initialize(FeedForward(4, 4), "gpt2", n_layers=n_layers)


@pytest.mark.parametrize("name", ["attention.key", "feed_forward.inner"])
def test_projection_that_was_wrapped_is_named(name: str) -> None:
    model = LanguageModel(ModelConfig(7, 12, 3, 2))
    block = model.blocks[0]
    block.set_submodule(name, nn.Sequential(block.get_submodule(name)))
    with pytest.raises(TypeError, match=rf"how to initialize blocks\.0\.{name}\.0\.weight, of a L"):
        initialize(model, "glorot")


def test_parameter_of_an_unknown_part_is_named() -> None:
    model = nn.Sequential(FeedForward(4, 4), nn.Conv1d(1, 1, 1))
    same = unchanged(model)
    with pytest.raises(TypeError, match=r"how to initialize 1\.weight, of a Conv1d"):
        initialize(model, "glorot")
    assert same()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", [0, -3, 2.0])
def test_deepnorm_has_constants_for_layers_alone(wrong: int) -> None:
    for name, make in (
        ("n_layers", deepnorm_constants),
        ("n_encoder", lambda n: deepnorm_pair(n, 2)),
        ("n_decoder", lambda n: deepnorm_pair(2, n)),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be a positive integer, got {wrong}$"):
            make(wrong)
