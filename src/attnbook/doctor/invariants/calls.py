"""What holds of any call: finite, repeatable, without traces, in half precision too."""

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.padded import padded
from attnbook.doctor.manners import restored
from attnbook.doctor.masking import as_claimed, block
from attnbook.doctor.modes import foreign, random_operations
from attnbook.doctor.observed import Results
from attnbook.doctor.report import Finding, Level, NotJudged
from attnbook.doctor.subject import DIFFERENT, Inputs, Subject, cast, changed, copied, seed_all

MODES = {False: "evaluation", True: "training"}


def finite(subject: Subject) -> Results:
    """No NaN or infinity for ordinary inputs, or long vectors; no attention is closed."""
    masks = bool(_other_masks(subject))
    if masks and locate.all_closed(subject) and subject.run(subject.fresh(0)).isfinite().all():
        done, found = "observed the logits of the example", "the mask forbids every key to all"
        right = "a key that is open"
        yield _closed(subject, finding(_closing(subject), done, found, right))
        return
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
        cause = "inverted mask" if "strictly later" in patterns else cause
        closed = locate.all_closed(subject)
        cause = _closing(subject) if closed else cause
        level: Level = "error" if scale == 1 else "warning"
        given = "random ids" if subject.is_ids(subject.target) else "normal vectors"
        done = f"called it with {given}" + " 40 times as long" * (scale > 1)
        found = f"{bad} of {output.numel()} numbers are NaN or infinite"
        one = finding(cause, done, found, "numbers", level)
        yield _closed(subject, one) if closed else one
        return


def _closing(subject: Subject) -> str:
    """Why an attention is closed: by a mask that is turned around, or by any."""
    for name, other in _other_masks(subject).items():
        trace = subject.trace({**subject.fresh(0), name: other})
        if not any(a.logits is not None and (a.logits < -1e3).all() for a in trace.attentions):
            return "inverted mask"
    return "mask forbids everything" if _other_masks(subject) else "inverted mask"


def _closed(subject: Subject, found: Finding) -> Finding:
    """A finding on closed attention, which a wrong claim about the example's mask explains."""
    claim = subject.claims.mask
    ours = claim is not None and claim.argument in _other_masks(subject)
    return as_claimed(subject, found) if ours else found


def _other_masks(subject: Subject) -> Inputs:
    """Masks of zeros and ones that the example has, turned around at the last key."""
    found = {}
    for name, x in subject.inputs.items():
        tokens = isinstance(x, Tensor) and x.dim() > 1 and name not in subject.sources
        if tokens and bool(((x == 0) | (x == 1)).all()):
            found[name] = x.clone()
            found[name][..., -1] = 1 - x[..., -1].to(torch.int64)
    return found


def deterministic(subject: Subject) -> Results:
    """In evaluation, two calls give the same."""
    inputs = subject.fresh(0)
    one, again, other = (subject.run(inputs, seed=seed) for seed in (0, 0, 1))
    if not differ(one, again) and differ(one, other):
        cause = "random in evaluation"
        trace = subject.trace(inputs)
        cause = "layer made in forward" if foreign(subject, trace) else cause
        dropped = trace.of("native_dropout", "bernoulli_") or cause != "random in evaluation"
        level: Level = "error" if dropped or subject.kind != "loss" else "warning"  # it adds noise
        found = f"outputs differ; {random_operations(subject)}"
        done = "called it twice in evaluation"
        yield finding(cause, done, found, "the same outputs", level)


def settings(subject: Subject) -> Results:
    """A call leaves random generators, modes and gradients as they are."""
    inputs, states = subject.fresh(0), []
    for training, seed in itertools.product((False, True), (0, 1)):
        with subject.mode(training=training), restored(subject.module), torch.enable_grad():
            seed_all(seed)
            before = _settings(subject)
            subject.call(inputs)
            after = _settings(subject)
            drawn = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
            states.append((*drawn, random.getstate()))
        for name in (n for n, x in before.items() if after[n] != x):
            cause, done = "changes modes", "called it in " + MODES[training]
            found = f"{name} was {before[name]}, and is {after[name]}"
            yield finding(cause, done, found, "as before")
            return
    if any(a == b for i in (0, 2) for a, b in zip(states[i], states[i + 1], strict=True)):
        cause, done = "seeds the generator", "called it after two seeds"
        found = "a generator's state is the same after both calls"
        yield finding(cause, done, found, "it depends on the seed")


def _settings(subject: Subject) -> dict[str, Any]:
    """What a call might switch; a function that is a step of training may."""
    found: dict[str, Any] = {"whether gradients are computed": torch.is_grad_enabled()}
    found["the type of numbers"] = torch.get_default_dtype()
    for n, p in subject.parameters.items():
        found[f"{n}.requires_grad"] = p.requires_grad
    parts = subject.module.named_modules() if isinstance(subject.module, nn.Module) else ()
    return found | {f"{n or 'the module'}.training": m.training for n, m in parts}


