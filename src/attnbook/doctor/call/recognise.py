"""What kind of call an example is: which arguments hold tokens, along which axes."""

import copy
import itertools
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten_with_path

from attnbook.doctor.call.claims import Claims
from attnbook.doctor.call.manners import RAISED, modules_in
from attnbook.doctor.call.masking import without_padding
from attnbook.doctor.call.subject import (
    LABELS,
    Kind,
    Refused,
    Subject,
    cast,
    last,
    parameters_of,
    seed_all,
    signature_of,
    tensors_in,
    told,
)
from attnbook.doctor.tape.compare import DIFFERENT, changed

ADDED_MASK = -1e4
"""An added mask has only zeros and numbers below this (or ones, if it is to be multiplied)."""
NOT_IDS = ("type", "segment", "document", "position", "length", "step")
Shapes = dict[str, torch.Size]  # of arguments, by name
LONG, SEQUENCES = 16, 4
"""Of an example with more tokens or sequences, only some are used."""


PARTS, MOST = re.compile(r"chunk|window|block_|bucket|segment"), 64
"""Names of lengths of which a call needs two, and the largest one that it is given."""


class CallFailed(Exception):  # noqa: N818
    """The example can't be called so: what was done, what came of it, what to write."""


def recognise(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """Recognise the kind of call; ``CallFailed`` says how it was called if it can't be.

    Raises:
        CallFailed: if the call raises, or no argument holds tokens.
        ValueError: if the call has no such argument as is claimed.
    """
    if isinstance(module, type):
        raise CallFailed("looked at it", "it is a class", f"give a module: {module.__name__}(…)")
    subject, output = _called(module, example, claims)
    with subject.mode(training=False):
        masks = _find_sources(subject, output)
        _find_axes(subject, output)
        _find_vocabularies(subject)
        if masks:
            subject.inputs = without_padding(subject, masks)
        if subject.n_sequences == 1 and subject.batch is not None:
            subject = _doubled(subject, subject.batch)
        return subject if subject.kind == "pictures" else _shortened(subject)


def _called(
    module: Callable[..., Any], example: tuple[Any, ...], claims: Claims
) -> tuple[Subject, Tensor]:
    """The call and its output; a single mapping, as a tokenizer gives, may hold the keywords."""
    subject = _subject(module, example, claims)
    try:
        return subject, _output(subject)
    except CallFailed:
        if len(example) != 1 or not isinstance(example[0], Mapping):
            raise
    named = {str(name): x for name, x in example[0].items()} | dict(claims.keywords or {})
    subject = _subject(module, (), replace(claims, keywords=named))
    return subject, _output(subject)


def _subject(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """The call, with its arguments and the claimed mask by name."""
    module = getattr(module, "_orig_mod", module)  # of a compiled module
    if any(is_lazy(p) for part in modules_in(module) for p in part.parameters()):
        if not isinstance(module, nn.Module):
            found = "they are drawn when it is called"
            raise CallFailed("counted its weights", found, "call it once before")
        module = copy.deepcopy(module)
    numbered = (f"argument {i}" for i in itertools.count())
    names = itertools.chain(parameters_of(module), numbered)
    call = (dict(zip(names, example, strict=False)), dict(claims.keywords or {}))
    leaves, spec = tree_flatten_with_path(call)
    paths = ([getattr(k, "key", getattr(k, "idx", k)) for k in path[1:]] for path, _ in leaves)
    inputs = {".".join(map(str, path)): x for path, (_, x) in zip(paths, leaves, strict=True)}
    return Subject(module, _mask_by_name(module, inputs, claims), inputs, spec)


def _mask_by_name(module: Callable[..., Any], inputs: dict[str, Any], claims: Claims) -> Claims:
    """The claims, with the mask's argument as it is called in ``inputs``."""
    if claims.mask is None:
        return claims
    wanted, names = claims.mask.argument, list(inputs)
    signature = signature_of(module)
    parameters = [p.name for p in signature]
    known = list(dict.fromkeys([*parameters, *map(last, names)]))
    if isinstance(wanted, int):
        matches = (names + parameters[len(names) :])[wanted : wanted + 1] if wanted >= 0 else []
    else:
        free = not signature or any(p.kind is p.VAR_KEYWORD for p in signature)
        matches = [n for n in names if n != wanted and last(n) == wanted]
        matches += [wanted] * (free or last(wanted) in known)
    if not matches:
        has = ", ".join(known)
        raise ValueError(f"mask's argument is {wanted!r}, but the call has {has}")
    return replace(claims, mask=replace(claims.mask, argument=matches[0]))


def _output(subject: Subject) -> Tensor:
    """The first returned tensor of floats that is not (batch, heads, queries, keys).

    A module in half precision is replaced by a copy in float32, as rounding hides mistakes.
    """
    module, inputs = subject.module, subject.inputs
    tensors = (*subject.parameters.values(), *inputs.values())
    half = any(getattr(x, "dtype", None) in (torch.half, torch.bfloat16) for x in tensors)
    if half and isinstance(module, nn.Module):
        try:
            subject.module = copy.deepcopy(module).float()
            subject.inputs = cast(inputs, torch.float32)
            return _output(subject)
        except (CallFailed, *RAISED):  # it runs in one type only, or can't be copied
            subject.module, subject.inputs = module, inputs
    lengths = {n for x in inputs.values() if isinstance(x, Tensor) for n in x.shape[:3]}
    seed_all(0)
    try:
        with subject.mode(training=False), torch.no_grad():
            result = subject.call()
        floats = [x for x in tensors_in(result) if x.is_floating_point()]
        weights = [x.dim() >= 3 and x.shape[-1] == x.shape[-2] in lengths for x in floats]
        subject.which = weights.index(False) if False in weights else 0
        return subject.output(result)
    except (Refused, TypeError) as error:
        raised = f"it {told(error)}{_line_of(error)}"
        raise CallFailed(_how(subject), raised, _remedy(subject, raised)) from error


REMEDIES = {
    "does not require grad": "give a function that returns the loss, and leaves backward() to you",
    "'indices' to have": "ids are whole numbers: ids.long()",
    "index out of range": "ids below the number of rows of a table, no more tokens than positions",
    "on meta": "meta tensors hold no numbers: make the module on the CPU",
}
"""What helps, by what is in the error."""


def _line_of(error: BaseException) -> str:
    """The last line that is not torch's, where it was raised."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = [x for x in frames if not {"torch", "doctor"} & set(Path(x.filename).parts)]
    return f", at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _remedy(subject: Subject, raised: str) -> str:
    """What to write so that it can be called."""
    values = subject.inputs.values()
    if any(isinstance(x, np.ndarray) for x in values):
        return "give tensors: torch.from_numpy(array)"
    if values and not any(isinstance(x, Tensor) for x in values):
        return "give tensors: torch.tensor(list)"
    return next((remedy for words, remedy in REMEDIES.items() if words in raised), "")


def _how(subject: Subject) -> str:
    """How the module was called, for a sentence."""

    def short(x: Any) -> str:
        return f"{x.dtype}{list(x.shape)}"[6:] if isinstance(x, Tensor) else repr(x)[:40]

    given = [f"{n}={short(x)}" for n, x in subject.inputs.items()]
    return "called it with " + ", ".join(given[:8]) + ", …" * (len(given) > 8)


def _is_added_mask(value: Tensor) -> bool:
    """True if floats are of two kinds, as in a mask that is added or multiplied."""
    if not value.is_floating_point() or value.dim() < 2 or value.numel() < 2:
        return False
    masked = (value == 0) | (value == 1) | (value < ADDED_MASK)
    return bool(masked.all()) and bool((value != value.flatten()[0]).any())


def _is_ids(name: str, value: Tensor) -> bool:
    """True for whole numbers, (tokens) or (batch, tokens), that no name says to be others."""
    if value.is_floating_point() or value.is_complex() or any(x in name.lower() for x in NOT_IDS):
        return False
    return value.dim() == 2 or (value.dim() == 1 and last(name) not in LABELS)  # classes


ROLES: dict[str, Callable[[str, Tensor], bool]] = {
    "mask": lambda name, x: x.dtype == torch.bool or "mask" in name.lower() or _is_added_mask(x),
    "vectors": lambda _, x: x.is_floating_point() and x.dim() > 1,
    "ids": _is_ids,
}
"""What an argument holds: the first of these that is true of it."""


def _find_sources(subject: Subject, output: Tensor) -> set[str]:
    """Set the kind of call and the arguments that hold tokens; the masks are returned."""
    roles: dict[str, Shapes] = {role: {} for role in ROLES}
    claimed = subject.claims.mask.argument if subject.claims.mask else None
    for name, value in subject.inputs.items():
        if isinstance(value, Tensor):
            matching = (role for role, is_so in ROLES.items() if is_so(name, value))
            role = "mask" if name == claimed else next(matching, "")
            roles.get(role, {})[name] = value.shape
    ids, vectors = roles["ids"], roles["vectors"]
    for name in (n for n in roles["mask"] if n != claimed):
        _no_ids(subject, name)
    dims = [len(shape) for shape in vectors.values()]
    dim = 3 if 3 in dims else next(iter(dims), 0)
    vectors = {name: shape for name, shape in vectors.items() if len(shape) == dim}
    first = next(iter(vectors.values()), None)
    # One row for all sequences, as of positions, is no stream.
    vectors = {n: x for n, x in vectors.items() if dim < 3 or x[0] > 1 or x == first}
    stream = _stream(subject.claims.tokens, vectors, ids, output.shape)
    subject.kind, subject.sources = _kind(vectors, ids, stream, output.shape)
    if not subject.sources:
        found = "no argument is a tensor of vectors (…, d) or of ids"
        raise CallFailed(_how(subject), found, _remedy(subject, found))
    if subject.kind == "attention" and dim == 4 and subject.parameters:
        subject.kind = "pictures"
    ids_of = filter(subject.is_ids, subject.sources)
    subject.vocabularies = {n: size for n in ids_of if (size := _vocabulary(subject, n))}
    first, *others = (subject.inputs[name] for name in subject.sources)
    if subject.kind == "attention" and others and all(torch.equal(x, first) for x in others):
        subject.same = subject.sources  # the query, key and value of x are one source
    return set(roles["mask"]) | ({claimed} if isinstance(claimed, str) else set())


def _stream(claimed: str | None, vectors: Shapes, ids: Shapes, output: torch.Size) -> str:
    """The argument that is claimed to hold the tokens, or ids if they alone have output rows."""
    if claimed is not None:
        for name in (*vectors, *ids):
            if claimed in (name, last(name)):
                return name
        has = ", ".join((*vectors, *ids)) or "none"
        raise ValueError(f"tokens is {claimed!r}, but what holds vectors or ids is {has}")
    first = next(iter(vectors.values()), None)
    rows = [name for name, shape in ids.items() if len(shape) == 2 and output[:2] == shape]
    if first is None or not rows or len(output) < 3:
        return ""
    return "" if output[:2] == first[:2] and output[-1] == first[-1] else rows[-1]


def _kind(vectors: Shapes, ids: Shapes, stream: str, output: torch.Size) -> tuple[Kind, list[str]]:
    """The kind of call, and its sources."""
    by_stream = sorted(vectors, key=lambda name: name != stream)
    if stream in ids:
        others = [name for name in ids if name != stream]
        condition = [name for name, shape in vectors.items() if len(shape) == 3][:1]
        if not output:
            return "loss", [*others, stream]
        return ("encoder-decoder" if condition else "tokens"), [*condition, stream]
    if not output:
        return "loss", by_stream or list(ids)
    if vectors:
        # Of two sequences of vectors, the one first that the output belongs to.
        *_, second = vectors
        belongs = output[:2] == vectors[second][:2] != vectors[by_stream[0]][:2]
        target = belongs or last(second).startswith(("tgt", "target"))
        turned = not stream and len(vectors) == 2 and target
        return "attention", by_stream[::-1] if turned else by_stream
    last_ids = next(reversed(ids.values()), output)
    flat = len(output) == 2 and output[0] == last_ids.numel()
    if len(ids) > 1 and (flat or output[:2] == last_ids[:2]):
        return "encoder-decoder", list(ids)
    return "tokens", list(ids)[:1]


def _find_axes(subject: Subject, output: Tensor) -> None:
    """Set the axes of sequences and tokens, in the sources and in the output."""
    value = subject.inputs[subject.target]
    floats, size = value.is_floating_point(), list(value.shape)
    first = subject.claims.batch_first
    if floats and len(size) == 4:  # (batch, heads, tokens, d_head), or pictures
        subject.tokens = 2
    elif len(size) == (2 if floats else 1):
        subject.batch, subject.tokens = None, 0
    elif first is False or (first is None and says_tokens_first(subject)):
        subject.batch, subject.tokens = 1, 0
    elif len(size) == 3 and _channels_come_first(subject, size):
        subject.tokens = 2
    elif (
        first is None and output.dim() > 2 and size[0] > size[1] > 1 and _tokens_come_first(subject)
    ):
        subject.batch, subject.tokens = 1, 0
    subject.out_tokens = subject.tokens
    if subject.batch != 0:
        return
    n, shape = subject.n_tokens, list(output.shape)
    if len(shape) > 2 and shape[subject.tokens] != n and n in shape[1:]:
        subject.out_tokens = shape.index(n, 1)  # (batch, vocabulary, tokens)
    if len(shape) == 2 and shape[0] == subject.n_sequences and shape[1] != n:
        subject.kind = "pooled" if subject.kind in ("attention", "tokens") else subject.kind
    if len(shape) == 2 and subject.kind in ("tokens", "encoder-decoder"):
        subject.flat = shape[0] == subject.n_sequences * n


def _no_ids(subject: Subject, name: str) -> None:
    """Refuse ids in a mask's place; packed sequences may be numbered, but there are few of them.

    Raises:
        CallFailed: if there are more of them than tokens.
    """
    x = subject.inputs[name]
    whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    if whole and x.dim() == 2 and x.numel() and int(x.max()) > x.shape[-1]:
        found = f"{name}, a mask by its name, holds whole numbers up to {int(x.max())}"
        raise CallFailed(
            _how(subject), found, "a mask is of booleans, zeros or ones: give ids by name"
        )


def says_tokens_first(subject: Subject) -> bool:
    """True if torch's own attention says so, or that of its own encoders and decoders."""
    module = subject.module
    flag = getattr(module, "batch_first", None)
    if flag is None and type(module).__module__ == "torch.nn.modules.transformer":
        parts = (part for module in subject.modules for part in module.modules())
        flag = next((m.batch_first for m in parts if isinstance(m, nn.MultiheadAttention)), None)
    return flag is False


def _channels_come_first(subject: Subject, size: list[int]) -> bool:
    """True for (batch, d, tokens): weights are as long as d, the attention as the tokens."""
    _, d, tokens = size
    sizes = {n for p in subject.parameters.values() for n in p.shape}
    if d not in sizes or tokens in sizes:
        return False
    keys = {a.weights.shape[-1] for a in subject.trace().attentions}
    return tokens in keys and d not in keys


def _tokens_come_first(subject: Subject) -> bool:
    """True if only the first axis is mixed."""
    inputs = subject.fresh(0)
    replaced = subject.run(subject.replaced(inputs, subject.target, 0, 0))
    moved = changed(subject.run(inputs), replaced) > DIFFERENT  # that token is the first of both
    return bool(moved[1:, 0].any()) and not bool(moved[:, 1:].any())


def _find_vocabularies(subject: Subject) -> None:
    """Of a table that several kinds of tokens share, only the example's ids are sure."""
    if subject.claims.vocab_size or not subject.vocabularies:
        return
    sizes = subject.vocabularies.items()
    highest = {n: torch.full_like(subject.inputs[n], size - 1) for n, size in sizes}
    try:
        subject.run({**subject.inputs, **highest})
    except Refused:
        for name in highest:
            subject.vocabularies[name] = int(subject.inputs[name].max()) + 1


def _vocabulary(subject: Subject, name: str) -> int:
    """The number of rows of the table in which a source of ids is looked up; 0 if not known."""
    ids = subject.inputs[name].flatten()
    sizes: dict[bool, list[int]] = {True: [], False: []}
    trace = replace(subject, sources=[name]).trace()
    for node in trace.of("embedding", "index", "index_select"):
        maker, table = node.inputs[0]
        if node.depends and (maker is None or not maker.depends):
            # Positions are looked up, too, and may be counted from the ids that are real.
            by_ids = any(torch.equal(x.flatten(), ids) for _, x in node.inputs)
            sizes[by_ids].append(len(table))
            if by_ids and node.name == "embedding" and len(node.args) > 2 and node.args[2] >= 0:
                subject.paddings[name] = node.args[2]
    others = [source for source in subject.sources if source != name]
    if not (sizes[True] or sizes[False]) and others:
        labels = subject.kind == "loss" or last(name) in LABELS
        return subject.vocabulary(others[0]) if labels else 0
    return max(sizes[True] or sizes[False], default=0)


def _doubled(subject: Subject, axis: int) -> Subject:
    """With two sequences instead of a single one, if it can be called so."""
    inputs = dict(subject.inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() > max(1, axis) and value.shape[axis] == 1:
            inputs[name] = torch.cat([value, value], axis)
    double = replace(subject, inputs=inputs)
    with suppress(Refused, IndexError):  # it takes one sequence only
        output = double.run()
        return double if subject.kind == "loss" or output.shape[axis] == 2 else subject
    return subject


def _shortened(subject: Subject) -> Subject:
    """With few tokens and sequences of a long example, if it can be called so."""
    lengths = sorted({subject.length(name) for name in subject.sources})
    loss, n_sequences = subject.kind == "loss", subject.n_sequences
    few = n_sequences
    if n_sequences > SEQUENCES and n_sequences not in lengths:
        few = SEQUENCES if loss else SEQUENCES - 1
    least = max((subject.claims.window or 0) + 5, 2 * _longest_part(subject) + 1)
    for shortest in (16 if loss else 11, 16, 32, lengths[-1]):
        shortest = max(shortest, least)
        # Lengths that differ stay different.
        sizes = {n: min(n, shortest + 2 * i) if n > LONG else n for i, n in enumerate(lengths)}
        if few == n_sequences and all(n == size for n, size in sizes.items()):
            return subject
        cropped = subject.resized(subject.inputs, sizes, few)
        short = replace(subject, inputs=cropped, whole=subject.inputs)
        short.cut = f", cut to {short.n_sequences} × {short.n_tokens}"
        with suppress(Refused):  # it takes one length only
            cut, whole = short.run().shape, subject.run().shape
            fits = all(a in (b, sizes.get(b), few) for a, b in zip(cut, whole, strict=False))
            tokens = slice(subject.out_tokens, subject.out_tokens + 1)
            rows = whole[tokens] == (subject.n_tokens,)
            if fits and (not rows or cut[tokens] == (short.n_tokens,)):
                return short
    return subject


def _longest_part(subject: Subject) -> int:
    """The longest chunk, window or block that the module names, if the example has two of it."""
    parts = [part for module in subject.modules for part in module.modules()]
    named = [pair for part in parts for pair in vars(part).items()]
    named += [(p.name, p.default) for p in signature_of(subject.module)]
    sizes = [
        x
        for name, x in named
        if type(x) is int and (PARTS.search(name) or name == "size") and x <= MOST
    ]
    return max((x for x in sizes if 2 * x <= subject.n_tokens), default=0)
