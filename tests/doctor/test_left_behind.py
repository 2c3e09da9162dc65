"""What a call leaves behind, a start that can't be left, caches, targets, and cut gradients."""

from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbook.doctor import diagnose
from attnbook.doctor.manners import restored
from tests.doctor.specimens.attentions import Separate
from tests.doctor.specimens.museum import healthy

MASK = {"mask": {"argument": "mask", "dtype": "int"}}
CLOSED = ("mask forbids everything",)


class Kept(nn.Module):
    """One head that keeps, makes, changes or forgets something."""

    def __init__(self, bug: str = "", d: int = 12) -> None:
        super().__init__()
        self.bug, self.saved = bug, None
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        if bug == "equal":
            for layer in self.children():
                nn.init.constant_(layer.weight, 0.05)
        if bug in ("zeros", "zero output"):
            for layer in (self.o, self.v) if bug == "zeros" else (self.o,):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.bug == "mode":
            self.eval()
        if self.bug == "dropout lost" and self.saved != "lost":
            self.saved = None if self.training else "lost"
            x = F.dropout(x, 0.1, self.training)
        if self.bug == "frozen":
            self.q.weight.requires_grad_(False)
        if self.bug == "pads" and mask is not None:
            x[mask == 0] = 0
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        if self.bug == "first scale":
            self.saved = scores.std() if self.saved is None else self.saved
            scores = scores / self.saved
        if mask is not None and self.bug != "ignored":
            blocked = (~mask).bool() if self.bug == "inverted" else mask == 0
            if self.bug == "old mask":
                blocked = self.saved = blocked if self.saved is None else self.saved
            scores = scores.masked_fill(blocked[:, None], -1e9)
        weight = self.v.weight
        if self.bug == "old weights":
            self.saved = weight * 1 if self.training or self.saved is None else self.saved
            weight = self.saved
        y = scores.softmax(-1) @ F.linear(x, weight, self.v.bias)
        if self.bug == "thrown away":
            self.o(y)
            return y
        return (nn.Linear(12, 12) if self.bug == "made" else self.o)(y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "cause", "claims"),
    [
        ("mode", "changes modes", {}),
        ("frozen", "changes modes", {}),
        ("pads", "changes its arguments", MASK),
        ("first scale", "remembers the last call", {}),
        ("old weights", "remembers the last call", {}),
        ("made", "layer made in forward", {}),
        ("inverted", "mask forbids everything", MASK),
        ("ignored", "mask ignored", {}),
        ("equal", "weights all equal", {}),
        ("zeros", "zeros that stay zeros", {}),
        ("dropout lost", "remembers the last call", {}),
        ("thrown away", "parameter not used", {}),
    ],
)
def test_what_a_call_does(bug, cause, claims) -> None:
    torch.manual_seed(0)
    report = diagnose(Kept(bug), torch.randn(2, 6, 12), **claims)
    assert report.causes == (cause,), report
    healthy(diagnose(Kept(), torch.randn(2, 6, 12), **claims))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "causes"),
    [("", ()), ("old mask", ("remembers the last call",)), ("inverted", CLOSED)],
)
def test_a_mask_of_the_example(bug, causes) -> None:
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    assert diagnose(Kept(bug), torch.randn(2, 6, 12), mask).causes == causes


def test_lazy_weights() -> None:
    model = nn.Sequential(Kept(), nn.LazyLinear(12))
    healthy(diagnose(model, torch.randn(2, 6, 12)))
    assert model[1].in_features == 0
    report = diagnose(lambda x: model(x), torch.randn(2, 6, 12))
    assert report.causes == ("the example can't be called",)


class Drawn(Kept):
    """Its first inputs set a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(12))
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        if not self.is_set:
            self.gain.data.copy_(1 / x.std((0, 1)))
            self.is_set.fill_(True)
        return super().forward(x * self.gain)


def test_a_start_drawn_from_the_first_inputs_is_right() -> None:
    healthy(diagnose(Drawn(), torch.randn(2, 6, 12)))


@pytest.mark.slow
def test_an_output_of_zeros_is_a_right_start() -> None:
    healthy(diagnose(Kept("zero output"), torch.randn(2, 6, 12)))


class Shrunk(Kept):
    """Learns its input's embedding slowly, as some large models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 12)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        x = self.embedding(ids)
        return super().forward(0.1 * x + 0.9 * x.detach())


def test_a_gradient_made_smaller_is_right() -> None:
    healthy(diagnose(Shrunk(), torch.randint(9, (2, 6))))


State = tuple[Tensor, Tensor, int]


class Cached(nn.Module):
    """Keys and values in a list that grows, or in slots."""

    def __init__(self, bug: str = "", slots: int = 0, d: int = 12) -> None:
        super().__init__()
        self.bug, self.slots = bug, slots
        self.qkv = nn.Linear(d, 3 * d)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        b, t, d = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        old = x.new_zeros(b, self.slots, d)
        keys, values, n = (old, old, 0) if state is None else state
        if self.slots:
            keys, values = (F.pad(z[:, :n], (0, 0, 0, self.slots - n)) for z in (keys, values))
            at = torch.arange(n, n + t)
            keys, values = keys.index_copy(1, at, k), values.index_copy(1, at, v)
            allowed = torch.arange(self.slots) <= at[:, None]
            if self.bug == "free":
                allowed |= torch.arange(self.slots) >= n + t
        else:
            order = -1 if self.bug == "order" else 1
            keys, values = (torch.cat(z[::order], 1) for z in ((keys, k), (values, v)))
            allowed = torch.ones(t, n + t, dtype=torch.bool).tril(n)
        scores = (q @ keys.mT / d**0.5).masked_fill(~allowed, -torch.inf)
        return scores.softmax(-1) @ values, (keys, values, n + t)


@pytest.mark.parametrize(
    ("bug", "slots", "cause"),
    [("order", 0, "cache in another order"), ("free", 16, "free slots are attended to")],
)
def test_caches(bug, slots, cause) -> None:
    claims = {"causal": True, "cache": lambda module, x, state: module(x, state)}
    torch.manual_seed(0)
    report = diagnose(Cached(bug, slots), torch.randn(2, 7, 12), **claims)
    assert report.causes == (cause,), report
    healthy(diagnose(Cached("", slots), torch.randn(2, 7, 12), **claims))


def loss(logits: Tensor, ids: Tensor, bug: str = "") -> Tensor:
    """Of logits and the ids that gave them."""
    if bug == "over the batch":
        return F.cross_entropy(logits[:-1].flatten(0, 1), ids[1:].flatten(), ignore_index=0)
    if bug == "view":
        logits = logits.reshape(len(ids), 13, -1).mT
    if bug == "unshifted":
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten(), ignore_index=0)
    targets = ids[:, 1:].masked_fill(ids[:, 1:] == (3 if bug == "ends" else 0), 0)
    n = 1 if bug == "one sequence" else len(ids)
    return F.cross_entropy(logits[:n, :-1].flatten(0, 1), targets[:n].flatten(), ignore_index=0)


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        ("unshifted", "loss without shift"),
        ("ends", "real targets are ignored"),
        ("one sequence", "real targets are ignored"),
        ("over the batch", "batch and tokens exchanged"),
        ("view", "logits reshaped across tokens"),
    ],
)
def test_targets(bug, cause) -> None:
    example = torch.randn(2, 8, 13), torch.randint(1, 13, (2, 8))
    claims = {"causal": True, "padding_id": 0}
    assert diagnose(partial(loss, bug=bug), *example, **claims).causes == (cause,)
    healthy(diagnose(loss, *example, **claims))


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
    module = Kept()
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
