"""The encoder-decoder: what it has that models of one stack have not."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnbook import (
    ALiBi,
    DecoderCache,
    Rotary,
    Transformer,
    TransformerConfig,
    generation,
    padding_mask,
    sinusoidal_positions,
)
from strategies import assert_near
from test_blocks import normed
from test_models import PAIR, assert_learns, configs, every_position, in_parts, model_of, ones


def pair(**changes: object) -> Transformer:
    return model_of(Transformer, **changes)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("target_vocab_size", [None, 5])
def test_encoder_decoder_is_its_parts_one_after_the_other(target_vocab_size, tied, norm):
    model = pair(norm=norm, tied=tied, target_vocab_size=target_vocab_size, norm_eps=0.1)
    source = torch.tensor([[3, 6, 4], [5, 0, 0]])
    target = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]])
    own = model.embedding if target_vocab_size is None else model.target_embedding
    source_mask, target_mask = (padding_mask((x != 0).sum(1), x.shape[1]) for x in (source, target))
    pre = norm == "pre"
    x = model.embedding.weight[source] * math.sqrt(12) + sinusoidal_positions(3, 12)
    for block in model.encoder_blocks:
        x = block(x, source_mask)
    memory = normed(x, model.encoder_norm, 0.1) if pre else x
    y = own.weight[target] * math.sqrt(12) + sinusoidal_positions(4, 12)
    for block in model.decoder_blocks:
        y = block(y, memory, target_mask, source_mask)
    logits = (normed(y, model.decoder_norm, 0.1) if pre else y) @ (
        own if tied else model.output
    ).weight.T
    real = target != 0
    assert_near(model(source, target)[real], logits[real])
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (2, 1)
    assert len(pair(n_decoder_layers=None).decoder_blocks) == 2


def test_settings_reach_both_stacks():
    model = pair(norm="deepnorm", n_layers=2, n_decoder_layers=3, position="alibi", dropout=0.25)
    encoder, decoder = model.encoder_blocks[1], model.decoder_blocks[2]
    assert encoder.attention_residual.scale == pytest.approx(0.81 * (2**4 * 3) ** (1 / 16))
    assert decoder.cross_attention_residual.scale == pytest.approx((3 * 3) ** 0.25)
    assert encoder.attention.position == ALiBi(bidirectional=True)
    assert decoder.attention.position == ALiBi(bidirectional=False)
    assert pair(position="rotary", rotary_base=9.0).decoder_blocks[0].attention.position == Rotary(
        base=9.0
    )
    dropouts = [part.dropout for part in model.modules() if hasattr(part, "dropout")]
    assert dropouts == [0.25] * (1 + 2 * 4 + 3 * 6)
    both = pair(scaled=False, embedding_init="unit", target_vocab_size=500, d_model=120)
    for embedding in (both.embedding, both.target_embedding):
        assert embedding.factor == 1
        assert embedding.weight.std().item() == pytest.approx(1.0, rel=0.1)


def test_source_and_target_do_not_share_learned_positions():
    model = pair(position="learned")
    model(torch.tensor([[3, 6, 4]]), torch.tensor([[1, 2]])).sum().backward()
    tables = model.positions.table, model.target_positions.table
    assert [(table.grad != 0).any(-1).sum() for table in tables] == [3, 2]


@given(config=configs(TransformerConfig), own=st.booleans(), padding=st.booleans())
def test_every_combination_of_settings_builds_and_learns_one_step(config, own, padding):
    changes = {"target_vocab_size": 5 if own else None, "padding_id": 0 if padding else None}
    model = Transformer(dataclasses.replace(config, **changes))
    assert_learns(model, torch.randint(1, 7, (2, 4)), torch.randint(1, 5, (2, 5)))


# Who sees what


@given(config=configs(TransformerConfig), t=st.integers(0, 3))
def test_decoder_sees_nothing_ahead_and_the_whole_source(config, t):
    model, source, target = Transformer(config), *torch.randint(7, (2, 2, 4))
    other = target.clone()
    other[:, t] = (target[:, t] + 1) % 7
    before, after = model(source, target), model(source, other)
    assert torch.equal(before[:, :t], after[:, :t])
    assert (before[:, t:] != after[:, t:]).any(-1).all()
    for s in range(4):
        other = source.clone()
        other[:, s] = (source[:, s] + 1) % 7
        assert (before != model(other, target)).any(-1).all()


@given(config=configs(TransformerConfig))
def test_what_padding_is_like_reaches_no_real_logit_and_no_gradient(config):
    model = Transformer(dataclasses.replace(config, padding_id=0))
    source, real = torch.randint(7, (2, 5)), torch.arange(4) < torch.randint(1, 5, (2, 1))
    target = torch.randint(1, 7, (2, 4)).masked_fill(~real, 0)
    direction = torch.randn(2, 4, 7)
    direction[~real], direction[..., 0] = 0.0, 0.0  # tied, the logit of padding is another
    results = []
    for _ in range(2):
        logits, leaves = model(source, target), [*model.parameters()]
        gradients = torch.autograd.grad(logits, leaves, direction, materialize_grads=True)
        results.append([logits[real][:, 1:], *gradients])
        model.embedding.weight.data[0] = 50 * torch.randn(16)
    for before, after in zip(*results, strict=True):
        assert torch.equal(after, before)
    assert not results[0][1][0].any()


@pytest.mark.parametrize("source_pads", [(2, 0), (0, 2)], ids=["left", "right"])
@pytest.mark.parametrize("target_pads", [(2, 0), (0, 2)], ids=["left", "right"])
@every_position
def test_padding_changes_nothing_on_either_side(position, target_pads, source_pads):
    model, sources = pair(position=position, tied=False), torch.randint(1, 7, (2, 3))
    targets = torch.randint(1, 7, (2, 3))
    longer, padded = F.pad(sources, source_pads), F.pad(targets, target_pads)
    logits = model(longer, padded)[:, target_pads[0] :][:, :3]
    assert_near(logits, model(sources, targets))
    assert_near(model.loss(longer, F.pad(targets, (0, 2))), model.loss(sources, targets))
    # Sources of different length, translated together.
    together = torch.cat([longer, torch.randint(1, 7, (1, 5))])
    options = {"start_id": 1, "end_id": 2, "n_tokens": 5}
    translated = model.generate(together, **options)
    for row, source in zip(translated, sources, strict=False):
        alone = model.generate(source[None], **options)[0]
        assert torch.equal(row[: len(alone)], alone)
        assert not row[len(alone) :].any()


@given(
    config=configs(TransformerConfig),
    tokens=st.integers(1, 9),
    allocated=st.booleans(),
    data=st.data(),
)
@torch.no_grad()
def test_cache_equals_full_pass(config, tokens, allocated, data):
    model = Transformer(dataclasses.replace(config, padding_id=0))
    source, target = torch.randint(7, (2, 3)), torch.randint(1, 7, (2, tokens))
    real = padding_mask(torch.tensor([max(tokens - 2, 1), tokens]), tokens, left=True)
    target = target.masked_fill(~real[:, 0, 0], 0)
    memory, steps = model.encode(source), []
    cache = model.new_cache(tokens if allocated else None)
    assert {type(one) for one in cache} == {DecoderCache}
    for part in target.split(in_parts(data.draw, tokens), dim=1):
        mask = real[..., : len(cache[0]) + part.shape[1]]
        steps.append(model.decode(part, memory, source, padding_mask=mask, cache=cache))
    logits = torch.cat(steps, dim=1)
    expected = model.decode(target, memory, source)
    assert_near(logits[real[:, 0, 0]], expected[real[:, 0, 0]], 1e-10)


def test_from_vectors_on_the_model_is_the_same():
    model, source, target = (
        pair(padding_id=None),
        torch.randint(7, (2, 4)),
        torch.randint(7, (2, 3)),
    )
    x, y = (
        model.embedding.weight[ids] * math.sqrt(12) + sinusoidal_positions(ids.shape[1], 12)
        for ids in (source, target)
    )
    memory = model.encode_vectors(x)
    assert_near(memory, model.encode(source))
    logits = model.embedding.logits(model.decode_vectors(y, memory))
    assert_near(logits, model(source, target))
    assert torch.equal(model(source, target, memory=memory), model.decode(target, memory, source))


# Loss and generation


def test_loss_is_that_of_each_next_token_without_padding():
    model = pair()
    source, target = torch.tensor([[3, 6], [4, 5]]), torch.tensor([[1, 2, 3], [1, 4, 0]])
    logs = model(source, target[:, :-1]).log_softmax(-1)
    real = [logs[0, 0, 2], logs[0, 1, 3], logs[1, 0, 4]]
    assert_near(model.loss(source, target), -sum(real) / 3)
    total, count = model.loss(source, target, reduction="sum")
    assert_near(total, -sum(real))
    assert count == 3
    assert torch.equal(model(source, target, reduction="mean"), model.loss(source, target))
    longest = torch.randint(1, 7, (2, PAIR.max_tokens + 1))  # one longer than what is read of it
    assert model.loss(source, longest).isfinite()


@pytest.mark.parametrize("padding_id", [0, None])
@pytest.mark.parametrize("target_vocab_size", [None, 9])
def test_generation_is_greedy_and_ends_each_sequence(target_vocab_size, padding_id):
    torch.manual_seed(15)
    changes = {"padding_id": padding_id, "target_vocab_size": target_vocab_size, "tied": False}
    model = Transformer(dataclasses.replace(PAIR, **changes))
    source, rows = torch.randint(1, 7, (12, 4)), []
    for ids in source:
        target = [1]
        while len(target) <= 6 and target[-1] != 2:
            target.append(int(model(ids[None], torch.tensor([target]))[0, -1].argmax()))
        rows.append(target[1:])
    longest, filler = max(map(len, rows)), 2 if padding_id is None else 0
    assert len({*map(len, rows)}) > 1  # some end early
    assert not any(0 in row for row in rows)
    drawn = model.generate(source.int(), start_id=1, end_id=2, n_tokens=6)
    assert drawn.tolist() == [row + [filler] * (longest - len(row)) for row in rows]
    assert drawn.dtype == torch.int32


def test_generation_stops_when_all_have_ended():
    model, source = pair(), torch.randint(1, 7, (1, 4))
    first = int(model(source, ones(1, 1))[0, 0].argmax())
    assert model.generate(source, start_id=1, end_id=first, n_tokens=9).tolist() == [[first]]
    assert model.generate(source, start_id=1, end_id=2, n_tokens=0).shape == (1, 0)


# Beam search


def log_probabilities(model: Transformer, source: Tensor, of: list[tuple[int, ...]]) -> Tensor:
    """Of whole targets of one length, by a full pass."""
    ids = torch.tensor([(1, *target) for target in of])
    logits = model(source.expand(len(of), -1), ids[:, :-1])
    logits[..., 0] = -torch.inf  # padding is never generated
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))


def likeliest(
    model: Transformer, source: Tensor, of: list[tuple[int, ...]], penalty: float
) -> tuple[int, ...]:
    """Of targets of several lengths."""
    scores = {
        target: log_p / ((5 + n) / 6) ** penalty
        for n in {len(target) for target in of}
        for alike in [[target for target in of if len(target) == n]]
        for target, log_p in zip(
            alike, log_probabilities(model, source, alike).tolist(), strict=True
        )
    }
    return max(scores, key=scores.__getitem__)


def targets(n: int) -> list[tuple[int, ...]]:
    """All that end, by token 2, within n tokens, and all of n tokens that don't."""
    going, found = [()], []
    for _ in range(n):
        found += [(*each, 2) for each in going]
        going = [(*each, token) for each in going for token in (1, 3, 4, 5, 6)]
    return found + going


