"""The benchmarks run, compare like with like and write their tables. No times are tested."""

import itertools
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from attnbook import MultiHeadAttention
from benchmarks import attention, backprop, probes, report, threads, training
from benchmarks.contenders import OURS, PACKED, Size, check_equal, contenders
from benchmarks.memory import peak_bytes
from benchmarks.timing import SAMPLE_SECONDS, race, speed_ratio
from benchmarks.timing import threads as threads_taken

SMALLEST = Size(d_model=64, tokens=32, batch=1)
PEERS = ["torch", "HF GPT-2", "x-transformers", "textbook"]


def test_equal_outputs_are_told_from_others():
    x, gradient = torch.randn(2, 1, 32, 64, dtype=torch.float32)
    participants = contenders(SMALLEST)
    check_equal(participants, x, gradient)
    for contender in participants:
        with torch.no_grad():
            weight = next(p for p in contender.module.parameters() if p.dim() == 2)
            weight[0, 0] += 0.1
        with pytest.raises(ValueError, match=r"has another (output|gradient) than"):
            check_equal(participants, x, gradient)
        with torch.no_grad():
            weight[0, 0] -= 0.1


def test_a_contender_that_looks_ahead_is_found():
    x, gradient = torch.randn(2, 1, 32, 64, dtype=torch.float32)
    participants = contenders(SMALLEST)
    module = participants[0].module
    object.__setattr__(participants[0], "attend", lambda x: module(x, causal=False))
    with pytest.raises(ValueError, match="attnbook has another output"):
        check_equal(participants, x, gradient)


def test_what_is_compared_has_as_many_parameters():
    for contender in contenders(SMALLEST):
        expected = 4 * 64 * 64 + (4 * 64 if contender.bias else 0)
        assert sum(p.numel() for p in contender.module.parameters()) == expected, contender.name
    packed = {c.name: len(list(c.module.parameters())) for c in contenders(SMALLEST)}
    assert (packed[OURS], packed[PACKED]) == (4, 2)


def test_a_peer_is_compared_with_ours_that_has_biases_as_it_has():
    participants = contenders(SMALLEST)
    times = {c.name: np.array([float(i)]) for i, c in enumerate(participants, start=1)}
    names = [c.name for c in participants]
    assert names[:4] == list(attention.OF_OURS)
    row = attention.compare(times, participants)
    torch, gpt2 = (float(names.index(name) + 1) for name in ("torch", "HF GPT-2"))
    assert row["speed"]["torch"][1] == torch / 1
    assert row["packed"]["speed"]["torch"][1] == pytest.approx(torch / 3, rel=1e-3)
    assert row["speed"]["HF GPT-2"][1] == gpt2 / 2
    assert row["packed"]["speed"]["HF GPT-2"][1] == gpt2 / 4
    assert report._fastest(row) == report._fastest(row["packed"]) == "HF GPT-2"


@pytest.mark.slow
@pytest.mark.parametrize("mode", attention.MODES)
def test_a_row_of_speeds(mode):
    row = attention.speed_row(SMALLEST, mode, seconds=0, rounds=(1, 1))
    assert list(row["speed"]) == PEERS
    assert row["rounds"] == 1
    assert report._fastest(row) in PEERS
    assert all(low <= middle <= high for low, middle, high in row["speed"].values())
    assert list(row["packed"]["speed"]) == PEERS
    assert ("limit" in row) == ("limit" in row["packed"]) == (mode == "forward")


def test_operations_are_those_of_all_pairs():
    products = attention.Products(Size(64, 3, 2), device="cpu", dtype=torch.float32)
    projections = 2 * 3 * 4 * 64 * 64  # multiplications: sequences × tokens × matrices × entries
    pairs = 2 * 3 * 3 * 2 * 64
    assert products.operations == 2 * (projections + pairs)


def test_memory_grows_with_the_square_in_the_textbook_alone():
    short, long = (attention.memory_row(Size(64, t, 1))["peak_bytes"] for t in (256, 512))
    assert long["textbook"] > 3 * short["textbook"]
    assert long[OURS] < 2.2 * short[OURS]


def test_peak_memory_counts_what_is_alive_together():
    def chain() -> torch.Tensor:
        return torch.relu(torch.relu(torch.relu(torch.ones(4000, dtype=torch.float32))))

    assert peak_bytes(chain) == 2 * 4 * 4000


def test_a_ratio_is_taken_within_each_round():
    times = {"ours": np.array([1.0, 2.0, 4.0]), "theirs": np.array([2.0, 2.0, 2.0])}
    assert speed_ratio(times, "ours", "theirs") == (0.75, 1.0, 1.5)


