"""The number by which the products of queries and keys are multiplied."""

import math

from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, heads_in, path, where, width_before
from attnbook.doctor.report import NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import (
    MOVES,
    PRODUCTS,
    Attention,
    Node,
    between,
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
        numbers = scalars(subject, a)
        if numbers is None:
            continue
        seen = True
        factor, d = math.prod(numbers), a.query.shape[-1]
        right = d**-0.5 if claimed is None or isinstance(claimed, str) else float(claimed)
        if math.isclose(factor, right, rel_tol=5e-3):
            yield from _on_values(a)
            continue
        twice = sum(math.isclose(x, d**-0.5, rel_tol=1e-3) for x in numbers) > 1
        cause, *others = ["scaled twice"] if twice else names(factor, subject, a)
        wrong = twice or {cause, *others} <= set(WRONG)
        yield finding(
            "error" if claimed is not None or wrong else "warning",
            "scale",
            cause,
            "compared the logits with the products of queries and keys" + where(a),
            f"the factor is {factor:.4g}",
            f"{right:.4g}" + ("" if claimed is not None else f", 1/sqrt(d_head) for d_head = {d}"),
        )
        return
    if not seen:
        yield NotJudged("scale", "no product of queries and keys with a fixed factor was observed")


def scalars(subject: Subject, a: Attention) -> list[float] | None:
    """The factors on the products of what was projected; ``None`` if they are not fixed."""
    if a.logits is None:
        return None
    if subject.claims.scale is None and any(map(_normed, (a.query_node, a.key_node))):
        return None  # in a cosine, the lengths are gone
    if subject.claims.scale is None and (_unit(a.query) or _unit(a.key)):
        return None
    fitted = locate.slope(subject, a)
    logits = a.softmax_node.inputs[0][0]
    if not fitted or between(logits, a.score_node) & {"tanh", "clamp", "relu"}:
        return None
    left, right = numbers_before(a.query_node), numbers_before(a.key_node)
    after = numbers_before(logits, (a.score_node.name,))
    if left is None or right is None or after is None or not _linear(subject, a, fitted):
        return None
    if a.softmax_node.name == "_safe_softmax" and left and right:
        left = [left[0] * right.pop(0), *left[1:]]  # torch scales both sides by the root
    return [fitted / math.prod(after), *after, *left, *right]


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
            yield finding("error", "scale", "scale on the values", done, found, right)
            return


def _next_factor(node: Node) -> float:
    """The number by which the context is multiplied right away."""
    later = walk(node.users, lambda n: n.users if n.name in MOVES else [])
    user = next((n for n in later if n.name.rstrip("_") in ("mul", "div")), None)
    number, fixed = scalar(user) if user is not None else (None, False)
    return number if number is not None and fixed else 1.0