def unpadded(row: Tensor) -> tuple[int, ...]:
    return tuple(int(token) for token in row if token)


def confident(seed: int) -> Transformer:
    """Untied, its logits far apart: other beams, other answers."""
    torch.manual_seed(seed)
    model = Transformer(dataclasses.replace(PAIR, padding_id=0, tied=False))
    with torch.no_grad():
        model.output.weight *= 4
    return model


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_beams_enough_for_all_find_the_best_of_all(penalty):
    for seed in range(3):
        model, source = confident(seed), torch.randint(1, 7, (2, 4))
        settings = {"start_id": 1, "end_id": 2, "n_tokens": 3}
        found = model.generate(source, **settings, beams=6**3, length_penalty=penalty)
        for ids, row in zip(source, found, strict=True):
            assert unpadded(row) == likeliest(model, ids, targets(3), penalty)


def beam_search(model, source, n_tokens, beams, penalty) -> tuple[int, ...]:
    """The same as ``generate``, with lists and full passes."""
    going, ended = [()], []
    for n in range(1, n_tokens + 1):
        longer = [(*each, token) for each in going for token in range(1, 7)]
        order = log_probabilities(model, source, longer).argsort(descending=True, stable=True)
        longer = [longer[i] for i in order]
        ended += [y for y in longer[:beams] if y[-1] == 2 or n == n_tokens]
        going = [y for y in longer if y[-1] != 2][:beams]
    return likeliest(model, source, ended, penalty)


