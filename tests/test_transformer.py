import copy
import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from attnbook import (
    ALiBi,
    DecoderBlock,
    DecoderCache,
    Encoder,
    EncoderBlock,
    KeyValueCache,
    LanguageModel,
    LearnedPositions,
    ModelConfig,
    Rotary,
    SinusoidalPositions,
    Transformer,
    TransformerConfig,
    padding_mask,
    sinusoidal_positions,
)
from attnbook.transformer import Model, PositionKind
from strategies import (
    assert_gradients_are_finite_differences,
    assert_rounded,
    configs,
    dtypes,
    pairs,
    seeds,
)

SMALL = ModelConfig(7, d_model=12, n_heads=3, n_layers=2, d_ff=20, max_tokens=9)


def small(**changes: object) -> ModelConfig:
    return dataclasses.replace(SMALL, **changes)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be a positive int, got 0"),
        ({"d_model": -4}, "d_model must be a positive int, got -4"),
        ({"n_layers": 0}, "n_layers must be a positive int, got 0"),
        ({"max_tokens": 0}, "max_tokens must be a positive int, got 0"),
        ({"d_model": 9}, "d_model must be even for sinusoids, got 9"),
        ({"d_model": 9, "position": "rotary"}, "d_model/n_heads must be even .* got 9 and 3"),
        ({"n_kv_heads": 2}, "n_kv_heads must divide n_heads, got 2 and 3"),
        ({"n_kv_heads": -3}, "n_kv_heads must be a positive int, got -3"),
        ({"position": "relative"}, "position must be one of sinusoidal, .*, got 'relative'"),
        ({"activation": "swish"}, "activation must be one of relu, .*, got 'swish'"),
        ({"n_heads": 5}, "n_heads must divide d_model, got 5 and 12"),
        ({"norm": "sandwich"}, "norm must be one of pre, post, none, deepnorm, got 'sandwich'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"vocab_size": True}, "vocab_size must be a positive int, got True"),
        ({"d_ff": "20"}, r"d_ff must be a positive int, got '20'"),
        ({"n_heads": np.int64(3)}, r"n_heads must be a positive int, got np.int64\(3\)"),
        ({"tied": np.True_}, "tied must be one of True, False, got np.True_"),
        ({"dropout": np.float32(0.1)}, "dropout must be a float, got np.float32"),
        ({"rotary_base": math.nan}, "rotary_base must be a positive finite float, got nan"),
        ({"rotary_base": math.inf}, "rotary_base must be a positive finite float, got inf"),
        ({"tied": "no"}, "tied must be one of True, False, got 'no'"),
        ({"embedding_init": "xavier"}, "unknown initialization 'xavier'; known: inverse_sqrt"),
        ({"embedding_init": ["unit"]}, r"unknown initialization \['unit'\]; known: inverse_sqrt"),
    ],
)
def test_config_refuses_and_names(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_inner_width_is_four_times_the_model_by_default() -> None:
    def inner(**changes: object) -> int:
        return Encoder(small(**changes)).blocks[0].feed_forward.inner.out_features

    assert inner() == 20
    assert inner(d_ff=None) == 48
    assert inner(d_ff=None, d_model=24) == 96


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
        assert block.attention_residual.place == "pre"
        assert block.attention.n_heads == block.attention.n_kv_heads == 3
        assert block.feed_forward.inner.out_features == 20
        assert block.feed_forward_residual.dropout == block.attention.dropout == 0.25


@pytest.mark.parametrize("model_class", [Encoder, LanguageModel, Transformer])
def test_dropout_reaches_every_part(model_class: type[Encoder | Transformer]) -> None:
    config = pair if model_class is Transformer else lambda **how: model_class(small(**how))
    parts = {
        name: part.dropout
        for name, part in config(dropout=0.25).named_modules()
        if hasattr(part, "dropout")
    }
    assert set(parts.values()) == {0.25}
    # The embeddings; in a block two parts and two residuals, in a decoder's three and three.
    assert len(parts) == (1 + 2 * 4 + 6 if model_class is Transformer else 1 + 2 * 4)


@pytest.mark.parametrize("config", [ModelConfig(7), TransformerConfig(7)])
def test_a_config_does_not_change(config: ModelConfig) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_layers = 3
    assert hash(config) == hash(dataclasses.replace(config))


@pytest.mark.parametrize("model_class", [Encoder, LanguageModel])
def test_rarer_choices_reach_the_blocks(model_class: type[Encoder]) -> None:
    changes = {"n_heads": 2, "n_kv_heads": 1, "position": "alibi", "activation": "gelu_tanh"}
    model = model_class(small(**changes, attention_bias=True, norm="deepnorm"))
    for block in model.blocks:
        assert block.attention.n_kv_heads == 1
        assert block.attention.position == ALiBi(bidirectional=model_class is Encoder)
        assert block.attention.query.bias is not None
        assert block.feed_forward.activation == "gelu_tanh"
        assert block.attention_residual.place == "post"
        assert block.attention_residual.scale == pytest.approx(4**0.25)
    assert isinstance(model.final_norm, nn.Identity)


@pytest.mark.parametrize(
    ("option", "part"), [("feed_forward_bias", "feed_forward."), ("norm_bias", "norm.")]
)
def test_biases_are_left_out_of_the_whole_model(option: str, part: str) -> None:
    def biases(**changes: object) -> set[str]:
        model = LanguageModel(small(norm="pre", attention_bias=True, **changes))
        return {name for name, _ in model.named_parameters() if name.endswith("bias")}

    left = {name for name in biases() if part not in name}
    assert biases(**{option: False}) == left < biases()


def test_each_kind_of_position_is_where_it_belongs() -> None:
    def model(position: str) -> Encoder:
        return Encoder(small(position=position, n_heads=2))

    assert isinstance(model("sinusoidal").positions, SinusoidalPositions)
    assert isinstance(model("learned").positions, LearnedPositions)
    for kind in ("rotary", "alibi", "none"):
        assert model(kind).positions is None
    expected = {"rotary": Rotary(), "alibi": ALiBi(bidirectional=True)}
    for kind in ("sinusoidal", "learned", "rotary", "alibi", "none"):
        for block in model(kind).blocks:
            assert block.attention.position == expected.get(kind)
    slower = Encoder(small(position="rotary", n_heads=2, rotary_base=50.0))
    assert slower.blocks[1].attention.position == Rotary(base=50.0)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi"])
def test_order_matters_with_every_kind_of_position(position: str) -> None:
    model, ids = Encoder(small(position=position, n_heads=2)), torch.arange(6)[None]
    order = torch.tensor([2, 0, 1, 5, 3, 4])  # not a mirror image: ALiBi is symmetric
    assert not torch.allclose(model(ids[:, order]), model(ids)[:, order], atol=1e-4)


def test_blocks_do_not_share_weights() -> None:
    first, second = Encoder(SMALL).blocks
    assert not torch.equal(first.attention.query.weight, second.attention.query.weight)


def test_tying_saves_one_matrix() -> None:
    def count(tied: bool) -> int:
        return sum(p.numel() for p in Encoder(small(tied=tied)).parameters())

    assert count(tied=False) - count(tied=True) == 7 * 12


def test_embedding_starts_as_configured() -> None:
    model = Encoder(small(vocab_size=5000, embedding_init="gpt2"))
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_is_not_rounded_in_half_precision(dtype: torch.dtype) -> None:
    model = LanguageModel(small(max_tokens=70_000, n_layers=1, position="none")).to(dtype)
    logits = torch.zeros(1, 70_000, 7, dtype=dtype)
    targets = torch.zeros(1, 70_000, dtype=torch.int64)
    assert model._cross_entropy(logits, targets).item() == pytest.approx(math.log(7), rel=1e-5)
    ids = torch.tensor([[1, 2, 3]])
    assert model.loss(ids, ids).dtype == torch.float32
    model.loss(ids, ids).backward()
    assert model.embedding.weight.grad.dtype == dtype


@given(config=configs(), tokens=st.integers(2, 9), dtype=dtypes, data=st.data())
def test_changing_a_token_leaves_every_logit_before_it_as_it_was(
    config: ModelConfig, tokens: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    model, ids = LanguageModel(config).to(dtype), torch.randint(7, (2, tokens))
    changed, t = ids.clone(), data.draw(st.integers(0, tokens - 1))
    changed[:, t] = (ids[:, t] + 1) % 7
    before, after = model(ids), model(changed)
    assert torch.equal(after[:, :t], before[:, :t])
    if dtype == torch.float64:  # a small change may be rounded away
        assert (after[:, t:] != before[:, t:]).any(-1).all()


def gradients(model: Model, logits: Tensor, direction: Tensor) -> list[Tensor]:
    """Zeros where a parameter has none."""
    return torch.autograd.grad(logits, [*model.parameters()], direction, materialize_grads=True)


@pytest.mark.parametrize("model_class", [Encoder, LanguageModel])
@given(config=configs(), tokens=st.integers(1, 6), dtype=dtypes, seed=seeds)
def test_what_stands_under_the_mask_reaches_no_real_logit_and_no_gradient(
    model_class: type[Encoder], config: ModelConfig, tokens: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    model, ids = model_class(config).to(dtype), torch.randint(1, 7, (2, tokens))
    real = torch.rand(2, tokens) < 0.6
    ids, direction = ids.masked_fill(~real, 0), torch.randn(2, tokens, 7, dtype=dtype)
    direction[~real] = 0.0
    before = model(ids, real[:, None, None])
    gradients_before = gradients(model, before, direction)
    other = torch.where(real, ids, torch.randint(1, 7, (2, tokens)))
    after = model(other, real[:, None, None])
    assert torch.equal(after[real], before[real])
    for ours, theirs in zip(gradients(model, after, direction), gradients_before, strict=True):
        assert torch.equal(ours, theirs)


def test_encoder_sees_what_is_ahead() -> None:
    model, ids = Encoder(SMALL), torch.tensor([[1, 2, 3], [1, 2, 4]])
    first, second = model(ids)[:, 0]
    assert not torch.equal(first, second)


def test_only_the_positions_know_the_order() -> None:
    model, ids, order = Encoder(SMALL), torch.randint(7, (2, 6)), torch.arange(6).flip(0)
    assert not torch.allclose(model(ids[:, order]), model(ids)[:, order], atol=1e-3)
    model.positions.table.zero_()
    torch.testing.assert_close(model(ids[:, order]), model(ids)[:, order], rtol=0, atol=1e-12)


def test_sequence_longer_than_the_model_is_refused() -> None:
    model = Encoder(SMALL)
    assert model(torch.zeros(1, 9, dtype=torch.int64)).shape == (1, 9, 7)
    with pytest.raises(ValueError, match="the model takes at most 9 tokens, got 10"):
        model(torch.zeros(1, 10, dtype=torch.int64))


@pytest.mark.parametrize("target", [-1, 7])
def test_targets_outside_the_vocabulary_are_refused(target: int) -> None:
    ids = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=rf"targets must be in 0 … 6, or -100 .* {target}"):
        Encoder(SMALL).loss(ids, torch.tensor([[target, target]]))


def test_a_target_that_is_left_out_is_not_the_one_that_is_wrong() -> None:
    ids = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"got -1 to 5$"):
        Encoder(SMALL).loss(ids, torch.tensor([[-100, 5, -1]]))


def test_targets_of_an_encoder_decoder_are_a_batch(without_shape_checks: None) -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"target must have shape \(batch, tokens\), got \(5,\)"):
        pair().loss(ids, ids[0])


