"""How tokens are split into heads, and heads are merged."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import (
    Results,
    equal_heads,
    heads_in,
    mixed,
    origins,
    projected,
    where,
)
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import MOVES, PRODUCTS, Attention, Node, Trace, walk

JOINS = (*MOVES, "cat", "stack", "mul", "div", "add_", "index_put_", "slice_scatter")
REDUCES = (*MOVES, "cat", "stack", "mul", "div", "add_", "add", "sum", "mean")
UNSEEN = NotJudged("heads", "no attention was observed")


def heads(subject: Subject) -> Results:
    """A token is one row of queries, keys and values in every head, and one row afterwards."""
    trace = locate.trace_of(subject)
    if not trace.attentions:
        yield UNSEEN
        return
    first = trace.attentions[0]
    # The rows of a picture are not its tokens.
    split = [] if subject.kind == "pictures" else list(_rows_stay(subject, first))
    split = split or list(_tokens_stay(subject, first))
    yield from split or _merge(subject, trace)  # after a wrong split, no merge is right
    by_head = _by_head(subject, trace)
    yield from _concatenated(subject, first, by_head)
    if by_head.any() and _alike(by_head):
        done = "compared the heads' outputs" + where(first)
        yield finding(
            "identical heads", done, f"all {len(by_head)} are the same", "each head differs"
        )


def _rows_stay(subject: Subject, first: Attention) -> Results:
    """A token is one row of queries and keys."""
    token = 1 if subject.n_tokens > 2 else 0
    twin = _twin(subject, first, subject.target, token)
    if twin is not None:
        yield from _split(subject, first, _changed_rows(first.query, twin.query), token)
    if not subject.is_self:
        twin = _twin(subject, first, subject.attended[0], token)
    rows = {} if twin is None else _changed_rows(first.key, twin.key)
    # A convolution before the keys changes more than the numbers of one key.
    if twin is None or not rows or (first.key != twin.key).sum((1, 2)).max() > first.key.shape[-1]:
        return
    if any(len(keys) > 1 for keys in rows.values()):
        done = f"changed token {token}" + where(first)
        found = f"keys {sorted(set().union(*rows.values()))} changed"
        yield finding("keys not transposed", done, found, f"key {token} alone")


def _twin(subject: Subject, a: Attention, source: str, token: int) -> Attention | None:
    """The same attention in a call with another token."""
    trace = subject.trace(subject.replaced(subject.fresh(0), source, 0, token))
    same = (twin for twin in trace.attentions if twin.score_node.index == a.score_node.index)
    return next(same, None)


def _changed_rows(before: Tensor, after: Tensor) -> dict[int, set[int]]:
    """The rows that changed, for each of batch × heads in which some did."""
    rows: dict[int, set[int]] = {}
    if before.shape == after.shape:
        for head, row in torch.nonzero((before != after).any(-1)).tolist():
            rows.setdefault(head, set()).add(row)
    return rows


def _split(subject: Subject, a: Attention, rows: dict[int, set[int]], token: int) -> Results:
    """The queries that changed with a token are its row in every head."""
    n, n_rows, n_heads = subject.n_tokens, a.weights.shape[-2], heads_in(subject, a)
    if not rows or n < 3:
        return
    done, sets = f"changed token {token} of sequence 0" + where(a), list(rows.values())
    alike, changed = all(s == sets[0] for s in sets), sorted(set().union(*sets))
    if n_rows != n:
        shape = list(a.weights.shape)
        if len(sets) == 1 < len(changed) == n_rows and shape[0] == subject.n_sequences * n:
            found = f"the weights are {shape}: for each of {n} tokens, {n_rows} heads attend"
            right = "tokens attend to tokens, for each head"
            yield finding("attention between heads", done, found, right)
    elif alike and len(sets) == n_heads and 0 not in rows and changed != [token]:
        found = f"row {changed[0]} of sequence {min(rows) // n_heads} changed"
        yield finding("batch and tokens exchanged", done, found, f"row {token} of sequence 0")
    elif not alike or (len(sets) < n_heads and changed != [token]):
        found = f"rows {changed} of {len(sets)} of {n_heads} heads changed"
        yield finding("split without transposing", done, found, f"row {token} of every head")


def _tokens_stay(subject: Subject, a: Attention) -> Results:
    """A row of queries, keys or values has the numbers of one token, all of one head."""
    sides = (a.query_node, a.query), (a.key_node, a.key), (a.value_node, a.value)
    for node, x in sides:
        projection, (n, d) = projected(node), x.shape[1:]
        if projection is None or n == d or _n_rows(node) != subject.n_sequences * n:
            continue  # attention between channels
        rows = projection.outputs[0].flatten(0, -2)
        tokens = origins(x.flatten(0, 1), rows, torch.arange(len(rows))[:, None])
        by_head = tokens.amax(1).view(-1, n).tolist()
        if mixed(tokens) or any(min(head) >= 0 and len(set(head)) < n for head in by_head):
            done = "followed the projections into the heads" + where(a)
            found = "a head's row has several tokens, or a part of one"
            yield finding("split without transposing", done, found, "each is of one token")
            return


def _n_rows(node: Node | None) -> int:
    """Number of rows of the projection that a query, key or value came from."""
    projection = projected(node)
    known = projection is not None and projection.name != "bmm"
    return projection.outputs[0][..., 0].numel() if known else 0


def _merge(subject: Subject, trace: Trace) -> Results:
    """The values of one row after the merge come from one query."""
    lengths = set(map(subject.length, subject.sources))
    for node, merged, attentions in _merged(trace):
        if subject.kind == "pictures":
            lengths = {_n_rows(a.query_node) // subject.n_sequences for a in attentions}
        if any(a.context.shape[1] not in lengths and a.score_node.between for a in attentions):
            continue
        contexts = [a.context for a in attentions]
        queries = [torch.arange(x.shape[1])[:, None].expand_as(x).flatten() for x in contexts]
        values, rows = torch.cat([x.flatten() for x in contexts]), merged.flatten(0, -2)
        tokens = mixed(origins(rows, values, torch.cat(queries)))
        if tokens:
            done = f"followed the heads' outputs into {node.module or node.name}"
            found, right = f"a row has numbers of tokens {tokens}", "of one token, of all heads"
            yield finding("merge without transposing", done, found, right)
            return


def _merged(trace: Trace) -> Iterator[tuple[Node, Tensor, list[Attention]]]:
    """The products that are given heads' outputs: the product, what it is given, and of whom."""
    by_context = {a.context_node.index: a for a in trace.attentions}

    def before(node: Node) -> list[Node | None]:
        return node.makers if node.name in JOINS and node.index not in by_context else []

    for node in trace.of(*PRODUCTS):
        tensors = [x for x in node.args if isinstance(x, Tensor)]
        if node.between or len(tensors) < 2:
            continue
        for tensor, maker in list(zip(tensors, node.makers, strict=False))[-2:]:
            reached = [n.index for n in walk([maker], before) if n.index in by_context]
            if reached:
                yield node, tensor, [by_context[i] for i in reached]


