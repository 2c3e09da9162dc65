"""One process: what a step is, what decides it, what is refused."""

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from spawned import different
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from worker import MODEL, padded_batch

from attnbook import Encoder, LanguageModel, ModelConfig, Transformer, TransformerConfig
from attnbook.training import History, Processes, TrainingConfig, decayed, load_model, train
from attnbook.training.loop import seed_shard

SMALL = ModelConfig(5, d_model=8, n_heads=2, n_layers=1, d_ff=8)


def test_shards_of_unequal_padding_add_up_to_one_batch():
    model = LanguageModel(dataclasses.replace(MODEL, dropout=0.0))
    by_hand = copy.deepcopy(model)
    config = TrainingConfig(1, 0.01, seed=3, shards=4)
    history = train(model, padded_batch, config)

    batches = [padded_batch(seed_shard(3, 1, shard)) for shard in range(4)]
    ids, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    loss = by_hand.loss(ids, targets)
    loss.backward()
    torch.optim.Adam(by_hand.parameters(), 0.01, betas=(0.9, 0.98), eps=1e-9).step()
    assert history.losses == pytest.approx([loss.item()], rel=1e-12)
    assert history.targets == [(targets != -100).sum()]
    for ours, expected in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


def test_every_shard_of_every_step_has_batch_and_dropout_of_its_own():
    drawn = [
        (torch.rand(1, generator=seed_shard(seed, step, shard)).item(), torch.rand(1).item())
        for seed in range(2)
        for step in range(1, 4)
        for shard in range(3)
    ]
    assert len({number for pair in drawn for number in pair}) == 2 * len(drawn)


def test_training_leaves_the_global_generator_as_it_was():
    model, state = LanguageModel(MODEL), torch.get_rng_state()  # with dropout
    train(model, padded_batch, TrainingConfig(2, 0.01), evaluate=lambda model: torch.rand(1).item())
    assert torch.equal(torch.get_rng_state(), state)


def test_weight_decay_is_adamws_on_matrices_only():
    model = LanguageModel(MODEL)
    by_hand = copy.deepcopy(model)
    assert {name.rsplit(".")[-1] for name in decayed(model)} == {"weight"}
    assert not any("norm" in name for name in decayed(model))
    config = TrainingConfig(1, 0.01, weight_decay=0.5)
    train(model.eval(), padded_batch, dataclasses.replace(config, weight_decay=0.0))
    train(by_hand, padded_batch, config)
    for name, plain in model.named_parameters():
        assert torch.equal(plain, by_hand.get_parameter(name)) != (name in decayed(model))


def test_gradient_is_clipped_to_the_norm():
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    train(
        model,
        lambda generator: (),
        TrainingConfig(1, 0.1, clip=1.0, eps=1.0),
        loss=lambda model: (1000 * model.weight.sum(), 2),
    )
    # Each of the four gradients is 500, clipped to 1/2: Adam's first step is 0.1 · g / (g + ε).
    expected = torch.full((2, 2), 0.1 * 0.5 / (0.5 + 1))
    torch.testing.assert_close(before - model.weight, expected, rtol=1e-6, atol=0)


