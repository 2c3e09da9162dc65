"""The angles by which queries and keys are turned, read from what was multiplied."""

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import Results, heads_in, path, summed, where, width_before
from attnbook.doctor.tape.trace import Attention, Node


def is_there(a: Attention) -> bool:
    """True if queries or keys are turned by multiples of angles, not by those of a grid."""
    tables = [_table(node) for part in summed(a) for node in part.makers[-2:]]
    return any(
        (z[1:] * z[:1] - z[:-1] * z[1:2]).abs().max() < 1e-3 for z in tables if z is not None
    )


def _table(node: Node | None) -> Tensor | None:
    """The complex numbers that queries or keys are multiplied by, positions × pairs."""
    inputs = [x for now, _ in path(node) if now.name in ("mul", "mul_") for x in now.inputs]
    return next(_rotations(x for n, x in inputs if not (n and n.depends) and x.numel() > 2), None)


def _rotations(tables: Iterable[Tensor]) -> Iterator[Tensor]:
    """Complex numbers of length 1, from complex tables and from pairs of cosines and sines."""
    known = list(tables)
    sides = [(x.real, x.imag) for x in known if x.is_complex()]
    sides += itertools.permutations([x for x in known if not x.is_complex()], 2)
    for cos, sin in sides:
        if cos.shape == sin.shape and (cos.square() + sin.square() - 1).abs().amax() < 1e-4:
            z = torch.complex(cos.double(), sin.double()).squeeze()
            z = z.flatten(0, -3)[0] if z.dim() > 2 else z
            if z.dim() and z.real.std() > 1e-3 and z.real[0].mean() > z.imag[0].mean():
                yield z


def rounded(subject: Subject) -> Results:
    """The angles in tables that are kept are multiples of the first's, far away, too."""
    buffers = [x.squeeze() for m in subject.modules for x in m.buffers()]
    tables = (x[:256] for x in buffers if x.dim() == 2 and x.dtype == torch.float32)
    for z in (z for z in _rotations(tables) if len(z) >= 32 and (z[0] - 1).abs().max() < 1e-4):
        angle = torch.arange(len(z), device=z.device)[:, None] * z[1].angle()
        off = (z / torch.polar(torch.ones_like(angle), angle)).angle().abs()
        # A number of bfloat16 is off by 1/256 at most, one of float32 by next to nothing.
        if off.max() > 1e-3 and bool((off <= angle.abs() / 100 + 1e-4).all()):
            done = "compared the angles in a buffer with multiples of the first"
            found = f"they are off by up to {float(off.max()):.1e}, and by less than 1 % of each"
            right = "angle = position × frequency in float32"
            yield finding("angles in half precision", done, found, right)
            return


def angles(subject: Subject, stirred: Attention, _: Tensor) -> Results:
    """Angles are base**(-2i/d_head) × position, the same positions for queries and keys."""
    with subject.unstirred():  # a learned phase is the author's
        attentions = subject.trace(locate.constant(subject)).attentions
    by_index = {x.softmax_node.index: x for x in attentions}
    a = by_index.get(stirred.softmax_node.index, stirred)
    done = "called it with equal tokens" + where(a)
    tables = [_table(node) for node in (a.query_node, a.key_node)]
    starts = [z[0] for z in tables if z is not None]
    same_shape = len(starts) == 2 and starts[0].shape == starts[1].shape
    same_shape = same_shape and a.query.shape[1] == a.key.shape[1]  # not a window that looks back
    if same_shape and (starts[0] - starts[1]).abs().max() > 1e-2:
        found = "the first query is turned by another angle than the first key"
        right = "both by position × frequency"
        yield finding("queries turned ahead of keys", done, found, right)
    angle, base = turns(a.query[0]), subject.claims.rotary_base
    factor = falls(angle)
    if stays(angle):
        found = "frequencies do not fall from pair to pair"
        yield finding("other rotary base", done, found, "base**(-2i/d_head): they fall")
    elif angle is not None and factor is not None and base is not None:
        d = 2 * int((angle > 1e-6).sum())  # some turn a part of the channels alone
        d_model = max(width_before(a.query_node) or 0, d * heads_in(subject, a))
        factors = {"": base ** (-2 / d), "rotary angles of d_model": base ** (-2 / d_model)}
        like = [cause for cause, x in factors.items() if abs(factor / x - 1) < 0.04 / d]
        if cause := [*like, "other rotary base"][0]:
            found = f"frequencies fall by {factor:.4g} from pair to pair"
            right = f"by {factors['']:.4g}, {base:g}**(-2/{d})"
            yield finding(cause, done, found, right)


def turns(rows: Tensor) -> Tensor | None:
    """By which angle each pair of channels turns from row to row; ``None`` if by no fixed one."""
    for z in _pairs(rows) if rows.shape[-1] % 2 == 0 and len(rows) > 2 else ():
        step = z[1:] / z[:-1]
        if (step.abs() - 1).abs().max() < 1e-3 and (step - step[:1]).abs().max() < 1e-2:
            return step[0].angle().abs()
    return None


def stays(angle: Tensor | None) -> bool:
    """True if a pair turns as far as the one before it, or further, and the first turns by 1."""
    if angle is None or (angle[0] - 1).abs() > 1e-3:
        return False
    return bool((angle[1:] > 0.999 * angle[:-1])[angle[:-1] > 1e-3].any())


def falls(angle: Tensor | None) -> float | None:
    """By which factor angles fall from pair to pair, from 1 on."""
    if angle is None or (angle[0] - 1).abs() > 1e-3:
        return None
    ratios = (angle[1:] / angle[:-1])[angle[1:] > 1e-3]
    if not len(ratios) or (ratios / ratios[0] - 1).abs().max() > 1e-2:
        return None
    return float(ratios[0])


def _pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(…, d / 2) complex numbers: of the two halves, and of neighbours."""
    x = rows.double()
    left, right = x.chunk(2, -1)
    return torch.complex(left, right), torch.complex(x[..., 0::2], x[..., 1::2])