def memory(subject: Subject) -> Results:
    """A call leaves nothing behind that changes the next."""
    inputs, between = subject.fresh(0), {"another one": subject.fresh(1)}
    if subject.kind not in ("loss", "encoder-decoder", "pictures"):
        half = max(1, subject.n_tokens // 2)
        between["a shorter one"] = subject.sliced(between["another one"], half)
    if masks := _other_masks(subject):
        between["one with another mask"] = {**inputs, **masks}
    cause, right = "remembers the last call", "the same outputs"
    saved = [x for m in subject.modules for x in (*m.parameters(), *m.buffers())]
    for name, other in between.items():
        found, done = "", f"called it with one input, {name}, and the first again"
        with restored(subject.module):
            before = [x.detach().clone() for x in saved]
            first = subject.run(inputs)
            # A start that is drawn from the first inputs is saved, and meant.
            drawn = not all(map(torch.equal, saved, before))
            try:
                second = subject.run(other)
            except Exception:  # it takes one length, or mask, only
                continue
            try:
                found = "the third call differs from the first" * differ(first, subject.run(inputs))
            except Exception as error:
                found = f"the third call raised {type(error).__name__}: {error}"
        with restored(subject.module):
            if not found and not drawn and differ(second, subject.run(other)):
                found = "the second call differs from the same without the first"
        if found:
            yield finding(cause, done, found, right)
            return
    outputs, learned = [], [p for p in subject.parameters.values() if p.requires_grad and p.dim()]
    for called in (True, False):
        with restored(subject.module), torch.no_grad():
            if called:
                subject.run(inputs)
            with subject.mode(training=True):
                for p in learned:
                    p.mul_(torch.linspace(0.5, 1.5, p.shape[-1]).to(p))
            with subject.mode(training=False):
                outputs.append(subject.run(inputs))
    right += " as without the first call"
    if not drawn and differ(*outputs):
        done, found = "called it, changed its weights, and called it again", "it uses the old ones"
        yield finding(cause, done, found, right)
        return
    trained = []
    for called in (False, False, True):
        with restored(subject.module):
            if called:
                subject.run(inputs)
            with subject.mode(training=True):
                trained.append(subject.run(inputs))
    if not drawn and not differ(*trained[:2]) and differ(*trained[1:]):
        done, found = "called it in evaluation, and then in training", "the outputs are others"
        yield finding(cause, done, found, right)


def untouched(subject: Subject) -> Results:
    """Arguments and buffers are as before."""
    buffers = {f"the buffer {n}": b for m in subject.modules for n, b in m.named_buffers()}
    for training, inputs in itertools.product((False, True), _all_ids(subject)):
        given = copied(inputs)
        held = {**given, **(buffers if not training else {})}
        held = {name: x for name, x in held.items() if isinstance(x, Tensor)}
        before = copied(held)
        with torch.no_grad(), subject.mode(training=training):
            subject.apply(given)
        for name in (n for n, x in held.items() if differ(x, before[n])):
            cause = "changes its arguments" if name in given else "changes its buffers"
            level: Level = "error" if name in given else "warning"
            done, found = f"called it in {MODES[training]}", f"{name} was changed"
            yield finding(cause, done, found, "it stays as it was", level)
            return


def _all_ids(subject: Subject) -> Iterator[Inputs]:
    """The example, other tokens, some masked, and inputs with one id after the other."""
    yield {**subject.inputs, **_other_masks(subject)}
    yield _with_padding(subject)
    for name in filter(subject.is_ids, subject.sources):
        ids, size = subject.inputs[name], subject.vocabulary(name)
        for start in range(0, min(size, 10 * ids.numel()), ids.numel()):  # of a large vocabulary
            new = (start + torch.arange(ids.numel())) % size
            yield {**subject.fresh(0), name: new.view_as(ids).to(ids)}


def _with_padding(subject: Subject) -> Inputs:
    """Other tokens, of which the last are masked, if there is a mask."""
    if subject.claims.mask is None:
        return subject.fresh(0)
    name = padded(subject)[0]
    allowed = torch.ones(subject.n_sequences, subject.length(name), dtype=torch.bool)
    allowed[:, -1] = False
    return block(subject, subject.fresh(0), name, allowed)


def half_precision(subject: Subject) -> Results:
    """In bfloat16 and float16 its outputs are numbers."""
    if len(subject.modules) != 1 or subject.modules[0] is not subject.module:
        return
    inputs = _with_padding(subject)
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
            yield finding(cause, f"called it in {dtype}", found, right, level)
            return


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    return one.shape != other.shape or relative(one, other) > DIFFERENT


def relative(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest number."""
    if not one.is_floating_point():
        return float((one != other).float().max())
    return float(changed(one.reshape(1, 1, -1), other.reshape(1, 1, -1)).max())
