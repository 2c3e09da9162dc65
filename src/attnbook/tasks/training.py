"""One training loop for every model and task of the book."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Generator, Tensor
from tqdm import tqdm

from attnbook.models import Encoder

Batch = tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]


@dataclass
class Record:
    """What a training run went through."""

    losses: list[float] = field(default_factory=list)
    """Loss of each step, before the step is taken, in nats per token."""
    evaluations: dict[int, float] = field(default_factory=dict)
    """Result of ``evaluate`` after so many steps."""

    def first_step_with(self, at_least: float) -> int | None:
        """After how many steps an evaluation first reached ``at_least``; None if it never did."""
        return next((step for step, v in self.evaluations.items() if v >= at_least), None)


def train(
    model: Encoder,
    next_batch: Callable[[Generator], Batch],
    *,
    steps: int,
    learning_rate: float,
    seed: int,
    warmup: int = 0,
    evaluate: Callable[[Encoder], float] | None = None,
    evaluate_every: int = 50,
    stop_at: float | None = None,
) -> Record:
    r"""Train ``model`` by Adam on the batches that ``next_batch`` makes.

    Adam has :math:`\beta = (0.9, 0.98)`, :math:`\varepsilon = 10^{-9}` (Vaswani et al. 2017,
    section 5.3) and a constant rate after a linear warm-up. A progress bar goes to the standard
    error; the environment variable ``TQDM_DISABLE`` switches it off.

    Args:
        model: trained in place.
        next_batch: makes ``(ids, targets)`` from the generator it is given.
        steps: number of updates.
        learning_rate: Adam's rate.
        seed: of the generator that ``next_batch`` gets; the same seed gives the same batches to
            every model.
        warmup: steps over which the rate grows from 0.
        evaluate: called in evaluation mode, without gradients, every ``evaluate_every`` steps and
            at the end.
        evaluate_every: steps between evaluations.
        stop_at: stop as soon as an evaluation is at least this.

    Returns:
        The losses and evaluations.

    Raises:
        ValueError: if ``steps``, ``evaluate_every`` or ``learning_rate`` is not positive,
            ``warmup`` is negative, or ``stop_at`` is given without ``evaluate``.
        FloatingPointError: if the loss is no longer finite; names the step, which is not taken.

    Example:
        >>> from attnbook import Encoder, ModelConfig
        >>> from attnbook.tasks import reversal_batch
        >>> model = Encoder(ModelConfig(vocab_size=4, d_model=16))
        >>> record = train(model, lambda g: reversal_batch(8, 4, 4, g), steps=3,
        ...                learning_rate=1e-3, seed=0)
        >>> len(record.losses)
        3
    """
    if steps < 1 or evaluate_every < 1:
        raise ValueError(
            f"steps and evaluate_every must be positive, got {steps} and {evaluate_every}"
        )
    if warmup < 0 or learning_rate <= 0:
        raise ValueError(
            "warmup must not be negative and learning_rate must be positive, "
            f"got {warmup} and {learning_rate}"
        )
    if stop_at is not None and evaluate is None:
        raise ValueError(f"stop_at={stop_at} needs an evaluate function to compare with, got none")
    generator = Generator().manual_seed(seed)
    adam = torch.optim.Adam(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    record = Record()
    model.train()
    quiet = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    for step in tqdm(range(1, steps + 1), "training", unit="step", leave=False, disable=quiet):
        for group in adam.param_groups:
            group["lr"] = learning_rate * min(1.0, step / warmup if warmup else 1.0)
        loss = model.loss(*next_batch(generator))
        record.losses.append(loss.item())
        if not loss.isfinite():
            raise FloatingPointError(f"the loss is {loss.item()} at step {step}")
        adam.zero_grad()
        loss.backward()
        adam.step()
        if evaluate is not None and (step % evaluate_every == 0 or step == steps):
            record.evaluations[step] = _evaluate(model, evaluate)
            if stop_at is not None and record.evaluations[step] >= stop_at:
                break
    return record


def _evaluate(model: Encoder, evaluate: Callable[[Encoder], float]) -> float:
    model.eval()
    try:
        with torch.no_grad():
            return evaluate(model)
    finally:
        model.train()


def accuracy(
    model: Encoder, ids: Int64[Tensor, "batch tokens"], targets: Int64[Tensor, "batch tokens"]
) -> float:
    """Share of tokens whose largest logit is the target, from 0 to 1; targets of −100 are left out.

    Raises:
        ValueError: if the shapes differ, or all are left out.
    """
    best: Tensor = model(ids).argmax(-1)
    if targets.shape != best.shape:
        raise ValueError(
            f"there are answers for (batch, tokens) = {tuple(best.shape)} but targets of shape "
            f"{tuple(targets.shape)}"
        )
    asked = targets != -100
    if not asked.any():
        raise ValueError(f"no target is left: all {targets.numel()} are -100")
    return (best == targets)[asked].double().mean().item()
