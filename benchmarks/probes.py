"""What it costs to probe a step of a model: ``attnbook.probes`` beside the plain step."""

from typing import Any

import torch

from attnbook import LanguageModel, ModelConfig
from attnbook.probes import Probe
from benchmarks import command, report
from benchmarks.timing import Call, environment, quartiles, race, speed_ratio

D_MODEL, N_LAYERS, BATCH = 256, 4, 8
LENGTHS = (64, 256)


def measure(*, seconds: float = 30.0, rounds: tuple[int, int] = (21, 201)) -> dict[str, Any]:
    """Milliseconds of both, and how many times as long the probed step takes."""
    return {
        "benchmark": "probes",
        "environment": environment(),
        "d_model": D_MODEL,
        "batch": BATCH,
        "rows": [{"tokens": tokens} | compare(tokens, seconds, rounds) for tokens in LENGTHS],
    }


def compare(tokens: int, seconds: float, rounds: tuple[int, int]) -> dict[str, Any]:
    """One row: the same step of the same model."""
    times = race(calls(tokens), seconds=seconds, rounds=rounds)
    return {
        "rounds": len(times["plain"]),
        "milliseconds": {name: quartiles(1e3 * taken) for name, taken in times.items()},
        "cost": speed_ratio(times, "plain", "probed"),
    }


def calls(tokens: int) -> dict[str, Call]:
    """Forward, loss and backward, with a probe on everything and without one."""
    torch.manual_seed(0)
    model = LanguageModel(
        ModelConfig(
            vocab_size=65, d_model=D_MODEL, n_layers=N_LAYERS, max_tokens=tokens, norm="pre"
        )
    )
    ids, targets = torch.randint(65, (2, BATCH, tokens))

    def plain() -> None:
        model.zero_grad()
        model.loss(ids, targets).backward()

    def probed() -> None:
        with Probe(model):
            plain()

    return {"plain": plain, "probed": probed}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write the file."""
    command.run("probes", measure, report.probes_text, arguments)


if __name__ == "__main__":
    main()