def test_targets_are_as_many_as_ids(without_shape_checks: None) -> None:
    ids = torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"= \(2, 5\) but targets of shape \(2, 4\)"):
        Encoder(SMALL).loss(ids, ids[:, 1:])


def test_nothing_left_to_predict_is_refused() -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="no target is left: all 10 are -100"):
        LanguageModel(SMALL).loss(ids, torch.full_like(ids, -100))
    with pytest.raises(ValueError, match="no target is left: all 8 are 0"):
        pair().loss(ids, torch.zeros_like(ids))


def test_loss_reads_no_value_off_the_processor() -> None:
    """A GPU would be waited for; the meta device has no values to read."""
    model, ids = LanguageModel(SMALL).to("meta"), torch.ones(2, 5, dtype=torch.int64, device="meta")
    assert model.loss(ids, ids).device.type == "meta"


def test_loss_with_a_mask_is_that_of_the_masked_logits() -> None:
    model, ids = LanguageModel(SMALL), torch.randint(7, (2, 5))
    mask = padding_mask(torch.tensor([3, 5]), 5)
    expected = nn.functional.cross_entropy(model(ids, mask).flatten(0, 1), ids.flatten())
    assert torch.equal(model.loss(ids, ids, mask), expected)
    assert not torch.equal(model.loss(ids, ids), expected)


