"""Whole models: what they compute, their losses, and what they write. Where the encoder-decoder
has the same property, both are tested here."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from attnbook import (
    ALiBi,
    Encoder,
    LanguageModel,
    LearnedPositions,
    ModelConfig,
    Rotary,
    RotaryScaling,
    SinusoidalPositions,
    Transformer,
    TransformerConfig,
    padding_mask,
    sample,
    sinusoidal_positions,
    sliding_window_mask,
)
from attnbook.models import cross_entropy
from strategies import assert_gradients_are_finite_differences, assert_near
from test_blocks import FORMULAS, normed

SMALL = ModelConfig(7, d_model=12, n_heads=3, n_layers=2, d_ff=20, max_tokens=9)
PAIR = TransformerConfig(**vars(SMALL), n_decoder_layers=1, padding_id=0)

POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "none"]
every_position = pytest.mark.parametrize("position", POSITIONS)
either_stack = pytest.mark.parametrize("model_class", [Encoder, LanguageModel])
either_model = pytest.mark.parametrize("model_class", [LanguageModel, Transformer])

SETTINGS: dict[str, list[Any]] = {
    "n_layers": [1, 2],
    "d_ff": [None, 5],
    "norm": ["pre", "post", "none", "deepnorm"],
    "scaled": [True, False],
    "tied": [True, False],
    "n_kv_heads": [None, 2, 1],
    "position": POSITIONS,
    "rotary_fraction": [1.0, 0.5],
    "rotary_scaling": [
        None,
        RotaryScaling(2.0),
        RotaryScaling(4.0, 8),
        RotaryScaling(4.0, 8, 1.0, 32.0, "whole pairs", 1.1),
    ],
    "activation": ["relu", "gelu", "gelu_tanh", "swiglu", "geglu"],
    "attention_bias": [True, False, "qkv", "output"],
    "feed_forward_bias": [True, False],
    "norm_bias": [True, False],
    "norm_kind": ["layer", "rms"],
    "final_norm": [None, True, False],
    "d_head": [None, 8],
    "qk_norm": [True, False],
}
OF_ONE_STACK = {
    "window": [None, 1, 3],
    "embedding_norm": [True, False],
    "prediction_head": [True, False],
}


@st.composite
def configs(draw: st.DrawFn, config_class: type[ModelConfig] = ModelConfig) -> Any:
    """Every combination of settings, and with it, random weights."""
    torch.manual_seed(draw(st.integers(0, 2**32)))
    known = SETTINGS if config_class is TransformerConfig else SETTINGS | OF_ONE_STACK
    settings = {name: draw(st.sampled_from(choices)) for name, choices in known.items()}
    return config_class(7, d_model=16, n_heads=4, max_tokens=9, **settings)


def model_of(model_class: type, **changes: object) -> Any:
    """A small one; what starts as zeros, ones or nearly nothing is changed at random."""
    config = PAIR if model_class is Transformer else SMALL
    model = model_class(dataclasses.replace(config, **changes))
    for table in (part for part in model.modules() if isinstance(part, LearnedPositions)):
        nn.init.normal_(table.table)
    for vector in (parameter for parameter in model.parameters() if parameter.dim() == 1):
        vector.data += 0.3 * torch.randn_like(vector)
    return model


def batch_for(model_class: type) -> tuple[Tensor, Tensor]:
    """Arguments of the loss, of which not all is to be predicted."""
    ids, targets = torch.randint(1, 7, (2, 3, 6))
    left_out = 0 if model_class is Transformer else -100
    targets[1, 4:], targets[2, 2:] = left_out, left_out
    return ids, targets


# What is computed


@either_stack
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rest", [{}, {"embedding_norm": True}, {"prediction_head": True}])
def test_model_is_its_parts_one_after_the_other(rest, tied, kind, model_class):
    norm = "pre" if tied else "post"
    options = {"norm": norm, "scaled": tied, "norm_kind": kind, "activation": "gelu"} | rest
    model = model_of(model_class, tied=tied, norm_eps=0.1, **options)
    ids, mask = torch.randint(7, (2, 5)), padding_mask(torch.tensor([3, 5]), 5)
    x = model.embedding.weight[ids] * (math.sqrt(12) if tied else 1.0)
    x = x + sinusoidal_positions(5, 12)
    if "embedding_norm" in rest:
        x = normed(x, model.embedding_norm, 0.1)
    for block in model.blocks:
        x = block(x, mask, causal=model_class is LanguageModel)
    x = normed(x, model.final_norm, 0.1) if norm == "pre" else x
    if "prediction_head" in rest:
        dense = x @ model.head.dense.weight.T + model.head.dense.bias
        x = normed(FORMULAS["gelu"](dense), model.head.norm, 0.1)
    logits = x @ (model.embedding.weight if tied else model.output.weight).T
    assert_near(model(ids, mask), logits + (model.output_bias if "prediction_head" in rest else 0))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"n_layers": 3}, {"len": 3}),
        ({"d_ff": None}, {"inner": 48}),
        ({"d_ff": None, "d_model": 24}, {"inner": 96}),
        ({"n_kv_heads": 1}, {"n_kv_heads": 1}),
        ({"d_head": 8}, {"d_head": 8}),
        ({"position": "rotary"}, {"position": Rotary()}),
        (
            {"position": "rotary", "rotary_base": 50.0, "rotary_fraction": 0.5},
            {"position": Rotary(base=50.0, fraction=0.5)},
        ),
        (
            {"position": "rotary", "rotary_scaling": RotaryScaling(4.0, 8)},
            {"position": Rotary(scaling=RotaryScaling(4.0, 8))},
        ),
        ({"position": "alibi"}, {"position": ALiBi(bidirectional=False)}),
        ({"activation": "gelu_tanh"}, {"activation": "gelu_tanh"}),
        ({"attention_bias": "qkv"}, {"biases": (True, False)}),
        ({"attention_bias": "output"}, {"biases": (False, True)}),
        ({"norm": "pre"}, {"norm": "pre"}),
        ({"norm": "none"}, {"norm": "none"}),
        ({"norm": "deepnorm"}, {"scale": 4**0.25}),
        ({"norm": "deepnorm", "n_layers": 3}, {"scale": 6**0.25, "len": 3}),
        ({"norm_eps": 0.1}, {"eps": 0.1}),
        ({"qk_norm": True}, {"qk_eps": (1e-5, 1e-5)}),
        ({"qk_norm": True, "norm_eps": 0.1}, {"eps": 0.1, "qk_eps": (0.1, 0.1)}),
        ({"norm_kind": "rms"}, {"kind": nn.RMSNorm, "norm_bias": False}),
        ({"norm_bias": False}, {"norm_bias": False}),
        ({"feed_forward_bias": False}, {"feed_forward_bias": False}),
        ({"dropout": 0.25}, {"dropouts": {0.25}}),
    ],
)
def test_settings_reach_every_block(settings, found):
    plain = {"len": 2, "inner": 20, "n_kv_heads": 3, "d_head": 4, "position": None}
    plain |= {"activation": "relu", "biases": (False, False), "norm": "post", "scale": 1.0}
    plain |= {"eps": 1e-5, "kind": nn.LayerNorm, "norm_bias": True, "feed_forward_bias": True}
    plain |= {"dropouts": {0.0}, "qk_eps": (None, None)}
    if settings.get("norm") == "none":
        plain |= {"eps": None, "kind": nn.Identity, "norm_bias": False}
    if "d_model" in settings:
        plain["d_head"] = 8
    blocks = LanguageModel(dataclasses.replace(SMALL, **settings)).blocks
    for block in blocks:
        attention, network = block.attention, block.feed_forward
        assert plain | found == {
            "len": len(blocks),
            "inner": network.inner.out_features,
            "n_kv_heads": attention.n_kv_heads,
            "d_head": attention.d_head,
            "position": attention.position,
            "activation": network.activation,
            "biases": (attention.query.bias is not None, attention.output.bias is not None),
            "norm": block.attention_residual.norm_position,
            "scale": pytest.approx(block.feed_forward_residual.scale, rel=1e-15),
            "eps": getattr(block.attention_residual.norm, "eps", None),
            "kind": type(block.feed_forward_residual.norm),
            "qk_eps": tuple(
                getattr(norm, "eps", None) for norm in (attention.query_norm, attention.key_norm)
            ),
            "norm_bias": getattr(block.attention_residual.norm, "bias", None) is not None,
            "feed_forward_bias": network.outer.bias is not None,
            "dropouts": {part.dropout for part in block.modules() if hasattr(part, "dropout")},
        }


def test_each_position_is_where_it_belongs_and_tells_the_order():
    tables = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}
    ids, order = torch.arange(6)[None], torch.tensor([2, 0, 1, 5, 3, 4])  # not a mirror image
    for position in POSITIONS:
        model = model_of(Encoder, position=position)
        assert type(model.positions) is tables.get(position, type(None))
        in_order = torch.allclose(model(ids[:, order]), model(ids)[:, order], atol=1e-4)
        assert in_order == (position == "none")
    assert model_of(Encoder, position="alibi").blocks[1].attention.position.bidirectional


def test_embedding_and_output_are_as_configured():
    model = LanguageModel(
        dataclasses.replace(SMALL, vocab_size=5000, embedding_init="gpt2", tied=False)
    )
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    spread = math.sqrt(2 / (5000 + 12))  # Glorot
    assert model.output.weight.std().item() == pytest.approx(spread, rel=0.02)
    assert not torch.equal(*(block.attention.query.weight for block in model.blocks))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("final_norm", [None, True, False])
def test_a_stack_ends_with_a_norm_where_asked(final_norm, norm):
    last = Encoder(dataclasses.replace(SMALL, norm=norm, final_norm=final_norm)).final_norm
    wanted = norm == "pre" if final_norm is None else final_norm
    assert type(last) is (nn.LayerNorm if wanted else nn.Identity)


@either_model
def test_dropout_acts_on_embeddings_with_their_positions(model_class):
    model, ids, entering = model_of(model_class, dropout=0.5), torch.randint(1, 7, (50, 9)), []
    pair = model_class is Transformer
    stacks = [model.encoder_blocks, model.decoder_blocks] if pair else [model.blocks]
    for blocks in stacks:
        blocks[0].register_forward_pre_hook(lambda _, given: entering.append(given[0]))
    model(*[ids] * len(stacks))
    for x in entering:
        assert (x == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)
    assert len(entering) == len(stacks)


@either_stack
@given(config=configs())
def test_every_combination_of_settings_builds_and_learns_one_step(model_class, config):
    assert_learns(model_class(config), *torch.randint(7, (2, 2, 6)))


def assert_learns(model: nn.Module, *batch: Tensor) -> None:
    """A small step against the gradient makes the loss smaller, by as much as it says."""
    loss = model.loss(*batch)
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    length = sum(gradient.square().sum() for gradient in gradients).sqrt()
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 1e-7 / length * gradient
    assert (loss - model.loss(*batch)).item() == pytest.approx(1e-7 * length.item(), rel=0.01)


@pytest.mark.parametrize(
    ("model_class", "settings"),
    [
        (LanguageModel, {"position": "rotary", "norm": "pre", "activation": "swiglu"}),
        (LanguageModel, {"position": "learned", "norm": "deepnorm", "window": 2}),
        (Encoder, {"position": "alibi", "norm_kind": "rms", "embedding_norm": True}),
        (Encoder, {"tied": True, "prediction_head": True}),
        pytest.param(Transformer, {"position": "alibi", "norm": "pre"}, marks=pytest.mark.slow),
        pytest.param(Transformer, {"norm": "deepnorm"}, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_a_loss(model_class, settings):
    tiny = {"vocab_size": 3, "d_model": 4, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1, "d_ff": 3}
    settings = tiny | {"max_tokens": 3, "tied": False, "activation": "gelu"} | settings
    batch = (
        torch.tensor([[0, 2, 1]]),
        torch.tensor([[2, -100, 1]]),
        torch.tensor([False, True, True]),
    )
    config = ModelConfig(**settings)
    if model_class is Transformer:
        batch = torch.tensor([[1, 0], [2, 1]]), torch.tensor([[1, 2, 3], [2, 3, 0]])
        config = TransformerConfig(**settings, target_vocab_size=4, padding_id=0)
    model = model_class(config)
    assert_gradients_are_finite_differences(lambda: model.loss(*batch), *model.parameters())


# Who sees what


@given(config=configs(), tokens=st.integers(2, 9), data=st.data())
def test_no_logit_depends_on_a_later_token(config, tokens, data):
    model, ids = LanguageModel(config), torch.randint(7, (2, tokens))
    changed, t = ids.clone(), data.draw(st.integers(0, tokens - 1))
    changed[:, t] = (ids[:, t] + 1) % 7
    before, after = model(ids), model(changed)
    assert torch.equal(after[:, :t], before[:, :t])
    reach = tokens if config.window is None else config.n_layers * (config.window - 1) + 1
    seen = (after != before).any(-1)
    assert seen[:, t].all()
    assert not seen[:, t + reach :].any()


def test_encoder_sees_what_is_ahead():
    first, second = Encoder(SMALL)(torch.tensor([[1, 2, 3], [1, 2, 4]]))[:, 0]
    assert not torch.equal(first, second)


@either_stack
@given(config=configs(), tokens=st.integers(1, 6))
def test_what_is_under_the_mask_reaches_no_real_logit_and_no_gradient(model_class, config, tokens):
    model, ids = model_class(config), torch.randint(1, 7, (2, tokens))
    real = torch.rand(2, tokens) < 0.6
    direction = torch.randn(2, tokens, 7) * real[..., None]
    results = []
    for seen in (ids, torch.where(real, ids, torch.randint(1, 7, (2, tokens)))):
        logits = model(seen, real[:, None, None])
        leaves = [*model.parameters()]
        gradients = torch.autograd.grad(logits, leaves, direction, materialize_grads=True)
        results.append([logits[real], *gradients])
    for before, after in zip(*results, strict=True):
        assert torch.equal(after, before)


LENGTHS = [3, 6, 1, 2, 4, 2, 5]


def prompts(left: bool) -> tuple[list[Tensor], Tensor, Tensor]:
    """Prompts of different length, and the batch of them with its mask."""
    alone = [torch.randint(1, 7, (n,)) for n in LENGTHS]
    mask = padding_mask(torch.tensor(LENGTHS), 6, left=left)
    ids = torch.randint(7, (len(LENGTHS), 6))  # padding is not a token of its own
    ids[mask[:, 0, 0]] = torch.cat(alone)
    return alone, ids, mask


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize("window", [None, 3])
@every_position
def test_padding_changes_nothing_for_real_tokens(position, window, left):
    alone, ids, mask = prompts(left)
    for model_class in (Encoder, LanguageModel):
        model = model_of(model_class, position=position, window=window, tied=False)
        for given_mask in (mask, mask[:, 0, 0]):
            logits = model(ids, padding_mask=given_mask)
            for row, real, prompt in zip(logits, mask[:, 0, 0], alone, strict=True):
                assert_near(row[real], model(prompt[None])[0])
    whole = model.generate(ids, 3, temperature=0, padding_mask=mask)
    assert torch.equal(whole[:, :6], ids)
    for row, prompt in zip(whole, alone, strict=True):
        by_itself = model.generate(prompt[None], 3, temperature=0)[0]
        assert torch.equal(row[6:], by_itself[len(prompt) :])


def test_loss_of_padded_sequences_is_that_of_each_alone():
    model, (alone, ids, mask) = model_of(LanguageModel, position="learned"), prompts(left=True)
    targets = ids.masked_fill(~mask[:, 0, 0], -100)
    parts = [model.loss(one[None], one[None], reduction="sum")[0] for one in alone]
    assert_near(model.loss(ids, targets, padding_mask=mask), sum(parts) / sum(LENGTHS))


@either_stack
def test_window_is_a_sliding_window_mask(model_class):
    ids, after = torch.randint(7, (2, 9)), 2 * (model_class is Encoder)
    windowed = model_of(model_class, window=3)
    plain = model_class(SMALL)
    plain.load_state_dict(windowed.state_dict())
    assert_near(windowed(ids), plain(ids, sliding_window_mask(9, before=2, after=after)))
    assert not torch.allclose(windowed(ids), plain(ids))


def in_parts(draw: st.DrawFn, tokens: int) -> list[int]:
    """So many tokens at a time."""
    parts = []
    while tokens > sum(parts):
        parts.append(draw(st.integers(1, tokens - sum(parts))))
    return parts


@given(
    config=configs(),
    tokens=st.integers(1, 9),
    left=st.booleans(),
    allocated=st.booleans(),
    data=st.data(),
)
@torch.no_grad()
def test_cache_equals_full_pass(config, tokens, left, allocated, data):
    model, ids = LanguageModel(config), torch.randint(7, (2, tokens))
    padding = padding_mask(torch.tensor([max(tokens - 2, 1), tokens]), tokens, left=left)
    mask, steps = torch.rand(2, 1, 1, tokens) < 0.7, []
    cache = model.new_cache(tokens if allocated else None)
    for part in ids.split(in_parts(data.draw, tokens), dim=1):
        end = len(cache[0]) + part.shape[1]
        steps.append(model(part, mask[..., :end], padding_mask=padding[..., :end], cache=cache))
        assert [len(one) for one in cache] == [end] * config.n_layers
    assert_near(torch.cat(steps, dim=1), model(ids, mask, padding_mask=padding), 1e-10)


@every_position
def test_long_sequences_are_computed_as_short_ones(position):
    model = LanguageModel(dataclasses.replace(SMALL, position=position, max_tokens=700))
    ids, cache = torch.randint(7, (1, 700)), model.new_cache()
    whole = model(ids)
    steps = [model(part, cache=cache) for part in ids.split([1, 600, 1, 98], dim=1)]
    assert_near(torch.cat(steps, dim=1), whole, 1e-11)
    ids[:, 650] = (ids[:, 650] + 1) % 7
    assert torch.equal(model(ids)[:, :650], whole[:, :650])


# The loss


def test_loss_is_the_mean_of_minus_the_log_probabilities():
    for model_class in (Encoder, LanguageModel):
        model, (ids, targets) = model_of(model_class), batch_for(model_class)
        mask = padding_mask(torch.tensor([6, 4, 3]), 6)
        for masks in ((), (mask,)):
            p = model(ids, *masks).softmax(-1)
            logs = [p[b, t, targets[b, t]].log() for b, t in (targets != -100).nonzero().tolist()]
            assert_near(model.loss(ids, targets, *masks), -sum(logs) / 12)


@either_model
def test_sums_over_shards_of_different_padding_are_the_whole_batch(model_class):
    model, batch = model_of(model_class), batch_for(model_class)
    whole = model.loss(*batch)
    expected = torch.autograd.grad(whole, [*model.parameters()])
    shards = [model.loss(*(x[rows] for x in batch), reduction="sum") for rows in ([0], [1, 2])]
    count = sum(n for _, n in shards)
    assert count == (batch[1][:, model_class is Transformer :] > 0).sum()
    total = sum(loss for loss, _ in shards) / count
    assert_near(total, whole)
    for ours, theirs in zip(
        torch.autograd.grad(total, [*model.parameters()]), expected, strict=True
    ):
        assert_near(ours, theirs)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@either_model
def test_data_parallel_training_goes_through_the_models_call(model_class):
    model, (ids, targets) = model_of(model_class), batch_for(model_class)
    expected = torch.autograd.grad(model.loss(ids, targets), [*model.parameters()])
    wrapped, reduced = DistributedDataParallel(model), []
    wrapped.register_comm_hook(None, lambda _, bucket: reduced.append(1) or done(bucket.buffer()))
    if model_class is Transformer:
        wrapped(ids, targets, reduction="mean").backward()
    else:
        wrapped(ids, targets=targets).backward()
    assert reduced
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def done(result: Tensor) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(result)
    return future


@either_model
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_is_not_rounded_in_half_precision(dtype, model_class):
    logits, zeros = torch.zeros(1, 70_000, 7, dtype=dtype), torch.zeros(1, 70_000).long()
    assert cross_entropy(logits, zeros).item() == pytest.approx(math.log(7), rel=1e-6)
    model, batch = model_of(model_class).to(dtype), batch_for(model_class)
    loss = model.loss(*batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters()} == {dtype}


# What is around a model


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@either_model
def test_loss_of_each_sequence_by_vmap(model_class):
    model, batch = model_of(model_class), batch_for(model_class)
    by_row = torch.vmap(lambda *row: model.loss(*(x[None] for x in row)))(*batch)
    for i, loss in enumerate(by_row):
        assert_near(loss, model.loss(*(x[i : i + 1] for x in batch)))


@either_model
def test_nothing_is_read_where_there_are_no_numbers(model_class):
    batch = batch_for(model_class)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in batch]
        assert model_of(model_class).loss(*fakes).shape == ()
    loss = model_of(model_class).to("meta").loss(*(x.to("meta") for x in batch))
    assert loss.device.type == "meta"


@either_model
@every_position
def test_autocast_rounds_and_no_more(position, model_class):
    torch.set_default_dtype(torch.float32)
    model, batch = model_of(model_class, position=position), batch_for(model_class)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(*batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(model.loss(*batch).item(), rel=0.05)


# Generation


def generate(model: Any, ids: Tensor, n_tokens: int, **options: Any) -> Tensor:
    """What is added to the ids, or translated from them; sampled if nothing is said."""
    if isinstance(model, Transformer):
        options = {"temperature": 1.0, "end_id": 6} | options
        return model.generate(ids, start_id=1, n_tokens=n_tokens, **options)
    return model.generate(ids, n_tokens, **options)[:, ids.shape[1] :]


@pytest.mark.parametrize("stop_ids", [(), (2, 5)])
@pytest.mark.parametrize("window", [None, 3])
@every_position
def test_greedy_generation_takes_the_likeliest_token_until_it_stops(position, window, stop_ids):
    changes = {"position": position, "window": window, "tied": False}
    model = LanguageModel(dataclasses.replace(SMALL, **changes))
    start, rows = torch.randint(7, (6, 2)), []
    for row in start:
        while len(row) < 7 and not (len(row) > 2 and row[-1] in stop_ids):
            row = torch.cat([row, model(row[None])[0, -1:].argmax(-1)])
        rows.append(row)
    longest = max(map(len, rows))
    assert len({*map(len, rows)}) == 1 or stop_ids
    expected = torch.stack([torch.cat([row, row[-1:].repeat(longest - len(row))]) for row in rows])
    generated = model.generate(start.int(), 5, temperature=0, stop_ids=stop_ids)
    assert torch.equal(generated, expected.int())


@every_position
def test_logits_of_one_token_and_generation_from_what_is_read(position):
    model = LanguageModel(dataclasses.replace(SMALL, position=position, tied=False))
    ids, at = torch.randint(7, (3, 4)), torch.tensor([2, 0, 3])
    whole = model(ids)
    assert_near(model(ids, at=at), whole[torch.arange(3), at])
    assert_near(model(ids, at=-1), whole[:, -1])
    cache, expected = model.new_cache(6), model.generate(ids, 3, temperature=0)
    with torch.no_grad():
        model(ids[:, :2], cache=cache)
    for _ in range(2):
        assert torch.equal(model.generate(ids, 3, temperature=0, cache=cache), expected)
        assert len(cache[0]) == 6
        for block in cache:
            block.cut(3)


@either_model
def test_generation_goes_through_the_models_call_with_a_cache(model_class):
    model, ids, calls = model_of(model_class), torch.randint(1, 7, (2, 3)), []
    model.register_forward_hook(lambda _, given, out: calls.append(given[-1].shape[1]))
    generate(model, ids, 4, **({"end_id": 2} if model_class is Transformer else {}))
    assert calls == [1 if model_class is Transformer else 3, 1, 1, 1][: len(calls)]
    assert calls


@either_model
def test_generation_leaves_modes_as_they_were_and_keeps_no_graph(model_class):
    model, ids = model_of(model_class, dropout=0.5), torch.randint(1, 7, (20, 3))
    assert torch.equal(*(generate(model, ids, 5, temperature=0.0) for _ in range(2)))
    list(model.children())[-1].eval()
    before, kept = [part.training for part in model.modules()], []
    for part in model.modules():
        part.register_forward_hook(lambda *given: kept.append(given[-1].requires_grad))
    generate(model, ids, 2).add_(0)  # may be changed
    assert kept
    assert not any(kept)
    with pytest.raises(ValueError, match="token ids must be in"):
        generate(model, ids + 7, 1)
    assert [part.training for part in model.modules()] == before


@either_model
def test_the_generator_is_all_the_randomness_there_is(model_class):
    model, ids = model_of(model_class), torch.randint(1, 7, (5, 2))

    def drawn(seed: int, **options: Any) -> Tensor:
        return generate(model, ids, 6, generator=Generator().manual_seed(seed), **options)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(drawn(1, top_k=50, top_p=1.0), drawn(1))


@either_model
@pytest.mark.parametrize("options", [{}, {"temperature": 0.5, "top_k": 4, "top_p": 0.8}])
def test_each_token_is_drawn_from_the_last_logits(options, model_class):
    model, ids = model_of(model_class, tied=False), torch.randint(1, 7, (50, 3))
    pair = model_class is Transformer
    logits = (model(ids, ids.new_ones(50, 1)) if pair else model(ids))[:, -1].detach()
    if pair:
        logits[:, 0] = -torch.inf  # no model learns to write padding
    expected = sample(logits, **options, generator=Generator().manual_seed(5))
    drawn = generate(model, ids, 1, **options, generator=Generator().manual_seed(5))
    assert torch.equal(drawn[:, 0], expected)


LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 1.5, -torch.inf, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 3.0])
@pytest.mark.parametrize("top_k", [None, 2, 6])
@pytest.mark.parametrize("top_p", [None, 0.1, 0.7])
def test_sampling_follows_the_tempered_truncated_distribution(top_p, top_k, temperature):
    p = [math.exp(x / temperature) for x in LOGITS.tolist()]
    best = sorted(range(7), key=lambda i: -p[i])[:top_k]
    total, nucleus = sum(p[i] for i in best), []
    for i in best:
        nucleus.append(i)
        if top_p is not None and sum(p[i] for i in nucleus) >= top_p * total:
            break
    expected = [p[i] * (i in nucleus) / sum(p[i] for i in nucleus) for i in range(7)]
    options = {"top_k": top_k, "top_p": top_p, "generator": Generator().manual_seed(5)}
    drawn = sample(LOGITS.expand(4000, 7), temperature, **options).bincount(minlength=7) / 4000
    assert_near(drawn, torch.tensor(expected), atol=5 * 0.5 / math.sqrt(4000))
    assert set(drawn.nonzero().flatten().tolist()) <= set(nucleus)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("p", "top_p", "kept"),
    [
        ([0.5, 0.3, 0.1, 0.1], 0.8, 2),
        ([0.1, 0.5, 0.1, 0.3], 0.5, 1),
        ([0.25, 0.25, 0.25, 0.25], 0.75, 3),
        ([1.0, 1e-9, 1e-9, 1e-9], 1.0, 4),  # a sum reaches 1 before the end: it draws among all
    ],
)
def test_top_p_draws_no_token_more_than_it_takes(p, top_p, kept, dtype, monkeypatch):
    waits = torch.zeros(4, 4, dtype=dtype).fill_(1.0).fill_diagonal_(1e-30)  # token i, if it may be
    monkeypatch.setattr(Tensor, "exponential_", lambda self, **_: self.copy_(waits))
    logits = torch.tensor(p, dtype=dtype).log().expand(4, 4)
    assert len(sample(logits, top_p=top_p).unique()) == kept


def test_sampling_at_the_ends():
    logits = 10 * torch.randn(100, 7, dtype=torch.float32)
    best = logits.argmax(-1)
    for temperature in (0.0, 1e-40, 1e-300):
        assert torch.equal(sample(logits, temperature), best)
        assert torch.equal(sample(logits, temperature, top_k=3, top_p=0.5), best)
    for options in ({"top_k": 1}, {"top_p": 1e-9}):
        assert torch.equal(sample(logits, 5.0, **options), best)
    equal = torch.zeros(500, 7)
    assert len(sample(equal, 1e-3).unique()) == 7
    assert len(sample(equal, top_k=2).unique()) == 2
    ids = torch.tensor([[1, 2]])
    assert torch.equal(LanguageModel(SMALL).generate(ids, 0), ids)


# Bad input


@either_model
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_has_gone_wrong_writes_nothing(temperature, value, model_class):
    model, ids = model_of(model_class, tied=False), torch.ones(1, 2).long()
    nn.init.constant_(model.output.weight, value)
    with pytest.raises(ValueError, match="logits must be finite"):
        generate(model, ids, 1, temperature=temperature)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape).long()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        (lambda m: m(ones(1, 10)), "got 10", "at most 9"),
        (lambda m: m.generate(ones(1, 3), 7), "got 10", "at most 9"),
        (lambda m: (m(ones(1, 6), cache=(c := m.new_cache())), m(ones(1, 4), cache=c)), "10", "9"),
        (lambda m: m(ones(1, 2) * 7), "7 … 7", "0 … 6"),
        (lambda m: m.loss(ones(2, 5), ones(2, 4)), r"\(2, 4\)", "(2, 5)"),
        (lambda m: m.loss(ones(2, 5), -100 * ones(2, 5)), "10 are -100", "no target is left"),
        (lambda m: ModelConfig(7, position="relative"), "'relative'", "'alibi' or 'none'"),
        (lambda m: ModelConfig(7, norm="sandwich"), "'sandwich'", "'none' or 'deepnorm'"),
        (lambda m: ModelConfig(7, activation="swish"), "'swish'", "'relu', 'gelu'"),
        (lambda m: ModelConfig(7, norm_kind="RMS"), "'RMS'", "'layer' or 'rms'"),
        (lambda m: ModelConfig(7, attention_bias="QKV"), "'QKV'", "'qkv' or 'output'"),
        (lambda m: Encoder(ModelConfig(7, n_heads=5)), "5 heads for 64", "must divide d_model"),
        (lambda m: Encoder(ModelConfig(7, d_model=9, n_heads=3)), "got 9", "must be even"),
        (lambda m: Encoder(PAIR), "got a TransformerConfig", "made from a ModelConfig"),
        (lambda m: Transformer(SMALL), "got a ModelConfig", "made from a TransformerConfig"),
        (lambda m: m(ones(1, 5), padding_mask=ones(1, 1).bool()), "got 1", "all 5 tokens"),
        (lambda m: m(ones(1, 3), padding_mask=ones(3, 3) > 0), r"got \(3, 3\)", "1 sequences"),
        (lambda m: m(ones(2, 3), ones(2, 3) > 0), r"got \(2, 3\)", "[:, None, None]"),
        (lambda m: m(ones(1, 3), padding_mask=np.ones((1, 3), bool)), "numpy", "a boolean tensor"),
        (lambda m: m.loss(ones(1, 2), ones(1, 2), reduction="none"), "'none'", "'mean' or 'sum'"),
        (lambda m: m.generate(ones(1, 3), -1), "got -1", "n_tokens must not be negative"),
        (lambda m: m.generate(ones(1, 0), 2), "got 0 tokens", "a cache of 0"),
        (
            lambda m: m.generate(
                ones(3, 2), 2, padding_mask=torch.tensor([[0, 1], [0, 0], [1, 0]]) > 0
            ),
            *(r"padding only in \[1\]", "needs a real token"),
        ),
        (
            lambda m: m.generate(ones(2, 3), 2, padding_mask=np.ones((2, 3), bool)),
            *("got a numpy.ndarray", "a boolean tensor"),
        ),
        (lambda m: m.generate(ones(1, 3), 2, stop_ids=[7]), "got 7", "stop_ids must be in 0 … 6"),
        (lambda m: m.generate(ones(1, 3), 2, stop_ids={-1}), "got -1", "0 … 6"),
        (lambda m: m.generate(ones(1, 3), 2, temperature=-1.0), "got -1.0", "at least 0"),
        (lambda m: m.generate(ones(1, 3), 2, temperature=math.nan), "got nan", "finite"),
        (lambda m: m.generate(ones(1, 3), 2, top_k=0), "got 0", "at least 1"),
        (lambda m: m.generate(ones(1, 3), 2, top_p=0.0), "got 0.0", "above 0"),
        (lambda m: m.generate(ones(1, 3), 2, top_p=90), "got 90", "at most 1"),
    ],
)
def test_what_cannot_be_is_refused(call, given, expected):
    with pytest.raises((TypeError, ValueError), match=given) as caught:
        call(LanguageModel(SMALL))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff")),
        *((name, -4) for name in ("n_heads", "max_tokens", "n_kv_heads", "d_head", "window")),
        *(("dropout", value) for value in (-0.1, 1.0, math.nan)),
        *(("norm_eps", value) for value in (-1e-5, math.nan)),
    ],
)
def test_sizes_that_make_no_model_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must .*, got {value}"):
        ModelConfig(**{"vocab_size": 7, name: value})


@pytest.mark.usefixtures("without_shape_checks")
def test_a_stop_id_may_come_in_any_collection():
    model, ids = model_of(LanguageModel, tied=False), torch.randint(1, 7, (1, 2))
    whole = model.generate(ids, 4, temperature=0)
    stop = int(whole[0, 3])
    n = 2 + whole[0, 2:].tolist().index(stop) + 1
    for stop_ids in ([stop], torch.tensor([stop]), np.array([stop]), (i for i in [stop])):
        assert torch.equal(model.generate(ids, 4, temperature=0, stop_ids=stop_ids), whole[:, :n])
    zero = LanguageModel(SMALL)
    nn.init.zeros_(zero.embedding.weight)  # all logits are equal: token 0 is the first
    assert zero.generate(ids, 4, temperature=0, stop_ids=np.array([0])).shape == (1, 3)


def test_half_precision_logits_are_sampled_as_in_float32():
    logits = torch.randn(300, 5000).bfloat16()
    half, single = (
        sample(each, top_p=0.9, generator=Generator().manual_seed(0))
        for each in (logits, logits.float())
    )
    assert torch.equal(half, single)


def test_a_sum_over_no_target_is_zero():
    """A shard of padding is one part of an accumulation."""
    total, count = LanguageModel(SMALL).loss(ones(1, 2), -100 * ones(1, 2), reduction="sum")
    assert (total.item(), count.item()) == (0, 0)


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PAIR.n_layers = 3
    assert hash(PAIR) == hash(dataclasses.replace(PAIR))
