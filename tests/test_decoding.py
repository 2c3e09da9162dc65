"""A step of decoding against the model's own forward pass, of every configuration."""

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from attnbook import (
    Block,
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    Position,
    Rotary,
    TokenEmbedding,
    decoding,
    padding_mask,
)
from attnbook.decoding import (
    Captured,
    Step,
    as_they_are,
    not_fusible,
    packed,
    product,
    seconds,
    side_by_side,
    turned_over,
)
from strategies import assert_near
from test_models import SMALL, configs

WIDE = ModelConfig(50, d_model=256, n_heads=4, n_layers=2, max_tokens=24, norm="pre")


def masks(kind: str | None, tokens: int) -> Tensor | None:
    """The second of two sequences has padding before, behind or between."""
    if kind is None:
        return None
    mask = padding_mask(torch.tensor([tokens, tokens - 2]), tokens, left=kind == "left")[:, 0, 0]
    return mask.roll(-1, dims=1) if kind == "between" else mask


@given(
    config=configs(),
    tokens=st.integers(3, 8),
    padding=st.sampled_from([None, "left", "right", "between"]),
    fixed=st.booleans(),
)
@torch.no_grad()
def test_steps_are_the_models_forward_pass(config, tokens, padding, fixed):
    model, ids, mask = LanguageModel(config), torch.randint(7, (2, 9)), masks(padding, tokens)
    for vector in (parameter for parameter in model.parameters() if parameter.dim() == 1):
        vector += 0.3 * torch.randn_like(vector)
    cache, own = model.new_cache(), model.new_cache()
    for each in (cache, own):
        model(ids[:, :tokens], padding_mask=mask, cache=each)
    step = Step(model, cache, 9, mask, fixed=fixed)
    for t in range(tokens, 9):
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
        expected = model(ids[:, t : t + 1], padding_mask=mask, cache=own, at=-1)
        assert_near(step(ids[:, t : t + 1]), expected, 1e-10)
    if not fixed:
        assert_near(cache[-1].value, own[-1].value, 1e-10)


@pytest.mark.parametrize("given_cache", [False, True])
@pytest.mark.parametrize("padding", [None, "left"])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 5}, {"stop_ids": [2, 3]}])
def test_fused_generation_adds_the_same_tokens(options, padding, given_cache):
    model = LanguageModel(dataclasses.replace(SMALL, position="rotary", tied=False))
    ids, mask = torch.randint(7, (2, 4)), masks(padding, 4)
    before = [parameter.clone() for parameter in model.parameters()]

    def generated(**more: Any) -> Tensor:
        cache = None if not given_cache else model.new_cache()
        draws = Generator().manual_seed(3)
        more |= options | {"padding_mask": mask, "cache": cache, "generator": draws}
        out = model.generate(ids, 5, **more)
        assert cache is None or len(cache[0]) == out.shape[1] - 1
        return out

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(generated(fused=True), generated())
    assert all(map(torch.equal, model.parameters(), before))
    assert torch.equal(model.generate(ids, 1, temperature=0, fused=True)[:, :4], ids)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("layout", [as_they_are, side_by_side, turned_over, packed])
@pytest.mark.parametrize("biases", [(True,), (False,), (True, True), (True, False)])
def test_every_layout_is_the_layers(biases, layout, rows):
    layers = [nn.Linear(256, 1024, bias=bias).float() for bias in biases]
    x = torch.randn(rows, 256, dtype=torch.float32)
    multiply = layout([layer.weight for layer in layers], [layer.bias for layer in layers])
    assert_near(multiply(x), torch.cat([layer(x) for layer in layers], dim=1), 1e-5)


@pytest.mark.parametrize("layout", [as_they_are, turned_over, packed])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_steps_of_a_large_model_agree_in_every_layout(batch, layout, monkeypatch):
    monkeypatch.setattr(decoding, "seconds", lambda *_: {layout: (0.0, 0.0)})
    model = LanguageModel(WIDE).float()
    ids, cache = torch.randint(50, (batch, 9)), model.new_cache()
    with torch.no_grad():
        model(ids[:, :8], cache=cache)
        assert_near(Step(model, cache, 9)(ids[:, 8:]), model(ids, at=-1), 1e-4)


