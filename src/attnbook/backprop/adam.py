"""Adam, with the arithmetic of ``torch.optim.Adam``."""

import math
from collections.abc import Iterable

import numpy as np

from attnbook.backprop.module import Parameter


class Adam:
    r"""Gradient steps divided by the recent size of each entry's gradient.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1)\, g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2, \quad
        w \leftarrow w - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Args:
        parameters: what it changes.
        lr: the rate η.
        betas: decay of both averages.
        eps: ε.

    Raises:
        ValueError: if there are no parameters, ``lr`` or ``eps`` is negative, or a beta is not in
            [0, 1).

    Source: Kingma & Ba 2015, algorithm 1.

    Example:
        >>> weight = Parameter(np.zeros(2))
        >>> weight.grad += np.array([3.0, -0.1])
        >>> Adam([weight], lr=0.01).step()
        >>> weight.value.round(6)                   # far above eps, the first step is ±lr
        array([-0.01,  0.01])
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("there are no parameters to change: the iterable is empty")
        if not (lr >= 0 and eps >= 0):
            raise ValueError(f"lr and eps must not be negative, got {lr} and {eps}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        self.lr, self.betas, self.eps = lr, betas, eps
        self.steps = 0
        self.averages = [(np.zeros_like(p.value), np.zeros_like(p.value)) for p in self.parameters]

    def step(self) -> None:
        """Change every parameter by its gradient; the gradients stay."""
        self.steps += 1
        beta_1, beta_2 = self.betas
        rate = self.lr / (1.0 - beta_1**self.steps)
        correction = math.sqrt(1.0 - beta_2**self.steps)
        for parameter, (mean, square) in zip(self.parameters, self.averages, strict=True):
            mean += (1.0 - beta_1) * (parameter.grad - mean)
            square *= beta_2
            square += (1.0 - beta_2) * parameter.grad**2
            parameter.value -= rate * mean / (np.sqrt(square) / correction + self.eps)
