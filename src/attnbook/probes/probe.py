"""The probe: hooks on a model while it runs, and three tables afterwards."""

import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from attnbook.probes.attention import AttentionReader
from attnbook.probes.statistics import (
    activation_row,
    activation_sums,
    aside,
    attention_row,
    norm,
    ratio,
    readable,
    wide,
)
from attnbook.probes.table import Cell, Table

NAME = ("name", "layer", "part")
ACTIVATIONS = (*NAME, "calls", "rms", "variance", "gradient_rms", "cosine", "rank")
ATTENTION = (
    *(*NAME, "calls", "logit_variance", "logit_variance_in_row"),
    *("entropy", "perplexity", "keys", "largest"),
)
PARAMETERS = (*NAME, "rms", "gradient_rms", "update")
UNREAD = (
    "may be an attention, which the probe does not read; it reads F.scaled_dot_product_attention, "
    "in Hugging Face's models attn_implementation='sdpa'"
)

COMPILERS = {"torch._dynamo", "torch.nn.attention.flex_attention"}
"""If one of them is imported, something may be compiled while it runs."""


class Probe:
    r"""Reads a model while it runs inside a ``with`` block; three tables hold what was read.

    Each row has the ``name`` of a module or parameter; the ``layer``, which is the number in that
    name; and the ``part``, the rest of it: ``blocks.3.attention.output`` is layer 3, part
    ``attention.output``, and ``blocks.3`` itself is the part ``block``. What belongs to no layer
    has its whole name as part. With several stacks the part begins with the name of the stack.

    :attr:`activations`
        A row for each module that ran and returned a tensor :math:`X`: ``rms``
        :math:`\sqrt{\overline{x^2}}`, ``variance`` :math:`\overline{(x - \bar x)^2}`, and
        ``gradient_rms``, the same root for the gradient with respect to :math:`X`. If :math:`X` is
        of shape (batch, tokens, width), also the mean ``cosine`` of different tokens of a sequence,
        :math:`x_i \cdot x_j / |x_i||x_j|`, and the ``rank`` of a sequence, the participation ratio
        :math:`(\sum_k \sigma_k^2)^2 / \sum_k \sigma_k^4` of its singular values: 1 if all tokens
        point in one direction, at most min(tokens, width).

    :attr:`attention`
        A row for each attention. Of the logits, over the allowed pairs: ``logit_variance``, and
        ``logit_variance_in_row``, around each query's own mean. Of the weights, means over the
        queries that may attend to something, also of padding: ``entropy``
        :math:`H_i = -\sum_j a_{ij} \ln a_{ij}`, ``perplexity`` :math:`e^{H_i}`, the allowed
        ``keys``, whatever they are, and the ``largest`` weight. Read are
        ``F.scaled_dot_product_attention``, ``nn.MultiheadAttention`` and
        :func:`attnbook.attention.attention_weights`; :attr:`unread` names other softmaxes, also
        those written out, and other functions whose names say that they attend.

    :attr:`parameters`
        A row for each parameter: ``rms`` before the block, ``gradient_rms`` as the last
        ``backward()`` left it, and ``update``, the RMS of its change divided by ``rms``.

    Several calls of a module are read as one: means over all entries, sequences and queries. What
    was not read is ``None``, in a column NaN. Tensors whose entries can't be read one by one are
    skipped: sparse, complex, quantized ones, and those of a subclass.

    The model computes the same to the last bit. Only torch's own Transformer modules, evaluated
    without gradients, differ by rounding: no hook sees their fused paths, so they are not taken.
    At padding those give zeros, and without them there is what the layers give: leave it out of
    means, or make ``nn.TransformerEncoder`` with ``enable_nested_tensor=False``. Compiled models
    run uncompiled. No hook sees into what ``torch.jit`` has made, nor a call of ``forward`` itself,
    which counts as its caller's.

    Args:
        model: any module.
        only: names of modules to look at, or patterns as for files: ``"blocks.*"``,
            ``"*.attention"``. A container that does not run itself stands for what it contains.
            Attentions and parameters are read also inside these modules.
        rank_sequences: how many sequences of a batch the rank is the mean of; ``None`` for all.

    Raises:
        TypeError: if a module is scripted or traced by ``torch.jit``.
        ValueError: if no module fits one of ``only``.
        RuntimeError: if it is entered twice, a table is read before the block has ended, or the
            model runs in another thread.

    Source: Gao et al. 2017 (bioRxiv 214262) for the participation ratio, there of a covariance;
    Hill 1973 for the exponential of the entropy as an effective number.

    Example:
        >>> layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3)
        >>> with Probe(model, only="*self_attn") as probe:
        ...     model(torch.zeros(2, 5, 16)).sum().backward()
        >>> probe.attention["perplexity"]  # of equal tokens: all
        array([5., 5., 5.])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        only: str | Sequence[str] | None = None,
        rank_sequences: int | None = 1,
    ) -> None:
        self._model, self._rank_sequences = model, rank_sequences
        self._modules = {
            module: _clean(name)
            for name, module in model.named_modules()
            if "_orig_mod" not in module._modules  # what torch.compile puts around it
        }
        for module, name in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                raise TypeError(f"{name} is of torch.jit: give the module that it was made from")
        fitting = list(self._modules if only is None else self._fitting(only))
        self._read = {that for module in fitting for that in _that_run(module)}
        self._inside = {inner for module in fitting for inner in module.modules()}
        self._tokens_first = _tokens_first(model)
        self._layer_and_part = _layers(self._modules)
        self._running: list[nn.Module] = []
        self._reader = AttentionReader(self._attending)
        self._activations: dict[nn.Module, list[Tensor]] = defaultdict(list)
        self._gradients: dict[nn.Module, list[tuple[Tensor, int]]] = defaultdict(list)
        self._parameters: dict[str, tuple[nn.Parameter, Tensor]] = {}
        self._parameter_gradients: dict[str, Tensor] = {}
        self._entered, self._thread, self._hooks = False, 0, ExitStack()
        self._tables: dict[str, Table] = {}

    @property
    def activations(self) -> Table:
        """What the modules gave, and the gradients that came back."""
        return self._table("activations")

    @property
    def attention(self) -> Table:
        """What the attentions' logits and weights were like."""
        return self._table("attention")

    @property
    def parameters(self) -> Table:
        """Sizes, gradients and relative updates of the parameters."""
        return self._table("parameters")

    @property
    def unread(self) -> tuple[str, ...]:
        """Each module in which an attention may have run that was not read, and its function."""
        unread = self._reader.unread.items()
        return tuple(f"{self._modules[module]}: {name} {UNREAD}" for module, name in unread)

    def __enter__(self) -> "Probe":
        """Set the hooks."""
        if self._entered:
            raise RuntimeError("a Probe is entered once: make another one for another look")
        self._entered, self._thread = True, threading.get_ident()
        try:
            for module in self._modules:
                self._keep(module.register_forward_pre_hook(self._begin))
                self._keep(module.register_forward_hook(self._end, always_call=True))
            self._watch_parameters()
            if COMPILERS & sys.modules.keys():
                self._hooks.enter_context(torch.compiler.set_stance("force_eager"))
            self._hooks.enter_context(self._reader)
        except BaseException:
            self._hooks.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the hooks; then, if all went well, fill the tables."""
        self._hooks.close()
        unread = ", ".join(self._modules[module] for module in self._reader.unread)
        note = f"not read: {unread} (probe.unread says why)" if unread else ""
        if kind is None:
            with torch.no_grad():
                self._tables = {
                    "activations": Table(ACTIVATIONS, tuple(self._activation_rows())),
                    "attention": Table(ATTENTION, tuple(self._attention_rows()), note),
                    "parameters": Table(PARAMETERS, tuple(self._parameter_rows())),
                }
        self._parameters.clear()

    def _keep(self, handle: Any) -> None:
        """Remove a hook at the end."""
        self._hooks.callback(handle.remove)

    def _table(self, name: str) -> Table:
        if not self._tables:
            raise RuntimeError(
                "nothing to read: run the model in `with probe:`; the tables are there after the "
                "block, if it ended without an error"
            )
        return self._tables[name]

    def _fitting(self, only: str | Sequence[str]) -> Iterator[nn.Module]:
        for pattern in [only] if isinstance(only, str) else only:
            fitting = [m for m, name in self._modules.items() if fnmatchcase(name, pattern)]
            if not fitting:
                names = list(self._modules.values())
                some = ", ".join(names[:12]) + ", …" * (len(names) > 12)
                raise ValueError(f"no module fits {pattern!r}; there are {some}")
            yield from fitting

    # While the model runs.

    def _begin(self, module: nn.Module, _: object) -> None:
        if threading.get_ident() != self._thread and not _in_backward():
            raise RuntimeError(
                "expected the model to run in the thread that entered the block, as attentions are "
                f"not seen in others, got {threading.current_thread().name!r}"
            )
        self._running.append(module)

    def _end(self, module: nn.Module, _: object, output: object) -> None:
        if module in self._running:  # those after it were left by an error
            del self._running[self._running.index(module) :]
        with torch._C.DisableTorchFunction():
            tensor = _first_tensor(output) if module in self._read else None
        if tensor is None:
            return
        with aside(tensor):
            if not _in_backward():  # activation checkpointing: only gradients are new
                swap = tensor.dim() == 3 and module in self._tokens_first
                x = tensor.transpose(0, 1) if swap else tensor
                self._activations[module].append(activation_sums(x, self._rank_sequences))
            if tensor.requires_grad:
                self._keep(tensor.register_hook(partial(self._came_back, module)))

    def _came_back(self, module: nn.Module, gradient: Tensor) -> None:
        if readable(gradient):
            with aside(gradient):
                self._gradients[module].append((norm(gradient), gradient.numel()))

    def _attending(self) -> nn.Module | None:
        """The innermost running module; none during a backward pass, which runs some again."""
        return None if _in_backward() else self._innermost()

    def _innermost(self) -> nn.Module | None:
        """The innermost running module with parameters, if it is looked at."""
        if not self._running:
            return None
        holders = (m for m in reversed(self._running) if next(m.parameters(), None) is not None)
        module = next(holders, self._running[-1])
        return module if module in self._inside else None

    def _watch_parameters(self) -> None:
        inside = {parameter for module in self._inside for parameter in module._parameters.values()}
        for name, parameter in self._model.named_parameters():
            if parameter in inside and readable(parameter):
                self._parameters[_clean(name)] = parameter, parameter.detach().clone()
                if parameter.requires_grad:
                    look = partial(self._look, _clean(name))
                    self._keep(parameter.register_post_accumulate_grad_hook(look))

    def _look(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        if readable(gradient):
            with aside(gradient):
                self._parameter_gradients[name] = norm(gradient)

    # Afterwards.

    def _activation_rows(self) -> Iterator[tuple[Cell, ...]]:
        for module, name in self._modules.items():
            if calls := self._activations.get(module):
                rms, variance, *likeness = activation_row(_summed(calls))
                back = [(float(a), n) for a, n in self._gradients[module]]
                square = ratio(sum(a * a for a, _ in back), sum(n for _, n in back))
                gradient = None if square is None else math.sqrt(square)
                numbers = (rms, variance, gradient, *likeness)
                yield (name, *self._layer_and_part(name), len(calls), *numbers)

    def _attention_rows(self) -> Iterator[tuple[Cell, ...]]:
        for module, name in self._modules.items():
            if calls := self._reader.sums.get(module):
                numbers = attention_row(_summed(calls))
                yield (name, *self._layer_and_part(name), len(calls), *numbers)

    def _parameter_rows(self) -> Iterator[tuple[Cell, ...]]:
        for name, (parameter, before) in self._parameters.items():
            size, root = float(norm(before)), math.sqrt(before.numel())
            now = parameter.detach().to(before)
            change = 0.0 if torch.equal(now, before) else float(norm(wide(now) - wide(before)))
            update = change / size if size else change and math.inf
            gradient = self._parameter_gradients.get(name)
            back = None if gradient is None else float(gradient) / root
            yield (name, *self._layer_and_part(name), size / root, back, update)


def _summed(calls: list[Tensor]) -> list[float]:
    sums: list[float] = torch.stack([sums.cpu() for sums in calls]).sum(0).tolist()
    return sums


def _first_tensor(output: object) -> Tensor | None:
    """The first readable tensor with a dimension or more, of one or several."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    for x in output if isinstance(output, tuple | list) else (output,):
        if readable(x) and x.dim():
            return x
    return None


