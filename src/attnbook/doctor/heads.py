"""How tokens are split into heads, and heads are merged."""

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import (
    Results,
    equal_heads,
    given,
    heads_in,
    mixed,
    origins,
    projected,
    where,
)
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import MOVES, PRODUCTS, Attention, Node, Trace, walk

MERGE, SPLIT = "merge without transposing", "split without transposing"
UNSEEN = NotJudged("heads", "no attention was observed")


def heads(subject: Subject) -> Results:
    """A token is one row of queries, keys and values in every head, and one row afterwards."""
    trace = locate.trace_of(subject)
    first = next(iter(trace.attentions), None)
    if first is None:
        yield UNSEEN
        return
    # The rows of a picture are not its tokens.
    split = [] if subject.kind == "pictures" else list(_rows_stay(subject, trace, first))
    split = split or list(_tokens_stay(subject, first))
    yield from split
    if not split:  # after that, no merge is right
        yield from _merge(subject, trace)
    yield from _concatenated(subject, trace)
    yield from _unprojected(subject, trace)
    yield from _all_alike(subject, trace)


def _rows_stay(subject: Subject, trace: Trace, first: Attention) -> Results:
    """A token is one row of queries and keys."""
    inputs, token = subject.fresh(0), 1 if subject.n_tokens > 2 else 0
    other = subject.trace(subject.replaced(inputs, subject.target, 0, token))
    twin = next((a for a in other.attentions if a.score_node.index == first.score_node.index), None)
    rows = {} if twin is None else _rows(first.query, twin.query)
    yield from _split(subject, first, rows, token)
    if not subject.is_self:
        other = subject.trace(subject.replaced(inputs, subject.attended[0], 0, token))
        twin = next(iter(other.attentions), None)
    if twin is not None and twin.key.shape == first.key.shape:
        yield from _keys(first, twin, token)


def _rows(one: Tensor, other: Tensor) -> dict[int, set[int]]:
    """In which batches × heads which rows changed."""
    rows: dict[int, set[int]] = {}
    if one.shape == other.shape:
        for n, row in torch.nonzero((one != other).any(-1)).tolist():
            rows.setdefault(n, set()).add(row)
    return rows


def _split(subject: Subject, a: Attention, rows: dict[int, set[int]], token: int) -> Results:
    n, length, n_heads = subject.n_tokens, a.weights.shape[-2], heads_in(subject, a)
    if not rows or n < 3:
        return
    done = f"changed token {token} of sequence 0" + where(a)
    sets = list(rows.values())
    if length != n:
        between = len(sets) == 1 and len(sets[0]) == length > 1
        if between and len(a.weights) == subject.n_sequences * n:
            shape = list(a.weights.shape)
            found = f"the weights are {shape}: for each of {n} tokens, {length} heads attend"
            right = "tokens attend to tokens, for each head"
            yield finding("attention between heads", done, found, right)
    elif 0 not in rows and len(sets) == n_heads and all(s == sets[0] != {token} for s in sets):
        found = f"row {min(sets[0])} of sequence {min(rows) // n_heads} changed"
        cause, right = "batch and tokens exchanged", f"row {token} of sequence 0"
        yield finding(cause, done, found, right)
    elif any(s != sets[0] for s in sets) or (len(sets) < n_heads and sets[0] != {token}):
        changed = sorted(set().union(*sets))
        found = f"rows {changed} of {len(sets)} of {n_heads} heads changed"
        right = f"row {token} of every head"
        yield finding(SPLIT, done, found, right)


def _tokens_stay(subject: Subject, a: Attention) -> Results:
    """A row of queries, keys or values has the numbers of one token, all of one head."""
    sides = (a.query_node, a.query), (a.key_node, a.key), (a.value_node, a.value)
    for node, x in sides:
        made, (n, d) = projected(node), x.shape[1:]
        if made is None or n == d or _rows_of(node) != subject.n_sequences * n:
            continue  # attention between channels
        rows = made.outputs[0].flatten(0, -2)
        found = origins(x.flatten(0, 1), rows, torch.arange(len(rows))[:, None])
        by_head = found.amax(1).view(-1, n).tolist()
        if mixed(found) or any(min(x) >= 0 and len(set(x)) < n for x in by_head):
            done = "followed the projections into the heads" + where(a)
            said, right = (
                "a head's row has several tokens, or a part of one",
                "each is of one token",
            )
            yield finding(SPLIT, done, said, right)
            return


def _rows_of(node: Node | None) -> int:
    """How many rows the projection has that made it."""
    made = projected(node)
    return 0 if made is None or made.name == "bmm" else made.outputs[0][..., 0].numel()


