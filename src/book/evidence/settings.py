"""What was measured: the models, trainings and records that a claim's numbers come from.

Nothing of it is typed. While a row of a study or a chapter runs, an :class:`Observer` notes which
models are made and how they are trained, which rows of records are read, and which claims are
stated. :func:`book.evidence.cells.behind` makes of that what each claim was measured on.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, SupportsFloat
from weakref import WeakKeyDictionary, ref

from torch import Tensor, get_default_dtype, nn
from torch.optim import Optimizer

from attnbook.blocks import Residual

SETTINGS = Path("chapters/measured_on.json")
"""Of each chapter what was met, and which of it is behind each claim."""

Setting = dict[str, Any]
"""A model, and how it was trained: field -> value; what is not there is not said."""
Seen = tuple[str, Any, int]
"""A ``cell`` began, a ``setting`` was met, a row was ``read``, or a ``claim`` was stated: in which
line of its cell."""

MODEL = {
    "n_layers": "blocks",
    "d_model": "width",
    "n_heads": "heads",
    "n_kv_heads": "key-value heads",
    "norm": "norm",
    "norm_kind": "kind of norm",
    "position": "positions",
    "tied": "tied",
    "activation": "activation",
}
TRAINING = {
    "learning_rate": "rate",
    "schedule": "schedule",
    "warmup": "warm-up",
    "steps": "steps",
    "weight_decay": "decay",
    "clip": "clip",
}
CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "Identity", "Dropout")
USUAL = {"schedule": "constant", "warm-up": 0, "decay": 0.0, "kind of norm": "layer"}
"""What goes without saying."""
TASKS = {
    "reversal": "words backwards",
    "text": "Python text",
    "collocation": "collocations",
    "dates": "dates",
    "tales": "tales",
}
OWN_TASKS = {"backwards": TASKS["reversal"]}
"""A study's function that makes batches -> its task."""
FIELDS = (
    *("model", "blocks", "width", "heads", "key-value heads", "norm", "kind of norm"),
    *("positions", "activation", "tied", "start", "task", "batch", "optimizer", "rate"),
    *("schedule", "warm-up", "steps", "decay", "clip", "format", "device"),
)


Rows = frozenset[tuple[str, str]]
"""Of records: pairs of a study and a case."""


def _through(name: str) -> Callable[..., Any]:
    """An operation of floats whose result knows the rows of both sides."""
    plain = getattr(float, name)

    def operation(self: "Recorded", *others: Any) -> Any:
        result = plain(self, *others)
        if not isinstance(result, float):
            return result
        return Recorded(result, self.rows.union(*map(rows_of, others)))

    return operation


class Recorded(float):
    """A recorded number that knows the rows it comes from, through sums and products too.

    Example:
        >>> loss = Recorded(3.0, frozenset({("sizes", "small")}))
        >>> (2 - loss / 2).rows
        frozenset({('sizes', 'small')})
    """

    rows: Rows

    def __new__(cls, value: SupportsFloat, rows: Rows = frozenset()) -> "Recorded":
        """The number, from these rows; ``statistics.mean`` gives none."""
        number = super().__new__(cls, value)
        number.rows = rows
        return number

    __add__, __radd__ = _through("__add__"), _through("__radd__")
    __sub__, __rsub__ = _through("__sub__"), _through("__rsub__")
    __mul__, __rmul__ = _through("__mul__"), _through("__rmul__")
    __truediv__, __rtruediv__ = _through("__truediv__"), _through("__rtruediv__")
    __pow__, __rpow__ = _through("__pow__"), _through("__rpow__")
    __neg__, __abs__, __round__ = _through("__neg__"), _through("__abs__"), _through("__round__")


def rows_of(value: object) -> Rows:
    """The rows that a number, or a list of numbers, comes from."""
    if isinstance(value, Recorded):
        return value.rows
    if isinstance(value, list | tuple):
        return frozenset().union(*map(rows_of, value))
    return frozenset()


def recorded(value: Any, rows: Rows) -> Any:
    """The same number, or list of numbers, and it knows where it comes from."""
    if isinstance(value, list):
        return [recorded(each, rows) for each in value]
    return Recorded(value, rows) if type(value) is float else value


