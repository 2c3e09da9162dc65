"""The command line of a benchmark that races steps on as many threads as the environment says."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.timing import threads


def run(
    name: str,
    measure: Callable[..., report.Result],
    text: Callable[[report.Result], str],
    arguments: Sequence[str] | None = None,
) -> None:
    """Measure, write ``name-threads.json``, print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--to", type=Path, help="folder for the results")
    chosen = parser.parse_args(arguments)
    pace: dict[str, Any] = {"seconds": 0.5, "rounds": (3, 5)} if chosen.quick else {}
    result = measure(**pace)
    folder = chosen.to or report.folder(result)
    report.save(result, folder / f"{name}-{threads()}.json")
    print(text(result))