@pytest.mark.parametrize(
    ("model_class", "config", "message"),
    [
        (LanguageModel, TransformerConfig(7), "LanguageModel is made from a ModelConfig, got a T"),
        (Transformer, SMALL, "Transformer is made from a TransformerConfig, got a ModelConfig"),
        (Encoder, {"vocab_size": 7}, "Encoder is made from a ModelConfig, got a dict"),
    ],
)
def test_model_wants_its_own_configuration(
    model_class: type[Model], config: object, message: str, without_shape_checks: None
) -> None:
    with pytest.raises(TypeError, match=message):
        model_class(config)


@pytest.mark.parametrize("shape", [(7,), (1, 2, 3)])
def test_ids_are_a_batch_of_sequences(shape: tuple[int, ...], without_shape_checks: None) -> None:
    ids = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"ids must have shape \(batch, tokens\), got"):
        Encoder(SMALL)(ids)


def test_targets_of_minus_100_are_left_out() -> None:
    model, ids = Encoder(SMALL), torch.randint(7, (2, 5))
    targets = ids.clone()
    targets[:, 2:] = -100
    log = model(ids)[:, :2].log_softmax(-1).gather(-1, ids[:, :2, None])
    assert model.loss(ids, targets).item() == pytest.approx(-log.mean().item(), rel=1e-12)


@pytest.mark.usefixtures("without_shape_checks")
def test_targets_and_ids_are_integers() -> None:
    model, ids = LanguageModel(SMALL), torch.tensor([[1, 2]])
    with pytest.raises(TypeError, match=r"targets must be integers, got a tensor of torch.float"):
        model.loss(ids, torch.tensor([[1.7, 2.9]]))
    for call in (model, lambda ids: model.generate(ids, 1)):
        with pytest.raises(TypeError, match="ids must be an integer tensor, got a list"):
            call([[1, 2]])
        with pytest.raises(TypeError, match=r"ids must be integers, got a tensor of torch.float"):
            call(torch.tensor([[1.7, 2.9]]))


def test_no_small_integer_is_taken_for_minus_100() -> None:
    model, ids = LanguageModel(small(vocab_size=200)), torch.tensor([[1, 2, 3]])
    targets = torch.full((1, 3), 156)  # as uint8, the same as -100
    assert torch.equal(model.loss(ids, targets.byte()), model.loss(ids, targets))
    small_ids = ids.to(torch.uint16)
    assert torch.equal(
        model.generate(small_ids, 2, temperature=0), model.generate(ids, 2, temperature=0)
    )


# Gradients of whole models


positions = pytest.mark.parametrize("position", get_args(PositionKind))
TINY = {"vocab_size": 3, "d_model": 4, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1, "d_ff": 3}
TINY["max_tokens"] = 3


@pytest.mark.parametrize(
    ("model_class", "position", "norm"),
    [
        (LanguageModel, "rotary", "pre"),
        (LanguageModel, "learned", "deepnorm"),
        (Encoder, "alibi", "post"),
    ],
)
def test_gradients_of_a_stack(model_class: type[Encoder], position: str, norm: str) -> None:
    config = ModelConfig(**TINY, norm=norm, position=position, tied=False, activation="gelu")
    model, ids = model_class(config), torch.tensor([[0, 2, 1]])
    mask = torch.tensor([True, False, True])
    assert_gradients_are_finite_differences(lambda: model(ids, mask), *model.parameters())


def test_gradients_of_a_loss_with_tied_matrices() -> None:
    model, ids = LanguageModel(ModelConfig(**TINY)), torch.tensor([[0, 2, 1]])
    targets, mask = torch.tensor([[2, -100, 1]]), torch.tensor([False, True, True])
    leaves = model.parameters()
    assert_gradients_are_finite_differences(lambda: model.loss(ids, targets, mask), *leaves)


