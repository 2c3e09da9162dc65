"""Is this module the same function as another one? And where do they part?"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbook.doctor.cached import in_pieces, step_of
from attnbook.doctor.causes import finding
from attnbook.doctor.manners import restored
from attnbook.doctor.masking import block
from attnbook.doctor.modes import no_dropout
from attnbook.doctor.observed import Results, where
from attnbook.doctor.padded import padded
from attnbook.doctor.report import NotJudged
from attnbook.doctor.subject import (
    DIFFERENT,
    Inputs,
    Subject,
    changed,
    copied,
    seed_all,
    tensors_in,
)
from attnbook.doctor.trace import Attention

PARTS: dict[str, Callable[[Attention], Tensor | None]] = {
    "queries": lambda a: a.query,
    "keys": lambda a: a.key,
    "values": lambda a: a.value,
    "products of queries and keys": lambda a: a.products,
    "logits": lambda a: a.logits,
    "weights": lambda a: a.weights,
    "sums of values": lambda a: a.context,
}
"""The stages of an attention, in the order in which they are computed."""
BEFORE_THE_SCALE = ("queries", "keys", "products of queries and keys")
HALF, ROUGH = "bfloat16", 0.05


def same_as(subject: Subject) -> Results:
    """Outputs and gradients equal those of another module, however they are called."""
    assert subject.claims.same_as is not None
    other = replace(subject, module=subject.claims.same_as, traces={})
    compared: list[str] = []
    with restored(other.module), other.mode(training=False):
        for done, one, two in _pairs(subject, other):
            if one.shape != two.shape:
                found = f"shapes {list(one.shape)} and {list(two.shape)}"
            elif float(changed(one, two).max()) <= (ROUGH if done == HALF else 10 * DIFFERENT):
                compared.append(done)
                continue
            elif not (one.any() and two.any()):
                found = f"{'the other' if one.any() else 'this one'} gives zeros"
            else:
                off = float(changed(one, two).max())
                found = f"they differ by {off:.1e} of their size{_first_part(subject, other)}"
            if compared:
                found += f"; the same for {', '.join(compared)}"
            right = "the same outputs and gradients"
            yield finding("differs from the other", done, found, right)
            return
    if not compared:
        yield NotJudged("same as", "the other can not be called like the example")


def _pairs(subject: Subject, other: Subject) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What was compared, and what each of them gave."""

    def both(done: str, inputs: Inputs) -> Iterator[tuple[str, Tensor, Tensor]]:
        one, two = (each.by_token(each.run(inputs)) for each in (subject, other))
        yield done, one, two

    inputs, n = subject.fresh(0), subject.n_tokens
    yield from both("outputs", inputs)
    yield from both("other inputs, ten times as long", subject.fresh(1, scale=10.0))
    for length in sorted({n // 2, n - 1} - {0, n}) if subject.is_self else ():
        cut = subject.sliced(inputs, length)
        if _can(subject, cut):
            yield from both(f"the first {length} tokens", cut)
    if subject.claims.mask is not None or subject.claims.padding_id is not None:
        for name in padded(subject):
            allowed = torch.ones(subject.n_sequences, subject.length(name), dtype=torch.bool)
            allowed[0, -2:] = False
            for side, real in (("behind", allowed), ("in front", allowed.flip(1))):
                yield from both(f"padding {side}", block(subject, inputs, name, real))
    for name, one, two in zip(
        _names(subject), _gradients(subject), _gradients(other), strict=False
    ):
        yield f"the gradient at {name}", one[None], two[None]
    with subject.mode(training=True), other.mode(training=True), no_dropout():
        yield from both("training, without dropout", inputs)
    if subject.claims.cache is not None:
        step = step_of(subject)
        for sizes in ([1] * n, [n - 2, 2]):
            with restored(subject.module):
                pieces = in_pieces(subject, step, inputs, sizes)
            yield f"the cache, in pieces of {sizes}", pieces, other.by_token(other.run(inputs))
    if subject.claims.half:
        with torch.autocast("cpu", torch.bfloat16):
            yield from both(HALF, inputs)


def _can(subject: Subject, inputs: Inputs) -> bool:
    try:
        subject.run(inputs)
    except Exception:  # it takes one length only
        return False
    return True


def _names(subject: Subject) -> list[str]:
    """Of inputs and parameters whose gradients are compared."""
    floats = [name for name in subject.sources if not subject.is_ids(name)]
    return floats + sorted(n for n, p in subject.parameters.items() if p.requires_grad)


def _gradients(subject: Subject) -> Iterator[Tensor]:
    """Of a random mixture of the output, at inputs and at parameters by name."""
    inputs, names = subject.fresh(0), _names(subject)
    given = {n: x.requires_grad_() if n in names else x for n, x in copied(inputs).items()}
    at = {**{n: x for n, x in given.items() if n in names}, **subject.parameters}
    seed_all(0)
    with torch.enable_grad(), no_dropout():
        output = tensors_in(subject.apply(given))[subject.which]
        drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        wanted = [at[n] for n in names]
        total = (output * drawn).sum() + 0.0 * sum(x.sum() for x in wanted)  # of no use to some
        found = torch.autograd.grad(total, wanted)
    yield from found


def _first_part(subject: Subject, other: Subject) -> str:
    """The first stage of an attention that differs, if both were observed."""
    inputs = subject.fresh(0)
    pairs = zip(subject.trace(inputs).attentions, other.trace(inputs).attentions, strict=False)
    for number, (one, two) in enumerate(pairs):
        for name, part in PARTS.items():
            a, b = part(one), part(two)
            if a is None or b is None or a.shape != b.shape:
                continue
            open_ = (a > -1e3) & (b > -1e3)
            masked = not open_.equal((a > -1e3) | (b > -1e3))
            factor = _ratio(a, b, open_)
            if factor and name in BEFORE_THE_SCALE:
                continue  # torch's fused attention scales queries and keys
            if masked or not _alike(a[open_], b[open_]):
                how = ", which are masked elsewhere" if masked else factor
                return f"; first in the {name} of attention {number}{where(one)}{how}"
    return ""


def _alike(a: Tensor, b: Tensor) -> bool:
    return not a.numel() or bool((a - b).abs().max() <= 10 * DIFFERENT * a.abs().max())


def _ratio(a: Tensor, b: Tensor, open_: Tensor) -> str:
    """The factor between them, if there is one."""
    both = open_ & (b.abs() > 1e-6)
    ratio = (a / b)[both]
    if ratio.numel() > 3 and (ratio - ratio[0]).abs().max() < 1e-3 * ratio[0].abs():
        return f", by a factor of {float(ratio[0]):.4g}"
    return ""
