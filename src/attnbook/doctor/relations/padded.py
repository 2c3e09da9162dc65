"""Padding and masked tokens change nothing."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbook.doctor.call.claims import Mask
from attnbook.doctor.call.masking import TURNED, as_claimed, block, forbids_everything, mask_inputs
from attnbook.doctor.call.subject import Inputs, Refused, Subject, last
from attnbook.doctor.causes import finding
from attnbook.doctor.relations.pairs import (
    Pair,
    Pairs,
    groups,
    other_tokens,
    relation,
    rows,
    rows_if_possible,
)
from attnbook.doctor.relations.reasons import padding_leak
from attnbook.doctor.report import Finding, Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import Results
from attnbook.doctor.tape.compare import DIFFERENT, ROUNDING, changed
from attnbook.doctor.tape.trace import SOFTMAX

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
    results = _padding(subject)
    yield from (as_claimed(subject, x) if isinstance(x, Finding) else x for x in results)


@relation("the outputs of real tokens changed by {off}{where}", "they stay the same")
def _padding(subject: Subject) -> Pairs:
    """Calls with padding that differ by what is padded only."""
    names, claims = padded(subject), subject.claims
    if min(map(subject.length, names)) < 4:
        yield NotJudged("padding", "the example is shorter than four tokens")
    elif claims.mask is None and claims.padding_id is None:
        yield from _guessed(subject)
    elif claims.mask is None and (given := _given_mask(subject)):
        yield NotJudged("padding", f"{given} may say what is padding, and not the id", "mask=…")
    elif claims.mask is None and not any(map(subject.is_ids, names)):
        yield NotJudged("padding", "its tokens are vectors, not ids", "mask=…")
    else:
        cases = ((name, real) for name in names for real in patterns(subject, name))
        pairs = (
            _weighed(pair, real) for name, real in cases for pair in _pairs(subject, name, real)
        )
        for name in names:
            yield from _neighbours(subject, name)
        yield next(pairs, NotJudged("padding", "it takes one length only"))
        yield from pairs


def _weighed(pair: Pair, allowed: Tensor) -> Pair:
    """A question where padding at an end has no effect, and a hole has: no user makes one."""
    n_edges = int((allowed[0] != allowed[0].roll(1)).sum())
    if not allowed[0, 0] and pair.right.isnan().any():  # rows of padding in front have no key
        return replace(pair, level="warning", why="fully masked rows give NaN")
    return replace(pair, level="warning") if n_edges > 2 else pair


def _guessed(subject: Subject) -> Iterator[Finding | NotJudged]:
    """A mask of a usual name that fails in no way that another meaning could explain."""
    known = (*subject.inputs, *subject.optional) if subject.is_self else ()
    name = next((n for n in known if last(n) in MASKS), None)
    failed: list[tuple[str, str] | None] = []
    for meaning, shape in itertools.product(MEANINGS if name else (), SHAPES):
        claims = replace(subject.claims, mask=replace(meaning, argument=str(name), shape=shape))
        other = replace(subject, claims=claims, traces={})
        try:
            source = subject.attended[0]
            pairs = _pairs(other, source, next(patterns(other, source)))
            pair = next((x for x in pairs if not x.agrees), None)
            failed.append(None if pair is None else (pair.cause()[0], pair.done))
        except Refused:  # it takes another kind of mask
            continue
    causes = {x[0]: x[1] for x in failed if x is not None}
    sure = [cause for cause in SURE if cause in causes]
    if causes and None not in failed and (sure or [*causes] == ["mask ignored"]):
        cause = sure[0] if sure else "mask ignored"
        done = f"{causes[cause]}, with {name} as booleans, numbers, inverted, and added"
        found, right = "the outputs of real tokens changed", "they stay the same"
        # Without a softmax, it may be there for others' sake.
        level: Level = "error" if sure or locate.own(subject) else "warning"
        yield finding(cause, done, found, right, level)
        return
    claim = "mask=…, lengths=… or padding_id=…"
    yield NotJudged("padding", "how it knows what is padding", claim)


def _given_mask(subject: Subject) -> str:
    """An argument of the example that is a mask by its name."""
    return next((name for name in subject.inputs if last(name) in MASKS), "")


def padded(subject: Subject) -> list[str]:
    """The sources that may have padding, as far as it can be made."""
    claim, translates = subject.claims.mask, subject.kind == "encoder-decoder"
    if claim is None:
        ids = [n for n in subject.sources[::-1] if subject.is_ids(n)]
        return ids if translates else subject.attended[:1]
    words = set(str(claim.argument).split("_")) - {"mask", "ids", "key", "padding", "attention"}
    named = [n for n in subject.sources if words & set(last(n).split("_"))]
    decoders = any(word in str(claim.argument) for word in ("decoder", "tgt", "target"))
    usual = subject.target if decoders else (subject.sources if translates else subject.attended)[0]
    return [claim.source or (named[0] if len(named) == 1 else usual)]


def patterns(subject: Subject, name: str) -> Iterator[Tensor]:
    """Where real tokens are: padding is last; then first and in between, if a mask can say so."""
    length = subject.length(name)
    counts = subject.claims.lengths is not None  # then some want one sequence to be full
    ends = torch.tensor([length - 1 - i % 2 for i in range(subject.n_sequences)])
    ends = torch.where(torch.arange(len(ends)) % 2 == 1, length, length - 2) if counts else ends
    allowed = torch.arange(length) < ends[:, None]
    yield allowed
    with_hole = allowed.index_fill(1, torch.tensor(1), False)
    if subject.claims.mask is not None and not counts and not _counts(subject, allowed, with_hole):
        if subject.is_self:  # what is pooled may be the first token
            yield allowed.flip(1)
        yield with_hole


def _counts(subject: Subject, allowed: Tensor, with_hole: Tensor) -> bool:
    """True if the module uses only how many tokens the mask leaves open."""
    masks, inputs = (with_hole, allowed & allowed.roll(-1, 1), allowed), subject.fresh(0)
    hole, shorter, whole = (rows(subject, mask_inputs(subject, inputs, mask)) for mask in masks)
    return float(changed(hole, shorter).max()) <= DIFFERENT < float(changed(hole, whole).max())


def _neighbours(subject: Subject, name: str) -> Iterator[Pair]:
    """Padding in one sequence changes no other sequence."""
    n, b, inputs = subject.length(name), subject.n_sequences, subject.fresh(0)
    if subject.claims.padding_id is None or not subject.is_ids(name) or b < 2 or groups(subject):
        return
    real = torch.ones(b, n, dtype=torch.bool)
    whole = rows(subject, block(subject, inputs, name, real))
    real[0, n // 2 :] = False
    output = rows(subject, block(subject, inputs, name, real))
    if output.shape == whole.shape:  # it may be cut to the longest
        done = f"padded sequence 0 of {name}, and watched the others"
        yield Pair(done, whole, output, "mask of another sequence", slice(1, None), ROUNDING)


def _pairs(subject: Subject, name: str, allowed: Tensor) -> Iterator[Pair]:
    """Calls in which padded tokens are others, and in which they are left out."""
    claims, inputs = subject.claims, subject.fresh(0)
    by_id = claims.padding_id is not None
    for sequence, real in enumerate(allowed[:2]):
        if claims.mask is not None and not (by_id and subject.kind == "pooled"):
            masked = mask_inputs(subject, inputs, allowed)  # whatever the ids are
            yield _other_padding(subject, name, masked, allowed, sequence)
        n_real = int(real.sum())
        if real[:n_real].all() and (claims.mask is None or subject.is_self or by_id):
            filled = block(subject, inputs, name, allowed)
            cut = subject.sliced(filled, n_real, name)
            if claims.mask is not None:
                whole = torch.ones(len(allowed), n_real, dtype=torch.bool)
                cut = mask_inputs(subject, cut, whole, n_real * (name == subject.target))
            alone = rows_if_possible(subject, cut)
            if alone is not None:
                output = rows(subject, filled)[:, : alone.shape[1]]
                done = f"compared sequence {sequence} padded with the same without padding"
                why = partial(_why, subject, name, filled, allowed, cut)
                yield Pair(done, output, alone, why, sequence, ROUNDING)


def _other_padding(
    subject: Subject, name: str, masked: Inputs, allowed: Tensor, sequence: int
) -> Pair:
    """Calls with other tokens where a sequence is masked."""
    blocked = (~allowed[sequence]).nonzero().flatten().tolist()
    done = f"masked tokens {blocked} of sequence {sequence}, and changed them"
    noisy = other_tokens(subject, masked, name, sequence, blocked)
    output, other = rows(subject, masked), rows(subject, noisy)
    real = _real_rows(allowed[sequence], output.shape[1]) if name == subject.target else ...
    why = partial(_why, subject, name, masked, allowed)
    # Real tokens whose output is NaN don't agree, either.
    return Pair(done, output.nan_to_num(), other, why, (sequence, real))


def _real_rows(allowed: Tensor, n_rows: int) -> Tensor:
    """Which rows of the output are of real tokens; a class token may stand at either end."""
    more, rows_of = n_rows - len(allowed), torch.ones(n_rows, dtype=torch.bool)
    if more >= 0:
        for token in (~allowed).nonzero().flatten().tolist():
            rows_of[[token, token + more]] = False
    return rows_of


def _why(
    subject: Subject, name: str, inputs: Inputs, allowed: Tensor, cut: Inputs | None = None
) -> tuple[str, str]:
    """Why padding changes the outputs of real tokens, and where."""
    claim = subject.claims.mask
    if claim is not None and claim.true in TURNED and claim.shape != "b":
        claims = replace(subject.claims, mask=replace(claim, true=TURNED[claim.true]))
        turned = replace(subject, claims=claims, traces={})
        agrees = all(pair.agrees for pair in _pairs(turned, name, allowed))
        if agrees and _listens(turned, name, allowed):
            return "inverted mask", ""
    if forbids_everything(subject.trace(inputs)):
        return "mask forbids everything", ""
    if claim is None or not subject.run(inputs).equal(subject.run(subject.fresh(0))):
        return padding_leak(subject, name, inputs, allowed, cut)
    of_mask = replace(subject, sources=[str(claim.argument)]).trace(inputs)
    if any(node.depends for node in of_mask.of(*SOFTMAX)):  # it is lost to rounding
        return "masked with a finite number", ""
    first = _obeys_the_first(subject, name, inputs, allowed)
    return "remembers the last call" if first else "mask ignored", ""


def _listens(subject: Subject, name: str, allowed: Tensor) -> bool:
    """True if a real token changes the outputs of others."""
    inputs, first = mask_inputs(subject, subject.fresh(0), allowed), int(allowed[0].nonzero()[0])
    others = (rows(subject, x) for x in (inputs, subject.replaced(inputs, name, 0, first)))
    moved = changed(*others)[0] > DIFFERENT
    if name == subject.target and len(moved) == allowed.shape[1]:
        moved = moved & allowed[0] & (torch.arange(len(moved)) != first)
    return bool(moved.any())


def _obeys_the_first(subject: Subject, name: str, inputs: Inputs, allowed: Tensor) -> bool:
    """True if masked tokens have no effect in a batch of another size, which is new to it."""
    lengths = {subject.length(n): subject.length(n) for n in subject.sources}
    try:
        single = subject.resized(inputs, lengths, n_sequences=1)
        return _other_padding(subject, name, single, allowed[:1], 0).agrees
    except Refused:  # some modules take one size only
        return False


@relation("sequence 1 changed by {off}", "sequence 1 stays the same")
def empty_rows(subject: Subject) -> Pairs:
    """A sequence of which everything is masked spoils no other, and is not NaN."""
    claim = subject.claims.mask
    if claim is None or subject.n_sequences < 2 or claim.shape == "b":
        return  # nobody gives a sequence without tokens
    shape = subject.n_sequences, subject.length(padded(subject)[0])
    open_ = torch.ones(shape, dtype=torch.bool)
    closed = open_.index_fill(0, torch.tensor(0), False)
    inputs, done = subject.fresh(0), "masked all of sequence 0"
    whole, output = (rows(subject, mask_inputs(subject, inputs, x)) for x in (open_, closed))
    if claim.shape.startswith("b"):
        yield Pair(done, whole, output, "mask of another sequence", slice(1, None))
    if not output.isfinite().all():
        found, right = "its outputs are NaN", "zeros, or anything finite that nobody uses"
        yield finding("fully masked rows give NaN", done, found, right, "warning")