def test_encoder_decoder_trains():
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}
    model = Transformer(TransformerConfig(vocab_size=7, padding_id=0, **sizes))

    def batch(generator: Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(1, 7, (8, 5), generator=generator)
        return ids, ids

    history = train(model, batch, TrainingConfig(60, 0.01, shards=2, bfloat16=True))
    assert history.losses[-1] < history.losses[0] - 0.5
    assert model.embedding.weight.dtype == torch.float64


def test_evaluation_is_without_dropout_and_gradients_and_training_with():
    modes = []

    class Watched(LanguageModel):
        def forward(self, *args: Any, **options: Any) -> Any:
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(*args, **options)

    def evaluate(model: LanguageModel) -> float:
        return model.loss(*padded_batch(Generator())).item()

    config = TrainingConfig(4, 0.01)
    train(Watched(MODEL).eval(), padded_batch, config, evaluate=evaluate, evaluate_every=2)
    training, evaluation = (True, True), (False, False)
    assert modes == [training, training, evaluation] * 2


def test_loss_that_is_not_finite_stops_with_the_step():
    losses = iter([1.0, 1.0, math.inf])
    model = nn.Linear(2, 2)

    def loss(model: nn.Module) -> tuple[Tensor, int]:
        return model.weight.sum() * next(losses), 1

    with pytest.raises(FloatingPointError, match=r"the loss is -?inf at step 3"):
        train(model, lambda generator: (), TrainingConfig(5, 0.01), loss=loss)
    assert model.weight.isfinite().all()


def test_parameters_that_are_not_finite_are_not_saved(tmp_path):
    model, powers = nn.Linear(1, 1, bias=False), iter([1.0, 0.5])

    def loss(model: nn.Module) -> tuple[Tensor, int]:
        # Twice 0; the second time, its gradient is infinite.
        return ((model.weight - model.weight.detach()) ** next(powers)).sum(), 1

    with pytest.raises(FloatingPointError, match="weight is no longer finite after 2 steps"):
        train(model, lambda generator: (), TrainingConfig(2, 0.01), loss=loss, folder=tmp_path)
    load_model(tmp_path, model)
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_error_of_a_model_in_half_precision_says_what_helps(dtype):
    def loss(model: nn.Module) -> tuple[Tensor, int]:
        return model.weight.sum() * math.inf, 1

    model = nn.Linear(1, 1, dtype=dtype)
    with pytest.raises(FloatingPointError, match=f"in {dtype}: keep .* in float32 and take bfloat"):
        train(model, lambda generator: (), TrainingConfig(2, 0.01), loss=loss)


@pytest.mark.parametrize("shards", [1, 4])
def test_gradients_of_a_look_do_not_enter_the_first_step(shards):
    model, config = LanguageModel(MODEL), TrainingConfig(3, 0.01, shards=shards, clip=1.0)
    looked_at = copy.deepcopy(model)
    looked_at.loss(*padded_batch(Generator())).backward()
    assert train(looked_at, padded_batch, config) == train(model, padded_batch, config)
    assert not different(model.state_dict(), looked_at.state_dict())


def test_shard_without_targets_adds_nothing():
    def loss(model: nn.Module, n: Tensor) -> tuple[Tensor, Tensor]:
        return (model.weight * n).sum(), n

    def numbers_of_targets(*numbers: int) -> nn.Module:
        model, numbers_left = nn.Linear(1, 1, bias=False), iter(numbers)
        nn.init.ones_(model.weight)
        config = TrainingConfig(1, 0.1, shards=len(numbers), eps=1.0)
        train(model, lambda generator: (torch.tensor(next(numbers_left)),), config, loss=loss)
        return model.weight

    assert numbers_of_targets(3, 0).equal(numbers_of_targets(3))
    assert numbers_of_targets(0, 3).equal(numbers_of_targets(3))
    for numbers in ((0,), (0, 0)):
        with pytest.raises(ValueError, match=f"no target is left at step 1, in {len(numbers)} sha"):
            numbers_of_targets(*numbers)


def test_list_of_tensors_is_a_batch():
    model, config = LanguageModel(MODEL), TrainingConfig(2, 0.01)
    again = copy.deepcopy(model)
    listed = train(again, lambda generator: list(padded_batch(generator)), config)
    assert listed == train(model, padded_batch, config)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", ["Tensor", "dict"])
def test_batch_that_is_no_tuple_is_refused(kind):
    ids = torch.zeros(2, 3, dtype=torch.int64)
    batch = {"Tensor": ids, "dict": {"ids": ids, "targets": ids}}[kind]
    with pytest.raises(TypeError, match=f"must make a tuple of tensors, .* got a {kind}"):
        train(LanguageModel(MODEL), lambda generator: batch, TrainingConfig(1, 0.01))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("make", [np.array, list])
def test_batch_of_something_else_than_tensors_is_refused(make):
    ids = make([[1, 2, 3]])
    with pytest.raises(TypeError, match=rf'got a {type(ids).__name__} in it: .*astype\("int64"\)'):
        train(LanguageModel(MODEL), lambda generator: (ids, ids), TrainingConfig(1, 0.01))


def test_loader_that_runs_out_is_named(tmp_path):
    model, batches = LanguageModel(MODEL), iter([padded_batch(Generator())] * 5)
    config = TrainingConfig(4, 0.01, shards=2)
    with pytest.raises(ValueError, match="no batch for step 3 of 4: it has to make one at each c"):
        train(model, lambda generator: next(batches), config, folder=tmp_path, save_every=2)
    resumed = train(model, padded_batch, config, folder=tmp_path)
    assert len(resumed.losses) == 4


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (nn.ReLU(), {}, ValueError, "the ReLU has no parameter with requires_grad"),
        (nn.Linear(2, 2).requires_grad_(False), {}, ValueError, "the Linear has no parameter"),
        (nn.Linear(2, 2), {"loss": None}, TypeError, "a Linear has no loss of its own: pass loss="),
        (nn.Linear(2, 2), {"loss": 0.5}, TypeError, "loss must be a function, got 0.5"),
        (nn.Linear(2, 2), {"evaluate": 0.5}, TypeError, "evaluate must be a function, got 0.5"),
        (nn.Linear(2, 2), {"evaluated": 1}, TypeError, "evaluated must be a function, got 1"),
        (nn.Linear(2, 2), {"stop": 0.9}, TypeError, "stop must be a function, got 0.9"),
        (
            nn.Linear(2, 2),
            {"loss": lambda model: model.weight[0]},
            TypeError,
            "must return the sum over targets and their number, got a Tensor",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(model, options, error, message):
    loss = {"loss": lambda model: (model.weight.sum(), 1)}
    with pytest.raises(error, match=message):
        train(model, lambda generator: (), TrainingConfig(1, 0.01), **(loss | options))


@pytest.mark.usefixtures("without_shape_checks")
def test_data_loader_in_place_of_a_function_is_refused():
    data = DataLoader(TensorDataset(torch.zeros(4, 3)))
    for given, kind in ((data, "DataLoader"), (iter([]), "list_iterator")):
        with pytest.raises(TypeError, match=f"next_batch must be a function .* got a {kind}: of a"):
            train(LanguageModel(MODEL), given, TrainingConfig(1, 0.01))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["evaluate_every", "save_every"])
@pytest.mark.parametrize("steps", [0, 2.5, "10"])
def test_steps_between_must_be_positive(name, steps):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got {steps!r}"):
        train(LanguageModel(MODEL), padded_batch, TrainingConfig(1, 0.01), **{name: steps})


def test_evaluated_sees_each_evaluation_and_the_lowest_so_far():
    results, seen = iter([3.0, 1.0, 2.0]), []
    history = train(
        LanguageModel(MODEL),
        padded_batch,
        TrainingConfig(6, 0.01),
        evaluate=lambda model: next(results),
        evaluate_every=2,
        evaluated=lambda history: seen.append((len(history.losses), history.step_with_lowest())),
    )
    assert seen == [(2, 2), (4, 4), (6, 4)]
    assert history.first_step_with(2.5) == 2


def test_shards_that_cannot_be_spread_evenly_are_refused(monkeypatch):
    monkeypatch.setattr("attnbook.training.loop.processes", lambda: Processes(0, 3))
    with pytest.raises(ValueError, match="4 shards can't be spread evenly over 3 processes"):
        train(Encoder(SMALL), padded_batch, TrainingConfig(1, 0.01, shards=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be positive, got 0"),
        ({"warmup": -1}, "warmup must not be negative, got -1"),
        ({"shards": 0}, "shards must be positive, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be positive, got -1.0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive, got nan"),
        ({"steps": 2.5}, "steps must be an integer, got 2.5"),
        ({"seed": -1}, "seed must be at least 0 and below 2.*64, got -1"),
        ({"seed": 2**64}, "seed must be at least 0 and below 2.*64, got 18446744073709551616"),
        ({"clip": 0.0}, "clip must be positive, or None for no limit, got 0.0"),
        ({"clip": -1.0}, "clip must be positive, or None for no limit, got -1.0"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative, got -1.0"),
        ({"betas": (0.9, 1.0)}, r"betas must be two, at least 0 and below 1, got \(0.9, 1.0\)"),
        ({"betas": 0.9}, "betas must be two, at least 0 and below 1, got 0.9"),
        ({"betas": (0.9, 0.9, 0.9)}, "betas must be two, "),
        ({"learning_rate": "0.1"}, "learning_rate must be a number, got '0.1'"),
        ({"learning_rate": torch.tensor(0.1)}, r"learning_rate must be a number, got tensor\(0.1"),
        ({"weight_decay": None}, "weight_decay must be a number, got None"),
        ({"clip": "1"}, "clip must be a number, got '1'"),
        ({"bfloat16": "no"}, "bfloat16 must be True or False, got 'no'"),
        ({"eps": 0.0}, "eps must be positive, got 0.0"),
        ({"schedule": "linear"}, "schedule must be 'constant', 'cosine' or 'inverse_sqrt'"),
        ({"schedule": "inverse_sqrt"}, "'inverse_sqrt' needs a warm-up"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_configurations_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**{"steps": 5, "learning_rate": 0.01, **options})


@pytest.mark.parametrize("step", [1, 3, 4, 5, 40])
def test_the_inverse_square_root_is_the_papers(step):
    d_model, warmup = 512, 4
    config = TrainingConfig(40, (d_model * warmup) ** -0.5, warmup=warmup, schedule="inverse_sqrt")
    noam = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert math.isclose(config.rate(step), noam)


@pytest.mark.parametrize("step", [0, 6])
def test_there_is_no_rate_of_a_step_that_is_not_taken(step):
    with pytest.raises(ValueError, match=f"there are steps 1 to 5, got {step}"):
        TrainingConfig(5, 0.01, schedule="cosine").rate(step)


def test_what_is_not_a_number_is_not_the_lowest():
    assert History(evaluations={1: math.nan, 2: 3.0, 3: math.nan, 4: 2.0}).step_with_lowest() == 4
    assert History(evaluations={1: math.nan}).step_with_lowest() is None
    assert History(evaluations={1: math.nan, 2: 0.5}).first_step_with(0.5) == 2


def test_training_needs_no_progress_bar(monkeypatch):
    monkeypatch.setattr("attnbook.training.progress.tqdm", None)
    assert len(train(LanguageModel(MODEL), padded_batch, TrainingConfig(2, 0.01)).losses) == 2


def test_history_draws_losses_and_evaluations():
    losses, evaluations = History([3.0, 2.0, 1.0], [4, 4, 4], {2: 0.5, 3: 0.7}).plot()
    assert losses.lines[0].get_ydata().tolist() == [3.0, 2.0, 1.0]
    assert list(evaluations.lines[0].get_xdata()) == [2, 3]
    assert len(History([1.0], [4]).plot()) == 1
