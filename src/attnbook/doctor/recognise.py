"""What kind of call an example is: which arguments hold tokens, along which axes."""

import copy
import itertools
from collections.abc import Callable, Iterator
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
    Subject,
    cast,
    changed,
    last,
    parameters_of,
    seed_all,
    tensors_in,
)
from attnbook.doctor.trace import Node

ADDED_MASK = -1e4
"""An added mask has only zeros and numbers below this (or ones, if it is to be multiplied)."""
NOT_IDS = ("type", "segment", "document", "position", "length", "mask", "step")
LONG, SEQUENCES = 16, 4
"""Of an example with more tokens or sequences, only some are used."""


class CallFailed(Exception):  # noqa: N818
    """The example can't be called so."""


def recognise(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """What kind of call the example is; if it fails, ``CallFailed`` says how it was called."""
    module = getattr(module, "_orig_mod", module)  # of a compiled module
    if any(is_lazy(p) for part in modules_in(module) for p in part.parameters()):
        if not isinstance(module, nn.Module):
            raise CallFailed(
                "counted its weights", "it draws them when called: call it once before"
            )
        module = copy.deepcopy(module)
    subject = _precise(_subject(module, example, claims))
    inputs = subject.inputs
    call = "called it with " + ", ".join(f"{name}={_shape(x)}" for name, x in inputs.items())
    try:
        with subject.mode(training=False):
            subject.which = _which(subject)
            output = subject.run()
    except Exception as error:  # whatever a reader's module raises is to be told
        raised = f"it raised {type(error).__name__}: {error}"
        if "does not require grad" in str(error):
            raised += "; give a function that returns the loss, and leaves backward() to others"
        raise CallFailed(call, raised) from error
    _name_the_mask(subject)
    masks = {name for name, value in inputs.items() if _is_mask(name, value)}
    masks |= {str(subject.claims.mask.argument)} if subject.claims.mask else set()
    held = [name for name in inputs if name not in masks]
    floats = [n for n in held if _is_floats(inputs[n])]
    dims = [inputs[n].dim() for n in floats]
    floats = [n for n in floats if inputs[n].dim() == (3 if 3 in dims else dims[0])]
    ids = [n for n in held if _is_ids(n, inputs[n])]
    ids = [n for n in ids if last(n) not in LABELS or inputs[n].dim() > 1]  # classes stay
    stream = _stream(subject, floats, ids, output)
    if stream and stream in ids:
        vectors = [n for n in floats if inputs[n].dim() == 3]
        ids, floats = [*(n for n in ids if n != stream), stream], []
    else:
        vectors = []
    subject.sources = floats or ids
    if not subject.sources:
        raise CallFailed(call, "no argument is a tensor of vectors (…, d) or of ids")
    if output.dim() == 0:
        subject.kind = "loss"
    elif vectors:  # a condition, and the ids that are judged
        subject.kind, subject.sources = "encoder-decoder", [vectors[0], ids[-1]]
    elif stream and stream in ids:
        subject.kind, subject.sources = "tokens", [stream]
    elif floats:
        subject.kind = "attention"
    elif len(ids) > 1 and _belongs(output, inputs[ids[-1]]):
        subject.kind = "encoder-decoder"
    else:
        subject.kind, subject.sources = "tokens", ids[:1]
    if stream in floats:
        subject.sources.sort(key=lambda name: name != stream)
    elif subject.kind == "attention" and len(floats) == 2:
        _target_first(subject, output)
    _find_axes(subject, output)
    _find_same(subject)
    each = output.dim() == 2 and len(output) == subject.n_sequences and subject.batch == 0
    if subject.kind in ("attention", "tokens") and each and output.shape[1] != subject.n_tokens:
        subject.kind = "pooled"
    if output.dim() == 2 and subject.batch == 0 and subject.kind in ("tokens", "encoder-decoder"):
        subject.flat = len(output) == subject.n_sequences * subject.n_tokens
    with subject.mode(training=False):
        subject.vocabularies = dict(_vocabularies(subject))
        if subject.claims.batch_first is None and _tokens_come_first(subject):
            subject.batch, subject.tokens, subject.out_tokens = 1, 0, 0
        subject.inputs = without_padding(subject, masks)
        subject = _doubled(subject)
        return subject if subject.kind == "pictures" else _shortened(subject)


def _subject(module: Callable[..., Any], example: tuple[Any, ...], claims: Claims) -> Subject:
    """The call, its arguments by name."""
    counted = (f"argument {i}" for i in itertools.count())
    names = itertools.chain(parameters_of(module), counted)
    call = (dict(zip(names, example, strict=False)), dict(claims.keywords or {}))
    leaves, spec = tree_flatten_with_path(call)
    keys = (
        [str(getattr(key, "key", getattr(key, "idx", key))) for key in path[1:]]
        for path, _ in leaves
    )
    inputs = {".".join(k): x for k, (_, x) in zip(keys, leaves, strict=True)}
    return Subject(module, claims, inputs, spec)


def _precise(subject: Subject) -> Subject:
    """A copy in float32 of a module in half precision, whose rounding hides what is looked for."""
    module = subject.module
    given = (*subject.parameters.values(), *subject.inputs.values())
    half = any(isinstance(x, Tensor) and x.dtype in (torch.half, torch.bfloat16) for x in given)
    if not half or not isinstance(module, nn.Module):
        return subject
    inputs = cast(subject.inputs, torch.float32)
    try:
        precise = replace(subject, module=copy.deepcopy(module).float(), inputs=inputs)
        with precise.mode(training=False):
            precise.run()
    except Exception:  # it is of one type only, or can't be copied
        return subject
    return precise


def _name_the_mask(subject: Subject) -> None:
    """The mask that is claimed, by the name of its argument."""
    claim, names = subject.claims.mask, list(subject.inputs)
    if claim is None:
        return
    inside = [n for n in names if n != claim.argument and last(n) == claim.argument]
    name = names[claim.argument] if isinstance(claim.argument, int) else claim.argument
    name = inside[0] if inside else name
    subject.claims = replace(subject.claims, mask=replace(claim, argument=name))


def _which(subject: Subject) -> int:
    """The first tensor of floats that is not (batch, heads, queries, keys), if there is one."""
    lengths = {n for x in subject.inputs.values() if isinstance(x, Tensor) for n in x.shape[:3]}
    seed_all(0)
    with torch.no_grad():
        outputs = [x for x in tensors_in(subject.call()) if x.is_floating_point()]
    for i, x in enumerate(outputs):
        if not (x.dim() >= 3 and x.shape[-1] == x.shape[-2] in lengths):
            return i
    return 0


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)[:40]