def test_a_race_times_each_call_in_each_round():
    calls = dict.fromkeys("ab", 0)

    def count(name: str) -> None:
        calls[name] += 1

    times = race({n: lambda n=n: count(n) for n in calls}, seconds=0, rounds=(3, 5))
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3}
    assert all((seconds > 0).all() for seconds in times.values())
    assert min(calls.values()) > 0


@pytest.mark.slow
def test_in_a_race_nobody_always_follows_the_same_one():
    ran: list[str] = []

    def run(name: str) -> None:
        ran.append(name)
        time.sleep(2 * SAMPLE_SECONDS)  # so that a sample is one call

    race({n: partial(run, n) for n in "abcd"}, seconds=0, rounds=(30, 30))
    rounds = [ran[i : i + 4] for i in range(len(ran) - 4 * 30, len(ran), 4)]
    assert all(sorted(order) == list("abcd") for order in rounds)
    followers = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert len(followers) == 12
    assert max(followers.values()) < 20


def test_torch_alone_is_an_attention():
    products = attention.Products(Size(64, 5, 2), device="cpu", dtype=torch.float64)
    ours = MultiHeadAttention(64, products.size.n_heads)
    linears = (ours.query, ours.key, ours.value, ours.output)
    with torch.no_grad():
        for linear, weight in zip(linears, products.weights, strict=True):
            linear.weight.copy_(weight)
        expected = ours(products.x.view(2, 5, 64))
        torch.testing.assert_close(products.torch_alone(), expected)


@pytest.mark.slow
def test_training_starts_from_the_same_loss_and_goes_on_alike():
    participants = training.trainees()
    training.check_equal(participants)
    assert len({sum(p.numel() for p in t.model.parameters()) for t in participants}) == 1
    for batch in training.batches(3):
        ours, *theirs = (t.step(*batch).item() for t in participants)
    assert theirs == pytest.approx([ours] * 4, abs=1e-4)
    for peer in participants[:0:-1]:
        with torch.no_grad():
            next(peer.model.parameters())[0, 0] += 1.0
        with pytest.raises(ValueError, match=f"^{peer.name} has a loss of"):
            training.check_equal(participants)


MACHINE = {"processor": "Intel(R) Xeon(R) Processor", "threads": 1}


def test_each_machine_has_a_folder_and_a_name_of_its_own():
    assert report.folder({"environment": MACHINE}) == report.RESULTS / "intel-xeon"
    row = {
        "tokens": 8,
        "milliseconds": {"plain": [1, 1, 1], "probed": [1, 1, 1]},
        "cost": [1, 1, 1],
    }
    for count, setting in ((1, "Intel Xeon, 1 thread "), (2, "Intel Xeon, 2 threads ")):
        result = {"rows": [row], "environment": MACHINE | {"threads": count}}
        assert setting in report.probes_text(result)


@pytest.mark.slow
def test_reports_of_a_small_run():
    slow = attention.measure(quick=True)
    steps = training.measure(seconds=0, rounds=(1, 1))
    text = report.attention_text(slow) + report.training_text(steps)
    assert all(peer in text for peer in PEERS)
    page = report.markdown([slow, steps])
    tables = [part.splitlines() for part in page.split("\n\n") if part.startswith("|")]
    assert [len({line.count("|") for line in table}) for table in tables] == [1] * 6
    assert [table[2].split(" | ")[2] for table in tables[:2]] == ["three matrices"] * 2
    assert [table[3].split(" | ")[2] for table in tables[:2]] == ["packed"] * 2
    assert "attnbook, packed" in page
    assert "nanoGPT's configuration" in page


def test_losses_are_counted_by_width():
    ratios = [(64, (0.9, 0.99, 0.999)), (64, (0.9, 0.99, 1.1)), (64, (1.1, 1.2, 1.3))]
    rows = [
        {"mode": "forward", "d_model": d} | {"speed": {"one": ratio, "other": (1.3, 1.4, 1.5)}}
        for d, ratio in [*ratios, (128, (0.98, 0.996, 0.999))]
    ]
    expected = ["2 of 3, 0.99", "0 of 1, 1.00", "2 of 4, 0.99", "1"]
    head, table = report._losses_table([{"speed": rows, "environment": MACHINE}])
    assert head[:4] == ["mode", "run", "ours", "width 64"]
    assert head[4:] == ["width 128", "all", "third quartile below 1, too"]
    assert table == [["forward", "Intel Xeon, 1 thread", "three matrices", *expected]]
    for row in rows:  # packed, another peer is the fastest
        row["packed"] = {"speed": {"one": (1.3, 1.4, 1.5), "other": (0.9, 0.99, 0.994)}}
    _, table = report._losses_table([{"speed": rows, "environment": MACHINE}])
    assert table[0][3:] == expected
    assert table[1][2:] == ["packed", "3 of 3, 0.99", "1 of 1, 0.99", "4 of 4, 0.99", "4"]