@pytest.mark.parametrize(
    ("position", "norm", "tied"), [("alibi", "pre", False), ("learned", "deepnorm", True)]
)
def test_gradients_of_an_encoder_decoder(position: str, norm: str, tied: bool) -> None:
    config = TransformerConfig(**TINY, position=position, norm=norm, tied=tied, padding_id=0)
    model = Transformer(dataclasses.replace(config, activation="gelu"))
    source, target = torch.tensor([[1, 0], [0, 0]]), torch.tensor([[1, 2], [2, 0]])
    assert_gradients_are_finite_differences(lambda: model(source, target), *model.parameters())


def test_gradients_of_an_encoder_decoders_loss() -> None:
    config = TransformerConfig(**TINY, target_vocab_size=4, padding_id=0, activation="gelu")
    model, source = Transformer(config), torch.tensor([[1, 0], [2, 1]])
    target, leaves = torch.tensor([[1, 2, 3], [2, 3, 0]]), model.parameters()
    assert_gradients_are_finite_differences(lambda: model.loss(source, target), *leaves)


# Decoding with a cache


def in_parts(draw: st.DrawFn, tokens: int) -> list[int]:
    """So many tokens at a time."""
    parts = []
    while tokens > sum(parts):
        parts.append(draw(st.integers(1, tokens - sum(parts))))
    return parts


@given(config=configs(), tokens=st.integers(1, 9), dtype=dtypes, data=st.data())
def test_cache_is_no_cache(
    config: ModelConfig, tokens: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    model, ids = LanguageModel(config).to(dtype), torch.randint(7, (2, tokens))
    mask, cache, steps = torch.rand(2, 1, 1, tokens) < 0.7, model.new_cache(), []
    for part in ids.split(in_parts(data.draw, tokens), dim=1):
        end = len(cache[0]) + part.shape[1]
        steps.append(model(part, mask[..., :end], cache=cache))
        assert [len(one) for one in cache] == [end] * config.n_layers
    assert_rounded(torch.cat(steps, dim=1), model(ids, mask))


@positions
def test_long_sequences_are_no_other_than_short_ones(position: str) -> None:
    model = LanguageModel(small(position=position, n_heads=2, max_tokens=700))
    ids, cache = torch.randint(7, (1, 700)), model.new_cache()
    whole = model(ids)
    steps = [model(part, cache=cache) for part in ids.split([1, 600, 1, 98], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-11)
    other = ids.clone()
    other[:, 650] = (ids[:, 650] + 1) % 7
    changed = model(other)
    assert torch.equal(changed[:, :650], whole[:, :650])
    assert not torch.equal(changed[:, 650:], whole[:, 650:])


def test_call_that_fails_leaves_every_cache_as_it_was() -> None:
    model = LanguageModel(small(position="rotary", n_heads=2))
    ids, cache = torch.randint(7, (1, 5)), model.new_cache()
    model(ids[:, :3], cache=cache)
    with pytest.raises(ValueError, match="does not broadcast"):
        model(ids[:, 3:], torch.ones(2, 2, dtype=torch.bool), cache=cache)
    assert [len(one) for one in cache] == [3, 3]
    torch.testing.assert_close(
        model(ids[:, 3:], cache=cache), model(ids)[:, 3:], rtol=0, atol=1e-12
    )


def break_(linear: nn.Linear) -> Callable[[], None]:
    """It fails, until what is returned is called."""
    whole, linear.weight = linear.weight, nn.Parameter(linear.weight[:, :5])
    return lambda: setattr(linear, "weight", whole)


@pytest.mark.parametrize("where", ["block", "output"])
def test_so_does_one_that_fails_late(where: str) -> None:
    model, ids = LanguageModel(small(tied=False)), torch.randint(7, (1, 5))
    cache = model.new_cache()
    model(ids[:, :3], cache=cache)
    mend = break_(model.blocks[-1].feed_forward.inner if where == "block" else model.output)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(ids[:, 3:], cache=cache)
    assert [len(one) for one in cache] == [3, 3]
    mend()
    again = model(ids[:, 3:], cache=cache)
    torch.testing.assert_close(again, model(ids)[:, 3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("where", ["block", "output"])
def test_call_that_fails_leaves_the_decoders_cache_as_it_was(
    where: str, n_layers: int, held: int, without_shape_checks: None
) -> None:
    model = pair(n_decoder_layers=n_layers, tied=False)
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 2]])
    memory, cache = model.encode(source), model.new_cache()
    model.decode(target[:, :held], memory, source, cache=cache)
    wrong = memory + 1 if held else memory.repeat(2, 1, 1)  # another memory, another batch
    with pytest.raises(ValueError, match=r"something else than this tensor|a batch of 1"):
        model.decode(target[:, held:], wrong, source.expand(len(wrong), -1), cache=cache)
    assert [len(one) for one in cache] == n_layers * [held]
    last = model.decoder_blocks[-1].feed_forward.inner if where == "block" else model.output
    mend = break_(last)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model.decode(target[:, held:], memory, source, cache=cache)
    mend()
    again = model.decode(target[:, held:], memory, source, cache=cache)
    expected = model.decode(target, memory, source)[:, held:]
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-12)


def test_a_block_restores_both_of_its_caches(without_shape_checks: None) -> None:
    block, cache, x = DecoderBlock(8, 2, 16), DecoderCache(), torch.randn(1, 3, 8)
    with pytest.raises(ValueError, match="a batch of 1 but memory of 2"):
        block(x, torch.randn(2, 4, 8), cache=cache)
    assert len(cache) == 0
    encoder, own = EncoderBlock(8, 2, 16), KeyValueCache()
    break_(encoder.feed_forward.inner)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        encoder(x, causal=True, cache=own)
    assert len(own) == 0