def _is_mask(name: str, value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dtype == torch.bool or "mask" in name.lower():
        return isinstance(value, Tensor)
    if not _is_floats(value) or value.numel() < 2:
        return False
    masked = (value == 0) | (value == 1) | (value < ADDED_MASK)
    return bool(masked.all()) and bool((value != value.flatten()[0]).any())


def _is_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2


def _is_ids(name: str, value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
        return False
    return value.dim() in (1, 2) and not any(word in name.lower() for word in NOT_IDS)


def _belongs(output: Tensor, ids: Tensor) -> bool:
    """Whether there is a row for each id, in (batch, tokens, …) or (batch × tokens, …)."""
    flat = output.dim() == 2 and len(output) == ids.numel()
    return output.shape[:2] == ids.shape[:2] or flat


def _stream(subject: Subject, floats: list[str], ids: list[str], output: Tensor) -> str | None:
    """The argument that is claimed to hold the tokens, or ids if they alone have output rows."""
    claimed = subject.claims.tokens
    if claimed is not None:
        named = [n for n in (*floats, *ids) if claimed in (n, last(n))]
        if not named:
            has = ", ".join((*floats, *ids)) or "none"
            raise ValueError(f"tokens is {claimed!r}, but what holds vectors or ids is {has}")
        return named[0]
    if not (floats and ids) or output.dim() < 3:
        return None
    rows = [n for n in ids if subject.inputs[n].dim() == 2 and _belongs(output, subject.inputs[n])]
    vectors = subject.inputs[floats[0]]
    own = output.shape[:2] == vectors.shape[:2] and output.shape[-1] == vectors.shape[-1]
    return rows[-1] if rows and not own else None


def _find_axes(subject: Subject, output: Tensor) -> None:
    value = subject.inputs[subject.target]
    if value.is_floating_point() and value.dim() == 4:
        # (batch, heads, tokens, d_head), or pictures, whose tokens are the module's own.
        subject.batch, subject.tokens = 0, 2
        if subject.parameters and subject.kind == "attention":
            subject.kind = "pictures"
    elif value.dim() == (2 if value.is_floating_point() else 1):
        subject.batch, subject.tokens = None, 0
    elif subject.claims.batch_first is False or _says_sequence_first(subject):
        subject.batch, subject.tokens = 1, 0
    elif value.dim() == 3 and _channels_come_first(subject):
        subject.batch, subject.tokens = 0, 2
    subject.out_tokens = subject.tokens
    n, shape = subject.n_tokens, list(output.shape)
    if subject.batch == 0 and len(shape) > 2 and shape[subject.tokens] != n and n in shape[1:]:
        subject.out_tokens = shape.index(n, 1)  # (batch, vocabulary, tokens)


def _says_sequence_first(subject: Subject) -> bool:
    """Torch's own attention says so, or that of its own encoders and decoders."""
    said = getattr(subject.module, "batch_first", None)
    if said is None and type(subject.module).__module__ == "torch.nn.modules.transformer":
        parts = (m for part in subject.modules for m in part.modules())
        said = next((m.batch_first for m in parts if isinstance(m, nn.MultiheadAttention)), None)
    return said is False


def _channels_come_first(subject: Subject) -> bool:
    """Whether vectors are (batch, d, tokens): weights are as long as d, attention as the tokens."""
    _, d, tokens = subject.inputs[subject.target].shape
    sizes = {n for p in subject.parameters.values() for n in p.shape}
    if d not in sizes or tokens in sizes:
        return False
    with subject.mode(training=False):
        keys = {a.weights.shape[-1] for a in subject.trace().attentions}
    return tokens in keys and d not in keys


def _target_first(subject: Subject, output: Tensor) -> None:
    """Of two sequences of vectors, the one that the output belongs to comes first."""
    one, other = (subject.inputs[name] for name in subject.sources)
    belongs = output.shape == other.shape != one.shape
    if belongs or last(subject.sources[1]).startswith(("tgt", "target")):
        subject.sources.reverse()


def _vocabularies(subject: Subject) -> Iterator[tuple[str, int]]:
    """Of each source of ids, the rows of the table in which they are looked up."""
    for name in subject.sources:
        if not subject.is_ids(name):
            continue
        others = [n for n in subject.sources if n != name]
        trace = replace(subject, sources=[name]).trace()
        looked = [n for n in trace.of("embedding", "index", "index_select") if n.depends]
        tables = [(n.index, *n.inputs[0]) for n in looked]
        sizes = {i: len(x) for i, made, x in tables if made is None or not made.depends}
        # By these ids: positions are looked up, too, and may be counted from those that are real.
        ids = subject.inputs[name]
        own = [size for index, size in sizes.items() if _looks_up(trace.nodes[index], ids)]
        if sizes:
            yield name, max(own or sizes.values())
        elif others and (subject.kind == "loss" or last(name) in LABELS):
            yield name, subject.vocabulary(others[0])


def _looks_up(node: Node, ids: Tensor) -> bool:
    return any(
        x.numel() == ids.numel() and x.flatten().equal(ids.flatten()) for _, x in node.inputs
    )


def _doubled(subject: Subject) -> Subject:
    """With two sequences instead of a single one, if it can be called so."""
    if subject.batch is None or subject.n_sequences > 1:
        return subject
    axis, inputs = subject.batch, dict(subject.inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() > max(1, axis) and value.shape[axis] == 1:
            inputs[name] = torch.cat([value, value], axis)
    two = replace(subject, inputs=inputs)
    try:
        output = two.run()
    except Exception:  # one at a time only
        return subject
    return two if subject.kind == "loss" or output.shape[axis] == 2 else subject


def _shortened(subject: Subject) -> Subject:
    """With few tokens and sequences of a long example, if it can be called so."""
    lengths = {subject.length(name) for name in subject.sources}
    few = 16 if subject.kind == "loss" else 11
    for start in (few, 16, 32, max(lengths)):
        start = max(start, (subject.claims.window or 0) + 5)
        # Lengths that differ stay different.
        sizes = {n: start + 2 * i if n > LONG else n for i, n in enumerate(sorted(lengths))}
        sizes = {n: min(n, size) for n, size in sizes.items()}
        b = subject.n_sequences
        few_b = b if b <= SEQUENCES or b in lengths else SEQUENCES - (subject.kind != "loss")
        if few_b == b and all(n == size for n, size in sizes.items()):
            return subject
        short = replace(subject, inputs=subject.resized(subject.inputs, sizes, few_b))
        short.cut = f", cut to {short.n_sequences} × {short.n_tokens}"
        try:
            output = short.run()
        except Exception:  # it takes one length only
            continue
        pairs = list(zip(output.shape, subject.run().shape, strict=False))
        axis = subject.out_tokens
        rows = axis < len(pairs) and pairs[axis][1] == subject.n_tokens
        if all(one in (n, sizes.get(n), few_b) for one, n in pairs) and (
            not rows or pairs[axis][0] == short.n_tokens
        ):
            return short
    return subject


def _tokens_come_first(subject: Subject) -> bool:
    """Whether the example is longer along its first axis, and only that one is mixed."""
    value = subject.inputs[subject.target]
    batch_first = subject.kind not in ("loss", "pooled") and (subject.batch, subject.tokens) == (
        0,
        1,
    )
    if not batch_first or not value.shape[0] > value.shape[1] > 1:
        return False
    inputs = subject.fresh(0)
    base = subject.run(inputs)
    other = subject.run(subject.replaced(inputs, subject.target, 0, 0))
    moved = changed(base, other) > DIFFERENT  # the changed token is the first of both
    return bool(moved[1:, 0].any()) and not bool(moved[:, 1:].any())


def _find_same(subject: Subject) -> None:
    """Inputs that are the same tensor are one source: the query, key and value of x."""
    first, *others = subject.sources
    value = subject.inputs[first]
    same = all(torch.equal(subject.inputs[name], value) for name in others)
    if subject.kind == "attention" and others and same:
        subject.same = subject.sources
