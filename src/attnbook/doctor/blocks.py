"""What is around the attentions: residuals, norms, the memory, windows, the embedding's scale."""

import itertools
import math

import torch
from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, mixed, origins, projected, where
from attnbook.doctor.report import NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import MOVES, PRODUCTS, Node, scalar, walk

AT_MOST = 100
"""Tokens of a grid that are changed, one after the other."""
NORMS = ("native_layer_norm", "_fused_rms_norm")
STATISTICS = (*NORMS, "pow", "mean", "var_mean", "linalg_vector_norm")
ROWS = (*NORMS, "add", "mm", "addmm")
BEFORE = (
    *(
        *MOVES,
        "cat",
        "stack",
        "constant_pad_nd",
        "roll",
        "convolution",
        "add",
        "add_",
        "sub",
        "mul",
    ),
    *("lerp", "native_dropout", "index_put_", "slice_scatter", "zero_", "fill_", "masked_fill"),
    *("index", "index_select", "gather", "flip"),
)
"""On the way from a norm to projections: token shifts, short convolutions, positions."""
ELEMENTWISE = ("relu", "gelu", "silu", "native_batch_norm", "native_group_norm")


def memory(subject: Subject) -> Results:
    """All of the memory is open to every token of the target."""
    others = [n for n in subject.sources if n not in (subject.target, *subject.same)]
    lengths = {subject.length(name) for name in others} - {subject.n_tokens}
    for a in locate.attentions(subject):
        if a.weights.shape[-2] != subject.n_tokens or a.weights.shape[-1] not in lengths:
            continue
        open_ = locate.support(a)
        if not open_.triu(1).any() and not open_.all():
            done = "observed which weights are open" + where(a)
            found = "a token attends to as many of the memory as it has predecessors"
            yield finding("causal mask on the memory", done, found, "to all")
            return


def norms(subject: Subject) -> Results:
    """A norm is over the width, and what it gives does not depend on the length of that."""
    widths = {n for p in subject.parameters.values() if p.dim() > 1 for n in p.shape}
    for node in locate.trace_of(subject).of("native_layer_norm"):
        over = list(node.args[1])
        if over == [subject.n_tokens] and subject.n_tokens not in widths and node.depends:
            done = "observed a norm" + locate.in_module(node)
            found, right = f"it is over {over[0]} numbers, as many as there are tokens", "the width"
            yield finding("norm over the tokens", done, found, right)
            return
    for name, module, args, kwargs in locate.norm_calls(subject):
        x = args[0] / args[0].square().mean().sqrt().clamp(min=1e-30)  # else eps counts
        one, other, moved = (module(y, *args[1:], **kwargs) for y in (x * 1e2, x * 1e3, x + 1e2))
        if not isinstance(one, Tensor) or not one.isfinite().all():
            continue
        size = one.abs().max().clamp(min=1e-30)
        off, larger = float((one - other).abs().max() / size), float(moved.abs().max() / size)
        done, found = f"called {name or 'the norm'} with its input scaled to ", ""
        if off > 0.05:
            done, found = done + "100 and 1000", f"its outputs differ by {off:.0%}"
        elif larger > 2 * x.shape[-1] ** 0.5:  # divided by the standard deviation, not centred
            done, found = done + "100, and + 100", f"the latter's are {larger:.0f} times as large"
        if found:
            cause = "norm that does not normalise"
            yield finding(cause, done, found, "outputs of the same size")
            return


def norm_order(subject: Subject) -> Results:
    """The stream that branches are added to is normed after the sum, or never, as claimed."""
    claimed = subject.claims.norm
    for layer, a in enumerate(locate.attentions(subject)):
        made = projected(a.query_node)
        given = _unmoved(made.inputs[-2][0]) if made is not None else None
        if made is None or (given is None and claimed != "pre"):
            continue
        normed = given is not None and _is_norm(given)
        if given is not None and not normed and claimed == "pre":
            passed, ends = _shifted(given)
            normed, given = bool(ends) and all(map(_is_norm, ends)), ends[0] if ends else given
        else:
            passed = []
        # The norm may be called a second time, for the sum.
        added = given is not None and any(
            x.equal(given.outputs[0])
            for n in locate.trace_of(subject).of("add", "add_")
            for _, x in n.inputs
            if n.index > given.index and x.shape == given.outputs[0].shape and n not in passed
        )
        done = "followed the stream around the attention" + where(a)
        right, cause = "x + attention(norm(x))", "norm not before the branch"
        if claimed == "post" and normed and not added:
            found, right = "the branch's input alone is normed", "norm(x + attention(x))"
            cause = "norm not after the sum"
        elif claimed == "pre" and not (normed and not added):
            found = "the stream itself is normed" if normed else "what it is given is not normed"
        elif claimed is None and layer and normed and added and given and _then_pre(given):
            found = "the stream itself is normed here, and not in the next branch"
        else:
            continue
        yield finding(cause, done, found, right)
        return


