"""Is this module the same function as another one? And where do they part?"""

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from attnbook.doctor.call.manners import restored
from attnbook.doctor.call.masking import block
from attnbook.doctor.call.subject import Inputs, Refused, Subject, copied, output_of, seed_all
from attnbook.doctor.causes import finding
from attnbook.doctor.relations.cached import in_pieces, step_of
from attnbook.doctor.relations.padded import padded
from attnbook.doctor.stages.modes import no_dropout
from attnbook.doctor.stages.observed import Results, where
from attnbook.doctor.tape.compare import DIFFERENT, changed, differ
from attnbook.doctor.tape.trace import Trace

BEFORE_THE_SCALE = {"queries": "query", "keys": "key", "products of queries and keys": "products"}
"""Stages of an attention; torch's fused one scales queries and keys, others their product."""
AFTER = {"logits": "logits", "weights": "weights", "values": "value", "sums of values": "context"}
HALF, ROUGH = "bfloat16", 0.05
Pair = tuple[str, Inputs, Tensor, Tensor]
"""What was compared, of which call, and what each of the two modules gave."""
Call = tuple[str, Inputs, Tensor | None]
"""What is compared, of which call, and which tokens of it are real."""


def same_as(subject: Subject) -> Results:
    """Outputs and gradients equal those of another module, however they are called."""
    assert subject.claims.same_as is not None
    other = replace(subject, module=subject.claims.same_as, traces={})
    agreed: list[str] = []
    with restored(other.module), other.mode(training=False):
        for done, inputs, ours, theirs in _pairs(subject, other):
            found = _difference(ours, theirs, _tolerance(subject, other, done))
            if not found:
                agreed.append(done)
                continue
            if ours.shape == theirs.shape and ours.any() and theirs.any():
                found += _place(subject, other, inputs)
            found += f"; they agree for {', '.join(agreed)}" * bool(agreed)
            right = "the same outputs and gradients"
            yield finding("differs from the other", done, found, right)
            return


def _tolerance(subject: Subject, other: Subject, done: str) -> float:
    """By how much the two may differ: in half precision by some of its steps."""
    if subject.claims.tolerance is not None:
        return subject.claims.tolerance
    steps = [torch.finfo(p.dtype).eps for p in other.parameters.values() if p.is_floating_point()]
    return ROUGH if done == HALF else max(10 * DIFFERENT, 8 * max(steps, default=0.0))


def _difference(ours: Tensor, theirs: Tensor, tolerance: float) -> str:
    """How two results differ, in words; nothing, if they are equal up to rounding."""
    if ours.shape != theirs.shape:
        return f"shapes {list(ours.shape)} and {list(theirs.shape)}"
    off = float(changed(ours, theirs).max())
    if off <= tolerance:
        return ""
    if not (ours.any() and theirs.any()):
        return f"{'the other' if ours.any() else 'this one'} gives zeros"
    return f"they differ by {off:.1e} of their size" if off < math.inf else "one is NaN or infinite"


def _pairs(subject: Subject, other: Subject) -> Iterator[Pair]:
    """What the two modules give for the same calls, one kind of call after the other."""
    for done, inputs, real in _calls(subject):
        yield _called(subject, other, done, inputs, real)
    yield from _gradients(subject, other)
    inputs, n = subject.fresh(0), subject.n_tokens
    with subject.mode(training=True), other.mode(training=True), no_dropout():
        yield _called(subject, other, "training, without dropout", inputs)
    for sizes in ([1] * n, [n - 2, 2]) if subject.claims.cache is not None else ():
        with restored(subject.module):
            pieces = in_pieces(subject, step_of(subject), inputs, sizes)
        yield f"the cache, in pieces of {sizes}", inputs, pieces, other.by_token(other.run(inputs))
    if subject.claims.half:
        with torch.autocast("cpu", torch.bfloat16):
            yield _called(subject, other, HALF, inputs)


def _called(
    subject: Subject, other: Subject, done: str, inputs: Inputs, real: Tensor | None = None
) -> Pair:
    """What the two modules give for a call, of its real tokens."""
    ours, theirs = (x.by_token(x.run(inputs)) for x in (subject, other))
    if real is not None and ours.shape[:2] == theirs.shape[:2] == real.shape:
        ours, theirs = ours[real][None], theirs[real][None]
    return done, inputs, ours, theirs


