"""One benchmark, on as many threads as the environment says: ``python -m benchmarks.command``."""

import argparse
import importlib
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.timing import environment


def main(arguments: list[str] | None = None) -> None:
    """Measure, write ``name-threads.json``, print the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.command", description=__doc__)
    parser.add_argument("name", choices=report.BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="few sizes, few rounds")
    parser.add_argument("--to", type=Path, help="folder for the results")
    chosen = parser.parse_args(arguments)
    module = importlib.import_module(f"benchmarks.{chosen.name}")
    torch.manual_seed(0)
    ratios = module.measure(quick=chosen.quick)
    result = {"benchmark": chosen.name, "environment": environment(), "ratios": ratios}
    folder = chosen.to or report.folder(result)
    report.save(result, folder / f"{chosen.name}-{torch.get_num_threads()}.json")
    print(report.text(result))


if __name__ == "__main__":
    main()
