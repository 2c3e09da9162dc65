"""The record of what the doctor finds: ``python -m benchmarks.doctor.measured``, minutes.

It writes ``chapters/doctor.json``, which chapter 12 reads: the verdict on each specimen at one
seed, the scores that follow, what it finds in correct models of other libraries, and the code that
this is true of. ``git diff`` then shows what a change of the doctor found and lost; ``… measured
verdicts`` makes a part alone.
"""

import ast
import json
import os
import sys
import warnings
from functools import cache
from importlib.metadata import version
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # before it is imported

import torch

from attnbook.doctor import Report
from attnbook.files import write_whole
from benchmarks.doctor.specimens.museum import FILES, FOLDER, examine, right, specimens, verdict
from book.evidence.code import Code, code_hash

ROOT = Path(__file__).parents[2]
WRITTEN = ROOT / "chapters" / "doctor.json"
PACKAGES = ("torch", "transformers", "keras", "x-transformers")


@cache
def twin(file: str, setting: str, claimed: bool) -> Report:
    """The report on what stands in the file."""
    return examine(right(file, setting), claimed=claimed)


def judged(file: str, setting: str, each: int = 1) -> dict[str, str]:
    """Name of a bug → named, found or missed, with claims; ", bare" if one can be sure without.

    Of every bug, or of the first and every ``each``-th after it.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    bugs = [bug for bug in specimens(file) if bug.setting == setting][::each]
    return {
        bug.name + ", bare" * (not claimed): verdict(
            examine(bug.make(), claimed=claimed), twin(file, setting, claimed), bug.causes
        )
        for bug in bugs
        for claimed in ((True, False) if bug.bare else (True,))
    }


def alarms(file: str, setting: str) -> dict[str, list[str]]:
    """The errors on what stands there, with claims and bare."""
    reports = {name: twin(file, setting, name == "claims") for name in ("claims", "bare")}
    return {f"{file}: {setting}, {name}": [*said.causes] for name, said in reports.items()}


def verdicts() -> dict[str, Any]:
    """On all bugs, and on their twins."""
    with Pool(2) as pool:
        found = pool.starmap(_both, with_bugs())
    bugs, twins = (
        {k: v for each in part for k, v in each.items()} for part in zip(*found, strict=True)
    )
    return {"bugs": dict(sorted(bugs.items())), "twins": dict(sorted(twins.items()))}


def _both(file: str, setting: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    return judged(file, setting), alarms(file, setting)


def scores(found: dict[str, Any]) -> dict[str, Any]:
    """Of the verdicts: bugs, found and named, by family; twins with an error.

    Of bugs that the doctor was developed on, with claims; of the unseen with claims, and bare those
    that one can be sure of without.
    """
    counts: dict[str, dict[str, list[int]]] = {"developed": {}, "claims": {}, "bare": {}}
    for bug in (bug for file in FILES for bug in specimens(file)):
        rows = {"claims" if bug.unseen else "developed": bug.name}
        if bug.unseen and bug.bare:
            rows["bare"] = f"{bug.name}, bare"
        for (how, name), family in product(rows.items(), (bug.family, "all")):
            row = counts[how].setdefault(family, [0, 0, 0])
            said = found["bugs"][name]
            for i, true in enumerate((True, said != "missed", said == "named")):
                row[i] += true
    families = {
        how: dict(sorted(rows.items(), key=lambda row: (row[0] == "all", row[0])))
        for how, rows in counts.items()
    }
    twins = [*found["twins"].values()]
    return {"twins": [sum(map(bool, twins)), len(twins)], **families}


def libraries() -> dict[str, dict[str, int]]:
    """Errors and warnings, with claims, for each right design."""
    from benchmarks.doctor import elsewhere
    from benchmarks.doctor.libraries import LIBRARIES, report

    found = {}
    for library, designs in {**LIBRARIES, **elsewhere.OTHERS}.items():
        for name, make in designs.items():
            if library != "attnbook" and name not in elsewhere.KNOWN:
                said = report(make, claimed=True)
                counts = {"errors": len(said.errors), "warnings": len(said.warnings)}
                found[f"{library}: {name}"] = counts
                print(library, name, *said.causes, flush=True)
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


def with_bugs() -> list[tuple[str, str]]:
    """(file, setting), of those that have bugs."""
    return sorted({(file, bug.setting) for file in FILES for bug in specimens(file)})


def code() -> dict[str, str]:
    """Hashes of the doctor and of the museum: what the record is true of."""
    museum = {f"specimens.{file}": hash_of(FOLDER / f"{file}.py") for file in (*FILES, "museum")}
    return Code(ROOT).hashes("import attnbook.doctor") | museum


def hash_of(path: Path) -> str:
    """Of what a file does, whatever the modules are called that it imports from."""
    tree = ast.parse(path.read_text("utf-8"))
    tree.body = [each for each in tree.body if not isinstance(each, ast.Import | ast.ImportFrom)]
    return code_hash(tree)


def main() -> None:
    """Measure and write, whole or not at all."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parts = {"verdicts": verdicts, "libraries": libraries, "x-transformers": leak}
    result = json.loads(WRITTEN.read_text("utf-8")) if WRITTEN.exists() else {}
    result["versions"] = {name: version(name) for name in PACKAGES}
    for name in sys.argv[1:] or parts:
        result[name] = parts[name]()
        result.setdefault("code", {})[name] = code()
    result["scores"] = scores(result["verdicts"])
    text = json.dumps(result, indent=1)
    write_whole(WRITTEN, f"{text}\n".encode())


if __name__ == "__main__":
    main()
