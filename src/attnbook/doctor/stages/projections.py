"""What makes queries, keys, values and the output."""

import itertools

import torch
from torch import Tensor, nn

from attnbook.doctor.call.subject import Subject, seed_all, tensors_in
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.learning import gradients
from attnbook.doctor.stages.observed import (
    Results,
    heads_in,
    matrix_of,
    origins,
    projected,
    sides,
    where,
)
from attnbook.doctor.tape.trace import PRODUCTS, Attention, Node


def projections(subject: Subject) -> Results:
    """Queries, keys and values are three different projections."""
    yield from _overlap(subject)
    first = next(iter(locate.attentions(subject)), None)
    if first is None:
        return
    yield from _heads_share(subject, first)
    if not subject.parameters or (subject.kind == "attention" and not subject.is_self):
        return
    made = sides(first)
    if len({len(x) for x, _ in made.values()}) > 1:
        return
    for pair in itertools.combinations(made, 2):
        (left, left_made), (right, right_made) = (made[name] for name in pair)
        if left_made is None or right_made is None or set(pair) <= set(subject.claims.shared):
            continue
        same = _same_outputs(left_made, right_made) and _proportional(left, right)
        if not same or matrix_of(left_made) != matrix_of(right_made):
            continue
        done = "compared queries, keys and values" + where(first)
        # Reformer shares them, and has no third one left over.
        spare = any(gradients(subject)) or any(_unused(subject, x) for _, x in made.values())
        level: Level = "error" if subject.claims.n_heads or spare else "warning"
        found = f"{' and '.join(pair)} are the same projection of the tokens"
        expected = f"different ones, or a claim: shared={pair}"
        yield finding("one projection for two", done, found, expected, level)
        return


def _overlap(subject: Subject) -> Results:
    """No two heads have a part of their numbers in common, while others are in none."""
    columns: dict[int, tuple[Node, list[set[int]]]] = {}
    for a in locate.attentions(subject):
        for x, made in sides(a).values():
            if made is None or made.between or made.name == "bmm":
                continue
            rows = made.outputs[0].flatten(0, -2)
            at = torch.arange(rows.shape[1])
            numbers = [origins(head, rows, at).flatten() for head in x[: heads_in(subject, a)]]
            heads = columns.setdefault(made.index, (made, []))[1]
            heads += [set(head.tolist()) - {-1} for head in numbers]
    for made, heads in columns.values():
        partly = any(
            one & other and one != other for one, other in itertools.combinations(heads, 2)
        )
        spare = _unused(subject, made) if partly else 0
        if spare:
            done = "followed the projections into the heads" + where(made)
            width = made.outputs[0].shape[-1]
            found = f"some numbers are in several heads, and {spare} of {width} in none"
            yield finding("heads overlap", done, found, "each number is of one head")
            return


def _unused(subject: Subject, made: Node | None) -> int:
    """How many of the numbers that a projection gives have no effect on the outputs."""
    if made is None:
        return 0
    used, at = made.args[-1], matrix_of(made)
    fitting = (p for p in subject.parameters.values() if p.numel() == used.numel() and p.dim() == 2)
    matrix = next((p for p in fitting if p.data_ptr() == at and p.requires_grad), None)
    if matrix is None:
        return 0
    seed_all(0)
    with torch.enable_grad():
        outputs = [x for x in tensors_in(subject.call(subject.fresh(0))) if x.requires_grad]
    if not outputs:
        return 0
    mixture = [torch.randn_like(x) for x in outputs]
    gradient = torch.autograd.grad(outputs, matrix, mixture, allow_unused=True)[0]
    axis = 1 if used.equal(matrix.mT) else 0
    return 0 if gradient is None else int((~gradient.any(axis)).sum())


