"""The table by family: what was planted, found, named; false alarms; with claims and bare.

python -m tests.doctor.scores [--seeds 3] [--misses]
"""

import argparse
import itertools

from attnbook.doctor import Report, diagnose
from tests.doctor.planted import REGISTRY, Planted, bare, instance
from tests.doctor.unusual import UNUSUAL


def judge(case: Planted, *, planted: bool, seed: int, claimed: bool = True) -> Report:
    """The report on one case."""
    module, example = instance(case, planted=planted, seed=seed)
    return diagnose(module, *example, **(case.claims if claimed else bare(case.claims)))


COLUMNS = (
    "planted",
    *(f"{x}, {k}" for k in ("claims", "bare") for x in ("found", "named", "alarms")),
    "warned, bare",
)


def row(cases: list[Planted], seeds: int, *, misses: bool) -> dict[str, int]:
    """The counts of a family. Found: an error on the bug, none on the twin, for every seed."""
    counts = dict.fromkeys(COLUMNS, 0)
    counts["planted"] = len(cases)
    for case, claimed in itertools.product(cases, (True, False)):
        key = "claims" if claimed else "bare"
        bugs = [judge(case, planted=True, seed=s, claimed=claimed) for s in range(seeds)]
        twins = [judge(case, planted=False, seed=s, claimed=claimed) for s in range(seeds)]
        alarm = not all(report.healthy for report in twins)
        found = not alarm and not any(report.healthy for report in bugs)
        named = found and all(report.causes[0] in case.causes for report in bugs)
        counts[f"found, {key}"] += found
        counts[f"named, {key}"] += named
        counts[f"alarms, {key}"] += alarm
        counts["warned, bare"] += not claimed and not found and bool(bugs[0].warnings)
        if misses and claimed and not named:
            causes = [x.causes for x in (*bugs, *twins)]
            print(f"{case.family}: {case.name}: {causes} for {case.causes}")
    return counts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--family", action="append", help="one or more; all if not given")
    given = parser.parse_args()
    families = given.family or list(dict.fromkeys(case.family for case in REGISTRY))
    print("family".ljust(12), *(column.rjust(14) for column in COLUMNS))
    total = dict.fromkeys(COLUMNS, 0)
    for family in families:
        cases = [case for case in REGISTRY if case.family == family]
        counts = row(cases, given.seeds, misses=given.misses)
        print(family.ljust(12), *(str(counts[c]).rjust(14) for c in COLUMNS), flush=True)
        total = {c: total[c] + counts[c] for c in COLUMNS}
    print("all".ljust(12), *(str(total[c]).rjust(14) for c in COLUMNS))
    kinds = {(case.family, case.kind) for case in REGISTRY if case.family in families}
    print(f"{len(kinds)} kinds, {total['planted']} variants")
    if not given.family:
        reports = {(d.name, c): d.report(claimed=c) for d in UNUSUAL for c in (True, False)}
        alarms = [name for name, report in reports.items() if not report.healthy]
        warned = [name for name, report in reports.items() if report.warnings]
        print(f"{len(UNUSUAL)} right designs, with claims and bare:")
        print(f"alarms {alarms}")
        print(f"warned {warned}")


if __name__ == "__main__":
    main()
