"""Results' files, and the page's tables made from them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attnbook.files import write_whole

Result = dict[str, Any]

BENCHMARKS = ("attention", "training", "generation", "backprop", "probes")
"""In the order of the table's rows."""
RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent / "README.md"
BEGIN = "<!-- begin of the tables: make timings writes them -->"
END = "<!-- end of the tables -->"


def save(result: Result, path: Path) -> None:
    """Write a result as JSON, each ratio's quartiles in one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = re.sub(r"\n *(?=[\d\]])", " ", json.dumps(result, indent=1, ensure_ascii=False))
    write_whole(path, f"{text}\n".encode())


def load(folder: Path) -> list[Result]:
    """All results in the folder's folders, in the order of the machines' names and of the rows."""
    results = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.rglob("*.json"))]
    return sorted(results, key=lambda r: (_processor(r), BENCHMARKS.index(r["benchmark"])))


def folder(result: Result) -> Path:
    """Each machine has its own: what is fast on one need not be on another."""
    return RESULTS / "-".join(re.findall("[a-z0-9]+", _processor(result).lower()))


def text(result: Result) -> str:
    """Each size's ratio, for the terminal."""
    lines = [
        f"{row}, {size}: {_quartiles(ratio)}"
        for row, sizes in result["ratios"].items()
        for size, ratio in sizes.items()
    ]
    head = f"{_processor(result)}, {_threads(result['environment']['threads'])}"
    return "\n".join([head, *lines])


def markdown(results: list[Result]) -> str:
    """A table for each machine: what stands between the markers in README.md."""
    machines: dict[str, list[Result]] = {}
    for result in results:
        machine = f"{_processor(result)}, {result['environment']['cores']} cores"
        machines.setdefault(machine, []).append(result)
    parts = []
    for machine, of_machine in machines.items():
        parts += [f"### {machine}", _measured(of_machine), _table(of_machine)]
    return "\n\n".join(parts)


def rewrite_readme(text: str, path: Path = README) -> None:
    """Put ``text`` between the markers.

    Raises:
        ValueError: if the markers are not there.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path.name} needs these two lines: {BEGIN} and {END}")
    write_whole(path, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}".encode())


def _table(results: list[Result]) -> str:
    threads = sorted({result["environment"]["threads"] for result in results})
    rows: dict[str, dict[int, str]] = {}
    for result in results:
        for row, sizes in result["ratios"].items():
            rows.setdefault(row, {})[result["environment"]["threads"]] = _cell([*sizes.values()])
    heads = ["our speed / theirs", *map(_threads, threads)]
    lines = [heads, ["---", *("---:" for _ in threads)]]
    lines += [[row, *(cells.get(n, "–") for n in threads)] for row, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(ratios: list[Sequence[float]]) -> str:
    """Median and worst of many sizes; median and quartiles of one."""
    if len(ratios) == 1:
        return _quartiles(ratios[0])
    middles = [middle for _, middle, _ in ratios]
    return f"{median(middles):.2f}, worst {min(middles):.2f}"


def _quartiles(ratio: Sequence[float]) -> str:
    low, middle, high = ratio
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def _measured(results: list[Result]) -> str:
    """Date and versions, a sentence for all that were measured alike."""
    benchmarks: dict[str, dict[str, None]] = {}
    for result in results:
        facts = result["environment"]
        versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        when = f"measured on {facts['date']} with {versions}"
        benchmarks.setdefault(when, {})[result["benchmark"]] = None
    return "\n".join(f"{', '.join(names)}: {when}." for when, names in benchmarks.items())


def _processor(result: Result) -> str:
    """Its name without what all names have."""
    name = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", "", result["environment"]["processor"])
    return " ".join(name.split())