def layers(subject: Subject) -> Results:
    """Each layer has matrices of its own, and they differ at the start."""
    made = [node for a in locate.attentions(subject) if (node := projected(a.query_node))]
    for first, later in itertools.combinations(made, 2):
        a, b = first.args[-1], later.args[-1]
        if first.between or not a.equal(b) or _same_outputs(first, later):
            continue
        done = "compared the matrices of the layers' queries"
        if matrix_of(first) == matrix_of(later):  # as in ALBERT
            found = "one matrix is used more than once" + locate.in_module(later)
            right = "a matrix for each layer, if it is no shared one"
            yield finding("one layer many times", done, found, right, "note")
        else:
            found = "two are equal" + locate.in_module(later)
            right = "a matrix for each layer, drawn anew"
            yield finding("layers start alike", done, found, right, "warning")
        return


def _same_outputs(one: Node, other: Node) -> bool:
    """True if two products give the same."""
    return one is other or one.outputs[0].equal(other.outputs[0])


def _proportional(a: Tensor, b: Tensor) -> bool:
    """True if the rows are the same but for a factor and a rotation."""
    if a.shape != b.shape:
        return False
    ratio = a.norm(dim=-1) / b.norm(dim=-1).clamp(min=1e-30)
    # At the first position no rotary turns anything.
    alike = torch.cosine_similarity(a[:, 0], b[:, 0], dim=-1)
    return bool(ratio.std() < 1e-3 * ratio.mean().abs() and alike.min() > 0.999)


def _heads_share(subject: Subject, a: Attention) -> Results:
    """Each head has a projection of its own, of the whole width."""
    made, n_heads, n = projected(a.query_node), heads_in(subject, a), subject.n_tokens
    if made is None or n_heads < 2 or "heads" in subject.claims.shared or made.name == "bmm":
        return
    width, (rows, inner) = a.query.shape[-1], made.args[-2].shape[-2:]
    if inner == width and rows == subject.n_sequences * n_heads * n and n == a.query.shape[-2]:
        level: Level = "error" if subject.claims.n_heads else "warning"
        done = "observed the projection of the queries" + where(a)
        found = f"it is {inner} → {made.outputs[0].shape[-1]}, one for all {n_heads} heads"
        right = f"{inner * n_heads} → {width * n_heads}: each head is given the whole token, or a "
        right += 'claim: shared=("heads",)'
        yield finding("heads share one projection", done, found, right, level)


def tying(subject: Subject) -> Results:
    """The output layer is the embedding, if it is meant to be."""
    parts = [part for m in subject.modules for part in m.modules()]
    tables = [part.weight for part in parts if isinstance(part, nn.Embedding)]
    for name, weight in subject.parameters.items():
        if weight.requires_grad and any(
            weight is not table and weight.equal(table) and weight.std() for table in tables
        ):
            level: Level = "error" if subject.claims.tied else "warning"
            found = f"{name} equals an embedding, and is another parameter"
            done, right = "compared the parameters", "one parameter, which is trained as one"
            yield finding("copied, not tied", done, found, right, level)
            return
    if not subject.claims.tied or subject.kind not in ("tokens", "encoder-decoder"):
        if subject.claims.tied:
            yield NotJudged("tying", "the call has no logits of ids")
        return  # without a trace, which would be kept: parameters change after this check
    last = next(reversed(locate.trace_of(subject).of(*PRODUCTS)), None)
    fits = last is not None and any(len(table) == last.outputs[0].shape[-1] for table in tables)
    if last is None or not fits:
        yield NotJudged("tying", "no product as wide as a table was seen")
        return
    width = last.outputs[0].shape[-1]
    matrices = [_sorted(x) for x in last.args if isinstance(x, Tensor)]
    fitting = [_sorted(table) for table in tables if len(table) == width]
    if fitting and not any(x.equal(table) for x in matrices for table in fitting):
        done = "compared the last product's matrix with the embedding"
        yield finding("not tied", done, "they differ", "the same matrix, as claimed")


def _sorted(x: Tensor) -> Tensor:
    """All numbers of a tensor in order, the same for its transpose."""
    return x.detach().flatten().sort()[0]
