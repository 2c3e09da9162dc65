import copy
import math
import re

import pytest
import torch
from torch import Generator, Tensor

from attnbook import Encoder, ModelConfig
from attnbook.tasks import accuracy, reversal_batch, train
from attnbook.training import History

SMALL = ModelConfig(5, d_model=8, n_heads=2, n_layers=1, d_ff=8)


def small_batch(generator: Generator) -> tuple[Tensor, Tensor]:
    return reversal_batch(4, 6, 5, generator)


def run(model: Encoder | None = None, **changes: object) -> History:
    options = {"steps": 5, "learning_rate": 0.01, "seed": 0, **changes}
    return train(model or Encoder(SMALL), small_batch, **options)


def test_a_tiny_model_learns_reversal():
    sizes = {"d_model": 64, "n_heads": 2, "n_layers": 1, "d_ff": 64, "max_tokens": 8}
    model = Encoder(ModelConfig(8, scaled=False, **sizes))
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
def test_every_step_is_adams_at_the_warmed_up_rate(warmup):
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


def test_same_seed_gives_the_same_batches_to_every_model():
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


def test_training_stops_as_soon_as_an_evaluation_is_high_enough():
    results = iter([0.1, 0.7, 0.9, 1.0])
    record = run(steps=100, evaluate=lambda m: next(results), evaluate_every=2, stop_at=0.9)
    assert record.evaluations == {2: 0.1, 4: 0.7, 6: 0.9}
    assert len(record.losses) == 6


def test_accuracy_is_the_share_of_tokens_whose_largest_logit_is_the_target():
    model, ids = Encoder(SMALL), torch.randint(5, (2, 4))
    best = model(ids).argmax(-1)
    targets = best.clone()
    targets[0, 1] = (best[0, 1] + 1) % 5
    targets[1, :2] = (best[1, :2] + 2) % 5
    assert accuracy(model, ids, best) == 1.0
    assert accuracy(model, ids, targets) == 5 / 8


def test_accuracy_leaves_out_what_the_loss_leaves_out():
    model, ids = Encoder(SMALL), torch.randint(5, (2, 4))
    targets = model(ids).argmax(-1)
    targets[0, 0] = (targets[0, 0] + 1) % 5
    targets[:, 2:] = -100
    assert accuracy(model, ids, targets) == 3 / 4
    with pytest.raises(ValueError, match="no target is left: all 8 are -100"):
        accuracy(model, ids, torch.full_like(ids, -100))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_accuracy_refuses_targets_that_are_no_tokens(wrong):
    ids = torch.randint(5, (2, 4))
    targets = ids.masked_fill(torch.eye(2, 4, dtype=torch.bool), wrong)
    with pytest.raises(ValueError, match=r"must be tokens, 0 to 4, or -100, got -?\d to \d"):
        accuracy(Encoder(SMALL), ids, targets)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("shape", [(1, 4), (4,), (2, 1), ()])
def test_accuracy_refuses_targets_of_another_shape(shape):
    ids, targets = torch.randint(5, (2, 4)), torch.zeros(shape, dtype=torch.int64)
    message = r"answers for \(batch, tokens\) = \(2, 4\) but targets of shape " + re.escape(
        str(shape)
    )
    with pytest.raises(ValueError, match=message):
        accuracy(Encoder(SMALL), ids, targets)
