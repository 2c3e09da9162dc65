import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Generator, Tensor, nn

from attnbook import (
    DRAWS,
    SCHEMES,
    BlockConfig,
    DecoderBlock,
    Encoder,
    FeedForward,
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    TokenEmbedding,
    Transformer,
    TransformerConfig,
    draw_,
    initialize,
)
from attnbook import initialization as module
from attnbook.blocks import Residual
from attnbook.initialization import deepnorm_constants, deepnorm_pair, fill_

V, D, F, N = 500, 48, 80, 6  # vocabulary, d_model, d_ff, layers
KV = 24  # outputs of W_K and of W_V: half as many key heads as heads


class Drawn(NamedTuple):
    distribution: str
    std: float


def uniform(variance: float) -> Drawn:
    return Drawn("uniform", math.sqrt(variance))


def normal(variance: float) -> Drawn:
    return Drawn("normal", math.sqrt(variance))


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


def filled_with_nan(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    return model


# One matrix. Written a second time, from the sources that the table cites.

EXPECTED_DRAWS: dict[str, Callable[[int, int], Drawn]] = {
    "inverse_sqrt": lambda fan_in, fan_out: normal(1 / fan_out),
    "unit": lambda fan_in, fan_out: normal(1.0),
    "gpt2": lambda fan_in, fan_out: normal(0.02**2),
    "glorot": lambda fan_in, fan_out: uniform(2 / (fan_in + fan_out)),
    "glorot_normal": lambda fan_in, fan_out: normal(2 / (fan_in + fan_out)),
    "he": lambda fan_in, fan_out: normal(2 / fan_in),
    "lecun": lambda fan_in, fan_out: normal(1 / fan_in),
    "torch_linear": lambda fan_in, fan_out: uniform(1 / (3 * fan_in)),
}


@pytest.mark.parametrize("name", sorted({*EXPECTED_DRAWS, *DRAWS}))
def test_draw_is_what_the_table_says(name):
    for fan_in, fan_out in [(300, 200), (1000, 16), (16, 1000)]:
        weight = torch.full((fan_out, fan_in), torch.nan)
        generator = Generator().manual_seed(0)
        assert draw_(weight, name, fan_in=fan_in, fan_out=fan_out, generator=generator) is weight
        assert_drawn([weight], EXPECTED_DRAWS[name](fan_in, fan_out))
    embedding = TokenEmbedding(2000, 30, init=name)  # fan-in is the vocabulary
    assert_drawn([embedding.weight], EXPECTED_DRAWS[name](2000, 30))


def test_seed_decides_what_is_drawn():
    def draw(generator: Generator | None) -> Tensor:
        return draw_(torch.empty(5, 3), "he", fan_in=5, fan_out=3, generator=generator)

    first = draw(Generator().manual_seed(1))
    assert not torch.equal(first, draw(Generator().manual_seed(2)))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert not fill_(torch.ones(3), "normal", 0.0).any()  # no spread: nothing is drawn
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, draw(None))


def test_torch_linear_is_what_torch_draws():
    assert_drawn([nn.Linear(500, 300).weight], EXPECTED_DRAWS["torch_linear"](500, 300))


# A whole model. Written a second time, from the papers, for a stack of N blocks.


def row(
    draw: Callable[[int, int], Drawn], tables: tuple[float, float] = (1 / D, 0.02**2)
) -> dict[str, Drawn]:
    """A row of the table without exceptions: one rule for each matrix, another for tables."""
    fans = {"query": (D, D), "key": (D, KV), "value": (D, KV), "output": (D, D)}
    fans |= {"inner": (D, F), "outer": (F, D), "unembedding": (D, V)}
    matrices = {role: draw(*sizes) for role, sizes in fans.items()}
    return matrices | {"embedding": normal(tables[0]), "positions": normal(tables[1])}


def some_times(factor: float, drawn: dict[str, Drawn], *roles: str) -> dict[str, Drawn]:
    return drawn | {r: Drawn(drawn[r].distribution, factor * drawn[r].std) for r in roles}


