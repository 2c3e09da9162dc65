"""What holds of any call: finite, repeatable, without traces, in half precision too."""

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.manners import restored
from attnbook.doctor.masking import as_claimed, block, forbids_everything
from attnbook.doctor.modes import foreign, random_operations
from attnbook.doctor.observed import Results
from attnbook.doctor.padded import padded, patterns
from attnbook.doctor.relations import differ
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import Inputs, Subject, cast, copied, seed_all

MODES = {False: "evaluation", True: "training"}
NO_KEY = {
    "strictly later": "inverted mask",
    "strictly earlier": "a token does not attend to itself",
}
"""Why the last token, or the first, has no key that is open."""


def finite(subject: Subject) -> Results:
    """No NaN or infinity for ordinary inputs, or long vectors; no attention is closed."""
    masks, closed = _other_masks(subject), forbids_everything(locate.trace_of(subject))
    shapes = [locate.pattern(support) for support in locate.supports(subject)]
    for scale, cause in ((1.0, "NaN or infinity"), (40.0, "overflow")):
        if scale > 1 and subject.is_ids(subject.target):
            return
        output = subject.run(subject.fresh(0, scale))
        n_wrong = int((~output.isfinite()).sum())
        if n_wrong or (masks and closed):
            cause = next((NO_KEY[shape] for shape in NO_KEY if shape in shapes), cause)
            cause = _why_closed(subject, masks) if closed else cause
            done = f"called it with tokens {scale:.0f} times as long as those of the example"
            found = f"{n_wrong} of {output.numel()} numbers are NaN or infinite"
            found += "; the mask forbids every key to all" * closed
            level: Level = "warning" if scale > 1 else "error"
            error = finding(cause, done, found, "numbers, and keys that are open", level)
            claim = subject.claims.mask
            by_claim = closed and claim is not None and claim.argument in masks
            yield as_claimed(subject, error) if by_claim else error
            return


def _why_closed(subject: Subject, masks: Inputs) -> str:
    """Why an attention is closed: by a mask that is turned around, or by any."""
    calls = [{**subject.fresh(0), name: other} for name, other in masks.items()]
    closed = bool(calls) and all(forbids_everything(subject.trace(call)) for call in calls)
    return "mask forbids everything" if closed else "inverted mask"


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
    trace = subject.trace(inputs)
    made = bool(foreign(subject, trace))
    noise = subject.kind == "loss" and not made and not trace.of("native_dropout", "bernoulli_")
    cause = "layer made in forward" if made else "random in evaluation"
    found = f"outputs differ; {random_operations(trace)}"
    level: Level = "warning" if noise else "error"
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
                after = _settings(subject)
                numpys = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
                states.append((torch.get_rng_state().tolist(), numpys, random.getstate()))
            for name in (n for n, x in before.items() if after[n] != x):
                found = f"{name} was {before[name]}, and is {after[name]}"
                yield finding(
                    "changes modes", f"called it in {MODES[training]}", found, "as before"
                )
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
    for done in itertools.islice(_memories(subject), 1):
        found, right = "its output depends on the calls before", "the same as by itself"
        yield finding("remembers the last call", done, found, right)


def _memories(subject: Subject) -> Iterator[str]:
    """Calls that depend on those before."""
    first, second = subject.fresh(0), subject.fresh(1)
    between = {"another": second, "the same with another mask": {**first, **_other_masks(subject)}}
    if subject.kind not in ("loss", "encoder-decoder", "pictures"):
        between["a shorter one"] = subject.sliced(second, max(1, subject.n_tokens // 2))
    drawn = _draws_its_start(subject, first)
    for name, other in between.items():
        outputs = _in_a_row(subject, first, other, first)
        if len(outputs) > 1 and (len(outputs) == 2 or differ(outputs[0], outputs[2])):
            yield f"called it with one input, {name}, and the first again"
        by_itself = _in_a_row(subject, other)
        if len(outputs) > 1 and not drawn and any(differ(outputs[1], x) for x in by_itself):
            yield f"called it with one input, and {name}"
    for training, done in ((False, "changed its weights"), (True, "set it to training")):
        before = (False, False, True)
        alone, again, after = (_called_later(subject, first, called, training) for called in before)
        if not drawn and not differ(alone, again) and differ(again, after):
            yield f"called it, {done}, and called it again"


def _in_a_row(subject: Subject, *calls: Inputs) -> list[Tensor]:
    """The outputs of calls one after the other, up to one that raises."""
    outputs: list[Tensor] = []
    with restored(subject.module), suppress(Exception):
        for inputs in calls:
            outputs.append(subject.run(inputs))
    return outputs


def _draws_its_start(subject: Subject, inputs: Inputs) -> bool:
    """True if a call changes weights or buffers: a start that is drawn from the first inputs."""
    saved = [x for m in subject.modules for x in (*m.parameters(), *m.buffers())]
    before = [x.detach().clone() for x in saved]
    with restored(subject.module):
        subject.run(inputs)
        return not all(map(torch.equal, saved, before))


def _called_later(subject: Subject, inputs: Inputs, called: bool, training: bool) -> Tensor:
    """The output in training, or with other weights, after a call or without."""
    with restored(subject.module), torch.no_grad():
        if called:
            subject.run(inputs)
        with subject.mode(training=True):
            if training:
                return subject.run(inputs)
            for p in subject.parameters.values():
                if p.requires_grad and p.dim():
                    p.mul_(torch.linspace(0.5, 1.5, p.shape[-1]).to(p))
        with subject.mode(training=False):
            return subject.run(inputs)


def untouched(subject: Subject) -> Results:
    """Arguments are as before."""
    for training, inputs in itertools.product((False, True), _all_ids(subject)):
        given = copied(inputs)
        with torch.no_grad(), subject.mode(training=training):
            subject.apply(given)
        for name in (n for n, x in given.items() if isinstance(x, Tensor)):
            if differ(given[name], inputs[name]):
                done, found = f"called it in {MODES[training]}", f"{name} was changed"
                yield finding("changes its arguments", done, found, "it stays as it was")
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
        except Exception as error:  # whatever it can't do
            found = f"it raised {type(error).__name__}: {error}".partition("\n")[0][:120]
            if "overflow" not in str(error):
                yield NotJudged("half precision", f"in {dtype} {found}")
                return
        if found:
            level: Level = "error" if subject.claims.half else "note"
            cause, right = "not in half precision", "nearly the same outputs"
            yield finding(cause, f"called it in {dtype}", found, right, level)
            return
