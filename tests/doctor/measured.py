"""What chapter 12 says of the doctor, measured: ``python -m tests.doctor.measured``, a while.

It writes ``chapters/doctor.json``: the score on planted bugs that the doctor was developed on, and
on those that it had not seen, three seeds each; and what it finds in right models of other
libraries.
"""

import json
import os
import sys
import warnings
from importlib.metadata import version
from multiprocessing import Pool
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # before it is imported

import torch
from tqdm import tqdm

from attnbook.doctor import Report, diagnose
from tests.doctor import held_out, held_out_attention, held_out_models, unseen

WRITTEN = Path(__file__).parents[2] / "chapters" / "doctor.json"
SEEDS = 3
PACKAGES = ("torch", "transformers", "keras", "x-transformers")
Counts = dict[str, list[int]]
Case = held_out.HeldOut | unseen.Unseen
DEVELOPED: list[Case] = [*held_out.CASES, *held_out_attention.CASES, *held_out_models.CASES]
UNSEEN = unseen.CASES
CASES: list[Case] = [*DEVELOPED, *UNSEEN]


def judge(job: tuple[int, int, bool]) -> tuple[bool, bool, bool]:
    """Found: an error that the twin does not have; named as the bug; an alarm on the twin."""
    number, seed, claimed = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = CASES[number]
    bug, twin = (report(case, seed, broken, claimed) for broken in (True, False))
    own = set(bug.causes) - set(twin.causes)
    return bool(own), bool(own & set(case.causes)), not twin.healthy


def report(case: Case, seed: int, broken: bool, claimed: bool) -> Report:
    """With the claims of the case, or with no more than the call needs."""
    module, example, claims = case.make(seed, broken)
    if not claimed:
        claims = {name: value for name, value in claims.items() if name == "keywords"}
    return diagnose(module, *example, **claims)


def scores() -> dict[str, Any]:
    """Pairs, found and named, by family; false alarms of how many reports on twins.

    Of bugs that the doctor was developed on, with claims; of the unseen with claims, and bare those
    that are sure without a word of the author.
    """
    jobs = [(n, s, how) for n in range(len(CASES)) for s in range(SEEDS) for how in (True, False)]
    counts: dict[str, Counts] = {"developed": {}, "claims": {}, "bare": {}}
    alarms = {"developed": [0, 0], "unseen": [0, 0]}
    with Pool(2) as pool:
        judged = zip(jobs, pool.imap(judge, jobs), strict=True)
        for (number, _, claimed), (found, named, alarm) in tqdm(judged, total=len(jobs)):
            case, new = CASES[number], number >= len(DEVELOPED)
            alarms["unseen" if new else "developed"][0] += alarm
            alarms["unseen" if new else "developed"][1] += 1
            if claimed or (new and case.bare):
                how = ("claims" if claimed else "bare") if new else "developed"
                for key in (case.family, "all"):
                    row = counts[how].setdefault(key, [0, 0, 0])
                    for i, one in enumerate((True, found, named)):
                        row[i] += one
    for rows in counts.values():
        rows["all"] = rows.pop("all")  # last
    variants = {"developed": len(DEVELOPED), "unseen": len(UNSEEN)}
    return {"variants": variants, "alarms": alarms, **counts}


def libraries() -> dict[str, dict[str, int]]:
    """Errors and warnings, with claims, for each right design."""
    from tests.doctor import elsewhere
    from tests.doctor.libraries import LIBRARIES

    designs = {**LIBRARIES, "x-transformers": elsewhere.x_transformers()}
    designs["keras"] = elsewhere.of_keras()
    found = {}
    for library, made in designs.items():
        for design in made:
            if library != "attnbook" and design.name not in elsewhere.KNOWN:
                said = design.report(claimed=True)
                found[f"{library}: {design.name}"] = {
                    "errors": len(said.errors),
                    "warnings": len(said.warnings),
                }
                print(library, design.name, *said.causes, flush=True)
    return found


def leak() -> dict[str, float]:
    """x-transformers' projection of values: how far earlier logits move with a later token."""
    from x_transformers import Decoder, TransformerWrapper

    def moved(**flags: bool) -> float:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        layers = Decoder(dim=32, depth=1, heads=4, attn_dim_head=8, **flags)
        model = TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers)
        model = model.double().eval()
        ids = torch.randint(50, (2, 9))
        later = torch.cat([ids[:, :6], (ids[:, 6:] + 1) % 50], 1)
        with torch.no_grad():
            return (model(ids)[:, :6] - model(later)[:, :6]).abs().max().item()

    return {"future": moved(attn_orthog_projected_values=True), "future without it": moved()}


def main() -> None:
    """Measure and write, whole or not at all."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parts = {"scores": scores, "libraries": libraries, "x-transformers": leak}
    result: dict[str, Any] = {"versions": {name: version(name) for name in PACKAGES}}
    if WRITTEN.exists():
        result |= json.loads(WRITTEN.read_text("utf-8"))
    for name in sys.argv[1:] or parts:
        result[name] = parts[name]()
    text = json.dumps(result, indent=1)
    WRITTEN.with_suffix(".new").write_text(text + "\n", "utf-8")
    WRITTEN.with_suffix(".new").replace(WRITTEN)


if __name__ == "__main__":
    main()