GLOROT, FUSED = row(EXPECTED_DRAWS["glorot"]), uniform(2 / (D + D + KV + KV))
BETA, FIXUP = (8 * N) ** -0.25, 0.67 * N**-0.25
INNER = ("value", "output", "inner", "outer")
GPT2 = row(lambda fan_in, fan_out: normal(0.02**2), (0.02**2, 0.02**2))
EXPECTED: dict[str, dict[str, Drawn]] = {
    "glorot": GLOROT,
    "glorot_fused": GLOROT | {"query": FUSED, "key": FUSED, "value": FUSED},
    "he": row(EXPECTED_DRAWS["he"]),
    "lecun": row(EXPECTED_DRAWS["lecun"]),
    "torch_default": row(EXPECTED_DRAWS["torch_linear"], (1.0, 1.0)),
    "gpt2": some_times(1 / math.sqrt(2 * N), GPT2, "output", "outer"),
    "deepnorm": some_times(BETA, row(EXPECTED_DRAWS["glorot_normal"]), *INNER),
    "t_fixup": some_times((9 * N) ** -0.25, some_times(FIXUP, GLOROT, *INNER), "embedding"),
    "zero_output": GLOROT | {"output": normal(0), "outer": normal(0)},
    "small": row(lambda fan_in, fan_out: normal(2 / (5 * D))),
}
NORM = {"deepnorm": "deepnorm", "t_fixup": "none"}
SETTINGS = {"n_heads": 4, "n_kv_heads": 2, "d_ff": F, "max_tokens": 300, "tied": False}
SETTINGS |= {"position": "learned", "attention_bias": True}
every_scheme = pytest.mark.parametrize("scheme", sorted({*EXPECTED, *SCHEMES}))


def language_model(scheme: str, **changes: object) -> LanguageModel:
    settings = SETTINGS | {"n_layers": N, "norm": NORM.get(scheme, "pre")} | changes
    return LanguageModel(ModelConfig(V, d_model=D, **settings))


def matrices(model: LanguageModel) -> dict[str, list[Tensor]]:
    """Each role's matrices, one of each block; a gate counts as inner."""
    linears: dict[str, list[nn.Linear]] = {}
    for block in model.blocks:
        for part in (block.attention, block.feed_forward):
            for name, linear in part.named_children():
                if isinstance(linear, nn.Linear):
                    linears.setdefault("inner" if name == "gate" else name, []).append(linear)
    found = {role: [linear.weight for linear in group] for role, group in linears.items()}
    found["unembedding"] = [model.output.weight]
    return found | {"embedding": [model.embedding.weight], "positions": [model.positions.table]}


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@every_scheme
def test_scheme_draws_each_parameter_as_the_table_says(scheme, activation):
    model = filled_with_nan(language_model(scheme, activation=activation))
    assert initialize(model, scheme, generator=Generator().manual_seed(1)) is model
    for role, weights in matrices(model).items():
        assert_drawn(weights, EXPECTED[scheme][role])
        different = len({weight.sum().item() for weight in weights})
        assert different == (len(weights) if EXPECTED[scheme][role].std else 1)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            assert torch.equal(part.weight, torch.ones(D))
            assert torch.equal(part.bias, torch.zeros(D))
        elif isinstance(part, nn.Linear) and part.bias is not None:
            fan_in = 3 * part.in_features
            expected = uniform(1 / fan_in) if scheme == "torch_default" else normal(0)
            assert_drawn([part.bias], expected)


@pytest.mark.parametrize("tied", [False, True])
def test_initialize_draws_everything_and_only_once(tied, monkeypatch):
    drawn: list[int] = []

    def counting(weight: Tensor, *args: Any) -> Tensor:
        drawn.append(id(weight))
        return fill_(weight, *args)

    model = language_model("gpt2", tied=tied, norm_kind="rms", qk_norm=True)
    model.blocks[1] = model.blocks[0]
    parameters = dict(filled_with_nan(model).named_parameters())
    monkeypatch.setattr(module, "fill_", counting)
    initialize(model, "gpt2")
    norms = {name for name in parameters if "norm" in name}
    assert norms
    assert sorted(drawn) == sorted(id(p) for name, p in parameters.items() if name not in norms)
    for parameter in parameters.values():
        assert parameter.isfinite().all()


def test_models_start_from_glorot():
    for role, weights in matrices(language_model("glorot", norm="pre")).items():
        assert_drawn(weights, GLOROT[role])
    network = FeedForward(64, 300)
    for linear in (network.inner, network.outer):
        assert_drawn([linear.weight], uniform(2 / 364))
        assert not linear.bias.any()


def test_zero_output_makes_each_block_the_identity():
    model, x = initialize(language_model("glorot"), "zero_output"), torch.randn(2, 7, D)
    assert torch.equal(model.blocks[0](x), x)


def test_same_seed_gives_the_same_model():
    def draw(seed: int) -> Tensor:
        model = language_model("torch_default", n_layers=1)
        initialize(model, "torch_default", generator=Generator().manual_seed(seed))
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


# Encoder-decoder: what depends on depth differs between the two stacks.

N_ENC, N_DEC = 2, 3
BOTH = (N_ENC**4 * N_DEC) ** (1 / 16)


