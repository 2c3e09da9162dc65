"""The ways around attentions and feed-forward layers, found by silencing them."""

from collections.abc import Collection

from torch import Tensor

from attnbook.doctor import locate
from attnbook.doctor.causes import finding
from attnbook.doctor.observed import Results, projected
from attnbook.doctor.report import Level
from attnbook.doctor.subject import Inputs, Subject
from attnbook.doctor.trace import MOVES, PRODUCTS, Attention, Node, back, walk


def residual(subject: Subject) -> Results:
    """What attentions and feed-forward layers give is added to what they are given."""
    found = locate.attentions(subject)
    in_a_row = _in_a_row(found)
    in_a_row = in_a_row and subject.kind != "pooled"  # latents read what they are not added to
    yield from _doubled(subject, found)
    wanted = in_a_row or subject.claims.residual
    if not found or not (wanted or subject.claims.norm):
        return
    inputs = subject.fresh(0)
    other = inputs
    for token in (0, subject.n_tokens - 1):  # the output may be of the last one alone
        other = subject.replaced(other, subject.target, 0, token)
    silenced = {a.context_node.index for a in found}
    models = subject.kind in ("tokens", "encoder-decoder")
    if not _depends(subject, inputs, other, silenced):
        if not wanted:
            return  # what is around it may be elsewhere
        alone = [_depends(subject, inputs, other, {i}) for i in silenced]
        layers = [{n.index} for n in _layers_after(found, None)] if in_a_row else []
        around = bool(layers) and all(_depends(subject, inputs, other, i) for i in layers)
        others = models and (around or (any(alone) and not all(alone)))  # they have a way around
        level: Level = "error" if subject.claims.residual or others else "warning"
        done = "set what the attentions give to zero, and changed the first and last token"
        found_, right = "its output did not change", "x + attention(x): it changes"
        yield finding("missing residual connection", done, found_, right, level)
        return
    for node in _layers_after(found, None if in_a_row else subject.trace(inputs).nodes[-1]):
        if back(node.makers[0], MOVES, ("cat",)):
            continue  # it joins two streams, as the skips of a U-Net do
        around = _depends(subject, inputs, other, {node.index})
        if not (in_a_row or around):
            continue  # it gives the output
        if not around:
            done = f"set what a layer gives to zero{locate.in_module(node)}, and changed two tokens"
            found_, right = "its output did not change", "x + layer(x): it changes"
            level = "error" if models else "warning"
            yield finding("no way around a layer", done, found_, right, level)
            return
        first = {a.context_node.index for a in found if _same_input(a, found[0])}
        one, two = (subject.trace(x, first).nodes[node.index].outputs[0] for x in (inputs, other))
        if one.equal(two):
            continue  # it is a part of the attention
        if _output(subject, inputs, {node.index}).equal(
            _output(subject, inputs, {node.index, *first})
        ):
            done = f"set what a layer gives to zero{locate.in_module(node)}"
            found_ = "what the attention before it gives has no effect then"
            right = "x = x + attention(x), and then x + layer(x), with that x"
            claimed = subject.claims.residual or subject.claims.norm
            level = "error" if models or claimed else "warning"
            yield finding("residual adds a stale input", done, found_, right, level)
            return


def _doubled(subject: Subject, found: list[Attention]) -> Results:
    """What an attention gives is not added to itself."""
    through = (*MOVES, "native_dropout")
    for a in found:
        own = walk(a.context_node.users, lambda n: n.users if n.name in through else [])
        outputs = [n for n in own if n.name in PRODUCTS and not n.between]
        later = walk(outputs, lambda n: [m for m in n.users if m.name in (*through, "add")])
        for node in later:
            tensors = [x for _, x in node.inputs]
            if node.name.startswith("add") and len(tensors) == 2 and tensors[0] is tensors[1]:
                done = "followed what the attention gives" + locate.in_module(node)
                found_, right = "it is added to itself", "x + attention(x)"
                cause = "missing residual connection"
                yield finding(cause, done, found_, right)
                return


def _in_a_row(found: list[Attention]) -> bool:
    """Whether what an attention gives reaches the queries of another: not heads side by side."""
    contexts = {a.context_node.index for a in found}
    before = walk([a.query_node for a in found], lambda n: n.makers)
    return any(node.index in contexts for node in before)


def _output(subject: Subject, inputs: Inputs, silenced: Collection[int]) -> Tensor:
    output = subject.trace(inputs, silenced).output
    assert output is not None
    return output


def _depends(subject: Subject, one: Inputs, other: Inputs, silenced: Collection[int]) -> bool:
    return not _output(subject, one, silenced).equal(_output(subject, other, silenced))


def _layers_after(found: list[Attention], last: Node | None) -> list[Node]:
    """Products between the first attention's output projection and the next attention, or all."""
    first = found[0]
    later = [a for a in found if not _same_input(a, first)]
    # Its output projection, and what else is given the stream.
    users = walk(first.context_node.users, lambda n: [] if n.name in PRODUCTS else n.users)
    own = {node.index for node in users if node.name in PRODUCTS}

    def before(node: Node) -> list[Node]:
        return [n for n in node.makers if n and n.depends and n.index >= first.context_node.index]

    end = projected(later[0].query_node) if later else last
    passed = walk(before(end) if end else [], lambda n: [] if n.index in own else before(n))
    return [n for n in passed if n.name in PRODUCTS and not n.between and n.index not in own]


def _same_input(one: Attention, other: Attention) -> bool:
    a, b = projected(one.query_node), projected(other.query_node)
    return a is None or b is None or a.args[-2].equal(b.args[-2])
