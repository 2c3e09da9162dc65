"""Which tokens depend on which, and on the order in which they are given."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.cached import reads_free_slots
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.derivatives import in_steps
from attnbook.doctor.invariants.leaks import batch_leak, future_leak
from attnbook.doctor.observed import Results
from attnbook.doctor.relations import (
    ROUNDING,
    Pair,
    Pairs,
    other_tokens,
    relation,
    rows,
    rows_if_possible,
)
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, changed

SEEDS = (0, 1)
AT_MOST = 8
"""Tokens of a sequence that are changed, one after the other."""


def reaches(
    subject: Subject, inputs: Inputs, name: str, sequence: int = 0
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Some tokens of a sequence, each with the output as it is, and with another such token."""
    base, length = rows(subject, inputs), subject.length(name)
    step = max(1, -(-length // AT_MOST))
    for token in sorted({*range(0, length, step), min(1, length - 1), length - 1}):
        yield token, base, rows(subject, subject.replaced(inputs, name, sequence, token))


def influence(subject: Subject, inputs: Inputs, name: str) -> Tensor:
    """How far (some) tokens of the first sequence reach: (tokens in, batch out, tokens out)."""
    changes = {token: changed(*outputs) for token, *outputs in reaches(subject, inputs, name)}
    none = torch.zeros_like(changes[0])
    return torch.stack([changes.get(token, none) for token in range(subject.length(name))])


def groups(subject: Subject) -> int:
    """Number of neighbouring sequences that depend on each other and on no other, or 0."""
    n = subject.n_sequences
    if subject.batch is None or n < 4:
        return 0
    inputs = subject.fresh(0)
    base = rows(subject, inputs)
    others = (subject.replaced(inputs, subject.target, sequence, 0) for sequence in range(n))
    reached = torch.stack([(changed(base, rows(subject, x)) > DIFFERENT).any(1) for x in others])
    numbers = {size: torch.arange(n) // size for size in range(2, n // 2 + 1) if n % size == 0}
    blocks = {size: number[:, None] == number for size, number in numbers.items()}
    return next((size for size, block in blocks.items() if reached.equal(block)), 0)


@relation("sequence 1 changed by {off} of its size{where}", "sequence 1 stays the same")
def batch(subject: Subject) -> Pairs:
    """A sequence does not depend on the others of its batch."""
    if subject.batch is None or subject.n_sequences < 2:
        yield NotJudged("batch", "the example has one sequence", "an example of two")
        return
    if n := groups(subject):
        done = "changed a token of each sequence"
        found = f"of {subject.n_sequences} sequences, every {n} depend on each other alone"
        right = f"independent sequences, unless {n} rows are one thing (codebooks, frames, views)"
        yield finding("sequences in groups", done, found, right, "warning")
        return
    for seed, name in itertools.product(SEEDS, subject.sources[:3]):
        inputs, tokens = subject.fresh(seed), list(range(subject.length(name)))
        others = other_tokens(subject, inputs, name, 0, tokens)
        done = f"changed all tokens of sequence 0 of {name}"
        why = partial(_why_sequences_mix, subject, inputs, name)
        yield Pair(done, rows(subject, inputs), rows(subject, others), why, slice(1, None))


def _why_sequences_mix(subject: Subject, inputs: Inputs, name: str) -> tuple[str, str]:
    """Why the other sequences depend on the first, seen by its token that reaches farthest."""
    reach = influence(subject, inputs, name)[:, 1:]
    return batch_leak(subject, inputs, name, int(reach.amax((1, 2)).argmax()))


@relation("their outputs differ by {off}", "the same outputs in reverse order")
def order_of_sequences(subject: Subject) -> Pairs:
    """Sequences in another order give outputs in that order."""
    if subject.batch is None or subject.n_sequences < 2 or _has_more(subject) or groups(subject):
        return
    inputs = subject.fresh(0)
    flipped = {**inputs, **{k: inputs[k].flip(subject.batch) for k in subject.sources}}
    outputs = rows(subject, inputs), rows(subject, flipped).flip(0)
    done, cause = "gave the sequences in reverse order", "depends on the sequence's number"
    yield Pair(done, *outputs, cause, tolerance=ROUNDING)


def _has_more(subject: Subject) -> bool:
    """True if the example has other tensors that tell tokens apart: positions, conditions."""
    return any(
        isinstance(value, Tensor) and len(value.unique()) > 1 and name not in subject.sources
        for name, value in subject.inputs.items()
    )


def mixing(subject: Subject) -> Results:
    """Each of several inputs has an effect, and some token attends to another."""
    rounded = any(map(in_steps, locate.trace_of(subject).nodes))  # to codes, say
    level: Level = "warning" if rounded else "error"
    for name in subject.sources if len(subject.sources) > 1 and not subject.same else ():
        if influence(subject, subject.fresh(0), name).max() == 0:
            done, found = f"changed each token of {name}", "no output changed"
            yield finding("input has no effect", done, found, "outputs depend on it", level)
    unmixed = [name for name in subject.attended if _keeps_tokens_apart(subject, name)]
    attentions, tokens = locate.attentions(subject), set(map(subject.length, subject.attended))
    over_others = any(a.weights.shape[-1] not in {1, *tokens} for a in attentions)
    if not unmixed or max(tokens) < 2 or over_others:
        return
    if not attentions and not locate.softmaxes(subject):
        yield NotJudged("mixing", "no token depends on another, and no softmax was observed")
        return
    done, found = f"changed each token of {unmixed[0]}", "no other token's output changed"
    right = "attention lets tokens depend on each other"
    level = level if subject.is_self else "warning"
    yield finding("no token attends to another", done, found, right, level)


def _keeps_tokens_apart(subject: Subject, name: str) -> bool:
    """True if no token of this source changes the output of another token."""
    if subject.kind in ("pooled", "pictures"):
        return False
    reach = influence(subject, subject.fresh(0), name)[:, 0]  # (in, out)
    if subject.is_self and reach.shape[0] == reach.shape[1]:
        reach = reach - torch.diag(reach.diag())
    return bool(reach.max() <= DIFFERENT / 10)


@relation("the tokens before it changed by {off}{where}", "no token changes with a later one")
def future(subject: Subject) -> Pairs:
    """In a causal module, no token depends on a later one."""
    causal = subject.claims.causal
    if not (subject.is_self or (causal and subject.kind == "attention")):
        yield NotJudged("future", "its tokens attend to another input")
        return
    if causal is False:
        return
    inside = locate.inside(subject)
    if not causal and (
        inside not in ("causal", "later by one", "strictly later") or _flips(subject)
    ):
        if inside == "later":
            found = "each token attends to itself and to later ones only"
            cause, right = "inverted mask", "to earlier ones, if it is meant to be causal"
            yield finding(cause, "observed the weights", found, right, "warning")
        yield NotJudged("future", "whether it is causal", "causal=True")
        return
    because = "" if causal else " (all its masks are causal)"
    for seed in SEEDS:
        # Long vectors show what a mask of -10 lets through.
        inputs, sequence = subject.fresh(seed, 1 + 29 * seed), seed % subject.n_sequences
        for token, output, other in reaches(subject, inputs, subject.target, sequence):
            if output.shape[1] != subject.n_tokens:
                yield NotJudged("future", "the output has other tokens than the input")
                return
            if token == 0 or (seed and not changed(output, other).isfinite().all()):
                continue  # if long vectors give NaN, finite says so
            done = f"changed token {token} of {subject.target}{because}"
            why = partial(future_leak, subject, inputs, sequence, token)
            yield Pair(done, output, other, why, (sequence, slice(token)))


@relation("their outputs differ by {off} from those in the whole", "the same outputs")
def prefix(subject: Subject) -> Pairs:
    """In a causal module, the first tokens alone give what they give in a longer sequence."""
    causal, n = subject.claims.causal, subject.n_tokens
    if causal is None:
        causal = locate.inside(subject) == "causal" and not _flips(subject)
    if not causal or not subject.is_self or n < 3:
        return
    inputs = subject.fresh(0)
    full = rows(subject, inputs)
    # An encoder is given as much as before.
    shortened = subject.target if subject.kind == "encoder-decoder" else ""
    for length in dict.fromkeys((n - 1, n // 2, 2)):
        part = rows_if_possible(subject, subject.sliced(inputs, length, shortened))
        if part is None:
            yield NotJudged("prefix", f"it can't be called with {length} tokens")
        if part is None or part.shape[1] != length:
            return
        done = f"called it with the first {length} of {n} tokens"
        why = partial(_why_length_counts, subject)
        yield Pair(done, full[:, :length], part, why, tolerance=ROUNDING)


def _why_length_counts(subject: Subject) -> tuple[str, str]:
    """Why the first tokens alone give something else."""
    free = reads_free_slots(locate.trace_of(subject))
    return "free slots are attended to" if free else "depends on the length", ""


def _flips(subject: Subject) -> bool:
    """True if something is turned around: one of two directions may be causal backwards."""
    return bool(locate.trace_of(subject).of("flip"))


@relation("the outputs differ by {off}", "the same output for the same token")
def order(subject: Subject) -> Pairs:
    """Attention without positions does not know the order of what is attended to."""
    claimed, names = subject.claims.position, subject.same or subject.attended
    causal = subject.claims.causal or locate.inside(subject) != "all"
    if causal or subject.claims.window or _has_more(subject):
        return
    if not subject.is_self and subject.length(names[0]) == subject.n_tokens:
        return  # it may belong to the tokens one by one
    if claimed != "none" and subject.is_self:
        if not claimed:
            yield NotJudged("order", "whether it counts the tokens", 'position="none"')
        return
    inputs = subject.fresh(0)
    turned = torch.arange(subject.length(names[0])).roll(1).flip(0)
    moved = {k: inputs[k].index_select(subject.tokens, turned) for k in names}
    output, other = rows(subject, inputs), rows(subject, {**inputs, **moved})
    expected = output[:, turned] if subject.is_self else output
    done = f"gave the tokens of {', '.join(names)} in another order"
    level: Level = "error" if claimed == "none" else "warning"
    yield Pair(done, expected, other, "depends on the order", tolerance=ROUNDING, level=level)
