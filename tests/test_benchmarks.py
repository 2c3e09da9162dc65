"""The benchmarks compare like with like and write their table. No times are tested."""

import itertools
import json
import time
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import (
    attention,
    backprop,
    command,
    generation,
    machine,
    report,
    timing,
    training,
)
from benchmarks.contenders import Size, check_equal, contenders
from benchmarks.timing import SAMPLE_SECONDS, race, speed_ratio

SMALL = Size(d_model=64, tokens=32, batch=2)


@pytest.mark.parametrize("index", range(1, 6))
@pytest.mark.parametrize("d_model", [64, 512])
def test_contender_computes_what_ours_computes(d_model, index):
    size = Size(d_model, tokens=32, batch=2)
    x, gradient = attention.tokens(size)
    made = contenders(size)
    ours, contender = made[0], made[index]
    same = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
    same(contender.attend(x), ours.attend(x))
    same(contender.gradients(x, gradient)[0], ours.gradients(x, gradient)[0])
    expected = 4 * d_model**2 + (4 * d_model if contender.bias else 0)
    assert sum(p.numel() for p in contender.module.parameters()) == expected


@pytest.mark.parametrize("index", range(6))
def test_other_weights_are_found(index):
    made = contenders(SMALL)
    with torch.no_grad():
        next(p for p in made[index].module.parameters() if p.dim() == 2)[0, 0] += 0.1
    with pytest.raises(ValueError, match=r"has another (output|gradient) than ours"):
        check_equal(made, *attention.tokens(SMALL))


def test_ratio_is_taken_within_each_round():
    times = {"ours": np.array([1.0, 2.0, 4.0]), "theirs": np.array([2.0, 2.0, 2.0])}
    assert speed_ratio(times, "ours", "theirs") == (0.75, 1.0, 1.5)


def test_race_runs_each_in_each_round_in_random_order():
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        time.sleep(2 * SAMPLE_SECONDS)  # so that a sample is one call

    times = race({name: partial(run, name) for name in "abcd"}, seconds=0)
    assert [len(times[name]) for name in "abcd"] == [15] * 4
    rounds = [ran[i : i + 4] for i in range(len(ran) - 4 * 15, len(ran), 4)]
    assert all(sorted(order) == list("abcd") for order in rounds)
    followers = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert max(followers.values()) < 10


def test_training_goes_on_alike():
    participants = training.trainees()
    training.check_equal(participants)
    assert len({sum(p.numel() for p in t.model.parameters()) for t in participants}) == 1
    for batch in training.batches(3):
        ours, *theirs = (t.step(*batch).item() for t in participants)
    assert theirs == pytest.approx([ours] * 2, abs=1e-4)
    with torch.no_grad():
        next(participants[2].model.parameters())[0, 0] += 1.0
    with pytest.raises(ValueError, match=r"^nanoGPT's lines has a loss of"):
        training.check_equal(participants)


