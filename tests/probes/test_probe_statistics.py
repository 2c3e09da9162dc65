"""The numbers of activations, gradients and updates against direct computations."""

import math
from functools import partial
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from probed import BATCH, TOKENS, Run, batch, language_model, loss_of, near, rms, row
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnbook import MultiHeadAttention
from attnbook.probes import Probe, Table


def read(x: Tensor, **options: int | None) -> SimpleNamespace:
    """The row of one tensor."""
    with Probe(model := nn.Identity(), **options) as probe:
        model(x)
    return row(probe.activations, "(model)")


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_sizes_and_gradients_of_outputs(norm):
    model, (ids, targets) = language_model(norm=norm), batch()
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Tensor) -> None:
        outputs[name] = output
        if output.requires_grad:
            output.retain_grad()

    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, i, y, n=name or "(model)": keep(n, y))
    with Probe(model) as probe:
        loss_of(model, ids, targets).backward()
    assert len(probe.activations) == len(outputs)
    for name, x in outputs.items():
        got = row(probe.activations, name)
        assert got.rms == near(rms(x))
        assert got.variance == near(x.var(correction=0))
        assert got.calls == 1
        if x.requires_grad:
            assert got.gradient_rms == near(rms(x.grad))
        else:
            assert got.gradient_rms is None


def test_cosine_and_rank_of_tokens():
    x = torch.randn(BATCH, TOKENS, 16) + torch.randn(16)
    cosines = [
        torch.dot(a, b) / a.norm() / b.norm()
        for sequence in x
        for a, b in combinations(sequence, 2)
    ]
    powers = torch.linalg.svdvals(x).square()
    ranks = powers.sum(-1).square() / powers.square().sum(-1)
    assert read(x).cosine == near(sum(cosines) / len(cosines))
    assert read(x).rank == near(ranks[0])
    assert read(x, rank_sequences=2).rank == near(ranks[:2].mean())
    assert read(x, rank_sequences=None).rank == near(ranks.mean())


@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_cosine_and_rank_where_they_are_known(size):
    one = torch.randn(2, 5, 1) * torch.randn(8)
    assert read(size * one).rank == near(1)
    assert read(size * torch.eye(4).expand(2, 4, 4)).rank == near(4)
    assert read(size * torch.eye(9)[None, :, :3]).rank == near(3)  # more tokens than the width
    assert read(size * torch.eye(3)[None]).cosine == near(0)
    assert read(size * torch.ones(2, 3, 4)).cosine == near(1)


def test_where_cosine_and_rank_say_nothing():
    zeros = torch.zeros(1, 5, 8)
    assert (read(zeros).rank, read(zeros).cosine) == (None, 0)
    assert read(torch.cat([torch.eye(5, 8)[None], zeros]), rank_sequences=None).rank == near(5)
    assert read(torch.randn(2, 1, 4)).cosine is None  # a single token
    assert read(torch.randn(5, 8)).rank is None  # not a batch


@pytest.mark.parametrize("scale", [1e-36, 1e-20, 1.0, 1e30])
def test_any_size_in_single_precision(scale):
    x, back = (scale * torch.randn(2, 2, 5, 16)).float()
    model = nn.ParameterDict({"weight": x[0].clone()})
    model.register_module("given", nn.Identity())
    with Probe(model) as probe:
        model.given(1 * x.requires_grad_()).backward(back)
        with torch.no_grad():
            model.weight.mul_(1.5)
    got, near = row(probe.activations, "given"), partial(pytest.approx, rel=1e-5, abs=0)
    unit = nn.functional.normalize(x.detach().double(), eps=0, dim=-1)
    cosines = (unit @ unit.mT)[:, ~torch.eye(5, dtype=torch.bool)]
    assert got.rms == near(rms(x).item())
    assert got.variance == near(x.detach().double().var(correction=0).item())
    assert got.gradient_rms == near(rms(back).item())
    assert got.cosine == pytest.approx(cosines.mean().item(), abs=1e-5)
    assert probe.parameters["rms"] == near(rms(x[0]).item())
    assert probe.parameters["update"] == near(0.5)


def test_nan_shows():
    x = torch.randn(2, 3, 4)
    x[0, 2, 0] = math.nan
    got = read(x)
    assert all(math.isnan(getattr(got, name)) for name in ("rms", "variance", "cosine", "rank"))
    assert got.gradient_rms is None


