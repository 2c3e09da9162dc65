"""What claims were measured on: noted while code runs, said in a line."""

import json
import re
import statistics

import numpy as np
import pytest
import torch
from built import ROOT, parsed

from attnbook import Encoder, ModelConfig, initialize
from attnbook.blocks import Block
from attnbook.config import BlockConfig
from attnbook.tasks import reversal_batch, train
from book.evidence.cells import behind
from book.evidence.measured import Measured, measured_on
from book.evidence.ran import Watch
from book.evidence.settings import Recorded, distinct, rows_of
from book.press.render import CLAIMS
from book.sphinx.evidence import COUNTS

CONFIG = ModelConfig(vocab_size=4, d_model=8, n_heads=2, n_layers=3, norm="pre", tied=False)


def seen(run):
    with Watch(ROOT) as watch:
        run()
    return watch.observer


def learn(steps=3, scheme=None):
    model = Encoder(CONFIG)
    if scheme:
        initialize(model, scheme)
    draw = lambda generator: reversal_batch(5, 4, 4, generator)  # noqa: E731
    train(model, draw, steps=steps, learning_rate=0.01, seed=0, warmup=2)


def test_a_training_is_noted_with_its_model_start_task_and_steps():
    (setting,) = seen(lambda: learn(scheme="gpt2")).settings
    assert setting == {
        "model": "Encoder",
        "blocks": 3,
        "width": 8,
        "heads": 2,
        "norm": "pre",
        "positions": "sinusoidal",
        "activation": "relu",
        "tied": False,
        "start": "gpt2",
        "task": "words backwards",
        "batch": 5,
        "optimizer": "Adam",
        "rate": 0.01,
        "warm-up": 2,
        "steps": 3,
        "format": str(torch.get_default_dtype()).removeprefix("torch."),
        "device": "cpu",
    }
    assert [*setting] != sorted(setting)


def test_a_loop_of_ones_own_counts_its_steps():
    def loop():
        model = Encoder(CONFIG)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
            optimizer.step()

    (setting,) = seen(loop).settings
    assert (setting["optimizer"], setting["rate"], setting["steps"]) == ("SGD", 0.5, 4)
    assert setting["blocks"] == 3


def test_modules_of_ones_own_are_named_and_their_parts_are_not():
    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = torch.nn.Linear(2, 2)

    def run():
        torch.nn.Sequential(Mine(), torch.nn.MultiheadAttention(4, 2))

    assert [each["model"] for each in seen(run).settings] == ["Mine", "nn.MultiheadAttention"]


def test_a_rate_that_grows_is_a_warm_up():
    def loop():
        model = Encoder(CONFIG)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        sum(p.sum() for p in model.parameters()).backward()
        for rate in (0.1, 0.2, 0.3, 0.2):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()

    (setting,) = seen(loop).settings
    assert (setting["rate"], setting["warm-up"], setting["steps"]) == (0.3, 3, 4)


def test_blocks_that_are_alike_are_a_stack_and_parts_of_a_model_are_no_models():
    def build():
        for _ in range(6):
            Block(BlockConfig(d_model=8, n_heads=2))

    (stack,) = seen(build).settings
    assert (stack["model"], stack["blocks"], stack["width"]) == ("Block", 6, 8)
    assert len(seen(lambda: Encoder(CONFIG)).settings) == 1


def test_what_was_trained_is_not_named_untrained_as_well():
    made = {"model": "Encoder", "width": 8}
    assert distinct([made, made | {"steps": 3}]) == [made | {"steps": 3}]


def test_numbers_know_their_rows_through_sums_and_products():
    a, b = Recorded(2.0, frozenset({("s", "a")})), Recorded(3.0, frozenset({("s", "b")}))
    assert rows_of(sum([a, b]) / 2) == {("s", "a"), ("s", "b")}
    assert rows_of([100 * -a, round(a, 1), abs(a) ** 2]) == {("s", "a")}
    assert rows_of([1.0, "a", statistics.mean([a, b])]) == set()
    assert (a - b, json.dumps([a]), f"{b:.1f}", repr(a)) == (-1.0, "[2.0]", "3.0", "2.0")
    assert np.asarray([a, b]).dtype == np.float64


def test_a_claim_has_what_was_met_since_the_claim_before_or_in_cells_it_needs():
    met = [
        ("cell", "small = make()\nlarge = make()", 0),
        ("setting", {"width": 8}, 1),
        ("setting", {"width": 16}, 2),
        ("cell", "claim('', small, label='a')\nclaim('', make(), label='b'); claim('', 1)", 0),
        ("claim", ["a", []], 1),
        ("setting", {"width": 64}, 2),
        ("claim", ["b", []], 2),
        ("claim", ["c", [["study", "case"]]], 2),
    ]
    assert behind(met) == {
        "settings": [{"width": 8}, {"width": 64}],
        "claims": {
            "a": {"rows": {}, "settings": [0]},
            "b": {"rows": {}, "settings": [1]},
            "c": {"rows": {"study": ["case"]}, "settings": []},
        },
    }


