"""A module is left as it was found, also when a call fails."""

import itertools
import operator
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Undo = Callable[[], object]
Container = dict[Any, Any] | list[Any] | set[Any] | deque[Any]
CONTAINERS = (OrderedDict, dict, list, set, deque)
PLAIN = (str, int, float, NoneType)
SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
)
"""What a call may switch for all of torch: how it is read, and set."""


def modules_in(function: Any) -> list[nn.Module]:
    """The modules that a function runs: itself, what it is bound to, closes over, or names."""
    found: dict[nn.Module, None] = {}
    queue, seen = [function], set()
    while queue:
        held = queue.pop(0)
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, nn.Module):
            found[held] = None
        elif isinstance(held, partial):
            queue += [held.func, *held.args, *held.keywords.values()]
        elif isinstance(held, list | tuple | dict):
            queue += list(held.values() if isinstance(held, dict) else held)[:100]
        elif held is function or isinstance(held, FunctionType | MethodType):
            queue += _held(held)
    return list(found)


def _held(function: Any) -> list[Any]:
    """What a function, a method or an object that can be called may use."""
    held = [getattr(function, "__self__", None), getattr(function, "__func__", None)]
    held += getattr(function, "__defaults__", None) or ()
    if not isinstance(function, FunctionType | MethodType):
        held += [*getattr(function, "__dict__", {}).values(), type(function).__call__]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    return held + [names[name] for name in getattr(code, "co_names", ()) if name in names]


@contextmanager
def restored(function: Any) -> Iterator[None]:
    """Weights, buffers, gradients, modes, attributes and random states are put back.

    Each of them by itself, so that one that can't be put back stops no other.
    """
    with ExitStack() as stack:
        for undo in itertools.chain(_states(), _held_by([function, *modules_in(function)])):
            stack.callback(_quietly, undo)
        yield


def _quietly(undo: Undo) -> None:
    with suppress(Exception):  # it would replace the report
        undo()


def _states() -> Iterator[Undo]:
    yield partial(torch.set_rng_state, torch.get_rng_state())
    yield partial(np.random.set_state, np.random.get_state())  # noqa: NPY002 (a module may draw)
    yield partial(random.setstate, random.getstate())
    for get, put in SETTINGS:
        yield partial(_reset, get, put, get())
    # Of a compiled module, the code itself is examined; the import alone takes seconds.
    if "torch._dynamo" in sys.modules:
        yield partial(torch.compiler.set_stance("force_eager").__exit__, None, None, None)


def _reset(get: Callable[[], Any], put: Callable[[Any], Any], before: Any) -> None:
    if get() != before:  # putting the same may take seconds: it imports what it switches
        put(before)


def _held_by(roots: list[Any]) -> Iterator[Undo]:
    """For what they hold: in containers, in modules, and in objects of theirs."""
    queue = [(root, True) for root in roots]
    seen: dict[int, Any] = {}  # alive, so that no id is used twice
    while queue:
        held, own = queue.pop()
        if id(held) in seen:
            continue
        inside: Sequence[Any] = ()
        if isinstance(held, Tensor):
            if not is_lazy(held):
                yield _tensor(held)
        elif isinstance(held, tuple):
            inside = held
        elif isinstance(held, CONTAINERS):
            kind = next(one for one in CONTAINERS if isinstance(held, one))
            inside = _content(held, kind)
            yield partial(_refill, held, kind, inside)
        elif isinstance(held, torch.Generator):
            yield partial(held.set_state, held.get_state())
        elif own and not isinstance(held, ModuleType | type) and hasattr(held, "__dict__"):
            own, inside = isinstance(held, nn.Module), [vars(held)]  # of an object's objects, none
        else:
            continue
        seen[id(held)] = held
        queue += [(x, own or isinstance(x, nn.Module)) for x in inside if not isinstance(x, PLAIN)]


def _content(held: Container, kind: Any) -> list[Any]:
    """What is in a container, keys too, past what its own class makes of the methods."""
    if issubclass(kind, dict):
        return list(itertools.chain.from_iterable(kind.items(held)))
    return list(kind.__iter__(held))


def _refill(held: Container, kind: Any, before: list[Any]) -> None:
    """Put into a container what was in it, if that has changed."""
    now = _content(held, kind)
    if len(before) == len(now) and all(map(operator.is_, before, now)):
        return
    kind.clear(held)
    if issubclass(kind, dict):
        for key, value in zip(before[::2], before[1::2], strict=True):
            kind.__setitem__(held, key, value)
    else:
        getattr(kind, "update" if kind is set else "extend")(held, before)


def _tensor(tensor: Tensor) -> Undo:
    data, values, wanted = tensor.data, tensor.detach().clone(), tensor.requires_grad
    if not tensor.is_leaf:
        return partial(_put_back, data, values)
    grad, inside = tensor.grad, None if tensor.grad is None else tensor.grad.clone()

    def undo() -> None:
        if not tensor.is_leaf:  # written in place by a call with gradients
            tensor.detach_()
        tensor.data = data
        _put_back(data, values)
        tensor.requires_grad_(wanted)
        tensor.grad = grad
        if grad is not None and inside is not None:
            _put_back(grad, inside)

    return undo


def _put_back(tensor: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        if tensor.shape == values.shape and not torch.equal(tensor.detach(), values):
            tensor.detach().copy_(values)
