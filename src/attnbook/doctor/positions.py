"""Positions: whether they act, and by which formula."""

import math
import re

import torch
from torch import Tensor

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
    yield from sinusoids(subject)
    yield from rotary.rounded(subject)
    tables = list(_tables(subject)) if subject.claims.position != "none" else []
    if tables:
        yield from tables
        return
    inputs = locate.constant(subject)
    trace = subject.trace(inputs)
    own = (a for a in trace.attentions if a.weights.shape[-1] == subject.n_tokens)
    first = next(own, None)
    claimed: str | None = subject.claims.position
    if claimed is None and first is not None:
        claimed = "rotary" if rotary.is_there(subject, first) else _bias(first)
    if claimed is None:
        yield NotJudged("positions", "what kind they are of", "position=…")
        return
    inside = subject.kind in ("pooled", "pictures") and locate.attentions(subject)
    if claimed == "none" or not (subject.is_self or inside):
        return
    if subject.claims.position is None and first is not None and _absolute(subject, first):
        yield NotJudged("positions", "what is added to the tokens", "position=…")
        return
    if not any(trace.of(*PRODUCTS)):
        yield NotJudged("positions", "no operation was observed: is it for inference alone?")
        return
    done = "called it with equal tokens" + where(first)
    if not locate.has_positions(subject):
        found = "all positions give the same"
        right = "logits or outputs that depend on the position"
        yield finding("positions have no effect", done, found, right)
        return
    if claimed not in ("rotary", "alibi", "relative") or first is None or first.logits is None:
        return
    if claimed == "rotary" and _varies(first.value):
        level: Level = "error" if subject.claims.position else "warning"  # RoFormer can do so
        found, right = "values depend on the position", "queries and keys do"
        yield finding("values are rotated", done, found, right, level)
        return
    off = _not_relative(first.logits)
    if off > 1e-3 and claimed == "relative" and _bias_is_relative(subject):
        return  # what varies more are positions of the tokens, or a second axis
    if off > 1e-3:
        found = f"logits of the same distance differ by {off:.1%} of their spread"
        right = "logits that depend on the distance alone"
        yield finding("positions not relative", done, found, right)
    elif claimed == "alibi":
        yield from _alibi(subject, first, done)
    elif claimed == "rotary":
        yield from rotary.angles(subject, first, done)