def _calls(subject: Subject) -> Iterator[Call]:
    """Calls in evaluation: other inputs, fewer tokens, padding on either side, all tokens."""
    inputs, n = subject.fresh(0), subject.n_tokens
    yield "outputs", inputs, None
    yield "other inputs, ten times as long", subject.fresh(1, scale=10.0), None
    for length in sorted({n // 2, n - 1} - {0, n}) if subject.is_self else ():
        shorter = subject.sliced(inputs, length)
        with suppress(Refused):  # some modules take one length only
            subject.run(shorter)
            yield f"the first {length} tokens", shorter, None
    if subject.whole is not None:
        yield "the example as it is", subject.whole, None
    if subject.claims.mask is None and subject.claims.padding_id is None:
        return
    for name in padded(subject):
        allowed = torch.ones(subject.n_sequences, subject.length(name), dtype=torch.bool)
        allowed[0, -2:] = False
        by_count = subject.claims.mask is not None and subject.claims.mask.shape == "b"
        yield "padding behind", block(subject, inputs, name, allowed), allowed
        if not by_count:
            front = allowed.flip(1)
            yield "padding in front", block(subject, inputs, name, front), front


def _gradients(subject: Subject, other: Subject) -> Iterator[Pair]:
    """The gradients at inputs and parameters, as far as both modules have them and train them."""
    ours, theirs = (
        {n: p for n, p in x.parameters.items() if p.requires_grad} for x in (subject, other)
    )
    shared = [n for n in subject.sources if not subject.is_ids(n)]
    shared += [n for n in ours if n in theirs and theirs[n].shape == ours[n].shape]
    pairs = [_gradients_at(each, shared) for each in (subject, other)]
    # A key's bias has no gradient but rounding, as a softmax does not depend on it.
    rounding = 1e-6 * max((float(x.abs().max()) for x in (*pairs[0], *pairs[1])), default=0.0)
    for name, one, two in zip(shared, *pairs, strict=True):
        differs = (one - two).abs() > rounding
        yield f"the gradient at {name}", subject.fresh(0), one[None], two.where(differs, one)[None]


def _gradients_at(subject: Subject, names: list[str]) -> tuple[Tensor, ...]:
    """The gradients of a random mixture of the output; zeros where the output does not depend."""
    inputs = copied(subject.fresh(0))
    at = subject.parameters | {n: inputs[n] for n in subject.sources if not subject.is_ids(n)}
    tensors = [at[name].requires_grad_() for name in names]
    seed_all(0)
    with torch.enable_grad(), no_dropout():
        result = subject.apply(inputs)
    output = output_of(result, has_labels=subject.has_labels, which=subject.which)
    if not output.requires_grad or not tensors:
        return tuple(map(torch.zeros_like, tensors))
    mixture = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    return torch.autograd.grad(output, tensors, mixture, allow_unused=True, materialize_grads=True)


def _place(subject: Subject, other: Subject, inputs: Inputs) -> str:
    """The first stage of an attention, or the first module, that differs, in words."""
    traces = subject.trace(inputs), other.trace(inputs)
    at, stage = _first_stage(*traces)
    last = [{n.module: n for n in x.nodes if n.outputs and n.outputs[0].numel()} for x in traces]
    both = [(last[0][name], last[1][name]) for name in last[0] if name and name in last[1]]
    for one, two in sorted(both, key=lambda nodes: nodes[0].index):
        if one.index < at and differ(one.outputs[0], two.outputs[0]):
            return f"; first in what {one.module} gives"
    return stage or "; nothing differs inside the attentions and modules that both have"


def _first_stage(trace: Trace, other: Trace) -> tuple[int, str]:
    """The first stage of an attention that differs, if both have it: its node, and in words."""
    pairs, stages = zip(trace.attentions, other.attentions, strict=False), BEFORE_THE_SCALE | AFTER
    for (number, pair), name in itertools.product(enumerate(pairs), stages):
        ours, theirs = (getattr(attention, stages[name]) for attention in pair)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            continue
        open_ = ours > -1e3
        masked, x, y = not open_.equal(theirs > -1e3), ours[open_], theirs[open_]
        factor = float(x @ y / (y @ y))
        scaled = factor != 0 and _alike(x, factor * y)
        if masked or not (_alike(x, y) or (scaled and name in BEFORE_THE_SCALE)):
            by = f", by a factor of {factor:.4g}" * scaled
            how = ", which are masked elsewhere" if masked else by
            words = f"; first in the {name} of attention {number}{where(pair[0])}{how}"
            return pair[0].softmax_node.index, words
    return len(trace.nodes), ""


def _alike(x: Tensor, y: Tensor) -> bool:
    """True if numbers are equal up to rounding."""
    return not x.numel() or bool((x - y).abs().max() <= 10 * DIFFERENT * x.abs().max())
