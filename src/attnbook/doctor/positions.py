"""Positions: whether they act, and by which formula."""

import math
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attnbook.doctor import locate, rotary
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, heads_in, projected, where
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import Subject, output_of
from attnbook.doctor.trace import PRODUCTS, Attention

LEARNED = r"pos|wpe|relative|rel_bias"
FIXED = r"(^|[._])(pos|pe$|inv_freq|freqs|rope|rotary)"
"""Names of tables of positions, and of the buffers of fixed ones."""
CLOSED = -1e3
"""Logits below this are of a mask."""


def positions(subject: Subject) -> Results:
    """Positions do what is claimed, or what their operations are for."""
    yield from _sinusoids(subject)
    yield from rotary.rounded(subject)
    tables = list(_tables(subject)) if subject.claims.position != "none" else []
    yield from tables or _of_equal_tokens(subject)


def _of_equal_tokens(subject: Subject) -> Results:
    """Equal tokens get logits by their positions, as claimed, or as the operations suggest."""
    trace, claimed = subject.trace(locate.constant(subject)), subject.claims.position
    own = (a for a in trace.attentions if a.weights.shape[-1] == subject.n_tokens)
    first = next(own, None)
    kind = claimed or (_kind(subject, first) if first else None)
    inside = subject.kind in ("pooled", "pictures") and locate.attentions(subject)
    if kind is None:
        yield NotJudged("positions", "what kind they are of", "position=…")
    elif kind == "none" or not (subject.is_self or inside):
        return
    elif claimed is None and first is not None and _has_absolute(subject, first):
        yield NotJudged("positions", "what is added to the tokens", "position=…")
    elif not any(trace.of(*PRODUCTS)):
        yield NotJudged("positions", "no operation was observed: is it for inference alone?")
    elif not locate.has_positions(subject):
        done = "called it with equal tokens" + where(first)
        found, right = "all positions give the same", "outputs that depend on the position"
        yield finding("positions have no effect", done, found, right)
    elif kind in FORMULAS and first is not None and first.logits is not None:
        yield from FORMULAS[kind](subject, first, "called it with equal tokens" + where(first))


def _kind(subject: Subject, a: Attention) -> str | None:
    """The kind of positions that the operations suggest, from an attention of equal tokens."""
    if rotary.is_there(subject, a):
        return "rotary"
    logits = a.logits
    if logits is None or logits.shape[1] != logits.shape[2] or logits.shape[1] < 4:
        return None
    steps = logits[:, -1].diff(dim=-1)
    if not steps.isfinite().all() or steps.abs().max() < 1e-3:
        return None
    # Bloom's bias counts keys alone: it depends on the distance up to a number for each query.
    if min(_along(logits), _not_relative(logits)) < 1e-4:
        is_linear = (steps - steps[:, :1]).abs().max() < 1e-4 * steps.abs().max()
        return "alibi" if is_linear else None
    by_sum = _differ(logits[:, :-1, 1:], logits[:, 1:, :-1]) < 1e-4 * _spread(logits)
    return "relative" if by_sum else None


def _rotary(subject: Subject, a: Attention, done: str) -> Results:
    """Queries and keys are turned, values are not, by the right angles."""
    if _varies(a.value):
        level: Level = "error" if subject.claims.position else "warning"  # RoFormer can do so
        found, right = "values depend on the position", "queries and keys do"
        yield finding("values are rotated", done, found, right, level)
        return
    not_relative = list(_relative(subject, a, done))
    yield from not_relative or rotary.angles(subject, a, done)


def _relative(subject: Subject, a: Attention, done: str) -> Results:
    """Logits of equal tokens depend on the distance alone."""
    assert a.logits is not None
    off = _not_relative(a.logits)
    # What varies more may be positions of the tokens, or a second axis.
    if off > 1e-3 and not (subject.claims.position == "relative" and _bias_is_relative(subject)):
        found = f"logits of the same distance differ by {off:.1%} of their spread"
        right = "logits that depend on the distance alone"
        yield finding("positions not relative", done, found, right)


def _alibi(subject: Subject, a: Attention, done: str) -> Results:
    """The bias falls with the distance, by slopes 2**(-8 * (h + 1) / n_heads)."""
    if not_relative := list(_relative(subject, a, done)):
        yield from not_relative
        return
    assert a.logits is not None
    n_heads = heads_in(subject, a)
    before, last = a.logits[:n_heads, -1, -2:].unbind(-1)
    slopes = last - before
    if min(before.min(), last.min()) < CLOSED:
        return
    if (slopes < 0).any():
        found, right = "far tokens have larger logits", "smaller ones, by slope × distance"
        yield finding("bias rises with distance", done, found, right)
        return
    head = torch.arange(n_heads, device=slopes.device)
    mistakes = {
        "one slope for all heads": slopes[:1].expand(n_heads),
        "slopes begin at one": 2.0 ** (-8 * head / n_heads),
    }
    for cause, wrong in mistakes.items():
        if n_heads > 1 and torch.allclose(slopes, wrong.to(slopes), rtol=1e-3, atol=0):
            found = "slopes " + ", ".join(f"{float(slope):.3g}" for slope in slopes)
            right = "slopes 2**(-8 * (h + 1) / n_heads)"
            level: Level = "error" if subject.claims.position else "warning"
            yield finding(cause, done, found, right, level)
            return


