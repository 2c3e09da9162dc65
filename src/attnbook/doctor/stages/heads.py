"""How tokens are split into heads, and heads are merged."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import (
    Results,
    equal_heads,
    heads_in,
    mixed,
    origins,
    path,
    projected,
    sides,
    where,
)
from attnbook.doctor.tape.trace import MOVES, PRODUCTS, Attention, Node, Trace, walk

JOINS = (*MOVES, "cat", "stack", "mul", "div", "add_", "index_put_", "slice_scatter")
PICKS = ("gather", "index", "index_select", "topk", "sort")
REDUCES = (*MOVES, "cat", "stack", "mul", "div", "add_", "add", "sum", "mean")


def heads(subject: Subject) -> Results:
    """A token is one row of queries, keys and values in every head, and one row afterwards."""
    trace = locate.trace_of(subject)
    first = trace.attentions[0]
    # The rows of a picture are not its tokens.
    split = [] if subject.kind == "pictures" else list(_rows_stay(subject, first))
    split = split or list(_tokens_stay(subject, first))
    yield from split or _merge(subject, trace)  # after a wrong split, no merge is right
    by_head = _by_head(subject, trace)
    yield from _concatenated(subject, first, by_head, _by_head(subject, trace, "value"))
    if by_head.any() and _alike(by_head):
        done = "compared the heads' outputs" + where(first)
        found = f"all {len(by_head)} are the same"
        yield finding("identical heads", done, found, "each head differs")


def _rows_stay(subject: Subject, a: Attention) -> Results:
    """A token is one row of queries and keys."""
    if _picked(a):
        return
    token = 1 if subject.n_tokens > 2 else 0
    queries = _changed(subject, a, "query", subject.target, token)
    yield from _split(subject, a, queries.any(-1), token)
    keys = _changed(subject, a, "key", subject.attended[0], token)
    # A convolution before the keys changes more than the numbers of one key.
    if keys.sum((1, 2)).max() <= keys.shape[-1] and (keys.any(-1).sum(-1) > 1).any():
        done = f"changed token {token}" + where(a)
        found = f"keys {keys.any(-1).any(0).nonzero().flatten().tolist()} changed"
        yield finding("keys not transposed", done, found, f"key {token} alone")


def _picked(a: Attention) -> bool:
    """True if which rows queries or keys are depends on the tokens."""
    return any(n.name in PICKS for side in (a.query_node, a.key_node) for n, _ in path(side))


def _changed(subject: Subject, a: Attention, side: str, source: str, token: int) -> Tensor:
    """True for the numbers of the queries or keys that change with a token of a source."""
    before: Tensor = getattr(a, side)
    trace = subject.trace(subject.replaced(subject.fresh(0), source, 0, token))
    for twin in trace.attentions:
        after: Tensor = getattr(twin, side)
        if twin.score_node.index == a.score_node.index and after.shape == before.shape:
            return (before - after).abs() > 1e-6 * before.abs().max()
    return torch.zeros_like(before, dtype=torch.bool)


def _split(subject: Subject, a: Attention, changed: Tensor, token: int) -> Results:
    """The queries that changed with a token are its row in every head."""
    n, n_heads, shape = subject.n_tokens, heads_in(subject, a), list(a.weights.shape)
    heads, rows = (changed.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
    if not rows or n < 3:
        return
    done = f"changed token {token} of sequence 0" + where(a)
    alike = bool((changed[heads] == changed[heads[0]]).all())
    if shape[1] != n:
        if len(heads) == 1 < len(rows) == shape[1] and shape[0] == subject.n_sequences * n:
            found = f"the weights are {shape}: for each of {n} tokens, {shape[1]} heads attend"
            right = "tokens attend to tokens, for each head"
            yield finding("attention between heads", done, found, right)
    elif alike and len(heads) == n_heads and heads[0] > 0 and rows != [token]:
        found = f"row {rows[0]} of sequence {heads[0] // n_heads} changed"
        yield finding("batch and tokens exchanged", done, found, f"row {token} of sequence 0")
    elif not alike or (len(heads) < n_heads and rows != [token]):
        found = f"rows {rows} of {len(heads)} of {n_heads} heads changed"
        yield finding("split without transposing", done, found, f"row {token} of every head")


def _tokens_stay(subject: Subject, a: Attention) -> Results:
    """A row of queries, keys or values has the numbers of one token, all of one head."""
    for x, projection in sides(a).values():
        n, d = x.shape[1:]
        if projection is None or n == d or _n_rows(projection) != subject.n_sequences * n:
            continue  # attention between channels
        rows = projection.outputs[0].flatten(0, -2)
        tokens = origins(x.flatten(0, 1), rows, torch.arange(len(rows))[:, None])
        by_head = tokens.amax(1).view(-1, n).tolist()
        if mixed(tokens) or any(min(head) >= 0 and len(set(head)) < n for head in by_head):
            done = "followed the projections into the heads" + where(a)
            found = "a head's row has several tokens, or a part of one"
            yield finding("split without transposing", done, found, "each is of one token")
            return


def _n_rows(projection: Node | None) -> int:
    """Number of tokens that were projected; zero if a token is not a row."""
    if projection is None or projection.name == "bmm":
        return 0
    return projection.outputs[0][..., 0].numel()


def _merge(subject: Subject, trace: Trace) -> Results:
    """The values of one row after the merge come from one query."""
    lengths = set(map(subject.length, subject.sources))
    for node, merged, attentions in _merged(trace):
        if subject.kind == "pictures":
            lengths = {_n_rows(projected(a.query_node)) // subject.n_sequences for a in attentions}
        n_rows = merged[..., 0].numel()
        if any(
            _picked(a)
            or (a.score_node.between and a.context.shape[1] not in lengths)
            or (not a.score_node.between and n_rows != subject.n_sequences * a.context.shape[1])
            for a in attentions
        ):
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
    for node in trace.of(*PRODUCTS):
        tensors = [x for x in node.args if isinstance(x, Tensor)]
        if node.between or len(tensors) < 2:
            continue
        for tensor, maker in list(zip(tensors, node.makers, strict=False))[-2:]:
            if attentions := _joined(trace, maker):
                yield node, tensor, attentions


def _joined(trace: Trace, node: Node | None) -> list[Attention]:
    """The attentions whose outputs a node gives, moved or put side by side."""
    by_context = {a.context_node.index: a for a in trace.attentions}

    def before(node: Node) -> list[Node | None]:
        return node.makers if node.name in JOINS and node.index not in by_context else []

    return [by_context[n.index] for n in walk([node], before) if n.index in by_context]


def _by_head(subject: Subject, trace: Trace, side: str = "context") -> Tensor:
    """What the heads of the first attention give, or their values: (heads, batch, tokens, d)."""
    first = trace.attentions[0]
    n_heads, projection = heads_in(subject, first), projected(first.query_node)
    of_first: Tensor = getattr(first, side)
    shape = of_first.shape
    if len(of_first) % subject.n_sequences:
        return of_first[:0]
    if n_heads != 1 or projection is None:
        return of_first.reshape(-1, n_heads, *shape[1:]).transpose(0, 1)
    # Heads that are modules: their queries are made of the same tokens.
    made = ((getattr(a, side), projected(a.query_node)) for a in trace.attentions)
    tokens = projection.args[-2]
    return torch.stack(
        [x for x, by in made if x.shape == shape and by is not None and by.args[-2].equal(tokens)]
    )


def _alike(by_head: Tensor) -> bool:
    """True if there are several heads, and all are equal."""
    return len(by_head) > 1 and len(set(equal_heads(by_head))) == 1


def _concatenated(subject: Subject, first: Attention, by_head: Tensor, values: Tensor) -> Results:
    """Heads of a part of the width are put side by side: no sum or mean of them is made."""
    projection = projected(first.query_node)
    if projection is None or len(by_head) < 2 or _alike(by_head) or _alike(values):
        return  # with the same values, a mean is right
    wrong = [x.flatten().sort()[0] for x in (by_head.sum(0), by_head.mean(0))]
    later = walk(first.context_node.users, lambda n: n.users if n.name in REDUCES else [])
    for node in (n for n in later if n.name in REDUCES):
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
        yield NotJudged("number of heads", "heads were not seen apart from sequences")
        return
    counts = {heads_in(subject, a) for a in attentions}
    side_by_side = (_joined(trace, node) for node in trace.of(*JOINS))
    joined = {sum(heads_in(subject, a) for a in together) for together in side_by_side}
    width, projection = attentions[0].query.shape[-1], projected(attentions[0].query_node)
    inner = width if projection is None else projection.args[-2].shape[-1]
    fits = claimed == 1 or width * claimed <= inner
    if claimed in counts | joined or (counts == {1} and len(attentions) % claimed == 0 and fits):
        return
    if any(a.weights.shape[-2] not in map(subject.length, subject.sources) for a in attentions):
        return  # heads says what it attends over
    done, found = "counted the heads of the weights", f"{sorted(counts)} of width {width}"
    yield finding("wrong number of heads", done, found, f"{claimed}, as claimed")


def groups(subject: Subject) -> Results:
    """Neighbouring query heads share a key head."""
    claimed = subject.claims.n_kv_heads
    first = next(iter(locate.attentions(subject)), None)
    n_heads = 1 if first is None else heads_in(subject, first)
    if first is None or n_heads < 2 or len(first.key) % subject.n_sequences:
        yield NotJudged("groups", "no two heads were seen side by side")
        return
    keys, values = equal_heads(first.key[:n_heads]), equal_heads(first.value[:n_heads])
    distinct = len(set(keys))
    if claimed is not None and distinct != claimed:
        done, found = "compared the keys of the heads", f"{distinct} different key heads"
        yield finding("wrong number of heads", done, found, f"{claimed}, as claimed")
        return
    neighbours = [h // (n_heads // distinct) for h in range(n_heads)]
    if distinct not in (1, n_heads) and not keys == values == neighbours:
        as_many = distinct == len(set(values))  # DiffLlama joins the values of two heads
        level: Level = "error" if keys != values and as_many else "warning"  # as in x-transformers
        done = "compared the keys and values of the heads"
        found = f"query heads use key heads {keys} and value heads {values}"
        right = f"{neighbours}, in most published models"
        yield finding("other groups of heads", done, found, right, level)
