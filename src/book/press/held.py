"""Claims under other seeds: chapters run again, and how often each claim held is noted."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from book.evidence.files import as_json, write_whole
from book.evidence.records import FOLDER, GPU, make_records
from book.press import contents
from book.press.contents import BuildError
from book.press.execute import execute_all, label_of

# How often each claim held when it was last tried under other seeds; committed.
HELD = Path("chapters/held.json")

Held = dict[str, dict[str, Any]]
"""Of a chapter: hash of a claim's cells -> seeds, which files were made anew, and what came."""


def repeat_claims(n_seeds: int, only: Sequence[str] = (), *, live: bool = False) -> None:
    """Run chapters under other seeds, and count for the ledger how often each claim held.

    What an earlier call has counted for a claim stands until the cells change that it hangs on.

    Args:
        n_seeds: ``ATTNBOOK_SEED`` is 1, 2 … up to this.
        only: the chapters; all, if none is named.
        live: read the studies as recorded, where otherwise they are run under each seed, too. That
            takes minutes instead of hours, and tries no claim that hangs on a study.

    Raises:
        BuildError: if a claim ever failed or was not reached, or another cell raised.
    """
    if n_seeds < 1:
        raise BuildError(f"SEEDS must be at least 1, got {n_seeds}")
    chosen = contents.choose(only)
    claims = {path: contents.claims_of(contents.read(path)) for path in chosen}
    tried = {path: claims_to_try(claims[path], live) for path in chosen}
    noted = {path: tried_before(path) for path in chosen}
    jobs: list[tuple[Path, int | None]] = [
        (path, seed)
        for seed in range(1, n_seeds + 1)
        for path in chosen
        if not claims[path]  # it was never executed
        or any(seed not in seeds_of(noted[path], claim) for claim in tried[path].values())
    ]
    if live:
        contents.check_records(chosen)
    else:
        make_records_of(jobs)
    errors = []
    for path, seed, notebook, _ in execute_all(jobs, live=live, allow_errors=True):
        assert seed is not None
        came = {each["label"]: each for each in contents.claims_of(notebook)}
        tried[path] |= claims_to_try(came.values(), live)
        count_seed(noted[path], seed, tried[path], came)
        write_whole(HELD, as_json(contents.noted_in(HELD) | {path.stem: noted[path]}))
        errors += [
            f"{label_of(path, seed)}: {output.ename}: {output.evalue}"
            for cell in contents.code_cells(notebook)
            for output in cell.outputs
            if output.output_type == "error"
        ]
    n_failed = print_counts(tried, noted)
    if errors or n_failed:
        raise BuildError("\n".join(errors) or f"{n_failed} claims did not hold for every seed")


def make_records_of(jobs: Sequence[tuple[Path, int | None]]) -> None:
    """Run the studies that chapters read under other seeds, under the same."""
    for shift in sorted({seed for _, seed in jobs if seed}):
        os.environ["ATTNBOOK_SEED"] = str(shift)
        print(f"Studies, ATTNBOOK_SEED={shift}", flush=True)
        read_by = (contents.studies_in(path) for path, seed in jobs if seed == shift)
        make_records([], sorted({name for names in read_by for name in names}))
        del os.environ["ATTNBOOK_SEED"]


def count_seed(
    noted: Held,
    seed: int,
    tried: Mapping[str, Mapping[str, Any]],
    came: Mapping[str, Mapping[str, Any]],
) -> None:
    """Note what a run under a seed made of each claim; one that it did not reach has not held."""
    new = set()
    for label, claim in tried.items():
        empty: dict[str, Any] = {"seeds": [], "made_anew": claim["files"], "held": {}, "leads": {}}
        entry = noted.setdefault(claim["cell"], empty)
        if seed not in entry["seeds"]:
            entry["seeds"] = sorted([*entry["seeds"], seed])
            new.add(claim["cell"])
        if claim["cell"] in new:
            held = label in came and came[label]["held"]
            entry["held"][label] = entry["held"].get(label, 0) + held
            if label in came and came[label]["lead"] is not None:
                entry["leads"].setdefault(label, []).append(came[label]["lead"])


def print_counts(
    tried: Mapping[Path, Mapping[str, Any]], noted: Mapping[Path, Mapping[str, Any]]
) -> int:
    """Say of each claim how often it held; return how many did not under every seed."""
    print()
    n_failed = 0
    for path, claims in tried.items():
        for label, each in claims.items():
            entry = noted[path].get(each["cell"], {"seeds": [], "held": {}})
            count, of = entry["held"].get(label, 0), len(entry["seeds"])
            n_failed += count < of
            mark = "✓" if count == of else "✗"
            print(f"{mark} {count}/{of}  {path.stem}  {label}: {each['statement']}")
    n_claims = sum(map(len, tried.values()))
    print(f"\n{n_claims - n_failed} of {n_claims} claims held for every seed")
    return n_failed


def claims_to_try(claims: Iterable[dict[str, Any]], live: bool) -> dict[str, dict[str, Any]]:
    """Label -> claim, of those that another seed tries: all behind their numbers is made anew."""

    def is_remade(path: Path) -> bool:  # the record of a study that needs no GPU
        return not live and path.parent == FOLDER and not path.name.startswith(GPU)

    return {
        claim["label"]: claim for claim in claims if all(map(is_remade, map(Path, claim["files"])))
    }


def seeds_of(noted: Held, claim: Mapping[str, Any]) -> list[int]:
    """The seeds under which a claim was tried."""
    entry = noted.get(claim["cell"], {"seeds": [], "held": {}})
    return entry["seeds"] if claim["label"] in entry["held"] else []


def tried_before(path: Path) -> Held:
    """What is noted of a chapter's claims whose cells are today's."""
    today = {claim["cell"] for claim in contents.claims_of(contents.read(path))}
    noted: Held = contents.noted_in(HELD).get(path.stem, {})
    return {cell: entry for cell, entry in noted.items() if cell in today}


def count_of(claim: Mapping[str, Any], tried: Mapping[str, Any] | None) -> str:
    """How often a claim held under other seeds, in words; a dash if that was not tried.

    Raises:
        BuildError: if its numbers reach a committed file that was not made anew under those seeds:
            then one file was read many times.
    """
    if tried is None or claim["label"] not in tried["held"]:
        return "–"
    if read := sorted({*claim["files"]} - {*tried["made_anew"]}):
        raise BuildError(
            f"{HELD} counts seeds for the claim {claim['label']!r}, whose numbers come from "
            f"{', '.join(read)}, which is the same under every seed: take its count out"
        )
    return f"{tried['held'][claim['label']]} of {len(tried['seeds'])}"
