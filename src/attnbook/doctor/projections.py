"""What makes queries, keys, values and the output."""

import itertools

import torch
from torch import Tensor, nn

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.invariants.learning import gradients
from attnbook.doctor.observed import Results, heads_in, matrix_of, origins, path, projected, where
from attnbook.doctor.report import Level
from attnbook.doctor.subject import Subject, seed_all, tensors_in
from attnbook.doctor.trace import PRODUCTS, Attention, Node


def projections(subject: Subject) -> Results:
    """Queries, keys and values are three different projections."""
    yield from _overlap(subject)
    for a in locate.attentions(subject)[:1]:
        yield from _heads_share(subject, a)
        if not subject.parameters or (subject.kind == "attention" and not subject.is_self):
            return
        given = {"query": a.query, "key": a.key, "value": a.value}
        nodes = (a.query_node, a.key_node, a.value_node)
        made = dict(zip(given, map(projected, nodes), strict=True))
        if len(set(map(len, given.values()))) > 1:
            return
        for left, right in (("query", "key"), ("key", "value"), ("query", "value")):
            one, other = made[left], made[right]
            if one is None or other is None or {left, right} <= set(subject.claims.shared):
                continue
            if not (_same_outputs(one, other) and _proportional(given[left], given[right])):
                continue
            if matrix_of(one) != matrix_of(other):  # as after copy.deepcopy
                cause, error = "projections start alike", False
                found = f"{left} and {right} are equal, by two equal matrices"
                right_ = "matrices drawn one by one"
            else:
                # Reformer shares them, and has no third one left over.
                error = bool(subject.claims.n_heads or any(gradients(subject)))
                error = error or any(_unused(subject, n) for n in made.values() if n is not None)
                cause = "one projection for two"
                found = f"{left} and {right} are the same projection of the tokens"
                right_ = f'different ones, or a claim: shared=("{left}", "{right}")'
            done = "compared queries, keys and values" + where(a)
            level: Level = "error" if error else "warning"
            yield finding(cause, done, found, right_, level)
            return


def _overlap(subject: Subject) -> Results:
    """No number of a projection is given to two heads while another is given to none."""
    found = locate.attentions(subject)
    for side in ("query_node", "key_node", "value_node"):
        columns: dict[int, tuple[Node, Tensor]] = {}
        for a in found:
            node: Node | None = getattr(a, side)
            made = projected(node)
            if node is None or made is None or made.between or made.name == "bmm":
                continue
            rows = made.outputs[0].flatten(0, -2)
            at = torch.arange(rows.shape[1])
            parts = [x for n, x in path(node) if n is not made and x.dim() > 1]
            every = (origins(x.flatten(0, -2), rows, at) for x in parts)
            of = next((found for found in every if (found >= 0).all()), at)  # before it is scaled
            counts = torch.bincount(of.flatten(), minlength=rows.shape[1])
            columns[made.index] = made, counts + columns.get(made.index, (made, 0))[1]
        for made, counts in columns.values():
            spare = _unused(subject, made) if len(set(counts[counts > 0].tolist())) > 1 else 0
            if spare:
                done = "followed the projections into the heads" + locate.in_module(made)
                said = f"some numbers are in several heads, and {spare} of {len(counts)} in none"
                right = "each number is of one head"
                yield finding("heads overlap", done, said, right)
                return


def _unused(subject: Subject, made: Node) -> int:
    """How many numbers that a projection gives have no effect on anything."""
    at = matrix_of(made)
    matrix = next((p for p in subject.parameters.values() if p.data_ptr() == at), None)
    if matrix is None or not matrix.requires_grad or matrix.dim() != 2:
        return 0
    turned = made.args[-1].equal(matrix.mT)
    if not (turned or made.args[-1].equal(matrix)):
        return 0
    inputs = subject.fresh(0)

    def outputs() -> list[Tensor]:
        seed_all(0)
        given = tensors_in(subject.call(inputs))
        return [x for x in given if x.is_floating_point()]

    with torch.enable_grad():
        before = [x for x in outputs() if x.requires_grad]
        drawn = torch.Generator().manual_seed(0)
        mixture = [(x * torch.randn(x.shape, generator=drawn).to(x)).sum() for x in before]
        total = torch.stack(mixture).sum() if mixture else None
        found = [] if total is None else torch.autograd.grad(total, [matrix], allow_unused=True)
    if not found or found[0] is None:
        return 0
    spare, kept = ~found[0].any(1 if turned else 0), matrix.detach().clone()
    with torch.no_grad():
        one = outputs()
        try:
            (matrix if turned else matrix.mT)[spare] += 1 + kept.abs().max()
            other = outputs()
        finally:
            matrix.copy_(kept)
    return int(spare.sum()) if all(map(torch.equal, one, other)) else 0


def layers(subject: Subject) -> Results:
    """Each layer has matrices of its own, and they differ at the start."""
    made = [node for a in locate.attentions(subject) if (node := projected(a.query_node))]
    for one, other in itertools.combinations(made, 2):
        a, b = one.args[-1], other.args[-1]
        if one.between or a.shape != b.shape or not a.equal(b) or _same_outputs(one, other):
            continue
        same = matrix_of(one) == matrix_of(other)
        done = "compared the matrices of the layers' queries"
        found = "one matrix is used more than once" if same else "two are equal"
        level: Level = "note" if same else "warning"  # ALBERT has one layer
        cause = "one layer many times" if same else "layers start alike"
        right = "a matrix for each layer" + (", if it is no shared one" if same else ", drawn anew")
        yield finding(cause, done, found + locate.in_module(other), right, level)
        return


def _same_outputs(one: Node, other: Node) -> bool:
    return one is other or one.outputs[0].equal(other.outputs[0])


def _proportional(a: Tensor, b: Tensor) -> bool:
    """Whether the rows are the same but for a factor and a rotation."""
    if a.shape != b.shape:
        return False
    ratio = a.norm(dim=-1) / b.norm(dim=-1).clamp(min=1e-30)
    # At the first position no rotary turns anything.
    alike = torch.cosine_similarity(a[:, 0], b[:, 0], dim=-1)
    return bool(ratio.std() < 1e-3 * ratio.mean().abs() and alike.min() > 0.999)


def _heads_share(subject: Subject, a: Attention) -> Results:
    """Each head has a projection of its own, of the whole width."""
    made, n_heads, n = projected(a.query_node), heads_in(subject, a), subject.n_tokens
    if made is None or n_heads < 2 or made.name not in ("mm", "addmm"):
        return
    if "heads" in subject.claims.shared:
        return
    rows, inner = made.args[-2].shape[-2:]
    width = a.query.shape[-1]
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
        if any(weight is not table and weight.equal(table) and weight.std() for table in tables):
            level: Level = "error" if subject.claims.tied else "warning"
            found = f"{name} equals an embedding, and is another parameter"
            done, right = "compared the parameters", "one parameter, which is trained as one"
            yield finding("copied, not tied", done, found, right, level)
            return
    if subject.claims.tied and subject.kind in ("tokens", "encoder-decoder"):
        last = next(reversed(locate.trace_of(subject).of(*PRODUCTS)), None)
        if last is None:
            return
        width = last.outputs[0].shape[-1]
        used = [x.flatten().sort()[0] for x in last.args if isinstance(x, Tensor)]
        fitting = [t.detach().flatten().sort()[0] for t in tables if len(t) == width]
        if fitting and not any(x.equal(table) for x in used for table in fitting):
            done = "compared the last product's matrix with the embedding"
            right = "the same matrix, as claimed"
            yield finding("not tied", done, "they differ", right)
