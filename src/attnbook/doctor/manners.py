"""A module is left as it was found, also when a call fails."""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


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
    """Weights, buffers, gradients, modes, attributes and random states are put back."""
    undo = [_states()]
    for module in modules_in(function):
        undo += [_attributes(part) for part in module.modules()]
        undo += [
            _tensor(x)
            for x in dict.fromkeys((*module.parameters(), *module.buffers()))
            if not is_lazy(x)
        ]
    try:
        yield
    finally:
        for one in reversed(undo):
            one()


def _states() -> Callable[[], None]:
    torch_state, numpy_state, python_state = (
        torch.get_rng_state(),
        np.random.get_state(),  # noqa: NPY002 (the module may draw from it)
        random.getstate(),
    )
    grad, default = torch.is_grad_enabled(), torch.get_default_dtype()
    # Of a compiled module, the code itself is examined; the import alone takes seconds.
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else None

    def undo() -> None:
        if stance is not None:
            stance.__exit__(None, None, None)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(default)

    return undo


def _attributes(module: nn.Module) -> Callable[[], None]:
    """Attributes are put back; so is what was put into a list or dictionary."""
    before = dict(module.__dict__)
    inside = {k: copy.copy(v) for k, v in before.items() if isinstance(v, dict | list | set)}
    tensors = {
        k: v.detach().clone()
        for k, v in before.items()
        if isinstance(v, Tensor) and not isinstance(v, nn.Parameter)
    }

    def undo() -> None:
        module.__dict__.clear()
        module.__dict__.update(before)
        for name, content in inside.items():
            held = before[name]
            held.clear()
            held.extend(content) if isinstance(held, list) else held.update(content)
        for name, value in tensors.items():
            _put_back(before[name], value)

    return undo


def _tensor(tensor: Tensor) -> Callable[[], None]:
    data, values, wanted = tensor.data, tensor.detach().clone(), tensor.requires_grad
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
