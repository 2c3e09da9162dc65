"""With a cache, a module gives what it gives at once."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnbook.doctor.call.manners import restored
from attnbook.doctor.call.subject import (
    Inputs,
    Subject,
    output_of,
    plain_kernels,
    seed_all,
    tensors_in,
)
from attnbook.doctor.relations.pairs import Pair, Pairs, reads_free_slots, relation, rows
from attnbook.doctor.stages import locate
from attnbook.doctor.tape.compare import DIFFERENT, changed
from attnbook.doctor.tape.trace import Trace

Step = Callable[[Any, Tensor, Any], tuple[Any, Any]]
TOLERANCE = 20 * DIFFERENT


@relation("outputs differ from the full pass by {off}", "the same outputs")
def cache(subject: Subject) -> Pairs:
    """Token after token, in chunks, and for a second sequence, it gives what it gives at once."""
    step, n, inputs = step_of(subject), subject.n_tokens, subject.fresh(0)
    one, done = [1] * n, "called it with a cache: "
    plans = {
        "token after token": one,
        "one token after many": [n - 2, 1, 1],
        "in chunks": [2, n - 4, 2] if n > 4 else [1, n - 1],
        "a chunk at the end": [n - 3, 3] if n > 4 else [n - 1, 1],
    }
    for name, sizes in plans.items():
        with restored(subject.module):
            pieces = in_pieces(subject, step, inputs, sizes)
        full = rows(subject, inputs)
        off = (changed(full, pieces) > TOLERANCE).any(0)
        causes = _of_tokens(subject, step, off) if sizes is one else _of_chunks(subject, step)
        yield Pair(done + name, full, pieces, partial(_first, causes), tolerance=TOLERANCE)
    second, cause = subject.fresh(1), "remembers the last call"
    with restored(subject.module):
        pieces = [in_pieces(subject, step, x, one) for x in (inputs, second)][1]
    done += "a second sequence"
    yield Pair(done, rows(subject, second), pieces, cause, tolerance=TOLERANCE)


def _first(causes: Iterator[tuple[str, bool]]) -> tuple[str, str]:
    """The first of the causes that holds, of no place."""
    return next((cause for cause, holds in causes if holds), "cached differs from full"), ""


def step_of(subject: Subject) -> Step:
    """How the next tokens are given, with what was kept of those before."""
    claim = subject.claims.cache
    return claim if callable(claim) else _past_key_values


def _past_key_values(module: Any, new: Tensor, state: Any) -> tuple[Tensor, Any]:
    """A step as Hugging Face's models take it."""
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


def _of_chunks(subject: Subject, step: Step) -> Iterator[tuple[str, bool]]:
    """What is wrong if several tokens at once go wrong: causes, and whether they hold."""
    n, sizes = subject.n_tokens, [subject.n_tokens - 3, 3]
    order = _order(locate.trace_of(subject), _last(subject, step, sizes))
    yield "cache in another order", order == "another order"
    yield "chunks see their future", _reaches(subject, step, sizes, n - 1, n - 3)
    yield "chunks do not see the cache", not _reaches(subject, step, sizes, n - 4, n - 3)


def _of_tokens(subject: Subject, step: Step, off: Tensor) -> Iterator[tuple[str, bool]]:
    """What is wrong if token after token goes wrong: causes, and whether they hold."""
    n, window, sizes = subject.n_tokens, subject.claims.window, [1] * subject.n_tokens
    full, last = locate.trace_of(subject), _last(subject, step, sizes)
    order = _order(full, last)
    if window is not None and not off[:window].any():  # what was kept is dropped
        moved = order == "the new token elsewhere"
        yield "positions restart with the cache", moved and locate.has_positions(subject)
        yield "slots of the cache exchanged", True
    yield "layers share one cache", _repeated(last, n - 1) and not _repeated(full, n)
    oldest = max(0, n - (window or n))  # that the last one attends to
    yield "the cache is not attended to", not _reaches(subject, step, sizes, oldest, -1)
    yield "free slots are attended to", reads_free_slots(last)
    yield "mask at the upper left", not _reaches(subject, step, sizes, n - 2, -1)
    yield "cache in another order", order == "another order"
    yield "cached keys turned again", order == "turned again"
    known = order != "other content" and bool(full.attentions)
    yield "positions restart with the cache", known and locate.has_positions(subject)


def _last(subject: Subject, step: Step, sizes: list[int]) -> Trace:
    """The last of calls with so many tokens each."""
    *past, new = subject.fresh(0)[subject.target].split(sizes, subject.tokens)
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
        orders = (_differ(whole.key, cached.key), _differ(whole.value, cached.value))
        return next(filter(None, orders), "")
    return ""


def _differ(x: Tensor, y: Tensor) -> str:
    """How cached keys or values, (n, tokens, d), differ from those of a full pass."""
    close = TOLERANCE * x.abs().max()
    if not ((x[:, -1:] - y).abs().amax((0, 2)) <= close).any():
        return "the new token elsewhere"
    x = x[:, -y.shape[1] :]  # what a window has kept
    if x.shape != y.shape:
        return ""
    x, y = (z[:, x.any(-1).any(0)] for z in (x, y))  # the slots that are used
    same = (x[:, :, None] - y[:, None]).abs().amax((0, 3)) <= close
    if same.diagonal().all():
        return ""
    if same.any(0).all() and same.any(1).all():
        return "another order"
    if not same[-1, -1]:  # the new token's are wrong, too
        return ""
    turned = ((x.norm(dim=-1) - y.norm(dim=-1)).abs() <= close).all()
    return "turned again" if turned else "other content"


def _repeated(trace: Trace, n: int) -> bool:
    """True if the first n keys of two attentions in a row are the same."""
    pairs = itertools.pairwise(a.key[:, :n] for a in trace.attentions)
    return any(x.shape == y.shape and x.equal(y) for x, y in pairs)


def _reaches(subject: Subject, step: Step, sizes: list[int], token: int, to: int) -> bool:
    """True if a token changes the output of another one, in calls with so many tokens each."""
    inputs = subject.fresh(0)
    other = subject.replaced(inputs, subject.target, 0, token)
    outputs = (in_pieces(subject, step, x, sizes) for x in (inputs, other))
    return float(changed(*outputs)[0, to]) > DIFFERENT