def test_the_layout_is_that_of_the_least_time_for_all_calls(monkeypatch):
    layers = nn.Linear(4, 6).float(), nn.Linear(4, 2).float()
    asked, times = [], {as_they_are: (0.0, 4.0), turned_over: (9.0, 2.0), packed: (30.0, 1.0)}

    def chosen(n_calls: int) -> str:
        multiply = product(*layers, rows=3, n_calls=n_calls)
        return multiply.__qualname__.partition(".")[0]

    monkeypatch.setattr(decoding, "seconds", lambda *given: asked.append(given) or times)
    expected = ["as_they_are"] * 2 + ["turned_over"] * 2 + ["packed"]
    assert [chosen(n) for n in (1, 4, 5, 20, 22)] == expected
    assert asked[0] == (((6, 4), (2, 4)), torch.float32, 3, 1)
    ids, model = torch.randint(7, (2, 3)), LanguageModel(SMALL).float()
    asked.clear()
    model.generate(ids, 5, fused=True)  # two at a time
    assert {rows for _, _, rows, _ in asked} == {2}


def test_layouts_are_timed_once_for_a_shape():
    seconds.cache_clear()
    times = seconds(((6, 5), (2, 5)), torch.float32, 3, 1)
    assert {*times} == {as_they_are, turned_over, packed}
    assert all(made > 0 and call > 0 for made, call in times.values())
    for _ in range(2):
        product(nn.Linear(5, 6).float(), nn.Linear(5, 2).float(), rows=3)
    assert seconds.cache_info().misses == 1
    assert {*seconds(((2**12, 2**12),), torch.float64, 1, 1)} == {as_they_are, turned_over}


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_fused_generation_of_an_empty_batch_is_empty(position):
    model = LanguageModel(dataclasses.replace(SMALL, position=position))
    ids = torch.randint(7, (0, 2))
    for real in (None, ids == 0):
        assert model.generate(ids, 3, fused=True, padding_mask=real).shape == (0, 5)


def test_a_window_attends_to_no_more_keys_than_it_has(monkeypatch):
    model = LanguageModel(dataclasses.replace(SMALL, window=3))
    attend, seen = torch.nn.functional.scaled_dot_product_attention, []

    def counted(query, key, *rest, **more):
        seen.append((query.shape[2], key.shape[2], rest[1]))
        return attend(query, key, *rest, **more)

    cache = model.new_cache()
    with torch.no_grad():
        model(torch.randint(7, (1, 5)), cache=cache)
        step = Step(model, cache, 9)
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
        step(torch.tensor([[1]]))
    assert seen == [(1, 3, None)] * SMALL.n_layers


class Own(nn.Linear):
    """A linear map that could be any."""


class OwnBlock(Block):
    """A block that could be any."""


class OwnModel(LanguageModel):
    """A model that could compute anything."""


class Nowhere(Position):
    """A position that could be any."""


def hooked(model):
    model.blocks[1].feed_forward.inner.register_forward_hook(lambda *_: None)


def another_linear(model):
    model.blocks[0].attention.key.__class__ = Own


def another_model(model):
    model.__class__ = OwnModel


def another_position(model):
    for block in model.blocks:
        block.attention.position = Nowhere()


def two_positions(model):
    model.blocks[0].attention.position = None


def another_block(model):
    model.blocks[0].__class__ = OwnBlock


def another_method(model):
    value = model.blocks[0].attention.value
    value.forward = lambda x: nn.Linear.forward(value, x) + 1


def another_logits(model):
    model.embedding.logits = lambda x: -TokenEmbedding.logits(model.embedding, x)


