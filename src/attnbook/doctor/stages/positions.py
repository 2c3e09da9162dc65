"""Positions: whether they act, and by which formula."""

import itertools
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from attnbook.doctor.call.manners import restored
from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate, rotary
from attnbook.doctor.stages.observed import Results, heads_in, projected, where
from attnbook.doctor.tape.trace import PRODUCTS, Attention, Node, walk

TRIED = "called it with equal tokens"
"""What is done to the module, in a finding."""
TABLES = r"(^|[._])(pos|pe$|wpe|rel|rope|rotary|freqs)"
READ = ("embedding", "index", "index_select", "gather", "slice", "select", "add", "add_")
"""Names of tables of positions, and the operations that read rows of them."""
CLOSED = -1e3
"""Logits below this are of a mask."""


def positions(subject: Subject) -> Results:
    """Positions do what is claimed, or what their operations are for."""
    yield from _sinusoids(subject)
    yield from rotary.rounded(subject)
    trace, claimed = subject.trace(locate.constant(subject)), subject.claims.position
    own = [a for a in trace.attentions if a.weights.shape[-1] == subject.n_tokens]
    with_positions = (a for a in own if a.logits is not None and locate.vary(a.logits))
    first = next(with_positions, own[0] if own else None)  # some of Llama 4's layers have none
    kind = claimed or (_kind(subject, first) if first else None)
    inside = subject.kind in ("pooled", "pictures") and locate.attentions(subject)
    is_idle = kind is None and _has_table(subject) and not locate.has_positions(subject)
    if kind is None and not is_idle:
        yield NotJudged("positions", "what kind they are of", "position=…")
    elif kind == "none" or not (subject.is_self or inside):
        return
    elif not any(trace.of(*PRODUCTS)):
        yield NotJudged("positions", "no operation was observed: is it for inference alone?")
    elif not locate.has_positions(subject):
        done = "called it with equal tokens" + where(first)
        found, right = "all positions give the same", "outputs that depend on the position"
        yield finding("positions have no effect", done, found, right)
    elif claimed is None and first is not None and _has_absolute(subject, first):
        yield NotJudged("positions", "what is added to the tokens", "position=…")
    elif kind in FORMULAS and first is not None and first.logits is not None:
        findings = (x for check in FORMULAS[kind] for x in check(subject, first, first.logits))
        yield from itertools.islice(findings, 1)


def base(subject: Subject) -> Results:
    """A base can be judged where queries and keys are turned."""
    trace, claimed = subject.trace(locate.constant(subject)), subject.claims.position
    if claimed not in (None, "rotary") or not any(map(rotary.is_there, trace.attentions)):
        yield NotJudged("rotary base", "no rotation of queries and keys was observed")


def _kind(subject: Subject, a: Attention) -> str | None:
    """The kind of positions that the operations suggest, from an attention of equal tokens."""
    if rotary.is_there(a):
        return "rotary"
    if a.logits is None or a.logits.shape[1] != a.logits.shape[2] or a.logits.shape[1] < 4:
        return None
    steps = a.logits[:, -1].diff(dim=-1)
    size = steps.abs().max()
    is_linear = size > 1e-3 and (steps - steps[:, :1]).abs().max() < 1e-4 * size
    return "alibi" if is_linear and _not_relative(a.logits) < 1e-4 else None


def _values(subject: Subject, a: Attention, _: Tensor) -> Results:
    """Values are not turned."""
    made = projected(a.value_node)
    is_open = (a.weights != 0).any(1)  # windows are filled up with other values
    first = a.value[torch.arange(len(a.value)), is_open.int().argmax(1)]
    value = a.value.where(is_open[..., None], first[:, None])
    if _varies(value) and not (made and _by_place(subject, made)):
        level: Level = "error" if subject.claims.position else "warning"  # RoFormer can do so
        found, right = "values depend on the position", "queries and keys do"
        yield finding("values are rotated", TRIED + where(a), found, right, level)


