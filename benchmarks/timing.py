"""Timing several things against each other, and what machine it was on."""

import gc
import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from attnbook.book.arithmetic import processor

Call = Callable[[], object]
Times = dict[str, NDArray[np.float64]]
Quartiles = tuple[float, float, float]

SAMPLE_SECONDS = 3e-3
"""A sample repeats its call until it lasts about so long."""


def race(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    rounds: tuple[int, int],
    device: str = "cpu",
) -> Times:
    """Time the calls in turns: seconds a call, one number for each call and round.

    What slows the machine for a while slows all in a round alike, so that the ratio within a round
    is steadier than either time. Each round has another order, drawn at random: whoever always
    followed the same neighbour would find in the caches what that one left.

    Args:
        calls: what to time, by name.
        seconds: how long it may take, about.
        rounds: at least and at most so many, whatever the seconds.
        device: on a GPU a sample waits until the device is done.
    """
    names = list(calls)
    repeats = {name: _repeats(calls[name], device) for name in names}  # this warms up, too
    once = sum(_sample(calls[name], repeats[name], device) * repeats[name] for name in names)
    n_rounds = int(min(max(seconds / once, rounds[0]), rounds[1]))
    times = {name: np.empty(n_rounds) for name in names}
    shuffle = random.Random(0)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for i in range(n_rounds):
            for name in shuffle.sample(names, len(names)):
                times[name][i] = _sample(calls[name], repeats[name], device)
    finally:
        if collecting:
            gc.enable()
    return times


def quartiles(values: NDArray[np.float64]) -> Quartiles:
    """First quartile, median, third quartile; four digits."""
    low, middle, high = (float(f"{q:.4g}") for q in np.percentile(values, (25, 50, 75)))
    return low, middle, high


def speed_ratio(times: Times, ours: str, peer: str) -> Quartiles:
    """Our speed divided by the peer's, within each round: above 1 we are faster."""
    return quartiles(times[peer] / times[ours])


def threads() -> int:
    """How many threads kernels run on: what the environment says, or as many as there are cores.

    Not set by ``torch.set_num_threads``, which also forbids MKL to use fewer: the small products
    inside the fused kernel's own parallel loop then take up to twice as long.

    Raises:
        ValueError: if torch takes another number than ``OMP_NUM_THREADS`` says.
    """
    taken, told = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    if told not in (None, str(taken)):
        raise ValueError(f"OMP_NUM_THREADS is {told}, but torch runs on {taken} threads")
    return taken


def busy_share(seconds: float = 1.0) -> float | None:
    """Share of all cores' time that others take now; None where it can't be told.

    With as many threads as cores, anything else that runs holds up every parallel step.
    """
    before = _core_time()
    time.sleep(seconds)
    after = _core_time()
    if before is None or after is None or after[1] == before[1]:
        return None
    return round((after[0] - before[0]) / (after[1] - before[1]), 3)


def environment(device: str = "cpu") -> dict[str, object]:
    """Machine and versions, for the results' file. Nothing that names the machine."""
    packages = ("torch", "transformers", "x-transformers", "numpy")
    if device == "cpu":
        name = processor().get("model name", platform.machine())
        capability = torch.backends.cpu.get_cpu_capability()
    else:
        name = torch.cuda.get_device_name(device)
        capability = "compute capability {}.{}".format(*torch.cuda.get_device_capability(device))
    return {
        "date": date.today().isoformat(),
        "processor": name,
        "capability": capability,
        "cores": os.cpu_count(),
        "threads": threads(),
        "busy_before": busy_share(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _repeats(call: Call, device: str) -> int:
    """How often to call for one sample."""
    first = _sample(call, 2, device)
    probes = max(1, min(20, int(SAMPLE_SECONDS / first)))
    return max(1, int(np.ceil(SAMPLE_SECONDS / _sample(call, probes, device))))


def _sample(call: Call, repeats: int, device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _core_time() -> tuple[int, int] | None:
    """Busy and all ticks of all cores since the start, where Linux says them."""
    try:
        first, *_ = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    ticks = [int(number) for number in first.split()[1:9]]  # user … steal
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
