"""Every benchmark, with one thread and with two; then the tables of README.md.

A process of its own for each number of threads: a pool of threads, once made, keeps its size.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report

QUICK_RESULTS = Path("_build", "benchmarks")
# glibc otherwise gives freed memory back to the system and takes it again, page by page: NumPy's at
# each step, that of models which take turns now and then. A model alone waits for no page.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "200000000", "MALLOC_MMAP_THRESHOLD_": "100000000"}
BUSY = 0.2
"""Programs that run or wait, for each core, from which on the numbers would be theirs."""


def main() -> None:
    """Run them, and rewrite the tables in README.md unless it was a quick run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(report.BENCHMARKS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="does it run? README.md stays")
    parser.add_argument("--tables", action="store_true", help="measure nothing: from results/")
    chosen = parser.parse_args()
    if not chosen.tables:
        measure(chosen.names or report.BENCHMARKS, quick=chosen.quick)
    if not chosen.quick:
        report.rewrite_readme(report.markdown(report.load(report.RESULTS)))


def measure(names: Sequence[str], *, quick: bool) -> None:
    """Each in processes of its own; a quick run keeps its results apart."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > BUSY:
        print(f"Warning: this machine is busy, {load:.1f} programs for each core", file=sys.stderr)
    arguments = ["--quick", "--to", str(QUICK_RESULTS)] if quick else []
    for threads in (1, 2):
        pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        settings = os.environ | dict.fromkeys(pools, str(threads))
        for name in names:
            if name in ("backprop", "generation") and threads > 1:
                continue
            kept = KEEP_FREED_MEMORY if name in ("backprop", "training") else {}
            command = [sys.executable, "-m", "benchmarks.command", name, *arguments]
            subprocess.run(command, env=settings | kept, check=True)


if __name__ == "__main__":
    main()