class Observer:
    """Notes what is made, trained, read and claimed, as a profiler calls it for each function."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._handlers: dict[int, Callable[[FrameType], None]] = {}
        self._made: list[tuple[ref[Any], Setting]] = []
        self._training: tuple[FrameType, Setting] | None = None
        """The last one by the package; its frame is kept, so that no other takes its identity."""
        self._loops: WeakKeyDictionary[Optimizer, Setting] = WeakKeyDictionary()
        """The optimizers of other loops."""
        self._stacks_in: FrameType | None = None
        """Where the last block was made: those that are made there are one stack."""

    def meet(self, code: CodeType) -> None:
        """A function is called for the first time; is it one to look at?"""
        place, name = code.co_filename.replace(os.sep, "/"), code.co_qualname
        handler = None
        if "/attnbook/" in place:
            module = place.rpartition("/attnbook/")[2]
            if name.endswith(".__init__"):
                handler = self._make
            elif module.startswith("tasks/") and name.endswith("batch"):
                handler = self._task
            else:
                handler = {
                    ("initialization.py", "initialize"): self._start,
                    ("training/loop.py", "train"): self._train,
                    ("training/loop.py", "_backward"): self._batch,
                }.get((module, name))
        elif "/torch/optim/" in place and name.endswith(".step"):
            handler = self._step
        elif place.endswith("/torch/nn/modules/module.py") and name == "Module.__init__":
            handler = self._make_own
        elif place.endswith("/book/evidence/records.py") and name == "Study.__getitem__":
            handler = self._read
        elif place.endswith("/book/evidence/claims.py") and name == "claim":
            handler = self._claim
        if handler is not None:
            self._handlers[id(code)] = handler

    def look(self, frame: FrameType) -> None:
        """A function is called."""
        if handler := self._handlers.get(id(frame.f_code)):
            handler(frame)

    def begin(self, source: str) -> None:
        """A cell of a notebook runs."""
        self.seen.append(("cell", source, 0))

    @property
    def settings(self) -> list[Setting]:
        """Those that were met."""
        return distinct(setting for kind, setting, _ in self.seen if kind == "setting")

    def _met(self, kind: str, what: Any, frame: FrameType) -> None:
        self.seen.append((kind, what, _line_in_cell(frame)))

    def _make(self, frame: FrameType) -> None:
        made, given, caller = frame.f_locals.get("self"), frame.f_locals, _caller(frame)
        if made is None or caller is None or "/attnbook/" in caller.f_code.co_filename:
            return  # a part of something larger
        if isinstance(made, Residual) and self._made:  # put into a block: another norm
            self._met("setting", self._made[-1][1] | {"norm": given["norm"]}, frame)
            return
        sizes = getattr(given.get("config"), "__dict__", given)
        setting: Setting = {"model": _kind(type(made))} | _chosen(sizes, MODEL)
        if "width" not in setting or "heads" not in setting:
            return
        setting["format"] = _dtype(get_default_dtype())
        if setting["model"] == "Block":
            if stack := self._stack_of(setting, caller):
                self._made.append((ref(made), stack))
                return
            self._stacks_in = caller
            setting["blocks"] = 1
        self._made.append((ref(made), setting))
        self._met("setting", setting, frame)

    def _make_own(self, frame: FrameType) -> None:
        """A module that is none of the package's, and no part of another."""
        made, maker = frame.f_locals["self"], frame.f_back
        while maker and maker.f_code.co_name == "__init__":
            if maker.f_locals.get("self") is not made:
                return
            maker = maker.f_back
        name, home = type(made).__name__, type(made).__module__.partition(".")[0]
        if maker is None or home == "attnbook" or name in CONTAINERS:
            return
        if re.search(r"/torch/|/attnbook/", maker.f_code.co_filename):
            return
        setting = {"model": f"nn.{name}" if home == "torch" else name}
        self._made.append((ref(made), setting | {"format": _dtype(get_default_dtype())}))
        self._met("setting", self._made[-1][1], frame)

    def _stack_of(self, block: Setting, caller: FrameType) -> Setting | None:
        """The stack that the last block is in, with one more, if this one is alike."""
        if not self._made or caller is not self._stacks_in:
            return None
        last = self._made[-1][1]
        if any(last.get(field) != value for field, value in block.items()):
            return None
        last["blocks"] += 1
        return last

    def _setting_of(self, model: object) -> Setting:
        """Of a model that was made here, or of a copy of one."""
        found: list[Setting] = [setting for made, setting in self._made if made() is model]
        if found:
            return found[-1]
        config = getattr(getattr(model, "config", None), "__dict__", {})
        copied: Setting = {"model": _kind(type(model))} | _chosen(config, MODEL)
        self._made.append((ref(model), copied))
        return copied

    def _start(self, frame: FrameType) -> None:
        model, scheme = frame.f_locals["model"], frame.f_locals["scheme"]
        inside = {*map(id, model.modules())}  # blocks may stand in a stack
        found = [setting for made, setting in self._made if id(made()) in inside]
        for setting in found or [self._setting_of(model)]:
            setting["start"] = scheme

    def _train(self, frame: FrameType) -> None:
        model, config = frame.f_locals["model"], frame.f_locals["config"]
        untrained, weight = self._setting_of(model), next(model.parameters(), None)
        setting = untrained | {"optimizer": "AdamW" if config.weight_decay else "Adam"}
        setting |= _chosen(vars(config), TRAINING)
        around = frame.f_back  # the tasks' own training hands on what it is given
        given = around.f_locals if around and around.f_code.co_name == "train" else frame.f_locals
        names = getattr(getattr(given.get("next_batch"), "__code__", None), "co_names", ())
        if own := next((task for name, task in OWN_TASKS.items() if name in names), None):
            setting["task"] = own
        if weight is not None:
            setting["format"] = "bfloat16" if config.bfloat16 else _dtype(weight.dtype)
            setting["device"] = weight.device.type
        self._training = frame, setting
        if self.seen and self.seen[-1][1] is untrained:
            self.seen.pop()  # it was made to be trained
        self._met("setting", setting, frame)

    def _training_around(self, frame: FrameType | None) -> Setting | None:
        while self._training and frame:
            if frame is self._training[0]:
                return self._training[1]
            frame = frame.f_back
        return None

    def _batch(self, frame: FrameType) -> None:
        setting, first = self._training_around(frame), frame.f_locals["batch"][0]
        if setting is not None and isinstance(first, Tensor):
            setting.setdefault("batch", len(first))

    def _task(self, frame: FrameType) -> None:
        setting = self._training_around(frame)
        if setting is None and self.seen and self.seen[-1][0] == "setting":
            setting = self.seen[-1][1]
        task = TASKS.get(Path(frame.f_code.co_filename).stem)
        if task and setting is not None:
            setting.setdefault("task", task)

    def _step(self, frame: FrameType) -> None:
        """Of a loop that is not the package's: each step counts."""
        optimizer = frame.f_locals.get("self")
        if not isinstance(optimizer, Optimizer) or self._training_around(frame):
            return
        if optimizer not in self._loops:
            parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
            owners = (
                setting
                for made, setting in reversed(self._made)
                if isinstance(model := made(), nn.Module)
                and any(id(p) in parameters for p in model.parameters())
            )
            setting = next(owners, None)
            if setting is None or "optimizer" in setting:
                setting = {**(setting or {})}
                self._met("setting", setting, frame)
            setting |= {"optimizer": type(optimizer).__name__, "rate": 0.0, "steps": 0}
            self._loops[optimizer] = setting
        setting, rate = self._loops[optimizer], optimizer.param_groups[0]["lr"]
        setting["steps"] += 1
        if rate > setting["rate"]:  # it grows: a warm-up
            setting |= {"rate": rate} | ({"warm-up": setting["steps"]} if setting["rate"] else {})

    def _read(self, frame: FrameType) -> None:
        study, key = frame.f_locals["self"], frame.f_locals["key"]
        self._met("read", [study.name, "" if isinstance(key, str) else key[0]], frame)

    def _claim(self, frame: FrameType) -> None:
        given = frame.f_locals
        rows = rows_of([given["measured"], given["exceeds"], given["equals"]])
        self._met("claim", [given["label"], sorted(map(list, rows))], frame)


