"""The module is left as it was, and a call that fails is told."""

import copy
from collections import UserDict
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from attnbook.doctor import Claims, Report, diagnose
from attnbook.doctor.__main__ import claim, main
from attnbook.doctor.report import Finding, NotJudged, one_cause
from benchmarks.doctor.specimens.attentions import Separate
from benchmarks.doctor.specimens.decoders import GPT, TrainingStep
from benchmarks.doctor.specimens.museum import bug, edited, examine, right


class Failing(Separate):
    """Writes all over itself, and fails at the third call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.calls.append(1)
        self.count += 1
        self.q_proj.weight.data.mul_(1.5)
        self.novelty = x
        if len(self.calls) == self.at:
            raise self.error("here it ends")
        return super().forward(x)

    at, error = 3, RuntimeError


class Interrupted(Failing):
    """Somebody stops it, in the midst of a check."""

    at, error = 20, KeyboardInterrupt


def remembering() -> nn.Module:
    return bug("attentions: fused: remembers the last output").make()[0]


@pytest.mark.parametrize("make", [Separate, remembering, Failing, Interrupted, TrainingStep])
def test_everything_is_as_before(make) -> None:
    torch.manual_seed(0)
    module = make()
    handle = module.register_forward_hook(lambda *_: None)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    child = next(m for m in module.modules() if isinstance(m, nn.Linear))
    child.train(False)
    x = torch.randint(1, 23, (2, 6)) if make is TrainingStep else torch.randn(2, 6, 16)
    given, state = x.clone(), copy.deepcopy(module.state_dict())
    addresses = [p.data_ptr() for p in module.parameters()]
    drawn = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    names, modes = set(vars(module)), [m.training for m in module.modules()]
    everywhere = len(_global_forward_hooks), len(_global_forward_pre_hooks)
    with pytest.raises(KeyboardInterrupt) if make is Interrupted else nullcontext():
        diagnose(module, x, causal=True)
    assert everywhere == (len(_global_forward_hooks), len(_global_forward_pre_hooks))
    assert torch.equal(x, given)
    assert all(torch.equal(state[k], v) for k, v in module.state_dict().items())
    assert addresses == [p.data_ptr() for p in module.parameters()]
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert (drawn[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert names == set(vars(module))
    assert modes == [m.training for m in module.modules()]
    assert all((p.grad == 1).all() and p.requires_grad for p in module.parameters())
    assert len(module._forward_hooks) == 1
    assert not getattr(module, "calls", [])
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    handle.remove()


def test_a_call_that_fails_is_told() -> None:
    report = diagnose(Separate(), torch.randn(2, 6, 17))
    assert str(report).startswith("NOT healthy: the example can't be called")
    assert report.errors[0].done == "called it with x=float64[2, 6, 17]"
    assert "it raised RuntimeError: mat1 and mat2 shapes" in report.errors[0].found
    assert not report.healthy


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"casual": True}, "no claim 'casual'; there are causal, n_heads"),
        ({"mask": {"argument": "attn_mask"}}, "is 'attn_mask', but the call has x, mask"),
        ({"mask": {"argument": 2}}, "is 2, but the call has x, mask"),
        # or the tests' types say so
        ({"mask": {"argument": "mask", "true": "keep"}}, "(?s)true.*'keep'"),
        ({"mask": {"argument": "mask", "shape": "xy"}}, "shape must be of b, h, q, k and 1"),
        ({"mask": {"argument": "mask", "dtype": "half"}}, "(?s)dtype.*'half'"),
        ({"mask": "attention_mask"}, "mask must be a Mask or a dictionary"),
        ({"position": "rope"}, "position must be 'none', 'learned', .*, got 'rope'"),
        ({"causal": "yes"}, "causal must be True or False, got 'yes'"),
        ({"n_heads": "four"}, "n_heads must be a whole number, got 'four'"),
        ({"n_heads": True}, "n_heads must be a whole number, got True"),
        ({"padding_id": "PAD"}, "padding_id must be a whole number"),
        ({"scale": "foo"}, "scale must be '1/sqrt.d_head.' or a number, got 'foo'"),
        ({"shared": ("query", "keys")}, "shared must be 'query', .*, got 'keys'"),
    ],
)
def test_misspelt_claims_are_refused(claims, said) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        diagnose(Separate(), torch.randn(2, 6, 16), **claims)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    said = Claims.of({"n_heads": np.int64(4), "causal": np.True_, "scale": torch.tensor(0.5)})
    assert [type(x) for x in (said.n_heads, said.causal, said.scale)] == [int, bool, float]


@pytest.mark.slow
def test_functions_and_bound_methods() -> None:
    model = GPT()
    ids = torch.randint(1, 23, (2, 6))
    before = model.wte.weight.clone()
    assert diagnose(lambda ids: model(ids), ids, causal=True).healthy
    assert diagnose(model.forward, ids, causal=True).healthy
    assert diagnose({"a": model}["a"].__call__, ids, causal=True).healthy
    assert torch.equal(before, model.wte.weight)


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 30])
def test_arguments_in_lists_and_dictionaries(n) -> None:
    model = GPT()
    batch = {"ids": torch.randint(1, 23, (2, n)), "names": ["a", "b"]}
    report = diagnose(lambda batch: {"logits": model(batch["ids"])}, batch, causal=True)
    assert report.healthy, report
    assert ("cut to 2 × 11" in report.subject) == (n == 30)
    bad = bug("decoders: nanogpt: no causal mask").make()[0]
    assert not diagnose(lambda batch: bad(batch["ids"]), batch, causal=True).healthy


def test_half_precision_is_judged_in_single() -> None:
    module = Separate().bfloat16()
    report = diagnose(module, torch.randn(2, 6, 16).bfloat16(), causal=True)
    assert report.healthy
    assert module.q_proj.weight.dtype == torch.bfloat16


def test_without_claims_it_says_what_is_missing() -> None:
    text = str(diagnose(Separate(causal=False), torch.randn(2, 6, 16)))
    for wanted in ("causal=True", "n_heads=…", "cache=…", "mask=…, lengths=… or", "window=…"):
        assert f"(claim {wanted}" in text


@pytest.mark.parametrize(
    ("claims", "untested"),
    [
        ({"cache": True}, ("cache",)),  # it takes no cache
        ({"cache": lambda module, new, _: module(new)}, ("cache",)),  # and gives one thing
        ({"mask": {"argument": "mask", "shape": "qk1"}}, ("mask",)),
        ({"window": 8}, ("window",)),  # the example is shorter
        ({"padding_id": 0}, ("padding_id",)),  # of vectors
        ({"causal": True, "half": True}, ()),
    ],
)
def test_what_is_claimed_and_not_tested_is_not_healthy(claims, untested) -> None:
    report = diagnose(Separate(), torch.randn(2, 6, 16), **claims)
    assert report.untested == untested
    assert report.healthy == (not untested)
    first = str(report).partition("\n")[0]
    assert first.startswith("NOT healthy: 0 errors" if untested else "healthy: 0 errors")
    assert all(f", claimed and not tested: {name}" in first for name in untested)


def test_a_check_that_raised_is_seen() -> None:
    text = str(diagnose(Separate(), torch.randn(2, 6, 16), cache=True))
    assert ", 1 check raised (" in text.splitlines()[0]
    assert "not judged:\n  cache: the check raised TypeError" in text


def test_arguments_of_the_call_go_into_keywords() -> None:
    mask = torch.ones(2, 6)
    for name in ("mask", "attention_mask"):  # one is the name of a claim, too
        with pytest.raises(TypeError, match=f"arguments of the call go into keywords={{'{name}'"):
            diagnose(Separate(), torch.randn(2, 6, 16), **{name: mask})


def test_the_first_line_says_that_no_attention_was_seen() -> None:
    first, *_ = str(diagnose(nn.Linear(8, 8), torch.randn(2, 6, 8))).split("\n")
    assert "no attention seen: only inputs and outputs compared" in first


def test_a_report_is_text_html_and_data() -> None:
    module, example, claims = bug("attentions: functional: none").make()
    report = diagnose(module, *example, scale=claims["scale"])
    assert report.causes == ("no scale",)
    assert "NOT healthy: 1 error" in str(report)
    assert "<summary><strong>Error: no scale</strong></summary>" in report._repr_html_()
    assert max(map(len, str(report).splitlines())) <= 100
    assert report.errors[0].remedy == "query @ key.mT * d_head**-0.5"
    assert Report("nothing").healthy


def test_an_assertion_shows_the_verdict_and_the_errors() -> None:
    assert diagnose(nn.Linear(8, 8), torch.randn(2, 3, 8), causal=True)
    mixes = diagnose(lambda x: x.flip(1), torch.randn(2, 3, 8), causal=True)
    with pytest.raises(AssertionError) as raised:
        assert mixes
    text = str(raised.value)
    assert text.startswith("NOT healthy: ")
    assert all(str(error) in text for error in mixes.errors)
    assert "held: " not in text
    assert "not judged:" not in text
    untested = Report("x → vectors", untested=("causal",))
    with pytest.raises(AssertionError) as raised:
        assert untested
    assert (
        str(raised.value)
        == "NOT healthy: 0 errors, 0 warnings, claimed and not tested: causal (x → vectors)"
    )


def test_too_many_checks_that_raised_are_no_health() -> None:
    raised = [NotJudged(str(i), "the check raised ValueError", raised=True) for i in range(4)]
    assert Report("x", not_judged=tuple(raised[:3])).healthy
    assert not Report("x", not_judged=tuple(raised)).healthy


def test_what_was_not_seen_is_not_called_healthy() -> None:
    report = diagnose(nn.Linear(8, 8), torch.randn(2, 6, 8), n_heads=2, window=3, norm="pre")
    assert report.untested == ("n_heads", "window", "norm")
    assert not {"heads", "scale", "weights", "layers", "masks", "memory"} & {*report.passed}
    bare = diagnose(nn.Linear(8, 8), torch.randn(2, 6, 8))
    assert bare
    assert not bare.healthy
    assert str(bare).startswith("no error seen: 0 errors")


ATTENTION = partial(nn.MultiheadAttention, 16, 2)


@pytest.mark.parametrize(("claim", "example"), [
    ({"n_heads": 3}, "sink"), ({"rotary_base": 10000.0}, "shared table"), ({"tied": True}, "sink"),
    ({"norm": "pre"}, "sink"), ({"n_kv_heads": 2}, "packed"), ({"embedding_scale": 2.0}, "packed"),
])  # fmt: skip
def test_a_claim_that_nothing_looked_at_is_untested(claim: dict[str, Any], example: str) -> None:
    module, inputs, claims = right("kinds", example)
    assert diagnose(module, *inputs, **{**claims, **claim}).untested == tuple(claim)


def test_known_findings_are_notes_until_they_are_gone() -> None:
    x = torch.randn(2, 6, 16)
    known = diagnose(
        lambda x: x.flip(1), x, causal=True, known=("tokens mix outside the attention",)
    )
    assert known
    assert [note.cause for note in known.notes] == ["tokens mix outside the attention"]
    gone = diagnose(ATTENTION(batch_first=True), x, x, x, known=("no scale",))
    assert gone.untested == ("known: no scale",)
    with pytest.raises(ValueError, match="there is none 'no scales'"):
        diagnose(ATTENTION(batch_first=True), x, x, x, known=("no scales",))


def test_tokens_first_is_asked_and_a_claim_against_it_is_an_error() -> None:
    x = torch.randn(2, 7, 16)
    asked = diagnose(ATTENTION(), *[torch.randn(5, 19, 16)] * 3)
    assert "batch_first=True" in asked.warnings[0].right
    assert "batch and tokens exchanged" in diagnose(ATTENTION(), x, x, x, batch_first=True).causes
    assert not diagnose(ATTENTION(), x, x, x, batch_first=False).warnings


class Tokenized(UserDict[str, Tensor]):
    """As a tokenizer gives."""


def test_a_tokenizers_mapping_is_the_keywords() -> None:
    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return table(input_ids) * attention_mask[..., None]

    table, ids = nn.Embedding(20, 8), torch.randint(20, (2, 6))
    report = diagnose(model, Tokenized(input_ids=ids, attention_mask=torch.ones_like(ids)))
    assert "ids → a row for each token" in report.subject


def test_a_call_that_fails_says_what_helps() -> None:
    ids = torch.randint(20, (2, 6))
    layer, table = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), nn.Embedding(20, 16)

    def masked(ids: Tensor, mask: Tensor) -> Tensor:
        return table(ids) * (mask > 0)[..., None]

    for module, example, words in (
        (nn.Linear, (torch.randn(2, 6, 8),), "give a module: Linear(…)"),
        (layer, (np.zeros((2, 6, 16), dtype=np.float32),), "torch.from_numpy"),
        (layer, ([[[0.0] * 16] * 6] * 2,), "torch.tensor(list)"),
        (table, (ids.float(),), "ids.long()"),
        (masked, (ids, ids), "mask, a mask by its name, holds whole numbers up to"),
        (
            table,
            (ids + 20,),
            "ids below the number of rows of a table, no more tokens than positions",
        ),
    ):
        report = diagnose(module, *example)
        assert words in str(report).replace("\n            ", " "), report


def test_a_port_is_compared_as_finely_as_its_numbers_allow() -> None:
    x, layer = torch.randn(2, 6, 16), ATTENTION(batch_first=True)
    half, other = copy.deepcopy(layer).bfloat16(), copy.deepcopy(layer)
    with torch.no_grad():
        other.out_proj.weight.mul_(1.001)

    def in_half(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return half(q.bfloat16(), k.bfloat16(), v.bfloat16())[0].float()

    assert "differs from the other" not in diagnose(layer, x, x, x, same_as=in_half).causes
    assert "differs from the other" in diagnose(layer, x, x, x, same_as=other).causes
    assert diagnose(layer, x, x, x, same_as=other, tolerance=0.01)


def test_one_cause_explains_others() -> None:
    leak = Finding("error", "future", "no causal mask", "", "", "", "")
    prefix = Finding("error", "prefix", "depends on the length", "", "", "", "")
    scale = Finding("warning", "scale", "no scale", "", "", "", "")
    found = one_cause([prefix, scale, leak], {"no causal mask": ("prefix",)})
    assert [x.cause for x in found] == ["no causal mask", "no scale"]
    assert found[0].also == ("prefix",)


@pytest.mark.parametrize(("edit", "cause"), [
    ("mask == 0 → mask >= 0", "inverted mask"),
    ("mask == 0 → mask.tril(-1) == 0", "a token does not attend to itself"),
])  # fmt: skip
def test_what_follows_from_nan_is_told_with_it(edit: str, cause: str) -> None:
    report = examine(edited("decoders", "nanogpt, dropout", edit), claimed=True)
    assert [x.cause for x in report.findings] == [cause]
    assert "first loss" in report.errors[0].also


def test_from_a_shell(tmp_path, capsys) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.MultiheadAttention(16, 2, batch_first=True)\n"
        "    def forward(self, x):\n"
        "        return self.a(x, x, x)[0]\n"
    )
    assert main([f"{file}:M", "--vectors", "2,6,16"]) == 0
    assert main([f"{file}:M", "--vectors", "2,6,16", "causal=True"]) == 1
    assert "no causal mask" in capsys.readouterr().out
    assert claim("position=rotary") == ("position", "rotary")
    assert main([f"{file}:M", "--vectors", "2,6,17"]) == 2
    assert "it raised" in capsys.readouterr().out
    file.write_text(
        "import torch\n"
        "def case():\n"
        "    x = torch.randn(2, 6, 16)\n"
        "    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)\n"
        "    return attention, x, x, x, {'n_heads': 4}\n"
    )
    assert main([f"{file}:case"]) == 1
    assert main([f"{file}:case", "n_heads=2"]) == 0
    assert main([f"{file}:case", "n_heads=2", "rotary_base=10000"]) == 2
    file.write_text("from torch import nn\nE = nn.Embedding(10, 16)\n")
    assert main([f"{file}:E", "--ids", "2,60"]) == 2
    assert "--vocab" in capsys.readouterr().out
    for wrong, said in (
        ([f"{file}", "--ids", "2,6"], "give file.py:name, not"),
        ([f"{file}:E", "--ids", "2,6", "causal=yes"], "must be True or False, got 'yes'"),
        ([f"{file}:E", "--ids", "2,6", "mask={'argument':'m'}"], "but the call has input"),
        ([f"{file}:E"], "give the shape of an input"),
        ([f"{file}:N", "--vectors", "2,6,16"], "there is no 'N' in"),
        ([f"{file}x:M", "--vectors", "2,6,16"], "there is no file"),
        ([f"{file}:M", "--vectors", "2x6"], "a shape is numbers with commas"),
        ([f"{file}:M", "--vectors", "2,6,16", "casual=True"], "there is no claim 'casual'"),
        ([f"{file}:M", "--vectors", "2,6,16", "causal"], "a claim is name=value"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(wrong)
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err
