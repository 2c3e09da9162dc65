"""How attentions are read, against the definitions row by row; and which are not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from probed import TOKENS, Run, near, row
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import attnbook.attention
from attnbook import (
    MultiHeadAttention,
    attention_logits,
    causal_mask,
    padding_mask,
)
from attnbook.probes import Probe, attended, attention

COLUMNS = "logit_variance", "logit_variance_in_row", "entropy", "perplexity", "keys", "largest"


def expected_row(logits: Tensor, allowed: Tensor | None = None) -> list[float]:
    allowed = torch.ones((), dtype=torch.bool) if allowed is None else allowed
    allowed = allowed.expand(logits.shape).flatten(0, -2)
    rows = [s[may] for s, may in zip(logits.flatten(0, -2), allowed, strict=True) if may.any()]
    weights = [s.softmax(-1) for s in rows]
    entropies = [-(a * a.log()).sum().item() for a in weights]
    pairs = torch.cat(rows)
    return [
        pairs.var(correction=0).item(),
        sum((s - s.mean()).square().sum().item() for s in rows) / len(pairs),
        float(np.mean(entropies)),
        float(np.mean(np.exp(entropies))),
        float(np.mean([len(s) for s in rows])),
        float(np.mean([a.max().item() for a in weights])),
    ]


def read(compute: Callable[[], object]) -> list[float]:
    with Probe(model := Run(lambda: (compute(), torch.zeros(1))[1])) as probe:
        model()
    (found,) = probe.attention
    assert found["calls"] == 1
    assert not probe.unread
    return [found[column] for column in COLUMNS]


def mask(kind: str) -> Tensor | None:
    """A pattern has a query that may attend to nothing."""
    return {
        "none": None,
        "padding": padding_mask(torch.tensor([2, TOKENS, 4]), TOKENS),
        "pattern": (torch.rand(TOKENS, TOKENS) < 0.5) & (torch.arange(TOKENS) != 2)[:, None],
    }[kind]


@pytest.mark.parametrize("entries_at_once", [1, 2**20])
@pytest.mark.parametrize("return_weights", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["none", "padding", "pattern"])
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_our_attention(n_kv_heads, kind, causal, return_weights, entries_at_once, monkeypatch):
    monkeypatch.setattr(attention, "ENTRIES_AT_ONCE", entries_at_once)
    model, x, may = (
        MultiHeadAttention(16, 4, n_kv_heads=n_kv_heads),
        torch.randn(3, 6, 16),
        mask(kind),
    )
    query, key = (
        layer(x).unflatten(-1, (-1, 4)).transpose(1, 2).detach()
        for layer in (model.query, model.key)
    )
    logits = attention_logits(query, key.repeat_interleave(4 // n_kv_heads, dim=1))
    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if may is None else may
    allowed = allowed & causal_mask(TOKENS) if causal else allowed
    found = read(lambda: model(x, mask=may, causal=causal, return_weights=return_weights))
    assert found == pytest.approx(expected_row(logits, allowed), rel=1e-9)


@pytest.mark.parametrize("value", [-math.inf, -1e4, -1e9, torch.finfo(torch.float64).min])
def test_added_masks(value):
    query, key, may = (
        3 * torch.randn(2, 2, TOKENS, 4),
        torch.randn(2, 2, TOKENS, 4),
        mask("pattern"),
    )
    added = torch.randn(TOKENS, TOKENS).masked_fill(~may, value)
    logits = query @ key.mT / 2 + added
    expected = pytest.approx(expected_row(logits, may), rel=1e-9)
    assert read(lambda: F.scaled_dot_product_attention(query, key, key, added)) == expected
    assert read(lambda: attnbook.attention.attention_weights(logits)) == expected


def test_sharp_rows_are_not_masked():
    query, key = 60 * torch.randn(2, TOKENS, 4), torch.randn(2, TOKENS, 4)
    zeros = torch.zeros(TOKENS, TOKENS)  # an added mask that forbids nothing
    logits = query @ key.mT / 2
    assert 110 < (logits.amax(-1, keepdim=True) - logits).max() < 1000
    found = read(lambda: F.scaled_dot_product_attention(query, key, key, zeros))
    assert found[4] == TOKENS
    assert found[0] == near(logits.var(correction=0))
    assert found[5] == near(logits.softmax(-1).amax(-1).mean())


def test_nothing_may_be_attended_to():
    x, nothing = torch.randn(2, 3, 4), torch.zeros(3, 3, dtype=torch.bool)
    assert read(lambda: F.scaled_dot_product_attention(x, x, x, nothing)) == [None] * 6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("way", ["kernel", "kernel with a mask", "ours"])
def test_nan_shows(bad, way):
    x = torch.randn(2, 3, 4)
    x[0, 2, 0] = bad
    attend = {
        "kernel": lambda: F.scaled_dot_product_attention(x, x, x),
        "kernel with a mask": lambda: F.scaled_dot_product_attention(x, x, x, torch.zeros(3, 3)),
        "ours": lambda: attnbook.attention.attention_weights(x @ x.mT),
    }[way]
    found = read(attend)
    assert all(math.isnan(found[i]) for i in (0, 1, 2, 3, 5))


def test_calls_are_pooled_over_queries_and_pairs():
    model, parts = MultiHeadAttention(8, 2), (torch.randn(2, 3, 8), torch.randn(1, 7, 8))
    with Probe(model) as probe:
        for x in parts:
            model(x, causal=True)
    each = np.array([read(lambda x=x: model(x, causal=True)) for x in parts])
    got, queries = row(probe.attention, "(model)"), np.array([6, 7])
    assert got.calls == 2
    for i, column in list(enumerate(COLUMNS))[2:]:
        assert getattr(got, column) == near(np.average(each[:, i], weights=queries))
    assert got.logit_variance_in_row == near(np.average(each[:, 1], weights=each[:, 4] * queries))


@pytest.mark.parametrize("need_weights", [True, False])
def test_functions_of_torch_that_were_replaced(need_weights, monkeypatch):
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 3, 8)
    with Probe(model) as probe:
        model(x, x, x, need_weights=need_weights)
    for name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        before = getattr(F, name)
        monkeypatch.setattr(F, name, lambda *args, f=before, **kwargs: f(*args, **kwargs))
    with Probe(model) as replaced:
        model(x, x, x, need_weights=need_weights)
    assert str(replaced.attention) == str(probe.attention)
    (call,) = attended(model, x, x, x, need_weights=need_weights)
    assert call.weights.shape == (2, 2, 3, 3)
    with Probe(model := Run(F.scaled_dot_product_attention)) as probe:
        model(x, x, x)
    assert probe.attention["calls"].tolist() == [1]
    assert len(attended(model, x, x, x)) == 1


def test_row_of_the_innermost_module_with_parameters():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(4, 4)
            self.attend = Run(lambda q, k: F.scaled_dot_product_attention(q, k, k))

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(self.query(x), x)

    with Probe(model := nn.Sequential(Attention(), Attention())) as probe:
        model(torch.randn(2, 5, 4))
        F.scaled_dot_product_attention(*torch.randn(3, 2, 5, 4))  # of no module
    assert probe.attention["name"].tolist() == ["0", "1"]
    assert probe.attention["calls"].tolist() == [1, 1]


def attend_by_flex(x: Tensor) -> Tensor:
    x = x[:, None].detach()
    return flex_attention(x, x, x)


@torch.library.custom_op("attnbook_tests::flash_attn", mutates_args=())
def registered(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ x


def exp_over_sum(s: Tensor) -> Tensor:
    s = (s - s.amax(-1, keepdim=True)).exp()
    return s / s.sum(-1, keepdim=True)


def divided_in_place(s: Tensor) -> Tensor:
    s = s.masked_fill(~causal_mask(5), -math.inf).exp()
    s /= s.sum(-1, keepdim=True)
    return s


# The function that is named, and an attention by it.
UNREAD: list[tuple[str, Callable[[Tensor], object]]] = [
    ("softmax", lambda x: (x @ x.mT).softmax(-1) @ x),
    ("softmax", lambda x: torch.softmax(x @ x.mT, dim=2) @ x),
    ("softmax", lambda x: F.softmax(x @ x.mT, -1, dtype=torch.float64) @ x),
    ("softmax", lambda x: nn.Softmax(dim=-1)(x @ x.mT) @ x),
    ("special_softmax", lambda x: torch.special.softmax(x @ x.mT, -1) @ x),
    ("softmax", lambda x: torch.softmax(input=x @ x.mT, dim=-1) @ x),
    ("softmin", lambda x: F.softmin(-x @ x.mT, -1) @ x),
    ("softmax", lambda x: torch.einsum("bqc,bkc->bqk", x, x)[..., None].softmax(2)),
    ("softmax", torch.vmap(lambda x: (x @ x.mT).softmax(-1) @ x)),
    ("softmax.int", lambda x: torch.ops.aten.softmax.int(x @ x.mT, -1) @ x),
    ("_safe_softmax", lambda x: torch._safe_softmax(x @ x.mT, -1) @ x),
    ("gumbel_softmax", lambda x: F.gumbel_softmax(x @ x.mT) @ x),
    ("div", lambda x: exp_over_sum(x @ x.mT) @ x),
    ("div", lambda x: exp_over_sum((x @ x.mT).half()) @ x.half()),
    ("div_", lambda x: divided_in_place(x @ x.mT) @ x),
    ("exp", lambda x: (x @ x.mT).log_softmax(-1).exp() @ x),
    ("exp", lambda x: (x @ x.mT - (x @ x.mT).logsumexp(-1, keepdim=True)).exp() @ x),
    ("normalize", lambda x: F.normalize((x @ x.mT).exp(), p=1, dim=-1) @ x),
    ("flex_attention", attend_by_flex),
    (
        "_scaled_dot_product_attention_math",
        lambda x: torch._scaled_dot_product_attention_math(x, x, x)[0],
    ),
    (
        "scaled_dot_product_attention",
        lambda x: torch.ops.aten.scaled_dot_product_attention(x, x, x),
    ),
    ("flash_attn", registered),
    (
        "scaled_dot_product_attention of other than plain tensors",
        torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x)),
    ),
]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called:UserWarning")
@pytest.mark.parametrize(("name", "attend"), UNREAD)
def test_other_attentions_are_named(name, attend):
    model = nn.ModuleDict({"attn": Run(attend), "ours": nn.Identity()})
    x = torch.randn(2, 5, 4)
    expected = attend(x) if name != "gumbel_softmax" else None
    with Probe(model) as probe:
        for _ in range(2):
            output = model["attn"](x)
    assert expected is None or torch.equal(output, expected)
    assert len(probe.attention) == 0
    (reason,) = probe.unread
    assert reason.startswith(f"attn: {name.split('.')[0]}")
    assert "may be an attention, which the probe does not read" in reason
    assert str(probe.attention).endswith("not read: attn (probe.unread says why)")


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[0].softmax(-1),
        lambda x: x.softmax(1),
        lambda x: x.log_softmax(-1),
        lambda x: x.exp() / 2,
        lambda x: F.normalize(x, dim=-1) / x.norm(dim=-1, keepdim=True),
        lambda x: x.exp() / x.exp().sum(1, keepdim=True),
        lambda x: (0 * x) / 3,
        lambda x: F.layer_norm(x, (4,)) / (1 + x.square().mean(-1, keepdim=True)),
    ],
)
def test_what_cannot_be_an_attention(compute):
    with Probe(model := nn.Sequential(Run(compute))) as probe:
        model(torch.randn(2, 5, 4))
        torch.randn(2, 5, 4).softmax(-1)  # outside the model
    assert probe.unread == ()
    assert "not read" not in repr(probe.attention)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_torch_jit_has_made_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4), torch.zeros(1, 4)))
    with pytest.raises(TypeError, match=r"^1 is of torch\.jit: give the module that it was made"):
        Probe(model)
