"""Which tokens depend on which."""

import itertools

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.cached import reads_free_slots
from attnbook.doctor.invariants.leaks import batch_leak, future_leak
from attnbook.doctor.observed import Results, in_steps
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, changed

SEEDS = (0, 1)
AT_MOST = 8
"""Tokens of a sequence that are changed, one after the other."""


def influence(subject: Subject, inputs: Inputs, name: str, sequence: int = 0) -> Tensor:
    """How far (some) tokens of a sequence reach: (tokens in, batch out, tokens out)."""
    base = subject.by_token(subject.run(inputs))
    length = subject.length(name)
    rows = torch.zeros(length, *base.shape[:2])
    step = max(1, -(-length // AT_MOST))
    for token in {*range(0, length, step), min(1, length - 1), length - 1}:
        other = subject.replaced(inputs, name, sequence, token)
        rows[token] = changed(base, subject.by_token(subject.run(other)))
    return rows


def groups(subject: Subject) -> int:
    """Number of neighbouring sequences that depend on each other and on no other, or 0."""
    b = subject.n_sequences
    if subject.batch is None or b < 4:
        return 0
    inputs, reached = subject.fresh(0), torch.zeros(b, b, dtype=torch.bool)
    base = subject.by_token(subject.run(inputs))
    for sequence in range(b):
        other = subject.replaced(inputs, subject.target, sequence, 0)
        moved = changed(base, subject.by_token(subject.run(other))) > DIFFERENT
        reached[sequence] = moved.flatten(1).any(1)
    for n in range(2, b // 2 + 1):
        block = torch.arange(b) // n
        if b % n == 0 and reached.equal(block[:, None] == block):
            return n
    return 0


def batch(subject: Subject) -> Results:
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
        inputs = subject.fresh(seed)
        base, other = subject.by_token(subject.run(inputs)), inputs
        for token in range(subject.length(name)):
            other = subject.replaced(other, name, 0, token)
        if changed(base, subject.by_token(subject.run(other)))[1:].max() <= DIFFERENT:
            continue
        reach = influence(subject, inputs, name)[:, 1:]
        token = int(reach.amax((1, 2)).argmax())
        cause, where = batch_leak(subject, inputs, name, token)
        done = f"changed token {token} of sequence 0 of {name}"
        found = f"sequence 1 changed by {float(reach.max()):.1e} of its size{where}"
        yield finding(cause, done, found, "sequence 1 stays the same")
        return


def order_of_sequences(subject: Subject) -> Results:
    """Sequences in another order give outputs in that order."""
    if subject.batch is None or subject.n_sequences < 2 or _has_more(subject) or groups(subject):
        return
    inputs = subject.fresh(0)
    flipped = {k: v.flip(subject.batch) if k in subject.sources else v for k, v in inputs.items()}
    one, other = (subject.by_token(subject.run(x)) for x in (inputs, flipped))
    off = float(changed(one, other.flip(0)).max())
    if off > 10 * DIFFERENT:
        done, found = "gave the sequences in reverse order", f"their outputs differ by {off:.1e}"
        cause, right = "depends on the sequence's number", "the same outputs in reverse order"
        yield finding(cause, done, found, right)


def _has_more(subject: Subject) -> bool:
    """Whether the example has other tensors that tell tokens apart: positions, conditions."""
    return any(
        isinstance(value, Tensor) and len(value.unique()) > 1 and name not in subject.sources
        for name, value in subject.inputs.items()
    )


def mixing(subject: Subject) -> Results:
    """Each of several inputs has an effect, and some token attends to another."""
    rounded = any(map(in_steps, locate.trace_of(subject).nodes))  # to codes, say
    for name in subject.sources if len(subject.sources) > 1 and not subject.same else ():
        if influence(subject, subject.fresh(0), name).max() == 0:
            level: Level = "warning" if rounded else "error"
            done, found = f"changed each token of {name}", "no output changed"
            right = "outputs depend on it"
            yield finding("input has no effect", done, found, right, level)
    if subject.kind in ("pooled", "pictures") or max(map(subject.length, subject.attended)) < 2:
        return
    for name in subject.attended:
        reach = influence(subject, subject.fresh(0), name)[:, 0]  # (in, out)
        if subject.is_self and reach.shape[0] == reach.shape[1]:
            reach = reach - torch.diag(reach.diag())
        if reach.max() > DIFFERENT / 10:
            continue
        attentions = locate.attentions(subject)
        tokens = {subject.length(n) for n in subject.attended}
        if any(a.weights.shape[-1] not in tokens and a.weights.shape[-1] > 1 for a in attentions):
            continue  # structure says over what it attends
        if not attentions and not locate.softmaxes(subject):
            yield NotJudged("mixing", "no token depends on another, and no softmax was observed")
            return
        level = "error" if subject.is_self and not rounded else "warning"
        done, found = f"changed each token of {name}", "no other token's output changed"
        right = "attention lets tokens depend on each other"
        yield finding("no token attends to another", done, found, right, level)
        return


def future(subject: Subject) -> Results:
    """In a causal module, no token depends on a later one."""
    causal = subject.claims.causal
    if not (subject.is_self or (causal and subject.kind == "attention")):
        yield NotJudged("future", "its tokens attend to another input")
        return
    if causal is False:
        return
    inside = locate.inside(subject)
    known = inside in ("causal", "later by one", "strictly later") and not _flips(subject)
    if not subject.claims.causal and not known:
        if inside == "later":
            found = "each token attends to itself and to later ones only"
            cause, right = "inverted mask", "to earlier ones, if it is meant to be causal"
            yield finding(cause, "observed the weights", found, right, "warning")
        yield NotJudged("future", "whether it is causal", "causal=True")
        return
    for seed in SEEDS:
        # Long vectors show what a mask of -10 lets through.
        inputs, sequence = subject.fresh(seed, 1 + 29 * seed), seed % subject.n_sequences
        reach = influence(subject, inputs, subject.target, sequence)
        if reach.shape[0] != reach.shape[2]:
            yield NotJudged("future", "the output has other tokens than the input")
            return
        early = reach[:, sequence].tril(-1)  # (token in, earlier token out)
        if early.max() <= DIFFERENT or (seed and not reach.isfinite().all()):
            continue  # if long vectors give NaN, finite says so
        token, earlier = divmod(int(early.argmax()), early.shape[1])
        cause, where = future_leak(subject, inputs, sequence, token)
        done = "changed each token, and watched those before it"
        done += "" if causal else " (all its masks are causal)"
        found = f"token {earlier} changed by {float(early.max()):.1e} with token {token}; "
        found += f"{int((early > DIFFERENT).sum())} such pairs{where}"
        yield finding(cause, done, found, "no token changes with a later one")
        return


def prefix(subject: Subject) -> Results:
    """In a causal module, the first tokens alone give what they give in a longer sequence."""
    causal, n = subject.claims.causal, subject.n_tokens
    if causal is None:
        causal = locate.inside(subject) == "causal" and not _flips(subject)
    if not causal or not subject.is_self or n < 3:
        return
    inputs = subject.fresh(0)
    full = subject.by_token(subject.run(inputs))
    for cut in dict.fromkeys((n - 1, n // 2, 2)):
        try:
            both = subject.kind == "encoder-decoder"  # its encoder is given as much as before
            short = subject.sliced(inputs, cut, subject.target if both else "")
            part = subject.by_token(subject.run(short))
        except Exception as error:  # it takes one length only
            yield NotJudged("prefix", f"a call with {cut} tokens raised {type(error).__name__}")
            return
        if part.shape[1] != cut:
            return
        off = float(changed(full[:, :cut], part).max())
        if off > 10 * DIFFERENT:
            done = f"called with the first {cut} tokens"
            found = f"their outputs differ by {off:.1e} from those in {n} tokens"
            free = reads_free_slots(locate.trace_of(subject))
            cause = "free slots are attended to" if free else "depends on the length"
            yield finding(cause, done, found, "the same outputs")
            return


def _flips(subject: Subject) -> bool:
    """Whether something is turned around: one of two directions may be causal backwards."""
    return bool(locate.trace_of(subject).of("flip"))


def order(subject: Subject) -> Results:
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
    one, other = (subject.by_token(subject.run(x)) for x in (inputs, {**inputs, **moved}))
    off = float(changed(one[:, turned] if subject.is_self else one, other).max())
    if off > 10 * DIFFERENT:
        level: Level = "error" if claimed == "none" else "warning"
        done = f"gave the tokens of {', '.join(names)} in another order"
        found = f"the outputs differ by {off:.1e}"
        right = "the same outputs" + ", in that order" * subject.is_self
        yield finding("depends on the order", done, found, right, level)
