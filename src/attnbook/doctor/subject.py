"""What is diagnosed: a call, what kind it is, and calls like it with other inputs."""

import inspect
import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbook.doctor.claims import Claims
from attnbook.doctor.manners import modules_in
from attnbook.doctor.trace import Trace

Kind = Literal["attention", "tokens", "pooled", "encoder-decoder", "loss"]
Inputs = dict[str, Any]
ADDED_MASK = -1e4
"""An added mask has only zeros and numbers below this (or ones, if it is to be multiplied)."""
NOT_IDS = ("type", "segment", "position", "length", "mask", "step")
LABELS = ("labels", "label", "targets", "target", "y")
DIFFERENT = 1e-5
"""A relative change of the output that is not rounding."""


@dataclass
class Subject:
    """A module with a call of it.

    Args:
        module: what is called.
        claims: what its author says.
        inputs: the arguments of the example by name; positional ones first.
        n_positional: how many of them are positional.
        sources: names of the inputs that hold tokens: vectors, or ids.
        kind: ``"attention"`` (vectors → vectors), ``"tokens"`` (ids → something for each token),
            ``"pooled"`` (a row for each sequence), ``"encoder-decoder"`` (two sequences of ids) or
            ``"loss"`` (a number).
        batch, tokens: the axes of the batch (``None`` without one) and of the tokens.
        same: the sources that are one tensor, if all are: x as query, key and value.
        traces: what was observed in evaluation and in training.
    """

    module: Callable[..., Any]
    claims: Claims
    inputs: Inputs
    n_positional: int
    sources: list[str] = field(default_factory=list)
    kind: Kind = "attention"
    batch: int | None = 0
    tokens: int = 1
    same: list[str] = field(default_factory=list)
    traces: dict[bool, Trace] = field(default_factory=dict)

    # Calls.

    def call(self, inputs: Inputs | None = None) -> Any:
        """Whatever the module returns, from copies of the arguments."""
        return self._called(copied(self.inputs if inputs is None else inputs))

    def _called(self, given: Inputs) -> Any:
        values = list(given.items())
        positional = [value for _, value in values[: self.n_positional]]
        return self.module(*positional, **dict(values[self.n_positional :]))

    def run(self, inputs: Inputs | None = None, *, seed: int = 0) -> Tensor:
        """The output of a call without gradients, always with the same random numbers."""
        seed_all(seed)
        with torch.no_grad():
            return output_of(self.call(inputs), has_labels=self.has_labels).detach()

    def trace(self, inputs: Inputs | None = None, silenced: Collection[int] = ()) -> Trace:
        """All tensor operations of a call, some of them replaced by zeros."""
        given = copied(self.inputs if inputs is None else inputs)
        seed_all(0)
        trace = Trace([given[name] for name in self.sources], silenced)
        with torch.no_grad(), plain_kernels(), trace:
            result = self._called(given)
        trace.output = output_of(result, has_labels=self.has_labels).detach()
        return trace

    @contextmanager
    def mode(self, *, training: bool) -> Iterator[None]:
        """All modules in training, or in evaluation."""
        with ExitStack() as stack:
            for module in self.modules:
                for part in module.modules():
                    stack.callback(setattr, part, "training", part.training)
                module.train(training)
            yield

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that the call runs."""
        return modules_in(self.module)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All parameters by name."""
        return {n: p for m in self.modules for n, p in m.named_parameters()}

    # What the example is like.

    @property
    def description(self) -> str:
        """The kind of call, in words."""
        kinds = {
            "attention": "vectors → vectors",
            "tokens": "ids → a row for each token",
            "pooled": "tokens → a row for each sequence",
            "encoder-decoder": "two sequences of ids → a row for each token",
            "loss": "ids → a loss",
        }
        return kinds[self.kind]

    @property
    def optional(self) -> list[str]:
        """Arguments that the example leaves out."""
        return [name for name in _parameters(self.module) if name not in self.inputs]

    @property
    def has_labels(self) -> bool:
        """Whether the call is given what is to be predicted."""
        return any(name in LABELS for name in self.inputs)

    @property
    def target(self) -> str:
        """The source that the tokens of the output belong to."""
        return self.sources[-1] if self.kind == "encoder-decoder" else self.sources[0]

    @property
    def attended(self) -> list[str]:
        """The sources whose tokens are attended to by tokens of the same sequence."""
        if self.kind == "attention" and len(self.sources) > 1 and not self.same:
            return self.sources[1:]
        return [self.target]

    @property
    def is_self(self) -> bool:
        """Whether the tokens attend to each other."""
        return self.kind not in ("loss", "pooled") and self.attended == [self.target]

    @property
    def n_tokens(self) -> int:
        """Tokens of the target."""
        return self.length(self.target)

    @property
    def n_sequences(self) -> int:
        """Sequences of the batch."""
        return 1 if self.batch is None else int(self.inputs[self.target].shape[self.batch])

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        if self.claims.vocab_size:
            return self.claims.vocab_size
        for module in self.modules:
            tables = [m for m in module.modules() if isinstance(m, nn.Embedding)]
            largest = max((m.num_embeddings for m in tables[:1]), default=0)
            if largest:
                return largest
        return max(int(self.inputs[name].max()) for name in self.sources) + 1

    def length(self, name: str) -> int:
        """Tokens of a source."""
        return int(self.inputs[name].shape[self.tokens])

    def is_ids(self, name: str) -> bool:
        """Whether a source holds ids."""
        return not self.inputs[name].is_floating_point()

    # Other inputs of the same shapes.

    def fresh(self, seed: int, scale: float = 1.0) -> Inputs:
        """Other tokens: normal vectors as long as the example's, or other ids."""
        drawn = torch.Generator().manual_seed(seed)
        inputs = dict(self.inputs)
        for name in self.sources:
            old = inputs[name]
            if name in self.same[1:]:
                inputs[name] = inputs[self.same[0]]
            elif self.is_ids(name):
                inputs[name] = self.random_ids(old, drawn)
            else:
                size = float(old.float().square().mean().sqrt()) or 1.0
                inputs[name] = (torch.randn(old.shape, generator=drawn) * size * scale).to(old)
        return inputs

    def random_ids(self, like: Tensor, drawn: torch.Generator) -> Tensor:
        """Ids in the vocabulary, without the padding."""
        ids = torch.randint(self.vocab_size, like.shape, generator=drawn)
        if self.claims.padding_id is not None:
            other = (self.claims.padding_id + 1) % self.vocab_size
            ids = ids.masked_fill(ids == self.claims.padding_id, other)
        return ids.to(like)

    def replaced(self, inputs: Inputs, name: str, sequence: int, token: int) -> Inputs:
        """The same inputs but for one token of one source."""
        old = inputs[name]
        new = old.clone()
        at = self.at(sequence, token)
        if self.is_ids(name):
            new[at] = (old[at] + 1) % self.vocab_size
            if int(new[at]) == self.claims.padding_id:
                new[at] = (new[at] + 1) % self.vocab_size
        else:
            drawn = torch.Generator().manual_seed(1000 + 17 * sequence + token)
            noise = torch.randn(old[at].shape, generator=drawn)
            new[at] = (noise * float(old.float().std())).to(old)
        others = self.same if name in self.same else [name]
        return {**inputs, **dict.fromkeys(others, new)}

    def at(self, sequence: int, token: int) -> tuple[Any, ...]:
        """The index of a token."""
        index: list[Any] = [slice(None)] * (max(self.tokens, self.batch or 0) + 1)
        if self.batch is not None:
            index[self.batch] = sequence
        index[self.tokens] = token
        return tuple(index)

    def by_token(self, output: Tensor) -> Tensor:
        """(batch, tokens, …), whatever the order of the axes was; one "token" if it is pooled."""
        if self.kind == "pooled":
            return output[:, None]
        if self.batch is None:
            return output.movedim(self.tokens, 0)[None]
        return output.movedim((self.batch, self.tokens), (0, 1))

    def sliced(self, inputs: Inputs, n_tokens: int) -> Inputs:
        """The first tokens of every source; None where an input can't be cut so."""
        cut = {}
        for name, value in inputs.items():
            if name in self.sources:
                cut[name] = value.narrow(self.tokens, 0, min(n_tokens, self.length(name)))
            else:
                cut[name] = value
        return cut


