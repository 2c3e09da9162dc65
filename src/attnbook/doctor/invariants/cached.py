"""With a cache, it gives what it gives at once."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.manners import restored
from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.subject import (
    DIFFERENT,
    Inputs,
    Subject,
    changed,
    output_of,
    plain_kernels,
    seed_all,
    tensors_in,
)
from attnbook.doctor.trace import Trace

Step = Callable[[Any, Tensor, Any], tuple[Any, Any]]
TOLERANCE = 20 * DIFFERENT


def cache(subject: Subject) -> Iterator[Finding | NotJudged]:
    """Token after token, in chunks, and for a second sequence, it gives what it gives at once."""
    step, n = step_of(subject), subject.n_tokens
    one = [1] * n
    plans = {
        "token after token": (0, one),
        "one token after many": (0, [n - 2, 1, 1]),
        "in chunks": (0, [2, n - 4, 2] if n > 4 else [1, n - 1]),
        "a chunk at the end": (0, [n - 3, 3] if n > 4 else [n - 1, 1]),
        "a second sequence": (1, one),
    }
    off, outs = {}, {}
    for name, (seed, sizes) in plans.items():
        inputs = subject.fresh(seed)
        with restored(subject.module):
            if name == "a second sequence":
                in_pieces(subject, step, subject.fresh(0), sizes)
            outs[name] = in_pieces(subject, step, inputs, sizes)
        off[name] = float(changed(subject.by_token(subject.run(inputs)), outs[name]).max())
    wrong = {name: x for name, x in off.items() if not x <= TOLERANCE}
    if wrong:
        cause = _cause(subject, step, subject.fresh(0), list(wrong), outs["token after token"])
        done = "called it with a cache: token after token, and in pieces"
        by = ", ".join(f"{x:.1e} ({name})" for name, x in wrong.items())
        found = f"outputs differ from the full pass by {by}"
        yield finding(cause, done, found, "the same outputs")


def step_of(subject: Subject) -> Step:
    """How the next tokens are given, with what was kept of those before."""
    claim = subject.claims.cache
    return claim if callable(claim) else _past_key_values


def _past_key_values(module: Any, new: Tensor, state: Any) -> tuple[Tensor, Any]:
    result = module(new, past_key_values=state, use_cache=True)
    return output_of(result), result.past_key_values


def in_pieces(subject: Subject, step: Step, inputs: Inputs, sizes: list[int]) -> Tensor:
    """The outputs of calls with so many tokens each."""
    state, parts = None, []
    with torch.no_grad():
        for piece in inputs[subject.target].split(sizes, subject.tokens):
            seed_all(0)
            output, state = step(subject.module, piece.clone(), state)
            parts.append(subject.by_token(output_of(output, which=subject.which)))
    return torch.cat(parts, 1)


def _cause(subject: Subject, step: Step, inputs: Inputs, wrong: list[str], outs: Tensor) -> str:
    if wrong == ["a second sequence"]:
        return "remembers the last call"
    n, one = subject.n_tokens, [1] * subject.n_tokens
    full, last = locate.trace_of(subject), _last(subject, step, inputs, one)
    if "token after token" not in wrong:  # the first of a chunk sees its last, or not the past
        if _order(full, _last(subject, step, inputs, [n - 3, 3])) == "another order":
            return "cache in another order"
        if _reaches(subject, step, inputs, n - 1, [n - 3, 3], n - 3):
            return "chunks see their future"
        past = _reaches(subject, step, inputs, n - 4, [n - 3, 3], n - 3)
        return "cached differs from full" if past else "chunks do not see the cache"
    alone = inputs[subject.target].narrow(subject.tokens, subject.n_tokens - 1, 1)
    names = subject.same or [subject.target]
    short = subject.sliced(inputs, 1, subject.target)  # masks, too
    single = subject.by_token(subject.run({**short, **dict.fromkeys(names, alone)}))
    is_alone = float(changed(outs[:, -1:], single).max()) <= TOLERANCE
    off = changed(subject.by_token(subject.run(inputs)), outs) > TOLERANCE
    first = int(off.any(0).nonzero()[0])
    if subject.claims.window is not None and first >= subject.claims.window:
        moved = _order(full, last) == "the new token elsewhere"
        restart = moved and locate.has_positions(subject)
        return "positions restart with the cache" if restart else "slots of the cache exchanged"
    cached, whole = ([a.key for a in x.attentions] for x in (last, full))
    if _repeated([x[:, : n - 1] for x in cached]) and not _repeated(whole):
        return "layers share one cache"
    oldest = max(0, n - (subject.claims.window or n))  # that the last one attends to
    if is_alone or not _reaches(subject, step, inputs, oldest, one, -1):
        return "the cache is not attended to"
    if reads_free_slots(last):
        return "free slots are attended to"
    if n > 2 and not _reaches(subject, step, inputs, n - 2, one, -1):
        return "mask at the upper left"
    order = _order(full, last)
    if order in ("another order", "turned again"):
        return "cache in another order" if order == "another order" else "cached keys turned again"
    if order != "other content" and locate.has_positions(subject):
        return "positions restart with the cache"
    return "cached differs from full"


def _last(subject: Subject, step: Step, inputs: Inputs, sizes: list[int]) -> Trace:
    """The last of calls with so many tokens each."""
    *past, new = inputs[subject.target].split(sizes, subject.tokens)
    state = None
    with torch.no_grad(), plain_kernels():
        for piece in past:
            _, state = step(subject.module, piece.clone(), state)
        with Trace([new, *tensors_in(state)]) as trace:
            step(subject.module, new, state)
    return trace


def _order(full: Trace, last: Trace) -> str:
    """How the first attention's cached keys and values differ from those of a full pass."""
    for whole, cached in zip(full.attentions[:1], last.attentions[:1], strict=False):
        for x, y in ((whole.key, cached.key), (whole.value, cached.value)):
            at = (x[:, -1:] - y).abs().amax((0, 2)) <= TOLERANCE * x.abs().max()
            if not at.any():
                return "the new token elsewhere"
            x = x[:, -y.shape[1] :]  # what a window has kept
            if x.shape != y.shape:
                continue
            x, y = (z[:, x.any(-1).any(0)] for z in (x, y))  # the slots that are used
            same = (x[:, :, None] - y[:, None]).abs().amax((0, 3)) <= TOLERANCE * x.abs().max()
            if same.diagonal().all():
                continue
            if same.any(0).all() and same.any(1).all():
                return "another order"
            if same[-1, -1]:  # the new token's are right
                turned = (x.norm(dim=-1) - y.norm(dim=-1)).abs().max() <= TOLERANCE * x.abs().max()
                return "turned again" if turned else "other content"
    return ""


def reads_free_slots(trace: Trace) -> bool:
    """Whether an attention gives weight to keys and values that are all zeros."""
    for a in trace.attentions:
        free = ~(a.key.any(-1) | a.value.any(-1))  # (n, keys)
        if bool((a.weights.amax(1)[free] > 0).any()):
            return True
    return False


def _repeated(keys: list[Tensor]) -> bool:
    return any(x.shape == y.shape and x.equal(y) for x, y in itertools.pairwise(keys))


def _reaches(
    subject: Subject, step: Step, inputs: Inputs, token: int, sizes: list[int], to: int
) -> bool:
    """Whether a token changes the output of another one, in calls with so many tokens each."""
    other = subject.replaced(inputs, subject.target, 0, token)
    one, two = (in_pieces(subject, step, x, sizes) for x in (inputs, other))
    return float(changed(one, two)[0, to]) > DIFFERENT
