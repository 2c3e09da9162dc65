"""What multiplies the values: one softmax over the keys, with a mask that closes."""

import math

from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, heads_in, path, where, width_before
from attnbook.doctor.report import Level
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import (
    MOVES,
    ON_LOGITS,
    ON_WEIGHTS,
    PRODUCTS,
    SOFTMAX,
    Attention,
    Node,
    ahead,
    back,
    factors,
    walk,
)

FEATURES = {"elu", "exp", "relu", "softplus", "sigmoid", "silu", "gelu", "tanh", "pow", *SOFTMAX}
"""On the way to queries and keys: a linear attention with a feature map, or norms."""
SUMS = ("sum", "cumsum", "mean")
NORMALISE = ("div", "native_layer_norm", "native_group_norm", "_fused_rms_norm", "pow", "mean")


def weights(subject: Subject) -> Results:
    """What multiplies the values sums to one over the keys."""
    yield from _softmax_once(subject)
    yield from _no_softmax(subject)
    yield from _over_one(subject)
    yield from _divided(subject)
    for a in locate.attentions(subject):
        sums = a.weights.sum(-1)
        if a.softmax_node.name == "exp" and not a.score_node.between:
            continue  # features of a kernel, not weights: they are of tokens × features
        real = a.weights.isfinite().all(-1)
        some = real & (a.weights != 0).any(-1)
        if not some.any() or (sums[some] - 1).abs().max() < 1e-3:
            continue
        cause, found = _wrong_sums(subject, a, sums[some])
        if cause:
            done = "observed what multiplies the values" + where(a)
            right = "each query's weights sum to 1 over the keys"
            yield finding(cause, done, found, right)
            return


def _divided(subject: Subject) -> Results:
    """A linear attention that divides by a sum gives the value of tokens that are all equal."""
    n = subject.n_tokens
    trace = subject.trace(locate.constant(subject))
    summed: set[int] = set()
    for node in trace.nodes:
        before = [m for m in node.makers if m is not None]
        if node.depends and (
            node.name in SUMS or node.between or summed & {m.index for m in before}
        ):
            summed.add(node.index)
        sides = _quotient(node, before[:2])
        if len(sides) < 2 or n in (1, subject.n_sequences):
            continue
        over, under = (list(walk([m], lambda n: n.makers)) for m in sides)
        both = {m.index for m in over} & {m.index for m in under}
        own = sides[0].index in {m.index for m in under}  # a norm, or a softmax by hand
        if own or not all(m.index in summed for m in sides):
            continue
        made = [m for m in (*over, *under) if m.depends]
        if not any(trace.nodes[i].depends for i in both) or any(map(_bounded, under)):
            continue
        if not all(_same(subject, m.outputs[0]) for m in made if m.index not in summed):
            continue  # they have positions
        if any(m.name in ON_WEIGHTS and _counts(subject, m) for m in made if m.index in summed):
            continue  # older ones fade
        gave = node.outputs[0]
        if gave.shape != sides[0].outputs[0].shape or _same(subject, gave):
            continue
        done = "called it with equal tokens" + locate.in_module(node).replace(",", "")
        found = "what is divided by the sum of the weights depends on the position"
        right = "the value, at each position: weights sum to 1"
        yield finding("weights do not sum to one", done, found, right)
        return


def _quotient(node: Node, sides: list[Node]) -> list[Node]:
    """What is divided, and by what, if an operation divides: x / y, or x * (1 / y)."""
    if node.name.rstrip("_") == "div" or len(sides) < 2:
        return sides if node.name.rstrip("_") == "div" else []
    for one, other in (sides, sides[::-1]) if node.name.rstrip("_") == "mul" else ():
        inverse = back(other, (*MOVES, "mul"), ("reciprocal",))
        if inverse is not None and inverse.makers[0] is not None:
            return [one, inverse.makers[0]]
    return []


def _same(subject: Subject, x: Tensor) -> bool:
    """Whether all tokens have the same."""
    n, rows = subject.n_tokens, subject.n_sequences * subject.n_tokens
    x = x if x.is_floating_point() or x.is_complex() else x.float()
    x = x.unflatten(0, (-1, n)) if x.dim() and len(x) == rows else x
    parts = [x.movedim(axis, 0) for axis, size in enumerate(x.shape) if size == n and x.numel()]
    return all(bool((y - y[:1]).abs().max() < 1e-4 * y.abs().max()) for y in parts)


def _counts(subject: Subject, node: Node) -> bool:
    """Whether an operation is given a table with a row for each token."""
    tables = (x for m, x in node.inputs if not (m and m.depends) and subject.n_tokens in x.shape)
    return any(not _same(subject, x) for x in tables)


