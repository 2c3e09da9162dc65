import dataclasses
import math

import pytest
import torch

from attnbook import Encoder, LanguageModel, TransformerConfig, padding_mask, sinusoidal_positions

SMALL = TransformerConfig(7, d_model=12, n_heads=3, n_layers=2, d_ff=20, max_tokens=9)


def small(**changes: object) -> TransformerConfig:
    return dataclasses.replace(SMALL, **changes)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
        ({"d_model": -4}, "d_model must be positive, got -4"),
        ({"n_heads": 0}, "n_heads must be positive, got 0"),
        ({"n_layers": 0}, "n_layers must be positive, got 0"),
        ({"d_ff": -1}, "d_ff must be positive, got -1"),
        ({"max_tokens": 0}, "max_tokens must be positive, got 0"),
        ({"d_model": 9}, "d_model must be even, got 9"),
        ({"n_heads": 5}, "n_heads must divide d_model, got 5 and 12"),
        ({"norm": "sandwich"}, "norm must be 'pre' or 'post', got 'sandwich'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must be in \[0, 1\), got -0.1"),
        ({"embedding_init": "he"}, "unknown initialization 'he'; known: inverse_sqrt"),
    ],
)
def test_config_refuses_and_names(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_inner_width_is_four_times_the_model_by_default() -> None:
    assert TransformerConfig(7, d_model=12).d_ff == 48
    assert SMALL.d_ff == 20


@pytest.mark.parametrize("model_class", [Encoder, LanguageModel])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_model_is_its_parts_one_after_the_other(
    norm: str, tied: bool, scaled: bool, model_class: type[Encoder]
) -> None:
    model = model_class(small(norm=norm, tied=tied, scaled=scaled))
    ids = torch.randint(7, (2, 5))
    mask = padding_mask(torch.tensor([3, 5]), 5)
    x = model.embedding.weight[ids] * (math.sqrt(12) if scaled else 1.0)
    x = x + sinusoidal_positions(5, 12)
    for block in model.blocks:
        x = block(x, mask, causal=model_class is LanguageModel)
    if norm == "pre":
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    output = model.embedding.weight if tied else model.output.weight
    torch.testing.assert_close(model(ids, mask), x @ output.T, rtol=0, atol=1e-12)


def test_blocks_are_as_configured() -> None:
    model = Encoder(small(norm="pre", n_layers=3, dropout=0.25))
    assert len(model.blocks) == 3
    for block in model.blocks:
        assert block.norm == "pre"
        assert block.attention.n_heads == 3
        assert block.feed_forward.inner.out_features == 20
        assert block.dropout.p == block.attention.dropout == 0.25


def test_blocks_do_not_share_weights() -> None:
    first, second = Encoder(SMALL).blocks
    assert not torch.equal(first.attention.query.weight, second.attention.query.weight)


def test_tying_saves_one_matrix() -> None:
    def count(tied: bool) -> int:
        return sum(p.numel() for p in Encoder(small(tied=tied)).parameters())

    assert count(tied=False) - count(tied=True) == 7 * 12


def test_embedding_starts_as_configured() -> None:
    model = Encoder(small(vocab_size=5000, embedding_init="small"))
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_positions_are_not_part_of_the_saved_state() -> None:
    longer = Encoder(small(max_tokens=20))
    longer.load_state_dict(Encoder(SMALL).state_dict())


def test_loss_is_the_mean_of_minus_the_log_probabilities() -> None:
    model = Encoder(SMALL)
    ids, targets = torch.randint(7, (2, 3, 5))
    probabilities = model(ids).softmax(-1).tolist()
    logs = [math.log(probabilities[b][t][targets[b, t]]) for b in range(3) for t in range(5)]
    assert model.loss(ids, targets).item() == pytest.approx(-sum(logs) / 15, rel=1e-12)


def test_changing_a_token_leaves_every_logit_before_it_as_it_was() -> None:
    model, ids = LanguageModel(SMALL), torch.randint(7, (2, 9))
    before = model(ids)
    for t in range(9):
        changed = ids.clone()
        changed[:, t] = (ids[:, t] + 1) % 7
        after = model(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(-1).all()


def test_encoder_sees_what_is_ahead() -> None:
    model, ids = Encoder(SMALL), torch.tensor([[1, 2, 3], [1, 2, 4]])
    first, second = model(ids)[:, 0]
    assert not torch.equal(first, second)


def test_only_the_positions_know_the_order() -> None:
    model, ids, order = Encoder(SMALL), torch.randint(7, (2, 6)), torch.arange(6).flip(0)
    assert not torch.allclose(model(ids[:, order]), model(ids)[:, order], atol=1e-3)
    model.positions.zero_()
    torch.testing.assert_close(model(ids[:, order]), model(ids)[:, order], rtol=0, atol=1e-12)


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    model, ids = Encoder(SMALL), torch.randint(7, (3, 6))
    torch.testing.assert_close(model(ids)[1:2], model(ids[1:2]), rtol=0, atol=1e-12)


def test_dropout_also_acts_on_the_input_and_in_training_only() -> None:
    model, ids = Encoder(small(dropout=0.5)), torch.randint(7, (200, 9))
    dropped = model.input(ids) == 0
    assert dropped.double().mean().item() == pytest.approx(0.5, abs=0.02)
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_gradient_of_the_tied_matrix_is_that_of_finite_differences() -> None:
    model = LanguageModel(small(vocab_size=3, d_model=4, n_heads=2, n_layers=1, d_ff=3))
    ids = torch.randint(3, (1, 4))

    def logits(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, {"embedding.weight": weight}, (ids,))

    assert torch.autograd.gradcheck(logits, (model.embedding.weight,))


def test_sequence_longer_than_the_model_is_refused() -> None:
    model = Encoder(SMALL)
    assert model(torch.zeros(1, 9, dtype=torch.int64)).shape == (1, 9, 7)
    with pytest.raises(ValueError, match="the model takes at most 9 tokens, got 10"):
        model(torch.zeros(1, 10, dtype=torch.int64))
