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
from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, cast, changed, copied

Results = Iterator[Finding | NotJudged]


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
        yield finding(
            "error" if scale == 1 else "warning",
            "finite",
            "mask of wrong polarity" if later or locate.all_closed(subject) else cause,
            f"called with normal vectors{' 40 times as long' if scale > 1 else ''}",
            f"{bad} of {output.numel()} numbers are NaN or infinite",
            "numbers",
        )
        return


def deterministic(subject: Subject) -> Results:
    """In evaluation, two calls give the same."""
    inputs = subject.fresh(0)
    one, again, other = (subject.run(inputs, seed=seed) for seed in (0, 0, 1))
    if not differ(one, again) and differ(one, other):
        yield finding(
            "error",
            "evaluation is deterministic",
            "random in evaluation",
            "called it twice in evaluation",
            f"outputs differ; {random_operations(subject)}",
            "the same outputs",
        )


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
    inputs, other = subject.fresh(0), subject.fresh(1)
    first = subject.run(inputs)
    subject.run(other)
    found = "the third call differs from the first" if differ(first, subject.run(inputs)) else ""
    done = "called it with one input, another one, and the first again"
    if not found and subject.kind not in ("loss", "encoder-decoder"):
        shorter = subject.sliced(other, max(1, subject.n_tokens // 2))
        done = "called it with one input, a shorter one, and the first again"
        found = _after_shorter(subject, first, inputs, shorter)
    if found:
        yield finding(
            "error",
            "calls are independent",
            "remembers the last call",
            done,
            found,
            "the same outputs",
        )


def _after_shorter(subject: Subject, first: Tensor, inputs: Inputs, shorter: Inputs) -> str:
    try:
        short = subject.run(shorter)
    except Exception:  # it takes one length only
        return ""
    try:
        again = subject.run(inputs)
    except Exception as error:
        return f"the third call raised {type(error).__name__}: {error}"
    if differ(first, again):
        return "the third call differs from the first"
    return "the second call differs when repeated" if differ(short, subject.run(shorter)) else ""


def untouched(subject: Subject) -> Results:
    """Arguments and buffers are as before."""
    for inputs in (subject.fresh(0), *_all_ids(subject)):
        yield from _touched(subject, inputs)


def _all_ids(subject: Subject) -> Iterator[Inputs]:
    """Inputs with one id after the other, the first of a large vocabulary."""
    name = subject.target
    if not subject.is_ids(name):
        return
    ids, size = subject.inputs[name], subject.vocab_size
    for start in range(0, min(size, 10 * ids.numel()), ids.numel()):
        new = (start + torch.arange(ids.numel())) % size
        yield {**subject.fresh(0), name: new.view_as(ids).to(ids)}


def _touched(subject: Subject, inputs: Inputs) -> Results:
    given = copied(inputs)
    arguments = {k: v for k, v in given.items() if isinstance(v, Tensor)}
    buffers = {n: b for m in subject.modules for n, b in m.named_buffers()}
    before = [{k: v.clone() for k, v in x.items()} for x in (arguments, buffers)]
    with torch.no_grad():
        subject.apply(given)
    for name, value in arguments.items():
        if differ(value, before[0][name]):
            yield finding(
                "error",
                "arguments untouched",
                "changes its arguments",
                "called it, and compared its arguments with those before",
                f"{name} was changed",
                "arguments stay the same",
            )
    for name, value in buffers.items():
        if differ(value, before[1][name]):
            yield finding(
                "warning",
                "arguments untouched",
                "changes its buffers",
                "called it in evaluation",
                f"the buffer {name} was changed",
                "buffers stay the same",
            )
            return


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
            yield finding(
                "error" if subject.claims.half else "note",
                "half precision",
                "not in half precision",
                f"called it in {dtype}",
                found,
                "nearly the same outputs",
            )
            return


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    return one.shape != other.shape or relative(one, other) > DIFFERENT


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest number."""
    if not one.is_floating_point():
        return float((one != other).float().max())
    return float(changed(one.reshape(1, 1, -1), other.reshape(1, 1, -1)).max())