@pytest.mark.parametrize("beams", [2, 3, 5])
def test_beam_search_goes_on_with_the_likeliest(beams):
    lengths = set()
    for seed in range(4):
        model, source = confident(seed), torch.randint(1, 7, (3, 4))
        for penalty in (0.0, 1.0):
            found = model.generate(
                source, start_id=1, end_id=2, n_tokens=5, beams=beams, length_penalty=penalty
            )
            for ids, row in zip(source, found, strict=True):
                assert unpadded(row) == beam_search(model, ids, 5, beams, penalty)
                lengths.add(len(unpadded(row)))
    assert len(lengths) > 2


@pytest.mark.slow
def test_beams_find_no_less_than_greedy_while_they_could_still_win():
    """A search that ends when three have ended gives up the likelier one in six of these."""
    for seed in range(60):
        torch.manual_seed(seed)
        sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_tokens": 12}
        config = TransformerConfig(vocab_size=6, padding_id=0, **sizes)
        model, source = Transformer(config).double().eval(), torch.tensor([[3, 4, 5]])
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.7)
        greedy, beams = (
            unpadded(model.generate(source, start_id=1, end_id=2, n_tokens=6, beams=n)[0])
            for n in (1, 3)
        )
        found, taken = (log_probabilities(model, source, [y]) for y in (beams, greedy))
        assert found >= taken - 1e-9


