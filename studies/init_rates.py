"""The four offsets from small starts, at other rates and without Adam."""

from studies.init_offsets import MANY, learn, queries, values

SMALL = {name: MANY[name] for name in ("separate", "fused", "QK × ⅙")}
SMALL |= {"QK × 0.01": queries(0.01)}
PLAIN = SMALL | {"all × ⅙": queries(1 / 6) | values(1 / 6)}
CASES = {
    f"Adam {rate}, {name}": (start, rate, True)
    for rate in (0.003, 0.03)
    for name, start in SMALL.items()
} | {
    f"plain {rate}, {name}": (start, rate, False)
    for rate in (0.5, 2.0)
    for name, start in PLAIN.items()
}
SEEDS = dict.fromkeys(CASES, 16)


def run(seed, case, steps=1500):
    start, rate, adam = CASES[case]
    took, losses = learn(start, seed, steps, rate, adam)
    if steps <= 20:
        return {"first losses": losses}
    return {"steps": took, "first losses": losses[:20]}
