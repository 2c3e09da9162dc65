"""The number by which the products of queries and keys are multiplied."""

import math

import torch
from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import (
    Results,
    given,
    heads_in,
    path,
    summed,
    where,
    width_before,
)
from attnbook.doctor.tape.trace import (
    MOVES,
    ON_LOGITS,
    Attention,
    Node,
    back,
    between,
    factors,
    numbers_before,
    scalar,
    walk,
)

NORMS = {"native_layer_norm", "_fused_rms_norm", "rsqrt", "linalg_vector_norm"}
WRONG = {"multiplied by the root", "scale of d_model", "scale of the heads", "scale of the tokens"}
"""No published design has these; no scale at all is T5's, and 1/d_head that of μP."""


def scale(subject: Subject) -> Results:
    """The factor on the products is 1/sqrt(d_head)."""
    claimed, judged = subject.claims.scale, False
    for a in locate.attentions(subject):
        parts = summed(a)
        of_tokens = [part for part in parts if part.between or part is a.score_node]
        d = sum(factors(part)[0].shape[-1] for part in of_tokens)
        right = d**-0.5 if claimed is None or isinstance(claimed, str) else float(claimed)
        numbers = _scalars(subject, a, parts, right)
        if numbers is None:
            continue
        judged = True
        factor = math.prod(numbers)
        with_positions = (d * len(parts) / len(of_tokens)) ** -0.5  # as DeBERTa counts products
        joined = any(n.name == "cat" for n, _ in path(a.query_node))  # cosines and sines of each
        if _near(factor, right, with_positions, *((d / 2) ** -0.5,) * joined):
            yield from _on_values(a)
            continue
        width = width_before(a.query_node) or d
        twice = sum(_near(x, d**-0.5, width**-0.5) for x in numbers) > 1
        mistakes = ["scaled twice"] if twice else _mistakes(subject, a, factor)
        wrong = claimed is not None or twice or WRONG.issuperset(mistakes)
        level: Level = "error" if wrong else "warning"
        done = "compared the logits with the products of queries and keys" + where(a)
        expected = f"{right:.4g}"
        expected += "" if claimed is not None else f", 1/sqrt(d_head) for d_head = {d}"
        yield finding(mistakes[0], done, f"the factor is {factor:.4g}", expected, level)
        return
    if not judged:
        yield NotJudged("scale", "no product of queries and keys with a fixed factor was observed")


def _near(number: float, *others: float) -> bool:
    """True if a number is one of the others."""
    return any(math.isclose(number, x, rel_tol=5e-3) for x in others)


def _mistakes(subject: Subject, a: Attention, factor: float) -> list[str]:
    """The mistakes that give this factor, the likeliest first."""
    d, n_heads = a.query.shape[-1], subject.claims.n_heads or heads_in(subject, a)
    gives = {
        "multiplied by the root": [d**0.5],
        "scale of d_model": [(d * n_heads) ** -0.5, (width_before(a.query_node) or d) ** -0.5],
        "no scale": [1.0],
        "scaled twice": [1 / d],
        # Of two heads it is 2 / sqrt(8), which talking heads that are added have as well.
        "scale of the heads": [n_heads**-0.5] if n_heads > 2 or subject.claims.scale else [],
        "scale of the tokens": [n**-0.5 for n in a.weights.shape[1:]],
    }
    return [name for name, values in gives.items() if _near(factor, *values)] or ["other scale"]


