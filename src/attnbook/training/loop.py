"""The loop: draw batches, add up gradients, step, evaluate, save."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from attnbook.training.checkpoints import Checkpoint
from attnbook.training.config import TrainingConfig
from attnbook.training.history import History
from attnbook.training.processes import Processes, gradient_of, processes, set_gradients
from attnbook.training.progress import bar

Batch = Sequence[Tensor | None]


def train(
    model: nn.Module,
    next_batch: Callable[[Generator], Batch],
    config: TrainingConfig,
    *,
    loss: Callable[..., tuple[Tensor, Any]] | None = None,
    evaluate: Callable[[Any], float] | None = None,
    evaluate_every: int = 50,
    evaluated: Callable[[History], None] | None = None,
    stop: Callable[[History], bool] | None = None,
    folder: str | Path | None = None,
    save_every: int = 100,
    compile: bool = False,
    fast: bool = False,
) -> History:
    r"""Train ``model`` by Adam, each step on the batches of ``config.shards`` shards.

    .. math:: g = \frac{1}{\sum_s n_s} \sum_s \nabla L_s

    :math:`L_s` is the summed loss of shard :math:`s` and :math:`n_s` its number of targets, so
    batches of unequal padding add up. All that is random in a shard, its batch and its dropout,
    comes from (seed, step, shard). Nothing else is carried from step to step but parameters,
    moments and history, which a checkpoint holds: a training that was killed and is started again
    ends in the same bits as one that was not. Gradients that are there before are dropped.

    Under ``torchrun``, the shards are spread over the processes, and their gradients are added in
    the order of the shards: the same bits for any number of processes, on the same machine with
    the same number of threads (``torchrun`` sets ``OMP_NUM_THREADS`` to 1). It takes the memory
    of one gradient more for each process.

    With tqdm, a progress bar goes to the standard error; the environment variable ``TQDM_DISABLE``
    switches it off.

    Args:
        model: trained in place, on the device and in the type that it has: float32, with
            ``bfloat16=True`` for speed, or float64. All processes start from the parameters of the
            first. A parameter without ``requires_grad`` stays as it is.
        next_batch: makes a batch, a tuple of tensors (or None, such as a mask that is not needed),
            from the generator that it is given and from nothing else that changes; so a resume sees
            the same batches.
        config: what decides the numbers.
        loss: called with the model and the tensors of a batch, returns the sum over targets and
            their number; ``model.loss(*batch, reduction="sum")`` if not given.
        evaluate: called in evaluation mode, without gradients, every ``evaluate_every`` steps and
            at the end, in the first process.
        evaluate_every: steps between evaluations.
        evaluated: called after each evaluation, in its mode and process: to show a sample, or to
            keep the model if ``history.step_with_lowest()`` is this one.
        stop: asked before each step, in the first process: ``True`` ends the training, as does,
            say, ``lambda history: history.first_step_with(0.99) is not None``.
        folder: where the checkpoint is kept. If there is one, the training goes on from it.
        save_every: steps between checkpoints; one more is written at the end, and one after the
            first step, so that what can't be written is found early.
        compile: run the loss through ``torch.compile``; its dropout draws other numbers.
        fast: let ``DistributedDataParallel`` add the gradients in its own order, while it computes
            others, and a GPU use algorithms that are not deterministic. Without it, torch refuses
            what has no other on a GPU.

    Returns:
        The losses and evaluations, those before a resume too.

    Raises:
        ValueError: if the shards can't be spread evenly, no shard of a step has a target,
            ``next_batch`` has no more, nothing in the model is trained, or the checkpoint is of
            another training.
        TypeError: if a function is none, ``next_batch`` makes no tuple of tensors, or the loss
            returns no pair.
        FloatingPointError: if the loss is no longer finite; names the step, which is not taken. Or
            if parameters that would be saved are not; the last checkpoint is kept.
        OSError: if a checkpoint can't be written.

    Example:
        >>> from attnbook import Encoder, ModelConfig
        >>> from attnbook.tasks import reversal_batch
        >>> model = Encoder(ModelConfig(vocab_size=4, d_model=16))
        >>> config = TrainingConfig(steps=3, learning_rate=1e-3, shards=2)
        >>> history = train(model, lambda generator: reversal_batch(8, 4, 4, generator), config)
        >>> history.targets
        [64, 64, 64]
    """
    _check_functions(model, next_batch, loss, evaluate=evaluate, evaluated=evaluated, stop=stop)
    world = processes()
    _check_numbers(model, config, world, evaluate_every=evaluate_every, save_every=save_every)
    device = next(model.parameters()).device
    adam, history = config.optimizer(model), History()
    parameters = [p for group in adam.param_groups for p in group["params"]]
    checkpoint = None if folder is None else Checkpoint(Path(folder), model, adam, config)
    if checkpoint is not None and world.from_first(checkpoint.exists):
        history = checkpoint.load()
    world.share(list(model.state_dict().values()))
    objective = _objective(model, loss, compile=compile, parallel=fast and world.count > 1)

    def is_over() -> bool:
        return len(history.losses) >= config.steps or (
            stop is not None and world.from_first(lambda: stop(history))
        )

    model.train()
    adam.zero_grad()  # of whatever was computed before
    first = len(history.losses) + 1
    with bar(config, history, world) as show, _arithmetic(device, fast):
        over = is_over()
        while not over:
            step = len(history.losses) + 1
            mean, n_targets = _accumulate(objective, parameters, next_batch, config, step, world)
            if not np.isfinite(mean):
                raise FloatingPointError(f"the loss is {mean} at step {step}{_advice(parameters)}")
            if config.clip is not None:
                nn.utils.clip_grad_norm_(parameters, config.clip)
            for group in adam.param_groups:
                group["lr"] = config.rate(step)
            adam.step()
            adam.zero_grad()
            history.losses.append(mean)
            history.targets.append(n_targets)
            if evaluate is not None and (step % evaluate_every == 0 or step == config.steps):
                _evaluate(model, evaluate, evaluated, config, history, world)
            over = is_over()
            due = over or step == first or step % save_every == 0
            if checkpoint is not None and world.rank == 0 and due:
                checkpoint.save(history)  # the first too: now, not after an hour, if it can't be
            show()
    return history


class Objective(nn.Module):
    """A model whose forward pass is its summed loss, as ``DistributedDataParallel`` wants it.

    Example:
        >>> objective = Objective(nn.Linear(2, 1), lambda model, x: (model(x).sum(), len(x)))
        >>> objective(torch.zeros(3, 2))[1]
        3
    """

    def __init__(self, model: nn.Module, loss: Callable[..., tuple[Tensor, Any]] | None) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *batch: Tensor | None) -> tuple[Tensor, Any]:
        """The sum over targets, and their number."""
        if self.loss is None:
            summed: tuple[Tensor, Any] = self.model.loss(*batch, reduction="sum")  # type: ignore[operator]
            return summed
        return self.loss(self.model, *batch)


def seed_shard(seed: int, step: int, shard: int) -> Generator:
    """A generator for the shard's batch; torch's global ones, for dropout, are seeded too.

    Example:
        >>> torch.rand(2, generator=seed_shard(0, 1, 0)), torch.rand(1)
        (tensor([0.1451, 0.6734]), tensor([0.4856]))
    """
    batch, dropout = np.random.SeedSequence([seed, step, shard]).generate_state(2, np.uint64)
    # What torch.manual_seed does, without the stack traces that it formats for absent devices.
    torch.default_generator.manual_seed(int(dropout))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(int(dropout))
    return Generator().manual_seed(int(batch))


def _accumulate(
    objective: nn.Module,
    parameters: Sequence[Tensor],
    next_batch: Callable[[Generator], Batch],
    config: TrainingConfig,
    step: int,
    world: Processes,
) -> tuple[float, int]:
    """Leave the step's gradient in the parameters; return the mean loss and the number of targets.

    In each round, every process computes one shard.
    """
    device, parallel = parameters[0].device, isinstance(objective, DistributedDataParallel)
    total, sums, counts = None, [], []
    for first in range(0, config.shards, world.count):
        batch = _draw(next_batch, config, step, first + world.rank, device)
        is_last = first + world.count == config.shards
        summed, count = _backward(objective, batch, config, device, is_last)
        sums.append(summed)
        counts.append(count)
        if world.count > 1 and not parallel:
            total = world.add_gradients(total, parameters)
    if total is not None:
        set_gradients(parameters, total)
    all_sums, all_counts = world.gather_shards(sums), world.gather_shards(counts)
    n_targets = int(all_counts.sum())
    if n_targets == 0:
        raise ValueError(f"no target is left at step {step}, in {config.shards} shards")
    if config.shards > 1:
        averaged_over = world.count if parallel else 1  # what DistributedDataParallel divided by
        for p in parameters:
            p.grad = gradient_of(p).div_(n_targets / averaged_over)
    return (all_sums.sum() / all_counts.sum()).item(), n_targets


def _draw(
    next_batch: Callable[[Generator], Batch],
    config: TrainingConfig,
    step: int,
    shard: int,
    device: torch.device,
) -> list[Tensor | None]:
    """A shard's batch, on the model's device; its dropout is seeded."""
    generator = seed_shard(config.seed, step, shard)
    try:
        batch = next_batch(generator)
    except StopIteration:
        raise ValueError(
            f"next_batch has no batch for step {step} of {config.steps}: it has to make one at "
            "each call, such as of the items "
            "torch.randint(len(data), (size,), generator=generator)"
        ) from None
    if not isinstance(batch, (tuple, list)):
        raise TypeError(
            "next_batch must make a tuple of tensors, in the order of the loss's arguments, "
            f"got a {type(batch).__name__}"
        )
    for x in batch:
        if not (x is None or isinstance(x, Tensor)):
            raise TypeError(
                f"next_batch must make a tuple of tensors, got a {type(x).__name__} in it: of "
                'tokens in an array or a memmap, torch.from_numpy(x.astype("int64"))'
            )
    return [None if x is None else x.to(device) for x in batch]


def _backward(
    objective: nn.Module, batch: Batch, config: TrainingConfig, device: torch.device, is_last: bool
) -> tuple[Tensor, Tensor]:
    """Add a shard's gradient to the parameters'; return its summed loss and number of targets."""
    waits = isinstance(objective, DistributedDataParallel) and not is_last  # and shares the sum
    with objective.no_sync() if waits else nullcontext():  # type: ignore[operator]
        with _autocast(device, config):
            returned = objective(*batch)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise TypeError(
                "the loss must return the sum over targets and their number, got a "
                f"{type(returned).__name__}"
            )
        summed, count = returned
        # The only shard's number of targets is the step's: its mean, as model.loss gives it.
        (summed / count if config.shards == 1 else summed).backward()
    return summed.detach(), torch.as_tensor(count, device=device)


def _evaluate(
    model: nn.Module,
    evaluate: Callable[[Any], float],
    evaluated: Callable[[History], None] | None,
    config: TrainingConfig,
    history: History,
    world: Processes,
) -> None:
    """Put into the history what ``evaluate`` returns after its last step, in the first process."""
    step, device = len(history.losses), next(model.parameters()).device
    seed_shard(config.seed, step, config.shards)  # its own, behind those of the shards
    model.eval()
    try:
        with torch.no_grad(), _autocast(device, config):
            history.evaluations[step] = world.from_first(lambda: float(evaluate(model)))
            if evaluated is not None and world.rank == 0:
                evaluated(history)
    finally:
        model.train()


def _objective(
    model: nn.Module,
    loss: Callable[..., tuple[Tensor, Any]] | None,
    *,
    compile: bool,
    parallel: bool,
) -> nn.Module:
    objective: nn.Module = Objective(model, loss)
    if compile:
        objective = torch.compile(objective)  # type: ignore[assignment]
    return DistributedDataParallel(objective) if parallel else objective


def _check_functions(model: nn.Module, next_batch: object, loss: object, **others: object) -> None:
    if not callable(next_batch):
        raise TypeError(
            f"next_batch must be a function that draws a batch with a generator, got a "
            f"{type(next_batch).__name__}: of a data set, take the items "
            "torch.randint(len(data), (size,), generator=generator)"
        )
    for name, function in {"loss": loss, **others}.items():
        if not (function is None or callable(function)):
            raise TypeError(f"{name} must be a function, got {function!r}")
    if loss is None and not callable(getattr(model, "loss", None)):
        raise TypeError(
            f"a {type(model).__name__} has no loss of its own: pass loss=, a function of the model "
            "and the tensors of a batch that returns the sum over targets and their number"
        )


def _check_numbers(
    model: nn.Module, config: TrainingConfig, world: Processes, **intervals: int
) -> None:
    for name, steps in intervals.items():
        if not isinstance(steps, Integral) or steps < 1:
            raise ValueError(f"{name} must be a positive integer, got {steps!r}")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"the {type(model).__name__} has no parameter with requires_grad")
    if config.shards % world.count:
        raise ValueError(
            f"{config.shards} shards can't be spread evenly over {world.count} processes"
        )


def _advice(parameters: Sequence[Tensor]) -> str:
    """What helps where the model is in half precision."""
    dtype = parameters[0].dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return ""
    return f", in {dtype}: keep the model in float32 and take bfloat16=True"


@contextmanager
def _arithmetic(device: torch.device, fast: bool) -> Iterator[None]:
    """Leave torch's global generators as they were; on a GPU, compute the same bits each time."""
    before = torch.get_deterministic_debug_mode()
    if device.type == "cuda" and not fast:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # An error where an operation has no such algorithm: told to warn, attention takes another.
        torch.set_deterministic_debug_mode("error")
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _autocast(device: torch.device, config: TrainingConfig) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.bfloat16)
