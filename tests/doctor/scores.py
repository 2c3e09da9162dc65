"""The table by family: what was planted, found, named; false alarms; with claims and bare.

python -m tests.doctor.scores [--seeds 3] [--misses]
"""

import argparse
from collections import defaultdict

from attnbook.doctor import Report, diagnose
from tests.doctor.planted import REGISTRY, Planted, bare, instance
from tests.doctor.unusual import UNUSUAL


def judge(case: Planted, *, planted: bool, seed: int, claimed: bool = True) -> Report:
    """The report on one case."""
    module, example = instance(case, planted=planted, seed=seed)
    return diagnose(module, *example, **(case.claims if claimed else bare(case.claims)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--family")
    given = parser.parse_args()
    rows: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    seconds = 0.0
    for case in REGISTRY:
        if given.family and case.family != given.family:
            continue
        row = rows[case.family]
        row["planted"] += 1
        for claimed in (True, False):
            key = "claims" if claimed else "bare"
            found, named, alarm = True, True, False
            for seed in range(given.seeds):
                bug = judge(case, planted=True, seed=seed, claimed=claimed)
                twin = judge(case, planted=False, seed=seed, claimed=claimed)
                seconds += bug.seconds + twin.seconds
                found = found and not bug.healthy and twin.healthy
                named = named and bool(set(bug.causes[:1]) & set(case.causes))
                alarm = alarm or not twin.healthy
                if (
                    given.misses
                    and claimed
                    and (not twin.healthy or not named or len(bug.errors) != 1)
                ):
                    twins = f"; twin {twin.causes}" * (not twin.healthy)
                    print(f"{case.family}: {case.name}: {bug.causes} for {case.causes}{twins}")
            row[f"found, {key}"] += found
            row[f"named, {key}"] += named and found
            row[f"alarms, {key}"] += alarm
            row["warned, bare"] += not claimed and not found and bool(bug.warnings)
    columns = [
        "planted",
        *(f"{x}, {k}" for k in ("claims", "bare") for x in ("found", "named", "alarms")),
        "warned, bare",
    ]
    print("family".ljust(14), *(c.rjust(15) for c in columns))
    for family, row in rows.items():
        print(family.ljust(14), *(str(row[c]).rjust(15) for c in columns))
    totals = {c: sum(row[c] for row in rows.values()) for c in columns}
    print("all".ljust(14), *(str(totals[c]).rjust(15) for c in columns))
    kinds = {(case.family, case.kind) for case in REGISTRY}
    print(f"{len(kinds)} kinds, {len(REGISTRY)} variants; {seconds:.0f} s")
    if not given.family:
        reports = {(d.name, c): d.report(claimed=c) for d in UNUSUAL for c in (True, False)}
        alarms = [name for name, report in reports.items() if not report.healthy]
        warned = [name for name, report in reports.items() if report.warnings]
        print(
            f"{len(UNUSUAL)} right designs, with claims and bare: alarms {alarms}, warned {warned}"
        )


if __name__ == "__main__":
    main()