def test_several_calls_are_one_row():
    model = nn.Linear(4, 4)
    with Probe(model) as probe:
        outputs = [model(torch.randn(2, 3, 4)), model(5 + torch.randn(1, 7, 4))]
        for y in outputs:
            y.retain_grad()
        sum(y.square().sum() for y in outputs).backward()
    (got,) = probe.activations
    entries = torch.cat([y.flatten() for y in outputs])
    assert got["calls"] == 2
    assert got["rms"] == near(rms(entries))
    assert got["variance"] == near(entries.var(correction=0))
    assert got["gradient_rms"] == near(rms(torch.cat([y.grad.flatten() for y in outputs])))


def test_two_backward_passes_through_one_forward():
    model, x, weights = nn.Linear(4, 4, bias=False), torch.randn(3, 4), torch.randn(3, 4)
    with Probe(model) as probe:
        y = model(x)
        y.sum().backward(retain_graph=True)
        (y * weights).sum().backward()
    both = torch.stack([torch.ones(3, 4), weights])
    assert probe.activations["gradient_rms"] == near(rms(both))
    assert probe.parameters["gradient_rms"] == near(rms(both.sum(0).mT @ x))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_not_a_second_call(reentrant):
    model, x = nn.Sequential(MultiHeadAttention(4, 2), nn.Tanh()), torch.randn(2, 3, 4)
    with Probe(model) as plain:
        model(x.clone().requires_grad_()).sum().backward()
    with Probe(model) as probe:
        checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert str(probe.activations) == str(plain.activations)
    assert str(probe.attention) == str(plain.attention)


def test_first_tensor_of_several():
    x = torch.randn(2, 3)
    for give in (
        lambda x: {"loss": x.sum(), "ids": x.long(), "hidden": x, "more": 2 * x},
        lambda x: (x.sum(), x, 2 * x),
    ):
        with Probe(model := Run(give)) as probe:
            model(x)
        assert probe.activations["rms"] == near(rms(x))


def test_what_cannot_be_read_is_skipped():
    class Eight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            eight = torch.randn(4, 4).to(torch.float8_e4m3fn)
            self.eight = nn.Parameter(eight, requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.float8_e4m3fn)

    with Probe(model := nn.Sequential(Eight(), Run(lambda x: x.double()))) as probe:
        model(torch.randn(2, 3))
    assert probe.activations["name"].tolist() == ["(model)", "1"]
    assert len(probe.parameters) == 0


@pytest.mark.parametrize("kind", ["attention", "layer", "encoder", "decoder"])
def test_torchs_tokens_first(kind):
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
        with Probe(model, rank_sequences=None) as probe:
            model(*given * {"attention": 3, "decoder": 2}.get(kind, 1))
        return probe.activations

    table, expected = read(False), read(True)
    for column in ("rms", "cosine", "rank"):
        np.testing.assert_allclose(table[column], expected[column], err_msg=column)


def test_sizes_gradients_and_updates_of_parameters():
    model, (ids, targets) = language_model(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of(model, ids, targets).backward()  # an earlier gradient, not zeroed
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with Probe(model) as probe:
        for _ in range(2):
            loss_of(model, ids, targets).backward()
        seen = {name: p.grad.clone() for name, p in model.named_parameters()}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # later, and in place
        optimizer.step()
    assert len(probe.parameters) == len(before)
    for name, p in model.named_parameters():
        got = row(probe.parameters, name)
        assert got.rms == near(rms(before[name]))
        assert got.gradient_rms == near(rms(seen[name]))
        if before[name].any():
            assert got.update == near((p - before[name]).norm() / before[name].norm())
        else:
            assert got.update == math.inf


def test_parameters_that_nothing_happened_to():
    model = nn.ParameterList([torch.zeros(2), torch.ones(()), torch.ones(2)])
    with Probe(model) as probe, torch.no_grad():
        model[2] += math.nan
    assert np.isnan(probe.parameters["gradient_rms"]).all()
    np.testing.assert_equal(probe.parameters["update"], [0, 0, math.nan])


def test_tied_and_shared():
    shared = nn.Linear(4, 4, bias=False)
    with Probe(model := nn.Sequential(shared, nn.Tanh(), shared)) as probe:
        model(torch.randn(2, 4)).sum().backward()
    assert probe.activations.where(name="0")["calls"] == 2
    assert probe.parameters["name"].tolist() == ["0.weight"]
    assert probe.parameters["gradient_rms"] == near(rms(shared.weight.grad))
