"""The training loop as the book's tasks use it: one stream of batches, one shard a step."""

from collections.abc import Callable

from jaxtyping import Int64
from torch import Generator, Tensor

from attnbook import training
from attnbook.models import Encoder
from attnbook.training import History, TrainingConfig

Batch = tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]


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
) -> History:
    r"""Train ``model`` by :func:`attnbook.training.loop.train`, on one stream of batches.

    Adam has :math:`\beta = (0.9, 0.98)`, :math:`\varepsilon = 10^{-9}` (Vaswani et al. 2017,
    section 5.3) and a constant rate after a linear warm-up.

    Args:
        model: trained in place.
        next_batch: makes ``(ids, targets)`` from the generator it is given, the same one each time;
            so it can't be resumed.
        steps: number of updates.
        learning_rate: Adam's rate.
        seed: of the generator; the same seed gives the same batches to every model.
        warmup: steps over which the rate grows from 0.
        evaluate: called in evaluation mode, without gradients, every ``evaluate_every`` steps and
            at the end.
        evaluate_every: steps between evaluations.
        stop_at: stop as soon as an evaluation is at least this.

    Returns:
        The losses and evaluations.

    Raises:
        ValueError: if a number is out of its range.
        FloatingPointError: if the loss is no longer finite; names the step, which is not taken.

    Example:
        >>> from attnbook import Encoder, ModelConfig
        >>> from attnbook.tasks import reversal_batch
        >>> model = Encoder(ModelConfig(vocab_size=4, d_model=16))
        >>> history = train(model, lambda g: reversal_batch(8, 4, 4, g), steps=3,
        ...                 learning_rate=1e-3, seed=0)
        >>> len(history.losses)
        3
    """
    config = TrainingConfig(steps, learning_rate, seed, warmup)
    draws = Generator().manual_seed(seed)
    return training.train(
        model,
        lambda _: next_batch(draws),
        config,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        stop=None if stop_at is None else lambda h: h.first_step_with(stop_at) is not None,
    )


def accuracy(
    model: Encoder, ids: Int64[Tensor, "batch tokens"], targets: Int64[Tensor, "batch tokens"]
) -> float:
    """Share of tokens whose largest logit is the target, from 0 to 1; targets of −100 are left out.

    Raises:
        ValueError: if the shapes differ, all are left out, or one is no token.
    """
    logits: Tensor = model(ids)
    best = logits.argmax(-1)
    if targets.shape != best.shape:
        raise ValueError(
            f"there are answers for (batch, tokens) = {tuple(best.shape)} but targets of shape "
            f"{tuple(targets.shape)}"
        )
    asked = targets != -100
    if not asked.any():
        raise ValueError(f"no target is left: all {targets.numel()} are -100")
    smallest, largest = targets[asked].aminmax()
    if smallest < 0 or largest >= logits.shape[-1]:
        raise ValueError(
            f"targets must be tokens, 0 to {logits.shape[-1] - 1}, or -100, got {smallest} to "
            f"{largest}"
        )
    return (best == targets)[asked].double().mean().item()