UNSEEN = {"settings": [], "claims": {}}
NOTHING = {"label": "a", "files": [], "samples": 1, "form": "close_to", "text": None}


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({}, "algebra"),
        ({"form": "equals"}, "counted"),
        ({"text": "86764f"}, "counted in Python's help texts"),
        ({"samples": 8}, "random draws, no model of the package"),
        ({"files": ["chapters/timings.json"]}, "recorded in chapters/timings.json"),
        ({"files": ["studies/own.json"]}, "not noted"),
    ],
)
def test_without_a_model_a_claim_says_what_it_is(claim, says):
    assert measured_on(NOTHING | claim, UNSEEN, {}, {}).line() == says


def test_a_line_says_what_is_shared_and_what_varies():
    deep = {"blocks": 12, "width": 32, "norm": "post", "rate": 0.003, "steps": 240}
    recorded = {"deep": {"post": [deep], "pre": [deep | {"norm": "pre", "warm-up": 50}]}}
    rows = {"deep": ["post", "pre"]}
    noted = UNSEEN | {"claims": {"a": {"rows": rows, "settings": []}}}
    found = measured_on(NOTHING, noted, recorded, {})
    assert found.line() == (
        "12 blocks · 32 wide · post-norm, pre-norm · rate 0.003 · warm-up 0, 50 · 240 steps"
    )
    assert found.varied == {"norm": ["post", "pre"], "warm-up": [None, 50]}
    noted = {"settings": [deep], "claims": {"a": {"rows": {}, "settings": [0]}}}
    alone = measured_on(NOTHING, noted, recorded, {})
    assert alone.apart(found) == ["norm", "warm-up"]
    assert (alone.of("norm"), alone.of("task")) == ("post-norm", "–")


def test_a_study_without_models_of_the_package_says_what_it_asks():
    noted = UNSEEN | {"claims": {"a": {"rows": {"own": ["b"]}, "settings": []}}}
    found = measured_on(NOTHING, noted, {"own": {"b": [{"rate": 0.1}]}}, {"own": "Which is it?"})
    assert found.line() == "Which is it? · rate 0.1"


SAYS = {
    "blocks": r"\b(\w+)(?: \w+-norm)?(?: untrained)? (?:blocks?|layers?)\b",
    "width": r"\b(\d+) wide|(?<!hidden )\bwidth (\d+)",
    "rate": r"\brate (0\.\d+)",
    "warm-up": r"(\d+) steps of warm-up",
    "norm": r"\b(pre|post)-norm",
}
NUMBERS = {word: i for i, word in enumerate(COUNTS) if word} | {"one": 1, "twelve": 12}


def test_no_setting_contradicts_what_its_claim_says():
    ledger = json.loads((ROOT / CLAIMS).read_text())
    for claim in (each for found in ledger.values() for each in found):
        setting = claim["setting"]
        values = {field: [one] for field, one in setting["same"].items()} | setting["varied"]
        for field in SAYS.keys() & values.keys():
            for words in re.findall(SAYS[field], claim["statement"], re.IGNORECASE):
                word = ("".join(words)).lower()
                said = word if field == "norm" else NUMBERS.get(word)
                if field != "norm" and word.replace(".", "").isdigit():
                    said = float(word)
                assert said is None or said in values[field], (claim["label"], field, word)


def test_many_values_are_a_range():
    found = Measured("", {}, {"blocks": [2, 4, 8, 16], "task": ["a", "b", "c", "d"]}, {})
    assert found.line() == "2 to 16 blocks · a and 3 others"


def test_each_claim_says_on_what_it_was_measured_wherever_it_is_shown():
    ledger = json.loads((ROOT / CLAIMS).read_text())
    claims = {each["label"]: each for found in ledger.values() for each in found}
    assert all(each["setting"]["line"] for each in claims.values())
    known = claims["deep-warm-post"]["setting"]
    assert known["same"]["blocks"] == 12
    assert known["same"]["norm"] == "post"
    rows = parsed("chapters/claims.html").select("tr[id^=ledger-]")
    assert len(rows) == len(claims)
    for row in rows:
        assert claims[row["id"].removeprefix("ledger-")]["setting"]["line"] in row.text
    link = parsed("chapters/08_depth.html").select_one('a.claim-link[href$="-warm-post"]')
    assert known["line"] in link["data-card"].split(" | ")
