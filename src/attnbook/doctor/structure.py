"""What the operations of a call show: softmax, scale, heads, projections, positions."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants import gradients
from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import (
    MOVES,
    ON_LOGITS,
    ON_WEIGHTS,
    PRODUCTS,
    Attention,
    Node,
    Trace,
    back,
    between,
    factors_before,
    scalar,
)

Results = Iterator[Finding | NotJudged]


def weights(subject: Subject) -> Results:
    """What multiplies the values sums to one over the keys."""
    yield from softmax_once(subject)
    for a in locate.attentions(subject):
        sums = a.weights.sum(-1)
        real = a.weights.isfinite().all(-1)
        some = real & (a.weights != 0).any(-1)
        if not some.any() or (sums[some] - 1).abs().max() < 1e-3:
            continue
        cause, found = _wrong_sums(subject, a, sums[some])
        if cause:
            yield finding(
                "error",
                "weights",
                cause,
                "observed what multiplies the values" + _where(a),
                found,
                "each query's weights sum to 1 over the keys",
            )
            return


def softmax_once(subject: Subject) -> Results:
    """No softmax is given what another one gave."""
    for node in locate.trace_of(subject).of("_softmax", "_safe_softmax"):
        first = back(node.inputs[0][0], (*MOVES, *ON_WEIGHTS), ("_softmax", "_safe_softmax"))
        score = first and back(first.inputs[0][0], (*MOVES, *ON_LOGITS), PRODUCTS)
        if score is not None and score.between:
            yield finding(
                "error",
                "weights",
                "softmax twice",
                "observed what each softmax is given" + locate.in_module(node).replace(",", ""),
                "weights, which another softmax gave",
                "logits",
            )
            return


def _wrong_sums(subject: Subject, a: Attention, sums: Tensor) -> tuple[str, str]:
    over = "their sums over the keys are " + _span(sums)
    node = a.softmax_node
    if node.name != "exp":
        shape, axis = node.outputs[0].shape, int(node.args[1]) % node.outputs[0].dim()
        soft = node.outputs[0]
    else:
        shape, axis, soft = a.weights.shape, -1, a.weights
    inner = a.softmax.sum(-1)
    if (inner - 1).abs().max() < 1e-3:  # the softmax is right: what came after it?
        ratio = (a.weights / a.softmax)[a.softmax > 1e-6]
        if ratio.numel() and ratio.std() < 1e-4 * ratio.abs().mean():
            if abs(float(ratio.mean()) - 1) > 1e-3:
                return "scaled after the softmax", over
        elif ((ratio.abs() < 1e-6) | ((ratio - 1).abs() < 1e-4)).all():
            return "mask after the softmax", over
        return "", ""
    if (a.weights.sum(-2) - 1).abs().max() < 1e-3 and a.weights.shape[-1] > 1:
        return "softmax over the queries", over + "; over the queries they are 1"
    if (soft.sum(axis) - 1).abs().max() < 1e-3 and len(shape) >= 3:
        n = subject.n_sequences
        if axis == 0 and (len(shape) == 4 or shape[0] == n):
            return "softmax over the batch", over + f"; over axis 0 of {list(shape)} they are 1"
        if axis in (0, 1) and len(shape) > 3:
            return (
                "softmax over the heads",
                over + f"; over axis {axis} of {list(shape)} they are 1",
            )
        return "softmax over the queries", over + f"; over axis {axis} of {list(shape)} they are 1"
    if node.name == "exp" and _keeps_less(a):
        return "", ""  # a sink, or softmax plus one
    return "weights do not sum to one", over


def _keeps_less(a: Attention) -> bool:
    sums = a.weights.sum(-1)
    return bool((sums <= 1 + 1e-3).all() and (sums >= 0).all())


def scale(subject: Subject) -> Results:
    """The factor on the products is 1/sqrt(d_head)."""
    found = locate.attentions(subject)
    claimed = subject.claims.scale
    seen = False
    for a in found:
        factor = total_scale(subject, a)
        if factor is None:
            continue
        seen = True
        d = a.query.shape[-1]
        right = d**-0.5 if claimed is None or isinstance(claimed, str) else float(claimed)
        if math.isclose(factor, right, rel_tol=5e-3):
            yield from _on_values(a, d)
            continue
        cause = name_scale(factor, d, subject, a)
        yield finding(
            "error" if claimed is not None or cause == "multiplied by the root" else "warning",
            "scale",
            cause,
            "compared the logits with the products of queries and keys" + _where(a),
            f"the factor is {factor:.4g}",
            f"{right:.4g}" + ("" if claimed is not None else f", 1/sqrt(d_head) for d_head = {d}"),
        )
        return
    if not seen:
        yield NotJudged("scale", "no product of queries and keys with a fixed factor was observed")
    elif claimed is None:
        return


def total_scale(subject: Subject, a: Attention) -> float | None:
    """The factor on the products of what was projected; ``None`` if there is no fixed one."""
    if a.logits is None:
        return None
    fitted = locate.slope(subject, a)
    if fitted is None or fitted == 0:
        return None
    if _unit(a.query) or _unit(a.key):
        return None  # cosine attention: the lengths are gone
    if between(a.softmax_node.inputs[0][0], a.score_node) & {"tanh", "clamp", "relu"}:
        return None
    left, left_fixed = factors_before(a.query_node)
    right, right_fixed = factors_before(a.key_node)
    _, fixed = factors_before(a.softmax_node.inputs[0][0], (a.score_node.name,))
    if not (left_fixed and right_fixed and fixed):
        return None
    if not _linear(subject, a, fitted):
        return None
    return fitted * left * right


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


def _unit(x: Tensor) -> bool:
    lengths = x.norm(dim=-1)
    return bool(lengths.std() < 1e-3 * lengths.mean()) and x.shape[-1] > 1


def name_scale(factor: float, d: int, subject: Subject, a: Attention) -> str:
    """Which wrong scale it is."""
    heads = max(1, len(a.weights) // subject.n_sequences)
    heads = subject.claims.n_heads or heads
    kinds = {
        "no scale": 1.0,
        "multiplied by the root": d**0.5,
        "scaled twice": 1 / d,
        "scale of d_model": (d * heads) ** -0.5 if heads > 1 else math.nan,
    }
    for name, value in kinds.items():
        if math.isclose(factor, value, rel_tol=5e-3):
            return name
    return "other scale"


def _on_values(a: Attention, d: int) -> Results:
    factor, _ = factors_before(a.value_node)
    after = _next_factor(a.context_node)
    for one in (factor, after):
        if math.isclose(one, d**-0.5, rel_tol=1e-3):
            yield finding(
                "error",
                "scale",
                "scale on the values",
                "observed what the values are multiplied by" + _where(a),
                f"they are multiplied by {one:.4g}, too",
                "only the logits are scaled",
            )
            return


def _next_factor(node: Node) -> float:
    """The number by which the context is multiplied right away."""
    queue, seen = list(node.users), set()
    while queue:
        user = queue.pop()
        if user.index in seen:
            continue
        seen.add(user.index)
        if user.name.rstrip("_") in ("mul", "div"):
            number, fixed = scalar(user)
            return number if number is not None and fixed else 1.0
        if user.name in MOVES:
            queue += user.users
    return 1.0


def heads(subject: Subject) -> Results:
    """A token is one row of queries, keys and values in every head, and one row afterwards."""
    inputs = subject.fresh(0)
    name = subject.target
    one = subject.trace(inputs)
    first = next(iter(one.attentions), None)
    if first is None:
        yield NotJudged("heads", "no attention was observed")
        return
    token = 1 if subject.n_tokens > 2 else 0
    other = subject.trace(subject.replaced(inputs, name, 0, token))
    twin = next((a for a in other.attentions if a.score_node.index == first.score_node.index), None)
    n = subject.n_tokens
    if twin is not None:
        rows = _rows(first.query, twin.query)
        yield from _judge_rows(subject, first, rows, token, n)
    yield from _merge(subject, one)
    yield from _all_alike(subject, one)


def _rows(one: Tensor, other: Tensor) -> dict[int, set[int]]:
    """In which batches × heads which rows changed."""
    if one.shape != other.shape:
        return {}
    moved = torch.nonzero((one != other).any(-1)).tolist()
    rows: dict[int, set[int]] = {}
    for n, row in moved:
        rows.setdefault(n, set()).add(row)
    return rows


def _judge_rows(
    subject: Subject, a: Attention, rows: dict[int, set[int]], token: int, n: int
) -> Results:
    if not rows or n < 3:
        return
    length = a.weights.shape[-2]
    done = f"changed token {token} of sequence 0" + _where(a)
    n_heads = len(a.weights) // max(1, subject.n_sequences)
    if length != n:
        between = len(rows) == 1 and all(len(r) == length for r in rows.values())
        if between and length > 1 and len(a.weights) == subject.n_sequences * n:
            yield finding(
                "error",
                "heads",
                "attention between heads",
                done,
                f"the weights are {list(a.weights.shape)}: {length} heads attend to each other, "
                f"for each of {n} tokens",
                "tokens attend to tokens, for each head",
            )
        return
    sets = list(rows.values())
    if any(s != sets[0] for s in sets) or (len(rows) < n_heads and sets[0] != {token}):
        yield finding(
            "error",
            "heads",
            "split without transposing",
            done,
            f"rows {sorted(set().union(*sets))} of {len(rows)} of {n_heads} heads changed",
            f"row {token} of every head",
        )


def _merge(subject: Subject, trace: Trace) -> Results:
    """The values of one row after the merge come from one query."""
    lengths = set(map(subject.length, subject.sources))
    for node, merged in _merged(trace):
        contexts = [a for a in trace.attentions if a.context_node.index in merged[1]]
        if any(a.context.shape[1] not in lengths for a in contexts):
            continue
        rows = merged[0].reshape(-1, merged[0].shape[-1])
        found = _queries(rows, contexts)
        if found.shape[1] < 2 or (found >= 0).float().mean() < 0.3:
            continue
        largest, least = found.amax(1), found.masked_fill(found < 0, len(found)).amin(1)
        mixed = (found >= 0).any(1) & (largest != least)
        if mixed.any():
            row = int(torch.nonzero(mixed)[0])
            yield finding(
                "error",
                "heads",
                "merge without transposing",
                f"followed the heads' outputs into {node.module or node.name}",
                f"row {row} has numbers of tokens {sorted(set(found[row].tolist()) - {-1})}",
                "a row has the numbers of one token, of all heads",
            )
            return


def _merged(trace: Trace) -> list[tuple[Node, tuple[Tensor, set[int]]]]:
    """Products whose input is made of contexts by moving numbers alone."""
    contexts = {a.context_node.index for a in trace.attentions}
    found = []
    for node in trace.of(*PRODUCTS):
        data = [x for x in node.args if isinstance(x, Tensor)]
        producers = [n for n, _ in node.inputs]
        if node.between or len(data) < 2:
            continue
        for tensor, producer in list(zip(data, producers, strict=False))[-2:]:
            reached = _contexts(producer, contexts)
            if reached:
                found.append((node, (tensor, reached)))
    return found


def _contexts(node: Node | None, contexts: set[int]) -> set[int]:
    queue, seen, reached = [node], set(), set()
    while queue:
        now = queue.pop()
        if now is None or now.index in seen:
            continue
        seen.add(now.index)
        if now.index in contexts:
            reached.add(now.index)
        elif now.name in (*MOVES, "cat", "stack"):
            queue += [n for n, _ in now.inputs]
    return reached


def _queries(rows: Tensor, contexts: list[Attention]) -> Tensor:
    """For each number, the query in whose context it is; −1 if in none, or in several."""
    values = torch.cat([a.context.flatten() for a in contexts])
    index = torch.cat(
        [
            torch.arange(a.context.shape[1])[None, :, None].expand_as(a.context).flatten()
            for a in contexts
        ]
    )
    ordered, order = values.sort()
    at = torch.searchsorted(ordered, rows.contiguous()).clamp(max=len(ordered) - 1)
    twice = torch.zeros_like(ordered, dtype=torch.bool)
    twice[1:] |= ordered[1:] == ordered[:-1]
    twice[:-1] |= ordered[1:] == ordered[:-1]
    return index[order[at]].masked_fill((ordered[at] != rows) | twice[at], -1)


def _all_alike(subject: Subject, trace: Trace) -> Results:
    """No two heads have the same weights."""
    first = trace.attentions[0]
    made = _projected(first.query_node)
    together = [
        a
        for a in trace.attentions
        if made is not None
        and (other := _projected(a.query_node)) is not None
        and other.args[-2].shape == made.args[-2].shape
        and torch.equal(other.args[-2], made.args[-2])
    ]
    n_heads = len(first.weights) // subject.n_sequences
    if len(together) > 1 and n_heads == 1:  # a list of heads
        heads_of = torch.stack(
            [a.context[0] for a in together if a.context.shape == first.context.shape]
        )
    else:
        heads_of = first.context[:n_heads]
    if len(heads_of) > 1 and heads_of.any() and len(set(_equal_heads(heads_of))) == 1:
        yield finding(
            "error",
            "heads",
            "heads all alike",
            "compared the heads' outputs" + _where(first),
            f"all {len(heads_of)} are the same",
            "each head differs",
        )


def number_of_heads(subject: Subject) -> Results:
    """There are as many heads as claimed."""
    claimed = subject.claims.n_heads or 1
    trace = locate.trace_of(subject)
    found = [a for a in trace.attentions if len(a.weights) % subject.n_sequences == 0]
    if not found:
        return
    counts = {len(a.weights) // subject.n_sequences for a in found}
    a_list = counts == {1} and len(found) % claimed == 0 and not _whole(found[0], claimed)
    if claimed in counts or a_list:
        return
    if any(a.weights.shape[-2] not in map(subject.length, subject.sources) for a in found):
        return  # heads says what it attends over
    yield finding(
        "error",
        "number of heads",
        "not so many heads",
        "counted the heads of the weights",
        f"{sorted(counts)} of width {found[0].query.shape[-1]}",
        f"{claimed}, as claimed",
    )


def _whole(a: Attention, claimed: int) -> bool:
    """Whether one head is as wide as all the heads claimed would be together."""
    made = _projected(a.query_node)
    width = a.query.shape[-1]
    inner = made.args[-2].shape[-1] if made is not None else width
    return claimed > 1 and bool(width * claimed > inner)


def projections(subject: Subject) -> Results:
    """Queries, keys and values are three different projections."""
    yield from _heads_share(subject)
    for a in locate.attentions(subject)[:1]:
        if not subject.parameters or (subject.kind == "attention" and not subject.is_self):
            return
        lefts = {"query": a.query, "key": a.key, "value": a.value}
        n_heads = {len(x) for x in lefts.values()}
        if len(n_heads) > 1:
            return
        sources = {
            k: _projected(n)
            for k, n in zip(lefts, (a.query_node, a.key_node, a.value_node), strict=True)
        }
        pairs = [("query", "key"), ("key", "value"), ("query", "value")]
        for left, right in pairs:
            one, other = sources[left], sources[right]
            if one is None or other is None or {left, right} <= set(subject.claims.shared):
                continue
            if _same_weights(one, other) and _proportional(lefts[left], lefts[right]):
                if _weight(one) != _weight(other):  # as after copy.deepcopy
                    yield finding(
                        "warning",
                        "projections",
                        "projections start alike",
                        "compared queries, keys and values" + _where(a),
                        f"{left} and {right} are equal, by two equal matrices",
                        "matrices drawn one by one",
                    )
                    return
                # Reformer shares them, and has no third one left over.
                left_over = subject.claims.n_heads or any(gradients(subject))
                yield finding(
                    "error" if left_over else "warning",
                    "projections",
                    "one projection for two",
                    "compared queries, keys and values" + _where(a),
                    f"{left} and {right} are the same projection of the tokens",
                    'different ones, or a claim: shared=("query", "key")',
                )
                return


def _projected(node: Node | None) -> Node | None:
    """The product that a query, key or value comes from."""
    queue, seen = [node], set()
    while queue:
        now = queue.pop(0)
        if now is None or now.index in seen or not now.depends:
            continue
        seen.add(now.index)
        if now.name in PRODUCTS:
            return now
        queue += [n for n, _ in now.inputs]
    return None


def _weight(product: Node) -> int:
    """Where the matrix of a product is in memory, before it was moved or copied."""
    node, tensor = product.inputs[-1]
    while node is not None and node.inputs:
        node, tensor = node.inputs[0]
    return tensor.data_ptr()


def _same_weights(one: Node, other: Node) -> bool:
    a, b = one.outputs[0], other.outputs[0]
    return one is other or (a.shape == b.shape and torch.equal(a, b))


def _proportional(a: Tensor, b: Tensor) -> bool:
    """Whether the rows are the same but for a factor and a rotation."""
    if a.shape != b.shape:
        return False
    x, y = a.norm(dim=-1).flatten(), b.norm(dim=-1).flatten()
    ratio = x / y.clamp(min=1e-30)
    # At the first position no rotary turns anything.
    alike = torch.cosine_similarity(a[:, 0], b[:, 0], dim=-1)
    return bool(ratio.std() < 1e-3 * ratio.mean().abs() and alike.min() > 0.999)


def _heads_share(subject: Subject) -> Results:
    """Each head has a projection of its own, of the whole width."""
    for a in locate.attentions(subject)[:1]:
        made = _projected(a.query_node)
        n_heads = len(a.weights) // subject.n_sequences
        if made is None or n_heads < 2 or made.name not in ("mm", "addmm"):
            continue
        rows, inner = made.args[-2].shape[-2:]
        width = a.query.shape[-1]
        n = subject.n_tokens
        if inner == width and rows == subject.n_sequences * n_heads * n and n == a.query.shape[-2]:
            yield finding(
                "error",
                "projections",
                "heads share one projection",
                "observed the projection of the queries" + _where(a),
                f"it is {inner} → {made.outputs[0].shape[-1]}, one for all {n_heads} heads",
                f"{inner * n_heads} → {width * n_heads}: each head sees the whole token",
            )


def masks(subject: Subject) -> Results:
    """A mask that is there closes: it is not one more number among the logits."""
    for a in locate.own(subject):
        if a.logits is None or locate.pattern(locate.support(a)) != "all":
            continue
        cause = locate.weak_mask(subject, a)
        if cause:
            yield finding(
                "error",
                "masks",
                cause,
                "compared the logits of later tokens with the products" + _where(a),
                "they differ in a way that a mask makes, and still get weight",
                "-inf, and no weight",
            )
            return


def groups(subject: Subject) -> Results:
    """Neighbouring query heads share a key head."""
    claimed = subject.claims.n_kv_heads
    for a in locate.attentions(subject)[:1]:
        n_heads = len(a.key) // subject.n_sequences
        if n_heads < 2 or len(a.key) % subject.n_sequences:
            return
        keys, values = _equal_heads(a.key[:n_heads]), _equal_heads(a.value[:n_heads])
        distinct = len(set(keys))
        if claimed is not None and distinct != claimed:
            yield finding(
                "error",
                "groups",
                "not so many heads",
                "compared the keys of the heads",
                f"{distinct} different key heads",
                f"{claimed}, as claimed",
            )
            return
        if distinct in (1, n_heads):
            return
        group = n_heads // distinct
        right = [h // group for h in range(n_heads)]
        if keys != right or values != right:
            level: Any = "error" if claimed is not None or keys != values else "warning"
            yield finding(
                level,
                "groups",
                "other groups of heads",
                "compared the keys and values of the heads",
                f"query heads use key heads {keys} and value heads {values}",
                f"{right}, in every published model",
            )


def _equal_heads(x: Tensor) -> list[int]:
    """For each head, the number of its kind, in the order of appearance."""
    kinds: list[Tensor] = []
    numbers = []
    for head in x:
        same = [i for i, kind in enumerate(kinds) if torch.equal(kind, head)]
        numbers.append(same[0] if same else len(kinds))
        if not same:
            kinds.append(head)
    return numbers


def positions(subject: Subject) -> Results:
    """Positions do what is claimed."""
    claimed = subject.claims.position
    if claimed is None and _named_rotary(subject):
        claimed = "rotary"
    yield from sinusoids(subject)
    if claimed is None:
        yield NotJudged("positions", "what kind they are of", "position=…")
        return
    if claimed == "none" or not subject.is_self:
        return
    inputs = locate.constant(subject)
    trace = subject.trace(inputs)
    first = next((a for a in trace.attentions if a.weights.shape[-1] == subject.n_tokens), None)
    done = "called it with equal tokens"
    if not locate.has_positions(subject):
        yield finding(
            "error",
            "positions",
            "positions without effect",
            done,
            "all positions give the same" + (_where(first) if first else ""),
            "logits or outputs that depend on the position",
        )
        return
    if claimed not in ("rotary", "alibi", "relative") or first is None or first.logits is None:
        return
    where = done + _where(first)
    if claimed == "rotary" and _varies(first.value):
        yield finding(
            "error",
            "positions",
            "values are rotated",
            where,
            "values depend on the position",
            "queries and keys do",
        )
        return
    off = _not_relative(first.logits)
    if off > 1e-3:
        yield finding(
            "error",
            "positions",
            "positions not relative",
            where,
            f"logits of the same distance differ by {off:.1%} of their spread",
            "logits that depend on the distance alone",
        )
        return
    if claimed == "alibi":
        yield from _alibi(subject, first, where)


def _named_rotary(subject: Subject) -> bool:
    names = [n.lower() for m in subject.modules for n, _ in m.named_modules()]
    types = [type(part).__name__.lower() for m in subject.modules for part in m.modules()]
    return any("rotary" in x or "rope" in x.split(".")[-1] for x in (*names, *types))


def _varies(x: Tensor) -> bool:
    return bool((x - x[:, :1]).abs().max() > 1e-3 * x.abs().max())


def _not_relative(logits: Tensor) -> float:
    """How much logits of the same distance differ, up to what is added to all keys alike."""
    own = logits.diagonal(0, 1, 2)[..., None]
    if logits.shape[1] != logits.shape[2] or (own < -1e3).any():
        return _not_toeplitz(logits)
    rest = (logits - own).masked_fill(logits < -1e3, -torch.inf)
    open_ = rest.isfinite()
    spread = logits[logits > -1e3].max() - logits[logits > -1e3].min()
    if rest[open_].max() - rest[open_].min() < 1e-4 * spread:
        return 1.0  # they depend on the query's position alone
    return _not_toeplitz(rest)


def _not_toeplitz(logits: Tensor) -> float:
    """How much logits of the same distance differ, relative to all."""
    open_ = logits > -1e3
    spread = float(logits[open_].max() - logits[open_].min())
    worst = 0.0
    for offset in range(-logits.shape[1] + 2, logits.shape[2] - 1):
        line = logits.diagonal(offset, 1, 2)
        if (line > -1e3).all():
            worst = max(worst, float((line.amax(-1) - line.amin(-1)).max()))
    return worst / max(spread, 1e-12)


def _alibi(subject: Subject, a: Attention, where: str) -> Results:
    assert a.logits is not None
    last = a.logits[:, -1]  # (n, keys): of the last query
    rises = last[:, 0] - last[:, -1]  # far minus near
    if (rises > 0).any():
        yield finding(
            "error",
            "positions",
            "bias rises with distance",
            where,
            "far tokens have larger logits",
            "smaller ones, by slope × distance",
        )
        return
    n_heads = len(last) // subject.n_sequences
    ours = rises[:n_heads]
    if n_heads > 1 and (ours - ours[0]).abs().max() < 1e-4 * ours.abs().max():
        yield finding(
            "error",
            "positions",
            "one slope for all heads",
            where,
            "the same slope in each head",
            "slopes 2**(-8h/n_heads)",
        )


def memory(subject: Subject) -> Results:
    """All of the memory is open to every token of the target."""
    others = [n for n in subject.sources if n not in (subject.target, *subject.same)]
    lengths = {subject.length(name) for name in others} - {subject.n_tokens}
    for a in locate.attentions(subject):
        if a.weights.shape[-2] != subject.n_tokens or a.weights.shape[-1] not in lengths:
            continue
        open_ = locate.support(a)
        if not open_.triu(1).any() and not open_.all():
            yield finding(
                "error",
                "memory",
                "causal mask on the memory",
                "observed which weights are open" + _where(a),
                "a token attends to as many of the memory as it has predecessors",
                "to all of it",
            )
            return


def residual(subject: Subject) -> Results:
    """There is a way around the attention: what it gives is added."""
    found = locate.attentions(subject)
    layers = {a.softmax_node.module for a in found}
    if len(layers) < 2 and not subject.claims.residual:
        return
    silenced = {a.context_node.index for a in found}
    inputs = subject.fresh(0)
    other = subject.replaced(inputs, subject.target, 0, 0)
    one, two = (subject.trace(x, silenced).output for x in (inputs, other))
    assert one is not None
    assert two is not None
    if found and torch.equal(one, two):
        yield finding(
            "error" if subject.claims.residual else "warning",
            "residual",
            "no way around the attention",
            "set what the attentions give to zero, and changed a token",
            "its output did not change",
            "x + attention(x): it changes",
        )


def norms(subject: Subject) -> Results:
    """What a norm gives does not depend on the length of what it is given."""
    for name, module, args, kwargs in locate.norm_calls(subject):
        one, other = (module(args[0] * c, *args[1:], **kwargs) for c in (1e2, 1e3))
        if not isinstance(one, Tensor) or not one.isfinite().all():
            continue
        off = float((one - other).abs().max() / one.abs().max().clamp(min=1e-30))
        if off > 0.05:
            yield finding(
                "error",
                "norms",
                "norm that does not normalise",
                f"called {name or 'the norm'} with its input × 100 and × 1000",
                f"its outputs differ by {off:.0%}",
                "the same outputs",
            )
            return


def window(subject: Subject) -> Results:
    """Each token attends to as many as claimed."""
    claimed = subject.claims.window
    if claimed is None or subject.n_tokens <= claimed:
        yield NotJudged("window", "the example is not longer than it")
        return
    found = []
    for open_ in locate.supports(subject):
        rows = [int(open_.shape[0] - 1)]
        reach = [row - int(torch.nonzero(open_[row])[0]) + 1 for row in rows]
        found.append(reach[0])
    if found and claimed not in found:
        yield finding(
            "error",
            "window",
            "other window",
            "observed which weights are open",
            f"the last token attends to {found[0]}",
            f"{claimed}, itself included",
        )


def tying(subject: Subject) -> Results:
    """The output layer is the embedding, if it is meant to be."""
    parts = [part for m in subject.modules for part in m.modules()]
    tables = [part.weight for part in parts if isinstance(part, nn.Embedding)]
    for name, weight in subject.parameters.items():
        for table in tables:
            if weight is not table and weight.shape == table.shape and torch.equal(weight, table):
                if float(weight.std()) == 0:
                    continue
                yield finding(
                    "error" if subject.claims.tied else "warning",
                    "tying",
                    "copied, not tied",
                    "compared the parameters",
                    f"{name} equals an embedding, and is another parameter",
                    "one parameter, which is trained as one",
                )
                return
    if subject.claims.tied and subject.kind in ("tokens", "encoder-decoder"):
        trace = locate.trace_of(subject)
        last = next((n for n in reversed(trace.nodes) if n.name in PRODUCTS), None)
        if last is None:
            return
        width = last.outputs[0].shape[-1]
        used = [x for x in last.args if isinstance(x, Tensor)]
        fitting = [table.detach() for table in tables if len(table) == width]
        if fitting and not any(_same_numbers(x, table) for x in used for table in fitting):
            yield finding(
                "error",
                "tying",
                "not tied",
                "compared the last product's matrix with the embedding",
                "they differ",
                "the same matrix, as claimed",
            )


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    return one.numel() == other.numel() and torch.equal(
        one.flatten().sort()[0], other.flatten().sort()[0]
    )


def sinusoids(subject: Subject) -> Results:
    """Sines and cosines come in pairs of one frequency."""
    tables = [x for m in subject.modules for x in (*m.named_buffers(), *m.named_parameters())]
    for name, table in tables:
        values = table.detach().float().squeeze()
        if values.dim() != 2 or min(values.shape) < 4 or values.abs().max() > 1.001:
            continue
        sines = torch.arange(len(values)).float().sin()[:, None]
        if not ((values - sines).abs().amax(0) < 1e-3).any():
            continue  # it is no such table
        off = _not_toeplitz((values[:32] @ values[:32].T)[None])
        if off > 1e-3:
            yield finding(
                "error",
                "positions",
                "other sinusoids",
                f"multiplied the rows of {name} with each other",
                f"products at the same distance differ by {off:.1%}",
                "products that depend on the distance alone",
            )


def _where(a: Attention | None) -> str:
    return f" in {a.softmax_node.module}" if a is not None and a.softmax_node.module else ""


def _span(x: Tensor) -> str:
    return f"{float(x.min()):.3g} to {float(x.max()):.3g}"