def _scalars(subject: Subject, a: Attention, parts: list[Node], right: float) -> list[float] | None:
    """The factors on the products of what was projected; ``None`` if they are not fixed."""
    sides = (a.query_node, a.query), (a.key_node, a.key)
    if subject.claims.scale is None and any(_normed(*side) for side in sides):
        return None  # in a cosine, the lengths are gone
    logits, fitted = a.softmax_node.makers[0], locate.slope(subject, a)
    if not fitted or between(logits, a.score_node) & {"clamp", "relu"}:
        return None
    of_tokens = [part for part in parts if part.between or part is a.score_node]
    numbers = [_after(part, logits) + _before(a, part) for part in of_tokens]
    if not all(abs(math.prod(x) - math.prod(numbers[0])) < 1e-6 for x in numbers):
        return None
    tanh = back(logits, tuple({*MOVES, *ON_LOGITS} - {"tanh"}), ("tanh",))
    if tanh is not None:  # c * tanh(logits / c), or c * tanh(logits)
        before = _after(a.score_node, tanh.makers[0]) + _before(a, a.score_node)
        return before if _near(math.prod(before), right) else numbers[0]
    if len(parts) > 1:
        return numbers[0]
    hidden = fitted / math.prod(_after(a.score_node, logits))  # as baddbmm's alpha
    return [hidden, *numbers[0]] if _linear(subject, a, fitted) else None


def _normed(node: Node | None, x: Tensor) -> bool:
    """True if a query or key comes out of a norm, or all are as long."""
    lengths = x.norm(dim=-1)
    alike = x.shape[-1] > 1 and bool(lengths.std() < 1e-3 * lengths.mean())
    return alike or any(n.name in NORMS for n, _ in path(node))


def _after(part: Node, end: Node | None) -> list[float]:
    """The numbers that a product is multiplied by; NaN for what is learned."""
    later = {n.index for n in walk(part.users, lambda n: n.users)}
    on_way = walk([end], lambda n: [m for m in n.makers if m is not None and m.index in later])
    numbers = [scalar(n) for n in on_way if n.name.rstrip("_") in ("mul", "div")]
    learned = [math.nan for _, fixed in numbers if not fixed]
    return learned + [x for x, _ in numbers if x is not None]


def _before(a: Attention, part: Node) -> list[float]:
    """The numbers that queries and keys are multiplied by, before or after their projections."""
    left, right = (numbers_before(node) for node in part.makers[-2:])
    if left is None or right is None:
        return [math.nan]
    if a.softmax_node.name == "_safe_softmax" and left and right:
        left = [left[0] * right.pop(0), *left[1:]]  # torch scales both sides by the root
    tokens = given(a.value_node)
    for x in map(given, part.makers[-2:]):
        if x is not None and tokens is not None and x.shape == tokens.shape and not x.equal(tokens):
            ratio = float((x * tokens).sum() / tokens.square().sum())
            left += [ratio] if torch.allclose(x, ratio * tokens, rtol=1e-4, atol=1e-6) else []
    return left + right


def _linear(subject: Subject, a: Attention, fitted: float) -> bool:
    """True if logits are the products by a factor, but for what all sequences are added alike."""
    heads = locate.per_sequence(subject, a)
    if heads is None or a.logits is None:
        return True  # one sequence can't tell
    open_ = (a.logits > -1e3) & a.logits.isfinite()
    scaled = fitted * a.products
    rest, size = (
        (x[heads:] - x[:-heads])[open_[heads:] & open_[:-heads]].abs().mean()
        for x in (a.logits.double() - scaled.double(), scaled.double())
    )
    return bool(rest < 0.005 * size)


def _on_values(a: Attention) -> Results:
    """What the values are multiplied by is not the scale of the logits."""
    later = walk(a.context_node.users, lambda n: n.users if n.name in MOVES else [])
    scaled = (scalar(n) for n in later if n.name.rstrip("_") in ("mul", "div"))
    after, fixed = next(scaled, (None, False))
    for number in (math.prod(numbers_before(a.value_node) or []), after if fixed else None):
        if number and math.isclose(number, a.query.shape[-1] ** -0.5, rel_tol=1e-3):
            done = "observed what the values are multiplied by" + where(a)
            found = f"they are multiplied by {number:.4g}, too"
            yield finding("scale on the values", done, found, "only the logits are scaled")
            return
