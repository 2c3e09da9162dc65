"""Instruments: what a model's activations, attentions, gradients and updates are like.

They read any torch model, ours, ``torch.nn``'s, Hugging Face's or a reader's own, without a line of
it being changed, and leave nothing behind:

>>> import torch
>>> from attnbook import LanguageModel, ModelConfig
>>> model = LanguageModel(ModelConfig(vocab_size=10, d_model=32, n_layers=2))
>>> optimizer = torch.optim.Adam(model.parameters())
>>> ids = torch.randint(10, (2, 8))
>>> with Probe(model) as probe:
...     model.loss(ids[:, :-1], ids[:, 1:]).backward()
...     _ = optimizer.step()  # only if you want to see the updates
>>> probe.activations.where(part="block")["rms"].shape  # the stream after each of the two blocks
(2,)
>>> probe.attention.where(layer=0)["keys"]  # causal, 7 tokens: 1 to 7 keys, 4 on average
array([4.])
>>> float(probe.parameters.where(name="*.query.weight")["update"].max()) < 0.1
True
"""

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from functools import partial
from types import FunctionType, TracebackType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnbook.tables import Cell, Table

PLACE = ("name", "layer", "part")
ACTIVATIONS = (*PLACE, "calls", "rms", "variance", "gradient_rms", "cosine", "rank")
ATTENTION = (
    *(*PLACE, "calls", "logit_variance", "logit_variance_in_row"),
    *("entropy", "perplexity", "keys", "largest"),
)
PARAMETERS = (*PLACE, "rms", "gradient_rms", "update")

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
SOFTMAXES = {"softmax", "special_softmax", "softmin"}
LAYERS = {
    *("linear", "bilinear", "addmm", "mm", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *(f"conv{transpose}{n}d" for transpose in ("", "_transpose") for n in (1, 2, 3)),
}
"""What comes out of them is no logit and no weight any more, whatever went in."""
FAR, LOWEST = 1000.0, -5000.0
"""Logits this far below their row's largest, or this low, stand for a mask: −∞, −10⁴, −10⁹, …"""
SEQUENCES = (
    *(nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *(nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer),
)
ENTRIES_AT_ONCE = 2**20
"""Logits computed again at a time: what a processor's cache holds."""
LENGTHS_AT_ONCE = 2**20
"""Lengths of tokens kept until they are reduced: of many outputs at once is faster."""
SAFE, TINY = 1e-15, torch.finfo(torch.float32).tiny
"""Lengths above ``SAFE`` lose nothing to squares that single precision can't hold."""


class Probe:
    r"""Reads a model while it runs inside a ``with`` block.

    Three tables are there when the block has ended. Every row has the ``name`` of a module or
    parameter as ``named_modules`` gives it, the ``layer``, the number in the name of the stack's
    item, and the ``part``, the name within that item: ``blocks.3.attention.output`` is layer 3,
    part ``attention.output``. An item itself is the part ``block``: for a block of a Transformer,
    the stream after it. (An item without modules in it has its class as part: ``Linear``.) With
    several stacks the part says which: ``encoder_blocks.attention``. What belongs to no layer has
    its whole name as part; the model itself is ``(model)``. What has several names, a shared module
    or a tied parameter, has one row, under the first of them. A stack is a container of numbered
    modules (``nn.ModuleList``, ``nn.Sequential``), all of one class or some class with modules
    inside coming twice; of stacks within each other the outermost, and in a model without any,
    whatever is numbered.

    :attr:`activations`
        A row for each module that ran and gave a floating tensor: not for an ``nn.ModuleList``, nor
        for a module whose weights its owner uses without calling it (``out_proj`` in
        ``nn.MultiheadAttention``). Over all entries of its output :math:`X` (the first such tensor
        with a dimension or more, if it returns several, in a dataclass, too):

        - ``rms`` :math:`\sqrt{\overline{x^2}}`; ``variance`` :math:`\overline{(x - \bar x)^2}`,
          as exact as the difference :math:`\overline{x^2} - \bar x^2` is: in single precision to
          about a millionth of :math:`\overline{x^2}`;
        - ``gradient_rms``, the same root for the gradient of what was backpropagated with respect
          to the output (after two backward passes through one forward, over the entries of both
          gradients, while a parameter has the sum of its two); none without a backward pass, and
          mostly where the next module overwrites the output (``nn.ReLU(inplace=True)``);
        - ``cosine``, for outputs of shape (batch, tokens, width): the mean of
          :math:`x_i \cdot x_j / |x_i||x_j|` over the pairs of different tokens of a sequence (a
          token of zeros has cosine 0 with all), then over the sequences;
        - ``rank``, of the same: the participation ratio
          :math:`(\sum_k \sigma_k^2)^2 / \sum_k \sigma_k^4` with the singular values
          :math:`\sigma_k` of the tokens' matrix of a sequence, not centred; 1 if all tokens point
          in one direction, at most min(tokens, width); of each call's first sequence, or the mean
          over its first ``rank_sequences`` without those that are all zero.

        The two take every output of three dimensions for (batch, tokens, width), except in torch's
        own attentions and Transformer layers with ``batch_first=False`` and all inside them: these
        are (tokens, batch, width). In other sequence-first modules they are of no use.

    :attr:`attention`
        A row for each attention, wherever and however it is computed. Before the softmax, over the
        allowed pairs of query and key: ``logit_variance``, and ``logit_variance_in_row``, the mean
        over pairs (so a query with many keys counts more) of :math:`(s_{ij} - \bar s_i)^2` with
        each query's own mean, which is what the softmax sees.
        After the softmax, before any dropout, means over the queries that may attend to something
        (where weights are returned, our attention gives a row without any key equal logits, and the
        probe counts it):
        ``entropy`` :math:`H_i = -\sum_j a_{ij} \ln a_{ij}` in nats; ``perplexity``, the mean of
        :math:`e^{H_i}` (and not the exponential of the mean); ``keys``, how many are allowed;
        ``largest``, the largest weight.

    :attr:`parameters`
        A row for each parameter: ``rms`` before the block; ``gradient_rms`` of its ``.grad`` as the
        last ``backward()`` inside the block that reached it left it (so of a sum, if an earlier
        gradient was not zeroed), before any clipping, none without a ``backward()``, if it was
        unfrozen inside the block only, or where an optimizer that steps within ``backward()`` has
        used it up; ``update``, rms of its change divided by ``rms``: 0 if it did not change, ∞ if
        it was zero before and did. Complex ones count by their magnitudes. Buffers have no row.

    A module that ran several times has one row with the number of ``calls``, and is read as if the
    calls were one: mean squares over all entries, means over all sequences and queries. What was
    not read is ``None`` (printed –, NaN in a column's array); NaN in a row is a NaN of the model.
    Not read is what has no entries to read one by one: sparse, nested, quantized, complex (but for
    parameters) and 8-bit floating tensors, those on the meta device or inside ``torch.vmap``, and
    parameters of lazy modules that have not run yet.

    The model computes what it computes without the probe, to the last bit, gradients and random
    numbers too, with one exception: in evaluation without gradients ``nn.MultiheadAttention``,
    ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` take fused paths of their own,
    which no hook can look into; while probed, torch takes the usual ones. They differ by rounding,
    and in padded tokens, which the fused path of ``nn.TransformerEncoder`` sets to zero.
    At the end, also after an error, every hook is removed; what is not backpropagated by then is
    not seen. (A copy of the model made inside the block, or saved there, keeps hooks that do
    nothing.) Of what the model computes a few numbers a call are kept, and for a while one a token;
    each parameter is copied at the start.

    **What counts as an attention**, while a module of the model runs: calls of
    ``F.scaled_dot_product_attention`` (the logits are computed again), and softmaxes over the last
    dimension of a product of two tensors of three or more dimensions, queries and keys, neither a
    parameter or a view of one; scaled, biased, masked, cut or joined in between or not (a column
    joined to it, a sink, is a key), but not through a layer with weights or a product with other
    attention weights. So the softmax over a vocabulary or over experts is none. Each is the row of
    the innermost running module that has parameters. Forbidden pairs are what a Boolean mask given
    to the fused function says; else the logits below −5000, or by more than 1000 below the largest
    of their query, whether a mask made them so or not. Not seen: kernels that bypass torch
    (flash-attn), ``flex_attention``, what ``torch.jit.script`` made, ``F.gumbel_softmax``; in a
    model that another thread runs; attention on tensors of two dimensions; logits from
    ``torch.cdist`` or ``(q * k).sum(-1)``, or of a query that is a parameter itself; weights from
    ``log_softmax(…).exp()``, one's own exponentials and sums, or a softmax over another dimension,
    transposed afterwards. Compiled models run uncompiled while probed. Recomputation in the
    backward pass (activation checkpointing) is not counted as a call.

    Args:
        model: any module.
        only: names of modules to look at, patterns as for files, one or several; everything if not
            given. ``*`` stands for dots, too: ``"blocks.*"`` is all that is in the blocks,
            ``"*.attention"`` the attention of each. Activations are of the modules that fit (a
            container that does not run itself, ``"blocks"``, stands for what it contains: each
            block); attentions and parameters also of all inside them.
        rank_sequences: the rank of more sequences costs more time, ``None`` takes all. With the
            default, a step at d=256, 4 layers, batch 8 takes 1.2 to 1.4 times as long as without
            the probe on one thread (``benchmarks/README.md``).

    Raises:
        TypeError: if ``model`` is no module or one that ``torch.jit`` made (inside another such a
            module is left out), ``only`` no names, or ``rank_sequences`` no number.
        ValueError: if no module fits one of ``only``, naming some that exist; or
            ``rank_sequences`` is not positive.
        RuntimeError: if it is entered twice, or a table is read before the block has ended, or
            after it ended with an error.

    Source: Gao et al. 2017 (bioRxiv 214262) for the participation ratio, there of a covariance;
    Hill 1973 for the exponential of the entropy as an effective number.

    Example:
        >>> layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3)
        >>> with Probe(model, only="*self_attn") as probe:
        ...     model(torch.zeros(2, 5, 16)).sum().backward()
        >>> probe.attention["perplexity"]  # of equal tokens: all
        array([5., 5., 5.])
        >>> probe.activations.parts
        ['self_attn']
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        only: str | Sequence[str] | None = None,
        rank_sequences: int | None = 1,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"a probe reads a torch module, got a {type(model).__name__}")
        if isinstance(model, torch.jit.ScriptModule):
            raise TypeError(
                f"a probe reads modules of Python, got a {type(model).__name__}: probe the model "
                "that it was made from"
            )
        if not isinstance(rank_sequences, int | None):
            raise TypeError(f"rank_sequences must be an int or None, got {rank_sequences!r}")
        if rank_sequences is not None and rank_sequences < 1:
            raise ValueError(f"rank_sequences must be positive or None, got {rank_sequences}")
        self._model, self._ranked = model, rank_sequences
        self._modules = {
            module: _clean(name)
            for name, module in model.named_modules()
            if "_orig_mod" not in module._modules  # what torch.compile puts around it
            and not isinstance(module, torch.jit.ScriptModule)
        }
        fitting = list(self._modules) if only is None else self._fitting(only)
        self._chosen = {one for module in fitting for one in self._that_run(module)}
        self._inside: set[nn.Module] = set()
        for module in fitting:
            if module not in self._inside:
                self._inside.update(module.modules())
        self._tokens_first = _tokens_first(self._modules)
        self._places = _places(self._modules)
        self._state = "not entered"
        self._running: list[nn.Module] = []
        self._handles: list[Any] = []
        self._contexts = ExitStack()
        self._outputs: dict[nn.Module, list[_Output]] = defaultdict(list)
        self._described: list[tuple[_Output, torch.Size, Tensor]] = []
        self._lengths = 0
        self._last: tuple[weakref.ref[Tensor], float, _Output] | None = None
        self._attentions: dict[nn.Module, list[list[Tensor]]] = defaultdict(list)
        self._before: dict[str, tuple[nn.Parameter, Tensor, Tensor]] = {}
        self._gradients: dict[str, Tensor] = {}
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

    def __enter__(self) -> "Probe":
        """Set the hooks."""
        if self._state != "not entered":
            raise RuntimeError("a Probe is entered once: make another one for another look")
        self._state = "running"
        try:
            for module in self._modules:
                self._handles += [
                    module.register_forward_pre_hook(_Hook(self._begin)),
                    module.register_forward_hook(_Hook(self._end), always_call=True),
                ]
            self._watch()
            if any(_is_compiled(module) for module in self._model.modules()):
                self._contexts.enter_context(torch.compiler.set_stance("force_eager"))
            self._contexts.enter_context(_Attentions(self._attention))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the hooks; then, if all went well, fill the tables."""
        self._state = f"ended with {kind.__name__ if kind else 'an error of the probe itself'}"
        try:
            self._remove()
            if kind is None:
                with _aside(torch.device("cpu")):
                    self._tables = {
                        "activations": Table(ACTIVATIONS, tuple(self._activation_rows())),
                        "attention": Table(ATTENTION, tuple(self._attention_rows())),
                        "parameters": Table(PARAMETERS, tuple(self._parameter_rows())),
                    }
                self._state = "over"
        finally:
            self._outputs.clear()
            self._described.clear()
            self._attentions.clear()
            self._before.clear()
            self._gradients.clear()
            self._last = None

    def _remove(self) -> None:
        try:
            self._contexts.close()
        finally:
            while self._handles:
                self._handles.pop().remove()
            self._running.clear()

    def _table(self, name: str) -> Table:
        if self._state != "over":
            when = {"not entered": "first run the model in `with probe:`"}
            when["running"] = "the tables are there after the `with` block"
            raise RuntimeError(
                f"nothing to read yet: {when[self._state]}"
                if self._state in when
                else f"nothing to read: the `with` block {self._state}"
            )
        return self._tables[name]

    def _fitting(self, only: str | Sequence[str]) -> list[nn.Module]:
        """The modules whose names fit."""
        patterns = [only] if isinstance(only, str) or not isinstance(only, Sequence) else only
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise TypeError(f"only must be names of modules or patterns, got {only!r}")
        fitting: list[nn.Module] = []
        for pattern in patterns or [""]:
            found = [m for m, name in self._modules.items() if fnmatchcase(name, pattern)]
            if not found:
                names = list(self._modules.values())
                some = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
                raise ValueError(f"no module fits {pattern!r}; there are {some}")
            fitting += found
        return fitting

    def _that_run(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module; of a mere container, what it contains."""
        if module in self._modules and type(module).forward is not nn.Module.forward:
            yield module
        else:
            for item in module.children():
                yield from self._that_run(item)

    # While the model runs.

    def _begin(self, module: nn.Module, _: object) -> None:
        self._running.append(module)

    def _end(self, module: nn.Module, _: object, output: object) -> None:
        if module in self._running:  # those above it were left by an error
            while self._running.pop() is not module:
                pass
        if module not in self._chosen:
            return
        with torch._C.DisableTorchFunction():  # the mode need not see us look
            tensor = _first_tensor(output)
        if tensor is None:
            return
        with _aside(tensor.device):
            again = _in_backward()  # activation checkpointing: only gradients are new
            last = self._last  # an inference tensor has no version: never the same
            version = math.nan if tensor.is_inference() else tensor._version
            if last is not None and last[0]() is tensor and last[1] == version:
                seen = last[2]  # it hands on what another module gave
            else:
                swap = tensor.dim() == 3 and module in self._tokens_first
                x = tensor.transpose(0, 1) if swap else tensor
                seen = _Output()
                if not again:
                    self._remember(seen, x)
                self._last = weakref.ref(tensor), version, seen
                if tensor.requires_grad:
                    self._handles.append(tensor.register_hook(seen.gradient))
            self._outputs[module].append(seen)

    def _remember(self, seen: "_Output", x: Tensor) -> None:
        described = _describe(x, self._ranked)
        self._described.append((seen, x.shape, described))
        self._lengths += described.numel()
        if self._lengths > LENGTHS_AT_ONCE:
            self._reduce()

    def _reduce(self) -> None:
        """A few numbers of each output instead of one of each token."""
        alike: dict[Any, list[tuple[_Output, Tensor]]] = defaultdict(list)
        for one, shape, described in self._described:
            alike[shape, described.device, described.dtype].append((one, described))
        for (shape, *_), ones in alike.items():
            outputs, found = zip(*ones, strict=True)
            for one, statistics in zip(outputs, _statistics(shape, found), strict=True):
                one.forward = statistics
        self._described.clear()
        self._lengths = 0

    def _attention(self, statistics: Callable[[], list[Tensor]], device: torch.device) -> None:
        if not self._running or _in_backward():  # another model's, or again
            return
        holders = (m for m in reversed(self._running) if next(m.parameters(), None) is not None)
        module = next(holders, self._running[-1])
        if module in self._inside:
            with _aside(device):
                if found := statistics():
                    self._attentions[module].append(found)

    def _watch(self) -> None:
        inside = {parameter for module in self._inside for parameter in module._parameters.values()}
        watched = {
            _clean(name): parameter
            for name, parameter in self._model.named_parameters()
            if parameter in inside and not _strange(parameter)
        }
        room = _room(list(watched.values()))
        for (name, parameter), before in zip(watched.items(), room, strict=True):
            before.copy_(parameter.detach())
            self._before[name] = parameter, before, _norm(before)
            if parameter.requires_grad:
                look = partial(self._look, name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(look))

    def _look(self, name: str, parameter: Tensor) -> None:
        with _aside(parameter.device):
            gradient = parameter.grad
            if gradient is not None:  # used up already by an optimizer that steps in backward()
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                self._gradients[name] = _norm(dense)

    # Afterwards.

    def _activation_rows(self) -> Iterator[tuple[Cell, ...]]:
        self._reduce()
        for module, name in self._modules.items():
            seen = self._outputs.get(module, [])
            calls = [one.forward for one in seen if one.forward]
            if calls:
                n, mean, square, *similar = zip(*calls, strict=True)
                average, variance = _pooled(n, mean, square)
                sequences, cosine, ranked, rank = map(sum, similar)
                backward = [one for output in seen for one in output.backward]
                norms = [float(norm) for norm, _ in backward]
                gradient = _ratio(sum(a * a for a in norms), sum(n for _, n in backward))
                rms = math.sqrt(variance + average * average)
                yield (
                    *(name, *self._places(name), len(calls)),
                    *(rms, variance, gradient and math.sqrt(gradient)),
                    *(_ratio(cosine, sequences), _ratio(rank, ranked)),
                )

    def _attention_rows(self) -> Iterator[tuple[Cell, ...]]:
        for module, name in self._modules.items():
            if seen := self._attentions.get(module):
                pieces = [piece.tolist() for call in seen for piece in call]
                n, mean, square, *others = zip(*pieces, strict=True)
                in_row, queries, *sums = map(sum, others)
                variance = _pooled(n, mean, square)[1] if queries else None
                means = [_ratio(in_row, sum(n)), *(_ratio(one, queries) for one in sums)]
                yield (name, *self._places(name), len(seen), variance, *means)

    def _parameter_rows(self) -> Iterator[tuple[Cell, ...]]:
        for name, (parameter, before, norm) in self._before.items():
            entries, size = math.sqrt(before.numel()), float(norm)
            gradient = self._gradients.get(name)
            update = None
            if parameter.shape == before.shape:
                now = parameter.detach().to(before.device, before.dtype)
                update = 0.0 if torch.equal(now, before) else float(_norm(before.sub_(now)))
                if update:  # NaN, too
                    update = update / size if size else update * math.inf
            back = None if gradient is None else float(gradient) / entries
            yield (name, *self._places(name), size / entries, back, update)


class _Output:
    """What is remembered of one tensor that a module gave."""

    def __init__(self) -> None:
        self.forward: tuple[float, ...] = ()
        self.backward: list[tuple[Tensor, int]] = []

    def gradient(self, gradient: Tensor) -> None:
        with _aside(gradient.device):
            if not _strange(gradient):
                self.backward.append((_norm(gradient), gradient.numel()))


class _Hook:
    """A hook of the model that is probed: a copy of the model has one that does nothing."""

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *given: object) -> None:
        self.call(*given)

    def __reduce__(self) -> tuple[object, ...]:
        return _Hook, (_do_nothing,)


def _do_nothing(*_: object) -> None:
    pass


class _Attentions(TorchFunctionMode):
    """Sees every call of a torch function, and tells the attentions among them."""

    def __init__(self, found: Callable[[Callable[[], list[Tensor]], torch.device], None]) -> None:
        super().__init__()
        self.found = found
        self.known: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":  # an attribute, the most frequent call
            result = function(*args, **kwargs)
            if self.known and (kind := self._kind(args[0])):  # the transposed, say
                self._remember([result], kind)
            return result
        if function is F.multi_head_attention_forward:
            # It comes here because a mode is on; its copy goes on to what it calls.
            known = {**function.__globals__, "has_torch_function": lambda _: False}
            inner = FunctionType(
                function.__code__, known, name, function.__defaults__, function.__closure__
            )
            inner.__kwdefaults__ = function.__kwdefaults__
            with self:
                return inner(*args, **kwargs)
        kind = None
        if self.known or name in PRODUCTS:
            kind = self._becomes(name, args, kwargs)
        if kind == "weights" and name in SOFTMAXES:  # read now: it may write over the logits
            logits: Tensor = args[0] if args else kwargs["input"]
            sign = -1 if name == "softmin" else 1
            if not _strange(logits):
                self.found(lambda: _explicit_attention(logits, sign), logits.device)
        result = function(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            if not _strange(query):
                self.found(lambda: _fused_attention(*args, **kwargs), query.device)
        if kind:
            self._remember(_flat([result]), kind)
        return result

    def _becomes(self, name: str, args: Any, kwargs: Any) -> str | None:
        """What the result is, of what it is made of."""
        given = _flat([*args, *kwargs.values()])
        kinds = {self._kind(x) for x in given}
        if name in PRODUCTS:  # of weights: mixed values
            return "logits" if "weights" not in kinds and _is_product(given) else None
        if name in SOFTMAXES:
            logits = args[0] if args else kwargs.get("input")
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            last = self._kind(logits) == "logits" and dim in (-1, logits.dim() - 1)
            return "weights" if last else None
        if name in LAYERS:
            return None
        return next((kind for kind in ("logits", "weights") if kind in kinds), None)

    def _remember(self, results: list[Any], kind: str) -> None:
        for x in results:
            if isinstance(x, Tensor):
                self.known[id(x)] = weakref.ref(x, partial(self._forget, id(x))), kind

    def _forget(self, key: int, _: object) -> None:
        self.known.pop(key, None)

    def _kind(self, x: object) -> str | None:
        """Logits, weights made of logits, or neither."""
        reference, kind = self.known.get(id(x), (None, None))
        return kind if reference is not None and reference() is x else None


def _is_product(given: list[Any]) -> bool:
    """Of two tensors of three or more dimensions, neither a parameter or a view of one."""
    factors = [x for x in given if isinstance(x, Tensor)][-2:]
    return len(factors) == 2 and all(
        x.dim() > 2 and not isinstance(x, nn.Parameter) and not isinstance(x._base, nn.Parameter)
        for x in factors
    )


def _flat(args: Any) -> list[Any]:
    return [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[Tensor]:
    """The statistics of what torch's kernel does not show, from the logits of some at a time."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query, key = (x.expand(*shape, *x.shape[-2:]) for x in (query, key))
    shape = torch.Size((*shape, query.shape[-2], key.shape[-2]))
    bias = getattr(attn_mask, "variant", None)  # torch's CausalBias: its entries mean nothing
    if is_causal or bias is not None:
        ahead = shape[-1] - shape[-2] if bias is not None and bias.name == "LOWER_RIGHT" else 0
        attn_mask = torch.ones(shape[-2:], dtype=torch.bool, device=query.device).tril(ahead)
    if len(shape) < 3:
        query, key = query[None], key[None]
    mask = None
    if attn_mask is not None:  # as many dimensions, the last of its true size
        mask = attn_mask.expand(*attn_mask.shape[:-1], shape[-1])
        mask = mask[(None,) * (query.dim() - mask.dim())]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    at_once = max(1, ENTRIES_AT_ONCE * len(query) // max(1, shape.numel()))
    pieces: list[Tensor] = []
    for i in range(0, len(query) if shape.numel() else 0, at_once):
        q, k = (x[i : i + at_once].to(_wide(query)) for x in (query, key))
        logits = (q * factor) @ k.mT
        allowed = mask if mask is None or len(mask) == 1 else mask[i : i + at_once]
        if allowed is not None and allowed.dtype != torch.bool:
            logits += allowed
            allowed = _unmask(logits)
        pieces.append(_summary(logits, allowed))
    return pieces


def _explicit_attention(logits: Tensor, sign: int) -> list[Tensor]:
    """The same from the logits that a softmax is given, or their opposites."""
    logits = logits.to(_wide(logits), copy=True) if sign > 0 else -logits.to(_wide(logits))
    return [_summary(logits, _unmask(logits))]


def _unmask(logits: Float[Tensor, "... queries keys"]) -> Float[Tensor, "... queries keys"]:
    """1 where allowed, else 0; the others become finite: multiplied by zero they are zero."""
    floor = logits.amax(-1, keepdim=True).clamp_(min=LOWEST + FAR).sub_(FAR)
    allowed = torch.gt(logits, floor, out=torch.empty_like(logits))  # ten times as fast as Booleans
    logits.clamp_(min=floor)
    return allowed


def _summary(
    logits: Float[Tensor, "... queries keys"], allowed: Shaped[Tensor, "..."] | None
) -> Float[Tensor, "9"]:
    """Pairs, their mean and variance, squares within rows; rows, and sums over them.

    Overwrites the logits. The mask, of Booleans or of 0 and 1, has as many dimensions, each of the
    same size or one.
    """
    if allowed is None:
        keep = None
        keys = logits.new_full(logits.shape[:-1], logits.shape[-1])
    else:
        keep = allowed.to(logits.dtype)  # multiplied: much faster than filling by a mask
        keys = keep.sum(-1).expand(logits.shape[:-1])
        logits.mul_(keep)
    mean = logits.sum(-1) / keys.clamp(min=1)
    keys = keys + 0 * mean  # a row with NaN is NaN all over
    some = keys != 0
    logits -= mean[..., None]  # no softmax sees the difference
    if keep is not None:
        logits.mul_(keep)
    squares = torch.linalg.vector_norm(logits, dim=-1).square_().sum()
    pairs = keys.sum()
    overall = (keys * mean).sum() / pairs.clamp(min=1)
    variance = (squares + (keys * (mean - overall).square()).sum()) / pairs.clamp(min=1)
    if keep is not None:
        logits.add_(keep.sub_(1), alpha=1e30)  # finite: times a weight of zero it is zero
    weights = logits.softmax(-1)
    largest = weights.amax(-1)
    log_sum = logits.amax(-1) - largest.log()
    entropy = (log_sum - weights.mul_(logits).sum(-1)).clamp_(min=0.0)
    rows = torch.stack([entropy, entropy.exp(), keys, largest])
    sums = torch.where(some, rows, 0.0).flatten(1).sum(1)
    return torch.cat([torch.stack([pairs, overall, variance, squares, some.sum()]), sums])


def _describe(x: Tensor, ranked: int | None) -> Tensor:
    """In few passes over the entries what :func:`_statistics` needs of them."""
    x = x.detach().to(_wide(x))
    norms = _length(x, _of_rows)
    found = [x.sum(), norms]
    if x.dim() == 3:
        inverse = norms.clamp(min=TINY).reciprocal_().to(x.dtype)
        found.append(torch.linalg.vector_norm(inverse[:, None] @ x, dim=(1, 2)))
        largest = inverse[:ranked].amin(-1)[:, None, None]  # Gram matrices of about 1 stay finite
        for one in x[:ranked] * largest:
            gram = one @ one.T if len(one) <= len(one.T) else one.T @ one
            found.append(torch.linalg.vector_norm(gram))
    return torch.cat([one.reshape(-1) for one in found])


@np.errstate(all="ignore")  # NaN is the model's
def _statistics(shape: torch.Size, described: Sequence[Tensor]) -> list[tuple[float, ...]]:
    """Entries, mean, variance; sequences and sum of their cosines; the same of ranks."""
    numbers = torch.stack(list(described)).cpu().double().numpy()
    entries, rows = math.prod(shape), math.prod(shape[:-1])
    mean, norms = numbers[:, 0] / entries, numbers[:, 1 : 1 + rows]
    variance = np.maximum(np.vecdot(norms, norms) / entries - mean**2, 0.0)  # NaN stays NaN
    none = np.zeros(len(numbers), dtype=int)
    sequences, cosine, ranked, rank = none, none, none, none
    if len(shape) == 3:
        directions, spreads = np.split(numbers[:, 1 + rows :], shape[:1], axis=1)
        pairs = shape[1] * (shape[1] - 1)
        other = (directions**2).sum(1) - np.count_nonzero(norms, axis=1)  # less each with itself
        sequences, cosine = none + (shape[0] if pairs else 0), other / max(pairs, 1)
        energy = norms.reshape(-1, *shape[:2])[:, : spreads.shape[1]]
        energy = energy / np.maximum(energy.max(-1, keepdims=True), TINY)
        energy = np.vecdot(energy, energy)
        some = energy != 0
        ratio = np.divide(energy, spreads, where=some, out=np.zeros_like(energy))
        ranked, rank = some.sum(1), np.vecdot(ratio, ratio)
    columns = (none + entries, mean, variance, sequences, cosine, ranked, rank)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _first_tensor(output: object) -> Tensor | None:
    """The first floating tensor with a dimension or more, of one or several."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    elif is_dataclass(output) and not isinstance(output, type):
        output = tuple(getattr(output, field.name) for field in fields(output))
    for x in output if isinstance(output, tuple | list) else (output,):
        if not isinstance(x, Tensor) or _strange(x) or not x.is_floating_point():
            continue
        if x.dim():
            return x
    return None


def _strange(x: Tensor) -> bool:
    """Has no entries to read one by one."""
    return (
        nn.parameter.is_lazy(x)
        or x.layout != torch.strided
        or x.is_nested
        or x.device.type == "meta"
        or x.is_quantized
        or (x.is_floating_point() and x.element_size() == 1)
        or _is_batched(x)
        or not x.numel()
    )


def _is_batched(x: Tensor) -> bool:
    """Inside ``torch.vmap``, where a tensor stands for many."""
    inside = torch._C._functorch
    while inside.is_gradtrackingtensor(x):
        x = inside.get_unwrapped(x)
    return inside.is_batchedtensor(x) or inside.is_legacy_batchedtensor(x)


def _tokens_first(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """The modules of torch itself with ``batch_first=False``, and all inside them."""
    return {
        inner
        for module in modules
        if isinstance(module, SEQUENCES)
        and any(not getattr(inner, "batch_first", True) for inner in module.modules())
        for inner in module.modules()
    }


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    """For our own calculations: no graph, no autocast, not seen by the mode."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield


def _room(tensors: Sequence[Tensor]) -> list[Tensor]:
    """For a copy of each, side by side: many pieces, freed, make the allocator return memory."""
    kinds = [(x.device, _wide(x)) for x in tensors]
    room: dict[int, Tensor] = {}
    for device, dtype in dict.fromkeys(kinds):
        those = [i for i, kind in enumerate(kinds) if kind == (device, dtype)]
        sizes = [tensors[i].numel() for i in those]
        pieces = torch.empty(sum(sizes), device=device, dtype=dtype).split(sizes)
        room |= {i: piece.view(tensors[i].shape) for i, piece in zip(those, pieces, strict=True)}
    return [room[i] for i in range(len(tensors))]


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _norm(x: Tensor) -> Tensor:
    return _length(x.abs() if x.is_complex() else x, _of_all)


def _length(x: Tensor, of: Callable[[Tensor, torch.dtype], Tensor]) -> Tensor:
    """In double precision where single may not hold the squares; a GPU is not made to wait."""
    if x.is_cpu:  # three times as fast
        lengths = of(x, _wide(x))
        ends = lengths.aminmax() if lengths.dim() else (lengths,)
        if all(SAFE < end.item() < math.inf for end in ends):
            return lengths
    return of(x, torch.float32 if x.device.type == "mps" else torch.float64)


def _of_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=dtype)
    return norms


def _of_all(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dim() > 1:  # of rows on all threads, of everything on one
        x = _of_rows(x, dtype)
    norm: Tensor = torch.linalg.vector_norm(x, dtype=dtype)
    return norm


def _ratio(a: float, b: float) -> float | None:
    return float(a / b) if b else None


def _pooled(
    n: Sequence[float], mean: Sequence[float], variance: Sequence[float]
) -> tuple[float, float]:
    """Mean and variance of all entries, from those of groups of ``n``."""
    groups, total = list(zip(n, mean, variance, strict=True)), sum(n)
    average = sum(k * m for k, m, _ in groups) / total
    squares = sum(k * (v + (m - average) * (m - average)) for k, m, v in groups)
    return average, squares / total


def _clean(name: str) -> str:
    """The name as the model's author knows it; torch.compile adds to it."""
    return ".".join(word for word in name.split(".") if word != "_orig_mod") or "(model)"


def _is_stack(items: list[nn.Module]) -> bool:
    blocks = [type(item) for item in items if item._modules]
    return len({type(item) for item in items}) == 1 or len(set(blocks)) < len(blocks)


def _places(modules: Mapping[nn.Module, str]) -> Callable[[str], tuple[int | None, str]]:
    """Layer and part of a name.

    A stack is a container of numbered modules of one class, or in which a class with modules
    inside comes twice; without any, everything numbered is.
    """
    numbered = {
        name: list(module.children())
        for module, name in modules.items()
        if module._modules
        and all(key.isdigit() for key in module._modules)
        and not isinstance(module, nn.utils.parametrize.ParametrizationList)
    }
    stacks = {name for name, items in numbered.items() if _is_stack(items)} or set(numbered)
    outer = [s for s in stacks if not any(s.startswith(f"{other}.") for other in stacks)]
    several = len(outer) > 1 and "(model)" not in stacks
    items = {
        name: "block" if module._modules else type(module).__name__
        for module, name in modules.items()
    }
    prefixes = {"" if stack == "(model)" else f"{stack}.": stack for stack in stacks}
    outermost_first = sorted(prefixes.items(), key=lambda item: len(item[0]))

    def place(name: str) -> tuple[int | None, str]:
        for prefix, stack in outermost_first:
            number, _, inside = name.removeprefix(prefix).partition(".")
            if number.isdigit() and name.startswith(prefix):
                part = inside or items[name]
                return int(number), f"{stack}.{part}" if several else part
        return None, name

    return place
