"""What multiplies the values: one softmax over the keys, with a mask that closes."""

import math
from collections.abc import Iterator
from itertools import permutations, product

from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import Results, path, projected, where, width_before
from attnbook.doctor.tape.trace import (
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
BOUNDS = ("clamp", "clamp_min", "maximum", "abs")
"""They keep a divisor from being small, as in mLSTM."""
AXES = {"queries": 2, "heads": 1, "batch": 0}
"""Over which a softmax may run by mistake, in weights of (batch, heads, queries, keys)."""


def weights(subject: Subject) -> Results:
    """What multiplies the values sums to one over the keys."""
    yield from _softmax_once(subject)
    yield from _no_softmax(subject)
    yield from _over_one(subject)
    yield from _divided(subject)
    if not locate.attentions(subject):
        yield NotJudged("weights", "no attention seen")
    for a in locate.attentions(subject):
        if a.softmax_node.name == "exp" and not a.score_node.between:
            continue  # features of a kernel, not weights: they are of tokens × features
        with_weight = a.weights.isfinite().all(-1) & (a.weights != 0).any(-1)
        sums = a.weights.sum(-1)[with_weight]
        mistake = "" if not len(sums) or _ones(sums) else _mistake(subject, a, sums)
        if mistake:
            done = "observed what multiplies the values" + where(a)
            lowest, highest = float(sums.min()), float(sums.max())
            found = f"their sums over the keys are {lowest:.3g} to {highest:.3g}"
            axis = mistake.removeprefix("softmax over the ")
            found += f"; over the {axis} they are 1" if axis in AXES else ""
            yield finding(mistake, done, found, "each query's weights sum to 1 over the keys")
            return


def _mistake(subject: Subject, a: Attention, sums: Tensor) -> str:
    """The mistake that gives these weights; nothing, if there are designs that give them."""
    by_hand = a.softmax_node.name == "exp"
    soft = a.weights if by_hand else a.softmax_node.outputs[0]
    axis = -1 if by_hand else int(a.softmax_node.args[1]) % soft.dim()
    if _ones(a.softmax.sum(-1)):
        return _after_softmax(subject, a)
    n_keys, n = a.weights.shape[-1], subject.n_sequences
    if n_keys != soft.shape[axis] and _ones(sums * soft.shape[axis] / n_keys):
        return "heads not concatenated"
    by_axis = a.weights.unflatten(0, (1 if len(a.weights) % n else n, -1))
    for name, at in AXES.items():
        if by_axis.shape[at] > 1 and _ones(by_axis.sum(at)):
            transposed = name == "queries" and axis == soft.dim() - 1
            return "weights transposed" if transposed else f"softmax over the {name}"
    return "" if by_hand and _by_design(a, sums) else "weights do not sum to one"


def _by_design(a: Attention, sums: Tensor) -> bool:
    """True if there is a sink, or the sum comes at the end, as in flash attention by chunks."""
    less = (sums <= 1 + 1e-3) & (sums >= 0)
    return bool(less.all()) or _normalised(a.context_node, ("add", "add_", "stack", "cat", "sum"))


def _after_softmax(subject: Subject, a: Attention) -> str:
    """The mistake after a softmax that was right; nothing, if there are designs that do it."""
    ratio = (a.weights / a.softmax)[a.softmax > 1e-6]
    if ratio.numel() and ratio.std() < 1e-4 * ratio.abs().mean():
        return "scaled after the softmax"
    if ((ratio.abs() < 1e-6) | ((ratio - 1).abs() < 1e-4)).all():
        return "mask after the softmax"
    added = (a.weights - a.softmax).unflatten(0, (subject.n_sequences, -1))
    a_bias = subject.n_sequences > 1 and bool((added - added[:1]).abs().max() < 1e-5)
    return "weights do not sum to one" if a_bias else ""


def _ones(sums: Tensor) -> bool:
    """True if all that are numbers are one: a mask can leave nothing to sum."""
    real = sums[sums.isfinite()]
    return len(real) > 0 and bool((real - 1).abs().max() < 1e-3)


def _softmax_once(subject: Subject) -> Results:
    """No softmax is given what another one gave."""
    for node in locate.trace_of(subject).of(*SOFTMAX):
        first = back(node.makers[0], (*MOVES, *ON_WEIGHTS), SOFTMAX)
        score = first and back(first.makers[0], (*MOVES, *ON_LOGITS), PRODUCTS)
        if score is not None and score.between:
            done = "observed what each softmax is given" + where(node)
            yield finding("softmax twice", done, "weights, which another softmax gave", "logits")
            return


def _over_one(subject: Subject) -> Results:
    """No softmax is over an axis of one, where a sum over the tokens follows."""
    n = subject.n_tokens
    for node in locate.trace_of(subject).of(*SOFTMAX):
        ones, axis = node.outputs[0], int(node.args[1])
        if n == 1 or not node.depends or ones.shape[axis] > 1 or n not in ones.shape[1:]:
            continue
        later = walk(node.users, lambda n: n.users if n.name in (*MOVES, *ON_WEIGHTS) else [])
        sums = (user for user in later if user.name in ("sum", *PRODUCTS))
        if any(n not in user.outputs[0].shape[1:] for user in sums):
            found = f"it is over axis {axis} of {list(ones.shape)}: all weights are 1"
            done, right = "observed the softmax" + where(node), "it is over the tokens"
            yield finding("softmax over an axis of one", done, found, right)
            return


def _no_softmax(subject: Subject) -> Results:
    """Queries times keys, by a number, do not multiply the values."""
    for score in locate.trace_of(subject).of(*PRODUCTS):
        for context, _ in ahead(score, (*MOVES, *ON_WEIGHTS)) if score.between else ():
            number = _ratio(score, context) if context.between else None
            if number is None or not _of_tokens(subject, score) or _normalised(context):
                continue
            widths = factors(score)[0].shape[-1], width_before(score.makers[-2])
            roots = [width**-0.5 for width in widths if width]
            scaled = any(math.isclose(number, root, rel_tol=1e-3) for root in roots)
            meant = scaled or subject.claims.scale is not None  # else a linear attention, maybe
            level: Level = "error" if meant else "warning"
            done = "observed what multiplies the values" + where(score)
            found = f"{number:.4g} × query · key"
            right = "the softmax of that" + ("" if meant else ", if it is no linear attention")
            yield finding("no softmax", done, found, right, level)
            return


def _ratio(score: Node, context: Node) -> float | None:
    """The number by which a product was multiplied before it became a factor of the next one."""
    products = score.outputs[0]
    for weights, layout in product(factors(context), (products, products.mT)):
        if weights.numel() == products.numel():
            open_ = (weights != 0) & (weights > -1e3)
            ratio = (weights / layout.reshape(weights.shape))[open_].double()
            if ratio.numel() > 3 and bool((ratio - ratio[0]).abs().max() < 1e-4 * ratio[0].abs()):
                return float(ratio[0])
    return None


def _of_tokens(subject: Subject, score: Node) -> bool:
    """True if a product is of two projections along their widths: it is tokens × tokens."""
    made = [projected(side) for side in score.makers[-2:]]
    if any(node is not None and node.between for node in made):
        return False  # of weights, or of a kernel's sums
    if any(n.name.rstrip("_") in FEATURES for side in score.makers[-2:] for n, _ in path(side)):
        return False
    inputs = subject.fresh(0)
    nodes = subject.trace(subject.replaced(inputs, subject.target, 0, 0)).nodes
    if len(nodes) <= score.index or nodes[score.index].name != score.name:
        return False
    before, after = factors(score)[0], factors(nodes[score.index])[0]
    return before.shape == after.shape and not bool((before != after).any(-1).all())


def _normalised(context: Node, through: tuple[str, ...] = ()) -> bool:
    """True if what the values give is divided by something, or normed, right away."""
    later = walk(context.users, lambda n: n.users if n.name in (*MOVES, "mul", *through) else [])
    return any(user.name.rstrip("_") in NORMALISE for user in later)


def _divided(subject: Subject) -> Results:
    """A linear attention that divides by a sum gives the value of tokens that are all equal."""
    if subject.n_tokens in (1, subject.n_sequences):
        return
    nodes = subject.trace(locate.constant(subject)).nodes
    summed: set[int] = set()
    for node in nodes:
        after_sum = any(m is not None and m.index in summed for m in node.makers)
        if node.depends and (node.name in SUMS or node.between or after_sum):
            summed.add(node.index)
        sides = _quotient(node)
        if not sides or not summed.issuperset(side.index for side in sides):
            continue
        under = walk(sides[1:], lambda n: n.makers)
        if any(m is sides[0] or m.name.rstrip("_") in BOUNDS for m in under):
            continue  # x / x.sum() is a norm, or a softmax by hand
        value = node.outputs[0]
        differs = value.shape == sides[0].outputs[0].shape and not _same(subject, value)
        if differs and all(_same(subject, x) for x in _not_summed(sides, summed)):
            done = "called it with equal tokens" + where(node)
            found = "what is divided by the sum of the weights depends on the position"
            right = "the value, at each position: weights sum to 1"
            yield finding("weights do not sum to one", done, found, right)
            return


def _not_summed(sides: list[Node], summed: set[int]) -> Iterator[Tensor]:
    """All inputs that are no sums: positions, or a table of decay, make them differ by token."""
    for node in walk(sides, lambda n: n.makers):
        for maker, x in node.inputs if node.depends else ():
            if maker is None or maker.index not in summed:
                yield x


def _quotient(node: Node) -> list[Node]:
    """What is divided, and what divides it: x / y, or x * (1 / y); else nothing."""
    kind, makers = node.name.rstrip("_"), [m for m in node.makers if m is not None]
    for over, under in permutations(makers, 2) if kind == "mul" else ():
        if back(under, (*MOVES, "mul"), ("reciprocal",)) is not None:
            return [over, under]
    return makers if kind == "div" and len(makers) == 2 else []


def _same(subject: Subject, x: Tensor) -> bool:
    """True if a tensor is the same for all tokens."""
    n = subject.n_tokens
    x = x if x.is_floating_point() or x.is_complex() else x.float()
    x = x.unflatten(0, (-1, n)) if x.dim() and len(x) == subject.n_sequences * n else x
    by_token = [x.movedim(axis, 0) for axis, size in enumerate(x.shape) if size == n and x.numel()]
    return all(bool((y - y[:1]).abs().max() <= 1e-4 * y.abs().max()) for y in by_token)


def _against_claim(subject: Subject) -> Results:
    """What is claimed not to be causal has no causal mask that it was not given."""
    n, claimed = subject.n_tokens, subject.claims.causal is False
    if not claimed or subject.kind == "encoder-decoder" or locate.inside(subject) != "causal":
        return
    arguments = [x for name, x in subject.inputs.items() if name not in subject.sources]
    shapes = [x.shape for x in arguments if isinstance(x, Tensor) and x.dim() > 1]
    if n < 3 or any(shape[-1] == shape[-2] for shape in shapes):
        return
    inputs = subject.fresh(0)
    calls = inputs, subject.replaced(inputs, subject.target, 0, n - 1)
    earlier = [subject.by_token(subject.run(call))[:, : n - 1] for call in calls]
    # Order may be reversed between layers, so that tokens do learn of later ones.
    if earlier[0].equal(earlier[1]):
        done = "observed the weights" + where(locate.own(subject)[0])
        found, right = "no token attends to a later one", "some do: causal=False is claimed"
        yield finding("causal against the claim", done, found, right)


def masks(subject: Subject) -> Results:
    """A mask that is there closes: it is not one more number among the logits."""
    yield from _against_claim(subject)
    for a in locate.own(subject) if subject.n_tokens > 2 else ():
        if locate.pattern(locate.support(a)) == "strictly earlier":
            done, found = "observed the weights" + where(a), "tokens attend to earlier ones only"
            right = "to themselves, too, unless it is one of two streams"
            yield finding("a token does not attend to itself", done, found, right, "warning")
            break
    for a in locate.own(subject):
        if a.logits is None or locate.pattern(locate.support(a)) != "all":
            continue
        cause = locate.weak_mask(subject, a)
        if cause:
            done = "compared the logits of later tokens with the products" + where(a)
            found = "they differ in a way that a mask makes, and still get weight"
            yield finding(cause, done, found, "-inf, and no weight")
            return
