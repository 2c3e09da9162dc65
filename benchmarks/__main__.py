"""Every benchmark of the CPU, with one thread and with two; then the tables.

A process of its own for each number of threads: a pool of threads, once made, keeps its size.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.timing import busy_share

QUICK_RESULTS = Path("_build", "benchmarks")
# Memory otherwise goes back to the system and comes again, page by page: NumPy's at each step, that
# of models which take turns now and then. Alone, no step of theirs waits for a page.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "200000000", "MALLOC_MMAP_THRESHOLD_": "100000000"}
MODULES = ("attention", "training", "threads", "probes")
MUCH = 0.1
"""Others take so large a share of the cores: the numbers would be theirs."""


def main() -> None:
    """Run them, and rewrite the tables in README.md unless it was a quick run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--quick", action="store_true", help="does it run? README.md stays as it is"
    )
    parser.add_argument(
        "--tables", action="store_true", help="measure nothing: README.md from results/ alone"
    )
    chosen = parser.parse_args()
    if chosen.tables:
        report.rewrite_readme(report.markdown(report.load(report.RESULTS)))
        return
    busy = busy_share()
    if busy is not None and busy > MUCH:
        print(f"Warning: other programs take {busy:.0%} of this machine's cores", file=sys.stderr)
    modules = [name for name in MODULES if name != "threads" or torch.backends.mkl.is_available()]
    runs = [(module, n) for n in chosen.threads for module in modules]
    for module, threads in [*runs, ("backprop", 1)]:
        command = [sys.executable, "-m", f"benchmarks.{module}"]
        command += ["--quick", "--to", str(QUICK_RESULTS)] if chosen.quick else []
        pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        settings = dict.fromkeys(pools, str(threads))
        settings |= KEEP_FREED_MEMORY if module in ("backprop", "training") else {}
        subprocess.run(command, env=os.environ | settings, check=True)
    if not chosen.quick:
        report.rewrite_readme(report.markdown(report.load(report.RESULTS)))


if __name__ == "__main__":
    main()