def _bounded(node: Node) -> bool:
    """Whether it keeps a divisor from being small."""
    return node.name.rstrip("_") in ("clamp", "clamp_min", "maximum", "abs")


def _softmax_once(subject: Subject) -> Results:
    """No softmax is given what another one gave."""
    for node in locate.trace_of(subject).of(*SOFTMAX):
        first = back(node.inputs[0][0], (*MOVES, *ON_WEIGHTS), SOFTMAX)
        score = first and back(first.inputs[0][0], (*MOVES, *ON_LOGITS), PRODUCTS)
        if score is not None and score.between:
            done = "observed what each softmax is given" + locate.in_module(node).replace(",", "")
            found = "weights, which another softmax gave"
            yield finding("softmax twice", done, found, "logits")
            return


def _over_one(subject: Subject) -> Results:
    """No softmax is over an axis of one, and sums what it gives over the tokens."""
    n = subject.n_tokens
    for node in locate.trace_of(subject).of(*SOFTMAX) if n > 1 else ():
        soft = node.outputs[0]
        if not node.depends or soft.shape[int(node.args[1])] > 1 or n not in soft.shape[1:]:
            continue
        for user in walk(node.users, lambda n: n.users if n.name in (*MOVES, *ON_WEIGHTS) else []):
            given = [tuple(x.shape) for _, x in user.inputs]
            sums = user.name == "sum" and n not in user.outputs[0].shape[1:]
            if sums or (user.name in PRODUCTS and (n, 1) in [(s[-1], s[-2]) for s in given]):
                done = "observed the softmax" + locate.in_module(node)
                found = f"it is over axis {node.args[1]} of {list(soft.shape)}: all weights are 1"
                cause = "softmax over an axis of one"
                yield finding(cause, done, found, "it is over the tokens")
                return


def _no_softmax(subject: Subject) -> Results:
    """Queries times keys, by a number, multiply the values."""
    trace = locate.trace_of(subject)
    for score in trace.of(*PRODUCTS):
        for context, used in ahead(score, (*MOVES, *ON_WEIGHTS)) if score.between else ():
            number = _proportional(score, context, used) if context.between else None
            if number is None or not _of_tokens(subject, score) or _normalised(context):
                continue
            widths = factors(score)[0].shape[-1], width_before(score.inputs[-2][0])
            roots = [width**-0.5 for width in widths if width]
            meant = subject.claims.scale is not None or any(
                math.isclose(number, root, rel_tol=1e-3) for root in roots
            )
            level: Level = "error" if meant else "warning"
            done = "observed what multiplies the values"
            found, right = f"{number:.4g} × query · key", "the softmax of that"
            right += "" if meant else ", if it is no linear attention"
            done += locate.in_module(score).replace(",", "")
            yield finding("no softmax", done, found, right, level)
            return


def _proportional(score: Node, context: Node, used: Node) -> float | None:
    """By which number a product was multiplied where it is one side of the next product."""
    side = next((i for i, (n, _) in enumerate(context.inputs[-2:]) if n is used), None)
    if side is None:
        return None
    weights, products = factors(context)[side], score.outputs[0]
    if weights.numel() != products.numel():
        return None
    open_ = (weights != 0) & (weights > -1e3)
    for given in (products.reshape(weights.shape), products.mT.reshape(weights.shape)):
        ratio = (weights / given)[open_].double()
        if ratio.numel() > 3 and bool((ratio - ratio[0]).abs().max() < 1e-4 * ratio[0].abs()):
            return float(ratio[0])
    return None


def _of_tokens(subject: Subject, score: Node) -> bool:
    """Whether a product is of projections, over their widths: tokens × tokens."""
    for node, _ in score.inputs[-2:]:
        names = {n.name.rstrip("_") for n, _ in path(node)}
        if names & FEATURES:
            return False
    inputs = subject.fresh(0)
    other = subject.trace(subject.replaced(inputs, subject.target, 0, 0))
    if len(other.nodes) <= score.index or other.nodes[score.index].name != score.name:
        return False
    one, two = factors(score)[0], factors(other.nodes[score.index])[0]
    return one.shape == two.shape and not bool((one != two).any(-1).all())


def _normalised(context: Node, through: tuple[str, ...] = ()) -> bool:
    """Whether what the values give is divided by something, or normed, right away."""
    later = walk(context.users, lambda n: n.users if n.name in (*MOVES, "mul", *through) else [])
    return any(user.name.rstrip("_") in NORMALISE for user in later)


