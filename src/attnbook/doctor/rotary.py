"""The angles by which queries and keys are turned, read from what was multiplied."""

import itertools
import math

import torch
from torch import Tensor

from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, heads_in, path, summed, width_before
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import Attention, Node, walk

NAMES = ("base", "theta", "rope_theta", "rope_base", "rotary_base")


def is_there(subject: Subject, a: Attention) -> bool:
    """Whether queries or keys are turned by multiples of angles, or something is named so."""
    seen = {turned(node) for part in summed(a) for node in part.makers[-2:]} - {None}
    if seen:
        return True in seen
    parts = [x for m in subject.modules for x in m.named_modules()]
    words = [word for n, part in parts for word in (n.split(".")[-1], type(part).__name__)]
    return any("rotary" in word.lower() or "rope" in word.lower() for word in words)


def turned(node: Node | None) -> bool | None:
    """Whether something is multiplied by cosines and sines of multiples of angles, on its way.

    Returns:
        ``None`` without such tables, ``False`` if angles are no multiples, as on a grid.
    """
    tables: list[Tensor] = []
    for now, _ in path(node):
        if now.name in ("mul", "mul_"):
            tables += [x for n, x in now.inputs if not (n and n.depends) and x.numel() > 2]
    complex_ = [(x.real, x.imag) for x in tables if x.is_complex()]
    for cos, sin in (*complex_, *itertools.permutations(tables, 2)):
        if cos.shape != sin.shape or cos.is_complex() or cos.std() < 1e-3 or cos.flatten()[0] < 0.5:
            continue
        if (cos.square() + sin.square() - 1).abs().max() > 1e-4:
            continue
        z = torch.complex(cos.double(), sin.double()).squeeze()
        z = z.flatten(0, -3)[0] if z.dim() > 2 else z
        return bool((z[1:] * z[:1] - z[:-1] * z[1:2]).abs().max() < 1e-3)
    return None


def angles(subject: Subject, a: Attention, done: str) -> Results:
    """Angles are base**(-2i/d_head) × position, the same positions for queries and keys."""
    d, width = a.query.shape[-1], width_before(a.query_node)
    one, other = starts(a.query, a.query_node), starts(a.key, a.key_node)
    if one is not None and other is not None and (one - other).abs().max() > 1e-2:
        found = "the first query is turned by another angle than the first key"
        right = "both by position × frequency"
        yield finding("queries turned ahead of keys", done, found, right)
        return
    angle = turns(a.query[0])
    if rises(angle):
        found, right = "frequencies rise from pair to pair", "base**(-2i/d_head): they fall"
        yield finding("other rotary base", done, found, right)
    ratio = falls(angle)
    if angle is None or ratio is None:
        return
    d = 2 * int((angle > 1e-6).sum())  # a part may be turned alone
    d_model = max(width or 0, d * heads_in(subject, a))
    base, seen = base_of(subject, a), ratio ** (-d / 2)
    meant = base or 1e4
    if ratio > 0.999:
        found, right = (
            "all pairs turn by the same angle",
            f"the next by {meant ** (-2 / d):.4g} of it",
        )
        yield finding("other rotary base", done, found, right)
        return
    if math.isclose(meant, seen, rel_tol=0.02):
        return
    if math.isclose(meant ** (d / d_model), seen, rel_tol=0.02):
        perhaps = base is None and math.isclose(seen, 100, rel_tol=0.02)  # 100 may be meant
        found = f"frequencies fall by {ratio:.4g} from pair to pair"
        wanted = f"by {meant ** (-2 / d):.4g}, {meant:g}**(-2/{d})"
        cause = "rotary angles of d_model"
        yield finding(cause, done, found, wanted, "warning" if perhaps else "error")
    elif subject.claims.rotary_base is not None:
        found, wanted = f"the base is {seen:.5g}", f"{meant:g}, as claimed"
        yield finding("other rotary base", done, found, wanted)


