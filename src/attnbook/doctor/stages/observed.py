"""What several checks ask about an attention."""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnbook.doctor.call.subject import Subject
from attnbook.doctor.report import Finding, NotJudged
from attnbook.doctor.tape.trace import MOVES, ON_LOGITS, PRODUCTS, Attention, Node, walk

IN_STEPS = ("round", "sign", "sgn", "floor", "ceil", "trunc", "bernoulli")
Results = Iterator[Finding | NotJudged]


def where(at: Attention | Node | None) -> str:
    """The module that an attention or an operation is in, for a sentence."""
    node = at.softmax_node if isinstance(at, Attention) else at
    return f" in {node.module}" if node is not None and node.module else ""


def heads_in(subject: Subject, a: Attention) -> int:
    """Heads that are computed at once; one, where each head is a module."""
    n, product = subject.n_sequences, projected(a.query_node)
    if subject.inputs[subject.target].dim() > 3 and product is not None and product.name != "bmm":
        rows = product.outputs[0][..., 0].numel() // a.query.shape[1]  # of a grid, each by itself
        n = rows if rows and len(a.weights) % rows == 0 else n
    return len(a.weights) // n or len(a.weights)  # several sequences may be in one row


def projected(node: Node | None) -> Node | None:
    """The product that a query, key or value comes from."""
    return next((n for n, _ in path(node) if n.name in PRODUCTS), None)


def sides(a: Attention) -> dict[str, tuple[Tensor, Node | None]]:
    """What is multiplied in an attention, each with the product that projected it."""
    return {
        "query": (a.query, projected(a.query_node)),
        "key": (a.key, projected(a.key_node)),
        "value": (a.value, projected(a.value_node)),
    }


def path(node: Node | None) -> Iterator[tuple[Node, Tensor]]:
    """What a query, key or value passed, and what that gave, back to its projection."""
    queue = [] if node is None else [(node, node.outputs[0])]
    seen = set()
    while queue:
        now, tensor = queue.pop(0)
        if now.depends and now.index not in seen:
            seen.add(now.index)
            yield now, tensor
            inputs = now.inputs if now.name not in PRODUCTS else []
            queue += [(maker, x) for maker, x in inputs if maker is not None]


def matrix_of(product: Node) -> int:
    """Where the matrix of a product is in memory, before it was moved or copied."""
    node, tensor = product.inputs[-1]
    while node is not None and node.inputs:
        node, tensor = node.inputs[0]
    return tensor.data_ptr()


def given(node: Node | None) -> Tensor | None:
    """What a query, key or value is projected from."""
    product = projected(node)
    return None if product is None or product.between else product.args[-2]


def width_before(node: Node | None) -> int | None:
    """The width of what a query is projected from: d_model."""
    x = given(node)
    return None if x is None else int(x.shape[-1])


def summed(a: Attention) -> list[Node]:
    """The matrix products that are added to give the logits, as of content and of positions."""
    through = {*MOVES, *ON_LOGITS, "gather", "index", "constant_pad_nd"} - {"maximum", "index_put_"}

    def before(node: Node) -> list[Node | None]:
        computed = [m for m in node.makers if m is not None and m.depends]
        joins = node.name in ("cat", "stack") and len(computed) > 1  # not a column of zeros
        return node.makers if node.name in through and not joins else []

    parts = [n for n in walk(a.softmax_node.makers[:1], before) if n.name in PRODUCTS]
    return parts if a.score_node in parts else [a.score_node]


def in_steps(node: Node) -> bool:
    """True if the derivative of an operation is zero, so that another may be given on purpose."""
    if not (node.depends and any(x.is_floating_point() for _, x in node.inputs)):
        return node.name.rstrip("_") in IN_STEPS
    whole = any(not x.is_floating_point() and x.dtype != torch.bool for x in node.outputs)
    return whole or node.name.rstrip("_") in (*IN_STEPS, "gt", "ge", "lt", "le")


def equal_heads(x: Tensor) -> list[int]:
    """For each head, the number of its kind, in the order of appearance."""
    first = [next((j for j in range(i) if x[j].equal(head)), i) for i, head in enumerate(x)]
    kinds = list(dict.fromkeys(first))
    return [kinds.index(j) for j in first]


def origins(rows: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """For each number, where it stands in ``values``, by ``index``; −1 if nowhere or twice."""
    if not values.numel():
        return torch.full(rows.shape, -1)
    ordered, order = values.flatten().sort()
    at = torch.searchsorted(ordered, rows.contiguous()).clamp(max=len(ordered) - 1)
    twice = torch.zeros_like(ordered, dtype=torch.bool)
    twice[1:] |= ordered[1:] == ordered[:-1]
    twice[:-1] |= ordered[1:] == ordered[:-1]
    places = index.to(values.device).expand_as(values).flatten()[order[at]]
    return places.masked_fill((ordered[at] != rows) | twice[at], -1)


def mixed(places: Tensor) -> list[int]:
    """The origins of a row's numbers, if there are rows with more than one."""
    known = places >= 0
    if places.shape[1] < 2 or known.float().mean() < 0.3:
        return []
    least = places.masked_fill(~known, int(places.max()) + 1).amin(1)
    rows = places[known.any(1) & (places.amax(1) != least)]
    return sorted(set(rows[0].tolist()) - {-1}) if len(rows) else []