def pairs(subject: Subject) -> Results:
    """A logit depends on its query, its key and their places, and on no third token."""
    first = next(iter(locate.own(subject)), None)
    rest = locate.residual(subject, first) if first else None
    if first is None or first.logits is None or rest is None or subject.n_tokens < 4:
        return
    open_ = (first.logits > CLOSED).triu(1)  # what is between may count, for earlier keys
    if not open_.any() or rest[open_].abs().max() < 1e-3:
        return
    heads, n = locate.per_sequence(subject, first) or len(first.weights), subject.n_tokens
    for token in (1, n // 2, n - 2):
        other = subject.trace(subject.replaced(subject.fresh(0), subject.target, 0, token))
        twins = (a for a in other.attentions if a.softmax_node.index == first.softmax_node.index)
        twin = next(twins, None)
        if twin is None or twin.logits is None:
            return
        others = torch.arange(n) != token
        mixed = (
            (a[:heads] != b[:heads]).any(-1)[:, others].any()
            for a, b in ((first.query, twin.query), (first.key, twin.key))
        )
        if any(mixed):
            return  # tokens are mixed before, as by a convolution
        off = (first.logits - twin.logits)[:heads]
        off = off - off.diagonal(0, 1, 2)[..., None]  # a row's maximum is taken off by some
        moved = off.abs() > 1e-4 * _spread(first.logits)
        moved &= open_[:heads] & others & others[:, None]
        if moved.any():
            _, i, j = moved.nonzero()[0].tolist()
            done = f"changed token {token}" + where(first)
            found, right = f"the logit of query {i} and key {j} changed", "it stays the same"
            cause = "a logit depends on a third token"
            yield finding(cause, done, found, right)
            return


def _bias(a: Attention) -> str | None:
    """What is added to the logits of equal tokens: the distance, or something of i + j."""
    x = a.logits
    if x is None or x.shape[1] != x.shape[2] or x.shape[1] < 4:
        return None
    steps, by_distance = x[:, -1].diff(dim=-1), _differ(x[:, :-1, :-1], x[:, 1:, 1:]) < 1e-4
    by_distance = by_distance or _not_relative(x) < 1e-4  # Bloom's counts keys alone
    if not steps.isfinite().all() or steps.abs().max() < 1e-3:
        return None
    if by_distance and (steps - steps[:, :1]).abs().max() < 1e-4 * steps.abs().max():
        return "alibi"
    by_sum = _differ(x[:, :-1, 1:], x[:, 1:, :-1]) < 1e-4
    return "relative" if by_sum and not by_distance else None


def _tables(subject: Subject) -> Results:
    """Positions that are there act, and of a table as many rows learn as there are tokens."""
    with torch.enable_grad():
        output = output_of(subject.call(subject.fresh(0)), has_labels=subject.has_labels)
        tables = {
            name: p
            for name, p in subject.parameters.items()
            if re.search(LEARNED, name.lower()) and p.requires_grad and p.squeeze().dim() == 2
        }
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        mixed = (output * noise).sum()
        given = torch.autograd.grad(mixed, [*tables.values()], allow_unused=True) if tables else ()
    done, right = f"called it with {subject.n_tokens} tokens", "a row for each token"
    buffers = [x for m in subject.modules for x in m.named_buffers()]
    used = {id(x) for node in locate.trace_of(subject).nodes for _, x in node.inputs}
    without = [n for n, x in buffers if re.search(FIXED, n) and id(x) in used]
    for (name, table), gradient in zip(tables.items(), given, strict=True):
        rows = 0 if gradient is None else int(gradient.squeeze().any(-1).sum())
        without += [name] if (subject.claims.position or id(table) in used) and not rows else []
        if rows == 1 and len(table.squeeze()) > 1 and subject.n_tokens > 1:
            done, found = f"backpropagated into {name}, {done}", "a single row gets a gradient"
            yield finding("positions have no effect", done, found, right)
            return
    alike = without and subject.kind != "loss" and subject.n_tokens > 1
    if alike and locate.attentions(subject) and not locate.has_positions(subject):
        done, found = f"{done} that are equal", f"in spite of {without[0]}, all give the same"
        right = "logits or outputs that depend on the position"
        yield finding("positions have no effect", done, found, right)


def _absolute(subject: Subject, a: Attention) -> bool:
    """Whether queries of equal tokens differ before anything turns them."""
    made = projected(a.query_node)
    if made is None or made.between:
        return False
    rows = made.outputs[0].reshape(-1, made.outputs[0].shape[-1])[: subject.n_tokens]
    return bool((rows - rows[:1]).abs().max() > 1e-4 * rows.abs().max())


def _varies(x: Tensor) -> bool:
    return bool((x - x[:, :1]).abs().max() > 1e-3 * x.abs().max())


def _not_relative(logits: Tensor) -> float:
    """How much logits of the same distance differ, up to what is added to all keys alike."""
    own = logits.diagonal(0, 1, 2)[..., None]
    if logits.shape[1] != logits.shape[2] or (own < CLOSED).any():
        return _differ(logits[:, :-1, :-1], logits[:, 1:, 1:])
    rest = (logits - own).masked_fill(logits < CLOSED, -torch.inf)
    if _spread(rest) < 1e-4 * _spread(logits):
        return 1.0  # they depend on the query's position alone
    return _differ(rest[:, :-1, :-1], rest[:, 1:, 1:])


def _differ(one: Tensor, other: Tensor) -> float:
    """How much logits differ where both are open, relative to all."""
    both = (one > CLOSED) & (other > CLOSED)
    return float((one - other)[both].abs().max()) / max(_spread(one), 1e-12) if both.any() else 0.0


def _bias_is_relative(subject: Subject) -> bool:
    """Whether what is added to the logits depends on the distance alone, along one or two axes."""
    a = next(iter(locate.own(subject)), None)
    rest = locate.residual(subject, a) if a else None
    heads = locate.per_sequence(subject, a) if a else None
    if a is None or a.logits is None or rest is None or not heads:
        return False
    bias = rest[:heads].masked_fill(a.logits[:heads] < CLOSED, torch.nan)
    spread = _spread(bias.nan_to_num(0))
    if not spread or _off(bias, rest[heads : 2 * heads]) > 1e-4 * spread:
        return False  # it depends on the tokens
    n = bias.shape[-1]
    for rows in (r for r in range(1, n + 1) if n % r == 0):
        x = bias.view(heads, rows, n // rows, rows, n // rows)
        down = _off(x[:, :-1, :, :-1], x[:, 1:, :, 1:])
        across = _off(x[:, :, :-1, :, :-1], x[:, :, 1:, :, 1:])
        if max(down, across) < 1e-3 * spread:
            return True
    return False


def _off(x: Tensor, y: Tensor) -> float:
    """The largest difference where both are numbers."""
    return float((x - y).abs().nan_to_num(0).max()) if x.numel() else 0.0


def _spread(logits: Tensor) -> float:
    open_ = logits[logits > CLOSED]
    return float(open_.max() - open_.min())


def _alibi(subject: Subject, a: Attention, done: str) -> Results:
    """The bias falls with the distance, by slopes 2**(-8h/n_heads)."""
    assert a.logits is not None
    n_heads, distance = heads_in(subject, a), a.logits.shape[-1] - 1
    slopes = (a.logits[:n_heads, -1, -1] - a.logits[:n_heads, -1, 0]) / distance
    level: Level = "error" if subject.claims.position else "warning"
    cause, found, right = "", "", "slopes 2**(-8 * (h + 1) / n_heads)"
    if (slopes < 0).any():
        level, cause, found = "error", "bias rises with distance", "far tokens have larger logits"
        right = "smaller ones, by slope × distance"
    elif n_heads > 1 and (slopes - slopes[0]).abs().max() < 1e-4 * slopes.max():
        cause, found = "one slope for all heads", "the same slope in each head"
    elif n_heads > 1:
        shifted = 2.0 ** (-8 * torch.arange(n_heads, device=slopes.device) / n_heads)
        if torch.allclose(slopes, shifted.to(slopes), rtol=1e-3):
            cause, found = "slopes begin at one", "slopes 2**(-8 * h / n_heads), from 1 on"
        ratio, is_power = slopes[1:] / slopes[:-1], n_heads & (n_heads - 1) == 0
        even = is_power and n_heads > 2 and bool((ratio - ratio[0]).abs().max() < 1e-3)
        usual = math.isclose(slopes[0], 2.0 ** (-8 / n_heads), rel_tol=1e-2)
        if subject.claims.position and not cause and even and not usual:
            cause = "other slopes"
            found = f"slopes from {float(slopes[0]):.3g} on, each {float(ratio[0]):.3g} of the last"
    if cause:
        yield finding(cause, done, found, right, level)


def _is_sinusoids(table: Tensor) -> bool:
    """Whether x[t + 1] + x[t - 1] = 2 cos(w) x[t] in each column, by a w of its own."""
    middle, sides = table[1:-1].double(), (table[2:] + table[:-2]).double()
    factor = (middle * sides).sum(0) / middle.square().sum(0).clamp(min=1e-12)
    return bool((sides - factor * middle).abs().max() < 1e-3)


def _first_block(angle: Tensor | None) -> Tensor | None:
    """The frequencies that are repeated as a whole, once for each axis."""
    for parts in (2, 3, 4):
        if angle is None or len(angle) % parts or len(angle) < 2 * parts:
            continue
        blocks = angle.view(parts, -1)
        if (blocks - blocks[:1]).abs().max() < 1e-5:
            return blocks[0]
    return angle


def sinusoids(subject: Subject) -> Results:
    """Sines and cosines of one frequency, in pairs, are added; frequencies fall geometrically."""
    done, claimed = "looked at the table that is added to the tokens", subject.claims.position
    for node in locate.trace_of(subject).of("add", "add_"):
        for producer, table in node.inputs if node.depends else ():
            values = table.detach().float().squeeze()
            values = values[0] if values.dim() == 3 else values
            if (producer and producer.depends) or values.dim() != 2 or min(values.shape) < 4:
                continue
            sines = torch.arange(len(values), device=values.device).float().sin()[:, None]
            equal = (values - sines).abs().amax(0) < 1e-3
            if values.abs().max() > 1.001 or not (equal.any() or claimed == "sinusoidal"):
                continue  # it is no such table
            if not (values - values[:1]).any() or not _is_sinusoids(values):
                continue  # a mask, or sinusoids of a grid's rows and columns
            off, angle = _not_relative((values @ values.T)[None]), rotary.turns(values)
            angle = _first_block(angle)
            fall, d = rotary.falls(angle), values.shape[1]
            d = d if angle is None else 2 * len(angle)
            found = right = ""
            if off > 1e-3:
                found = f"products of rows at the same distance differ by {off:.1%}"
                right = "products that depend on the distance alone"
            elif fall and math.isclose(fall, 1e4 ** (-4 / d), rel_tol=0.01):
                found = f"frequencies fall by {fall:.4g} from pair to pair: 2i counts twice"
                right = f"by {1e4 ** (-2 / d):.4g}"
            elif rotary.rises(angle):
                found, right = "frequencies rise from pair to pair", "they fall"
            elif (still := int((values == 0).all(0).sum())) > d // 4:
                found, right = f"{still} of {d} columns are zero in each row", "one, if d is odd"
            elif angle is not None and len(fast := angle[angle > 1e-5]) > len(fast.unique()):
                found = f"{len(fast.unique())} different frequencies of {len(fast)}"
                right = "a different one in each pair"
            if found:
                yield finding("other sinusoids", done, found, right)
                return
