"""What kind of call an example is: which arguments hold tokens, along which axes."""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten_with_path

from attnbook.doctor.claims import Claims
from attnbook.doctor.manners import modules_in
from attnbook.doctor.masking import without_padding
from attnbook.doctor.subject import (
    DIFFERENT,
    LABELS,
    Kind,
    Subject,
    cast,
    changed,
    last,
    parameters_of,
    seed_all,
    signature_of,
    tensors_in,
)

ADDED_MASK = -1e4
"""An added mask has only zeros and numbers below this (or ones, if it is to be multiplied)."""
NOT_IDS = ("type", "segment", "document", "position", "length", "step")
LONG, SEQUENCES = 16, 4
"""Of an example with more tokens or sequences, only some are used."""


class CallFailed(Exception):  # noqa: N818
    """The example can't be called so."""


def recognise(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """Recognise the kind of call; ``CallFailed`` says how it was called if it can't be.

    Raises:
        CallFailed: if the call raises, or no argument holds tokens.
        ValueError: if the call has no such argument as is claimed.
    """
    subject, output = _called(_subject(module, example, claims))
    with subject.mode(training=False):
        masks = _find_sources(subject, output)
        subject.vocabularies = dict(_vocabularies(subject))
        _find_axes(subject, output)
        subject.inputs = without_padding(subject, masks)
        return _resized(subject)


def _subject(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """The call, with its arguments and the claimed mask by name."""
    module = getattr(module, "_orig_mod", module)  # of a compiled module
    if any(is_lazy(p) for part in modules_in(module) for p in part.parameters()):
        if not isinstance(module, nn.Module):
            remedy = "it draws them when called: call it once before"
            raise CallFailed("counted its weights", remedy)
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


def _called(subject: Subject) -> tuple[Subject, Tensor]:
    """The subject and its output; in float32, as the rounding of half precision hides mistakes."""
    tensors = (*subject.parameters.values(), *subject.inputs.values())
    half = any(getattr(x, "dtype", None) in (torch.half, torch.bfloat16) for x in tensors)
    if half and isinstance(subject.module, nn.Module):
        with suppress(Exception):  # it runs in one type only, or can't be copied
            module = copy.deepcopy(subject.module).float()
            single = replace(subject, module=module, inputs=cast(subject.inputs, torch.float32))
            return single, _output(single)
    try:
        return subject, _output(subject)
    except Exception as error:  # whatever a reader's module raises is to be told
        raised = f"it raised {type(error).__name__}: {error}"
        if "does not require grad" in str(error):
            raised += "; give a function that returns the loss, and leaves backward() to others"
        raise CallFailed(_how(subject), raised) from error


def _output(subject: Subject) -> Tensor:
    """The first returned tensor of floats that is not (batch, heads, queries, keys)."""
    lengths = {n for x in subject.inputs.values() if isinstance(x, Tensor) for n in x.shape[:3]}
    seed_all(0)
    with subject.mode(training=False), torch.no_grad():
        result = subject.call()
    floats = [x for x in tensors_in(result) if x.is_floating_point()]
    weights = [x.dim() >= 3 and x.shape[-1] == x.shape[-2] in lengths for x in floats]
    subject.which = weights.index(False) if False in weights else 0
    return subject.output(result)


def _how(subject: Subject) -> str:
    """How the module was called, for a sentence."""

    def shape(x: Any) -> str:
        tensor = isinstance(x, Tensor)
        return f"{x.dtype}{list(x.shape)}".removeprefix("torch.") if tensor else repr(x)[:40]

    return "called it with " + ", ".join(f"{n}={shape(x)}" for n, x in subject.inputs.items())


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
    roles: dict[str, list[str]] = {role: [] for role in ROLES}
    claimed = subject.claims.mask.argument if subject.claims.mask else None
    for name, value in subject.inputs.items():
        tests = ROLES.items() if isinstance(value, Tensor) else ()
        role = next((role for role, test in tests if test(name, value)), None)
        if role is not None or name == claimed:
            roles["mask" if name == claimed else str(role)].append(name)
    ids, dims = roles["ids"], {n: subject.inputs[n].dim() for n in roles["vectors"]}
    vectors = [
        n
        for n, dim in dims.items()
        if dim == (3 if 3 in dims.values() else dims[roles["vectors"][0]])
    ]
    stream = _stream(subject, vectors, ids, output)
    subject.kind, subject.sources = _kind(subject, vectors, ids, stream, output)
    if not subject.sources:
        why = "no argument is a tensor of vectors (…, d) or of ids"
        raise CallFailed(_how(subject), why)
    first, *others = subject.sources
    if stream in vectors:
        subject.sources.sort(key=lambda name: name != stream)
    elif subject.kind in ("attention", "pictures") and len(vectors) == 2:
        _target_first(subject, output)
    same = all(torch.equal(subject.inputs[name], subject.inputs[first]) for name in others)
    if subject.kind == "attention" and others and same:
        subject.same = subject.sources  # the query, key and value of x are one source
    return set(roles["mask"])


def _stream(subject: Subject, vectors: list[str], ids: list[str], output: Tensor) -> str | None:
    """The argument that is claimed to hold the tokens, or ids if they alone have output rows."""
    claimed = subject.claims.tokens
    if claimed is not None:
        named = [n for n in (*vectors, *ids) if claimed in (n, last(n))]
        if not named:
            has = ", ".join((*vectors, *ids)) or "none"
            raise ValueError(f"tokens is {claimed!r}, but what holds vectors or ids is {has}")
        return named[0]
    if not (vectors and ids) or output.dim() < 3:
        return None
    sizes = {n: subject.inputs[n].shape for n in (vectors[0], *ids)}
    rows = [n for n in ids if len(sizes[n]) == 2 and output.shape[:2] == sizes[n]]
    like_vectors = (
        output.shape[:2] == sizes[vectors[0]][:2] and output.shape[-1] == sizes[vectors[0]][-1]
    )
    return rows[-1] if rows and not like_vectors else None


def _kind(
    subject: Subject, vectors: list[str], ids: list[str], stream: str | None, output: Tensor
) -> tuple[Kind, list[str]]:
    """The kind of call, and its sources."""
    if stream in ids:
        others = [n for n in ids if n != stream]
        condition = [n for n in vectors if subject.inputs[n].dim() == 3][:1]
        if output.dim() == 0:
            return "loss", [*others, stream]
        return ("encoder-decoder" if condition else "tokens"), [*condition, stream]
    if output.dim() == 0:
        return "loss", vectors or ids
    if vectors:
        pictures = subject.inputs[vectors[0]].dim() == 4 and subject.parameters
        return ("pictures" if pictures else "attention"), vectors
    target = subject.inputs[ids[-1]] if len(ids) > 1 else None
    flat = output.dim() == 2 and target is not None and len(output) == target.numel()
    if target is not None and (flat or output.shape[:2] == target.shape[:2]):
        return "encoder-decoder", ids
    return "tokens", ids[:1]


def _target_first(subject: Subject, output: Tensor) -> None:
    """Of two sequences of vectors, put the one first that the output belongs to."""
    first, second = (subject.inputs[name].shape for name in subject.sources)
    belongs = output.shape == second != first
    if belongs or last(subject.sources[1]).startswith(("tgt", "target")):
        subject.sources.reverse()


def _find_axes(subject: Subject, output: Tensor) -> None:
    """Set the axes of sequences and tokens, in the sources and in the output."""
    subject.batch, subject.tokens = _axes(subject)
    if _tokens_come_first(subject, output):
        subject.batch, subject.tokens = 1, 0
    subject.out_tokens = subject.tokens
    n, shape = subject.n_tokens, list(output.shape)
    if subject.batch != 0:
        return
    if len(shape) > 2 and shape[subject.tokens] != n and n in shape[1:]:
        subject.out_tokens = shape.index(n, 1)  # (batch, vocabulary, tokens)
    if len(shape) == 2 and shape[0] == subject.n_sequences and shape[1] != n:
        subject.kind = "pooled" if subject.kind in ("attention", "tokens") else subject.kind
    if len(shape) == 2 and subject.kind in ("tokens", "encoder-decoder"):
        subject.flat = shape[0] == subject.n_sequences * n


def _axes(subject: Subject) -> tuple[int | None, int]:
    """The axes of sequences, if there are several, and of tokens in the target."""
    value = subject.inputs[subject.target]
    if value.is_floating_point() and value.dim() == 4:
        return 0, 2  # (batch, heads, tokens, d_head), or pictures, whose tokens are the module's
    if value.dim() == (2 if value.is_floating_point() else 1):
        return None, 0
    if subject.claims.batch_first is False or _says_sequence_first(subject):
        return 1, 0
    return 0, 2 if value.dim() == 3 and _channels_come_first(subject) else 1


def _says_sequence_first(subject: Subject) -> bool:
    """True if torch's own attention says so, or that of its own encoders and decoders."""
    said = getattr(subject.module, "batch_first", None)
    if said is None and type(subject.module).__module__ == "torch.nn.modules.transformer":
        parts = (m for part in subject.modules for m in part.modules())
        said = next((m.batch_first for m in parts if isinstance(m, nn.MultiheadAttention)), None)
    return said is False


def _channels_come_first(subject: Subject) -> bool:
    """True for (batch, d, tokens): weights are as long as d, the attention as the tokens."""
    _, d, tokens = subject.inputs[subject.target].shape
    sizes = {n for p in subject.parameters.values() for n in p.shape}
    if d not in sizes or tokens in sizes:
        return False
    keys = {a.weights.shape[-1] for a in subject.trace().attentions}
    return tokens in keys and d not in keys


def _tokens_come_first(subject: Subject, output: Tensor) -> bool:
    """True if the example is longer along its first axis, and only that one is mixed."""
    n, m = subject.inputs[subject.target].shape[:2] if subject.batch is not None else (0, 0)
    if subject.kind == "loss" or subject.tokens != 1 or output.dim() < 3 or not n > m > 1:
        return False
    if subject.claims.batch_first is not None:
        return False
    inputs = subject.fresh(0)
    replaced = subject.run(subject.replaced(inputs, subject.target, 0, 0))
    moved = changed(subject.run(inputs), replaced) > DIFFERENT  # that token is the first of both
    return bool(moved[1:, 0].any()) and not bool(moved[:, 1:].any())


def _vocabularies(subject: Subject) -> Iterator[tuple[str, int]]:
    """For each source of ids, the number of rows of the table in which they are looked up."""
    for name in filter(subject.is_ids, subject.sources):
        ids = subject.inputs[name].flatten()
        others = [n for n in subject.sources if n != name]
        sizes: dict[bool, list[int]] = {True: [], False: []}
        for node in (
            replace(subject, sources=[name]).trace().of("embedding", "index", "index_select")
        ):
            maker, table = node.inputs[0]
            if node.depends and (maker is None or not maker.depends):
                # Positions are looked up, too, and may be counted from the ids that are real.
                by_ids = any(
                    x.numel() == len(ids) and x.flatten().equal(ids) for _, x in node.inputs
                )
                sizes[by_ids].append(len(table))
        if sizes[True] or sizes[False]:
            yield name, max(sizes[True] or sizes[False])
        elif others and (subject.kind == "loss" or last(name) in LABELS):
            yield name, subject.vocabulary(others[0])


def _resized(subject: Subject) -> Subject:
    """With two sequences or more, and few tokens and sequences of a long example."""
    subject = _doubled(subject)
    return subject if subject.kind == "pictures" else _shortened(subject)


def _doubled(subject: Subject) -> Subject:
    """With two sequences instead of a single one, if it can be called so."""
    axis, inputs = subject.batch, dict(subject.inputs)
    if axis is None or subject.n_sequences > 1:
        return subject
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() > max(1, axis) and value.shape[axis] == 1:
            inputs[name] = torch.cat([value, value], axis)
    double = replace(subject, inputs=inputs)
    with suppress(Exception):  # it takes one sequence only
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
    for shortest in (16 if loss else 11, 16, 32, lengths[-1]):
        shortest = max(shortest, (subject.claims.window or 0) + 5)
        # Lengths that differ stay different.
        sizes = {n: min(n, shortest + 2 * i) if n > LONG else n for i, n in enumerate(lengths)}
        if few == n_sequences and all(n == size for n, size in sizes.items()):
            return subject
        short = replace(subject, inputs=subject.resized(subject.inputs, sizes, few))
        short.cut = f", cut to {short.n_sequences} × {short.n_tokens}"
        with suppress(Exception):  # it takes one length only
            cut, whole = short.run().shape, subject.run().shape
            fits = all(a in (b, sizes.get(b), few) for a, b in zip(cut, whole, strict=False))
            tokens = slice(subject.out_tokens, subject.out_tokens + 1)
            rows = whole[tokens] == (subject.n_tokens,)
            if fits and (not rows or cut[tokens] == (short.n_tokens,)):
                return short
    return subject
