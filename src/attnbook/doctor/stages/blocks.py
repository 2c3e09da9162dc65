"""What is around the attentions: tokens, norms, the memory, windows, the embedding's scale."""

import math

import torch
from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level, NotJudged
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import Results, mixed, origins, path, projected, where
from attnbook.doctor.tape.trace import MOVES, PRODUCTS, Node, Trace, back, scalar, walk

NORMS = ("native_layer_norm", "_fused_rms_norm")
ROWS = (*NORMS, "add", "mm", "addmm")
BEFORE = (
    *(*MOVES, "cat", "stack", "constant_pad_nd", "roll", "convolution", "lerp", "flip"),
    *("add", "add_", "sub", "mul", "native_dropout", "zero_", "fill_", "masked_fill"),
    *("index", "index_select", "index_put_", "gather", "slice_scatter"),
)
"""On the way from a norm to projections: token shifts, short convolutions, positions."""
REDUCTIONS = ("mean", "var", "var_mean", "std", "sum", "norm", "linalg_vector_norm", "amax", *NORMS)
DIVISIONS = ("div", "div_", "rsqrt", "rsqrt_", "reciprocal", "pow", "native_group_norm")
BY_HAND = ("mul", "div", "add", *MOVES)
CONVOLUTIONS = ("convolution", "pointwise")
ELEMENTWISE = ("relu", "gelu", "silu", "native_batch_norm", "native_group_norm")


def memory(subject: Subject) -> Results:
    """All of the memory is open to every token of the target."""
    others = [n for n in subject.sources if n not in (subject.target, *subject.same)]
    lengths = {subject.length(name) for name in others} - {subject.n_tokens}
    for a in locate.attentions(subject):
        n_queries, n_keys = a.weights.shape[-2:]
        is_open = locate.support(a)
        if n_queries != subject.n_tokens or n_keys not in lengths or len(is_open.unique()) < 2:
            continue  # all is open, or nothing
        if not is_open.triu(1).any():
            done = "observed which weights are open" + where(a)
            found = "query i attends only to the first i + 1 positions of the memory"
            yield finding("causal mask on the memory", done, found, "to all of it")
            return


def norms(subject: Subject) -> Results:
    """A norm runs over the width, and scaling its input leaves its output the same."""
    widths = {n for p in subject.parameters.values() if p.dim() > 1 for n in p.shape}
    for node in locate.trace_of(subject).of("native_layer_norm"):
        if [subject.n_tokens] == [*node.args[1]] and subject.n_tokens not in widths:
            done = "observed a norm" + locate.in_module(node)
            found = f"it is over {subject.n_tokens} numbers, as many as there are tokens"
            yield finding("norm over the tokens", done, found, "the width")
            return
    for name, module, args, kwargs in locate.norm_calls(subject):
        x = args[0] / args[0].square().mean().sqrt().clamp(min=1e-30)  # else eps counts
        with torch.no_grad(), Trace([x]) as trace:
            module(x, *args[1:], **kwargs)
        if not trace.of(*REDUCTIONS):
            continue  # an affine map, or a curve, in a norm's place
        small, large, moved = (module(y, *args[1:], **kwargs) for y in (x * 1e2, x * 1e3, x + 1e2))
        if not isinstance(small, Tensor) or not small.isfinite().all():
            continue
        level: Level = "error" if trace.of(*DIVISIONS, *NORMS) else "warning"
        size = small.abs().max().clamp(min=1e-30)
        off, times = float((small - large).abs().max() / size), float(moved.abs().max() / size)
        mistakes = {
            f"scaled by 10, its input gives outputs that differ by {off:.0%}": off > 0.05,
            # It divides by the standard deviation, and does not take off the mean.
            f"moved, its input gives outputs {times:.0f} times as large": times
            > 2 * x.shape[-1] ** 0.5,
        }
        for found in (words for words, is_so in mistakes.items() if is_so):
            done = f"called {name or 'the norm'} with its input scaled, and with 100 added"
            right = "outputs of the same size"
            yield finding("norm that does not normalise", done, found, right, level)
            return


