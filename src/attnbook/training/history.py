"""What a training went through."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """Losses and evaluations of a training.

    Example:
        >>> history = History([2.0, 1.0], [32, 32], {2: 0.9})
        >>> history.first_step_with(0.5), history.step_with_lowest()
        (2, 2)
        >>> losses, evaluations = history.plot()
        >>> evaluations.get_xlabel()
        'steps'
    """

    losses: list[float] = field(default_factory=list)
    """Loss of each step, before the step is taken, in nats per target."""
    targets: list[int] = field(default_factory=list)
    """Number of targets that each loss is the mean of."""
    evaluations: dict[int, float] = field(default_factory=dict)
    """Result of ``evaluate`` after so many steps."""

    def first_step_with(self, at_least: float) -> int | None:
        """After how many steps an evaluation first reached ``at_least``; None if it never did."""
        return next((step for step, v in self.evaluations.items() if v >= at_least), None)

    def step_with_lowest(self) -> int | None:
        """After how many steps an evaluation was first the lowest; None if none is a number."""
        numbers = {step: value for step, value in self.evaluations.items() if value == value}
        return min(numbers, key=lambda step: numbers[step], default=None)

    def plot(self) -> list[Any]:
        """Draw the losses, a running mean of them, and below the evaluations, if there are any.

        Returns:
            matplotlib's Axes, one for each panel.
        """
        import numpy as np
        from matplotlib import pyplot

        n_panels = 1 + bool(self.evaluations)
        panels = list(
            pyplot.subplots(n_panels, sharex=True, squeeze=False, layout="constrained")[1][:, 0]
        )
        losses, width = np.array(self.losses), max(1, len(self.losses) // 50)
        steps = np.arange(1, len(losses) + 1)
        panels[0].plot(steps, losses, alpha=0.3, label="each step")
        mean = np.convolve(losses, np.ones(width) / width, "valid")  # of a step and those before
        panels[0].plot(steps[width - 1 :], mean, color="C0", label=f"mean of {width}")
        panels[0].set_ylabel("loss (nats)")
        panels[0].legend()
        if self.evaluations:
            panels[1].plot(*zip(*self.evaluations.items(), strict=True), "o-", color="C1")
            panels[1].set_ylabel("evaluation")
        panels[-1].set_xlabel("steps")
        return panels
