import sys, time

t0 = time.time()
from tests.doctor.planted import *
from tests.doctor.scores import judge

fams = sys.argv[1].split(",")
mode = sys.argv[2] if len(sys.argv) > 2 else "c"
styles_ = sys.argv[3].split(",") if len(sys.argv) > 3 else None
n = f = k = 0
for c in REGISTRY:
    if c.family not in fams or (styles_ and c.style not in styles_):
        continue
    n += 1
    b = judge(c, planted=True, seed=0, claimed=mode == "c")
    t = judge(c, planted=False, seed=0, claimed=mode == "c")
    named = bool(set(b.causes[:1]) & set(c.causes))
    f += not b.healthy
    k += named
    if not named or len(b.errors) != 1 or not t.healthy:
        print(
            f"{c.name}: {b.causes} for {c.causes}",
            "" if b.errors else f"warn {[w.cause for w in b.warnings]}",
            f"TWIN {t.causes}" if not t.healthy else "",
        )
    for r, w in ((b, "bug"), (t, "twin")):
        for x in r.not_judged:
            if "check raised" in x.why or x.check == "everything":
                print("   ", w, c.name, x)
print(n, "found", f, "named", k, f"{time.time() - t0:.1f}s")
