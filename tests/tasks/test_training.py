import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from attnbook import Encoder, ModelConfig
from attnbook.tasks import Record, accuracy, reversal_batch, train

SMALL = ModelConfig(5, d_model=8, n_heads=2, n_layers=1, d_ff=8)


def small_batch(generator: Generator) -> tuple[Tensor, Tensor]:
    return reversal_batch(4, 6, 5, generator)


def run(model: Encoder | None = None, **changes: object) -> Record:
    options = {"steps": 5, "learning_rate": 0.01, "seed": 0, **changes}
    return train(model or Encoder(SMALL), small_batch, **options)


def test_a_tiny_model_learns_reversal() -> None:
    model = Encoder(ModelConfig(8, 64, 2, 1, 64, max_tokens=8, scaled=False))
    ids, targets = reversal_batch(100, 8, 8, Generator().manual_seed(1))
    record = train(
        model,
        lambda generator: reversal_batch(16, 8, 8, generator),
        steps=400,
        learning_rate=3e-3,
        seed=0,
        evaluate=lambda model: accuracy(model, ids, targets),
        stop_at=0.99,
    )
    assert record.losses[0] > math.log(8) / 2
    assert record.losses[-1] < 0.1 * record.losses[0]
    assert accuracy(model, ids, targets) >= 0.99


@pytest.mark.parametrize("warmup", [0, 3])
def test_every_step_is_adams_at_the_warmed_up_rate(warmup: int) -> None:
    model = Encoder(SMALL)
    by_hand = copy.deepcopy(model)
    record = run(model, steps=6, warmup=warmup, seed=3)

    generator = Generator().manual_seed(3)
    adam = torch.optim.Adam(by_hand.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in range(6):
        adam.param_groups[0]["lr"] = 0.01 * ([1 / 3, 2 / 3, 1, 1, 1, 1][step] if warmup else 1)
        loss = by_hand.loss(*small_batch(generator))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert record.losses == pytest.approx(losses, rel=1e-12)
    for trained, expected in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(trained, expected, rtol=0, atol=1e-12)


def test_same_seed_gives_the_same_batches_to_every_model() -> None:
    def batches(model: Encoder, seed: int) -> Tensor:
        seen = []

        def next_batch(generator: Generator) -> tuple[Tensor, Tensor]:
            ids, targets = small_batch(generator)
            seen.append(ids)
            return ids, targets

        train(model, next_batch, steps=3, learning_rate=0.01, seed=seed)
        return torch.stack(seen)

    wider = Encoder(ModelConfig(5, d_model=16, dropout=0.5))
    assert torch.equal(batches(Encoder(SMALL), 1), batches(wider, 1))
    assert not torch.equal(batches(wider, 1), batches(wider, 2))


def test_evaluations_come_every_so_many_steps_and_at_the_end() -> None:
    record = run(steps=8, evaluate=lambda model: 0.5, evaluate_every=3)
    assert record.evaluations == {3: 0.5, 6: 0.5, 8: 0.5}
    assert len(record.losses) == 8


def test_evaluation_is_without_dropout_and_gradients_and_training_with() -> None:
    modes = []

    class Watched(Encoder):
        def forward(self, *args: Any, **options: Any) -> Any:
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(*args, **options)

    def evaluate(model: Encoder) -> float:
        return accuracy(model, *small_batch(Generator()))

    run(Watched(SMALL).eval(), steps=4, evaluate=evaluate, evaluate_every=2)
    training, evaluation = (True, True), (False, False)
    assert modes == [training, training, evaluation] * 2


def test_training_stops_as_soon_as_an_evaluation_is_high_enough() -> None:
    results = iter([0.1, 0.7, 0.9, 1.0])
    record = run(steps=100, evaluate=lambda m: next(results), evaluate_every=2, stop_at=0.9)
    assert record.evaluations == {2: 0.1, 4: 0.7, 6: 0.9}
    assert len(record.losses) == 6


def test_first_step_with_is_the_first_evaluation_that_reached_it() -> None:
    record = Record(evaluations={50: 0.2, 100: 0.8, 150: 0.7, 200: 0.9})
    assert record.first_step_with(0.1) == 50
    assert record.first_step_with(0.8) == 100
    assert record.first_step_with(0.85) == 200
    assert record.first_step_with(0.95) is None


def test_accuracy_is_the_share_of_tokens_whose_largest_logit_is_the_target() -> None:
    model, ids = Encoder(SMALL), torch.randint(5, (2, 4))
    best = model(ids).argmax(-1)
    targets = best.clone()
    targets[0, 1] = (best[0, 1] + 1) % 5
    targets[1, :2] = (best[1, :2] + 2) % 5
    assert accuracy(model, ids, best) == 1.0
    assert accuracy(model, ids, targets) == 5 / 8


def test_accuracy_leaves_out_what_the_loss_leaves_out() -> None:
    model, ids = Encoder(SMALL), torch.randint(5, (2, 4))
    targets = model(ids).argmax(-1)
    targets[0, 0] = (targets[0, 0] + 1) % 5
    targets[:, 2:] = -100
    assert accuracy(model, ids, targets) == 3 / 4
    with pytest.raises(ValueError, match="no target is left: all 8 are -100"):
        accuracy(model, ids, torch.full_like(ids, -100))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(1, 4), (4,), (2, 1), ()])
def test_accuracy_refuses_targets_of_another_shape(shape: tuple[int, ...]) -> None:
    ids, targets = torch.randint(5, (2, 4)), torch.zeros(shape, dtype=torch.int64)
    message = r"answers for \(batch, tokens\) = \(2, 4\) but targets of shape " + re.escape(
        str(shape)
    )
    with pytest.raises(ValueError, match=message):
        accuracy(Encoder(SMALL), ids, targets)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_an_evaluation_leaves_the_model_training(error: type[BaseException]) -> None:
    def evaluate(model: Encoder) -> float:
        raise error

    model = Encoder(SMALL)
    with pytest.raises(error):
        run(model, evaluate=evaluate)
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps and evaluate_every must be positive, got 0 and 50"),
        ({"warmup": -1}, "warmup must not be negative and .* got -1 and "),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0 and 0.0"),
        ({"evaluate_every": 0}, "steps and evaluate_every must be positive, got 5 and 0"),
        ({"stop_at": 0.9}, "stop_at=0.9 needs an evaluate function"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_not_finite_stops_with_the_step(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, losses = Encoder(SMALL), iter([1.0, 1.0, value])
    monkeypatch.setattr(model, "loss", lambda *batch: model.embedding.weight.mean() + next(losses))
    with pytest.raises(FloatingPointError, match=f"the loss is {value} at step 3"):
        run(model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
