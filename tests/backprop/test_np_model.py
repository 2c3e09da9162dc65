"""Blocks, the language model and Adam against their torch twins, step by step."""

from typing import Any

import numpy as np
import pytest
import torch
from twins import assert_same_module

import attnbook
from attnbook import ModelConfig
from attnbook import backprop as bp

CONFIG = {"vocab_size": 11, "d_model": 12, "n_heads": 4, "n_layers": 2, "d_ff": 20, "max_tokens": 9}
CHOICES: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"norm": "none", "activation": "gelu"},
    {"tied": False, "activation": "gelu_tanh"},
    {"norm": "pre", "position": "learned", "scaled": False, "attention_bias": True},
    {"norm": "pre", "position": "none", "n_kv_heads": 2, "attention_bias": "qkv"},
    {"norm": "post", "n_kv_heads": 1, "attention_bias": "output", "tied": False},
]


def twins(**choices: Any) -> tuple[bp.LanguageModel, attnbook.LanguageModel]:
    """Both models with the same weights, no bias or norm left at its trivial start."""
    config = ModelConfig(**(CONFIG | choices))
    theirs = attnbook.LanguageModel(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = bp.LanguageModel(config)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def batch(seed: int = 0, shape: tuple[int, int] = (3, 7)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids, targets = rng.integers(11, size=(2, *shape))
    targets[0, :2] = -100
    return ids, targets


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("activation", list(bp.ACTIVATIONS))
@pytest.mark.parametrize("causal", [False, True])
def test_block(norm, activation, causal):
    options = {"norm": norm, "activation": activation, "n_kv_heads": 2}
    config = attnbook.BlockConfig(d_model=12, d_ff=20, attention_bias=True, **options)
    assert_same_module(
        bp.Block(12, 4, 20, bias=True, **options),
        attnbook.Block(config),
        {"x": torch.randn(2, 5, 12)},
        {"mask": torch.rand(2, 1, 5, 5) < 0.6, "causal": causal},
    )


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_weights_copy_both_ways(choices):
    config = ModelConfig(**(CONFIG | choices))
    ours, theirs = bp.LanguageModel(config, seed=3), attnbook.LanguageModel(config)
    assert [(name, p.value.shape) for name, p in ours.named_parameters()] == [
        (name, tuple(p.shape)) for name, p in theirs.named_parameters()
    ]
    theirs.load_state_dict({name: torch.from_numpy(w) for name, w in ours.state_dict().items()})
    again = bp.LanguageModel(config, seed=4)
    again.load_state_dict(theirs.state_dict())
    for name, value in ours.state_dict().items():
        assert np.array_equal(again.state_dict()[name], value)
    ids, _ = batch()
    logits = theirs(torch.from_numpy(ids)).detach().numpy()
    assert np.abs(again.forward(ids)[0] - logits).max() < 1e-12


def test_initial_weights_have_the_spread_of_the_torch_model():
    config = ModelConfig(vocab_size=500, d_model=128, norm="pre", position="learned", tied=False)
    ours = bp.LanguageModel(config).state_dict()
    for name, theirs in attnbook.LanguageModel(config).state_dict().items():
        assert ours[name].std() == pytest.approx(theirs.std().item(), rel=0.05, abs=1e-12), name
        assert ours[name].mean() == pytest.approx(theirs.mean().item(), abs=0.01), name
    matrices = [value for value in ours.values() if value.ndim == 2]
    assert len({value.ravel()[0] for value in matrices}) == len(matrices)  # no draw is used twice


@pytest.mark.parametrize("choices", CHOICES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients_of_the_model(choices, masked):
    ours, theirs = twins(**choices)
    ids, targets = batch()
    mask = np.random.default_rng(1).random((3, 1, 1, 7)) < 0.6 if masked else None
    ours.loss_and_gradients(targets[:2].clip(0), ids[:2])  # leaves nothing behind
    loss = ours.loss_and_gradients(ids, targets, mask)
    expected = theirs.loss(
        torch.from_numpy(ids),
        torch.from_numpy(targets),
        None if mask is None else torch.from_numpy(mask),
    )
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    parameters = dict(theirs.named_parameters())
    assert ours.gradients().keys() == parameters.keys()
    for name, gradient in ours.gradients().items():
        reference = parameters[name].grad.numpy()
        # A bias on the keys has no gradient: what is left is rounding.
        scale = max(np.abs(reference).max(), 1e-3)
        assert np.abs(gradient - reference).max() <= 1e-9 * scale, name


@pytest.mark.slow
def test_gradients_of_the_model_are_those_of_finite_differences():
    tiny = {"vocab_size": 11, "d_model": 4, "d_ff": 3, "n_layers": 1}
    ours, _ = twins(**tiny, norm="pre", n_kv_heads=2, attention_bias=True)
    ids, targets = batch(shape=(2, 3))
    names = list(ours.state_dict())

    def put(tensors: dict[str, np.ndarray]) -> float:
        ours.load_state_dict({name: tensors[name.replace(".", "_")] for name in names})
        return ours.loss_and_gradients(ids, targets)

    def forward(**tensors: np.ndarray) -> np.ndarray:
        return np.asarray(put(tensors))

    def backward(gradient: np.ndarray, **tensors: np.ndarray) -> dict[str, np.ndarray]:
        put(tensors)
        return {k.replace(".", "_"): gradient * g for k, g in ours.gradients().items()}

    errors = bp.check_gradient(
        forward, backward, **{k.replace(".", "_"): v for k, v in ours.state_dict().items()}
    )
    assert len(errors) == len(names)
    assert max(errors.values()) <= 1e-6


def test_two_backward_passes_add_up():
    block = bp.Block(12, 4, 20, norm="pre", bias=True)
    x, upstream = np.random.default_rng(0).standard_normal((2, 2, 5, 12))
    _, saved = block.forward(x)
    block.backward(upstream, saved)
    once = block.gradients()
    block.backward(upstream, saved)
    for name, gradient in block.gradients().items():
        assert np.array_equal(gradient, 2 * once[name]), name


def test_a_later_token_changes_no_earlier_logits_to_the_last_bit():
    ours, _ = twins(norm="pre")
    ids, _ = batch()
    before, _ = ours.forward(ids)
    ids[:, 4] = (ids[:, 4] + 1) % 11
    after, _ = ours.forward(ids)
    assert np.array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(axis=-1).all()


@pytest.mark.slow
def test_two_hundred_steps_of_adam_give_the_losses_of_torch():
    ours, theirs = twins(norm="pre")
    mine = bp.Adam(ours.parameters(), lr=3e-3)
    adam = torch.optim.Adam(theirs.parameters(), lr=3e-3)
    for step in range(200):
        ids, targets = batch(step % 5)
        loss = ours.loss_and_gradients(ids, targets)
        mine.step()
        adam.zero_grad()
        expected = theirs.loss(torch.from_numpy(ids), torch.from_numpy(targets))
        expected.backward()
        adam.step()
        assert loss == pytest.approx(expected.item(), rel=1e-8), f"step {step}"
    assert loss < 1.0  # of ln 11 = 2.4: it has learned most of the five batches


@pytest.mark.parametrize("options", [{}, {"betas": (0.5, 0.9), "eps": 1e-3}], ids=str)
def test_adam(options):
    rng = np.random.default_rng(0)
    ours = [bp.Parameter(rng.standard_normal((3, 4))), bp.Parameter(rng.standard_normal(5))]
    theirs = [torch.nn.Parameter(torch.tensor(p.value)) for p in ours]
    mine = bp.Adam(ours, lr=0.1, **options)
    adam = torch.optim.Adam(theirs, lr=0.1, **options)
    for _ in range(20):
        for parameter, twin in zip(ours, theirs, strict=True):
            parameter.grad[...] = rng.standard_normal(parameter.value.shape)
            twin.grad = torch.tensor(parameter.grad)
        mine.step()
        adam.step()
        for parameter, twin in zip(ours, theirs, strict=True):
            assert np.abs(parameter.value - twin.detach().numpy()).max() < 1e-13


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("output.weight"), "there is no value for output.weight"),
        (lambda w: w.update(more=np.ones(1)), "there is no parameter named more"),
        (
            lambda w: w.update({"output.weight": np.ones((3, 3))}),
            r"output.weight has shape \(4, 4\), got one of shape \(3, 3\)",
        ),
        (
            lambda w: w.update({"key.weight": w["key.weight"].T}),
            r"key.weight has shape \(2, 4\), got one of shape \(4, 2\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_change_nothing(change, message):
    attention = bp.MultiHeadAttention(4, 2, n_kv_heads=1)
    before = attention.state_dict()
    weights = {name: value + 1.0 for name, value in before.items()}
    change(weights)
    with pytest.raises(ValueError, match=message):
        attention.load_state_dict(weights)
    for name, value in attention.state_dict().items():
        assert np.array_equal(value, before[name])


class Tied(bp.Module):
    """One matrix under two names; parts in a tuple and a list, among other things."""

    def __init__(self) -> None:
        self.a, self.b = bp.Linear(3, 3, bias=False), bp.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight
        self.parts = (bp.Linear(3, 2, bias=False), "no part", bp.Parameter(np.zeros(1)))
        self.sizes = [4, 8]


def test_a_shared_parameter_is_one_and_takes_one_step():
    model = Tied()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["a.weight", "b.weight", "parts.0.weight", "parts.2"]
    assert [p.value.shape for p in model.parameters()] == [(3, 3), (2, 3), (1,)]
    before = model.a.weight.value.copy()
    model.a.weight.grad += 1.0
    bp.Adam(model.parameters(), lr=0.01).step()
    assert np.allclose(model.a.weight.value, before - 0.01)


def test_shared_blocks_train_as_in_torch():
    config = ModelConfig(vocab_size=7, d_model=8, n_layers=2, n_heads=2)
    theirs, ours = attnbook.LanguageModel(config).double(), bp.LanguageModel(config)
    theirs.blocks[1], ours.blocks[1] = theirs.blocks[0], ours.blocks[0]
    ours.load_state_dict(theirs.state_dict())
    ids = np.random.default_rng(0).integers(7, size=(2, 6))
    optimizer, adam = torch.optim.Adam(theirs.parameters(), 0.01), bp.Adam(ours.parameters(), 0.01)
    for _ in range(3):
        loss = theirs.loss(torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert ours.loss_and_gradients(ids[:, :-1], ids[:, 1:]) == pytest.approx(loss.item(), 1e-9)
        adam.step()


def test_models_of_different_seeds_share_no_matrix():
    config = ModelConfig(
        vocab_size=16, d_model=16, n_layers=3, position="learned", max_tokens=16, tied=False
    )
    drawn = [
        matrix.ravel()[:256]
        for seed in range(4)
        for matrix in bp.LanguageModel(config, seed=seed).state_dict().values()
        if matrix.ndim == 2
    ]
    alike = np.corrcoef([matrix for matrix in drawn if matrix.std()])
    assert np.abs(alike - np.eye(len(alike))).max() < 0.5
    again = bp.LanguageModel(config, seed=2).state_dict()
    for name, matrix in bp.LanguageModel(config, seed=2).state_dict().items():
        assert np.array_equal(matrix, again[name])


def test_values_of_the_model_itself_may_change_places():
    attention = bp.MultiHeadAttention(4, 2)
    values = {name: p.value for name, p in attention.named_parameters()}
    query, key = attention.query.weight.value.copy(), attention.key.weight.value.copy()
    values["query.weight"], values["key.weight"] = values["key.weight"], values["query.weight"]
    attention.load_state_dict(values)
    assert np.array_equal(attention.query.weight.value, key)
    assert np.array_equal(attention.key.weight.value, query)