def _keys(a: Attention, twin: Attention, token: int) -> Results:
    """A token's numbers are in one key, though a matrix of keys may be square."""
    rows, d = _rows(a.key, twin.key), a.key.shape[-1]
    moved = (a.key != twin.key).sum((1, 2)).max() <= d if rows else False  # by no convolution
    if moved and any(len(r) > 1 for r in rows.values()):
        done = f"changed token {token}" + where(a)
        found = f"keys {sorted(set().union(*rows.values()))} changed"
        yield finding("keys not transposed", done, found, f"key {token} alone")


def _merge(subject: Subject, trace: Trace) -> Results:
    """The values of one row after the merge come from one query."""
    lengths = set(map(subject.length, subject.sources))
    for node, merged, reached in _merged(trace):
        contexts = [a for a in trace.attentions if a.context_node.index in reached]
        if subject.kind == "pictures":
            lengths = {_rows_of(a.query_node) // subject.n_sequences for a in contexts}
        if any(a.context.shape[1] not in lengths and a.score_node.between for a in contexts):
            continue
        tokens = mixed(_queries(merged.reshape(-1, merged.shape[-1]), contexts))
        if tokens:
            done, cause = f"followed the heads' outputs into {node.module or node.name}", MERGE
            found, right = f"a row has numbers of tokens {tokens}", "of one token, of all heads"
            yield finding(cause, done, found, right)
            return


def _merged(trace: Trace) -> list[tuple[Node, Tensor, set[int]]]:
    """Products, and their input, if it is made of contexts by moving numbers alone."""
    contexts = {a.context_node.index for a in trace.attentions}
    found = []
    for node in trace.of(*PRODUCTS):
        data = [x for x in node.args if isinstance(x, Tensor)]
        if node.between or len(data) < 2:
            continue
        producers = [n for n, _ in node.inputs]
        for tensor, producer in list(zip(data, producers, strict=False))[-2:]:
            reached = _contexts(producer, contexts)
            if reached:
                found.append((node, tensor, reached))
    return found


def _contexts(node: Node | None, contexts: set[int]) -> set[int]:
    """Those that a node is made of by moving numbers alone."""

    def before(now: Node) -> list[Node | None]:
        moved = now.name in (*MOVES, "cat", "stack") and now.index not in contexts
        return now.makers if moved else []

    return contexts & {now.index for now in walk([node], before)}


def _queries(rows: Tensor, contexts: list[Attention]) -> Tensor:
    """For each number, the query in whose context it is."""
    values = torch.cat([a.context.flatten() for a in contexts])
    index = [torch.arange(a.context.shape[1])[None, :, None].expand_as(a.context) for a in contexts]
    return origins(rows, values, torch.cat([x.flatten() for x in index]))


def _by_head(subject: Subject, trace: Trace) -> Tensor:
    """What the heads of the first attention give, (heads, batch, tokens, d)."""
    first = trace.attentions[0]
    n_heads, made = heads_in(subject, first), projected(first.query_node)
    if len(first.context) % subject.n_sequences:
        return first.context[:0]
    if n_heads != 1 or made is None:
        shape = -1, n_heads, *first.context.shape[1:]
        return first.context.reshape(shape).transpose(0, 1)
    together = []  # a list of heads
    for a in trace.attentions:
        other = projected(a.query_node)
        if other is not None and other.args[-2].equal(made.args[-2]):
            together.append(a.context)
    return torch.stack([x for x in together if x.shape == first.context.shape])


def _concatenated(subject: Subject, trace: Trace) -> Results:
    """Heads of a part of the width are put side by side: no sum or mean of them is made."""
    first, by_head = trace.attentions[0], _by_head(subject, trace)
    made, values = projected(first.query_node), first.value[: heads_in(subject, first)]
    if made is None or len(by_head) < 2 or _alike(by_head) or _alike(values):
        return  # with the same values, a mean is right
    wanted = [x.flatten().sort()[0] for x in (by_head.sum(0), by_head.mean(0))]
    through = (*MOVES, "mean", "sum", "add", "add_", "div", "mul", "stack", "cat")
    for node in walk(first.context_node.users, lambda n: n.users if n.name in through else []):
        if node.name not in through:
            continue
        gave = node.outputs[0].flatten().sort()[0]
        if any(gave.shape == x.shape and torch.allclose(gave, x, atol=1e-6) for x in wanted):
            n_heads, d = len(by_head), by_head.shape[-1]
            again = any(u.outputs[0].numel() == n_heads * len(gave) for u in node.users)
            part = subject.claims.n_heads or again or n_heads * d <= made.args[-2].shape[-1]
            level: Level = "error" if part else "warning"
            done, right = "followed the heads' outputs", f"side by side, of width {n_heads * d}"
            found = f"{n_heads} heads of width {d} become one of width {d}, by {node.name}"
            cause = "heads not concatenated"
            yield finding(cause, done + where(first), found, right, level)
            return


def _unprojected(subject: Subject, trace: Trace) -> Results:
    """If there is a matrix for what the heads give together, it is used."""
    first, by_head = trace.attentions[0], _by_head(subject, trace)
    x, through = given(first.query_node), (*MOVES, "cat", "stack", "native_dropout", "mul")
    later = walk(first.context_node.users, lambda n: n.users if n.name in through else [])
    if x is None or any(n.name in PRODUCTS for n in later):
        return
    used = {id(tensor) for node in trace.nodes for _, tensor in node.inputs}
    shape = x.shape[-1], len(by_head) * by_head.shape[-1]
    spare = [n for n, p in subject.parameters.items() if id(p) not in used and p.shape == shape]
    if spare:
        done, found = "followed the heads' outputs" + where(first), "no matrix is applied to them"
        found, right = f"{found}, and {spare[0]} takes no part", "the output projection is"
        yield finding("parameter not used", done, found, right)


def _alike(by_head: Tensor) -> bool:
    return len(by_head) > 1 and len(set(equal_heads(by_head))) == 1


def _all_alike(subject: Subject, trace: Trace) -> Results:
    """No two heads have the same weights."""
    by_head = _by_head(subject, trace)
    if by_head.any() and _alike(by_head):
        done = "compared the heads' outputs" + where(trace.attentions[0])
        found = f"all {len(by_head)} are the same"
        yield finding("identical heads", done, found, "each head differs")


def number_of_heads(subject: Subject) -> Results:
    """There are as many heads as claimed."""
    claimed = subject.claims.n_heads or 1
    found = [a for a in locate.attentions(subject) if len(a.weights) % subject.n_sequences == 0]
    if not found:
        return
    counts = {heads_in(subject, a) for a in found}
    side_by_side = {sum(heads_in(subject, a) for a in group) for group in _side_by_side(found)}
    a_list = counts == {1} and len(found) % claimed == 0 and not _whole(found[0], claimed)
    if claimed in counts | side_by_side or a_list:
        return
    if any(a.weights.shape[-2] not in map(subject.length, subject.sources) for a in found):
        return  # heads says what it attends over
    done, right = "counted the heads of the weights", f"{claimed}, as claimed"
    said = f"{sorted(counts)} of width {found[0].query.shape[-1]}"
    yield finding("wrong number of heads", done, said, right)


def _side_by_side(found: list[Attention]) -> list[list[Attention]]:
    """Attentions whose outputs become one tensor, before any matrix."""
    through = (*MOVES, "mul", "div", "cat", "stack", "add_", "index_put_", "slice_scatter")
    groups: dict[int, list[Attention]] = {}
    for a in found:
        later = walk(a.context_node.users, lambda n: n.users if n.name in through else [])
        for node in (n for n in later if n.name in through):
            groups.setdefault(node.index, []).append(a)
    return list(groups.values())


def _whole(a: Attention, claimed: int) -> bool:
    """Whether one head is as wide as all the heads claimed would be together."""
    made = projected(a.query_node)
    width = a.query.shape[-1]
    inner = made.args[-2].shape[-1] if made is not None else width
    return claimed > 1 and bool(width * claimed > inner)


def groups(subject: Subject) -> Results:
    """Neighbouring query heads share a key head."""
    claimed = subject.claims.n_kv_heads
    for a in locate.attentions(subject)[:1]:
        n_heads = heads_in(subject, a)
        if n_heads < 2 or len(a.key) % subject.n_sequences:
            return
        keys, values = equal_heads(a.key[:n_heads]), equal_heads(a.value[:n_heads])
        distinct = len(set(keys))
        if claimed is not None and distinct != claimed:
            done, found = "compared the keys of the heads", f"{distinct} different key heads"
            right = f"{claimed}, as claimed"
            yield finding("wrong number of heads", done, found, right)
            return
        right_keys = [h // (n_heads // distinct) for h in range(n_heads)]
        if distinct not in (1, n_heads) and not keys == values == right_keys:
            level: Level = "error" if keys != values else "warning"  # as in x-transformers
            done = "compared the keys and values of the heads"
            found = f"query heads use key heads {keys} and value heads {values}"
            right = f"{right_keys}, in most published models"
            yield finding("other groups of heads", done, found, right, level)
