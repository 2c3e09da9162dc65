"""What holds of any call: finite, repeatable, without traces, in half precision too."""

import copy
import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbook.doctor.call.manners import RAISED, restored
from attnbook.doctor.call.masking import as_claimed, block, forbids_everything
from attnbook.doctor.call.subject import Inputs, Refused, Subject, cast, copied, seed_all, told
from attnbook.doctor.causes import finding
from attnbook.doctor.relations.padded import padded, patterns
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.modes import drops, foreign, random_operations
from attnbook.doctor.stages.observed import Results
from attnbook.doctor.tape.compare import differ

MODES = {False: "evaluation", True: "training"}
SCALES = {1.0: "NaN or infinity", 40.0: "overflow"}
"""By how much vectors are longer than the example's, and what it is called if that fails."""
NO_KEY = {
    "strictly later": "inverted mask",
    "strictly earlier": "a token does not attend to itself",
}
"""Why the last token, or the first, has no key that is open."""


def finite(subject: Subject) -> Results:
    """No NaN or infinity for ordinary inputs, or long vectors; no attention is closed."""
    masks, closed = _other_masks(subject), forbids_everything(locate.trace_of(subject))
    for scale, cause in SCALES.items():
        if scale > 1 and subject.is_ids(subject.target):
            return
        output = subject.run(subject.fresh(0, scale))
        n_wrong = int((~output.isfinite()).sum())
        if n_wrong or closed:
            done = "called it with tokens like the example's" + ", 40 times as long" * (scale > 1)
            not_numbers = f"{n_wrong} of {output.numel()} numbers are NaN or infinite"
            words = [not_numbers] * bool(n_wrong) + ["the mask forbids every key to all"] * closed
            cause, right = _why_not_finite(subject, masks, cause), "numbers, and keys that are open"
            level: Level = "warning" if scale > 1 else "error"
            error = finding(cause, done, "; ".join(words), right, level)
            yield as_claimed(subject, error) if masks and closed else error
            return


def _why_not_finite(subject: Subject, masks: Inputs, otherwise: str) -> str:
    """Why outputs are not numbers: perhaps no key is open, to any query or to one of them."""
    if forbids_everything(locate.trace_of(subject)):
        closed = bool(masks) and forbids_everything(subject.trace({**subject.fresh(0), **masks}))
        return "mask forbids everything" if closed else "inverted mask"
    shapes = [locate.pattern(support) for support in locate.supports(subject)]
    return next((NO_KEY[shape] for shape in NO_KEY if shape in shapes), otherwise)


def _other_masks(subject: Subject) -> Inputs:
    """Masks of zeros and ones that the example has, turned around at the last key."""
    masks = {}
    for name, x in subject.inputs.items():
        tokens = isinstance(x, Tensor) and x.dim() > 1 and name not in subject.sources
        if tokens and bool(((x == 0) | (x == 1)).all()):
            masks[name] = x.clone()
            masks[name][..., -1] = 1 - x[..., -1].to(torch.int64)
    return masks


def deterministic(subject: Subject) -> Results:
    """In evaluation, two calls give the same."""
    inputs = subject.fresh(0)
    one, again, other = (subject.run(inputs, seed=seed) for seed in (0, 0, 1))
    if differ(one, again) or not differ(one, other):
        return
    trace, again_traced = subject.trace(inputs), subject.trace(inputs)
    used, later = (set(map(id, foreign(subject, x))) for x in (trace, again_traced))
    cause = "random in evaluation"
    if used:  # the same in each call, or made anew
        cause = "parameter not registered" if used & later else "layer made in forward"
    found = f"outputs differ; {random_operations(trace)}"
    # A projection that is drawn in each call is a design; what is drawn and compared is dropout.
    level: Level = "error" if used or drops(trace) else "warning"
    yield finding(cause, "called it twice in evaluation", found, "the same outputs", level)


def settings(subject: Subject) -> Results:
    """A call leaves random generators, modes and gradients as they are."""
    for training in (False, True):
        states: list[tuple[Any, ...]] = []
        for seed in (0, 1):
            with subject.mode(training=training), restored(subject.module), torch.enable_grad():
                seed_all(seed)
                before = _settings(subject)
                subject.call(subject.fresh(0))
                switched = [name for name, x in _settings(subject).items() if before[name] != x]
                numpys = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
                states.append((torch.get_rng_state().tolist(), numpys, random.getstate()))
            if switched:
                done, found = f"called it in {MODES[training]}", f"{switched[0]} is another"
                yield finding("changes modes", done, found, "as before")
                return
        if any(one == other for one, other in zip(*states, strict=True)):
            done, found = "called it after two seeds", "a generator is in the same state after both"
            yield finding("seeds the generator", done, found, "it depends on the seed")
            return