FORMULAS: dict[str, Callable[[Subject, Attention, str], Results]] = {
    "rotary": _rotary,
    "relative": _relative,
    "alibi": _alibi,
}
"""What must hold of an attention of equal tokens, by the kind of positions."""


def pairs(subject: Subject) -> Results:
    """A logit depends on its query, its key and their places, and on no third token."""
    first = next(iter(locate.own(subject)), None)
    added = locate.residual(subject, first) if first else None
    if first is None or first.logits is None or added is None or subject.n_tokens < 4:
        return
    is_later = (first.logits > CLOSED).triu(1)  # tokens between may count, for earlier keys
    if not is_later.any() or added[is_later].abs().max() < 1e-3:
        return
    heads, n = locate.per_sequence(subject, first) or len(first.weights), subject.n_tokens
    for token in (1, n // 2, n - 2):
        trace = subject.trace(subject.replaced(subject.fresh(0), subject.target, 0, token))
        twins = (a for a in trace.attentions if a.softmax_node.index == first.softmax_node.index)
        twin = next(twins, None)
        others = torch.arange(n) != token
        if twin is None or twin.logits is None:
            return
        sides = ((first.query, twin.query), (first.key, twin.key))
        if any((x[:heads] != y[:heads]).any(-1)[:, others].any() for x, y in sides):
            return  # tokens are mixed before, as by a convolution
        off = (first.logits - twin.logits)[:heads]
        off = off - off.diagonal(0, 1, 2)[..., None]  # some take off each row's maximum
        moved = off.abs() > 1e-4 * _spread(first.logits)
        moved &= is_later[:heads] & others & others[:, None]
        if moved.any():
            _, i, j = moved.nonzero()[0].tolist()
            done = f"changed token {token}" + where(first)
            found, right = f"the logit of query {i} and key {j} changed", "it stays the same"
            yield finding("a logit depends on a third token", done, found, right)
            return


def _tables(subject: Subject) -> Results:
    """Tables of positions act, and a learned one has a gradient in a row for each token."""
    tokens, right = f"{subject.n_tokens} tokens", "a row for each token"
    used = {id(x) for node in locate.trace_of(subject).nodes for _, x in node.inputs}
    buffers = [x for m in subject.modules for x in m.named_buffers()]
    idle = [name for name, x in buffers if re.search(FIXED, name) and id(x) in used]
    for name, table, gradient in _gradients(subject):
        rows = int(gradient.squeeze().any(-1).sum())
        if rows == 1 < min(len(table.squeeze()), subject.n_tokens):
            done = f"backpropagated into {name}, called it with {tokens}"
            yield finding("positions have no effect", done, "one row gets a gradient", right)
            return
        if not rows and (subject.claims.position or id(table) in used):
            idle.append(name)
    in_attention = idle and subject.n_tokens > 1 and locate.attentions(subject)
    if in_attention and not locate.has_positions(subject):
        done, found = f"called it with {tokens} that are equal", f"{idle[0]} changes nothing"
        right = "logits or outputs that depend on the position"
        yield finding("positions have no effect", done, found, right)


def _gradients(subject: Subject) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
    """The learned tables of positions, by their names, with their gradients."""
    tables = {
        name: p
        for name, p in subject.parameters.items()
        if re.search(LEARNED, name.lower()) and p.requires_grad and p.squeeze().dim() == 2
    }
    if tables:
        output = output_of(subject.call(subject.fresh(0)), has_labels=subject.has_labels)
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        gradients = torch.autograd.grad(
            (output * noise).sum(), [*tables.values()], allow_unused=True, materialize_grads=True
        )
        yield from zip(tables, tables.values(), gradients, strict=True)


def _has_absolute(subject: Subject, a: Attention) -> bool:
    """True if queries of equal tokens differ before anything turns them."""
    made = projected(a.query_node)
    if made is None or made.between:
        return False
    return _varies(made.outputs[0].reshape(1, -1, made.outputs[0].shape[-1])[:, : subject.n_tokens])


def _varies(x: Tensor) -> bool:
    """True if vectors differ from position to position."""
    return bool((x - x[:, :1]).abs().max() > 1e-4 * x.abs().max())


def _not_relative(logits: Tensor) -> float:
    """How much logits of the same distance differ, up to a number for each query."""
    own = logits.diagonal(0, 1, 2)[..., None]
    if logits.shape[1] != logits.shape[2] or (own < CLOSED).any():
        return _along(logits)
    rest = (logits - own).masked_fill(logits < CLOSED, -torch.inf)
    if _spread(rest) < 1e-4 * _spread(logits):
        return 1.0  # they depend on the query's position alone
    return _along(rest)


def _along(logits: Tensor) -> float:
    """How much logits of the same distance differ, relative to all."""
    return _differ(logits[:, :-1, :-1], logits[:, 1:, 1:]) / max(_spread(logits), 1e-12)


def _differ(x: Tensor, y: Tensor) -> float:
    """How much logits differ at most where both are open."""
    is_open = (x > CLOSED) & (y > CLOSED)
    return float((x - y)[is_open].abs().max()) if is_open.any() else 0.0


def _spread(logits: Tensor) -> float:
    """The largest minus the smallest of the open logits."""
    is_open = logits[logits > CLOSED]
    return float(is_open.max() - is_open.min())


def _bias_is_relative(subject: Subject) -> bool:
    """True if what is added to the logits depends on distances alone, along one or two axes."""
    a = next(iter(locate.own(subject)), None)
    added = locate.residual(subject, a) if a else None
    heads = locate.per_sequence(subject, a) if a else None
    if a is None or a.logits is None or added is None or not heads:
        return False
    bias = added.masked_fill(a.logits < CLOSED, -torch.inf)
    spread, n = _spread(bias[:heads]), bias.shape[-1]
    if not spread or _differ(bias[:heads], bias[heads : 2 * heads]) > 1e-4 * spread:
        return False  # it depends on the tokens
    for rows in (r for r in range(1, n + 1) if n % r == 0):
        x = bias[:heads].view(heads, rows, n // rows, rows, n // rows)
        down = _differ(x[:, :-1, :, :-1], x[:, 1:, :, 1:])
        across = _differ(x[:, :, :-1, :, :-1], x[:, :, 1:, :, 1:])
        if max(down, across) < 1e-3 * spread:
            return True
    return False


def _sinusoids(subject: Subject) -> Results:
    """Added sines and cosines come in pairs of one frequency, and frequencies fall by a factor."""
    for table in _sinusoid_tables(subject):
        angle = _first_block(rotary.turns(table))
        d = table.shape[1] if angle is None else 2 * len(angle)
        fast = torch.empty(0) if angle is None else angle[angle > 1e-5]
        off, factor = _not_relative((table @ table.T)[None]), rotary.falls(angle) or 0.0
        zeros, different = int((table == 0).all(0).sum()), len(fast.unique())
        mistakes = {
            f"products of rows at the same distance differ by {off:.1%}": off > 1e-3,
            f"frequencies fall by {factor:.4g} from pair to pair: 2i counts twice": math.isclose(
                factor, 1e4 ** (-4 / d), rel_tol=0.01
            ),
            "frequencies rise from pair to pair": rotary.rises(angle),
            f"{zeros} of {d} columns are zero in each row": zeros > d // 4,
            f"{different} different frequencies of {len(fast)}": different < len(fast),
        }
        for found in (words for words, is_so in mistakes.items() if is_so):
            done = "looked at the table that is added to the tokens"
            right = f"sin and cos of position × frequency, which falls by {1e4 ** (-2 / d):.4g}"
            yield finding("other sinusoids", done, found, right)
            return


def _sinusoid_tables(subject: Subject) -> Iterator[Tensor]:
    """Tables of sinusoids that are added to the tokens, tokens × width."""
    for node in locate.trace_of(subject).of("add", "add_"):
        for producer, x in node.inputs if node.depends else ():
            table = x.detach().float().squeeze()
            table = table[0] if table.dim() == 3 else table
            if (producer and producer.depends) or table.dim() != 2 or min(table.shape) < 4:
                continue
            sines = torch.arange(len(table), device=table.device).float().sin()[:, None]
            has_sines = ((table - sines).abs().amax(0) < 1e-3).any()
            if table.abs().max() > 1.001 or not (table - table[:1]).any():
                continue  # a mask, say
            # In each column x[t + 1] + x[t - 1] = 2 cos(w) x[t]; not if it is of a grid's axes.
            middle, sides = table[1:-1].double(), (table[2:] + table[:-2]).double()
            twice_cos = (middle * sides).sum(0) / middle.square().sum(0).clamp(min=1e-12)
            is_sinusoidal = bool((sides - twice_cos * middle).abs().max() < 1e-3)
            if is_sinusoidal and (has_sines or subject.claims.position == "sinusoidal"):
                yield table


def _first_block(angle: Tensor | None) -> Tensor | None:
    """The frequencies of the first axis, where each axis of a grid has the same ones."""
    for n_axes in (2, 3, 4):
        if angle is None or len(angle) % n_axes or len(angle) < 2 * n_axes:
            continue
        by_axis = angle.view(n_axes, -1)
        if (by_axis - by_axis[:1]).abs().max() < 1e-5:
            return by_axis[0]
    return angle