def test_the_page_shows_the_committed_results(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(report.README.read_text(encoding="utf-8"), encoding="utf-8")
    report.rewrite_readme(report.markdown(report.load(report.RESULTS)), page)
    assert page.read_text(encoding="utf-8") == report.README.read_text(encoding="utf-8")


def test_a_page_without_markers_is_left_alone(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="needs these two lines"):
        report.rewrite_readme("tables", page)
    assert page.read_text(encoding="utf-8") == "no markers"


@pytest.mark.slow
@pytest.mark.parametrize("mode", backprop.MODES)
def test_a_row_of_gradients_by_hand(mode):
    row = backprop.compare(16, mode, seconds=0, rounds=(1, 1))
    assert list(row["speed"]) == ["torch float64", "torch float32"]
    assert row["milliseconds"].keys() == {backprop.NUMPY, *row["speed"]}
    result = {"rows": [{"d_model": 16, "mode": mode} | row], "environment": MACHINE}
    assert backprop.NUMPY in report.backprop_text(result)


@pytest.mark.slow
def test_another_loss_by_hand_is_found(monkeypatch):
    right = backprop.backprop.LanguageModel.loss_and_gradients
    monkeypatch.setattr(
        backprop.backprop.LanguageModel,
        "loss_and_gradients",
        lambda self, *batch: right(self, *batch) + 1e-6,
    )
    with pytest.raises(ValueError, match=r"^torch float64 differs from NumPy float64 by "):
        backprop.calls(16, adam=False)


@pytest.mark.slow
def test_a_row_of_the_probes_cost(monkeypatch):
    monkeypatch.setattr(probes, "LENGTHS", (8,))
    result = probes.measure(seconds=0, rounds=(1, 1))
    (row,) = result["rows"]
    assert row["cost"][1] > 1
    assert "probed / plain" in report.probes_text(result)
    assert "### Cost of the probes" in report.markdown([result, result])


def test_threads_are_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    taken = torch.get_num_threads()
    assert threads_taken() == taken
    monkeypatch.setenv("OMP_NUM_THREADS", str(taken))
    assert threads_taken() == taken
    monkeypatch.setenv("OMP_NUM_THREADS", str(taken + 1))
    with pytest.raises(ValueError, match=rf"is {taken + 1}, but torch runs on {taken} threads"):
        threads_taken()


needs_mkl = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="sets MKL's threads, which only x86 builds hold"
)


def test_threads_of_another_library_are_not_measured(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    with pytest.raises(OSError, match="this build of torch does not hold MKL"):
        threads.measure(seconds=0, rounds=(1, 1))


@pytest.mark.slow
@needs_mkl
def test_a_row_of_settings_of_threads(monkeypatch):
    monkeypatch.setattr(threads, "SIZES", (SMALLEST,))
    result = threads.measure(seconds=0, rounds=(1, 1))
    assert [row["mode"] for row in result["rows"]] == list(attention.MODES)
    assert list(result["rows"][0]["time"]) == list(threads.settings(1))[1:]
    assert "mkl_set_dynamic(false), ms" not in report.threads_text(result)
    assert "as started, ms" in report.threads_text(result)
    assert "### Time of the fused kernel" in report.markdown([result])


@needs_mkl
def test_threads_that_torch_sets_are_what_both_settings_say():
    made, mkl = threads.settings(torch.get_num_threads()), threads.library()
    seen = {}
    for name, setting in made.items():
        setting()
        seen[name] = (mkl.mkl_serv_get_dynamic(), mkl.MKL_Set_Num_Threads_Local(0))
    made[threads.STARTED]()
    assert seen["torch.set_num_threads"] == seen["both"] == (0, torch.get_num_threads())
    assert seen[threads.STARTED] == (1, 0)
    assert len(set(seen.values())) == 4


def test_no_benchmark_sets_threads_in_torch():
    """It would slow the fused kernel, ours and theirs, but not the plain products."""
    sources = [path.read_text(encoding="utf-8") for path in report.HERE.glob("*.py")]
    sources.remove(Path(threads.__file__).read_text(encoding="utf-8"))  # what it measures
    assert len(sources) > 5
    assert not [source for source in sources if "set_num_threads(" in source]