def another_width(model):
    model.blocks[1].attention = MultiHeadAttention(model.config.d_model, 1, position=Rotary())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hooked, "blocks.1.feed_forward.inner has a hook"),
        (another_linear, "blocks.0.attention.key is a Own"),
        (another_model, "the model is a OwnModel"),
        (another_position, "its position is a Nowhere"),
        (two_positions, "its blocks' positions differ"),
        (another_block, "blocks.0 is a OwnBlock"),
        (another_method, "blocks.0.attention.value has its own forward"),
        (another_logits, "embedding has its own logits"),
        (another_width, "its blocks' heads differ"),
    ],
)
def test_what_could_compute_something_else_is_said_and_generates_without(change, reason):
    model, ids = LanguageModel(dataclasses.replace(SMALL, position="rotary")), torch.tensor([[1]])
    change(model)
    with pytest.warns(UserWarning, match=reason):
        generated = model.generate(ids, 4, temperature=0, fused=True)
    assert torch.equal(generated, model.generate(ids, 4, temperature=0))


def test_a_global_hook_is_said():
    handle = register_module_forward_hook(lambda *_: None)
    try:
        assert not_fusible(LanguageModel(SMALL)) == "there is a global hook"
    finally:
        handle.remove()
    assert not_fusible(LanguageModel(SMALL)) is None


def test_two_types_are_said():
    model = LanguageModel(SMALL)
    model.blocks[0].feed_forward.inner.float()
    assert "torch.float32 on cpu and torch.float64 on cpu" in str(not_fusible(model))


def test_what_has_no_bias_gets_none():
    one, other = nn.Linear(4, 3), nn.Linear(4, 2, bias=False)
    x = torch.randn(5, 4)
    assert_near(product(one, other)(x), torch.cat([one(x), other(x)], dim=1), 1e-12)


@pytest.mark.parametrize("changes", [{}, {"n_layers": 1, "window": 2}])  # then it recovers
def test_a_model_that_goes_wrong_on_its_way_is_said(changes):
    config = dataclasses.replace(SMALL, position="learned", tied=False, **changes)
    model = LanguageModel(config)
    with torch.no_grad():
        model.positions.table[5] = torch.nan
    for fused in (False, True):
        with pytest.raises(ValueError, match=r"logits must be finite, got \[nan\]"):
            model.generate(torch.tensor([[1, 2]]), 7, fused=fused)
    assert model.generate(torch.tensor([[1, 2]]), 4, fused=True).shape == (1, 6)


GPUS = [f"cuda:{i}" for i in range(torch.cuda.device_count())]


@pytest.mark.skipif(not GPUS, reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("device", {*GPUS[:1], *GPUS[-1:]})
@pytest.mark.parametrize("changes", [{"n_heads": 4, "n_kv_heads": 2}, {}])
@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("window", [None, 3])
def test_captured_steps_are_the_steps(window, position, changes, device):
    config = dataclasses.replace(SMALL, window=window, position=position, **changes)
    model = LanguageModel(config).to(device)
    ids, mask = torch.randint(7, (2, 4), device=device), masks("left", 4).to(device)
    cache, own = model.new_cache(), model.new_cache()
    with torch.inference_mode():
        for each in (cache, own):
            model(ids, padding_mask=mask, cache=each)
        captured = Captured(Step(model, cache, 9, mask, fixed=True), ids[:, :1])
        step = Step(model, own, 9, mask)
        for new in torch.randint(7, (5, 2, 1), device=device):
            assert_near(captured(new), step(new), 1e-10)
    assert torch.equal(*(model.generate(ids, 5, temperature=0, fused=f) for f in (True, False)))


@pytest.mark.skipif(not GPUS, reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("autocast", [False, True])
def test_captured_logits_in_bfloat16_are_within_rounding(autocast):
    model = LanguageModel(WIDE).cuda().to(torch.float32 if autocast else torch.bfloat16)
    ids = torch.randint(50, (2, 9), device="cuda")
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        cache = model.new_cache()
        model(ids[:, :8], cache=cache)
        captured = Captured(Step(model, cache, 12, fixed=True), ids[:, 8:])
        assert_near(captured(ids[:, 8:]), model(ids, at=-1), 0.1)
