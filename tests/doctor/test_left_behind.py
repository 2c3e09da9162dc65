"""What a call leaves behind is undone, and a module that is made at its first call is judged."""

from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attnbook.doctor import diagnose
from attnbook.doctor.call.manners import restored
from benchmarks.doctor.specimens.attentions import Forgetful, Separate
from benchmarks.doctor.specimens.museum import healthy


def test_lazy_weights() -> None:
    model = nn.Sequential(Forgetful(), nn.LazyLinear(12))
    healthy(diagnose(model, torch.randn(2, 6, 14)))
    assert model[1].in_features == 0
    report = diagnose(lambda x: model(x), torch.randn(2, 6, 14))
    assert report.causes == ("the example can't be called",)


def refuse(*_: Any, **__: Any) -> Any:
    raise TypeError("it is frozen")


CHANGES = ("update", "clear", "pop", "extend", "append", "add", "copy", "__copy__")
READS = ("items", "keys", "__iter__", "__setitem__", "__deepcopy__")
FrozenDict, FrozenList, FrozenOrdered, FrozenSet = (
    type(f"Frozen {kind.__name__}", (kind,), dict.fromkeys(names, refuse))
    for kinds, names in (((dict, list), (*CHANGES, *READS)), ((OrderedDict, set), CHANGES))
    for kind in kinds
)


class Moody:
    """Once it is upset, it can't be put into a set."""

    upset = False

    def __hash__(self) -> int:
        return refuse() if self.upset else 0


def upset(held: set[Any]) -> None:
    one = next(iter(held))
    held.add(1)
    one.upset = True


def draw(held: torch.Generator) -> None:
    torch.rand(1, generator=held)


def track(layer: nn.Module) -> None:
    """What a forward may do to a submodule."""
    layer.later = nn.Linear(2, 2)
    layer.count = layer.count + 1
    layer.steps += 1
    layer.register_forward_hook(print)
    layer.weight.requires_grad_(False)
    layer.weight.grad.zero_()
    layer.bias.grad = torch.ones(2)
    layer.weight.data = torch.zeros(2, 2)
    layer.eval()
    del layer.extra


def layer() -> nn.Module:
    made = nn.Linear(2, 2)
    made.register_buffer("count", torch.zeros(()))
    made.register_buffer("steps", torch.zeros(()), persistent=False)
    made.extra, made.weight.grad = "kept", torch.ones(2, 2)
    return made


def told(held: Any) -> str:
    """All that is in it."""
    if isinstance(held, torch.Generator):
        return str(held.get_state().sum())
    if isinstance(held, nn.Module):
        of = [(x, x.grad, x.requires_grad) for x in (*held.parameters(), *held.buffers())]
        return str((of, {k: x for k, x in vars(held).items() if k != "_parameters"}))
    return repr(vars(held) if isinstance(held, UserDict) else held)


Change = Callable[[Any], object]
HELD: dict[str, tuple[Callable[[], Any], Change]] = {
    "dict": (lambda: {"a": 1}, lambda x: x.update(b=2)),
    "frozen dict": (lambda: FrozenDict(a=1), lambda x: dict.pop(x, "a")),
    "frozen ordered": (lambda: FrozenOrdered(a=1), lambda x: OrderedDict.pop(x, "a")),
    "order": (lambda: OrderedDict(a=1, b=2), lambda x: x.move_to_end("a")),
    "frozen list": (lambda: FrozenList([1]), lambda x: list.append(x, 2)),
    "frozen set": (lambda: FrozenSet([1]), lambda x: set.add(x, 2)),
    "deque": (lambda: deque([1, 2], maxlen=2), lambda x: x.append(3)),
    "read": (lambda: defaultdict(list), lambda x: x["new"]),
    "mapping": (lambda: UserDict(a=1), lambda x: x.update(b=2)),
    "nested": (lambda: {"keys": [[1]]}, lambda x: x["keys"][0].append(2)),
    "in a tuple": (lambda: ([1], [2]), lambda x: x[0].append(2)),
    "object": (lambda: SimpleNamespace(keys=[]), lambda x: x.keys.append(1)),
    "object's attribute": (lambda: SimpleNamespace(keys=0), lambda x: setattr(x, "keys", 1)),
    "tensor in a list": (lambda: [torch.zeros(2)], lambda x: x[0].add_(1)),
    "tensor not a leaf": (lambda: torch.ones(2, requires_grad=True) * 2, lambda x: x.data.add_(1)),
    "generator": (torch.Generator, draw),
    "layer": (layer, track),
    "layer in a list": (lambda: [layer()], lambda x: track(x[0])),
}


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(("make", "change"), HELD.values(), ids=HELD)
def test_what_is_held_is_put_back(make: Callable[[], Any], change: Change, error: Any) -> None:
    module = Forgetful()
    module.moody, module.held, module.saved = {Moody()}, make(), {"shared": 1}
    module.same, held, before = module.held, module.held, told(module.held)
    with suppress(ValueError, KeyboardInterrupt), restored(lambda: module):
        module.saved["more"] = 2
        change(module.held)
        assert told(held) != before
        module.held = module.same = None
        upset(module.moody)  # can't be put back, and stops nothing
        if error:
            raise error
    assert module.held is module.same is held
    assert told(held) == before
    assert module.saved == {"shared": 1}


@pytest.mark.slow  # torch imports its compiler
def test_what_torch_does_for_all_is_put_back() -> None:
    def switch() -> None:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float16)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_num_threads(2)
        torch.backends.mha.set_fastpath_enabled(False)

    def switched() -> list[Any]:
        grad, strict = torch.is_grad_enabled(), torch.get_deterministic_debug_mode()
        fast, n = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
        return [grad, strict, fast, n, torch.get_default_dtype()]

    before = switched()
    with restored(switch):
        switch()
        assert all(a != b for a, b in zip(before, switched(), strict=True))
    assert switched() == before


class Tidy(dict):  # type: ignore[type-arg]
    """Counts how often it was changed."""

    changes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.changes += 1
        super().__setitem__(key, value)

    def clear(self) -> None:
        self.changes += 1
        super().clear()


@pytest.mark.slow
@pytest.mark.parametrize("make", [FrozenDict, FrozenOrdered, Tidy])
def test_a_container_that_no_call_changes_is_not_touched(make: Any) -> None:
    module = Separate()
    module.saved = make(width=32)
    healthy(diagnose(module, torch.randn(2, 6, 16)))
    healthy(diagnose(module.bfloat16(), torch.randn(2, 6, 16).bfloat16()))
    assert repr(module.saved) == repr(make(width=32))
    assert not getattr(module.saved, "changes", 0)