def _shifted(node: Node) -> tuple[list[Node], list[Node]]:
    """What mixes neighbours or adds positions before the projections, and what that is given."""

    def on_way(n: Node) -> bool:
        return n.name in BEFORE and not _is_norm(n)

    def before(n: Node) -> list[Node]:
        return [m for m in n.makers if m and m.depends] if on_way(n) else []

    every = list(walk([node], before))
    return [n for n in every if on_way(n)], [n for n in every if not on_way(n)]


def _is_norm(node: Node) -> bool:
    """Whether it is a norm, or the last operation of one by hand."""
    last = walk([node], lambda n: n.makers if n.name in ("mul", "div", "add", *MOVES) else [])
    by_hand = any(n.name in ("rsqrt", "sqrt", "std") and n.module == node.module for n in last)
    return node.name in NORMS or (node.name in ("mul", "div", "add") and by_hand)


def _then_pre(normed: Node) -> bool:
    """Whether the sum of the normed stream and its branch is normed for the next branch alone."""
    for total in (user for user in _users(normed) if user.name in ("add", "add_")):
        later = _users(total)
        is_normed = any(n.name in STATISTICS or "norm" in n.module.split(".")[-1] for n in later)
        if is_normed and any(n.name in ("add", "add_") and n.module == total.module for n in later):
            return True
    return False


def _unmoved(node: Node | None) -> Node | None:
    while node is not None and node.name in MOVES and node.inputs:
        node = node.inputs[0][0]
    return node


def _users(node: Node) -> list[Node]:
    """What uses what a node gives, moved or dropped out or not."""
    through = (*MOVES, "native_dropout")
    later = walk(node.users, lambda n: n.users if n.name in through else [])
    return [user for user in later if user.name not in through]


def activation(subject: Subject) -> Results:
    """Two matrices in a row, of which one widens and one narrows, are not one linear map."""
    for first in locate.trace_of(subject).of(*PRODUCTS):
        later = list(walk(first.users, lambda n: n.users if _linear(n) else []))
        # What comes to nothing, as the result of F.relu(x) that is not kept, does not count.
        others = [n for n in later if not _linear(n) and (n.users or n.name in PRODUCTS)]
        if first.between or len(others) != 1 or others[0].name not in PRODUCTS:
            continue
        (wide, middle, _), (again, narrow, given) = _widths(first), _widths(others[0])
        whole = middle == again and given.numel() == first.outputs[0].numel()
        if whole and max(wide, narrow) < middle and not others[0].between:
            done = "followed what a matrix gives" + locate.in_module(first)
            found = f"{wide} → {middle} → {narrow}, and nothing but linear maps between"
            right = "an activation between them: else one matrix does the same"
            yield finding("no activation", done, found, right)
            return