def test_a_step_does_not_hold_the_old_keys_of_all_blocks() -> None:
    model, ids, alive = LanguageModel(SMALL), torch.randint(7, (1, 5)), []
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :3], cache=cache)
        old = weakref.ref(cache[0].key)
        model.blocks[1].register_forward_hook(lambda *_: alive.append(old() is not None))
        model(ids[:, 3:], cache=cache)
    assert alive == [False]


def test_a_copy_of_a_cache_goes_on_where_it_was() -> None:
    model, source = pair(), torch.tensor([[3, 4, 5]])
    memory, cache = model.encode(source).detach(), model.new_cache()
    with torch.no_grad():
        model.decode(source[:, :1], memory, source, cache=cache)
        both = [
            model.decode(source[:, 1:], memory, source, cache=one)
            for one in (copy.deepcopy(cache), cache)
        ]
    assert torch.equal(*both)


def test_cache_is_as_long_as_the_model_at_most() -> None:
    model = LanguageModel(SMALL)
    cache = model.new_cache()
    model(torch.zeros(1, 6, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="the model takes at most 9 tokens, got 10"):
        model(torch.zeros(1, 4, dtype=torch.int64), cache=cache)


def caches(*lengths: int) -> list[KeyValueCache]:
    made = [KeyValueCache() for _ in lengths]
    for cache, length in zip(made, lengths, strict=True):
        cache.keep(torch.zeros(1, 3, length, 4), torch.zeros(1, 3, length, 4))
    return made


@pytest.mark.parametrize(
    ("cache", "error", "message"),
    [
        (KeyValueCache(), TypeError, r"list of KeyValueCache, as new_cache\(\) .* got a KeyValueC"),
        ([DecoderCache(), None], TypeError, ".* got a list of DecoderCache, NoneType$"),
        ([], ValueError, "has 2 blocks, .* got 0 of lengths"),
        (caches(2), ValueError, r"has 2 blocks, .* got 1 of lengths \[2\]"),
        (caches(2, 3), ValueError, r"all as long; got 2 of lengths \[2, 3\]"),
        (caches(2) * 2, ValueError, r"no two of them the same, .* got 2 of lengths \[2\]"),
    ],
)
def test_cache_that_is_not_the_models_is_refused(
    cache: object, error: type[Exception], message: str, without_shape_checks: None
) -> None:
    with pytest.raises(error, match=message):
        LanguageModel(SMALL)(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


def test_decoders_cache_is_checked_too() -> None:
    model, ids = pair(n_decoder_layers=2), torch.ones(1, 2, dtype=torch.int64)
    assert [type(one) for one in model.new_cache()] == [DecoderCache, DecoderCache]
    with pytest.raises(ValueError, match=r"its cache one DecoderCache for each, .* got 1 of"):
        model.decode(ids, model.encode(ids), ids, cache=[DecoderCache()])


@positions
def test_greedy_generation_takes_the_likeliest_token_again_and_again(position: str) -> None:
    model = LanguageModel(small(position=position, n_heads=2))
    ids = start = torch.randint(7, (3, 2))
    for _ in range(5):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(model.generate(start, 5, temperature=0), ids)


def frequencies(**options: object) -> tuple[Tensor, Tensor]:
    """How often each token follows in 4000 draws, and the logits they are drawn from."""
    model, ids = LanguageModel(small(tied=False)), torch.tensor([[1, 2]])
    drawn = model.generate(ids.expand(4000, 2), 1, generator=Generator().manual_seed(5), **options)
    return drawn[:, 2].bincount(minlength=7) / 4000, model(ids)[0, -1].detach()


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_sampling_follows_the_tempered_distribution(temperature: float) -> None:
    seen, logits = frequencies(temperature=temperature)
    expected = (logits / temperature).softmax(-1)
    torch.testing.assert_close(seen, expected, rtol=0, atol=5 * 0.5 / math.sqrt(4000))


@pytest.mark.parametrize("top_k", [2, 6])
def test_top_k_is_tempered_too_and_leaves_out_even_one(top_k: int) -> None:
    seen, logits = frequencies(top_k=top_k, temperature=3.0)
    best = logits.topk(top_k)
    expected = torch.zeros(7).index_put((best.indices,), (best.values / 3).softmax(-1))
    assert torch.equal(seen > 0, expected > 0)
    torch.testing.assert_close(seen, expected, rtol=0, atol=5 * 0.5 / math.sqrt(4000))


def test_greedy_takes_the_likeliest_whatever_top_k() -> None:
    model, ids = LanguageModel(small(tied=False)), torch.randint(7, (200, 3))
    model.output.weight.data[6] *= 5  # so that the last token is among the likeliest
    greedy = model.generate(ids, 2, temperature=0)
    assert 0 < (greedy[:, 3] == 6).double().mean() < 1
    for top_k in (1, 2, 6):
        assert torch.equal(model.generate(ids, 2, temperature=0, top_k=top_k), greedy)


def test_top_k_of_equal_logits_are_k() -> None:
    model = LanguageModel(small(tied=False))
    nn.init.zeros_(model.output.weight)
    ids = torch.tensor([[1, 2]]).expand(500, 2)
    drawn = model.generate(ids, 1, top_k=2, generator=Generator().manual_seed(5))
    assert len(drawn[:, 2].unique()) == 2


def test_equal_logits_stay_equal_at_any_temperature() -> None:
    model = LanguageModel(small(tied=False))
    nn.init.zeros_(model.output.weight)
    for temperature in (1e-3, 1e3):
        ids = torch.tensor([[1, 2]]).expand(500, 2)
        drawn = model.generate(ids, 1, temperature=temperature, generator=Generator())
        assert len(drawn[:, 2].unique()) == 7


@pytest.mark.parametrize("model_class", [LanguageModel, Transformer])
def test_generation_keeps_no_graph(model_class: type[LanguageModel | Transformer]) -> None:
    model, ids = pair() if model_class is Transformer else LanguageModel(SMALL), torch.ones(1, 2)
    kept = []
    for part in model.modules():
        part.register_forward_hook(lambda *given: kept.append(given[-1].requires_grad))
    options = {"start_id": 1, "end_id": 0} if model_class is Transformer else {}
    model.generate(ids.long(), n_tokens=2, **options)
    assert len(kept) > 10
    assert not any(kept)


def test_more_than_the_vocabulary_is_everything() -> None:
    model, ids = LanguageModel(SMALL), torch.tensor([[1, 2]])

    def drawn(top_k: int | None) -> Tensor:
        return model.generate(ids, 6, top_k=top_k, generator=Generator().manual_seed(1))

    assert torch.equal(drawn(50), drawn(None))


def test_same_seed_generates_the_same() -> None:
    model, ids = LanguageModel(SMALL), torch.tensor([[1, 2]])

    def drawn(seed: int) -> Tensor:
        return model.generate(ids, 7, generator=Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_generation_switches_dropout_off_and_leaves_the_mode_as_it_was() -> None:
    model, ids = LanguageModel(small(dropout=0.5)), torch.tensor([[1, 2]])
    first = model.generate(ids, 7, temperature=0)
    assert torch.equal(first, model.generate(ids, 7, temperature=0))
    assert model.training
    model.eval().generate(ids, 1)
    assert not model.training
    model.train()
    model.blocks[0].eval()
    with pytest.raises(ValueError, match="token ids must be in"):
        model.generate(ids + 7, 1)
    assert model.training
    assert [block.training for block in model.blocks] == [False, True]


def test_no_temperature_is_too_low() -> None:
    model = LanguageModel(SMALL).float()
    nn.init.normal_(model.embedding.weight, std=10.0)
    ids = torch.tensor([[1, 2]])
    greedy = model.generate(ids, 7, temperature=0)
    for temperature in (1e-3, 1e-40, 1e-300):
        assert torch.equal(model.generate(ids, 7, temperature=temperature), greedy)


def test_nothing_to_add_gives_the_beginning() -> None:
    ids = torch.tensor([[1, 2]])
    assert torch.equal(LanguageModel(SMALL).generate(ids, 0), ids)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("ids", "n_tokens", "options", "message"),
    [
        ([[1, 2]], 8, {}, "the model takes at most 9 tokens, got 10"),
        ([[1, 2]], -1, {}, "n_tokens must be an integer, 0 or more, got -1"),
        ([[1, 2]], 3.0, {}, "n_tokens must be an integer, 0 or more, got 3.0"),
        ([[1, 2]], 1, {"temperature": -1.0}, "temperature must be a number, 0 or more, got -1.0"),
        ([[1, 2]], 1, {"temperature": math.nan}, "temperature must be a number, .* got nan"),
        ([[1, 2]], 1, {"temperature": None}, "temperature must be a number, .* got None"),
        ([[1, 2]], 1, {"top_k": 0}, "top_k must be a positive integer, got 0"),
        ([[1, 2]], 1, {"top_k": 2.0}, "top_k must be a positive integer, got 2.0"),
        ([[]], 1, {}, r"with a token or more, got \(1, 0\)"),
        ([1, 2], 1, {}, r"must have shape \(batch, tokens\) .* got \(2,\)"),
    ],
)
def test_generation_refuses(
    ids: list, n_tokens: int, options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageModel(SMALL).generate(torch.tensor(ids).long(), n_tokens, **options)


# The encoder-decoder

PAIR = TransformerConfig(
    7, d_model=12, n_heads=3, n_layers=2, d_ff=20, max_tokens=9, n_decoder_layers=1, padding_id=0
)


def pair(**changes: object) -> Transformer:
    return Transformer(dataclasses.replace(PAIR, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_decoder_layers": -1}, "n_decoder_layers must be a positive int, got -1"),
        ({"target_vocab_size": 0}, "target_vocab_size must be a positive int, got 0"),
        ({"padding_id": 7}, "padding_id must be an int in both vocabularies, 0 … 6, got 7"),
        ({"padding_id": -1}, "padding_id must be an int in both vocabularies, 0 … 6, got -1"),
        ({"padding_id": 0.0}, "padding_id must be an int in both vocabularies, 0 … 6, got 0.0"),
        ({"target_vocab_size": 3, "padding_id": 3}, "both vocabularies, 0 … 2, got 3"),
        ({"vocab_size": 0}, "vocab_size must be a positive int, got 0"),
    ],
)
def test_config_of_an_encoder_decoder_refuses_and_names(
    changes: dict[str, float], message: str, without_shape_checks: None
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PAIR, **changes)


def test_decoder_is_as_deep_as_the_encoder_by_default() -> None:
    assert len(pair(n_decoder_layers=None).decoder_blocks) == 2


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("target_vocab_size", [None, 5])
def test_encoder_decoder_is_its_parts_one_after_the_other(
    target_vocab_size: int | None, tied: bool, norm: str
) -> None:
    model = pair(norm=norm, tied=tied, target_vocab_size=target_vocab_size)
    source, target = (
        torch.tensor([[3, 6, 4], [5, 0, 0]]),
        torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]]),
    )
    own = model.embedding if target_vocab_size is None else model.target_embedding
    normed = nn.LayerNorm(12) if norm == "pre" else nn.Identity()
    mask = padding_mask(torch.tensor([3, 1]), 3)
    x = model.embedding.weight[source] * math.sqrt(12) + sinusoidal_positions(3, 12)
    for block in model.encoder_blocks:
        x = block(x, mask)
    memory = normed(x)
    y = own.weight[target] * math.sqrt(12) + sinusoidal_positions(4, 12)
    for block in model.decoder_blocks:
        y = block(y, memory, memory_mask=mask)
    expected = normed(y) @ (own.weight if tied else model.output.weight).T
    torch.testing.assert_close(model(source, target), expected, rtol=0, atol=1e-12)
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (2, 1)


