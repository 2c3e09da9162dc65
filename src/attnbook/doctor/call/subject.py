"""What is diagnosed: a call, what kind it is, and calls like it with other inputs."""

import inspect
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_unflatten

from attnbook.doctor.call.claims import Claims
from attnbook.doctor.call.manners import modules_in
from attnbook.doctor.tape.trace import Trace

Kind = Literal["attention", "tokens", "pooled", "encoder-decoder", "pictures", "loss"]
KINDS: dict[Kind, str] = {
    "attention": "vectors → vectors",
    "tokens": "ids → a row for each token",
    "pooled": "tokens → a row for each sequence",
    "encoder-decoder": "two sequences → a row for each token",
    "pictures": "pictures → vectors",
    "loss": "ids → a loss",
}
Inputs = dict[str, Any]
LABELS = ("labels", "label", "targets", "target", "y")


class Refused(Exception):  # noqa: N818
    """The module raised, which is its cause: it takes one length only, say."""


@dataclass
class Subject:
    """A module with a call of it."""

    module: Callable[..., Any]
    claims: Claims
    inputs: Inputs  # by name; of what is in a list or a dictionary: "argument.key"
    spec: TreeSpec  # how a call is put together from them: (arguments, keywords)
    sources: list[str] = field(default_factory=list)  # inputs that hold tokens: vectors, or ids
    kind: Kind = "attention"
    batch: int | None = 0  # its axis, if there is one
    tokens: int = 1  # their axis in the sources
    out_tokens: int = 1  # their axis in the output
    flat: bool = False  # the output is (batch × tokens, …)
    which: int = 0  # of the tensors that it returns, the output
    paddings: dict[str, int] = field(default_factory=dict)  # the id that a table has as padding
    vocabularies: dict[str, int] = field(default_factory=dict)  # how many ids a source may have
    cut: str = ""  # what of the example is used, if it is not all
    whole: Inputs | None = None  # all of it, then
    same: list[str] = field(default_factory=list)  # sources that are one tensor, if all are
    stirred: dict[str, Tensor] = field(default_factory=dict)  # parameters, as they were
    traces: dict[bool, Trace] = field(default_factory=dict)  # in evaluation, and in training

    # Calls.

    def call(self, inputs: Inputs | None = None) -> Any:
        """Call the module with copies of the arguments; whatever it returns."""
        return self.apply(copied(self.inputs if inputs is None else inputs))

    def apply(self, arguments: Inputs) -> Any:
        """Call the module with these arguments themselves; those not in the example go by name."""
        n_leaves = self.spec.num_leaves
        positional, named = tree_unflatten(list(arguments.values())[:n_leaves], self.spec)
        more = dict(list(arguments.items())[n_leaves:])
        try:
            return self.module(*positional.values(), **named, **more)
        except Exception as error:  # a reader's module may raise anything
            raise Refused(*error.args) from error

    def output(self, result: Any) -> Tensor:
        """The tensor of a call's result that is judged."""
        return output_of(result, has_labels=self.has_labels, which=self.which).detach()

    def run(self, inputs: Inputs | None = None, *, seed: int = 0) -> Tensor:
        """The output of a call without gradients, always with the same random numbers."""
        seed_all(seed)
        with torch.no_grad():
            return self.output(self.call(inputs))

    def trace(self, inputs: Inputs | None = None, silenced: Collection[int] = ()) -> Trace:
        """All tensor operations of a call, some of them replaced by zeros."""
        arguments = copied(self.inputs if inputs is None else inputs)
        seed_all(0)
        trace = Trace([arguments[name] for name in self.sources], silenced)
        with torch.no_grad(), plain_kernels(), trace:
            result = self.apply(arguments)
        trace.output = self.output(result)
        return trace

    @contextmanager
    def mode(self, *, training: bool) -> Iterator[None]:
        """Put all modules into training or evaluation, for a while."""
        with ExitStack() as stack:
            for module in self.modules:
                for part in module.modules():
                    stack.callback(setattr, part, "training", part.training)
                stack.callback(module.train, module.training)
                module.train(training)
            yield

    @contextmanager
    def unstirred(self) -> Iterator[None]:
        """With the weights as they were, for a while."""
        now = {name: self.parameters[name].detach().clone() for name in self.stirred}
        for name, x in self.stirred.items():
            self.parameters[name].data.copy_(x)
        yield
        for name, x in now.items():
            self.parameters[name].data.copy_(x)

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
    def optional(self) -> list[str]:
        """Arguments that the example leaves out."""
        in_example = {name.partition(".")[0] for name in self.inputs}
        return [name for name in parameters_of(self.module) if name not in in_example]

    @property
    def has_labels(self) -> bool:
        """True if the call is given what is to be predicted."""
        return any(last(name) in LABELS for name in self.inputs)

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
        """True if the tokens attend to each other."""
        return self.kind not in ("loss", "pooled", "pictures") and self.attended == [self.target]

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the target."""
        return self.length(self.target)

    @property
    def n_sequences(self) -> int:
        """Number of sequences in the batch."""
        return 1 if self.batch is None else int(self.inputs[self.target].shape[self.batch])

    @property
    def vocab_size(self) -> int:
        """Number of different ids in the target's vocabulary."""
        return self.vocabulary(self.target)

    def vocabulary(self, name: str) -> int:
        """Number of different ids in a source's vocabulary."""
        if self.claims.vocab_size:
            return self.claims.vocab_size
        if name not in self.vocabularies:
            self.vocabularies[name] = int(self.inputs[name].max()) + 1
        return self.vocabularies[name]

    def length(self, name: str) -> int:
        """Number of tokens of a source."""
        return int(self.inputs[name].shape[self.tokens])

    def is_ids(self, name: str) -> bool:
        """True if a source holds ids."""
        return not self.inputs[name].is_floating_point()

    # Other inputs of the same shapes.

    def fresh(self, seed: int, scale: float = 1.0) -> Inputs:
        """Inputs with other tokens: normal vectors as long as the example's, or other ids."""
        generator = torch.Generator().manual_seed(seed)
        inputs = dict(self.inputs)
        for name in self.sources:
            old = inputs[name]
            if name in self.same[1:]:
                inputs[name] = inputs[self.same[0]]
            elif self.is_ids(name):
                inputs[name] = self.random_ids(old, generator, name)
            else:
                size = (float(old.float().square().mean().sqrt()) or 1.0) * scale
                inputs[name] = (torch.randn(old.shape, generator=generator) * size).to(old)
        return inputs

    def padding_of(self, name: str) -> int | None:
        """The id of padding: as claimed, or of the table that is looked up."""
        claimed = self.claims.padding_id
        return self.paddings.get(name) if claimed is None else claimed

    def random_ids(self, like: Tensor, generator: torch.Generator, name: str = "") -> Tensor:
        """Ids in the vocabulary, without the padding."""
        size, padding = self.vocabulary(name or self.target), self.padding_of(name or self.target)
        ids = torch.randint(size, like.shape, generator=generator)
        if padding is not None:
            ids = ids.masked_fill(ids == padding, (padding + 1) % size)
        return ids.to(like)

    def replaced(self, inputs: Inputs, name: str, sequence: int, token: int) -> Inputs:
        """The same inputs but for one token of one source."""
        old, at = inputs[name], self.at(sequence, token)
        new = old.clone()
        if self.is_ids(name):
            size = self.vocabulary(name)
            new[at] = (old[at] + 1) % size
            if int(new[at]) == self.padding_of(name):
                new[at] = (new[at] + 1) % size
        else:
            generator = torch.Generator().manual_seed(1000 + 17 * sequence + token)
            noise = torch.randn(old[at].shape, generator=generator)
            new[at] = (noise * float(old.float().std())).to(old)
        names = self.same if name in self.same else [name]
        return {**inputs, **dict.fromkeys(names, new)}

    def at(self, sequence: int, token: int) -> tuple[Any, ...]:
        """The index of a token."""
        place = {self.batch: sequence, self.tokens: token}
        return tuple(
            place.get(i, slice(None)) for i in range(max(self.tokens, self.batch or 0) + 1)
        )

    def by_token(self, output: Tensor) -> Tensor:
        """(batch, tokens, …), whatever the order of the axes was; one "token" if it is pooled."""
        if self.kind in ("pooled", "pictures"):
            return output[:, None]
        if self.flat:
            return output.view(self.n_sequences, -1, *output.shape[1:])
        if self.batch is None:
            return output.movedim(self.out_tokens, 0)[None]
        return output.movedim((self.batch, self.out_tokens), (0, 1))

    def sliced(self, inputs: Inputs, n_tokens: int, name: str = "") -> Inputs:
        """Crop one source, or every source, and what is as long, to the first tokens."""
        names = self.same if name in self.same else [name] if name else self.sources
        lengths = {self.length(n): min(self.length(n), n_tokens) for n in names}
        return self.resized(inputs, lengths, kept=[n for n in self.sources if n not in names])

    def resized(
        self,
        inputs: Inputs,
        lengths: dict[int, int],
        n_sequences: int = 0,
        kept: Collection[str] = (),
    ) -> Inputs:
        """Crop tokens (by how many there are) and sequences, and the masks that cover them."""
        sources, whole = ({id(inputs[name]) for name in names} for names in (self.sources, kept))

        def cropped(value: Tensor) -> Tensor:
            """The first rows along each axis of tokens or sequences."""
            is_source, shape = id(value) in sources, list(value.shape)
            for axis, size in enumerate(shape):
                if axis == (self.batch if is_source else 0) and size == self.n_sequences:
                    shape[axis] = n_sequences or size
                elif (axis == self.tokens or not is_source) and id(value) not in whole:
                    shape[axis] = lengths.get(size, size)
            return value[tuple(map(slice, shape))]

        crops = {id(x): cropped(x) for x in inputs.values() if isinstance(x, Tensor)}
        return {name: crops.get(id(value), value) for name, value in inputs.items()}


