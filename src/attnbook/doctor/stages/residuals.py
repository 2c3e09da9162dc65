"""The ways around attentions and feed-forward layers, found by silencing them."""

from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.causes import finding
from attnbook.doctor.report import Level
from attnbook.doctor.stages import locate
from attnbook.doctor.stages.observed import Results, projected
from attnbook.doctor.tape.trace import MOVES, PRODUCTS, Attention, Node, back, walk

MODELS = ("tokens", "encoder-decoder")


def residual(subject: Subject) -> Results:
    """What attentions and feed-forward layers give is added to what they are given."""
    trace = subject.trace(subject.fresh(0))  # the first call may have made tables: other nodes
    attentions = trace.attentions
    # Latents, which are pooled, read what they are not added to.
    in_a_row = subject.kind not in ("pooled", "pictures") and _in_a_row(attentions)
    wanted = in_a_row or subject.claims.residual
    if not attentions or not (wanted or subject.claims.norm):
        return
    if _has_way_around(subject, {a.context_node.index for a in attentions}):
        yield from _layers(subject, attentions, None if in_a_row else trace.nodes[-1])
    elif wanted:  # else what is around it may be elsewhere
        yield from _attentions(subject, attentions, in_a_row)


def _attentions(subject: Subject, attentions: list[Attention], in_a_row: bool) -> Results:
    """No attention can be passed by: an error if other layers can, or if it is claimed."""
    if not subject.claims.residual and _queries_are_learned(subject):
        return
    level: Level = "error" if subject.claims.residual else "warning"
    if subject.kind in MODELS:
        layers = _layers_after(attentions, None) if in_a_row else []
        by_layer = [_has_way_around(subject, {node.index}) for node in layers]
        alone = [_has_way_around(subject, {a.context_node.index}) for a in attentions]
        if (by_layer and all(by_layer)) or len({*alone}) > 1:
            level = "error"
    done = "set what the attentions give to zero, and changed the first and last token"
    found, right = "its output did not change", "x + attention(x): it changes"
    yield finding("missing residual connection", done, found, right, level)


def _layers(subject: Subject, attentions: list[Attention], last: Node | None) -> Results:
    """Each feed-forward layer can be passed by, and what the attention gives passes it."""
    claimed = subject.claims.residual or subject.claims.norm
    first = {a.context_node.index for a in attentions if _same_input(a, attentions[0])}
    for node in _layers_after(attentions, last):
        if back(node.makers[0], MOVES, ("cat",)):
            continue  # it joins two streams, as the skips of a U-Net do
        done = f"set what a layer gives to zero{locate.in_module(node)}"
        output, changed = _outputs(subject, {node.index})
        if output.equal(changed):
            if last is not None:
                continue  # it gives the output
            level: Level = "error" if subject.kind in MODELS else "warning"
            done, found = f"{done}, and changed two tokens", "its output did not change"
            right = "x + layer(x): it changes"
            yield finding("missing residual connection", done, found, right, level)
            return
        of_layer, of_layer_changed = _outputs(subject, first, node)
        is_of_attention = of_layer.equal(of_layer_changed)
        one, other = _sum(attentions[0].context_node), _sum(node)
        branches = one and other and one[0] is not other[0] and one[1].equal(other[1])
        if is_of_attention or not branches or not output.isfinite().all():
            continue  # a stream within a branch is silent with it
        if output.equal(_outputs(subject, {node.index, *first})[0]):
            found = "what the attention before it gives has no effect then"
            right = "x = x + attention(x), and then x + layer(x), with that x"
            level = "error" if subject.kind in MODELS or claimed else "warning"
            yield finding("residual adds a stale input", done, found, right, level)
            return


def _outputs(subject: Subject, silenced: set[int], node: Node | None = None) -> list[Tensor]:
    """Outputs of two calls that differ in two tokens, or of a node, while some nodes are zero."""
    inputs = subject.fresh(0)
    changed = inputs
    for token in (0, subject.n_tokens - 1):  # the output may be of the last one alone
        changed = subject.replaced(changed, subject.target, 0, token)
    traces = [subject.trace(x, silenced) for x in (inputs, changed)]
    outputs = [x.nodes[node.index].outputs[0] if node else x.output for x in traces]
    return [x for x in outputs if x is not None]


def _sum(branch: Node) -> tuple[Node, Tensor] | None:
    """Where a branch is added to something that is computed without it, and what that is."""
    inside = {branch.index}
    for node in walk(branch.users, lambda n: n.users):
        for maker, x in node.inputs if node.name.rstrip("_") == "add" else ():
            computed = maker.depends and maker.index not in inside if maker else not x.requires_grad
            if computed and x.shape == node.outputs[0].shape:
                return node, x
        inside.add(node.index)
    return None


def _queries_are_learned(subject: Subject) -> bool:
    """True if an attention reads the tokens by queries that do not depend on them."""
    inputs = subject.fresh(0)
    changed = subject.replaced(inputs, subject.target, 0, subject.n_tokens // 2)
    pairs = zip(*(subject.trace(x).attentions for x in (inputs, changed)), strict=False)
    return any(a.query.equal(b.query) and not a.key.equal(b.key) for a, b in pairs)


def _has_way_around(subject: Subject, silenced: set[int]) -> bool:
    """True if two tokens change the output although these operations give zeros."""
    output, changed = _outputs(subject, silenced)
    return not output.equal(changed)


def _in_a_row(attentions: list[Attention]) -> bool:
    """True if what an attention gives reaches the queries of another: not heads side by side."""
    contexts = {a.context_node.index for a in attentions}
    before = walk([a.query_node for a in attentions], lambda n: n.makers)
    return any(node.index in contexts for node in before)


def _layers_after(attentions: list[Attention], last: Node | None) -> list[Node]:
    """Products between the first attention's output projection and the next attention, or all."""
    first = attentions[0]
    later = [a for a in attentions if not _same_input(a, first)]
    # Its output projection, and what else is given the stream.
    users = walk(
        first.context_node.users, lambda n: [] if n.name in PRODUCTS and not n.between else n.users
    )
    own = {node.index for node in users if node.name in PRODUCTS}

    def before(node: Node) -> list[Node]:
        return [n for n in node.makers if n and n.depends and n.index >= first.context_node.index]

    end = projected(later[0].query_node) if later else last
    passed = walk(before(end) if end else [], lambda n: [] if n.index in own else before(n))
    return [n for n in passed if n.name in PRODUCTS and not n.between and n.index not in own]


def _same_input(one: Attention, other: Attention) -> bool:
    """True if the queries of both attentions are projected from equal numbers."""
    a, b = projected(one.query_node), projected(other.query_node)
    return a is None or b is None or a.args[-2].equal(b.args[-2])