def _gain(subject: Subject, a: Attention, _: Tensor) -> Results:
    """Nothing that is learned for each channel acts on queries or keys that were turned."""
    learned = _learned(subject, a.query_node) | _learned(subject, a.key_node)
    if not learned:
        return
    generator = torch.Generator().manual_seed(0)
    with restored(subject.module), torch.no_grad():
        for parameter in learned.values():  # gains begin as ones, which leave pairs as they are
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter))
        trace = subject.trace(locate.constant(subject))
    twins = (x for x in trace.attentions if x.softmax_node.index == a.softmax_node.index)
    twin = next(twins, None)
    off = 0.0 if twin is None or twin.logits is None else _not_relative(twin.logits)
    if off > 1e-3:
        level: Level = "error" if subject.claims.position else "warning"  # HunYuan does so
        done = f"gave {', '.join(learned)} random values, and {TRIED}{where(a)}"
        found = f"logits of the same distance differ by {off:.1%} of their spread"
        right = "logits that depend on the distance alone, whatever the gain"
        yield finding("gain after the rotation", done, found, right, level)


def _learned(subject: Subject, node: Node | None) -> dict[str, nn.Parameter]:
    """Parameters by name that a query or key meets after it was turned, one number a channel."""
    names = {p.data_ptr(): n for n, p in subject.parameters.items() if p.numel() > 1}
    met: set[str] = set()

    def onward(now: Node) -> list[Node | None]:
        """What it was made of; nothing if it turns, or projects."""
        fixed = [(n, x) for n, x in now.inputs if not (n and n.depends) and x.numel() > 2]
        ours = {name for n, x in fixed for name in _parameters(n, x, names)}
        if now.name in PRODUCTS or (fixed and not ours):
            return []
        met.update(ours)
        return [n for n in now.makers if n is not None and n.depends]

    list(walk([node], onward))
    return {name: p for name, p in subject.parameters.items() if name in met}


def _parameters(node: Node | None, x: Tensor, names: dict[int, str]) -> set[str]:
    """Names of the parameters that something is, or that it has a number for each number of."""
    tensors = [x, *(y for n in walk([node], lambda n: n.makers) for _, y in n.inputs)]
    same_size = (y.data_ptr() for y in tensors if y.numel() == x.numel())
    return {names[at] for at in same_size if at in names}


def _relative(subject: Subject, a: Attention, logits: Tensor) -> Results:
    """Logits of equal tokens depend on the distance alone."""
    off = _not_relative(logits)
    own = locate.own(subject) if subject.claims.position == "relative" else []
    for bias in (locate.residual(subject, x) for x in own[:1] if off > 1e-3):
        off = off if bias is None else _not_relative(bias)  # tokens may have positions, too
    if off > 1e-3:
        found = f"logits of the same distance differ by {off:.1%} of their spread"
        right = "logits that depend on the distance alone"
        yield finding("positions not relative", TRIED + where(a), found, right)


def _slopes(subject: Subject, a: Attention, logits: Tensor) -> Results:
    """The bias falls with the distance, by slopes 2**(-8 * (h + 1) / n_heads)."""
    n_heads = heads_in(subject, a)
    before, last = logits[:n_heads, -1, -2:].unbind(-1)
    slopes, head = last - before, torch.arange(n_heads).to(logits)
    right = 2.0 ** (-8 * (head + 1) / n_heads)
    formulas = {
        "": right,
        "bias rises with distance": -slopes.abs(),
        "one slope for all heads": slopes[:1].expand(n_heads),
        "slopes begin at one": 2.0 ** (-8 * head / n_heads),
        "other slopes": right * slopes[0] / right[0],  # scaled together with the products
    }
    like = [cause for cause, x in formulas.items() if torch.allclose(slopes, x, rtol=1e-3)]
    is_open, rises = min(before.min(), last.min()) > CLOSED, bool((slopes < 0).all())
    if like and like[0] and is_open and (rises or n_heads > 1):
        found = "slopes " + ", ".join(f"{slope:.3g}" for slope in slopes.tolist())
        wanted = "logits less slope × distance, by slopes 2**(-8 * (h + 1) / n_heads)"
        level: Level = "error" if subject.claims.position or rises else "warning"
        yield finding(like[0], TRIED + where(a), found, wanted, level)


