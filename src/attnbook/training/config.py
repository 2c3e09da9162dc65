"""What decides the numbers of a training: the configuration, its schedule, its optimizer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import torch
from torch import nn

from attnbook.config import check_choice

Schedule = Literal["constant", "cosine", "inverse_sqrt"]


@dataclass(frozen=True)
class TrainingConfig:
    r"""All that decides the numbers of a training, apart from the model and its data.

    The learning rate grows linearly, and then is constant, falls along half a cosine to a tenth, or
    with the inverse square root of the step:

    .. math::
        \eta_t = \eta \frac{t}{w}, \quad\text{then}\quad \eta, \qquad
        \eta \Big(0.1 + 0.9 \cdot \tfrac12 \big(1 + \cos \pi \tfrac{t - w}{n - w}\big)\Big),
        \qquad \eta \sqrt{\tfrac{w}{t}}

    The last with :math:`\eta = 1/\sqrt{d_\text{model}\, w}` is the Transformer paper's ("Noam").

    Args:
        steps: :math:`n`, the number of updates.
        learning_rate: :math:`\eta`.
        seed: of the batches and of dropout, see :func:`attnbook.training.loop.train`.
        warmup: :math:`w`, steps over which the rate grows from 0.
        schedule: ``"constant"``, ``"cosine"`` or ``"inverse_sqrt"``.
        shards: batches a step, whose gradients are accumulated.
        clip: largest norm of the gradient; not clipped if None.
        weight_decay: AdamW's, on what :func:`decayed` lists. Without it, AdamW is Adam.
        betas: Adam's.
        eps: Adam's.
        bfloat16: compute the loss under autocast; parameters and moments keep their type. Keep
            them in float32: a model in bfloat16 rounds small updates away, and in float16 Adam's ε
            is 0.

    Raises:
        ValueError: if a number is out of its range, the schedule is unknown, or it is the inverse
            square root without a warm-up.

    Source: Vaswani et al. 2017, section 5.3, for Adam's β and ε and the square root; Loshchilov
    and Hutter 2017 for the cosine and 2019 for AdamW; Hoffmann et al. 2022, figure A1, for the
    tenth.

    Example:
        >>> config = TrainingConfig(steps=100, learning_rate=1e-3, warmup=10, schedule="cosine")
        >>> [round(config.rate(step), 5) for step in (1, 10, 55, 100)]
        [0.0001, 0.001, 0.00055, 0.0001]
    """

    steps: int
    learning_rate: float
    seed: int = 0
    warmup: int = 0
    schedule: Schedule = "constant"
    shards: int = 1
    clip: float | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    bfloat16: bool = False

    def __post_init__(self) -> None:
        """Refuse what would train nothing, or something else."""
        check_choice("schedule", self.schedule, Schedule)
        for name in ("steps", "shards", "warmup", "seed"):
            if not isinstance(getattr(self, name), Integral):
                raise ValueError(f"{name} must be an integer, got {getattr(self, name)!r}")
        for name in ("learning_rate", "weight_decay", "eps", "clip"):
            value = getattr(self, name)
            if not isinstance(value, Real) and (name, value) != ("clip", None):
                raise ValueError(f"{name} must be a number, got {value!r}")
        if not isinstance(self.bfloat16, bool):
            raise ValueError(f"bfloat16 must be True or False, got {self.bfloat16!r}")
        for name in ("steps", "shards", "learning_rate", "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("warmup", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be at least 0 and below 2**64, got {self.seed}")
        if self.schedule == "inverse_sqrt" and self.warmup < 1:
            raise ValueError("the schedule 'inverse_sqrt' needs a warm-up: its rate is not finite")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, or None for no limit, got {self.clip}")
        is_pair = isinstance(self.betas, Sequence) and len(self.betas) == 2
        if not (is_pair and all(isinstance(b, Real) and 0 <= b < 1 for b in self.betas)):
            raise ValueError(f"betas must be two, at least 0 and below 1, got {self.betas}")

    def rate(self, step: int) -> float:
        """The learning rate of a step; the first is 1.

        Raises:
            ValueError: if there is no such step.
        """
        if not 1 <= step <= self.steps:
            raise ValueError(f"there are steps 1 to {self.steps}, got {step}")
        if self.schedule == "cosine" and step > self.warmup:
            progress = (step - self.warmup) / (self.steps - self.warmup)
            return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
        if self.schedule == "inverse_sqrt" and step > self.warmup:
            return self.learning_rate * math.sqrt(self.warmup / step)
        return self.learning_rate * min(1.0, step / self.warmup if self.warmup else 1.0)

    def optimizer(self, model: nn.Module) -> torch.optim.AdamW:
        """AdamW on all parameters that are trained."""
        matrices = decayed(model)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups = [
            {
                "params": [(name, p) for name, p in trained.items() if name in matrices],
                "weight_decay": self.weight_decay,
            },
            {
                "params": [(name, p) for name, p in trained.items() if name not in matrices],
                "weight_decay": 0.0,
            },
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.eps,
            fused=True,
        )


def decayed(model: nn.Module) -> list[str]:
    """The parameters that weight decay pulls to zero: those with two dimensions or more.

    Matrices of linear layers and tables of embeddings and positions; no bias, no norm.

    Source: Radford et al. 2018, section 4.1; as in nanoGPT, ``configure_optimizers``.

    Example:
        >>> decayed(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
        ['0.weight']
    """
    return [name for name, p in model.named_parameters() if p.requires_grad and p.dim() >= 2]
