"""Timing several things against each other, and what machine it was on."""

import gc
import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import version

import numpy as np
import torch
from numpy.typing import NDArray

import attnbook
from book.evidence.arithmetic import processor

Call = Callable[[], object]
Times = dict[str, NDArray[np.float64]]
Quartiles = tuple[float, float, float]
Ratios = dict[str, dict[str, Quartiles]]
"""For each row of the page's table, the ratio of each size."""

SAMPLE_SECONDS = 3e-3
"""A sample repeats its call until it lasts about so long."""
MIN_ROUNDS, MAX_ROUNDS = 15, 201


def race(calls: Mapping[str, Call], *, seconds: float) -> Times:
    """Time the calls in turns: seconds a call, one number for each call and round.

    What slows the machine for a while slows all in a round alike, so that the ratio within a round
    is steadier than either time. Each round has another order, drawn at random: a call that always
    followed the same neighbour would find in the caches what that one left.

    Args:
        calls: what to time, by name.
        seconds: how long it may take, about; at least 15 and at most 201 rounds.
    """
    names = list(calls)
    repeats = {name: _repeats(calls[name]) for name in names}  # this warms up, too
    once = sum(_sample(calls[name], repeats[name]) * repeats[name] for name in names)
    n_rounds = int(min(max(seconds / once, MIN_ROUNDS), MAX_ROUNDS))
    times = {name: np.empty(n_rounds) for name in names}
    shuffle = random.Random(0)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(n_rounds):
            for name in shuffle.sample(names, len(names)):
                times[name][i] = _sample(calls[name], repeats[name])
    finally:
        if collecting:
            gc.enable()
    return times


def speed_ratio(times: Times, ours: str, peer: str) -> Quartiles:
    """Our speed divided by the peer's, within each round: above 1 ours is faster.

    Returns:
        First quartile, median and third quartile over the rounds, to four digits.
    """
    ratios = np.percentile(times[peer] / times[ours], (25, 50, 75))
    low, middle, high = (float(f"{ratio:.4g}") for ratio in ratios)
    return low, middle, high


def environment() -> dict[str, object]:
    """Machine and versions, for the results' file. Nothing that names the machine."""
    packages = ("torch", "transformers", "x-transformers", "numpy")
    return {
        "date": date.today().isoformat(),
        "processor": processor().get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": {"attnbook": attnbook.__version__, "Python": platform.python_version()}
        | {name: version(name) for name in packages},
    }


def _repeats(call: Call) -> int:
    """How often to call for one sample."""
    first = _sample(call, 2)
    trials = max(1, min(20, int(SAMPLE_SECONDS / first)))
    return max(1, int(np.ceil(SAMPLE_SECONDS / _sample(call, trials))))


def _sample(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