def test_greedy_is_one_beam():
    model, source = confident(3), torch.randint(1, 7, (12, 4))
    greedy = model.generate(source, start_id=1, end_id=2, n_tokens=6)
    with torch.no_grad():
        one = generation.beam_search(model, source, generation.Target(1, 2, 0, 6), 1, 0.0)
    assert torch.equal(greedy, one)


# Bad input


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("call", "given", "expected"),
    [
        (lambda m: m.generate(ones(2, 3), start_id=1, end_id=0, n_tokens=1), "end_id 0", "padding"),
        (lambda m: m.generate(ones(2, 3), start_id=1, end_id=2, n_tokens=10), "got 10", "most 9"),
        (
            lambda m: m.generate(
                ones(2, 3), start_id=1, end_id=2, n_tokens=1, beams=2, temperature=1.0
            ),
            "beams=2 and temperature=1.0",
            "does not draw",
        ),
        (lambda m: m.generate(ones(2, 3), start_id=1, end_id=7, n_tokens=1), "got 7", "0 … 6"),
        (
            lambda m: m.generate(
                torch.tensor([[1, 0], [0, 0], [0, 3]]), start_id=1, end_id=2, n_tokens=1
            ),
            *(r"padding only in \[1\]", "each source needs a real token"),
        ),
        (lambda m: m.generate(ones(2, 3), start_id=-1, end_id=2, n_tokens=1), "got -1", "start_id"),
        (lambda m: m.generate(ones(2, 3), start_id=1, end_id=2, n_tokens=-1), "got -1", "negative"),
        (lambda m: TransformerConfig(7, padding_id=-1), "got -1", "padding_id must be in 0 … 6"),
        (lambda m: TransformerConfig(7, target_vocab_size=3, padding_id=5), "got 5", "0 … 2"),
        (lambda m: TransformerConfig(7, n_decoder_layers=0), "got 0", "n_decoder_layers"),
        (lambda m: m(ones(2, 12), ones(2, 3)), "got 12", "at most 9"),
        (lambda m: m(ones(2, 3), ones(2, 12)), "got 12", "at most 9"),
        (lambda m: m.loss(ones(2, 3), ones(2, 11)), "got 10", "at most 9"),
        (lambda m: m.loss(ones(2, 5), 0 * ones(2, 5)), "all 8 are 0", "no target is left"),
        (lambda m: m(7 * ones(2, 3), ones(2, 3)), "7 … 7", "0 … 6"),
        (lambda m: TransformerConfig(7, window=3), "got 3, False", "no window"),
        (lambda m: TransformerConfig(7, prediction_head=True), "and True", "prediction_head"),
        (lambda m: TransformerConfig(7, embedding_norm=True), "None, True", "embedding_norm"),
        (lambda m: TransformerConfig(7, norm="sandwich"), "'sandwich'", "'pre', 'post'"),
    ],
)
def test_what_cannot_be_is_refused(call, given, expected):
    with pytest.raises(ValueError, match=given) as caught:
        call(pair())
    assert expected in str(caught.value)


@pytest.mark.parametrize("beams", [1, 3])
def test_no_source_gives_no_target(beams):
    given = {"start_id": 1, "end_id": 2, "n_tokens": 3, "beams": beams}
    assert len(pair().generate(ones(0, 4), **given)) == 0


def test_memory_is_not_given_to_the_wrong_source():
    """The padding of another source would be that of the memory."""
    model, source = pair(), torch.tensor([[3, 4, 0]])
    memory, target = model.encode(source), torch.tensor([[1, 2]])
    other: Tensor = model.decode(target, memory, torch.tensor([[3, 4, 5]]))
    assert not torch.allclose(other, model.decode(target, memory, source))