def _wrong_sums(subject: Subject, a: Attention, sums: Tensor) -> tuple[str, str]:
    over = f"their sums over the keys are {float(sums.min()):.3g} to {float(sums.max()):.3g}"
    node = a.softmax_node
    by_hand = node.name == "exp"
    soft = a.weights if by_hand else node.outputs[0]
    axis = -1 if by_hand else int(node.args[1]) % soft.dim()
    keys = soft.shape[axis]
    if a.weights.shape[-1] != keys and (sums * keys / a.weights.shape[-1] - 1).abs().max() < 1e-3:
        return "heads not concatenated", over
    if (a.softmax.sum(-1) - 1).abs().max() < 1e-3:  # the softmax is right: what came after it?
        ratio = (a.weights / a.softmax)[a.softmax > 1e-6]
        if ratio.numel() and ratio.std() < 1e-4 * ratio.abs().mean():
            if abs(float(ratio.mean()) - 1) > 1e-3:
                return "scaled after the softmax", over
        elif ((ratio.abs() < 1e-6) | ((ratio - 1).abs() < 1e-4)).all():
            return "mask after the softmax", over
        added = (a.weights - a.softmax).unflatten(0, (subject.n_sequences, -1))
        alike = subject.n_sequences > 1 and bool((added - added[:1]).abs().max() < 1e-5)
        return (
            ("weights do not sum to one", over + "; a bias is added to them") if alike else ("", "")
        )
    if _ones(a.weights.sum(-2)) and a.weights.shape[-1] > 1:
        last = not by_hand and axis == soft.dim() - 1
        cause = "weights transposed" if last else "softmax over the queries"
        return cause, over + "; over the queries they are 1"
    if _ones(soft.sum(axis)) and soft.dim() >= 3:
        found = over + f"; over axis {axis} of {list(soft.shape)} they are 1"
        if axis == 0 and (soft.dim() == 4 or len(soft) == subject.n_sequences):
            return "softmax over the batch", found
        of_heads = keys == heads_in(subject, a) != a.weights.shape[-2]
        if soft.dim() > 3 and (axis in (0, 1) or of_heads):
            return "softmax over the heads", found
        return "softmax over the queries", found
    if by_hand and bool(((sums <= 1 + 1e-3) & (sums >= 0)).all()):
        return "", ""  # a sink, or softmax plus one
    if by_hand and _normalised(a.context_node, ("add", "add_", "stack", "cat", "sum")):
        return "", ""  # divided at the end, as in flash attention, chunk by chunk
    return "weights do not sum to one", over


def _ones(sums: Tensor) -> bool:
    """Whether all are one that are numbers: a mask can leave nothing to sum."""
    real = sums[sums.isfinite()]
    return len(real) > 0 and bool((real - 1).abs().max() < 1e-3)


def _open(subject: Subject) -> Results:
    """What is claimed not to be causal has no causal mask that it was not given."""
    given = (x for n, x in subject.inputs.items() if n not in subject.sources)
    if any(isinstance(x, Tensor) and x.dim() > 1 and x.shape[-1] == x.shape[-2] for x in given):
        return
    claimed = subject.claims.causal is False and subject.kind != "encoder-decoder"
    if not claimed or subject.n_tokens < 3 or locate.inside(subject) != "causal":
        return
    n, inputs = subject.n_tokens, subject.fresh(0)
    other = subject.replaced(inputs, subject.target, 0, n - 1)
    pairs = zip(subject.trace(inputs).attentions, subject.trace(other).attentions, strict=False)
    moved = [(a.query, b.query) for a, b in pairs if a.query.shape[1] == n]
    if subject.kind != "pooled":
        moved.append((subject.by_token(subject.run(inputs)), subject.by_token(subject.run(other))))
    if not any((x[:, : n - 1] != y[:, : n - 1]).any() for x, y in moved):  # by no other way
        done = "observed the weights" + where(locate.own(subject)[0])
        found, right = "no token attends to a later one", "some do: causal=False is claimed"
        yield finding("causal against the claim", done, found, right)


def masks(subject: Subject) -> Results:
    """A mask that is there closes: it is not one more number among the logits."""
    yield from _open(subject)
    for a in locate.own(subject):
        if a.logits is None or locate.pattern(locate.support(a)) != "all":
            continue
        cause = locate.weak_mask(subject, a)
        if cause:
            done = "compared the logits of later tokens with the products" + where(a)
            found = "they differ in a way that a mask makes, and still get weight"
            yield finding(cause, done, found, "-inf, and no weight")
            return