@pytest.mark.parametrize("batch", [1, 2])
def test_all_write_the_same_again_and_again(batch, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(generation, "N_LAYERS", {32: 2})
    size = generation.Size(32, 72, batch)
    made = generation.calls(size)
    made.pop(generation.FLOOR)()
    assert len(made) == (7 if batch == 1 else 4)
    written = made[generation.OURS]()
    assert written.shape == (batch, 72)
    assert len(written[0, -generation.N_NEW :].unique()) > 2
    for call in made.values():
        for _ in range(2):
            assert torch.equal(call(), written)
    times = {name: np.array([1.0]) for name in made}
    seconds = generation.per_token(times, size)
    assert seconds[generation.OURS] == seconds[generation.FUSED] == 1 / 64
    if batch == 1:
        assert seconds["attnbook, no cache"] == 1 / 3


@pytest.mark.parametrize("which", [1, 2])
def test_who_writes_something_else_is_found(which, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(generation, "N_LAYERS", {32: 2})
    made = generation.models

    def other(size):
        models = made(size)
        with torch.no_grad():
            next(models[which].parameters()).add_(torch.randn(65, 32))
        return models

    monkeypatch.setattr(generation, "models", other)
    with pytest.raises(ValueError, match="writes other tokens than ours"):
        generation.calls(generation.Size(32, 72, 1))


def test_a_token_for_more_texts_is_more_operations_for_each_byte(monkeypatch):
    for name, few in {"SECONDS": 0, "LENGTHS": (16,), "BATCHES": (1, 2), "D_MODEL": 64}.items():
        monkeypatch.setattr(machine, name, few)
    torch.set_default_dtype(torch.float32)
    assert [*machine.by_length()["16"]] == ["projections", "fused", "definition"]
    one, two = machine.by_batch().values()
    assert two["operations"] == 2 * one["operations"]
    assert one["bytes"] < two["bytes"] < 1.2 * one["bytes"]


def test_other_gradients_by_hand_are_found(monkeypatch):
    backprop.calls(16)
    right = backprop.backprop.LanguageModel.loss_and_gradients
    monkeypatch.setattr(
        backprop.backprop.LanguageModel,
        "loss_and_gradients",
        lambda self, *batch: right(self, *batch) + 1e-6,
    )
    with pytest.raises(ValueError, match=r"differ by 1\.0*\d*e-06"):
        backprop.calls(16)


@pytest.mark.slow
@pytest.mark.parametrize("name", report.BENCHMARKS)
def test_quick_mode_measures_one_size_of_the_tables_rows(name, tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "MIN_ROUNDS", 1)
    torch.set_default_dtype(torch.float32)
    command.main([name, "--quick", "--to", str(tmp_path)])
    (quick,) = report.load(tmp_path)
    recorded = sorted(report.RESULTS.glob(f"*/{name}-1.json"))
    whole = json.loads(recorded[-1].read_text()) if recorded else quick
    assert list(quick["ratios"]) == list(whole["ratios"])[: len(quick["ratios"])]
    for row, sizes in quick["ratios"].items():
        ((size, (low, middle, high)),) = sizes.items()
        assert size in whole["ratios"][row]
        assert 0 < low <= middle <= high


def made_up(threads: int, ratios: dict) -> report.Result:
    facts = {"date": "2026-01-02", "processor": "Intel(R) Xeon(R) Processor", "cores": 2}
    facts |= {"threads": threads, "versions": {"attnbook": "0.2.0"}}
    return {"benchmark": "attention", "environment": facts, "ratios": ratios}


def test_table_of_a_small_result():
    several = {"a": [0.8, 0.9, 1.0], "b": [1.0, 1.1, 1.3], "c": [1.2, 1.3, 1.4]}
    one = {"a": [0.98, 0.996, 1.004]}
    results = [made_up(1, {"x / y": several, "z": one}), made_up(2, {"x / y": one})]
    assert report.markdown(results).splitlines() == [
        "### Intel Xeon, 2 cores",
        "",
        "attention: measured on 2026-01-02 with attnbook 0.2.0.",
        "",
        "| our speed / theirs | 1 thread | 2 threads |",
        "| --- | ---: | ---: |",
        "| x / y | 1.10, worst 0.90 | 1.00 (0.98–1.00) |",
        "| z | 1.00 (0.98–1.00) | – |",
    ]
    assert report.folder(results[0]) == report.RESULTS / "intel-xeon"
    assert report.text(results[1]).endswith("x / y, a: 1.00 (0.98–1.00)")


def test_page_shows_the_committed_results(tmp_path):
    committed, page = report.README.read_text(encoding="utf-8"), tmp_path / "README.md"
    page.write_text(committed, encoding="utf-8")
    report.rewrite_readme(report.markdown(report.load(report.RESULTS)), page)
    assert page.read_text(encoding="utf-8") == committed
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="needs these two lines"):
        report.rewrite_readme("tables", page)