def rounded(subject: Subject) -> Results:
    """The angles in tables that are kept are multiples of the first's, far away, too."""
    tables = {
        n: b.squeeze()[:256]
        for m in subject.modules
        for n, b in m.named_buffers()
        if b.squeeze().dim() == 2
    }
    for one, other in itertools.permutations(tables, 2):
        cos, sin = tables[one], tables[other]
        if cos.shape != sin.shape or len(cos) < 32 or cos.dtype != torch.float32:
            continue
        z = torch.complex(cos.double(), sin.double())
        if (z.abs() - 1).abs().max() > 1e-4 or (z[0] - 1).abs().max() > 1e-4:
            continue
        at = torch.arange(len(z), device=z.device)[:, None]
        angle = at * (z[1] / z[0]).angle()
        off = (z / torch.polar(torch.ones_like(angle), angle)).angle().abs()
        # A number of bfloat16 is off by 1/256 at most, one of float32 by next to nothing.
        if off.max() > 1e-3 and bool((off <= angle.abs() / 100 + 1e-4).all()):
            done = f"compared angles in {one}, {other} with multiples of the first"
            found = f"they are off by up to {float(off.max()):.1e}, and by less than 1 % of each"
            right = "angle = position × frequency in float32"
            cause = "angles in half precision"
            yield finding(cause, done, found, right)
            return


def base_of(subject: Subject, a: Attention) -> float | None:
    """The base, as claimed, as raised to a power in the call, or as an attribute."""
    if subject.claims.rotary_base is not None:
        return float(subject.claims.rotary_base)
    queries = (n for n, _ in path(a.query_node))
    # Back from the tables that queries are multiplied by.
    for node in walk(queries, lambda n: [m for m in n.makers if m and not m.depends]):
        if node.name == "pow" and isinstance(node.args[0], int | float):
            return float(node.args[0])
    for module in subject.modules:
        for part in module.modules():
            found = [getattr(part, name, None) for name in NAMES]
            numbers = [float(x) for x in found if isinstance(x, int | float) and x > 1]
            if numbers:
                return numbers[0]
    return None


def turns(rows: Tensor) -> Tensor | None:
    """By which angle each pair of channels turns from row to row; ``None`` if by no fixed one."""
    for z in pairs(rows) if rows.shape[-1] % 2 == 0 and len(rows) > 2 else ():
        step = z[1:] / z[:-1]
        if (step.abs() - 1).abs().max() < 1e-3 and (step - step[:1]).abs().max() < 1e-2:
            return (z[1] / z[0]).angle().abs()
    return None


def rises(angle: Tensor | None) -> bool:
    """Whether a pair turns further than the one before it, of which the first turns by 1."""
    first = angle is not None and bool((angle[0] - 1).abs() < 1e-3)
    return angle is not None and first and bool((angle[1:] > 1.01 * angle[:-1] + 1e-6).any())


def falls(angle: Tensor | None) -> float | None:
    """By which factor angles fall from pair to pair, from 1 on."""
    if angle is None or (angle[0] - 1).abs() > 1e-3:
        return None
    ratios = (angle[1:] / angle[:-1])[angle[1:] > 1e-3]
    if not len(ratios) or (ratios / ratios[0] - 1).abs().max() > 1e-2:
        return None
    return float(ratios[0])


def pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(…, d / 2) complex numbers: of the two halves, and of neighbours."""
    x = rows.double()
    left, right = x.chunk(2, -1)
    return torch.complex(left, right), torch.complex(x[..., 0::2], x[..., 1::2])


def starts(rows: Tensor, node: Node | None) -> Tensor | None:
    """By how much each pair is turned at the first position; rows are of equal tokens."""
    given = [x for _, x in path(node) if x.shape[-1] == rows.shape[-1]]
    if not given:
        return None
    before = given[-1].reshape(-1, rows.shape[-1])
    for z, every in zip(pairs(rows[0]), pairs(before), strict=True):
        if (z[1].abs() - z[0].abs()).abs().max() > 1e-3 * z.abs().max():
            continue
        off = every.abs() / every.norm(dim=-1, keepdim=True) - z[0].abs() / z[0].norm()
        same = every[off.abs().amax(-1) < 1e-3]  # the same head's, at any position
        if len(same) and (same - same[:1]).abs().max() < 1e-3 * same.abs().max():
            return (z[0] / same[0]).sgn()
    return None
