"""Padding and masked tokens change nothing."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.claims import Mask
from attnbook.doctor.invariants.leaks import padding_leak
from attnbook.doctor.invariants.reach import groups
from attnbook.doctor.masking import TURNED, as_claimed, block, mask_inputs
from attnbook.doctor.observed import Results
from attnbook.doctor.report import Finding, Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, changed, last
from attnbook.doctor.trace import SOFTMAX

MASKS = ("mask", "attention_mask", "key_padding_mask", "src_key_padding_mask", "padding_mask")
MEANINGS = (
    *(Mask("", "", true, dtype) for true in ("attend", "blocked") for dtype in ("bool", "float")),
    Mask("", "", "attend", "int"),
    Mask("", "", "add", "float"),
)
SHAPES = ("bk", "b1k", "b11k", "bqk", "b1qk")
SURE = (
    *("mask of another sequence", "mask on the queries"),
    *("masked with a finite number", "mask added as a number"),
)
"""What no mistake about the meaning of a mask looks like; the first is the surest."""


def padding(subject: Subject) -> Results:
    """Padding and masked tokens change nothing, and the rest does."""
    if min(map(subject.length, padded(subject))) < 4:
        yield NotJudged("padding", "the example is shorter than four tokens")
    elif subject.claims.mask is None and subject.claims.padding_id is None:
        yield from _guessed(subject)
    elif subject.claims.mask is None and not any(map(subject.is_ids, padded(subject))):
        yield NotJudged("padding", "its tokens are vectors, not ids", "mask=…")
    else:
        compared = False
        for name in padded(subject):
            yield from _neighbours(subject, name)
            for allowed in _patterns(subject, name):
                for found in _compared(subject, name, allowed):
                    compared = True
                    if found is not None:
                        yield _or_turned(subject, name, allowed, found)
                        return
        if not compared:
            yield NotJudged("padding", "it takes one length only")


def _neighbours(subject: Subject, name: str) -> Results:
    """Padding in one sequence changes no other sequence."""
    n, b = subject.length(name), subject.n_sequences
    if subject.claims.padding_id is None or not subject.is_ids(name) or b < 2 or groups(subject):
        return
    inputs, allowed = subject.fresh(0), torch.ones(b, n, dtype=torch.bool)
    whole = subject.by_token(subject.run(block(subject, inputs, name, allowed)))
    allowed[0, n // 2 :] = False
    output = subject.by_token(subject.run(block(subject, inputs, name, allowed)))
    if output.shape != whole.shape:
        return  # it is cut to the longest
    off = float(changed(whole, output)[1:].max())
    if off > 10 * DIFFERENT:
        done = f"padded sequence 0 of {name}, and watched the others"
        found, right = f"they changed by {off:.1e}", "they stay the same"
        yield finding("mask of another sequence", done, found, right)


def _or_turned(subject: Subject, name: str, allowed: Tensor, found: Finding) -> Finding:
    """The finding, or that the mask means the other thing, if that explains it."""
    claim = subject.claims.mask
    if claim is None or claim.true not in TURNED:
        return found
    claims = replace(subject.claims, mask=replace(claim, true=TURNED[claim.true]))
    if any(_compared(replace(subject, claims=claims, traces={}), name, allowed)):
        return found
    cause = "inverted mask"
    turned = finding(cause, found.done, found.found, found.right)
    return as_claimed(subject, turned)


def padded(subject: Subject) -> list[str]:
    """The sources that may have padding, as far as it can be made."""
    claim, translates = subject.claims.mask, subject.kind == "encoder-decoder"
    if claim is None:
        ids = [n for n in subject.sources[::-1] if subject.is_ids(n)]
        return ids if translates else subject.attended[:1]
    decoders = any(word in str(claim.argument) for word in ("decoder", "tgt", "target"))
    usual = subject.target if decoders else (subject.sources if translates else subject.attended)[0]
    return [claim.source or usual]


def _patterns(subject: Subject, name: str) -> Iterator[Tensor]:
    """What is not padding: padding is last; then in between and first, where all attend to it."""
    length = subject.length(name)
    allowed = torch.ones(subject.n_sequences, length, dtype=torch.bool)
    for sequence in range(subject.n_sequences):
        allowed[sequence, length - 1 - sequence % 2 :] = False  # the last one, the last two
    yield allowed
    with_hole = allowed.clone()
    with_hole[:, 1] = False
    if subject.claims.mask is not None and not _counts(subject, name, allowed, with_hole):
        yield with_hole
        if subject.is_self:  # what is pooled may be the first token
            yield allowed.flip(1)


def _counts(subject: Subject, name: str, allowed: Tensor, with_hole: Tensor) -> bool:
    """Whether only the number of tokens in a mask counts: it is made to lengths."""
    masks = (with_hole, allowed & allowed.roll(-1, 1), allowed)
    inputs = subject.fresh(0)
    given = (mask_inputs(subject, inputs, mask, subject.n_tokens) for mask in masks)
    hole, shorter, whole = (subject.by_token(subject.run(x)) for x in given)
    return float(changed(hole, shorter).max()) <= DIFFERENT < float(changed(hole, whole).max())


def _guessed(subject: Subject) -> Results:
    """A mask of a usual name that fails in no way that another meaning could explain."""
    known = (*subject.inputs, *subject.optional) if subject.is_self else ()
    name = next((n for n in known if last(n) in MASKS), None)
    found: list[Finding | None] = []
    for meaning, shape in itertools.product(MEANINGS if name else (), SHAPES):
        claims = replace(subject.claims, mask=replace(meaning, argument=str(name), shape=shape))
        other = replace(subject, claims=claims, traces={})
        try:
            source = subject.attended[0]
            results = _compared(other, source, next(_patterns(other, source)))
            found.append(next((x for x in results if x is not None), None))
        except Exception:  # it takes another kind
            continue
    errors = [x for x in found if x is not None]
    sure = sorted((x for x in errors if x.cause in SURE), key=lambda x: SURE.index(x.cause))
    ignored = all(x.cause == "mask ignored" for x in errors)
    if errors and len(errors) == len(found) and (ignored or sure):
        one = errors[0] if ignored else sure[0]
        done = f"{one.done}, with {name} as booleans, numbers, inverted, and added"
        # Without a softmax, it may be there for others' sake.
        level: Level = "error" if sure or locate.softmaxes(subject) else "warning"
        yield replace(one, done=done, level=level)
        return
    yield NotJudged("padding", "how it knows what is padding", "mask=… or padding_id=…")


def _compared(subject: Subject, name: str, allowed: Tensor) -> Iterator[Finding | None]:
    """For each comparison, the finding if padding changes the outputs of real tokens."""
    claims, inputs = subject.claims, subject.fresh(0)
    by_mask = claims.mask is not None
    for sequence in range(min(2, subject.n_sequences)):
        blocked = torch.nonzero(~allowed[sequence]).flatten().tolist()
        if by_mask:  # whatever the ids are
            masked = mask_inputs(subject, inputs, allowed, subject.n_tokens)
            noisy = masked
            for token in blocked:
                noisy = subject.replaced(noisy, name, sequence, token)
            base, other = (subject.by_token(subject.run(x)) for x in (masked, noisy))
            moved = changed(base, other)[sequence]
            real = _real(subject, name, base, allowed)[sequence]
            finite = bool(base[sequence][real].isfinite().all())
            off = float(moved[real].max()) if finite else torch.inf
            done = f"masked tokens {blocked} of sequence {sequence}, and changed them"
            found = _finding(subject, name, masked, allowed, done, off)
            by_id = claims.padding_id is not None and subject.kind == "pooled"
            if not (
                found and by_id and found.cause == "pooling includes padding"
            ):  # it pools by the ids
                yield found
        n_real = allowed.shape[1] - len(blocked)
        if not allowed[sequence, :n_real].all():
            continue
        if not by_mask or subject.is_self or claims.padding_id is not None:
            filled = block(subject, inputs, name, allowed)
            alone = _alone(subject, name, filled, sequence, n_real)
            if alone is not None:
                base = subject.by_token(subject.run(filled))
                ours = base[sequence : sequence + 1, : alone.shape[1]]
                off = float(changed(ours, alone).max()) / 10  # other products round otherwise
                done = f"compared sequence {sequence} padded with the same without padding"
                yield _finding(subject, name, filled, allowed, done, off)


def _real(subject: Subject, name: str, output: Tensor, allowed: Tensor) -> Tensor:
    """Which rows of the output, (batch, tokens, …), belong to real tokens."""
    own = name == subject.target and output.shape[1] == allowed.shape[1]
    return allowed if own else torch.ones(output.shape[:2], dtype=torch.bool)


def _finding(
    subject: Subject, name: str, inputs: Inputs, allowed: Tensor, done: str, off: float
) -> Finding | None:
    if off <= DIFFERENT:
        return None
    traced = subject.trace(inputs)
    cause, where = padding_leak(subject, name, inputs, allowed)
    same = torch.equal(subject.run(inputs), subject.run(subject.fresh(0)))
    if same and subject.claims.mask is not None:
        used = _reaches_weights(subject, inputs)
        cause, where = ("masked with a finite number" if used else "mask ignored"), ""
        if not used and _obeys_the_first(subject, name, inputs, allowed):
            cause = "remembers the last call"
    closed = (a.logits is not None and (a.logits < -1e3).all() for a in traced.attentions)
    if any(closed):
        cause, where = "mask forbids everything", ""
    found = f"the outputs of its real tokens changed by {off:.1e}{where}"
    right = "the outputs of real tokens stay the same"
    one = finding(cause, done, found, right)
    argument = _of_torch(subject, where) if cause == "padding is attended to" else ""
    if not argument:
        return one
    given = f"{argument}=(ids == padding_id), True = blocked, of shape (batch, keys)"
    return replace(one, remedy=f"{given}, for every attention")


def _of_torch(subject: Subject, where: str) -> str:
    """The argument for padding, where a module of torch attends."""
    name = where.rpartition(" in ")[2]
    parts = {n: part for m in subject.modules for n, part in m.named_modules()}
    if not isinstance(parts.get(name), nn.MultiheadAttention):
        return ""
    parent, _, own = name.rpartition(".")
    if isinstance(parts.get(parent), nn.TransformerDecoderLayer):
        return ("memory" if own == "multihead_attn" else "tgt") + "_key_padding_mask"
    encodes = isinstance(parts.get(parent), nn.TransformerEncoderLayer)
    return "src_key_padding_mask" if encodes else "key_padding_mask"


def _obeys_the_first(subject: Subject, name: str, inputs: Inputs, allowed: Tensor) -> bool:
    """Whether masked tokens have no effect in a batch of another size, which is new to it."""
    lengths = {subject.length(n): subject.length(n) for n in subject.sources}
    try:
        other = one = subject.resized(inputs, lengths, n_sequences=1)
        for token in torch.nonzero(~allowed[0]).flatten().tolist():
            other = subject.replaced(other, name, 0, token)
        outs = [subject.by_token(subject.run(x)) for x in (one, other)]
    except Exception:  # it takes one size only
        return False
    real = _real(subject, name, outs[0], allowed[:1])
    return not bool(changed(*outs)[real].max() > DIFFERENT)


def _reaches_weights(subject: Subject, inputs: Inputs) -> bool:
    """Whether the softmax depends on the mask, be it by nothing but rounding."""
    assert subject.claims.mask is not None
    trace = replace(subject, sources=[str(subject.claims.mask.argument)]).trace(inputs)
    return any(node.depends for node in trace.of(*SOFTMAX))


def _alone(
    subject: Subject, name: str, inputs: Inputs, sequence: int, n_real: int
) -> Tensor | None:
    """The outputs of one sequence without its padding."""
    claim = subject.claims.mask
    cut = subject.sliced(inputs, n_real, name)
    try:
        if claim is not None:
            short = torch.ones(subject.n_sequences, n_real, dtype=torch.bool)
            n_queries = n_real if name == subject.target else subject.n_tokens
            cut = mask_inputs(subject, cut, short, n_queries)
        return subject.by_token(subject.run(cut))[sequence : sequence + 1]
    except Exception:  # it takes one length only
        return None


def empty_rows(subject: Subject) -> Results:
    """A sequence of which everything is masked spoils no other, and is not NaN."""
    claim = subject.claims.mask
    if claim is None or subject.n_sequences < 2:
        return
    inputs, n, queries = subject.fresh(0), subject.length(padded(subject)[0]), subject.n_tokens
    allowed = torch.ones(subject.n_sequences, n, dtype=torch.bool)
    whole = subject.by_token(subject.run(mask_inputs(subject, inputs, allowed, queries)))
    allowed[0], done = False, "masked all of sequence 0"
    output = subject.by_token(subject.run(mask_inputs(subject, inputs, allowed, queries)))
    if claim.shape.startswith("b") and float(changed(whole[1:], output[1:]).max()) > DIFFERENT:
        cause, found = "mask of another sequence", "sequence 1 changed"
        yield finding(cause, done, found, "sequence 1 stays the same")
    elif not output.isfinite().all():
        found, right = "its outputs are NaN", "zeros, or anything finite that nobody uses"
        yield finding("fully masked rows give NaN", done, found, right, "warning")