def norm_order(subject: Subject) -> Results:
    """The stream that branches are added to is normed after the sum, or never, as claimed."""
    claimed, sums = subject.claims.norm, locate.trace_of(subject).of("add", "add_")
    made_by = [(a, projected(a.query_node)) for a in locate.attentions(subject)] if claimed else []
    if claimed and not any(made for _, made in made_by):
        yield NotJudged("norm order", "no projection of queries was seen")
    for a, made in made_by:
        if made is None:
            continue
        passed, ends = _way_from_norm(made.inputs[-2][0], BEFORE if claimed == "pre" else MOVES)
        is_normed = bool(ends) and all(map(_is_norm, ends))
        later = [n for n in sums if ends and n.index > ends[0].index and n not in passed]
        terms = [x for n in later for _, x in n.inputs]
        # The norm may be called a second time, for the sum: numbers are compared.
        is_added = any(
            x.shape == y.shape and x.equal(y) for n in ends[:1] for y in n.outputs for x in terms
        )
        done = "followed the stream around the attention" + where(a)
        if claimed == "post" and is_normed and not is_added:
            found, right = "the branch's input alone is normed", "norm(x + attention(x))"
            yield finding("norm not after the sum", done, found, right)
            return
        if claimed == "pre" and (is_added or not is_normed):
            found = "the stream itself is normed" if is_normed else "the branch's input is not"
            yield finding("norm not before the branch", done, found, "x + attention(norm(x))")
            return


def _way_from_norm(node: Node | None, through: tuple[str, ...]) -> tuple[list[Node], list[Node]]:
    """What a projection's input passed since it was normed, and where that began."""

    def on_way(n: Node) -> bool:
        return n.name in through and not _is_norm(n)

    def before(n: Node) -> list[Node]:
        return [m for m in n.makers if m and m.depends] if on_way(n) else []

    nodes = list(walk([node], before))
    return [n for n in nodes if on_way(n)], [n for n in nodes if not on_way(n)]


def _is_norm(node: Node) -> bool:
    """True if this is a norm, or the last operation of one by hand."""
    last = walk([node], lambda n: n.makers if n.name.rstrip("_") in BY_HAND else [])
    by_hand = any(n.name in ("rsqrt", "sqrt", "std") and n.module == node.module for n in last)
    return node.name in NORMS or (node.name.rstrip("_") in BY_HAND[:3] and by_hand)


def _users(node: Node) -> list[Node]:
    """The operations that use a node's output, looking through views and dropout."""
    through = (*MOVES, "native_dropout")
    later = walk(node.users, lambda n: n.users if n.name in through else [])
    return [user for user in later if user.name not in through]


def activation(subject: Subject) -> Results:
    """Two matrices in a row, of which one widens and one narrows, are not one linear map."""
    contexts = {a.context_node.index for a in locate.attentions(subject)}
    for first in locate.trace_of(subject).of(*PRODUCTS):
        before = walk(first.makers[-2:-1], lambda n: n.makers if n.name in MOVES else [])
        if any(n.index in contexts for n in before):
            continue  # an attention's output may be projected twice
        later = walk(first.users, lambda n: n.users if _is_linear(n) else [])
        # What comes to nothing, as the result of F.relu(x) that is not kept, does not count.
        ends = [n for n in later if not _is_linear(n) and (n.users or n.name in PRODUCTS)]
        if len(ends) != 1 or ends[0].name not in PRODUCTS or first.between or ends[0].between:
            continue
        (wide, middle, _), (again, narrow, x) = _widths(first), _widths(ends[0])
        is_whole = middle == again and x.numel() == first.outputs[0].numel()
        if is_whole and max(wide, narrow) < middle:
            done = "followed what a matrix gives" + locate.in_module(first)
            found = f"{wide} → {middle} → {narrow}, and nothing but linear maps between"
            right = "an activation between them: else one matrix does the same"
            yield finding("no activation", done, found, right)
            return


def _is_linear(node: Node) -> bool:
    """True if it moves numbers, or adds or multiplies by something that is no input's."""
    inputs = [n for n in node.makers if n is not None and n.depends]
    return node.name in (*MOVES, "native_dropout") or (
        node.name.rstrip("_") in ("add", "mul", "div") and len(inputs) < 2
    )


def _widths(node: Node) -> tuple[int, int, Tensor]:
    """Input width, output width and input of a matrix product."""
    is_right = node.makers[-1] is not None and node.makers[-1].depends
    axis, x = (-2, node.args[-1]) if is_right else (-1, node.args[-2])
    return int(x.shape[axis]), int(node.outputs[0].shape[axis]), x


