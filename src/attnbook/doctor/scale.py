"""The number by which the products of queries and keys are multiplied."""

import math

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, given, heads_in, path, summed, where, width_before
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import (
    MOVES,
    ON_LOGITS,
    PRODUCTS,
    Attention,
    Node,
    back,
    between,
    factors,
    numbers_before,
    scalar,
    walk,
)

NORMS = ("native_layer_norm", "_fused_rms_norm", "rsqrt", "linalg_vector_norm")
WRONG = ("multiplied by the root", "scale of d_model", "scale of the heads", "scale of the tokens")
"""No published design has these; no scale at all is T5's, and 1/d_head that of μP."""


def scale(subject: Subject) -> Results:
    """The factor on the products is 1/sqrt(d_head)."""
    claimed = subject.claims.scale
    seen = False
    for a in locate.attentions(subject):
        parts = summed(a)
        own = [part for part in parts if part.between or part is a.score_node]
        widths = [factors(part)[0].shape[-1] for part in own]
        d = sum(widths)
        right = d**-0.5 if claimed is None or isinstance(claimed, str) else float(claimed)
        numbers = scalars(subject, a, parts, right)
        if numbers is None:
            continue
        seen = True
        factor = math.prod(numbers)
        also = (d * len(parts) / len(widths)) ** -0.5  # DeBERTa counts products with positions
        if any(math.isclose(factor, x, rel_tol=5e-3) for x in (right, also)):
            yield from _on_values(a)
            continue
        roots = [width**-0.5 for width in (d, width_before(a.query_node)) if width]
        known = [x for x in numbers if any(math.isclose(x, y, rel_tol=1e-3) for y in roots)]
        twice = len(known) > 1
        cause, *others = ["scaled twice"] if twice else names(factor, subject, a)
        wrong = twice or {cause, *others} <= set(WRONG)
        level: Level = "error" if claimed is not None or wrong else "warning"
        done = "compared the logits with the products of queries and keys" + where(a)
        wanted = "" if claimed is not None else f", 1/sqrt(d_head) for d_head = {d}"
        found = f"the factor is {factor:.4g}"
        yield finding(cause, done, found, f"{right:.4g}{wanted}", level)
        return
    if not seen:
        yield NotJudged("scale", "no product of queries and keys with a fixed factor was observed")


def scalars(subject: Subject, a: Attention, parts: list[Node], right: float) -> list[float] | None:
    """The factors on the products of what was projected; ``None`` if they are not fixed."""
    if a.logits is None:
        return None
    if subject.claims.scale is None and any(map(_normed, (a.query_node, a.key_node))):
        return None  # in a cosine, the lengths are gone
    if subject.claims.scale is None and (_unit(a.query) or _unit(a.key)):
        return None
    logits = a.softmax_node.makers[0]
    fitted = locate.slope(subject, a)
    if not fitted or between(logits, a.score_node) & {"clamp", "relu"}:
        return None
    cap = back(logits, tuple({*MOVES, *ON_LOGITS} - {"tanh"}), ("tanh",))
    every = []
    for part in (part for part in parts if part.between or part is a.score_node):
        after, sides = _after(part, logits), _sides(a, part)
        if after is None or sides is None:
            return None
        every.append([*after, *sides])
    if max(map(math.prod, every)) - min(map(math.prod, every)) > 1e-6:
        return None
    if cap is not None:  # c * tanh(logits / c), or c * tanh(logits)
        before = [*(_after(a.score_node, cap.makers[0]) or ()), *(_sides(a, a.score_node) or ())]
        return before if math.isclose(math.prod(before), right, rel_tol=5e-3) else every[0]
    if len(parts) > 1:
        return every[0]
    hidden = fitted / math.prod(_after(a.score_node, logits) or ())
    return [hidden, *every[0]] if _linear(subject, a, fitted) else None