def _by_head(subject: Subject, trace: Trace) -> Tensor:
    """What the heads of the first attention give, (heads, batch, tokens, d)."""
    first = trace.attentions[0]
    n_heads, projection = heads_in(subject, first), projected(first.query_node)
    if len(first.context) % subject.n_sequences:
        return first.context[:0]
    if n_heads != 1 or projection is None:
        return first.context.unflatten(0, (-1, n_heads)).transpose(0, 1)
    together = []  # heads that are modules: their queries are made of the same tokens
    for a in trace.attentions:
        made = projected(a.query_node)
        if made is not None and made.args[-2].equal(projection.args[-2]):
            together.append(a.context)
    return torch.stack([x for x in together if x.shape == first.context.shape])


def _alike(by_head: Tensor) -> bool:
    """True if there are several heads, and all are equal."""
    return len(by_head) > 1 and len(set(equal_heads(by_head))) == 1


def _concatenated(subject: Subject, first: Attention, by_head: Tensor) -> Results:
    """Heads of a part of the width are put side by side: no sum or mean of them is made."""
    projection, values = projected(first.query_node), first.value[: heads_in(subject, first)]
    if projection is None or len(by_head) < 2 or _alike(by_head) or _alike(values):
        return  # with the same values, a mean is right
    wrong = [x.flatten().sort()[0] for x in (by_head.sum(0), by_head.mean(0))]
    for node in walk(first.context_node.users, lambda n: n.users if n.name in REDUCES else []):
        if node.name not in REDUCES:
            continue
        output = node.outputs[0].flatten().sort()[0]
        if any(output.shape == x.shape and torch.allclose(output, x, atol=1e-6) for x in wrong):
            n_heads, d = len(by_head), by_head.shape[-1]
            repeated = any(u.outputs[0].numel() == n_heads * len(output) for u in node.users)
            narrow = n_heads * d <= projection.args[-2].shape[-1]
            # Some designs have heads of the whole width, and add them.
            level: Level = "error" if subject.claims.n_heads or repeated or narrow else "warning"
            done, right = "followed the heads' outputs", f"side by side, of width {n_heads * d}"
            found = f"{n_heads} heads of width {d} become one of width {d}, by {node.name}"
            yield finding("heads not concatenated", done + where(first), found, right, level)
            return


def number_of_heads(subject: Subject) -> Results:
    """There are as many heads as claimed."""
    claimed, trace = subject.claims.n_heads or 1, locate.trace_of(subject)
    attentions = [a for a in trace.attentions if len(a.weights) % subject.n_sequences == 0]
    if not attentions:
        return
    counts = {heads_in(subject, a) for a in attentions}
    joined = {sum(heads_in(subject, a) for a in part) for _, _, part in _merged(trace)}
    width, projection = attentions[0].query.shape[-1], projected(attentions[0].query_node)
    inner = width if projection is None else projection.args[-2].shape[-1]
    fits = claimed == 1 or width * claimed <= inner
    if claimed in counts | joined or (counts == {1} and len(attentions) % claimed == 0 and fits):
        return
    if any(a.weights.shape[-2] not in map(subject.length, subject.sources) for a in attentions):
        return  # heads says what it attends over
    found = f"{sorted(counts)} of width {width}"
    yield finding(
        "wrong number of heads", "counted the heads of the weights", found, f"{claimed}, as claimed"
    )


def groups(subject: Subject) -> Results:
    """Neighbouring query heads share a key head."""
    claimed = subject.claims.n_kv_heads
    first = next(iter(locate.attentions(subject)), None)
    n_heads = 1 if first is None else heads_in(subject, first)
    if first is None or n_heads < 2 or len(first.key) % subject.n_sequences:
        return
    keys, values = equal_heads(first.key[:n_heads]), equal_heads(first.value[:n_heads])
    distinct = len(set(keys))
    if claimed is not None and distinct != claimed:
        done, found = "compared the keys of the heads", f"{distinct} different key heads"
        yield finding("wrong number of heads", done, found, f"{claimed}, as claimed")
        return
    neighbours = [h // (n_heads // distinct) for h in range(n_heads)]
    if distinct not in (1, n_heads) and not keys == values == neighbours:
        level: Level = "error" if keys != values else "warning"  # as in x-transformers
        done = "compared the keys and values of the heads"
        found = f"query heads use key heads {keys} and value heads {values}"
        right = f"{neighbours}, in most published models"
        yield finding("other groups of heads", done, found, right, level)
