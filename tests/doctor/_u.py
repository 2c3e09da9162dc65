import sys, time
from tests.doctor.unusual import UNUSUAL

lo, hi = int(sys.argv[1]), int(sys.argv[2])
t = time.time()
n = 0
for d in UNUSUAL[lo:hi]:
    for c in (True, False):
        r = d.report(claimed=c)
        n += 1
        bad = [x for x in r.not_judged if "check raised" in x.why or x.check == "everything"]
        if r.errors or bad or r.warnings:
            print(
                d.name,
                "claims" if c else "bare",
                "ERR" if r.errors else "",
                f"{r.seconds:.1f}s",
                r.causes,
                [(w.cause, w.found) for w in r.warnings],
                [f.found for f in r.errors],
                [str(x)[:200] for x in bad],
            )
print(len(UNUSUAL), n, f"{time.time() - t:.1f}s")