FORMULAS: dict[str, tuple[Callable[[Subject, Attention, Tensor], Results], ...]] = {
    "rotary": (_values, _gain, _relative, rotary.angles),
    "relative": (_relative,),
    "alibi": (_relative, _slopes),
}
"""What must hold of logits of equal tokens, by the kind of positions; what fails first is told."""


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
        if twin is None or twin.logits is None:
            return
        others = torch.arange(n) != token
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


def _has_table(subject: Subject) -> bool:
    """True if the call reads rows of something that is named as a table of positions."""
    named = [x for m in subject.modules for x in (*m.named_parameters(), *m.named_buffers())]
    tables = {
        id(x) for name, x in named if re.search(TABLES, name.lower()) and x.squeeze().dim() == 2
    }
    nodes = locate.trace_of(subject).of(*READ) if locate.attentions(subject) else []
    return any(id(x) in tables for node in nodes for _, x in node.inputs)


def _has_absolute(subject: Subject, a: Attention) -> bool:
    """True if queries of equal tokens differ before anything turns them."""
    made = projected(a.query_node)
    return made is not None and not made.between and _by_place(subject, made)


def _by_place(subject: Subject, made: Node) -> bool:
    """True if what is projected of equal tokens differs."""
    return _varies(made.outputs[0].reshape(1, -1, made.outputs[0].shape[-1])[:, : subject.n_tokens])


def _varies(x: Tensor) -> bool:
    """True if vectors differ from position to position."""
    return bool((x - x[:, :1]).abs().max() > 1e-4 * x.abs().max())


def _not_relative(logits: Tensor) -> float:
    """How much logits of the same distance differ, along one axis, two or three, in all."""
    n = logits.shape[-1]
    if logits.shape[-2] != n:
        return 0.0
    own, spread = logits.diagonal(0, 1, 2)[..., None], max(_spread(logits), 1e-12)
    if not (own < CLOSED).any():  # up to a number for each query, which a softmax takes off
        logits = (logits - own).masked_fill(logits < CLOSED, -torch.inf)
        if _spread(logits) < 1e-4 * spread:
            return 1.0  # they depend on the query's position alone
    return min((_along(logits, sizes) for sizes in _grids(n)), default=0.0) / spread


def _grids(n: int) -> Iterator[tuple[int, int, int]]:
    """The grids of three axes that so many tokens can make; of length one are those of a line."""
    for a, b in itertools.product(range(1, n + 1), repeat=2):
        if n % (a * b) == 0 and n > a * b:
            yield a, b, n // (a * b)


def _along(logits: Tensor, sizes: tuple[int, int, int]) -> float:
    """How much logits differ at most between neighbours along an axis of a grid."""
    x, off = logits.view(-1, *sizes, *sizes), [0.0]
    for axis, size in enumerate(sizes, 1):
        one, two = (
            x.narrow(axis, start, size - 1).narrow(axis + 3, start, size - 1) for start in (0, 1)
        )
        off.append(_differ(one, two) if size > 1 else 0.0)
    return max(off)


def _differ(x: Tensor, y: Tensor) -> float:
    """How much logits differ at most where both are open."""
    is_open = (x > CLOSED) & (y > CLOSED)
    return float((x - y)[is_open].abs().max()) if is_open.any() else 0.0


def _spread(logits: Tensor) -> float:
    """The largest minus the smallest of the open logits."""
    is_open = logits[logits > CLOSED]
    return float(is_open.max() - is_open.min()) if len(is_open) else 0.0


def _sinusoids(subject: Subject) -> Results:
    """Added sines and cosines come in pairs of one frequency, and frequencies fall by a factor."""
    for table in _sinusoid_tables(subject):
        off, angle = _not_relative((table @ table.T)[None]), _first_block(rotary.turns(table))
        d = table.shape[1] if angle is None else 2 * len(angle)
        zeros, factor = int((table == 0).all(0).sum()), rotary.falls(angle) or 0.0
        mistakes = {
            f"products of rows at the same distance differ by {off:.1%}": off > 1e-3,
            f"frequencies fall by {factor:.4g} from pair to pair: 2i counts twice": (
                abs(factor / 1e4 ** (-4 / d) - 1) < 0.01
            ),
            "frequencies do not fall from pair to pair": rotary.stays(angle),
            f"{zeros} of {d} columns are zero in each row": zeros > d // 4,
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