def encoder_decoder(scheme: str) -> Transformer:
    settings = SETTINGS | {"n_layers": N_ENC, "n_decoder_layers": N_DEC, "target_vocab_size": V}
    settings |= {"norm": NORM.get(scheme, "pre")}
    model = filled_with_nan(Transformer(TransformerConfig(vocab_size=V, d_model=D, **settings)))
    return initialize(model, scheme, generator=Generator().manual_seed(1))


# Which matrices have a factor, and that of a single stack, of the encoder and of the decoder.
FACTORS = {
    "gpt2": (("output", "outer"), (2 * N) ** -0.5, (2 * N_ENC) ** -0.5, (3 * N_DEC) ** -0.5),
    "deepnorm": (INNER, BETA, 0.87 / BOTH, (12 * N_DEC) ** -0.25),
    "t_fixup": (INNER, FIXUP, 0.67 * N_ENC**-0.25, (9 * N_DEC) ** -0.25),
}


@every_scheme
def test_encoder_and_decoder_each_have_their_own_factor(scheme):
    model, single = encoder_decoder(scheme), EXPECTED[scheme]
    roles, alone, in_encoder, in_decoder = FACTORS.get(scheme, ((), 1.0, 1.0, 1.0))
    for blocks, factor in ((model.encoder_blocks, in_encoder), (model.decoder_blocks, in_decoder)):
        expected = some_times(factor / alone, single, *roles)
        for part in blocks.modules():
            if isinstance(part, MultiHeadAttention | FeedForward):
                for role, linear in part.named_children():
                    if isinstance(linear, nn.Linear):
                        assert_drawn([linear.weight], expected[role])
    assert_drawn([model.output.weight], single["unembedding"])
    depth = (N_DEC / N) ** -0.25 if scheme == "t_fixup" else 1.0
    table = some_times(depth, single, "embedding")["embedding"]
    for embedding in (model.embedding, model.target_embedding):
        assert_drawn([embedding.weight], table)
    for positions in (model.positions, model.target_positions):
        assert_drawn([positions.table], single["positions"])


def test_deepnorm_constants_are_the_papers():
    assert deepnorm_constants(N) == pytest.approx(((2 * N) ** 0.25, BETA))
    encoder, decoder = deepnorm_pair(N_ENC, N_DEC)
    assert encoder == pytest.approx((0.81 * BOTH, 0.87 / BOTH))
    assert decoder == pytest.approx(((3 * N_DEC) ** 0.25, (12 * N_DEC) ** -0.25))
    model = encoder_decoder("deepnorm")
    scales = [
        {part.scale for part in stack.modules() if isinstance(part, Residual)}
        for stack in (model.encoder_blocks, model.decoder_blocks)
    ]
    assert scales == [{encoder[0]}, {decoder[0]}]


# Depth and parts


def first_output(model: LanguageModel, n_layers: int | None = None) -> Tensor:
    return initialize(model, "gpt2", n_layers=n_layers).blocks[0].attention.output.weight


def test_depth_is_counted_unless_it_is_given():
    assert_drawn([first_output(language_model("gpt2"))], normal(0.02**2 / (2 * N)))
    assert_drawn([first_output(language_model("gpt2"), 50)], normal(0.02**2 / 100))
    shared = language_model("gpt2")
    for i in range(1, N):
        shared.blocks[i] = shared.blocks[0]
    assert_drawn([first_output(shared)], normal(0.02**2 / (2 * N)))  # counts for each layer
    attention = initialize(MultiHeadAttention(200, 4), "gpt2", n_layers=8)
    assert_drawn([attention.query.weight], normal(0.02**2))
    assert_drawn([attention.output.weight], normal(0.02**2 / 16))
    decoder = initialize(DecoderBlock(BlockConfig(d_model=200, d_ff=300)), "gpt2", n_layers=8)
    for part in (decoder.feed_forward.outer, decoder.cross_attention.output):
        assert_drawn([part.weight], normal(0.02**2 / 24))


def test_wider_values_and_memories_count_as_they_are():
    attention = MultiHeadAttention(100, 4, d_head=10, d_value=30, d_memory=60)
    initialize(attention, "glorot_fused")
    assert_drawn([attention.value.weight], uniform(2 / (60 + 40 + 40 + 120)))
    assert_drawn([initialize(attention, "lecun").output.weight], normal(1 / 120))
    assert_drawn([initialize(attention, "small").value.weight], normal(2 / 500))


# Refusals


def changed(scheme: str, name: str, change: Callable[[Any], Any]) -> LanguageModel:
    """One part of a model replaced."""
    model = language_model(scheme)
    model.set_submodule(name, change(model.get_submodule(name)))
    return model


