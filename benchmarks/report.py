"""Tables: as text for the terminal, as Markdown for README.md."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Result = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "results"
README = HERE / "README.md"
BEGIN = "<!-- begin of the tables: make bench writes them -->"
END = "<!-- end of the tables -->"
OURS = "attnbook"
LAYOUTS = ("three matrices", "packed")
LIMIT_GOAL, TRAINING_GOAL, PROBES_GOAL = 0.80, 1.0, 1.3
DRAW = 0.995
"""From here on up to its inverse, a ratio shows as 1.00."""


def save(result: Result, path: Path) -> None:
    """Write a result as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def folder(result: Result) -> Path:
    """Each machine has its own: what is fast on one need not be on another."""
    return RESULTS / "-".join(re.findall("[a-z0-9]+", _processor(result).lower()))


def load(folder: Path) -> list[Result]:
    """All results in a folder and those within, in the order of their names."""
    paths = sorted(folder.rglob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def attention_text(result: Result) -> str:
    """The tables of one run of ``benchmarks.attention``, for the terminal."""
    parts = [f"Attention, {_setting(result)}"]
    for mode in _modes(result):
        parts += [f"{mode}: our speed / theirs", _aligned(*_speed_table(result, mode))]
    parts += ["Over all sizes", _aligned(*_summary_table([result]))]
    parts += ["Sizes in which the fastest peer is faster", _aligned(*_losses_table([result]))]
    parts += ["Peak memory, forward and backward, MiB", _aligned(*_memory_table(result))]
    return "\n\n".join(parts) + "\n"


def training_text(result: Result) -> str:
    """The table of one run of ``benchmarks.training``, for the terminal."""
    heading = f"Training step, {_setting(result)}: our speed / theirs"
    return f"{heading}\n\n{_aligned(*_training_table([result]))}\n"


def backprop_text(result: Result) -> str:
    """The table of a run of ``benchmarks.backprop``, for the terminal."""
    return f"Hand-derived gradients, {_setting(result)}\n\n{_aligned(*_backprop_table([result]))}\n"


def probes_text(result: Result) -> str:
    """The table of a run of ``benchmarks.probes``, for the terminal."""
    return f"Cost of the probes, {_setting(result)}\n\n{_aligned(*_probes_table([result]))}\n"


def threads_text(result: Result) -> str:
    """The table of a run of ``benchmarks.threads``, for the terminal."""
    heading = f"Time of the fused kernel / as started, {_setting(result)}"
    return f"{heading}\n\n{_aligned(*_threads_table([result]))}\n"


def markdown(results: list[Result]) -> str:
    """What stands between the markers in README.md."""
    attention = [r for r in results if r["benchmark"] == "attention"]
    training = [r for r in results if r["benchmark"] == "training"]
    parts = [_machines(results)]
    if attention:
        parts += [
            "### Attention: median of the sizes, and the worst",
            _markdown(*_summary_table(attention)),
            "### Attention: sizes in which the fastest peer is faster than ours",
            _markdown(*_losses_table(attention)),
        ]
    if training:
        parts += ["### Training step", _markdown(*_training_table(training))]
    threads = [r for r in results if r["benchmark"] == "threads"]
    if threads:
        parts += ["### Time of the fused kernel / its time as started"]
        parts += [_markdown(*_threads_table(threads))]
    backprop = [r for r in results if r["benchmark"] == "backprop"]
    if backprop:
        parts += ["### Hand-derived gradients", _markdown(*_backprop_table(backprop))]
    probes = [r for r in results if r["benchmark"] == "probes"]
    if probes:
        parts += ["### Cost of the probes", _markdown(*_probes_table(probes))]
    if attention:
        for result in _one_per_device(attention):
            parts += [f"### Peak memory of forward and backward, MiB ({_setting(result)})"]
            parts += [_markdown(*_memory_table(result))]
        parts += ["### Attention, size by size"]
    for result in attention:
        for mode in _modes(result):
            table = _markdown(*_speed_table(result, mode))
            parts.append(_folded(f"{mode}, {_setting(result)}", table))
    return "\n\n".join(parts)


def rewrite_readme(text: str, path: Path = README) -> None:
    """Put ``text`` between the markers.

    Raises:
        ValueError: if the markers are not there, once each, in this order.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"{path.name} needs these two lines, once each: {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


Row = list[str]


def _speed_table(result: Result, mode: str) -> tuple[Row, list[Row]]:
    rows = [row for row in result["speed"] if row["mode"] == mode]
    peers = list(rows[0]["speed"])
    head = ["width", "tokens", "batch", "ours, ms", *(f"/ {peer}" for peer in peers), "/ fastest"]
    packed = "packed" in rows[0]
    head += ["packed / fastest"] if packed else []
    limited = "limit" in rows[0]
    if limited:
        head += ["unmasked, GFLOP/s", "products, GFLOP/s"]
        head += ["unmasked / products", "torch alone / products"]
        head += ["unmasked / products and softmax"]
        head += ["packed, unmasked / products"] if packed else []
    table = []
    for row in rows:
        cells = [str(row[key]) for key in ("d_model", "tokens", "batch")]
        cells.append(f"{row['milliseconds'][OURS][1]:.3g}")
        cells += [_quartiles(row["speed"][peer]) for peer in peers]
        for layout in _layouts(row):
            fastest = _fastest(layout)
            cells.append(f"{layout['speed'][fastest][1]:.2f} {fastest}")
        if limited:
            limit = row["limit"]
            cells += [f"{limit[key][1]:.1f}" for key in ("ours_gflops", "products_gflops")]
            shares = ("share", "share_of_torch", "share_with_softmax")
            # That of torch is not in results up to the morning of 2026-11-25.
            cells += [_quartiles(limit[key]) if key in limit else "–" for key in shares]
            cells += [_quartiles(row["packed"]["limit"]["share"])] if packed else []
        table.append(cells)
    return head, table


def _summary_table(results: list[Result]) -> tuple[Row, list[Row]]:
    """Median over the sizes, and the worst size, of each ratio."""
    peers = list(results[0]["speed"][0]["speed"])
    head = ["mode", "run", "ours"]
    head += [*(f"/ {peer}" for peer in peers), "/ fastest", "unmasked / products"]
    reached = f"sizes ≥ {LIMIT_GOAL:.2f} of products"
    head += [reached, "torch alone / products", reached, "unmasked / products and softmax"]
    table = []
    for result, mode, layout, rows in _by_layout(results):
        cells = [mode, _setting(result), layout]
        cells += [_middle_and_worst([row["speed"][peer][1] for row in rows]) for peer in peers]
        limits = [row["limit"] for row in rows if "limit" in row]
        cells.append(_middle_and_worst([row["speed"][_fastest(row)][1] for row in rows]))
        for key in ("share", "share_of_torch"):
            shares = [limit[key][1] for limit in limits if key in limit]
            at_goal = sum(share >= LIMIT_GOAL for share in shares)
            cells += (
                [_middle_and_worst(shares), f"{at_goal} of {len(shares)}"] if shares else ["–", "–"]
            )
        with_softmax = [limit["share_with_softmax"][1] for limit in limits]
        cells.append(_middle_and_worst(with_softmax) if limits else "–")
        table.append(cells)
    return head, table


def _losses_table(results: list[Result]) -> tuple[Row, list[Row]]:
    """For each width, how many sizes are below ``DRAW``, and the median of all."""
    widths = list(dict.fromkeys(row["d_model"] for row in results[0]["speed"]))
    head = ["mode", "run", "ours", *(f"width {width}" for width in widths), "all"]
    table = []
    for result, mode, layout, rows in _by_layout(results):
        ratios: dict[int, list[Sequence[float]]] = {width: [] for width in widths}
        for row in rows:
            ratios[row["d_model"]].append(row["speed"][_fastest(row)])
        every = [ratio for some in ratios.values() for ratio in some]
        cells = [_lost(some) for some in (*ratios.values(), every)]
        surely = sum(middle < DRAW and high < 1 for _, middle, high in every)
        table.append([mode, _setting(result), layout, *cells, str(surely)])
    return [*head, "third quartile below 1, too"], table


def _by_layout(results: list[Result]) -> Iterator[tuple[Result, str, str, list[Result]]]:
    """Rows of three matrices, and of one where that was measured, too (from 2026-11-24 on)."""
    for result in results:
        for mode in _modes(result):
            rows = [row for row in result["speed"] if row["mode"] == mode]
            for i in range(len(_layouts(rows[0]))):
                yield result, mode, LAYOUTS[i], [row | _layouts(row)[i] for row in rows]


def _layouts(row: Result) -> list[Result]:
    return [row, row["packed"]] if "packed" in row else [row]


def _fastest(layout: Result) -> str:
    return min(layout["speed"], key=lambda peer: layout["speed"][peer][1])


def _lost(ratios: list[Sequence[float]]) -> str:
    middles = [middle for _, middle, _ in ratios]
    return f"{sum(m < DRAW for m in middles)} of {len(middles)}, {median(middles):.2f}"


def _memory_table(result: Result) -> tuple[Row, list[Row]]:
    rows = result["memory"]
    names = list(rows[0]["peak_bytes"])
    table = [
        [str(row["d_model"]), str(row["tokens"]), str(row["batch"])]
        + [f"{row['peak_bytes'][name] / 2**20:.2f}" for name in names]
        for row in rows
    ]
    return ["width", "tokens", "batch", *names], table


def _training_table(results: list[Result]) -> tuple[Row, list[Row]]:
    head = ["model", "run", "parameters", "tokens/s", "ours / theirs", f"≥ {TRAINING_GOAL:.1f}"]
    head += ["theirs / nanoGPT's", "a step longer by, ms", "a step of one token longer by, ms"]
    table = []
    for result in results:
        for name, (_, rate, _) in result["tokens_per_second"].items():
            ratio = result["speed"].get(name)
            cells = [name, _setting(result), f"{result['parameters'][name]:,}", f"{rate:,.0f}"]
            reached = "yes" if ratio and ratio[1] >= TRAINING_GOAL else "no"
            cells += [_quartiles(ratio, 3), reached] if ratio else ["–", "–"]
            # Not in results up to 2026-11-23, or up to the morning after.
            beside = result.get("beside_nanogpt", {}).get(name)
            longer = result.get("longer_by", {}).get(name)
            cells.append(_quartiles(beside, 3) if beside else "–")
            table.append([*cells, *(map(_quartiles, longer) if longer else ("–", "–"))])
    return head, table


def _backprop_table(results: list[Result]) -> tuple[Row, list[Row]]:
    names = list(results[0]["rows"][0]["milliseconds"])
    peers = list(results[0]["rows"][0]["speed"])
    head = ["run", "width", "step", *(f"{name}, ms" for name in names)]
    head += [f"NumPy's speed / {peer}" for peer in peers]
    table = [
        [_setting(result), str(row["d_model"]), row["mode"]]
        + [f"{row['milliseconds'][name][1]:.3g}" for name in names]
        + [_quartiles(row["speed"][peer]) for peer in peers]
        for result in results
        for row in result["rows"]
    ]
    return head, table


def _probes_table(results: list[Result]) -> tuple[Row, list[Row]]:
    head = ["run", "tokens", "plain, ms", "probed, ms", "probed / plain", f"≤ {PROBES_GOAL:.1f}"]
    table = []
    for result in results:
        for row in result["rows"]:
            cells = [_setting(result), str(row["tokens"])]
            cells += [f"{row['milliseconds'][name][1]:.3g}" for name in ("plain", "probed")]
            reached = "yes" if row["cost"][1] <= PROBES_GOAL else "no"
            table.append([*cells, _quartiles(row["cost"], 3), reached])
    return head, table


def _threads_table(results: list[Result]) -> tuple[Row, list[Row]]:
    """A row for each size, a column for each setting of MKL's threads."""
    started, *others = results[0]["rows"][0]["milliseconds"]
    table = []
    for result in results:
        for row in result["rows"]:
            cells = [row["mode"], _setting(result), str(row["d_model"]), str(row["tokens"])]
            cells.append(f"{row['milliseconds'][started][1]:.3g}")
            table.append([*cells, *(_quartiles(row["time"][name]) for name in others)])
    return ["mode", "run", "width", "tokens", f"{started}, ms", *others], table


def _setting(result: Result) -> str:
    threads = result["environment"]["threads"]
    if result.get("device", "cpu") != "cpu":
        return f"{_processor(result)}, {result['dtype']}"
    return f"{_processor(result)}, {threads} thread" + ("s" if threads > 1 else "")


def _processor(result: Result) -> str:
    """Its name without what all names have."""
    name = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b", "", result["environment"]["processor"])
    return " ".join(name.split())


def _modes(result: Result) -> list[str]:
    return list(dict.fromkeys(row["mode"] for row in result["speed"]))


def _one_per_device(results: list[Result]) -> list[Result]:
    """Memory does not depend on threads or processor, or hardly: the first run."""
    return list({result["device"]: result for result in reversed(results)}.values())


def _machines(results: list[Result]) -> str:
    """Date, machine and versions, one line for all measured alike."""
    measured: dict[str, dict[str, None]] = {}
    for result in results:
        facts = result["environment"]
        versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        machine = [_processor(result), f"{facts['cores']} cores"]
        machine += [facts["capability"]] if "capability" in facts else []
        where = f"{facts['date']}: {', '.join(machine)}; Python {facts['python']}, {versions}"
        measured.setdefault(where, {})[result["benchmark"]] = None
    return "\n".join(f"- {', '.join(names)}: {where}" for where, names in measured.items())


def _quartiles(values: Sequence[float], digits: int = 2) -> str:
    low, middle, high = (f"{value:.{digits}f}" for value in values)
    return f"{middle} ({low}–{high})"


def _middle_and_worst(values: Sequence[float]) -> str:
    return f"{median(values):.2f}, worst {min(values):.2f}"


def _folded(summary: str, text: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def _aligned(head: Row, table: list[Row]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *table, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *table)
    ]
    return "\n".join(lines)


def _markdown(head: Row, table: list[Row]) -> str:
    rule = ["---:"] * len(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *table))
