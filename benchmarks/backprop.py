"""A step of the hand-derived NumPy model beside the same model in torch."""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnbook import LanguageModel, ModelConfig, backprop
from benchmarks import report
from benchmarks.timing import Call, environment, quartiles, race, speed_ratio, threads

NUMPY = "NumPy float64"
D_MODELS = (64, 128)
MODES = ("forward+backward", "with Adam")
BATCH, TOKENS = 12, 64
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def config(d_model: int) -> ModelConfig:
    """Two post-norm layers with ReLU, as in the book's chapters."""
    return ModelConfig(vocab_size=65, d_model=d_model, max_tokens=TOKENS)


def measure(*, seconds: float = 6.0, rounds: tuple[int, int] = (21, 201)) -> dict[str, Any]:
    """Milliseconds of each, and NumPy's speed divided by torch's."""
    before = environment()
    return {
        "benchmark": "backprop",
        "environment": before,
        "batch": BATCH,
        "tokens": TOKENS,
        "rows": [
            {"d_model": d_model, "mode": mode} | compare(d_model, mode, seconds, rounds)
            for d_model in D_MODELS
            for mode in MODES
        ],
    }


def compare(d_model: int, mode: str, seconds: float, rounds: tuple[int, int]) -> dict[str, Any]:
    """One row: all from the same weights, on the same batch."""
    times = race(calls(d_model, adam=mode == "with Adam"), seconds=seconds, rounds=rounds)
    return {
        "rounds": len(times[NUMPY]),
        "milliseconds": {name: quartiles(1e3 * taken) for name, taken in times.items()},
        "speed": {name: speed_ratio(times, NUMPY, name) for name in times if name != NUMPY},
    }


def calls(d_model: int, *, adam: bool) -> dict[str, Call]:
    """A step of each, after checking that all have the same loss and gradients.

    Raises:
        ValueError: names the one that differs.
    """
    ids, targets = np.random.default_rng(0).integers(65, size=(2, BATCH, TOKENS))
    ours = backprop.LanguageModel(config(d_model))
    expected = ours.loss_and_gradients(ids, targets)
    mine = backprop.Adam(ours.parameters())

    def numpy_step() -> None:
        ours.loss_and_gradients(ids, targets)
        if adam:
            mine.step()

    steps: dict[str, Call] = {NUMPY: numpy_step}
    for dtype in (torch.float64, torch.float32):
        name = f"torch {str(dtype).removeprefix('torch.')}"
        torch.set_default_dtype(dtype)  # the sinusoids are made in it
        theirs = LanguageModel(config(d_model))
        torch.set_default_dtype(torch.float32)
        theirs.load_state_dict({k: torch.from_numpy(w) for k, w in ours.state_dict().items()})
        loss = theirs.loss(torch.from_numpy(ids), torch.from_numpy(targets))
        loss.backward()
        pairs = zip(ours.gradients().values(), theirs.parameters(), strict=True)
        apart = [abs(loss.item() - expected)]
        apart += [np.abs(own - p.grad.numpy()).max() for own, p in pairs if p.grad is not None]
        if not max(apart) <= TOLERANCE[dtype]:
            raise ValueError(f"{name} differs from {NUMPY} by {max(apart)}")
        steps[name] = _torch_step(theirs, torch.from_numpy(ids), torch.from_numpy(targets), adam)
    return steps


def _torch_step(model: LanguageModel, ids: torch.Tensor, targets: torch.Tensor, adam: bool) -> Call:
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model.loss(ids, targets).backward()
        if adam:
            optimizer.step()

    return step


def main(arguments: list[str] | None = None) -> None:
    """Measure on one thread, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--to", type=Path, help="folder for the results")
    chosen = parser.parse_args(arguments)
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1" or threads() != 1:
        raise SystemExit("set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1: both on one thread")
    pace: dict[str, Any] = {"seconds": 0.2, "rounds": (3, 5)} if chosen.quick else {}
    result = measure(**pace)
    report.save(result, (chosen.to or report.folder(result)) / "backprop-1.json")
    print(report.backprop_text(result))


if __name__ == "__main__":
    main()