def _after(part: Node, end: Node | None) -> list[float] | None:
    """The numbers that a product is multiplied by."""
    later = {n.index for n in walk(part.users, lambda n: n.users)}
    on_way = walk([end], lambda n: [m for m in n.makers if m is not None and m.index in later])
    found = [scalar(n) for n in on_way if n.name.rstrip("_") in ("mul", "div")]
    return [x for x, _ in found if x is not None] if all(fixed for _, fixed in found) else None


def _sides(a: Attention, part: Node) -> list[float] | None:
    """The numbers that queries and keys are multiplied by, before or after their projections."""
    left, right = (numbers_before(node) for node in part.makers[-2:])
    if left is None or right is None:
        return None
    if a.softmax_node.name == "_safe_softmax" and left and right:
        left = [left[0] * right.pop(0), *left[1:]]  # torch scales both sides by the root
    base = given(a.value_node)
    for x in (given(node) for node in part.makers[-2:]):
        if x is not None and base is not None and x.shape == base.shape and not x.equal(base):
            ratio = float((x * base).sum() / base.square().sum())
            left += [ratio] if torch.allclose(x, ratio * base, rtol=1e-4, atol=1e-6) else []
    return left + right


def _linear(subject: Subject, a: Attention, fitted: float) -> bool:
    """Whether logits are the products by a factor, but for what is added to all sequences alike."""
    heads = locate.per_sequence(subject, a)
    assert a.logits is not None
    if heads is None:
        return True  # one sequence can't tell
    open_ = (a.logits > -1e3) & a.logits.isfinite()
    both = open_[heads:] & open_[:-heads]
    rest = (a.logits - fitted * a.products).double()
    off = (rest[heads:] - rest[:-heads])[both].abs().mean()
    size = (fitted * (a.products[heads:] - a.products[:-heads]))[both].abs().mean()
    return bool(off < 0.005 * size)


def _normed(node: Node | None) -> bool:
    return any(n.name in NORMS for n, _ in path(node) if n.name not in PRODUCTS)


def _unit(x: Tensor) -> bool:
    lengths = x.norm(dim=-1)
    return bool(lengths.std() < 1e-3 * lengths.mean()) and x.shape[-1] > 1


def names(factor: float, subject: Subject, a: Attention) -> list[str]:
    """All the wrong scales that it may be, the likeliest first."""
    d, n_heads = a.query.shape[-1], subject.claims.n_heads or heads_in(subject, a)
    kinds = {
        "multiplied by the root": [d**0.5],
        "scale of d_model": [(d * n_heads) ** -0.5, (width_before(a.query_node) or d) ** -0.5],
        "no scale": [1.0],
        "scaled twice": [1 / d],
        # Of two heads it is 2 / sqrt(8), which talking heads that are added have as well.
        "scale of the heads": [n_heads**-0.5] if n_heads > 2 or subject.claims.scale else [],
        "scale of the tokens": [n**-0.5 for n in a.weights.shape[1:]],
    }
    fits = [
        name
        for name, values in kinds.items()
        if any(math.isclose(factor, value, rel_tol=5e-3) for value in values)
    ]
    return fits or ["other scale"]


def _on_values(a: Attention) -> Results:
    """What the values are multiplied by is not the scale of the logits."""
    root = a.query.shape[-1] ** -0.5
    before = numbers_before(a.value_node) or []
    for number in (math.prod(before), _next_factor(a.context_node)):
        if math.isclose(number, root, rel_tol=1e-3):
            done = "observed what the values are multiplied by" + where(a)
            found = f"they are multiplied by {number:.4g}, too"
            right = "only the logits are scaled"
            yield finding("scale on the values", done, found, right)
            return


def _next_factor(node: Node) -> float:
    """The number by which the context is multiplied right away."""
    later = walk(node.users, lambda n: n.users if n.name in MOVES else [])
    user = next((n for n in later if n.name.rstrip("_") in ("mul", "div")), None)
    number, fixed = scalar(user) if user is not None else (None, False)
    return number if number is not None and fixed else 1.0
