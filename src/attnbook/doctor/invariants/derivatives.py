"""Gradients are derivatives: nothing on the way from the outputs cuts them off."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results
from attnbook.doctor.report import NotJudged
from attnbook.doctor.subject import Subject, cast, copied, output_of, seed_all
from attnbook.doctor.trace import Node

IN_STEPS = ("round", "sign", "sgn", "floor", "ceil", "trunc", "bernoulli")
COMPARED = ("gt", "ge", "lt", "le")
SMALL, MISSED = 1e-5, 1e-3


def derivatives(subject: Subject) -> Results:
    """Along a random direction, outputs change as their gradients say."""
    if len(subject.modules) != 1 or subject.modules[0] is not subject.module:
        return
    if any(map(in_steps, subject.trace(subject.fresh(0)).nodes)):
        return
    try:
        module = copy.deepcopy(subject.module).to(torch.float64)
        twin = replace(subject, module=module, inputs=cast(subject.inputs, torch.float64))
        if not _missed(*_along(twin, 0)):
            return
    except Exception as error:  # it is of one type only
        yield NotJudged("derivatives", f"in float64 it raised {type(error).__name__}")
        return
    learned = (n for n, p in twin.parameters.items() if p.requires_grad)
    for name in (*(n for n in twin.sources if not twin.is_ids(n)), *learned):
        (said, changes, rounding), other = (_along(twin, seed, name) for seed in (1, 2))
        # A gradient that is made smaller on purpose is a fraction, the same along any direction.
        fraction = abs(said * other[1] - changes * other[0]) <= MISSED * abs(changes * other[1])
        if _missed(said, changes, rounding) and not fraction:
            done = f"changed {name} a little along a random direction, in float64"
            found = f"outputs change by {changes:.4g}, and by {said:.4g} as its gradient says"
            right = "the same, unless it is cut on purpose"  # as at a memory, or a target
            yield finding("gradient cut off", done, found, right, "warning")
            return


def _missed(said: float, changes: float, rounding: float) -> bool:
    return abs(changes - said) > max(MISSED * max(abs(changes), abs(said)), 100 * rounding)


def in_steps(node: Node) -> bool:
    """Whether its derivative is 0, and another one may be given on purpose."""
    if node.name == "embedding":  # the row of padding is not to learn
        _, ids, *more = node.args
        return bool(more) and bool((ids == more[0]).any())
    of_floats = node.depends and any(x.is_floating_point() for _, x in node.inputs)
    whole = any(not x.is_floating_point() and x.dtype != torch.bool for x in node.outputs)
    name = node.name.rstrip("_")
    return name in IN_STEPS or (of_floats and (whole or name in COMPARED))


def _along(subject: Subject, seed: int, only: str = "") -> tuple[float, float, float]:
    """A random mixture's derivative by its gradients and by differences, and the rounding."""
    drawn, inputs = torch.Generator().manual_seed(seed), copied(subject.fresh(0))
    vectors = {id(inputs[n]): inputs[n] for n in subject.sources if not subject.is_ids(n)}
    leaves: list[Tensor] = [x.requires_grad_() for x in vectors.values()]
    learned = {n: p for n, p in subject.parameters.items() if p.requires_grad}
    leaves = [{**inputs, **learned}[only]] if only else [*leaves, *learned.values()]

    def random(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=drawn).to(like)

    mixture = random(subject.run(inputs))
    ways = [random(x) * (float(x.detach().square().mean().sqrt()) or 0.02) for x in leaves]

    def mixed(by: float = 0.0) -> Tensor:
        """The mixture, that far along the direction."""
        seed_all(0)
        with torch.no_grad():
            torch._foreach_add_(leaves, ways, alpha=by)
        given = {n: x * 1 if id(x) in vectors else x for n, x in inputs.items()}
        return (output_of(subject.apply(given), which=subject.which) * mixture).sum()

    total, said = mixed(), None
    if total.requires_grad:  # it is not for inference alone
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        said = sum(float((g * w).sum()) for g, w in zip(grads, ways, strict=True) if g is not None)
    values = [float(mixed(by).detach()) for by in (SMALL, SMALL, -3 * SMALL, -SMALL)]
    near, far = (values[0] - values[2]) / (2 * SMALL), (values[1] - values[3]) / (4 * SMALL)
    return near if said is None else said, near, abs(near - far)
