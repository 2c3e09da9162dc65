"""What the probes read, against direct computations; and that they leave no trace."""

import contextlib
import copy
import io
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnbook import (
    LanguageModel,
    ModelConfig,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    attention_logits,
    causal_mask,
    padding_mask,
)
from attnbook import probes as module_under_test
from attnbook.probes import ACTIVATIONS, ATTENTION, PLACE, Probe
from attnbook.tables import Table

BATCH, TOKENS = 3, 6


def language_model(**options: object) -> LanguageModel:
    settings = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "n_heads": 2} | options
    return LanguageModel(ModelConfig(**settings))


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(11, (BATCH, TOKENS + 1))
    return ids[:, :-1], ids[:, 1:]


def row(table: Table, name: str) -> SimpleNamespace:
    (found,) = table.where(name=name)
    return SimpleNamespace(**found)


def near(expected: float) -> object:
    return pytest.approx(float(torch.as_tensor(expected).detach()), rel=1e-9, abs=1e-12)


class Run(nn.Module):
    """A module that does what it is told."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> object:
        return self.function(*given)


class Twice(nn.Module):
    """Gives a layer its argument twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x)


def outputs_of(model: nn.Module, run: Callable[[], object]) -> dict[str, Tensor]:
    """Each module's output, with its gradient, by the plainest hooks."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
            seen[name] = output[0] if isinstance(output, tuple) else output
            if seen[name].requires_grad:
                seen[name].retain_grad()

        return hook

    handles = [m.register_forward_hook(keep(name)) for name, m in model.named_modules()]
    run()
    for handle in handles:
        handle.remove()
    return seen


class TestActivations:
    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_sizes_and_gradients(self, norm: str) -> None:
        model, (ids, targets) = language_model(norm=norm), batch()
        expected = outputs_of(model, lambda: model.loss(ids, targets).backward())
        with Probe(model) as probe:
            model.loss(ids, targets).backward()
        table = probe.activations
        assert len(table) == len(expected)
        for name, x in expected.items():
            got = row(table, name or "(model)")
            assert got.rms == near(x.square().mean().sqrt())
            assert got.variance == near(x.var(correction=0))
            assert got.calls == 1
            if x.requires_grad:
                assert got.gradient_rms == near(x.grad.square().mean().sqrt()), name
            else:
                assert got.gradient_rms is None

    def test_likeness_of_tokens(self) -> None:
        model, (ids, targets) = language_model(), batch()
        expected = outputs_of(model, lambda: model.loss(ids, targets))
        with Probe(model, rank_sequences=None) as probe, torch.no_grad():
            model(ids)
        for name in ("blocks.1", "blocks.0.attention.query", "blocks.0.feed_forward.inner"):
            x = expected[name].detach()
            cosines = [
                torch.dot(a, b) / a.norm() / b.norm()
                for sequence in x
                for a, b in combinations(sequence, 2)
            ]
            powers = torch.linalg.svdvals(x).square()
            ranks = powers.sum(-1).square() / powers.square().sum(-1)
            got = row(probe.activations, name)
            assert got.cosine == near(sum(cosines) / len(cosines))
            assert got.rank == near(ranks.mean())
        assert row(probe.activations, "positions").cosine is None  # (tokens, width): no batch

    def test_rank_where_it_is_known(self) -> None:
        model = nn.Identity()

        def read(x: Tensor, **options: int | None) -> SimpleNamespace:
            with Probe(model, **options) as probe:
                model(x)
            return row(probe.activations, "(model)")

        one = torch.randn(2, 5, 1) * torch.randn(8)
        assert read(one).rank == near(1)
        assert read(torch.eye(4).expand(2, 4, 4) * 1e-30).rank == near(4)
        assert read(torch.eye(9)[None, :, :3]).rank == near(3)  # more tokens than the width
        assert read(torch.eye(3)[None]).cosine == near(0)
        assert read(torch.ones(2, 3, 4)).cosine == near(1)
        assert read(torch.ones(2, 3, 4) * 1e-30).cosine == near(1)
        assert read(torch.zeros(2, 3, 4)).rank is None
        assert read(torch.zeros(2, 3, 4)).cosine == near(0)
        assert read(torch.randn(2, 1, 4)).cosine is None  # no other token
        mixed = torch.cat([one[:1], torch.eye(5, 8)[None], torch.zeros(1, 5, 8)])
        assert read(mixed).rank == near(1)
        assert read(mixed, rank_sequences=2).rank == near(3)
        assert read(mixed, rank_sequences=None).rank == near(3)  # zeros do not count

    @pytest.mark.parametrize("scale", [1e-36, 1e-20, 1.0, 1e30])
    @pytest.mark.parametrize("shape", [(2, 5, 16), (2, 9, 4)])
    def test_any_size_in_single_precision(self, scale: float, shape: tuple[int, int, int]) -> None:
        x = (scale * torch.randn(shape)).float().requires_grad_()
        back = scale * torch.randn(shape).float()
        model = nn.Identity()
        with Probe(model, rank_sequences=None) as probe:
            model(1 * x).backward(back)
        wide = x.detach().double()
        unit = wide / wide.norm(dim=-1, keepdim=True)
        others = ~torch.eye(shape[1], dtype=torch.bool)
        powers = (torch.linalg.svdvals(wide) / scale).square()
        got = row(probe.activations, "(model)")
        assert got.rms == pytest.approx(wide.square().mean().sqrt().item(), rel=1e-5)
        assert got.variance == pytest.approx(wide.var(correction=0).item(), rel=1e-5, abs=0)
        assert got.gradient_rms == pytest.approx(
            back.double().square().mean().sqrt().item(), rel=1e-5, abs=0
        )
        assert got.cosine == pytest.approx((unit @ unit.mT)[:, others].mean().item(), abs=1e-5)
        ranks = powers.sum(-1).square() / powers.square().sum(-1)
        assert got.rank == pytest.approx(ranks.mean().item(), rel=1e-5)

    def test_tokens_of_very_different_sizes(self) -> None:
        x = torch.randn(1, 4, 8).float()
        x[0, 1] *= 1e-25  # its squares are nothing in single precision, its direction counts
        with Probe(model := nn.Identity()) as probe:
            model(x)
        unit = F.normalize(x.double(), dim=-1, eps=0)
        expected = (unit @ unit.mT)[:, ~torch.eye(4, dtype=torch.bool)].mean().item()
        assert row(probe.activations, "(model)").cosine == pytest.approx(expected, abs=1e-6)

    def test_several_calls_are_one_row(self) -> None:
        model = nn.Linear(4, 4)
        first, second = torch.randn(2, 3, 4), 5 + torch.randn(1, 7, 4)
        with Probe(model) as probe:
            outputs = [model(first), model(second)]
            for y in outputs:
                y.retain_grad()
            sum(y.square().sum() for y in outputs).backward()
        (got,) = probe.activations
        entries = torch.cat([y.flatten() for y in outputs]).detach()
        assert got["calls"] == 2
        assert got["rms"] == near(entries.square().mean().sqrt())
        assert got["variance"] == near(entries.var(correction=0))
        gradients = torch.cat([y.grad.flatten() for y in outputs])
        assert got["gradient_rms"] == near(gradients.square().mean().sqrt())

    def test_first_tensor_of_several(self) -> None:
        class Several(nn.Module):
            def forward(self, x: Tensor) -> object:
                loss = x.sum()
                return {"loss": loss, "ids": x.long(), "hidden": x, "more": 2 * x}

        x = torch.randn(2, 3)
        with Probe(model := Several()) as probe:
            model(x)
        assert probe.activations["rms"] == near(x.square().mean().sqrt())

    def test_first_tensor_of_a_dataclass(self) -> None:
        @dataclass
        class Output:
            loss: Tensor
            hidden: Tensor

        x = torch.randn(2, 3)
        with Probe(model := Run(lambda x: Output(x.sum(), x))) as probe:
            model(x)
        assert row(probe.activations, "(model)").rms == near(x.square().mean().sqrt())
        with Probe(model := Run(lambda _: Output)) as probe:  # the class itself holds no tensor
            model(x)
        assert len(probe.activations) == 0

    def test_two_backward_passes_through_one_forward(self) -> None:
        model, x, weights = nn.Linear(4, 4, bias=False), torch.randn(3, 4), torch.randn(3, 4)
        with Probe(model) as probe:
            y = model(x)
            y.sum().backward(retain_graph=True)
            (y * weights).sum().backward()
        both = torch.stack([torch.ones(3, 4), weights])
        assert probe.activations["gradient_rms"] == near(both.square().mean().sqrt())
        summed = both.sum(0).mT @ x
        assert probe.parameters["gradient_rms"] == near(summed.square().mean().sqrt())

    @pytest.mark.parametrize("at_once", [1, 50, 2**20])
    def test_what_is_kept_of_each_token_is_reduced(
        self, at_once: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(5, 2, 7, 4)
        with Probe(model, rank_sequences=None) as plain:
            for one in x:
                model(one)
        monkeypatch.setattr(module_under_test, "LENGTHS_AT_ONCE", at_once)
        with Probe(model, rank_sequences=None) as probe:
            for one in x:
                model(one)
                assert sum(kept.numel() for *_, kept in probe._described) <= at_once
        assert probe.activations.rows == plain.activations.rows

    @pytest.mark.parametrize("kind", ["attention", "layer", "encoder", "decoder"])
    def test_tokens_first(self, kind: str) -> None:
        def read(batch_first: bool) -> Table:
            torch.manual_seed(4)
            options = {"batch_first": batch_first, "dropout": 0.0}
            layer = nn.TransformerEncoderLayer(8, 2, 12, **options)
            model = {
                "attention": lambda: nn.MultiheadAttention(8, 2, **options),
                "layer": lambda: layer,
                "encoder": lambda: nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
                "decoder": lambda: nn.TransformerDecoderLayer(8, 2, 12, **options),
            }[kind]()
            x = torch.randn(BATCH, TOKENS, 8)
            given = [x if batch_first else x.transpose(0, 1)]
            given *= {"attention": 3, "decoder": 2}.get(kind, 1)
            with Probe(model, rank_sequences=None) as probe:
                model(*given)
            return probe.activations

        table, expected = read(False), read(True)
        for column in ("rms", "cosine", "rank"):
            np.testing.assert_allclose(table[column], expected[column], err_msg=column)

    @pytest.mark.parametrize("outside", [True, False])
    def test_inference_mode(self, outside: bool) -> None:
        model = nn.Sequential(MultiHeadAttention(8, 2), nn.LayerNorm(8), nn.ReLU(inplace=True))
        x = torch.randn(2, 3, 8)
        with Probe(model) as plain, torch.no_grad():
            model(x)
        modes = [torch.inference_mode(), Probe(model)]
        with contextlib.ExitStack() as stack:
            for mode in modes if outside else reversed(modes):
                stack.enter_context(mode)
            model(x)
        probe = modes[1]
        for name in ("activations", "attention", "parameters"):
            assert str(getattr(probe, name)) == str(getattr(plain, name))

    def test_overwritten_outputs_are_not_mixed_up(self) -> None:
        model = nn.Sequential(nn.LayerNorm(8), nn.ReLU(inplace=True))
        x = torch.randn(2, 3, 8, requires_grad=True)
        with Probe(model) as probe:
            model(x).square().sum().backward()
        y = F.layer_norm(x, (8,)).detach().requires_grad_()
        y.relu().square().sum().backward()
        before, after = row(probe.activations, "0"), row(probe.activations, "1")
        assert before.rms == near(y.square().mean().sqrt())
        assert after.rms == near(y.relu().square().mean().sqrt())
        assert before.gradient_rms == near(y.grad.square().mean().sqrt())
        assert after.gradient_rms == near((2 * y.relu()).square().mean().sqrt())

    def test_checkpointing_is_no_second_call(self) -> None:
        model, x = nn.Sequential(MultiHeadAttention(4, 2), nn.Tanh()), torch.randn(2, 3, 4)
        with Probe(model) as plain:
            model(x.clone().requires_grad_()).sum().backward()
        for reentrant in (True, False):
            with Probe(model) as probe:
                checkpoint(
                    model, x.clone().requires_grad_(), use_reentrant=reentrant
                ).sum().backward()
            assert str(probe.activations) == str(plain.activations)
            assert str(probe.attention) == str(plain.attention)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_low_precision_is_read_in_float32(self, dtype: torch.dtype) -> None:
        model, x = nn.Identity(), (300 * torch.randn(4, 100, 50)).to(dtype)
        with Probe(model) as probe:
            model(x)
        assert probe.activations["rms"] == pytest.approx(x.double().square().mean().sqrt().item())


def expected_attention(logits: Tensor, allowed: Tensor) -> dict[str, float]:
    """Row by row, from the definitions."""
    allowed = allowed.expand(logits.shape)
    rows = [
        s[may]
        for s, may in zip(logits.flatten(0, -2), allowed.flatten(0, -2), strict=True)
        if may.any()
    ]
    weights = [s.softmax(-1) for s in rows]
    entropies = [-(a * a.log()).sum().item() for a in weights]
    pairs = torch.cat(rows)
    return {
        "logit_variance": pairs.var(correction=0).item(),
        "logit_variance_in_row": sum((s - s.mean()).square().sum().item() for s in rows)
        / len(pairs),
        "entropy": float(np.mean(entropies)),
        "perplexity": float(np.mean(np.exp(entropies))),
        "keys": float(np.mean([len(s) for s in rows])),
        "largest": float(np.mean([a.max().item() for a in weights])),
    }


def assert_attention(found: SimpleNamespace, expected: dict[str, float]) -> None:
    for name, value in expected.items():
        assert getattr(found, name) == near(value), name


def mask(kind: str) -> Tensor | None:
    """One of them has a query that may attend to nothing."""
    return {
        "none": None,
        "padding": padding_mask(torch.tensor([2, TOKENS, 4]), TOKENS),
        "pattern": (torch.rand(TOKENS, TOKENS) < 0.5) & (torch.arange(TOKENS) != 2)[:, None],
    }[kind]


FINITE = -1e4, -5e7, torch.finfo(torch.float16).min, torch.finfo(torch.float32).min
"""What others add to forbidden logits."""


class TestAttention:
    @pytest.mark.parametrize("entries_at_once", [1, 2**20])
    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("kind", ["none", "padding", "pattern"])
    @pytest.mark.parametrize("n_kv_heads", [2, 4])
    def test_fused(
        self,
        n_kv_heads: int,
        kind: str,
        causal: bool,
        entries_at_once: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(module_under_test, "ENTRIES_AT_ONCE", entries_at_once)
        model = MultiHeadAttention(16, 4, n_kv_heads=n_kv_heads)
        x, may = torch.randn(BATCH, TOKENS, 16), mask(kind)
        with Probe(model) as probe:
            model(x, mask=may, causal=causal)
        query, key = model._split(model.query(x), 4), model._split(model.key(x), n_kv_heads)
        logits = attention_logits(query, key.repeat_interleave(4 // n_kv_heads, dim=1)).detach()
        allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if may is None else may
        allowed = allowed & causal_mask(TOKENS) if causal else allowed
        assert_attention(row(probe.attention, "(model)"), expected_attention(logits, allowed))

    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("kind", ["none", "padding"])
    def test_our_three_ways_are_read_alike(
        self, kind: str, causal: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, x = MultiHeadAttention(16, 4), torch.randn(BATCH, 20, 16)
        may = None if kind == "none" else padding_mask(torch.tensor([2, 20, 4]), 20)
        tables = []
        for threads, weights in ((1, False), (2, False), (1, True)):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            with Probe(model) as probe:
                model(x, mask=may, causal=causal, return_weights=weights)
            tables.append([value for value in probe.attention.rows[0] if isinstance(value, float)])
        assert tables[0] == pytest.approx(tables[1], rel=1e-9)
        assert tables[0] == pytest.approx(tables[2], rel=1e-9)

    @pytest.mark.parametrize("value", [-math.inf, -1e9, torch.finfo(torch.float64).min, *FINITE])
    def test_added_masks(self, value: float) -> None:
        query, key = 3 * torch.randn(2, 2, TOKENS, 4), torch.randn(2, 2, TOKENS, 4)
        may = mask("pattern")
        added = torch.zeros(TOKENS, TOKENS).masked_fill(~may, value)
        added[may] = torch.randn(int(may.sum()))  # a bias, too

        class Eager(nn.Module):
            def forward(self, query: Tensor, key: Tensor) -> Tensor:
                return F.softmax(query @ key.mT / 2 + added, -1) @ key

        class Fused(nn.Module):
            def forward(self, query: Tensor, key: Tensor) -> Tensor:
                return F.scaled_dot_product_attention(query, key, key, attn_mask=added)

        expected = expected_attention(query @ key.mT / 2 + added, may)
        for model in (Eager(), Fused()):
            with Probe(model) as probe:
                model(query, key)
            assert_attention(row(probe.attention, "(model)"), expected)

    @pytest.mark.parametrize("fused", [True, False])
    def test_sharp_rows_are_not_masked(self, fused: bool) -> None:
        query, key = 60 * torch.randn(2, TOKENS, 4), torch.randn(2, TOKENS, 4)
        zeros = torch.zeros(TOKENS, TOKENS)  # an added mask that forbids nothing

        def attend() -> Tensor:
            if fused:
                return F.scaled_dot_product_attention(query, key, key, zeros)
            return (query @ key.mT / 2 + zeros).softmax(-1)

        with Probe(model := Run(attend)) as probe:
            model()
        logits = query @ key.mT / 2
        assert 110 < (logits.amax(-1, keepdim=True) - logits).max() < 1000
        assert probe.attention["keys"] == TOKENS
        assert probe.attention["logit_variance"] == near(logits.var(correction=0))
        assert probe.attention["largest"] == near(logits.softmax(-1).amax(-1).mean())

    def test_attention_outside_the_model_is_not_its_own(self) -> None:
        model, other, x = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
        with Probe(model) as probe:
            other(x, return_weights=True)
            model(x)
            F.scaled_dot_product_attention(x, x, x)
        assert probe.attention["calls"].tolist() == [1]

    @pytest.mark.parametrize("way", ["explicit", "mask", "fused"])
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nan_shows(self, bad: float, way: str) -> None:
        x = torch.randn(2, 3, 4, requires_grad=True)
        given = x.detach().clone()
        given[0, 2, 0] = bad
        attend = {
            "explicit": lambda x: (x @ x.mT).softmax(-1),
            "mask": lambda x: F.scaled_dot_product_attention(x, x, x, torch.zeros(3, 3)),
            "fused": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        }[way]
        with Probe(model := Run(lambda: (attend(given), given)[1])) as probe:
            model()
        (got,) = probe.attention
        assert all(math.isnan(got[name]) for name in ATTENTION[4:])
        (got,) = probe.activations
        names = ("variance", "cosine", "rank") + ("rms",) * math.isnan(bad)
        assert all(math.isnan(got[name]) for name in names)
        assert got["gradient_rms"] is None
        assert str(probe.activations).split()[-5:][2:] == ["–", "nan", "nan"]

    def test_nothing_may_be_attended_to(self) -> None:
        x, nothing = torch.randn(2, 3, 4), torch.zeros(3, 3, dtype=torch.bool)
        with Probe(Run(lambda: F.scaled_dot_product_attention(x, x, x, nothing))) as probe:
            probe._model()
        assert probe.attention.rows[0][4:] == (None,) * 6

    @pytest.mark.parametrize(("queries", "keys"), [(3, 5), (4, 4)])
    def test_torchs_causal_bias(self, queries: int, keys: int) -> None:
        from torch.nn.attention.bias import causal_lower_right, causal_upper_left

        q, k = torch.randn(2, 2, queries, 8), torch.randn(2, 2, keys, 8)
        full = torch.ones(queries, keys, dtype=torch.bool)
        for bias, allowed in (
            (causal_lower_right(queries, keys), full.tril(keys - queries)),
            (causal_upper_left(queries, keys), full.tril()),
        ):
            model = Run(lambda m=bias: F.scaled_dot_product_attention(q, k, k, attn_mask=m))
            with Probe(model) as probe:
                model()
            expected = expected_attention(q @ k.mT / math.sqrt(8), allowed)
            assert_attention(row(probe.attention, "(model)"), expected)

    def test_a_softmax_written_over_its_logits(self) -> None:
        query, key = 3 * torch.randn(2, TOKENS, 4), torch.randn(2, TOKENS, 4)

        def attend() -> Tensor:
            logits = query @ key.mT
            weights = torch.softmax(logits, -1, out=logits)
            return (weights @ key).softmax(-1)  # of mixed values: no attention

        with Probe(model := Run(attend)) as probe:
            model()
        everything = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
        assert_attention(
            row(probe.attention, "(model)"), expected_attention(query @ key.mT, everything)
        )
        assert probe.attention["calls"] == 1

    def test_no_keys_at_all(self) -> None:
        x = torch.randn(2, 3, 4)
        with Probe(model := Run(lambda: (x @ x[:, :0].mT).softmax(-1))) as probe:
            model()
        assert len(probe.attention) == 0

    def test_every_spelling_of_a_softmax(self) -> None:
        query, key = torch.randn(2, TOKENS, 4), torch.randn(2, TOKENS, 4)
        product = [
            lambda: query @ key.mT,
            lambda: torch.matmul(query, key.transpose(1, 2)),
            lambda: torch.bmm(query, key.mT),
            lambda: torch.einsum("bqd,bkd->bqk", query, key),
            lambda: torch.einsum("bqd,bkd->bqk", [query, key]),
            lambda: torch.baddbmm(torch.zeros(TOKENS, TOKENS), query, key.mT),
        ]
        then = [
            lambda s: s.softmax(-1),
            lambda s: torch.softmax(s, dim=2),
            lambda s: F.softmax(s[:, None] * 1.0, dim=-1, dtype=torch.float64),
            lambda s: nn.Softmax(dim=-1)(s.masked_fill(torch.zeros(TOKENS, 1) > 0, -1e9)),
            lambda s: torch.special.softmax(s.view(2, TOKENS, TOKENS), -1),
            lambda s: (s * 2).chunk(2, 1)[0].softmax(-1),
            lambda s: s[:, None].unbind(1)[0].softmax(-1),
            lambda s: torch.cat([s, torch.zeros(2, TOKENS, 1)], -1).softmax(-1),
            lambda s: s.mT.softmax(-1),
            lambda s: s.data.softmax(-1),
            lambda s: torch.add(input=s, other=1.0).softmax(-1),
            lambda s: torch.where(condition=s > 0, input=s, other=-1e9).softmax(-1),
            lambda s: torch.softmax(input=s, dim=-1),
        ]
        for multiply in product:
            for normalize in then:
                with Probe(model := Run(lambda m=multiply, n=normalize: n(m()))) as probe:
                    model()
                assert probe.attention["calls"].tolist() == [1]

    def test_other_softmaxes_are_none(self) -> None:
        class Router(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.experts = nn.Linear(4, 3)
                self.vocabulary = nn.Parameter(torch.randn(9, 4))
                self.several = nn.Parameter(torch.randn(2, 4, 9))

            def forward(self, x: Tensor) -> Tensor:
                heads = F.scaled_dot_product_attention(x, x, x)
                shares = self.experts(heads + x @ x.mT @ x).softmax(-1)
                (x @ x.mT).softmax(1)  # over the queries
                (x @ self.several).softmax(-1)
                torch.einsum("bte,bve->btv", x, self.several.mT).softmax(-1)
                return shares.sum() + F.softmax(x @ self.vocabulary.T, -1) + x.softmax(-1).sum()

        with Probe(model := Router()) as probe:
            model(torch.randn(2, 5, 4))
        assert probe.attention["calls"].tolist() == [1]  # torch's kernel

    @pytest.mark.parametrize(
        "make",
        [
            lambda: nn.Conv1d(4, 4, 1),
            lambda: nn.ConvTranspose1d(4, 4, 1),
            lambda: nn.Sequential(nn.Unflatten(2, (5, 1)), nn.Conv2d(4, 4, 1)),
            lambda: nn.Sequential(nn.Unflatten(2, (5, 1)), nn.ConvTranspose2d(4, 4, 1)),
            lambda: nn.Sequential(nn.Unflatten(2, (5, 1, 1)), nn.Conv3d(4, 4, 1)),
            lambda: nn.Sequential(nn.Unflatten(2, (5, 1, 1)), nn.ConvTranspose3d(4, 4, 1)),
            lambda: nn.LSTM(5, 3, batch_first=True),
            lambda: nn.GRU(5, 3, batch_first=True),
            lambda: nn.RNN(5, 3, batch_first=True),
            lambda: nn.RNN(5, 3, batch_first=True, nonlinearity="relu"),
            lambda: Twice(nn.Bilinear(5, 5, 3)),
        ],
    )
    def test_a_softmax_after_a_layer_is_none(self, make: Callable[[], nn.Module]) -> None:
        layer = make()

        def scores(x: Tensor) -> Tensor:  # linear attention, without any softmax
            y = layer(x.mT @ x @ x.mT)
            return (y[0] if isinstance(y, tuple) else y).softmax(-1)

        with Probe(model := nn.Sequential(Run(scores))) as probe:
            model(torch.randn(2, 5, 4))
        assert len(probe.attention) == 0

    @pytest.mark.parametrize(
        "mix",
        [
            lambda x, w: w @ x,
            lambda x, w: F.dropout(w, 0.5) @ x,
            lambda x, w: (x.mT @ w.mT).mT,
            lambda x, w: torch.einsum("bqk,bkd->bqd", w, x),
            lambda x, w: x + torch.bmm(input=w, mat2=x),
        ],
    )
    def test_a_softmax_of_mixed_values_is_none(
        self, mix: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        def pool(x: Tensor) -> Tensor:
            return mix(x, (x @ x.mT).softmax(-1)).mean(1).softmax(-1)

        x = torch.randn(2, TOKENS, 4)
        with Probe(model := Run(pool)) as probe:
            model(x)
        everything = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
        got = row(probe.attention, "(model)")
        assert got.calls == 1
        assert_attention(got, expected_attention(x @ x.mT, everything))

    def test_row_of_the_innermost_module_with_parameters(self) -> None:
        class Scores(nn.Module):
            def forward(self, q: Tensor, k: Tensor) -> Tensor:
                return (q @ k.mT).softmax(-1)

        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.query, self.scores = nn.Linear(4, 4), Scores()

            def forward(self, x: Tensor) -> Tensor:
                return self.scores(self.query(x), x) @ x

        model = nn.Sequential(Attention(), Attention())
        with Probe(model) as probe:
            model(torch.randn(2, 5, 4))
        assert probe.attention["name"].tolist() == ["0", "1"]

    def test_calls_are_pooled_over_queries(self) -> None:
        model, parts = MultiHeadAttention(8, 2), (torch.randn(2, 3, 8), torch.randn(1, 7, 8))
        with Probe(model) as probe:
            for x in parts:
                model(x, causal=True)
        each = []
        for x in parts:
            with Probe(model) as one:
                model(x, causal=True)
            each.append(row(one.attention, "(model)"))
        got, queries = row(probe.attention, "(model)"), np.array([6, 7])
        assert got.calls == 2
        for name in ("entropy", "perplexity", "keys", "largest"):
            values = [getattr(one, name) for one in each]
            assert getattr(got, name) == near(np.average(values, weights=queries)), name
        pairs = np.array([one.keys for one in each]) * queries
        in_row = [one.logit_variance_in_row for one in each]
        assert got.logit_variance_in_row == near(np.average(in_row, weights=pairs))

    def test_logits_of_one_row_may_be_large(self) -> None:
        logits, one = torch.randn(2, 3, TOKENS, TOKENS), torch.eye(TOKENS).expand(2, 3, -1, -1)
        far = 1e6 - 1e4 * (torch.arange(TOKENS) == 2)  # one key is forbidden
        with Probe(model := Run(lambda: (logits @ one + far).softmax(-1))) as probe:
            model()
        expected = expected_attention(logits, far.expand(TOKENS, TOKENS) == 1e6)
        assert probe.attention["keys"] == TOKENS - 1
        assert probe.attention["entropy"] == pytest.approx([expected["entropy"]], rel=1e-6)


class TestParameters:
    def test_sizes_gradients_and_updates(self) -> None:
        model, (ids, targets) = language_model(), batch()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model.loss(ids, targets).backward()  # an earlier gradient, not zeroed
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        with Probe(model) as probe:
            for _ in range(2):
                model.loss(ids, targets).backward()
            seen = {name: p.grad.clone() for name, p in model.named_parameters()}
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # later, and in place
            optimizer.step()
        assert len(probe.parameters) == len(before)
        for name, p in model.named_parameters():
            got = row(probe.parameters, name)
            assert got.rms == near(before[name].square().mean().sqrt())
            assert got.gradient_rms == near(seen[name].square().mean().sqrt())
            if before[name].any():
                assert got.update == near((p - before[name]).norm() / before[name].norm())
            else:
                assert got.update == math.inf

    def test_nothing_happened(self) -> None:
        model = nn.Linear(2, 3).requires_grad_(False)
        with Probe(model) as probe:
            model(torch.randn(1, 2))
        assert np.isnan(probe.parameters["gradient_rms"]).all()
        assert probe.parameters["update"].tolist() == [0, 0]

    def test_updates_from_zero(self) -> None:
        model = nn.ParameterList([torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.ones(2)])
        with Probe(model) as probe, torch.no_grad():
            model[1] += 1
            model[2] += math.nan
            model[3] += math.nan
        np.testing.assert_equal(probe.parameters["update"], [0, math.inf, math.nan, math.nan])

    def test_a_gradient_zeroed_in_between(self) -> None:
        model = nn.Linear(3, 2, bias=False)
        for to_none in (True, False):
            with Probe(model) as probe:
                for x in torch.randn(2, 1, 3):
                    model.zero_grad(set_to_none=to_none)
                    model(x).sum().backward()
            assert probe.parameters["gradient_rms"] == near(x.square().mean().sqrt())

    @pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e-20, 1.0, 1e20, 1e30])
    def test_any_size_in_single_precision(self, scale: float) -> None:
        model = nn.Linear(8, 8, dtype=torch.float32)
        with torch.no_grad():
            model.weight.mul_(scale)
            model.bias.fill_(scale)
        before = [p.detach().double() for p in model.parameters()]
        with Probe(model) as probe:
            (model(torch.ones(1, 8).float()).sum() * scale).backward()
            with torch.no_grad():
                model.weight.mul_(1.5)
        for name, p, old in zip(("weight", "bias"), model.parameters(), before, strict=True):
            got = row(probe.parameters, name)
            gradient = p.grad.double().square().mean().sqrt().item()
            assert got.rms == pytest.approx(old.square().mean().sqrt().item(), rel=1e-5, abs=0)
            assert got.gradient_rms == pytest.approx(gradient, rel=1e-5, abs=0)
            assert got.update == pytest.approx(0.5 if name == "weight" else 0.0, rel=1e-5)

    def test_gradients_that_a_later_backward_does_not_reach(self) -> None:
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        x = torch.ones(1, 2)
        with Probe(model) as probe:
            (7 * model["a"](x) + model["b"](x)).sum().backward()
            model.zero_grad()
            model["b"](x).sum().backward()
        assert row(probe.parameters, "a.bias").gradient_rms == near(7)
        assert row(probe.parameters, "b.bias").gradient_rms == near(1)

    def test_complex_parameters_count_by_their_magnitudes(self) -> None:
        model = nn.Linear(3, 2, dtype=torch.complex64)
        before = [p.detach().clone() for p in model.parameters()]
        with Probe(model) as probe:
            model(torch.randn(4, 3, dtype=torch.complex64)).abs().sum().backward()
            with torch.no_grad():
                model.weight *= 1j
        for name, p, old in zip(("weight", "bias"), model.parameters(), before, strict=True):
            got, size = row(probe.parameters, name), old.abs().square().mean().sqrt().item()
            assert got.rms == pytest.approx(size, rel=1e-5)
            gradient = p.grad.abs().square().mean().sqrt().item()
            assert got.gradient_rms == pytest.approx(gradient, rel=1e-5)
        assert row(probe.parameters, "weight").update == pytest.approx(math.sqrt(2), rel=1e-5)
        assert len(probe.activations) == 0

    def test_what_cannot_be_read_has_no_row(self) -> None:
        class Eight(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                eight = torch.randn(4, 4).to(torch.float8_e4m3fn)
                self.eight = nn.Parameter(eight, requires_grad=False)

            def forward(self, x: Tensor) -> Tensor:
                return x.to(torch.float8_e4m3fn)

        model = nn.Sequential(nn.LazyLinear(4), Eight(), Run(lambda x: x.double()))
        with Probe(model) as probe:
            y = model(torch.randn(2, 3))
        assert y.dtype == torch.float64
        assert probe.activations["name"].tolist() == ["(model)", "0", "2"]
        assert len(probe.parameters) == 0
        assert not hooks_of(model)

    def test_sparse_gradients(self) -> None:
        model = nn.Embedding(5, 2, sparse=True)
        with Probe(model) as probe:
            for _ in range(2):
                model(torch.tensor([1, 1, 3])).sum().backward()
        expected = torch.tensor([0, 4, 0, 2, 0])[:, None].expand(5, 2)
        assert probe.parameters["gradient_rms"] == near(expected.double().square().mean().sqrt())

    def test_tied_and_shared(self) -> None:
        shared = nn.Linear(4, 4, bias=False)
        model = nn.Sequential(shared, nn.Tanh(), shared)
        with Probe(model) as probe:
            model(torch.randn(2, 4)).sum().backward()
        assert probe.activations.where(name="0")["calls"] == 2
        assert probe.parameters["name"].tolist() == ["0.weight"]
        assert probe.parameters["gradient_rms"] == near(shared.weight.grad.square().mean().sqrt())

    def test_tied_to_a_module_outside(self) -> None:
        model = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "head": nn.Linear(4, 5)})
        model["head"].weight = model["embedding"].weight
        with Probe(model, only="head") as probe:
            pass
        assert probe.parameters["name"].tolist() == ["embedding.weight", "head.bias"]

    def test_parameters_of_several_dtypes(self) -> None:
        dtypes = (torch.float64, torch.bfloat16, torch.float32, torch.bfloat16, torch.float64)
        before = [(i + 1) * torch.ones(2, i + 1, dtype=dtype) for i, dtype in enumerate(dtypes)]
        model = nn.ParameterList(before)
        with Probe(model) as probe, torch.no_grad():
            for i, parameter in enumerate(model):
                parameter *= 1 + 2.0**-i
            model[4].copy_(before[4] / (1 + 2.0**-4) + 1e-12)  # in double precision only
        np.testing.assert_allclose(probe.parameters["rms"], [1, 2, 3, 4, 5], rtol=1e-6)
        np.testing.assert_allclose(
            probe.parameters["update"], [1, 1 / 2, 1 / 4, 1 / 8, 1e-12 / 5], rtol=1e-3
        )

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_summed_in_single(self, dtype: torch.dtype) -> None:
        model = nn.Linear(300, 200, dtype=dtype)
        with Probe(model) as probe:
            y = model(torch.randn(50, 300, dtype=dtype))
            y.retain_grad()
            y.square().sum().backward()
        for name, p in model.named_parameters():
            expected = p.grad.double().square().mean().sqrt()
            assert row(probe.parameters, name).gradient_rms == pytest.approx(float(expected), 1e-6)
        expected = y.grad.double().square().mean().sqrt()
        assert probe.activations["gradient_rms"] == pytest.approx(float(expected), 1e-6)

    def test_an_optimizer_that_steps_in_backward(self) -> None:
        model = nn.Linear(3, 2)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def step(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        with Probe(model) as probe:
            model(torch.ones(1, 3)).sum().backward()
        assert np.isnan(probe.parameters["gradient_rms"]).all()
        changed = probe.parameters["update"] * probe.parameters["rms"]
        np.testing.assert_allclose(changed, [0.1, 0.1], rtol=1e-6)


def hooks_of(model: nn.Module) -> list[object]:
    """Everything that hangs on the modules and parameters."""
    kinds = [kind for kind in vars(model) if "_hooks" in kind]
    assert len(kinds) >= 8
    return [
        *(hook for m in model.modules() for kind in kinds for hook in getattr(m, kind).values()),
        *(
            hook
            for p in model.parameters()
            for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks)
            for hook in (hooks or {}).values()
        ),
    ]


def step(model: LanguageModel, probed: bool) -> list[Tensor]:
    """All that a step computes, and where the random numbers stand afterwards."""
    torch.manual_seed(1)
    ids, targets = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Probe(model) if probed else contextlib.nullcontext():
        loss = model.loss(ids, targets)
        loss.backward()
        optimizer.step()
    gradients = [p.grad for p in model.parameters()]
    return [loss, *gradients, *model.parameters(), torch.get_rng_state()]


class TestNoTrace:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("threads", [1, 2])
    def test_same_to_the_last_bit(self, dtype: torch.dtype, threads: int) -> None:
        torch.set_num_threads(threads)
        model = language_model(dropout=0.3, max_tokens=32).to(dtype)
        twin = language_model(dropout=0.3, max_tokens=32).to(dtype)
        twin.load_state_dict(model.state_dict())
        for one, other in zip(step(model, True), step(twin, False), strict=True):
            assert torch.equal(one, other)
        model.eval()
        ids, _ = batch()
        expected = model.generate(ids, 5, generator=torch.Generator().manual_seed(0))
        with Probe(model):
            got = model.generate(ids, 5, generator=torch.Generator().manual_seed(0))
        assert torch.equal(got, expected)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
    def test_torchs_fast_paths_differ_by_rounding(self) -> None:
        x, padded = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[2], [5], [4]])
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        for model in (layer, nn.TransformerEncoder(layer, 2), layer.self_attn):
            model.eval()

            def run(model: nn.Module = model) -> Tensor:
                if model is layer.self_attn:
                    return model(x, x, x, key_padding_mask=padded, need_weights=False)[0]
                return model(x, src_key_padding_mask=padded)

            with torch.no_grad():
                expected = run()
                with Probe(model):
                    got = run()
            torch.testing.assert_close(got[~padded], expected[~padded])
            if isinstance(model, nn.TransformerEncoder):
                assert not expected[padded].any()
                assert got[padded].all()

    @pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
    @pytest.mark.parametrize("transform", ["vmap", "jacrev", "grad", "vmap of grad"])
    def test_torch_func(self, transform: str) -> None:
        model, x = MultiHeadAttention(8, 2), torch.randn(4, 2, 3, 8)

        def loss(x: Tensor) -> Tensor:
            return model(x).square().sum()

        run = {
            "vmap": lambda: torch.vmap(model)(x),
            "jacrev": lambda: torch.func.jacrev(model)(x[0]),
            "grad": lambda: torch.func.grad(loss)(x[0]),
            "vmap of grad": lambda: torch.vmap(torch.func.grad(loss))(x),
        }[transform]
        expected = run()
        with Probe(model) as probe:
            got = run()
        assert torch.equal(got, expected)
        if "vmap" in transform:
            assert len(probe.activations) == len(probe.attention) == 0
        else:
            y = model(x[0]).detach()
            read = row(probe.activations, "(model)")
            assert read.rms == near(y.square().mean().sqrt())
            back = (2 * y).square().mean().sqrt()
            assert read.gradient_rms == (near(back) if transform == "grad" else None)

    def test_copies_have_no_probe(self) -> None:
        model, (ids, targets) = language_model(), batch()
        with Probe(model) as probe:
            model(ids)
            copied, averaged = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
            saved = io.BytesIO()
            torch.save(model, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        calls = probe.activations["calls"].tolist()
        for other in (copied, averaged.module, loaded):
            assert torch.equal(other(ids), model(ids))
            hooks = [hook for hook in hooks_of(other) if hook is not True]
            assert all(hook.call is module_under_test._do_nothing for hook in hooks)
            other.loss(ids, targets).backward()
        assert probe.activations["calls"].tolist() == calls
        with Probe(copied) as again:
            copied(ids)
        assert again.activations["calls"].tolist() == calls

    @pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
    def test_no_hook_stays(self, error: type[BaseException] | None) -> None:
        model, (ids, targets) = language_model(), batch()
        calls = []
        model.blocks[0].register_forward_hook(lambda *_: calls.append("theirs"))
        model.blocks[1].register_forward_pre_hook(lambda *_: None)
        model.embedding.weight.register_hook(lambda _: None)
        before = hooks_of(model)
        expected = pytest.raises(error) if error else contextlib.nullcontext()
        with expected, Probe(model) as probe:
            loss = model.loss(ids, targets)
            assert len(hooks_of(model)) > len(before)
            if error:
                raise error
            loss.backward(retain_graph=True)
        assert hooks_of(model) == before
        assert calls == ["theirs"]
        assert not torch.overrides._get_current_function_mode_stack()
        table = None if error else probe.activations
        loss.backward()  # through tensors that had hooks
        model.loss(ids, targets).backward()
        assert not probe._outputs
        assert not probe._gradients
        assert not probe._attentions
        assert error or probe.activations is table

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_error_in_the_model_leaves_the_names_right(self, error: type[BaseException]) -> None:
        class Failing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))

            def forward(self, x: Tensor) -> Tensor:
                raise error

        class Guarded(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.failing = Failing()

            def forward(self, x: Tensor) -> None:
                with contextlib.suppress(error):
                    self.failing(x)

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.guarded, self.attention = Guarded(), MultiHeadAttention(8, 2)
                self.weight = nn.Parameter(torch.zeros(1))

            def forward(self, x: Tensor) -> Tensor:
                self.guarded(x)
                return self.attention(x) + F.scaled_dot_product_attention(x, x, x)

        with Probe(model := Model()) as probe:
            model(torch.randn(1, 3, 8))
        assert probe.attention["name"].tolist() == ["(model)", "attention"]

    def test_an_error_while_entering(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = language_model()

        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Probe, "_watch", fail)
        with pytest.raises(KeyboardInterrupt), Probe(model):
            pass
        assert not hooks_of(model)

    def test_keeps_no_activation(self) -> None:
        model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 3, 4)
        alive = []
        for layer in model:
            layer.register_forward_hook(lambda m, i, y: alive.append(weakref.ref(y)))
        with Probe(model), torch.no_grad():
            model(x)
            assert [one() for one in alive] == [None, None]

    def test_compiled_models_run_uncompiled(self) -> None:
        model, (ids, targets) = language_model(), batch()
        with Probe(model) as plain:
            model.loss(ids, targets)
        whole = torch.compile(model, backend="eager")
        with Probe(whole) as probe:
            whole.loss(ids, targets)
        assert probe.activations["name"].tolist() == plain.activations["name"].tolist()
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
        with Probe(model) as probe:
            model.loss(ids, targets)
        assert str(probe.activations) == str(plain.activations)
        assert str(probe.attention) == str(plain.attention)

    def test_autocast(self) -> None:
        torch.set_default_dtype(torch.float32)
        model, (ids, targets) = language_model(), batch()
        tables = []
        for enabled in (True, False):
            with Probe(model) as probe, torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                model.loss(ids, targets).backward()
            tables.append(probe.activations)
        for column in ("rms", "gradient_rms", "rank"):
            low, high = (table[column] for table in tables)
            np.testing.assert_allclose(low, high, rtol=0.05)
        x = torch.randn(2, 50, 40)
        with Probe(model := nn.Identity()) as probe, torch.autocast("cpu", torch.bfloat16):
            model(x)
        powers = torch.linalg.svdvals(x.double()).square()
        ranks = powers.sum(-1).square() / powers.square().sum(-1)
        assert probe.activations["rank"] == pytest.approx(ranks[0].item(), rel=1e-5)


class TestNames:
    def test_layers_and_parts(self) -> None:
        model, (ids, targets) = language_model(), batch()
        with Probe(model) as probe:
            model.loss(ids, targets).backward()
        for name, layer, part in [
            ("blocks.1.attention.output", 1, "attention.output"),
            ("blocks.0", 0, "block"),
            ("embedding", None, "embedding"),
            ("(model)", None, "(model)"),
        ]:
            got = row(probe.activations, name)
            assert (got.layer, got.part) == (layer, part)
        weight = row(probe.parameters, "blocks.1.feed_forward.inner.weight")
        assert (weight.layer, weight.part) == (1, "feed_forward.inner.weight")
        assert probe.activations.layers == [0, 1]
        assert probe.attention.parts == ["attention"]

    def test_two_stacks(self) -> None:
        config = TransformerConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=1)
        model = Transformer(config)
        with Probe(model) as probe:
            model(torch.randint(9, (1, 4)), torch.randint(9, (1, 3)))
        parts = ["encoder_blocks.attention", "decoder_blocks.attention"]
        assert probe.attention.parts == [*parts, "decoder_blocks.cross_attention"]
        assert "encoder_blocks.block" in probe.activations.parts

    def test_parametrizations_are_no_stack(self) -> None:
        model, (ids, _) = language_model(tied=False), batch()
        torch.nn.utils.parametrizations.weight_norm(model.output)
        with Probe(model) as probe:
            model(ids)
        assert probe.activations.where(part="block").layers == [0, 1]
        name = "output.parametrizations.weight.0"
        assert row(probe.activations, name).part == name

    def test_numbers_inside_a_layer_or_of_different_things_are_no_layers(self) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                item = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
                self.h = nn.ModuleList([item, nn.Sequential(nn.Linear(2, 2), nn.Tanh())])
                self.head = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))

            def forward(self, x: Tensor) -> Tensor:
                for item in self.h:
                    x = item(x)
                return self.head(x)

        with Probe(model := Model()) as probe:
            model(torch.randn(1, 2))
        assert probe.activations.layers == [0, 1]
        assert row(probe.activations, "h.1.0").part == "0"
        assert row(probe.activations, "head.1").part == "head.1"
        with Probe(model := nn.Sequential(nn.Linear(2, 2), nn.Tanh())) as probe:
            model(torch.randn(1, 2))
        assert probe.activations["part"].tolist() == ["(model)", "Linear", "Tanh"]
        assert probe.activations.layers == [0, 1]

    def test_the_outer_of_two_stacks(self) -> None:
        class Experts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

            def forward(self, x: Tensor) -> Tensor:
                return self.experts[0](x) + self.experts[1](x)

        with Probe(model := nn.Sequential(nn.Tanh(), Experts(), Experts(), nn.Tanh())) as probe:
            model(torch.randn(1, 2))
        got = row(probe.activations, "2.experts.1")
        assert (got.layer, got.part) == (2, "experts.1")
        blocks = nn.Sequential(Experts(), Experts())
        with Probe(model := nn.Sequential(nn.Tanh(), blocks, nn.Linear(2, 2))) as probe:
            model(torch.randn(1, 2))
        assert row(probe.activations, "1.1").layer == 1
        assert row(probe.activations, "2").layer is None

    def test_only_takes_the_inside_of_attentions_and_parameters(self) -> None:
        model, (ids, _) = language_model(), batch()

        def read(only: str) -> Probe:
            with Probe(model, only=only) as probe:
                model(ids)
            return probe

        stream = read("blocks")
        assert stream.activations["name"].tolist() == ["blocks.0", "blocks.1"]
        assert stream.attention["name"].tolist() == ["blocks.0.attention", "blocks.1.attention"]
        assert set(stream.parameters["layer"]) == {0, 1}
        one = read("*.1.attention")
        assert one.activations["name"].tolist() == ["blocks.1.attention"]
        names = [f"attention.{name}" for name, _ in model.blocks[1].attention.named_parameters()]
        assert one.parameters.parts == names

    @pytest.mark.parametrize("only", ["h.*", ["blocks", "h.*"]])
    def test_only_what_is_not_there(self, only: str | list[str]) -> None:
        with pytest.raises(ValueError, match=r"no module fits 'h\.\*'; there are \(model\), embed"):
            Probe(language_model(), only=only)


class TestErrors:
    def test_order(self) -> None:
        model = nn.Linear(2, 2)
        probe = Probe(model)
        with pytest.raises(RuntimeError, match="first run the model"):
            _ = probe.activations
        with probe, pytest.raises(RuntimeError, match="after the `with` block"):
            _ = probe.attention
        with pytest.raises(RuntimeError, match="make another"), probe:
            pass
        assert len(probe.activations) == 0
        assert len(probe.attention["entropy"]) == 0
        with contextlib.suppress(ZeroDivisionError), Probe(model) as probe:
            _ = 1 / 0
        with pytest.raises(RuntimeError, match="ended with ZeroDivisionError"):
            _ = probe.parameters

    def test_an_error_of_the_probe_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise MemoryError

        model = nn.Linear(2, 2)
        monkeypatch.setattr(Probe, "_parameter_rows", fail)
        with pytest.raises(MemoryError), Probe(model) as probe:
            model(torch.randn(1, 2))
        with pytest.raises(RuntimeError, match="ended with an error of the probe itself"):
            _ = probe.activations
        assert not hooks_of(model)
        assert not probe._outputs
        assert not probe._before

    @pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
    def test_modules_of_torch_jit(self) -> None:
        traced = torch.jit.trace(nn.Linear(2, 2), torch.randn(1, 2))
        with pytest.raises(TypeError, match="of Python, got a TopLevelTracedModule: probe the mod"):
            Probe(traced)
        with Probe(model := nn.Sequential(nn.Linear(2, 2), traced)) as probe:
            y = model(torch.randn(1, 2))
        assert probe.activations["name"].tolist() == ["(model)", "0"]
        assert row(probe.activations, "(model)").rms == near(y.square().mean().sqrt())

    @pytest.mark.usefixtures("without_shape_checks")
    def test_arguments(self) -> None:
        with pytest.raises(TypeError, match="a probe reads a torch module, got a function"):
            Probe(lambda x: x)
        with pytest.raises(ValueError, match="rank_sequences must be positive or None, got 0"):
            Probe(nn.Identity(), rank_sequences=0)
        with pytest.raises(TypeError, match=r"must be an int or None, got 2\.5"):
            Probe(nn.Identity(), rank_sequences=2.5)
        for wrong in (3, [3], ["*", None]):
            with pytest.raises(TypeError, match="only must be names of modules or patterns, got"):
                Probe(nn.Identity(), only=wrong)
        with pytest.raises(ValueError, match="no module fits ''"):
            Probe(nn.Identity(), only=[])

    def test_the_models_own_error_comes_first(self) -> None:
        x = torch.randn(2, 3, 4, 5)
        with pytest.raises(RuntimeError) as plain:
            F.scaled_dot_product_attention(x, x[..., :3], x)
        with pytest.raises(RuntimeError) as probed, Probe(nn.Identity()):
            F.scaled_dot_product_attention(x, x[..., :3], x)
        assert str(plain.value) == str(probed.value)


def table() -> Table:
    return Table(
        (*PLACE, "rms"),
        (
            ("embedding", None, "embedding", 2.0),
            ("h.0.attn", 0, "attn", 1.0),
            ("h.0.mlp", 0, "mlp", math.nan),
            ("h.1.attn", 1, "attn", 123.456),
            ("h.1.mlp", 1, "mlp", 0.00012345),
        ),
    )


class TestTable:
    def test_columns_and_rows(self) -> None:
        assert table()["rms"].dtype == np.float64
        assert table()["name"].tolist()[0] == "embedding"
        assert np.isnan(table()["layer"][0])
        assert table().where(layer=[0, 1])["layer"].dtype == np.int64
        assert table().parts == ["embedding", "attn", "mlp"]
        assert table().layers == [0, 1]
        assert next(iter(table())) == {
            "name": "embedding",
            "layer": None,
            "part": "embedding",
            "rms": 2.0,
        }
        assert len(table()) == len(list(table())) == 5
        with pytest.raises(KeyError, match="no column 'sd', only name, layer, part, rms"):
            table()["sd"]
        with pytest.raises(ValueError, match="a row of 1 cells for 4 columns"):
            Table(ACTIVATIONS[:4], (("x",),))

    @pytest.mark.usefixtures("without_shape_checks")
    def test_a_row_by_number(self) -> None:
        with pytest.raises(TypeError, match=r"a column by its name, got 0; for rows, use where"):
            table()[0]

    def test_where(self) -> None:
        assert table().where(part="a*", layer=1)["rms"].tolist() == [123.456]
        assert len(table().where(part=["attn", "mlp"])) == 4
        assert len(table().where(layer=range(1, 5))) == 2
        assert len(table().where(layer=None)) == 1
        assert len(table().where()) == 5
        with pytest.raises(ValueError, match="no part is 'ffn'; there are embedding, attn, mlp"):
            table().where(part="ffn")
        with pytest.raises(ValueError, match="no part is 'ffn'; there are embedding, attn, mlp"):
            table().where(part=["attn", "ffn"])
        with pytest.raises(ValueError, match="no layer is 7; there are None, 0, 1"):
            table().where(layer=range(7, 9))
        assert len(table().where(layer={0, 1})) == 4
        with pytest.raises(ValueError, match=r"no row has name='h\.0\.\*', layer=1 at once"):
            table().where(name="h.0.*", layer=1)
        with pytest.raises(KeyError, match="no column 'parts'"):
            table().where(parts="mlp")

    def test_text(self) -> None:
        assert str(table()).splitlines() == [
            "name       layer  part            rms",
            "embedding      –  embedding         2",
            "h.0.attn       0  attn              1",
            "h.0.mlp        0  mlp             nan",
            "h.1.attn       1  attn            123",
            "h.1.mlp        1  mlp        0.000123",
        ]
        assert repr(table()) == "<Table of 5 rows: name, layer, part, rms>"
        html = table()._repr_html_()
        assert html.startswith("<table><thead><tr><th>name</th>")
        assert html.count("<tr>") == 6
        assert "<td>0.000123</td>" in html

    def test_names_are_taken_as_they_are(self) -> None:
        odd = Table(PLACE, (("heads.<s>", None, "[en]"), ("heads.e", None, "e")))
        assert odd.where(part="[en]")["name"].tolist() == ["heads.<s>", "heads.e"]
        assert odd.where(name="heads.<s>", part="[[]en]")["part"].tolist() == ["[en]"]
        assert "<td>heads.&lt;s&gt;</td>" in odd._repr_html_()

    def test_plot(self) -> None:
        ax = table().plot("rms")
        lines = {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()}
        assert list(lines) == ["attn", "mlp"]
        assert lines["attn"] == [[0, 1], [1, 123.456]]
        assert ax.get_yscale() == "log"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("layer", "rms")
        ax.clear()
        assert table().where(name=["h.0.attn", "embedding"]).plot("rms", ax=ax) is ax
        assert ax.get_yscale() == "linear"
        for column in ("name", "layer"):
            with pytest.raises(ValueError, match=f"'{column}' holds no numbers to draw"):
                table().plot(column)
        with pytest.raises(ValueError, match="'rms' holds no finite number in a layer"):
            table().where(name=["embedding", "h.0.mlp"]).plot("rms")
        with pytest.raises(ValueError, match="no row has a layer"):
            table().where(layer=None).plot("rms")

    def test_plot_of_many(self) -> None:
        names = [f"part {i}" for i in range(25)]
        many = Table(
            (*PLACE, "rms"),
            tuple((f"{i}.{name}", i, name, 1.0) for name in names for i in (0, 1)),
        )
        ax = many.plot("rms")
        looks = {
            (line.get_color(), line.get_marker(), line.get_linestyle()) for line in ax.get_lines()
        }
        assert len(looks) == 25
        figure = ax.get_figure()
        figure.canvas.draw()
        legend = ax.get_legend().get_window_extent()
        assert legend.x0 >= ax.get_window_extent().x1
        assert legend.x1 <= figure.bbox.x1
        assert ax.yaxis.label.get_window_extent().x0 >= 0
        few = many.where(part=names[:5]).plot("rms")
        assert few.get_legend().get_bbox_to_anchor().x0 < few.get_window_extent().x1

    def test_plot_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ImportError, match=r"attnbook\[book\]"):
            table().plot("rms")