def _settings(subject: Subject) -> dict[str, Any]:
    """What a call might switch; a function that is a step of training may."""
    parts = subject.module.named_modules() if isinstance(subject.module, nn.Module) else ()
    return {
        "whether gradients are computed": torch.is_grad_enabled(),
        "the type of numbers": torch.get_default_dtype(),
        **{f"{name}.requires_grad": p.requires_grad for name, p in subject.parameters.items()},
        **{f"{name or 'the module'}.training": m.training for name, m in parts},
    }


def memory(subject: Subject) -> Results:
    """A call leaves nothing behind that changes the next."""
    first, second = subject.fresh(0), subject.fresh(1)
    others, masks = {"another": second}, _other_masks(subject)
    if masks:
        others["the same with another mask"] = {**first, **masks}
    if subject.kind not in ("loss", "encoder-decoder", "pictures"):
        others["a shorter one"] = subject.sliced(second, max(1, subject.n_tokens // 2))
    calls = {f"one input, {name}, and the first again": [x, first] for name, x in others.items()}
    if not _draws_its_start(subject, first):
        calls |= {f"one input, and then {name}": [x] for name, x in others.items()}
        calls["one input in evaluation, and then in training"] = [first]
        calls["one input, changed its weights, and called it again"] = [first]
    for done, later in calls.items():
        if _remembers(subject, [first, *later], done):
            found, right = "the last output depends on the calls before", "the same as by itself"
            yield finding("remembers the last call", f"called it with {done}", found, right)
            return


def _remembers(subject: Subject, calls: list[Inputs], done: str) -> bool:
    """True if the last call, in training or after it, gives something else than by itself."""
    outputs, learned = [], [p for p in subject.parameters.values() if p.requires_grad and p.dim()]
    for before in ([], [], calls[:-1]):
        with restored(subject.module):
            try:
                for inputs in before:
                    subject.run(inputs)
                if "weights" in done:
                    with subject.mode(training=True), torch.no_grad():
                        for p in learned:
                            p.mul_(torch.linspace(0.5, 1.5, p.shape[-1]).to(p))
                with subject.mode(training=done.endswith("training")):
                    outputs.append(subject.run(calls[-1]))
            except Refused:  # some modules take one length, or one mask, only
                return False
    alone, again, after = outputs
    return not differ(alone, again) and differ(alone, after)


def _draws_its_start(subject: Subject, inputs: Inputs) -> bool:
    """True if a call changes weights or buffers: a start that is drawn from the first inputs."""
    saved = [x for m in subject.modules for x in (*m.parameters(), *m.buffers())]
    before = [x.detach().clone() for x in saved]
    with restored(subject.module):
        subject.run(inputs)
        return not all(map(torch.equal, saved, before))


def untouched(subject: Subject) -> Results:
    """Arguments are as before."""
    masks, inputs = _other_masks(subject), subject.fresh(0)
    ids = {n: inputs[n] for n in subject.sources if subject.is_ids(n)}
    all_ids = {n: torch.arange(x.numel()) % subject.vocabulary(n) for n, x in ids.items()}
    counted = {n: all_ids[n].view_as(x).to(x) for n, x in ids.items()}
    calls = ({**subject.inputs, **masks}, _with_padding(subject), {**inputs, **counted})
    for training, arguments in itertools.product((False, True), calls):
        given = copied(arguments)
        with torch.no_grad(), subject.mode(training=training):
            subject.apply(given)
        for name in (n for n, x in given.items() if isinstance(x, Tensor)):
            if differ(given[name], arguments[name]):
                done, found = f"called it in {MODES[training]}", f"{name} was changed"
                yield finding("changes its arguments", done, found, "it stays as it was")
                return


def _with_padding(subject: Subject) -> Inputs:
    """Other tokens, the last of which are padding, if the claims say how it is told."""
    name = padded(subject)[0]
    return block(subject, subject.fresh(0), name, next(patterns(subject, name)))


def half_precision(subject: Subject) -> Results:
    """In bfloat16 and float16 its outputs are numbers."""
    inputs = _with_padding(subject)
    whole = isinstance(subject.module, nn.Module) and subject.modules == [subject.module]
    if not whole or not subject.run(inputs).isfinite().all():
        return
    for dtype in (torch.bfloat16, torch.float16):
        try:
            twin = replace(subject, module=copy.deepcopy(subject.modules[0]).to(dtype))
            numbers = twin.run(cast(inputs, dtype)).isfinite().all()
            found = "" if numbers else "outputs are NaN or infinite"
        except (Refused, *RAISED) as error:  # an operation that has no half precision, say
            found = f"it {told(error)}"
            if "overflow" not in found:
                yield NotJudged("half precision", f"in {dtype} {found}")
                return
        if found:
            level: Level = "error" if subject.claims.half else "note"
            cause, right = "not in half precision", "nearly the same outputs"
            yield finding(cause, f"called it in {dtype}", found, right, level)
            return
