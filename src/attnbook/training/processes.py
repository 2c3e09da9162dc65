"""One process, or many under ``torchrun``: who computes what, and in which order it is added."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

M = TypeVar("M")


@dataclass(frozen=True)
class Processes:
    """This process among all that train together.

    Example:
        >>> alone = Processes(rank=0, count=1)
        >>> alone.gather(torch.ones(2)), alone.from_first(lambda: "result")
        ([tensor([1., 1.])], 'result')
    """

    rank: int
    count: int

    def gather(self, x: Tensor) -> list[Tensor]:
        """Everyone's tensor, in the order of the processes."""
        if self.count == 1:
            return [x]
        everyones = [torch.empty_like(x) for _ in range(self.count)]
        dist.all_gather(everyones, x)
        return everyones

    def gather_shards(self, values: Sequence[Tensor]) -> Tensor:
        """Everyone's numbers, one a round, in the order of the shards, whoever computed them."""
        # (rounds,) of each process -> (shards,)
        return torch.stack(self.gather(torch.stack(list(values))), dim=1).flatten()

    def from_first(self, make: Callable[[], M]) -> M:
        """What ``make`` returns in the first process; no other calls it."""
        made = [make() if self.rank == 0 else None]
        if self.count > 1:
            dist.broadcast_object_list(made)
        return made[0]  # type: ignore[return-value]

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace everyone's numbers by those of the first process."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def add_gradients(self, total: Tensor | None, parameters: Sequence[Tensor]) -> Tensor:
        r"""Add everyone's gradients to a sum, one process after the other, and clear them.

        .. math:: ((g_0 + g_1) + g_2) + \dots

        Floating-point addition depends on the order, so this order is that of the shards: a single
        process that accumulates shard after shard gets the same bits.

        Args:
            total: the sum so far, None at first.
            parameters: whose gradients.
        """
        gradient = torch.cat([gradient_of(p).flatten() for p in parameters])
        for everyones in self.gather(gradient):
            total = everyones if total is None else total.add_(everyones)
        for p in parameters:
            p.grad = None
        assert total is not None
        return total


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient; zeros where the loss did not depend on the parameter.

    Example:
        >>> gradient_of(torch.nn.Parameter(torch.ones(2)))
        tensor([0., 0.])
    """
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def set_gradients(parameters: Sequence[Tensor], gradient: Tensor) -> None:
    """Split a gradient of all parameters, one after the other, into theirs.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> set_gradients([weight], torch.tensor([3.0, 4.0]))
        >>> weight.grad
        tensor([3., 4.])
    """
    sizes = [p.numel() for p in parameters]
    for p, part in zip(parameters, gradient.split(sizes), strict=True):
        p.grad = part.view_as(p).to(p.dtype)


def processes() -> Processes:
    """The processes that ``torchrun`` started, or this one alone.

    Connects them at the first call: by Gloo on CPUs and by NCCL on GPUs, each process with the GPU
    of its local rank.

    Example:
        >>> processes()
        Processes(rank=0, count=1)
    """
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
    if not dist.is_initialized():
        return Processes(rank=0, count=1)
    return Processes(dist.get_rank(), dist.get_world_size())
