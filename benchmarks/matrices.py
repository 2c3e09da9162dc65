"""What W_Q, W_K and W_V cost as three matrices, and as one: their products alone."""

from typing import Any

import torch
from torch import Tensor

from benchmarks import command, report
from benchmarks.attention import D_MODELS, MODES, TOKENS_IN_BATCH
from benchmarks.timing import environment, quartiles, race, speed_ratio

THREE, ONE = "three matrices", "one matrix"


class Projections:
    """The products of the three projections, without autograd or biases."""

    def __init__(self, d_model: int) -> None:
        n_tokens = TOKENS_IN_BATCH["cpu"]
        self.x = torch.randn(n_tokens, d_model)
        self.weights = [torch.randn(d_model, d_model) for _ in range(3)]
        self.packed = torch.cat(self.weights)
        self.gradients = [torch.randn(n_tokens, d_model) for _ in range(3)]

    def three(self) -> list[Tensor]:
        """Q, K and V."""
        return [self.x @ weight.T for weight in self.weights]

    def one(self) -> Tensor:
        """The same, side by side."""
        return self.x @ self.packed.T

    def three_both_ways(self) -> tuple[Tensor, list[Tensor]]:
        """Forward; then the gradients with respect to the input and to the three matrices."""
        self.three()
        first, *others = zip(self.gradients, self.weights, strict=True)
        to_input = first[0] @ first[1]
        for gradient, weight in others:
            to_input += gradient @ weight
        return to_input, [gradient.T @ self.x for gradient in self.gradients]

    def one_both_ways(self) -> tuple[Tensor, Tensor]:
        """The same; the gradients of Q, K and V have to be put side by side first."""
        self.one()
        gradient = torch.cat(self.gradients, dim=1)
        return gradient @ self.packed, gradient.T @ self.x


def measure(*, seconds: float = 3.0, rounds: tuple[int, int] = (21, 201)) -> dict[str, Any]:
    """Milliseconds of both, and the speed of three matrices divided by that of one."""
    torch.manual_seed(0)
    before = environment()
    rows = []
    for d_model in D_MODELS:
        made = Projections(d_model)
        calls = {
            MODES[0]: {THREE: made.three, ONE: made.one},
            MODES[1]: {THREE: made.three_both_ways, ONE: made.one_both_ways},
        }
        for mode, pair in calls.items():
            times = race(pair, seconds=seconds, rounds=rounds)
            milliseconds = {name: quartiles(1e3 * t) for name, t in times.items()}
            speed = speed_ratio(times, THREE, ONE)
            rows.append(
                {"d_model": d_model, "mode": mode, "milliseconds": milliseconds, "speed": speed}
            )
    return {"benchmark": "matrices", "environment": before, "rows": rows}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write the file."""
    command.run("matrices", measure, report.matrices_text, arguments)


if __name__ == "__main__":
    main()
