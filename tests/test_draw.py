import math
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

from attnbook import (
    DRAWS,
    Encoder,
    FeedForward,
    ModelConfig,
    TokenEmbedding,
    draw_,
)
from attnbook.draw import fill_
from strategies import refused

# Written a second time, from the sources the table cites.
EXPECTED: dict[str, tuple[str, Callable[[int, int], float]]] = {
    "inverse_sqrt": ("normal", lambda fan_in, fan_out: 1 / math.sqrt(fan_out)),
    "unit": ("normal", lambda fan_in, fan_out: 1.0),
    "gpt2": ("normal", lambda fan_in, fan_out: 0.02),
    "glorot": ("uniform", lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out))),
    "glorot_normal": ("normal", lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out))),
    "he": ("normal", lambda fan_in, fan_out: math.sqrt(2 / fan_in)),
    "lecun": ("normal", lambda fan_in, fan_out: 1 / math.sqrt(fan_in)),
    "torch_linear": ("uniform", lambda fan_in, fan_out: 1 / math.sqrt(fan_in) / math.sqrt(3)),
}


def assert_drawn(weight: Tensor, distribution: str, std: float) -> None:
    """Mean, standard deviation and range, each within five standard errors."""
    n = weight.numel()
    assert abs(weight.mean().item()) < 5 * std / math.sqrt(n)
    assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
    largest = weight.abs().max().item() / std
    if distribution == "uniform":
        assert math.sqrt(3) * (1 - 50 / n) < largest <= math.sqrt(3)
    else:
        assert 3 < largest < 7
        within = (weight.abs() < std).double().mean().item()
        assert within == pytest.approx(math.erf(math.sqrt(0.5)), abs=5 * 0.47 / math.sqrt(n))


def test_every_draw_has_an_expectation() -> None:
    assert EXPECTED.keys() == DRAWS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_table_says_what_is_expected(name: str) -> None:
    distribution, std = EXPECTED[name]
    assert DRAWS[name].distribution == distribution
    for fans in [(1, 1), (1000, 64), (64, 1000)]:
        assert DRAWS[name].std(*fans) == pytest.approx(std(*fans), rel=1e-15)


@pytest.mark.parametrize(("fan_in", "fan_out"), [(300, 200), (1000, 16), (16, 1000)])
@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_drawn_is_what_the_table_says(name: str, fan_in: int, fan_out: int) -> None:
    weight = torch.full((fan_out, fan_in), torch.nan)
    generator = Generator().manual_seed(0)
    assert draw_(weight, name, fan_in=fan_in, fan_out=fan_out, generator=generator) is weight
    distribution, std = EXPECTED[name]
    assert_drawn(weight, distribution, std(fan_in, fan_out))


@pytest.mark.parametrize("name", EXPECTED)
def test_same_seed_gives_the_same_weights(name: str) -> None:
    def draw(seed: int) -> Tensor:
        generator = Generator().manual_seed(seed)
        return draw_(torch.empty(5, 3), name, fan_in=5, fan_out=3, generator=generator)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_linear_is_what_torch_draws() -> None:
    distribution, std = EXPECTED["torch_linear"]
    assert_drawn(nn.Linear(500, 300).weight, distribution, std(500, 300))


def test_no_spread_is_zeros_and_draws_nothing() -> None:
    generator = Generator().manual_seed(0)
    before = generator.get_state()
    assert not fill_(torch.ones(3), "normal", 0.0, generator).any()
    assert torch.equal(generator.get_state(), before)


def test_without_generator_the_global_seed_counts() -> None:
    torch.manual_seed(3)
    first = TokenEmbedding(5, 3).weight
    torch.manual_seed(3)
    assert torch.equal(first, TokenEmbedding(5, 3).weight)


@pytest.mark.parametrize("name", EXPECTED)
def test_embedding_takes_the_vocabulary_as_fan_in_and_d_model_as_fan_out(name: str) -> None:
    distribution, std = EXPECTED[name]
    assert_drawn(TokenEmbedding(2000, 30, init=name).weight, distribution, std(2000, 30))


def test_feed_forward_draws_glorot_with_zero_biases() -> None:
    network = FeedForward(64, 300)
    for linear in (network.inner, network.outer):
        assert_drawn(linear.weight, "uniform", math.sqrt(2 / 364))
        assert torch.equal(linear.bias, torch.zeros(linear.out_features))


def test_untied_output_layer_draws_glorot() -> None:
    model = Encoder(ModelConfig(1000, d_model=64, n_layers=1, tied=False))
    assert isinstance(model.output, nn.Linear)
    assert_drawn(model.output.weight, "uniform", math.sqrt(2 / 1064))


def test_unknown_scheme_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        ValueError, match=r"unknown initialization 'xavier'; known: inverse_sqrt, unit"
    ):
        draw_(torch.empty(2, 2), "xavier", fan_in=2, fan_out=2)


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_drawn_is_refused() -> None:
    weight = torch.ones(2, 3)
    with refused(ValueError, "fan_in must be a positive integer, got 0"):
        draw_(weight, "glorot", fan_in=0, fan_out=2)
    with refused(ValueError, "fan_out must be a positive integer, got -2"):
        draw_(weight, "unit", fan_in=3, fan_out=-2)
    with refused(ValueError, "distribution must be 'normal' or 'uniform', got 'gaussian'"):
        fill_(weight, "gaussian", 1.0)
    assert torch.equal(weight, torch.ones(2, 3))
    with refused(TypeError, "weight must be of floating type, got a tensor of torch.int64"):
        draw_(weight.long(), "unit", fan_in=3, fan_out=2)
    with refused(TypeError, "weight must be a Tensor, got a list"):
        fill_([0.0], "normal", 0.0)