def _axes(subject: Subject) -> Results:
    """An attention over one axis of a grid is among tokens that make up a rectangle, as a row."""
    inputs, name, found = subject.fresh(0), subject.target, locate.attentions(subject)[:1]
    x = inputs[name]
    axes = [axis for axis in range(x.dim()) if axis != subject.batch]
    for a in found if x.is_floating_point() and len(axes) > 2 else ():
        made, n = projected(a.query_node), a.query.shape[1]
        rows = 0 if made is None else made.outputs[0][..., 0].numel()
        channel = next((i for i in (axes[-1], axes[0]) if rows * x.shape[i] == x.numel()), None)
        grid = [axis for axis in axes if axis != channel]
        sizes = [x.shape[axis] for axis in grid]
        if channel is None or sizes.count(n) != 1 or not n < math.prod(sizes) <= AT_MOST:
            continue
        groups: dict[frozenset[int], list[tuple[int, ...]]] = {}
        for at in itertools.product(*map(range, sizes)):
            place = dict(zip(grid, at, strict=True)) | {subject.batch: 0}
            index = tuple(place.get(axis, slice(None)) for axis in range(x.dim()))
            other = x.clone()
            other[index] += 1 + other[index].flip(-1)
            twin = subject.trace({**inputs, name: other}).attentions[0]
            moved = (twin.query != a.query).any(-1)
            if not moved.any() or moved.sum(1).max() > 1:
                return  # neighbours are mixed first
            groups.setdefault(frozenset(moved.any(1).nonzero().flatten().tolist()), []).append(at)
        for group in groups.values():
            if math.prod(len(set(along)) for along in zip(*group, strict=True)) > len(group) == n:
                done = "changed each token of a grid" + where(a)
                said, right = f"{group[:8]} attend to each other", "a row, or a column"
                yield finding("axes not transposed", done, said, right)
                return


def channels(subject: Subject) -> Results:
    """What a convolution gives at a position becomes one token."""
    yield from _axes(subject)
    trace, through = locate.trace_of(subject), (*MOVES, "cat")
    for first in trace.of("convolution", "pointwise"):
        x = first.outputs[0] if first.name == "convolution" else first.outputs[0].movedim(-1, 1)
        positions = torch.arange(x[0, 0].numel()).view(x.shape[2:])
        same = walk([first], lambda n: [u for u in n.users if u.name in ELEMENTWISE])
        sizes = *x.shape[2:], positions.numel()
        for node in same if x.shape[1] not in sizes else ():
            values = x if node is first else node.outputs[0]
            users = walk(node.users, lambda n: n.users if n.name in through else [])
            given = [y for n in users if n.name in ROWS for _, y in n.inputs]
            rows = (y.reshape(-1, x.shape[1]) for y in given if y.shape[-1:] == x.shape[1:2])
            if values.shape == x.shape and any(mixed(origins(y, values, positions)) for y in rows):
                done = "followed what a convolution gives" + locate.in_module(first)
                found, right = "a token has numbers of several positions", "of one position"
                yield finding("channels not transposed", done, found, right)
                return


def _linear(node: Node) -> bool:
    """Whether it moves numbers, or adds to them or multiplies them by what is no input's."""
    inputs = [n for n in node.makers if n is not None and n.depends]
    return node.name in (*MOVES, "native_dropout") or (
        node.name.rstrip("_") in ("add", "mul", "div") and len(inputs) < 2
    )


def _widths(node: Node) -> tuple[int, int, Tensor]:
    """Of what a matrix is given and gives, and what it is given."""
    right = node.makers[-1] is not None and node.makers[-1].depends
    axis, x = (-2, node.args[-1]) if right else (-1, node.args[-2])
    return int(x.shape[axis]), int(node.outputs[0].shape[axis]), x


def embedding_scale(subject: Subject) -> Results:
    """Embeddings are multiplied as claimed, before positions are added."""
    claimed = subject.claims.embedding_scale
    assert claimed is not None
    for node in locate.trace_of(subject).of("embedding"):
        if not node.depends:
            continue  # of positions
        factor, now = 1.0, node
        while len(users := _users(now)) == 1 and users[0].name.rstrip("_") in ("mul", "div"):
            now = users[0]
            factor *= scalar(now)[0] or 1.0
        if not math.isclose(factor, claimed, rel_tol=1e-3):
            done = "observed what is done with the embeddings"
            found = f"they are multiplied by {factor:.4g} before anything is added"
            right = f"by {claimed:.4g}, as claimed"
            yield finding("other embedding scale", done, found, right)
        return


def window(subject: Subject) -> Results:
    """Each token attends to as many as claimed."""
    claimed = subject.claims.window
    if claimed is None or subject.n_tokens <= claimed:
        yield NotJudged("window", "the example is not longer than it")
        return
    last = [open_[-1] for open_ in locate.supports(subject)]
    found = [len(row) - int(torch.nonzero(row)[0]) for row in last]
    if found and claimed not in found:
        done = "observed which weights are open"
        right = f"{claimed}, itself included"
        attends = f"the last token attends to {found[0]}"
        yield finding("other window", done, attends, right)
