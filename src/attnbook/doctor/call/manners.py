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
RAISED = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError),
    *(TypeError, ValueError),
)
"""What a reader's module may raise."""
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
    modules: dict[nn.Module, None] = {}
    queue, seen = [function], set()
    while queue:
        thing = queue.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            modules[thing] = None
        elif isinstance(thing, partial):
            queue += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, list | tuple | dict):
            queue += list(thing.values() if isinstance(thing, dict) else thing)[:100]
        elif thing is function or isinstance(thing, FunctionType | MethodType):
            queue += _used_by(thing)
    return list(modules)


def _used_by(function: Any) -> list[Any]:
    """What a function, a method or an object that can be called may use."""
    used = [getattr(function, "__self__", None), getattr(function, "__func__", None)]
    used += getattr(function, "__defaults__", None) or ()
    if not isinstance(function, FunctionType | MethodType):
        used += [*getattr(function, "__dict__", {}).values(), type(function).__call__]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # not filled yet
            used.append(cell.cell_contents)
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    return used + [names[name] for name in getattr(code, "co_names", ()) if name in names]


@contextmanager
def restored(function: Any) -> Iterator[None]:
    """Put back weights, buffers, gradients, modes, attributes and random states.

    Each of them by itself, so that one that can't be put back stops no other.
    """
    with ExitStack() as stack:
        for undo in itertools.chain(_states(), _content_of([function, *modules_in(function)])):
            stack.callback(_quietly, undo)
        yield


def _quietly(undo: Undo) -> None:
    """Undo; an exception would replace the report."""
    with suppress(*RAISED):
        undo()


def _states() -> Iterator[Undo]:
    """Put back random states, and what is set for all of torch."""
    yield partial(torch.set_rng_state, torch.get_rng_state())
    yield partial(np.random.set_state, np.random.get_state())  # noqa: NPY002 (a module may draw)
    yield partial(random.setstate, random.getstate())
    for get, put in SETTINGS:
        yield partial(_reset, get, put, get())
    # Of a compiled module, the code itself is examined; the import alone takes seconds.
    if "torch._dynamo" in sys.modules:
        yield partial(torch.compiler.set_stance("force_eager").__exit__, None, None, None)


def _reset(get: Callable[[], Any], put: Callable[[Any], Any], before: Any) -> None:
    """Put back a setting that has changed; putting the same may take seconds, for imports."""
    if get() != before:
        put(before)


def _content_of(roots: list[Any]) -> Iterator[Undo]:
    """Put back what is in containers, in modules, and in objects of theirs."""
    queue = [(root, True) for root in roots]
    seen: dict[int, Any] = {}  # alive, so that no id is used twice
    while queue:
        thing, look_inside = queue.pop()
        if id(thing) in seen:
            continue
        inside: Sequence[Any] = ()
        if isinstance(thing, Tensor):
            if not is_lazy(thing):
                yield _tensor(thing)
        elif isinstance(thing, tuple):
            inside = thing
        elif isinstance(thing, CONTAINERS):
            kind = next(kind for kind in CONTAINERS if isinstance(thing, kind))
            inside = _items(thing, kind)
            yield partial(_refill, thing, kind, inside)
        elif isinstance(thing, torch.Generator):
            yield partial(thing.set_state, thing.get_state())
        elif (
            look_inside and not isinstance(thing, ModuleType | type) and hasattr(thing, "__dict__")
        ):
            inside = [vars(thing)]
            look_inside = isinstance(thing, nn.Module)  # objects of an object are left alone
        else:
            continue
        seen[id(thing)] = thing
        queue += [
            (x, look_inside or isinstance(x, nn.Module)) for x in inside if not isinstance(x, PLAIN)
        ]


def _items(container: Container, kind: Any) -> list[Any]:
    """What is in a container, keys too, past what its own class makes of the methods."""
    if issubclass(kind, dict):
        return list(itertools.chain.from_iterable(kind.items(container)))
    return list(kind.__iter__(container))


def _refill(container: Container, kind: Any, before: list[Any]) -> None:
    """Put into a container what was in it, if that has changed."""
    now = _items(container, kind)
    if len(before) == len(now) and all(map(operator.is_, before, now)):
        return
    kind.clear(container)
    if issubclass(kind, dict):
        for key, value in zip(before[::2], before[1::2], strict=True):
            kind.__setitem__(container, key, value)
    else:
        getattr(kind, "update" if kind is set else "extend")(container, before)


def _tensor(tensor: Tensor) -> Undo:
    """Put back a tensor: its memory, values and gradient."""
    data, values, needs_gradient = tensor.data, tensor.detach().clone(), tensor.requires_grad
    if not tensor.is_leaf:
        return partial(_put_back, data, values)
    grad = tensor.grad
    of_grad = None if grad is None else grad.clone()

    def undo() -> None:
        if not tensor.is_leaf:  # written in place by a call with gradients
            tensor.detach_()
        tensor.data = data
        _put_back(data, values)
        tensor.requires_grad_(needs_gradient)
        tensor.grad = grad
        if grad is not None and of_grad is not None:
            _put_back(grad, of_grad)

    return undo


def _put_back(tensor: Tensor, values: Tensor) -> None:
    """Write its values into a tensor, if they have changed."""
    with torch.no_grad():
        if tensor.shape == values.shape and not torch.equal(tensor.detach(), values):
            tensor.detach().copy_(values)
