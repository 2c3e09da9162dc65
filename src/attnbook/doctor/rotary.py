"""The angles by which queries and keys are turned, read from what was multiplied."""

import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, heads_in, path, summed, width_before
from attnbook.doctor.report import Level
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import Attention, Node, walk

NAMES = ("base", "theta", "rope_theta", "rope_base", "rotary_base")


def is_there(subject: Subject, a: Attention) -> bool:
    """True if queries or keys are turned by multiples of angles, or something is named so."""
    seen = {_is_turned(node) for part in summed(a) for node in part.makers[-2:]} - {None}
    if seen:
        return True in seen
    parts = [x for m in subject.modules for x in m.named_modules()]
    words = [word for n, part in parts for word in (n.split(".")[-1], type(part).__name__)]
    return any("rotary" in word.lower() or "rope" in word.lower() for word in words)


def _is_turned(node: Node | None) -> bool | None:
    """True if this was multiplied by cosines and sines of multiples of angles.

    Returns:
        ``None`` without such tables, ``False`` if angles are no multiples, as on a grid.
    """
    tables: list[Tensor] = []
    for now, _ in path(node):
        if now.name in ("mul", "mul_"):
            tables += [x for n, x in now.inputs if not (n and n.depends) and x.numel() > 2]
    for z in _rotations(tables):
        if z.real.std() >= 1e-3 and z.real.flatten()[0] >= 0.5:
            z = z.flatten(0, -3)[0] if z.dim() > 2 else z
            return bool((z[1:] * z[:1] - z[:-1] * z[1:2]).abs().max() < 1e-3)
    return None


def _rotations(tables: Iterable[Tensor]) -> Iterator[Tensor]:
    """Complex numbers of length 1: a complex table, or one of cosines with one of sines."""
    known = list(tables)
    sides = [(x.real, x.imag) for x in known if x.is_complex()]
    sides += itertools.permutations([x for x in known if not x.is_complex()], 2)
    for cos, sin in sides:
        if cos.shape == sin.shape and cos.numel():
            z = torch.complex(cos.double(), sin.double()).squeeze()
            if (z.abs() - 1).abs().max() < 1e-4:
                yield z


def rounded(subject: Subject) -> Results:
    """The angles in tables that are kept are multiples of the first's, far away, too."""
    buffers = [x for m in subject.modules for x in m.buffers() if x.dtype == torch.float32]
    for z in _rotations(x[:256] for x in map(Tensor.squeeze, buffers) if x.dim() == 2):
        if len(z) < 32 or (z[0] - 1).abs().max() > 1e-4:
            continue
        angle = torch.arange(len(z), device=z.device)[:, None] * (z[1] / z[0]).angle()
        off = (z / torch.polar(torch.ones_like(angle), angle)).angle().abs()
        # A number of bfloat16 is off by 1/256 at most, one of float32 by next to nothing.
        if off.max() > 1e-3 and bool((off <= angle.abs() / 100 + 1e-4).all()):
            done = "compared the angles in a buffer with multiples of the first"
            found = f"they are off by up to {float(off.max()):.1e}, and by less than 1 % of each"
            right = "angle = position × frequency in float32"
            yield finding("angles in half precision", done, found, right)
            return


def angles(subject: Subject, a: Attention, done: str) -> Results:
    """Angles are base**(-2i/d_head) × position, the same positions for queries and keys."""
    sides = (a.query, a.query_node), (a.key, a.key_node)
    of_query, of_key = (_first_turn(*side) for side in sides)
    if of_query is not None and of_key is not None and (of_query - of_key).abs().max() > 1e-2:
        found = "the first query is turned by another angle than the first key"
        right = "both by position × frequency"
        yield finding("queries turned ahead of keys", done, found, right)
        return
    angle = turns(a.query[0])
    factor, base = falls(angle), _base(subject, a)
    if rises(angle):
        found, right = "frequencies rise from pair to pair", "base**(-2i/d_head): they fall"
        yield finding("other rotary base", done, found, right)
    elif angle is not None and factor is not None:
        d = 2 * int((angle > 1e-6).sum())  # some turn a part of the channels alone
        d_model = max(width_before(a.query_node) or 0, d * heads_in(subject, a))
        meant, seen = base or 1e4, factor ** (-d / 2)
        bases = {"": meant, "rotary angles of d_model": meant ** (d / d_model)}
        is_wrong = subject.claims.rotary_base is not None or factor > 0.999
        like = [cause for cause, x in bases.items() if math.isclose(seen, x, rel_tol=0.02)]
        if cause := [*like, "other rotary base" if is_wrong else ""][0]:
            is_perhaps_meant = base is None and math.isclose(seen, 100, rel_tol=0.02)
            level: Level = "warning" if is_perhaps_meant else "error"
            found = f"frequencies fall by {factor:.4g} from pair to pair, as with base {seen:.5g}"
            right = f"by {meant ** (-2 / d):.4g}, {meant:g}**(-2/{d})"
            yield finding(cause, done, found, right, level)


def _base(subject: Subject, a: Attention) -> float | None:
    """The base, as claimed, as raised to a power in the call, or as an attribute."""
    queries = (node for node, _ in path(a.query_node))
    # Back from the tables that queries are multiplied by.
    before = walk(queries, lambda n: [m for m in n.makers if m and not m.depends])
    parts = [part for module in subject.modules for part in module.modules()]
    numbers = [
        subject.claims.rotary_base,
        *(node.args[0] for node in before if node.name == "pow"),
        *(getattr(part, name, None) for part in parts for name in NAMES),
    ]
    return next((float(x) for x in numbers if isinstance(x, int | float) and x > 1), None)


def turns(rows: Tensor) -> Tensor | None:
    """By which angle each pair of channels turns from row to row; ``None`` if by no fixed one."""
    for z in _pairs(rows) if rows.shape[-1] % 2 == 0 and len(rows) > 2 else ():
        step = z[1:] / z[:-1]
        if (step.abs() - 1).abs().max() < 1e-3 and (step - step[:1]).abs().max() < 1e-2:
            return step[0].angle().abs()
    return None


def rises(angle: Tensor | None) -> bool:
    """True if a pair turns further than the one before it, and the first turns by 1."""
    if angle is None or (angle[0] - 1).abs() >= 1e-3:
        return False
    return bool((angle[1:] > 1.01 * angle[:-1] + 1e-6).any())


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


def _first_turn(rows: Tensor, node: Node | None) -> Tensor | None:
    """By how much each pair is turned at the first position; rows are of equal tokens."""
    on_way = [x for _, x in path(node) if x.shape[-1] == rows.shape[-1]]
    for before in on_way[-1:]:
        for z, unturned in zip(_pairs(rows[0]), _pairs(before.flatten(0, -2)), strict=True):
            lengths = unturned.abs() / unturned.norm(dim=-1, keepdim=True)
            off = (lengths - z[0].abs() / z[0].norm()).abs().amax(-1)
            same = unturned[off < 1e-3]  # of the same head, at any position
            is_turned = (z[1].abs() - z[0].abs()).abs().max() < 1e-3 * z.abs().max()
            if is_turned and len(same) and (same - same[0]).abs().max() < 1e-3 * same.abs().max():
                return (z[0] / same[0]).sgn()
    return None