def scaled(name: str) -> Transformer:
    model = encoder_decoder("deepnorm")
    model.get_submodule(name).scale *= 1.01
    return model


def norm(_: nn.Module) -> nn.Module:
    return nn.LayerNorm(D)


ONE = "blocks.1.feed_forward"
DEEPNORM, FIXED = "norm='deepnorm'", "'t_fixup' is for a model without norms.*norm='none'"


@pytest.mark.parametrize(
    ("make", "scheme", "n_layers", "message"),
    [
        (lambda: FeedForward(4, 4), "xavier", None, "scheme 'xavier'; known: glorot, glorot_f"),
        (lambda: MultiHeadAttention(8, 2), "gpt2", None, "'gpt2' depends on .*: pass n_layers"),
        (lambda: FeedForward(8, 2), "t_fixup", None, "'t_fixup' depends on .*: pass n_layers"),
        (lambda: Encoder(ModelConfig(7, n_layers=1, norm="post")), "deepnorm", None, DEEPNORM),
        (lambda: language_model("deepnorm", n_layers=8), "deepnorm", 9, "α = 2.06.* α = 2:"),
        (
            lambda: changed("deepnorm", "blocks", lambda blocks: blocks[:4]),
            *("deepnorm", None, r"α = 1.68.* α = 1.861:"),
        ),
        (lambda: encoder_decoder("deepnorm").encoder_blocks, "deepnorm", None, DEEPNORM),
        (lambda: scaled("encoder_blocks.1.attention_residual"), "deepnorm", None, DEEPNORM),
        (lambda: scaled("decoder_blocks.1.cross_attention_residual"), "deepnorm", None, DEEPNORM),
        (lambda: scaled("decoder_blocks.1.feed_forward_residual"), "deepnorm", None, DEEPNORM),
        (lambda: language_model("gpt2"), "t_fixup", None, FIXED),
        (lambda: changed("t_fixup", "final_norm", norm), "t_fixup", None, FIXED),
        (lambda: changed("t_fixup", f"{ONE}_residual.norm", norm), "t_fixup", None, FIXED),
        (
            lambda: changed("glorot", f"{ONE}.inner", nn.Sequential),
            *("glorot", None, r"initialize blocks\.1\.feed_forward\.inner\.0\.weight"),
        ),
        (
            lambda: changed("glorot", "blocks.0.attention.key", nn.Sequential),
            *("glorot", None, r"initialize blocks\.0\.attention\.key\.0\.weight"),
        ),
        (
            lambda: nn.Sequential(FeedForward(4, 4), nn.Conv1d(1, 1, 1)),
            *("glorot", None, r"initialize 1\.weight"),
        ),
    ],
)
def test_refusal_says_what_was_given_and_expected_and_draws_nothing(
    make, scheme, n_layers, message
):
    model = make()
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    with pytest.raises((ValueError, TypeError), match=message):
        initialize(model, scheme, n_layers=n_layers)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)


def test_deepnorm_of_the_same_depth_is_accepted():
    model = language_model("deepnorm", n_layers=8)
    assert initialize(model, "deepnorm", n_layers=8) is model
    assert initialize(model.blocks[0], "deepnorm", n_layers=8) is model.blocks[0]


def test_decoder_blocks_alone_are_as_in_their_model():
    whole, alone = encoder_decoder("deepnorm"), encoder_decoder("deepnorm").decoder_blocks
    alone = initialize(alone, "deepnorm")
    for one, other in zip(alone.parameters(), whole.decoder_blocks.parameters(), strict=True):
        assert one.std().item() == pytest.approx(other.std().item(), rel=0.1)


def test_own_module_says_what_its_matrices_are():
    class Own(nn.Module):
        roles: ClassVar[dict[str, str]] = {"mix": "output"}

        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(300, 200, bias=False)

    assert_drawn([initialize(Own(), "gpt2", n_layers=8).mix.weight], normal(0.02**2 / 16))


@pytest.mark.usefixtures("without_shape_checks")
def test_draw_refuses_unknown_names_and_matrices_of_nothing():
    with pytest.raises(ValueError, match="'xavier'; known: inverse_sqrt, unit"):
        draw_(torch.empty(2, 2), "xavier", fan_in=2, fan_out=2)
    with pytest.raises(ValueError, match="fan_in and fan_out must be at least 1, got 10 and 0"):
        draw_(torch.empty(0, 10), "inverse_sqrt", fan_in=10, fan_out=0)
    with pytest.raises(ValueError, match="'normal' or 'uniform', got 'gaussian'"):
        fill_(torch.empty(2), "gaussian", 1.0)