def test_encoder_and_decoder_end_in_norms_of_their_own() -> None:
    model = pair(norm="pre")
    model.encoder_norm.weight.data.fill_(2.0)
    assert torch.equal(model.decoder_norm.weight, torch.ones(12))


def test_dropout_acts_on_embeddings_with_their_positions() -> None:
    model, ids = pair(dropout=0.5), torch.randint(1, 7, (50, 9))
    entering = []
    for blocks in (model.encoder_blocks, model.decoder_blocks):
        blocks[0].register_forward_pre_hook(lambda _, given: entering.append(given[0]))
    model(ids, ids)
    assert len(entering) == 2
    for x in (*entering, LanguageModel(small(dropout=0.5)).input(ids)):
        assert (x == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


def test_source_and_target_do_not_share_learned_positions() -> None:
    model = pair(position="learned")
    assert model.positions is not model.target_positions
    source, target = torch.tensor([[3, 6, 4]]), torch.tensor([[1, 2]])
    model(source, target).sum().backward()
    rows = [(table.grad != 0).any(-1).sum() for table in model.parameters() if len(table) == 9]
    assert rows == [3, 2]


@pytest.mark.parametrize("scaled", [True, False])
def test_both_embeddings_are_as_configured(scaled: bool) -> None:
    model = pair(scaled=scaled, embedding_init="unit", target_vocab_size=500, d_model=120)
    for embedding in (model.embedding, model.target_embedding):
        assert embedding.factor == (math.sqrt(120) if scaled else 1)
        assert embedding.weight.std().item() == pytest.approx(1.0, rel=0.1)


def test_encoder_decoder_generates_without_dropout_and_stays_in_its_mode() -> None:
    model, source = pair(dropout=0.5), torch.randint(1, 7, (20, 5))
    options = {"start_id": 1, "end_id": 0, "n_tokens": 6}
    first = model.generate(source, **options)
    assert torch.equal(first, model.generate(source, **options))
    assert all(part.training for part in model.modules())
    model.eval().generate(source, **options)
    assert not any(part.training for part in model.modules())


def test_target_is_one_longer_than_what_is_read_of_it() -> None:
    model, source = pair(), torch.tensor([[3, 6, 4]])
    longest = torch.randint(1, 7, (1, PAIR.max_tokens + 1))
    assert model.loss(source, longest).isfinite()
    with pytest.raises(ValueError, match=f"at most {PAIR.max_tokens + 1} tokens"):
        model.loss(source, torch.cat([longest, longest[:, :1]], dim=1))


@given(config=pairs(padding_id=0), dtype=dtypes, seed=seeds)
def test_what_padding_looks_like_reaches_no_real_logit_and_no_gradient(
    config: TransformerConfig, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    model = Transformer(config).to(dtype)
    source, lengths = torch.randint(7, (2, 5)), torch.randint(1, 5, (2, 1))
    real = torch.arange(4) < lengths
    target = torch.randint(1, 7, (2, 4)).masked_fill(~real, 0)
    direction = torch.randn(2, 4, 7, dtype=dtype)
    direction[~real], direction[..., 0] = 0.0, 0.0  # tied, the logit of padding is another
    results = []
    for _ in range(2):
        logits = model(source, target)
        results.append([logits[real][:, 1:], *gradients(model, logits, direction)])
        model.embedding.weight.data[0] = 50 * torch.randn(8)
    for before, after in zip(*results, strict=True):
        assert torch.equal(after, before)
    assert not results[0][1][0].any()


@given(config=pairs(), dtype=dtypes, t=st.integers(0, 3))
def test_decoder_sees_nothing_ahead_and_the_whole_source(
    config: TransformerConfig, dtype: torch.dtype, t: int
) -> None:
    model, source, target = Transformer(config).to(dtype), *torch.randint(7, (2, 2, 4))
    other = target.clone()
    other[:, t] = (target[:, t] + 1) % 7
    before, after = model(source, target), model(source, other)
    assert torch.equal(before[:, :t], after[:, :t])
    if dtype == torch.float64:
        assert (before[:, t:] != after[:, t:]).any(-1).all()
        assert (before != model((source + 1) % 7, target)).any(-1).all()


def test_loss_is_that_of_each_next_token_without_padding() -> None:
    model = pair()
    source, target = torch.tensor([[3, 6], [4, 5]]), torch.tensor([[1, 2, 3], [1, 4, 0]])
    logs = model(source, target[:, :-1]).log_softmax(-1)
    real = [logs[0, 0, 2], logs[0, 1, 3], logs[1, 0, 4]]
    assert model.loss(source, target).item() == pytest.approx(-sum(real).item() / 3, rel=1e-12)


@given(config=pairs(padding_id=0), tokens=st.integers(1, 9), dtype=dtypes, data=st.data())
def test_decoding_step_by_step_is_the_whole(
    config: TransformerConfig, tokens: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    model = Transformer(config).to(dtype)
    source, target = torch.randint(7, (2, 3)), torch.randint(1, 7, (2, tokens))
    memory, cache = model.encode(source), model.new_cache()
    parts = target.split(in_parts(data.draw, tokens), dim=1)
    steps = [model.decode(part, memory, source, cache=cache) for part in parts]
    assert_rounded(torch.cat(steps, dim=1), model(source, target))


def greedy(model: Transformer, source: Tensor, end_id: int, n_tokens: int) -> list[int]:
    """One sequence, without cache."""
    target = [1]
    while len(target) <= n_tokens and target[-1] != end_id:
        target.append(int(model(source[None], torch.tensor([target]))[0, -1].argmax()))
    return target[1:]


@pytest.mark.parametrize("padding_id", [0, None])
def test_generation_is_greedy_and_ends_each_sequence(padding_id: int | None) -> None:
    torch.manual_seed(6)
    model = pair(padding_id=padding_id, tied=False)
    source = torch.randint(1, 7, (12, 4))
    drawn = model.generate(source, start_id=1, end_id=2, n_tokens=6)
    lengths = set()
    for row, ids in zip(drawn.tolist(), source, strict=True):
        expected = greedy(model, ids, 2, 6)
        lengths.add(len(expected))
        filler = 2 if padding_id is None else 0
        assert row == expected + [filler] * (drawn.shape[1] - len(expected))
    assert len(lengths) > 1  # some end early


def test_generation_ends_late_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ends = pair(max_tokens=200), torch.tensor([90, 150])

    def decode(*_: object, cache: object) -> Tensor:
        nonlocal ends
        ends = ends - 1
        return nn.functional.one_hot(torch.where(ends == 0, 2, 3), 7)[:, None]

    monkeypatch.setattr(model, "decode", decode)
    drawn = model.generate(torch.ones(2, 3).long(), start_id=1, end_id=2, n_tokens=200)
    assert drawn.shape == (2, 150)
    assert drawn[0].tolist() == [3] * 89 + [2] + [0] * 60
    assert drawn[1].tolist() == [3] * 149 + [2]


def test_generation_stops_when_all_have_ended() -> None:
    model, source = pair(), torch.randint(1, 7, (2, 4))
    first = model(source, torch.ones(2, 1, dtype=torch.int64)).argmax(-1)
    drawn = model.generate(source[:1], start_id=1, end_id=int(first[0]), n_tokens=9)
    assert drawn.tolist() == [[int(first[0])]]
    assert model.generate(source, start_id=1, end_id=2, n_tokens=0).shape == (2, 0)


def test_generation_from_few_and_from_small_tokens() -> None:
    model = pair(target_vocab_size=1000)
    options = {"start_id": 999, "end_id": 998, "n_tokens": 3}
    source = torch.tensor([[1, 2, 3]])
    assert torch.equal(model.generate(source.byte(), **options), model.generate(source, **options))
    assert model.generate(source[:, :0].repeat(2, 1), **options).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, s: m.generate(s, start_id=1, end_id=2, n_tokens=-1), "0 or more, got -1"),
        (lambda m, s: m.generate(s, start_id=1, end_id=2, n_tokens=10), "at most 9 .* got 10"),
        (lambda m, s: m(s.repeat(1, 4), s), "the model takes at most 9 tokens, got 12"),
        (lambda m, s: m(s, s.repeat(1, 4)), "the model takes at most 9 tokens, got 12"),
        (lambda m, s: m(s, s[:1]), "target has a batch of 1 but source of 2"),
        (
            lambda m, s: m.decode(s, m.encode(s), s[:1]),
            r"source has shape \(1, 3\) but memory \(2, 3, 12\)",
        ),
        (
            lambda m, s: m.decode(s, torch.zeros(2, 3, 11), s),
            r"memory must have shape \(…, 12\), got \(2, 3, 11\)",
        ),
    ],
)
def test_encoder_decoder_refuses(
    call: Callable[[Transformer, Tensor], object], message: str, without_shape_checks: None
) -> None:
    with pytest.raises(ValueError, match=message):
        call(pair(), torch.ones(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("name", ["start_id", "end_id"])
@pytest.mark.parametrize("given", [-1, 5, 1.0, None])
def test_start_and_end_are_ids_of_the_target(
    given: object, name: str, without_shape_checks: None
) -> None:
    model, ids = pair(target_vocab_size=5), {"start_id": 1, "end_id": 2}
    with pytest.raises(ValueError, match=f"^{name} must be an int in 0 … 4, got {given!r}$"):
        model.generate(torch.ones(2, 3).long(), **ids | {name: given}, n_tokens=1)
    assert model.generate(torch.ones(2, 3).long(), **ids | {name: 4}, n_tokens=1).shape == (2, 1)


@pytest.mark.usefixtures("without_shape_checks")
def test_encoder_decoder_names_what_is_no_memory_and_no_ids() -> None:
    model, ids = pair(), torch.ones(2, 3).long()
    for source, target, name in [(ids / 2, ids, "source"), (ids, ids / 2, "target")]:
        with pytest.raises(TypeError, match=f"^{name} must be integers, got a tensor of"):
            model(source, target)
    with pytest.raises(TypeError, match=r"^memory must be a Tensor, got a NoneType$"):
        model.decode(ids, None, ids)
    with pytest.raises(TypeError, match=r"^source must be an integer tensor, got a NoneType$"):
        model.decode(ids, model.encode(ids), None)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("position", ["sinusoidal", "rotary"])
def test_no_position_is_negative(position: str) -> None:
    model = LanguageModel(dataclasses.replace(SMALL, position=position))
    with pytest.raises(ValueError, match=r"^offset must be an integer, 0 or more, got -3$"):
        model.input(torch.ones(1, 2).long(), offset=-3)