def seed_all(seed: int) -> None:
    """Whatever a module draws from begins anew."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def changed(one: Tensor, other: Tensor) -> Tensor:
    """How much each token's output differs, (batch, tokens), relative to the largest output."""
    size = torch.nan_to_num(one.float(), posinf=0, neginf=0).abs().max().clamp(min=1e-30)
    difference = (one.float() - other.float()).abs()
    same = (one == other) | (one.isnan() & other.isnan())
    difference = torch.nan_to_num(difference, nan=torch.inf).masked_fill(same, 0.0)
    return difference.flatten(2).amax(-1) / size if one.dim() > 2 else difference / size


def output_of(result: Any, *, has_labels: bool = False) -> Tensor:
    """The first tensor of floats that a module returns; given labels, the loss if there is one."""
    floats = [x for x in tensors_in(result) if x.is_floating_point()]
    if not floats:
        raise TypeError(f"the call returned no tensor of floats: {type(result).__name__}")
    losses = [x for x in floats if x.dim() == 0]
    return losses[0] if has_labels and losses else floats[0]


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in tuples, lists, dictionaries and data classes."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [x for one in value.values() for x in tensors_in(one)]
    if isinstance(value, list | tuple):
        return [x for one in value for x in tensors_in(one)]
    if hasattr(value, "__dataclass_fields__"):
        return [x for name in value.__dataclass_fields__ for x in tensors_in(getattr(value, name))]
    return []


def copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """The same with copies of the tensors; what was one tensor is one copy."""
    memo = {} if memo is None else memo
    if isinstance(value, Tensor):
        if id(value) not in memo:
            memo[id(value)] = value.detach().clone()
        return memo[id(value)]
    if isinstance(value, dict):
        return {k: copied(v, memo) for k, v in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(copied(v, memo) for v in value)
    return value


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Every attention is computed by products and a softmax that can be observed."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class CallFailed(Exception):  # noqa: N818
    """The example can't be called so."""


def recognise(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """Find out what kind of call the example is.

    Raises:
        CallFailed: if it fails, or returns nothing that can be judged; says how it was called.
    """
    inputs = _named(module, example) | dict(claims.keywords or {})
    subject = Subject(module, claims, inputs, n_positional=len(example))
    call = ", ".join(f"{name}={_shape(value)}" for name, value in inputs.items())
    try:
        with subject.mode(training=False):
            output = subject.run()
    except Exception as error:  # whatever a reader's module raises is to be told
        raised = f"it raised {type(error).__name__}: {error}"
        raise CallFailed(f"called it with ({call})", raised) from error
    masks = {name for name, value in inputs.items() if _is_mask(name, value)}
    if claims.mask is not None and isinstance(claims.mask.argument, int):
        claims = replace(
            claims, mask=replace(claims.mask, argument=list(inputs)[claims.mask.argument])
        )
        subject.claims = claims
    if claims.mask is not None:
        masks.add(str(claims.mask.argument))
    held = [name for name, value in inputs.items() if name not in masks]
    floats = [n for n in held if _is_floats(inputs[n])]
    ids = [n for n in held if _is_ids(n, inputs[n])]
    ids = [n for n in ids if n not in LABELS or inputs[n].dim() > 1]  # classes are not varied
    subject.sources = floats or ids
    if not subject.sources:
        raise CallFailed(f"called it with ({call})", "there are neither vectors nor ids to vary")
    if output.dim() == 0:
        subject.kind = "loss"
    elif floats:
        subject.kind = "attention"
    elif len(ids) > 1 and output.shape[:2] == inputs[ids[-1]].shape[:2]:
        subject.kind = "encoder-decoder"
    else:
        subject.kind, subject.sources = "tokens", ids[:1]
    if subject.kind == "attention" and len(floats) == 2:
        _target_first(subject, output)
    _find_axes(subject, output)
    _find_same(subject)
    if subject.kind in ("attention", "tokens") and _is_pooled(subject, output):
        subject.kind = "pooled"
    if subject.claims.batch_first is None and _tokens_come_first(subject):
        subject.batch, subject.tokens = 1, 0
    return _doubled(subject)


def _named(module: Callable[..., Any], example: tuple[Any, ...]) -> Inputs:
    parameters = _parameters(module)
    names = itertools.chain(parameters, (f"argument {i}" for i in itertools.count(len(parameters))))
    return dict(zip(names, example, strict=False))


def _parameters(module: Callable[..., Any]) -> list[str]:
    """Names of the arguments of a call."""
    function = module.forward if isinstance(module, nn.Module) else module
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)[:40]


def _is_mask(name: str, value: Any) -> bool:
    if not isinstance(value, Tensor):
        return False
    if value.dtype == torch.bool or "mask" in name.lower():
        return True
    if value.is_floating_point() and value.dim() >= 2 and value.numel() > 1:
        blocked = value < ADDED_MASK
        return bool(((value == 0) | blocked | (value == 1)).all()) and bool(
            (value != value.flatten()[0]).any()
        )
    return False


def _is_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2


def _is_ids(name: str, value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        return False
    return value.dim() in (1, 2) and not any(word in name.lower() for word in NOT_IDS)


def _find_axes(subject: Subject, output: Tensor) -> None:
    value = subject.inputs[subject.target]
    if value.is_floating_point() and value.dim() == 4:  # (batch, heads, tokens, d_head)
        subject.batch, subject.tokens = 0, 2
    elif value.dim() == (2 if value.is_floating_point() else 1):
        subject.batch, subject.tokens = None, 0
    elif subject.claims.batch_first is False or _says_sequence_first(subject):
        subject.batch, subject.tokens = 1, 0


def _says_sequence_first(subject: Subject) -> bool:
    """Torch's own modules say so, and what is called is one of them."""
    said = getattr(subject.module, "batch_first", None)
    if said is None and isinstance(subject.module, nn.Module):
        layers = [m for n, m in subject.module.named_modules() if n in ("layers.0", "encoder")]
        inner = [
            getattr(m.self_attn, "batch_first", None) for m in layers if hasattr(m, "self_attn")
        ]
        ours = type(subject.module).__module__.startswith("torch.nn")
        said = inner[0] if inner and ours else None
    return said is False


def _is_pooled(subject: Subject, output: Tensor) -> bool:
    """Whether there is a row for each sequence, and none for each token."""
    rows = output.shape[: max(subject.tokens, subject.batch or 0) + 1]
    return subject.batch == 0 and output.dim() == 2 and subject.n_tokens not in rows[1:]


def _target_first(subject: Subject, output: Tensor) -> None:
    """Of two sequences of vectors, the one that the output belongs to comes first."""
    one, other = (subject.inputs[name] for name in subject.sources)
    belongs = output.shape == other.shape != one.shape
    if belongs or subject.sources[1].startswith(("tgt", "target")):
        subject.sources.reverse()


def _doubled(subject: Subject) -> Subject:
    """With two sequences instead of a single one, if it can be called so."""
    if subject.batch is None or subject.n_sequences > 1:
        return subject
    axis, inputs = subject.batch, dict(subject.inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() > max(1, axis) and value.shape[axis] == 1:
            inputs[name] = torch.cat([value, value], axis)
    inputs.update(dict.fromkeys(subject.same, inputs[subject.same[0]] if subject.same else None))
    two = replace(subject, inputs=inputs)
    try:
        with subject.mode(training=False):
            output = two.run()
    except Exception:  # one at a time only
        return subject
    return two if subject.kind == "loss" or output.shape[axis] == 2 else subject


def _tokens_come_first(subject: Subject) -> bool:
    """Whether the example is longer along its first axis, and only that one is mixed."""
    value = subject.inputs[subject.target]
    if subject.kind in ("loss", "pooled") or (subject.batch, subject.tokens) != (0, 1):
        return False
    if not value.shape[0] > value.shape[1] > 1:
        return False
    inputs = subject.fresh(0)
    with subject.mode(training=False):
        base = subject.run(inputs)
        other = subject.run(subject.replaced(inputs, subject.target, 0, 0))
    moved = changed(base, other) > DIFFERENT  # the changed token is the first of both
    return bool(moved[1:, 0].any()) and not bool(moved[:, 1:].any())


def _find_same(subject: Subject) -> None:
    """Inputs that are the same tensor are one source: the query, key and value of x."""
    first, *others = subject.sources
    value = subject.inputs[first]
    same = [
        name
        for name in others
        if subject.inputs[name] is value
        or (subject.inputs[name].shape == value.shape and torch.equal(subject.inputs[name], value))
    ]
    if subject.kind == "attention" and same and len(same) == len(others):
        subject.same = [first, *same]
