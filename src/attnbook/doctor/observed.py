"""What several checks ask about an attention."""

from collections.abc import Iterator

from torch import Tensor

from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.subject import Subject
from attnbook.doctor.trace import PRODUCTS, Attention, Node

Results = Iterator[Finding | NotJudged]


def where(a: Attention | None) -> str:
    """The module that an attention is in, for a sentence."""
    return f" in {a.softmax_node.module}" if a is not None and a.softmax_node.module else ""


def heads_in(subject: Subject, a: Attention) -> int:
    """Heads that are computed at once; one, where each head is a module."""
    return len(a.weights) // subject.n_sequences


def projected(node: Node | None) -> Node | None:
    """The product that a query, key or value comes from."""
    return next((n for n, _ in path(node) if n.name in PRODUCTS), None)


def path(node: Node | None) -> Iterator[tuple[Node, Tensor]]:
    """What a query, key or value passed, and what that gave, back to its projection."""
    queue = [] if node is None else [(node, node.outputs[0])]
    seen = set()
    while queue:
        now, tensor = queue.pop(0)
        if now.index in seen or not now.depends:
            continue
        seen.add(now.index)
        yield now, tensor
        if now.name not in PRODUCTS:
            queue += [(n, x) for n, x in now.inputs if n is not None]


def width_before(node: Node | None) -> int | None:
    """The width of what a query is projected from: d_model."""
    made = projected(node)
    return None if made is None or made.between else int(made.args[-2].shape[-1])


def equal_heads(x: Tensor) -> list[int]:
    """For each head, the number of its kind, in the order of appearance."""
    kinds: list[Tensor] = []
    numbers = []
    for head in x:
        same = [i for i, kind in enumerate(kinds) if kind.equal(head)]
        numbers.append(same[0] if same else len(kinds))
        if not same:
            kinds.append(head)
    return numbers