def channels(subject: Subject) -> Results:
    """A token is what stands at one position of a grid, and tokens of one row make a sequence."""
    yield from _channels(subject)
    yield from _axes(subject)


def _channels(subject: Subject) -> Results:
    """What a convolution gives at a position becomes one token."""
    for node in locate.trace_of(subject).of(*CONVOLUTIONS, *ELEMENTWISE):
        if back(node, ELEMENTWISE, CONVOLUTIONS) is None:
            continue
        values = node.outputs[0].movedim(-1, 1) if node.name == "pointwise" else node.outputs[0]
        width, *sizes = values.shape[1:]
        if width in (*sizes, math.prod(sizes)):
            continue
        position = torch.arange(math.prod(sizes)).view(sizes)
        users = walk(node.users, lambda n: n.users if n.name in (*MOVES, "cat") else [])
        given = [x for n in users if n.name in ROWS for _, x in n.inputs]
        rows = (x.reshape(-1, width) for x in given if x.shape[-1:] == (width,))
        if any(mixed(origins(x, values, position)) for x in rows):
            done = "followed what a convolution gives" + locate.in_module(node)
            found, right = "a token has numbers of several positions", "of one position"
            yield finding("channels not transposed", done, found, right)
            return


def _axes(subject: Subject) -> Results:
    """An attention over one axis of a grid is among tokens that make up a row of it."""
    for a in locate.attentions(subject)[:1]:
        made, n = projected(a.value_node), a.value.shape[1]
        node, grid = made.inputs[-2] if made is not None else (None, a.value)
        while node is not None and node.name in MOVES:
            node, grid = node.inputs[0]  # as it was before it became rows
        sizes, width = grid.shape[:-1], grid.shape[-1]
        is_grid = len(sizes) > 2 and sizes[1:].count(n) == 1
        if made is None or made.args[-2].shape[-1] != width or not is_grid:
            return
        # Which token of the grid a row of the projection is of, and then each value.
        token = torch.arange(math.prod(sizes)).view(sizes)[..., None]
        row = origins(made.args[-2].reshape(-1, width), grid, token)[:, :1]
        values = next(x for node, x in path(a.value_node) if node.name not in MOVES)
        if values[..., 0].numel() != len(row):
            return
        value = origins(a.value.flatten(0, 1), values.flatten(0, -2), row)[:, 0]
        for together in (tokens for tokens in value.view(-1, n) if tokens.min() >= 0):
            places = [axis.tolist() for axis in torch.unravel_index(together, sizes)]
            if math.prod(len({*axis}) for axis in places) > n:
                done = "followed the tokens of a grid" + where(a)
                found = f"{[*zip(*places, strict=True)][:8]} attend to each other"
                yield finding("axes not transposed", done, found, "a row, or a column")
                return


def embedding_scale(subject: Subject) -> Results:
    """Embeddings are multiplied as claimed, before positions are added."""
    claimed = subject.claims.embedding_scale
    assert claimed is not None
    tables = [node for node in locate.trace_of(subject).of("embedding") if node.depends]
    if not tables:  # of positions, perhaps
        yield NotJudged("embedding scale", "no table is read at the ids")
    for node in tables:
        factor, scaled = 1.0, node
        while len(users := _users(scaled)) == 1 and users[0].name.rstrip("_") in ("mul", "div"):
            scaled = users[0]
            factor *= scalar(scaled)[0] or 1.0
        if not math.isclose(factor, claimed, rel_tol=1e-3):
            done = "observed what is done with the embeddings"
            found = f"they are multiplied by {factor:.4g} before anything is added"
            yield finding("other embedding scale", done, found, f"by {claimed:.4g}, as claimed")
        return


def window(subject: Subject) -> Results:
    """Each token attends to as many as claimed."""
    claimed = subject.claims.window
    if claimed is None or subject.n_tokens <= claimed:
        yield NotJudged("window", "the example is not longer than it")
        return
    if not locate.supports(subject):
        yield NotJudged("window", "no tokens were seen to attend to each other")
    last_rows = [is_open[-1] for is_open in locate.supports(subject)]
    reach = [len(row) - int(row.nonzero()[0]) for row in last_rows]
    if reach and claimed not in reach:
        done, found = "observed which weights are open", f"the last token attends to {reach[0]}"
        yield finding("other window", done, found, f"{claimed}, itself included")