def seed_all(seed: int) -> None:
    """Seed everything that a module may draw from."""
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed asks each device: 1 ms
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def output_of(result: Any, *, has_labels: bool = False, which: int = 0) -> Tensor:
    """The first tensor of floats that a module returns; given labels, the loss if there is one."""
    floats = [x for x in tensors_in(result) if x.is_floating_point()]
    if not floats:
        raise TypeError(f"the call returned no tensor of floats: {type(result).__name__}")
    losses = [x for x in floats if x.dim() == 0]
    return losses[0] if has_labels and losses else floats[which]


def tensors_in(result: Any) -> list[Tensor]:
    """All tensors in tuples, lists, dictionaries and data classes, or that an object holds."""
    if isinstance(result, Tensor):
        return [result]
    containers = (Tensor, Mapping, list, tuple)
    content = result if isinstance(result, containers) else getattr(result, "__dict__", {})
    parts = content.values() if isinstance(content, Mapping) else content
    inside = [part for part in parts if isinstance(part, containers) or is_dataclass(part)]
    return [x for part in inside for x in tensors_in(part)]


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The inputs with floats of another type."""
    floats = {n: x for n, x in inputs.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return {**inputs, **{name: x.to(dtype) for name, x in floats.items()}}


def copied(inputs: Inputs) -> Inputs:
    """Copy the tensors; what was one tensor is one copy."""
    tensors = {id(x): x for x in inputs.values() if isinstance(x, Tensor)}
    copies = {key: x.detach().clone() for key, x in tensors.items()}
    return {name: copies.get(id(x), x) for name, x in inputs.items()}


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute every attention by products and a softmax, which can be observed."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def told(raised: Exception) -> str:
    """What was raised, for a sentence."""
    error = raised.__cause__ if isinstance(raised, Refused) else raised
    return f"raised {type(error).__name__}: {error}".partition("\n")[0][:120]


def signature_of(module: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a call may be given; nothing is known of what is written in C."""
    function = module.forward if isinstance(module, nn.Module) else module
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def parameters_of(module: Callable[..., Any]) -> list[str]:
    """Names of the arguments of a call."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in signature_of(module) if p.kind in kinds]


def last(name: str) -> str:
    """The key in ``"batch.input_ids"``."""
    return name.rpartition(".")[2]