def _that_run(module: nn.Module) -> Iterator[nn.Module]:
    """The module; of a mere container, what it contains."""
    if type(module).forward is not nn.Module.forward and "_orig_mod" not in module._modules:
        yield module
    else:
        for item in module.children():
            yield from _that_run(item)


def _tokens_first(model: nn.Module) -> set[nn.Module]:
    """The attentions and Transformers of torch with ``batch_first=False``, and all inside them."""
    return {
        inner
        for module in model.modules()
        if type(module).__module__.startswith(("torch.nn.modules.act", "torch.nn.modules.transf"))
        and any(not getattr(inner, "batch_first", True) for inner in module.modules())
        for inner in module.modules()
    }


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _clean(name: str) -> str:
    """The name as the model's author knows it; torch.compile adds to it."""
    return ".".join(word for word in name.split(".") if word != "_orig_mod") or "(model)"


def _is_stack(items: list[nn.Module]) -> bool:
    """All of one class, or some class with modules inside comes twice."""
    blocks = [type(item) for item in items if item._modules]
    return len({type(item) for item in items}) == 1 or len(set(blocks)) < len(blocks)


def _stacks(modules: Mapping[nn.Module, str]) -> set[str]:
    """Containers of numbered blocks; if there are none, all containers of numbered modules."""
    numbered = {
        name: list(module.children())
        for module, name in modules.items()
        if module._modules and all(key.isdigit() for key in module._modules)
    }
    return {name for name, items in numbered.items() if _is_stack(items)} or set(numbered)


def _layers(modules: Mapping[nn.Module, str]) -> Callable[[str], tuple[int | None, str]]:
    """Layer and part of a name: by the outermost stack."""
    prefixes = {"" if stack == "(model)" else f"{stack}.": stack for stack in _stacks(modules)}
    inner = {a for a in prefixes for b in prefixes if a != b and a.startswith(b)}
    outer = {prefix: stack for prefix, stack in prefixes.items() if prefix not in inner}
    items = {name: "block" if m._modules else type(m).__name__ for m, name in modules.items()}

    def layer_and_part(name: str) -> tuple[int | None, str]:
        for prefix, stack in outer.items():
            number, _, inside = name.removeprefix(prefix).partition(".")
            if number.isdigit() and name.startswith(prefix):
                part = inside or items[name]
                return int(number), f"{stack}.{part}" if len(outer) > 1 else part
        return None, name

    return layer_and_part
