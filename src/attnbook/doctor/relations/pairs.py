"""Relations: two calls that must agree on some rows, how they are compared, and which there are."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from attnbook.doctor.call.recognise import says_tokens_first
from attnbook.doctor.call.subject import Inputs, Refused, Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.relations.reasons import batch_leak, future_leak, no_effect
from attnbook.doctor.report import Finding, Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import Results, in_steps
from attnbook.doctor.tape.compare import DIFFERENT, ROUNDING, changed, differ
from attnbook.doctor.tape.trace import SOFTMAX, Trace

CAUSAL = ("causal", "strictly earlier")
AT_MOST = 8
"""Tokens of a sequence that are changed, one after the other."""


@dataclass(frozen=True)
class Pair:
    """The outputs, (batch, tokens, …), of two calls that must agree."""

    done: str  # what was done between the two
    left: Tensor
    right: Tensor
    why: str | Callable[[], tuple[str, str]]  # the cause, or what finds it and the place
    rows: Any = ...  # the index of those that must agree
    tolerance: float = DIFFERENT
    level: Level = "error"

    @property
    def difference(self) -> float:
        """The largest difference of these rows, relative to the largest output."""
        return float(changed(self.left, self.right)[self.rows].max())

    @property
    def agrees(self) -> bool:
        """True if the rows differ by no more than the tolerance."""
        return self.difference <= self.tolerance

    def cause(self) -> tuple[str, str]:
        """Why it does not agree, and where."""
        return (self.why, "") if isinstance(self.why, str) else self.why()


Pairs = Iterator[Pair | Finding | NotJudged]


@dataclass(frozen=True)
class Relation:
    """A check by pairs of calls."""

    pairs: Callable[[Subject], Pairs]  # and what a pair can't say, as it is
    found: str  # what is said of a pair that differs; may name {off} and {where}
    right: str

    def __call__(self, subject: Subject) -> Results:
        """What is found at the first pair that differs, and what is said before it."""
        silent = True
        for pair in self.pairs(subject):
            silent = False
            if not isinstance(pair, Pair):
                yield pair
            elif not pair.agrees and not (pair.tolerance > DIFFERENT and _draws(subject)):
                cause, where = pair.cause()
                found = self.found.format(off=f"{pair.difference:.1e}", where=where)
                yield finding(cause, pair.done, found, self.right, pair.level)
                return
        if silent:
            yield NotJudged("", "no two calls of this kind can be made")


def relation(found: str, right: str) -> Callable[[Callable[[Subject], Pairs]], Relation]:
    """Make a relation of the generator of its pairs, as a decorator."""
    return lambda pairs: Relation(pairs, found, right)


def _draws(subject: Subject) -> bool:
    """True if outputs depend on the seed: then calls of other shapes draw other numbers."""
    inputs = subject.fresh(0)
    return differ(*(subject.run(inputs, seed=seed) for seed in (0, 1)))


def rows(subject: Subject, inputs: Inputs) -> Tensor:
    """The output of a call, (batch, tokens, …)."""
    return subject.by_token(subject.run(inputs))


def rows_if_possible(subject: Subject, inputs: Inputs) -> Tensor | None:
    """The output of a call, unless it raises: some modules take one length only."""
    try:
        return rows(subject, inputs)
    except Refused:
        return None


def other_tokens(
    subject: Subject, inputs: Inputs, name: str, sequence: int, tokens: list[int]
) -> Inputs:
    """The same inputs but for some tokens of one sequence."""
    return reduce(lambda x, token: subject.replaced(x, name, sequence, token), tokens, inputs)


def token_by_token(
    subject: Subject, inputs: Inputs, name: str, sequence: int = 0
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Some tokens of a sequence, each with the output as it is, and with another such token."""
    base, length = rows(subject, inputs), subject.length(name)
    step = max(1, -(-length // AT_MOST))
    for token in sorted({*range(0, length, step), min(1, length - 1), length - 1}):
        yield token, base, rows(subject, subject.replaced(inputs, name, sequence, token))


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
    same = (size for size, at in numbers.items() if reached.equal(at[:, None] == at))
    return next(same, 0)


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
    # Each in turn: what is the largest of all may be in any of them.
    for name, turn in itertools.product(subject.sources[:3], range(min(subject.n_sequences, 4))):
        inputs, tokens = subject.fresh(turn % 2), list(range(subject.length(name)))
        turned = {k: inputs[k].roll(-turn, subject.batch) for k in subject.sources}
        inputs = {**inputs, **turned} if not _has_more(subject) else inputs
        others = [other_tokens(subject, inputs, name, 0, tokens)]
        if not subject.is_ids(name):
            others.append(_ten_times(subject, others[0], name))
        why = partial(_why_sequences_mix, subject, inputs, name)
        for other, size in zip(others, ("", ", and made it ten times as large"), strict=False):
            done = f"changed all tokens of sequence 0 of {name}{size}"
            yield Pair(done, rows(subject, inputs), rows(subject, other), why, slice(1, None))
    alone = _alone(subject)
    if alone is not None:
        done, cause = "called it with sequence 0 alone, and in its batch", "sequences mixed"
        yield Pair(done, *alone, cause, tolerance=ROUNDING)


def _alone(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """What a sequence gives in its batch, and alone, if the module takes one."""
    inputs, lengths = (
        subject.fresh(0),
        {subject.length(n): subject.length(n) for n in subject.sources},
    )
    first = replace(subject, inputs=subject.resized(inputs, lengths, n_sequences=1))
    together, alone = rows(subject, inputs)[:1], rows_if_possible(first, first.inputs)
    return None if alone is None or alone.shape != together.shape else (together, alone)


def _ten_times(subject: Subject, inputs: Inputs, name: str) -> Inputs:
    """The same inputs with the first sequence of a source ten times as large."""
    larger = inputs[name].clone()
    larger.movedim(subject.batch or 0, 0)[0] *= 10
    names = subject.same if name in subject.same else [name]
    return {**inputs, **dict.fromkeys(names, larger)}


def axes(subject: Subject) -> Results:
    """What a module of torch takes as tokens is not what was meant as sequences."""
    claimed, given = subject.claims.batch_first, subject.whole or subject.inputs
    shape = given[subject.target].shape
    if len(shape) != 3 or not says_tokens_first(subject):
        return
    if claimed or (claimed is None and shape[0] < shape[1]):
        done = "read batch_first=False off the module"
        found = f"the example is {shape[0]} tokens of {shape[1]} sequences"
        right = f"if it is meant as {shape[1]} tokens of {shape[0]}: batch_first=True"
        level: Level = "error" if claimed else "warning"
        yield finding("batch and tokens exchanged", done, found, right, level)


def _why_sequences_mix(subject: Subject, inputs: Inputs, name: str) -> tuple[str, str]:
    """Why the other sequences depend on the first, seen by its token that reaches farthest."""
    calls = token_by_token(subject, inputs, name)
    reach = {token: float(changed(*outputs)[1:].max()) for token, *outputs in calls}
    return batch_leak(subject, inputs, name, max(reach, key=lambda token: reach[token]))


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
    more = [x for name, x in subject.inputs.items() if name not in subject.sources]
    return any(isinstance(x, Tensor) and len(x.unique()) > 1 for x in more)


def mixing(subject: Subject) -> Results:
    """Each input has an effect, and some token attends to another."""
    rounded = any(map(in_steps, locate.trace_of(subject).nodes))  # to codes, say
    level: Level = "warning" if rounded else "error"
    inputs = subject.fresh(0)
    for name in subject.same[:1] or subject.sources:
        calls = token_by_token(subject, inputs, name)
        if not any(changed(*outputs).any() for _, *outputs in calls):
            cause, where = no_effect(subject, inputs, name)
            done, found = f"changed each token of {name}", f"no output changed{where}"
            yield finding(cause, done, found, "outputs depend on it", level)
    for name in [n for n in subject.attended if _keeps_apart(subject, n)][:1]:
        if not locate.attentions(subject) and not locate.softmaxes(subject):
            yield NotJudged("mixing", "no token depends on another, and no softmax was observed")
            return
        done, found = f"changed each token of {name}", "no other token's output changed"
        right = "attention lets tokens depend on each other"
        level = level if subject.is_self else "warning"
        yield finding("no token attends to another", done, found, right, level)


def _keeps_apart(subject: Subject, name: str) -> bool:
    """True if no token of a source changes the output of another, though an attention might."""
    n_keys = {1, *map(subject.length, subject.attended)}
    others = any(a.weights.shape[-1] not in n_keys for a in locate.attentions(subject))
    if subject.kind in ("pooled", "pictures") or n_keys == {1} or others:
        return False  # structure says over what it attends
    for token, *outputs in token_by_token(subject, subject.fresh(0), name):
        reach = changed(*outputs)[0]
        if subject.is_self and len(reach) == subject.length(name):
            reach[token] = 0
        if reach.max() > DIFFERENT / 10:
            return False
    return True


def _masked_as(subject: Subject, *patterns: str) -> bool:
    """True if its masks are of such a pattern, in one direction: a second may be backwards."""
    return locate.inside(subject) in patterns and not locate.trace_of(subject).of("flip")


@relation("the tokens before it changed by {off}{where}", "no token changes with a later one")
def future(subject: Subject) -> Pairs:
    """In a causal module, no token depends on a later one."""
    causal = subject.claims.causal
    if not subject.is_self and not (causal and subject.kind == "attention"):
        yield NotJudged("future", "its tokens attend to another input")
    elif causal is None and not _masked_as(subject, *CAUSAL, "later by one", "strictly later"):
        if locate.inside(subject) == "later":
            found = "each token attends to itself and to later ones only"
            cause, right = "inverted mask", "to earlier ones, if it is meant to be causal"
            yield finding(cause, "observed the weights", found, right, "warning")
        yield NotJudged("future", "whether it is causal", "causal=True")
    elif causal is not False:
        yield from _later_tokens(subject)


def _later_tokens(subject: Subject) -> Pairs:
    """Calls with another token each, after which the tokens before it must be the same."""
    because = "" if subject.claims.causal else " (all its masks are causal)"
    for seed in (0, 1):
        # Long vectors show what a mask of -10 lets through.
        inputs, sequence = subject.fresh(seed, 1 + 29 * seed), seed % subject.n_sequences
        for token, *outputs in [*token_by_token(subject, inputs, subject.target, sequence)][::-1]:
            if outputs[0].shape[1] != subject.n_tokens:
                yield NotJudged("future", "the output has other tokens than the input")
                return
            if token == 0 or (seed and not changed(*outputs).isfinite().all()):
                continue  # if long vectors give NaN, finite says so
            done = f"changed token {token} of {subject.target}{because}"
            why = partial(future_leak, subject, inputs, sequence, token)
            yield Pair(done, outputs[0], outputs[1], why, (sequence, slice(token)))


@relation("their outputs differ by {off} from those in the whole", "the same outputs")
def prefix(subject: Subject) -> Pairs:
    """In a causal module, the first tokens alone give what they give in a longer sequence."""
    causal, n, inputs = subject.claims.causal, subject.n_tokens, subject.fresh(0)
    if causal is None:
        causal = _masked_as(subject, *CAUSAL)
    if not causal or not subject.is_self or n < 3:
        return
    full, why = rows(subject, inputs), partial(_why_length_counts, subject)
    # An encoder is given as much as before.
    shortened = subject.target if subject.kind == "encoder-decoder" else ""
    for length in dict.fromkeys((n - 1, n // 2, 2)):
        part = rows_if_possible(subject, subject.sliced(inputs, length, shortened))
        if part is None:
            yield NotJudged("prefix", f"it can't be called with {length} tokens")
        if part is None or part.shape[1] != length:
            return
        done = f"called it with the first {length} of {n} tokens"
        yield Pair(done, full[:, :length], part, why, tolerance=ROUNDING)


def _why_length_counts(subject: Subject) -> tuple[str, str]:
    """Why the first tokens alone give something else."""
    free = reads_free_slots(locate.trace_of(subject))
    return "free slots are attended to" if free else "depends on the length", ""


def reads_free_slots(trace: Trace) -> bool:
    """True if an attention gives weight to keys and values that are all zeros."""
    free = [~(a.key.any(-1) | a.value.any(-1)) for a in trace.attentions]  # (n, keys)
    weights = [a.weights.amax(1) for a in trace.attentions]
    return any(bool((x[slots] > 0).any()) for x, slots in zip(weights, free, strict=True))


@relation("their outputs differ by {off}", "the same outputs: weights sum to one")
def equal_tokens(subject: Subject) -> Pairs:
    """Without positions, tokens that are all equal give the same, however many there are."""
    n, equal = subject.n_tokens, locate.constant(subject)
    softmax = locate.trace_of(subject).of(*SOFTMAX)  # some have a sink, which takes weight
    if not subject.is_self or n < 4 or _has_more(subject) or softmax:
        return
    full = rows(subject, equal)
    if full.shape[1] != n or differ(full, full[:, :1].expand_as(full)):
        return  # positions
    part = rows_if_possible(subject, subject.sliced(equal, n // 2))
    if part is None or part.shape[1] != n // 2:
        return
    nodes = [node for node in locate.trace_of(subject).nodes if node.depends]
    summed = any(node.name == "sum" for node in nodes) and any(node.between for node in nodes)
    done = f"called it with {n} and with {n // 2} equal tokens"
    level: Level = "error" if summed else "warning"  # retention has no sum
    cause = "weights do not sum to one"
    yield Pair(done, full[:, : n // 2], part, cause, tolerance=ROUNDING, level=level)


@relation("the outputs differ by {off}", "the same output for the same token")
def order(subject: Subject) -> Pairs:
    """Attention without positions does not know the order of what is attended to."""
    claimed, names = subject.claims.position, subject.same or subject.attended
    causal = subject.claims.causal or locate.inside(subject) != "all"
    if causal or subject.claims.window or _has_more(subject):
        return
    if not subject.is_self and subject.length(names[0]) == subject.n_tokens:
        return  # it may belong to the tokens one by one
    if subject.is_self and claimed is None:
        yield NotJudged("order", "whether it counts the tokens", 'position="none"')
    elif claimed == "none" or not subject.is_self:
        level: Level = "error" if claimed == "none" else "warning"
        done = f"gave the tokens of {', '.join(names)} in another order"
        outputs = _in_another_order(subject, names)
        yield Pair(done, *outputs, "depends on the order", tolerance=ROUNDING, level=level)


def _in_another_order(subject: Subject, names: list[str]) -> tuple[Tensor, Tensor]:
    """The outputs in another order of the tokens, and those of the tokens in that order."""
    inputs, turned = subject.fresh(0), torch.arange(subject.length(names[0])).roll(1).flip(0)
    fitting = [name for name in names if subject.length(name) == len(turned)]
    moved = {name: inputs[name].index_select(subject.tokens, turned) for name in fitting}
    output = rows(subject, inputs)
    expected = output[:, turned] if subject.is_self else output
    return expected, rows(subject, {**inputs, **moved})