def _line_in_cell(frame: FrameType | None) -> int:
    """The line of a notebook's cell that is at work; 0 in none."""
    while frame:
        code = frame.f_code
        if code.co_name == "<module>" and "ipykernel" in code.co_filename:
            return frame.f_lineno
        frame = frame.f_back
    return 0


def _caller(frame: FrameType) -> FrameType | None:
    """The one that called; checks of types, which stand between in tests, are passed over."""
    caller = frame.f_back
    while caller and re.search(r"^<|/jaxtyping/|/beartype/", caller.f_code.co_filename):
        caller = caller.f_back
    return caller


def _kind(of: type) -> str:
    """The package's name of a class, or of what it was made from."""
    ours = (c.__name__ for c in of.__mro__ if c.__module__.partition(".")[0] == "attnbook")
    return next(ours, of.__name__)


def _dtype(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _chosen(given: Mapping[str, Any], fields: Mapping[str, str]) -> Setting:
    return {
        field: given[name]
        for name, field in fields.items()
        # A position, say, may be a module.
        if isinstance(given.get(name), str | int | float) and given[name] != USUAL.get(field)
    }


def distinct(settings: Iterable[Setting]) -> list[Setting]:
    """Each once; what was trained is not named untrained as well."""
    found = {json.dumps(setting, sort_keys=True): setting for setting in settings if setting}
    return [
        {field: each[field] for field in FIELDS if field in each}
        for each in found.values()
        if not any(each.items() < other.items() for other in found.values())
    ]
