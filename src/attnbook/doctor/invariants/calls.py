"""What holds of any call: finite, repeatable, without traces, in half precision too."""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.padded import padded
from attnbook.doctor.masking import block
from attnbook.doctor.modes import random_operations
from attnbook.doctor.observed import Results
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, cast, changed, copied


def finite(subject: Subject) -> Results:
    """No NaN or infinity for ordinary inputs, or long vectors."""
    for scale, cause in ((1.0, "NaN or infinity"), (40.0, "overflow")):
        if scale > 1 and subject.is_ids(subject.target):
            return
        output = subject.run(subject.fresh(0, scale))
        if output.isfinite().all():
            continue
        bad = int((~output.isfinite()).sum())
        patterns = [locate.pattern(s) for s in locate.supports(subject)]
        if "strictly earlier" in patterns:
            cause = "a token does not attend to itself"
        later = "strictly later" in patterns
        cause = "mask of wrong polarity" if later or locate.all_closed(subject) else cause
        level: Level = "error" if scale == 1 else "warning"
        given = "random ids" if subject.is_ids(subject.target) else "normal vectors"
        done = f"called it with {given}" + " 40 times as long" * (scale > 1)
        found = f"{bad} of {output.numel()} numbers are NaN or infinite"
        yield finding(level, "finite", cause, done, found, "numbers")
        return


def deterministic(subject: Subject) -> Results:
    """In evaluation, two calls give the same."""
    inputs = subject.fresh(0)
    one, again, other = (subject.run(inputs, seed=seed) for seed in (0, 0, 1))
    if not differ(one, again) and differ(one, other):
        check, cause = "evaluation is deterministic", "random in evaluation"
        found = f"outputs differ; {random_operations(subject)}"
        done = "called it twice in evaluation"
        yield finding("error", check, cause, done, found, "the same outputs")


def seeds(subject: Subject) -> Results:
    """A call does not put the random generator to a state of its own."""
    inputs, states = subject.fresh(0), []
    for training, seed in itertools.product((False, True), (0, 1)):
        with subject.mode(training=training):
            subject.run(inputs, seed=seed)
            states.append(torch.get_rng_state())
    if states[0].equal(states[1]) or states[2].equal(states[3]):
        yield finding(
            "error",
            "random numbers",
            "seeds the generator",
            "called it after two seeds",
            "the generator's state is the same after both calls",
            "it depends on the seed",
        )


def memory(subject: Subject) -> Results:
    """A call leaves nothing behind that changes the next."""
    inputs, between = subject.fresh(0), {"another one": subject.fresh(1)}
    if subject.kind not in ("loss", "encoder-decoder", "pictures"):
        half = max(1, subject.n_tokens // 2)
        between["a shorter one"] = subject.sliced(between["another one"], half)
    first = subject.run(inputs)
    for name, other in between.items():
        try:
            second = subject.run(other)
        except Exception:  # it takes one length only
            return
        found = ""
        try:
            if differ(first, subject.run(inputs)):
                found = "the third call differs from the first"
            elif differ(second, subject.run(other)):
                found = "the second call differs when repeated"
        except Exception as error:
            found = f"the third call raised {type(error).__name__}: {error}"
        if found:
            check, cause = "calls are independent", "remembers the last call"
            done = f"called it with one input, {name}, and the first again"
            yield finding("error", check, cause, done, found, "the same outputs")
            return


def untouched(subject: Subject) -> Results:
    """Arguments and buffers are as before."""
    buffers = {f"the buffer {n}": b for m in subject.modules for n, b in m.named_buffers()}
    for inputs in (subject.fresh(0), *_all_ids(subject)):
        given = copied(inputs)
        held = {k: v for k, v in {**given, **buffers}.items() if isinstance(v, Tensor)}
        before = copied(held)
        with torch.no_grad():
            subject.apply(given)
        for name in (n for n, x in held.items() if differ(x, before[n])):
            cause = "changes its arguments" if name in given else "changes its buffers"
            level: Level = "error" if name in given else "warning"
            done, found = "called it in evaluation", f"{name} was changed"
            yield finding(level, "arguments untouched", cause, done, found, "it stays as it was")
            return


def _all_ids(subject: Subject) -> Iterator[Inputs]:
    """Inputs with one id after the other, the first of a large vocabulary."""
    name = subject.target
    if not subject.is_ids(name):
        return
    ids, size = subject.inputs[name], subject.vocab_size
    for start in range(0, min(size, 10 * ids.numel()), ids.numel()):
        new = (start + torch.arange(ids.numel())) % size
        yield {**subject.fresh(0), name: new.view_as(ids).to(ids)}


def half_precision(subject: Subject) -> Results:
    """In bfloat16 and float16 its outputs are numbers."""
    if len(subject.modules) != 1 or subject.modules[0] is not subject.module:
        return
    inputs = subject.fresh(0)
    if subject.claims.mask is not None:
        name = padded(subject)[0]
        allowed = torch.ones(subject.n_sequences, subject.length(name), dtype=torch.bool)
        allowed[:, -1] = False
        inputs = block(subject, inputs, name, allowed)
    if not subject.run(inputs).isfinite().all():
        return
    for dtype in (torch.bfloat16, torch.float16):
        try:
            twin = replace(subject, module=copy.deepcopy(subject.module).to(dtype))
            wrong = not twin.run(cast(inputs, dtype)).isfinite().all()
            found = "outputs are NaN or infinite"
        except Exception as error:  # whatever it can't do
            wrong, found = "overflow" in str(error), f"it raised {error}"
            if not wrong:
                why = f"in {dtype} it raised {type(error).__name__}: {error}"
                yield NotJudged("half precision", why.partition("\n")[0][:120])
                return
        if wrong:
            level: Level = "error" if subject.claims.half else "note"
            cause, right = "not in half precision", "nearly the same outputs"
            yield finding(level, "half precision", cause, f"called it in {dtype}", found, right)
            return


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    return one.shape != other.shape or relative(one, other) > DIFFERENT


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest number."""
    if not one.is_floating_point():
        return float((one != other).float().max())
    return float(changed(one.reshape(1, 1, -1), other.reshape(1, 1, -1)).max())
