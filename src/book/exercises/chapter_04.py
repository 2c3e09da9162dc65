"""Exercises of chapter 04."""

from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from attnbook.attention import attention_logits, attention_weights, scaled_dot_product_attention
from book.exercises.mistakes import SHAPES, Exercise, Function, MistakeError


def _scaled_weights_cases() -> dict[str, tuple[Tensor, Tensor]]:
    generator = Generator().manual_seed(0)
    cases = {}
    for before in ((2,), (), (2, 4)):
        query, key = (torch.randn(*before, n, 6, generator=generator) for n in (3, 5))
        cases[f"query of shape {tuple(query.shape)}, 5 keys"] = query, key
    return cases


def _scaled_weights(q: Tensor, k: Tensor, *, d_k: float | None = None, dim: int = -1) -> Tensor:
    logits: Tensor = q @ k.mT / (q.shape[-1] if d_k is None else d_k) ** 0.5
    return logits.softmax(dim)


check_scaled_weights = Exercise(
    "scaled_weights",
    "Check ``scaled_weights(query, key)`` of chapter 04: softmax of the scaled dot products.",
    lambda q, k: attention_weights(attention_logits(q, k)),
    {
        "the products are not divided by sqrt(d_k)": partial(_scaled_weights, d_k=1),
        "divides by d_k; it is the square root of d_k": (
            lambda q, k: _scaled_weights(q, k, d_k=q.shape[-1] ** 2)
        ),
        "multiplies by sqrt(d_k); the factor divides": (
            lambda q, k: _scaled_weights(q, k, d_k=1 / q.shape[-1])
        ),
        "divides by the root of the number of keys; it is that of d_k, query.shape[-1]": (
            lambda q, k: _scaled_weights(q, k, d_k=k.shape[-2])
        ),
        "divides by the root of the number of queries; it is that of d_k, query.shape[-1]": (
            lambda q, k: _scaled_weights(q, k, d_k=q.shape[-2])
        ),
        "the softmax runs over the queries; it runs over the keys, dim=-1": (
            partial(_scaled_weights, dim=-2)
        ),
        "the softmax runs over the batch; it runs over the keys, dim=-1": (
            partial(_scaled_weights, dim=0)
        ),
        "returns the logits: the softmax is missing": attention_logits,
        "divides after the softmax; rows then don't sum to one": (
            lambda q, k: (q @ k.mT).softmax(-1) / q.shape[-1] ** 0.5
        ),
        "is transposed: rows are queries": lambda q, k: _scaled_weights(q, k).mT,
    },
    _scaled_weights_cases,
    hints={SHAPES: "count dimensions from the end"},
)


def _masked_weights_cases() -> dict[str, tuple[Tensor, Tensor]]:
    logits = torch.randn(3, 4, generator=Generator().manual_seed(0))
    # neither the mask nor its opposite leaves a query without a key
    some = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    empty = some.clone()
    empty[1] = False
    return {
        "every row keeps a key": (logits, some),
        "query 1 may attend to nothing": (logits, empty),
        "logits of size 100": (logits + 100 - 200.0 * some, empty),
    }


def _run_masked_weights(masked_weights: Function, logits: Tensor, mask: Tensor) -> object:
    empty = ~mask.any(-1)
    result = masked_weights(logits, mask)
    if isinstance(result, Tensor) and result.shape == mask.shape and result[empty].isnan().any():
        raise MistakeError(
            "masked_weights: a row without any allowed key is NaN: the softmax of nothing but "
            "-inf, or 0/0 where weights are divided by their sum"
        )
    return result


def _finite_gradient(masked_weights: Function) -> None:
    case = "query 1 may attend to nothing"
    logits, mask = _masked_weights_cases()[case]
    leaf = logits.requires_grad_()
    result = check_masked_weights.guarded(masked_weights, f"{case}, logits need a gradient")(
        leaf, mask
    )
    if not result.requires_grad:
        raise MistakeError("masked_weights: the gradient is missing: is there a detach()?")
    result[[0, 2]].pow(2).sum().backward()  # the empty row is outside the loss
    if leaf.grad is None or not bool(leaf.grad.isfinite().all()):
        raise MistakeError(
            "masked_weights: the values are correct, but the gradient is NaN: the row without any "
            "allowed key was NaN before it was set to zero"
        )


def _fill(logits: Tensor, mask: Tensor, value: float = -torch.inf) -> Tensor:
    return logits.masked_fill(~mask, value)


check_masked_weights = Exercise(
    "masked_weights",
    "Check ``masked_weights(logits, mask)`` of chapter 04: softmax over the allowed keys.",
    attention_weights,
    {
        "the mask is turned round: True means may attend": lambda s, m: _fill(s, ~m).softmax(-1),
        "the mask acts after the softmax: rows don't sum to one": lambda s, m: s.softmax(-1) * m,
        "forbidden logits are set to 0 and not to -inf: e^0 is 1": lambda s, m: (s * m).softmax(-1),
        "the mask is ignored": lambda s, m: s.softmax(-1),
        "the mask is added to the logits: True counts as 1": lambda s, m: (s + m).softmax(-1),
        "the softmax runs over the queries; it runs over the keys, dim=-1": (
            lambda s, m: _fill(s, m).softmax(-2)
        ),
        "a row without any allowed key gets equal weights, the forbidden keys among them": (
            lambda s, m: _fill(s, m, -1e9).softmax(-1)
        ),
        "a row without any allowed key attends as if there were no mask": (
            lambda s, m: _fill(s, m | ~m.any(-1, keepdim=True)).softmax(-1)
        ),
        "forbidden logits become a finite number, such as -30: allowed ones may be smaller; "
        "nothing is smaller than -inf": lambda s, m: _fill(s, m, -30).softmax(-1) * m.any(-1, True),
    },
    _masked_weights_cases,
    _run_masked_weights,
    also=_finite_gradient,
)


def _softmax_jacobian(a: Tensor) -> Tensor:
    """By torch, from logits that have these weights."""
    jacobian: Tensor = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), a.log())
    return jacobian


check_softmax_jacobian = Exercise(
    "softmax_jacobian",
    "Check ``softmax_jacobian(weights)`` of chapter 04: the derivative of weights by logits.",
    _softmax_jacobian,
    {
        "only the diagonal is there: a logit changes every weight of its row": (
            lambda a: torch.diag(a * (1 - a))
        ),
        "has a plus: a larger logit makes the other weights smaller": (
            lambda a: torch.diag(a) + torch.outer(a, a)
        ),
        "the diagonal lacks the term a_i": lambda a: -torch.outer(a, a),
        "the term -a_i a_j is missing: a logit changes the other weights too": torch.diag,
        "the term -a_i a_j is missing on the diagonal": (
            lambda a: torch.diag(a + a**2) - torch.outer(a, a)
        ),
        "the sign is turned round": lambda a: torch.outer(a, a) - torch.diag(a),
        "gives the diagonal as a vector; a matrix was asked for": lambda a: a * (1 - a),
        "takes the softmax of the weights once more: they are weights already": (
            lambda a: _softmax_jacobian(a.softmax(-1))
        ),
    },
    lambda: {
        f"{n} keys": (torch.randn(n, generator=Generator().manual_seed(0)).softmax(-1),)
        for n in (5, 3)
    },
)


def _edge_attention_cases() -> dict[str, tuple[Tensor, ...]]:
    generator = Generator().manual_seed(0)
    large = torch.randint(-60, 60, (2, 6, 4), generator=generator).double()
    masks = torch.randint(2, (2, 6, 6), generator=generator).bool()
    orders = [torch.randperm(36, generator=generator) for _ in masks]
    small = torch.randn(2, 6, 5, generator=generator)
    value = torch.randn(6, 3, generator=generator)
    cases: dict[str, tuple[Tensor, ...]] = {}
    for case, alone, (query, key), mask, order in zip(
        ("one of them without an edge", "the last two without an edge, large logits"),
        ([2], [4, 5]),
        (small, large),
        masks,
        orders,
        strict=True,
    ):
        mask[alone] = False
        edges = order[mask.flatten()[order]]  # in any order
        edges = torch.stack([edges // 6, edges % 6], dim=1)
        cases[f"6 tokens, {case}"] = query, key, value, edges
    return cases


def _run_edge_attention(
    edge_attention: Function, query: Tensor, key: Tensor, value: Tensor, edges: Tensor
) -> object:
    alone = ~_table(edges, len(query)).any(1)
    result = edge_attention(query, key, value, edges)
    if isinstance(result, Tensor) and result.shape == value.shape:
        if result[alone].isnan().any():
            raise MistakeError("edge_attention: a target without an edge is NaN; it gets zeros")
        lost = result.isnan().any(1) | (result == 0).all(1) & ~alone
        if query.abs().max() > 10 and lost.any():  # the exponentials were infinite, or all zero
            raise MistakeError(
                "edge_attention: correct for small logits and wrong for large ones: subtract the "
                "largest logit of each target (not that of all edges) before the exponential"
            )
    return result


def _table(edges: Tensor, tokens: int) -> Tensor:
    mask = torch.zeros(tokens, tokens, dtype=torch.bool)
    mask[edges[:, 0], edges[:, 1]] = True
    return mask


def _edge_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor) -> Tensor:
    target, source = edges.T
    logits = (query[target] * key[source]).sum(-1) / query.shape[1] ** 0.5
    largest = torch.full((len(query),), -torch.inf).scatter_reduce(0, target, logits, "amax")
    raw = (logits - largest[target]).exp()
    weights = raw / torch.zeros(len(query)).index_add(0, target, raw)[target]
    return torch.zeros_like(value).index_add(0, target, weights[:, None] * value[source])


def _divided_by(total: Function) -> Function:
    """Divides the exponentials of the logits by this function of them."""

    def edge_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor) -> Tensor:
        raw = attention_logits(query, key).exp() * _table(edges, len(query))
        output: Tensor = raw / total(raw) @ value
        return output

    return edge_attention


def _last_wins(*, sums: bool = True, outputs: bool = True) -> Function:
    """Keeps each target's last edge, in the sums of its weights and in its output."""

    def edge_attention(query: Tensor, key: Tensor, value: Tensor, edges: Tensor) -> Tensor:
        last = _table(torch.tensor([*dict(edges.tolist()).items()]), len(query))
        raw = attention_logits(query, key).exp() * _table(edges, len(query))
        total = (raw * last if sums else raw).sum(1, keepdim=True).clamp(min=1e-300)
        output: Tensor = (raw * last if outputs else raw) / total @ value
        return output

    return edge_attention


def _filled(query: Tensor, key: Tensor, value: Tensor, edges: Tensor) -> Tensor:
    mask = _table(edges, len(query))
    weights = _fill(attention_logits(query, key), mask, -30).softmax(-1)
    return weights * mask.any(-1, keepdim=True) @ value


class _Largest(TorchFunctionMode):
    """Notes how many numbers the largest tensor has that torch makes."""

    n_numbers = 0

    def __torch_function__(
        self, function: Function, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        result = function(*arguments, **(named or {}))
        if isinstance(result, Tensor):
            self.n_numbers = max(self.n_numbers, result.numel())
        return result


def _without_a_table(edge_attention: Function) -> None:
    n, case = 200, "200 tokens, an edge each"
    edges = torch.arange(n)[:, None].expand(n, 2)
    given = (*torch.randn(3, n, 2, generator=Generator().manual_seed(0)), edges.clone())
    with _Largest() as largest:
        check_edge_attention.guarded(edge_attention, case)(*given)
    if largest.n_numbers >= n**2:
        raise MistakeError(
            f"edge_attention: {case}, correct, but it builds {largest.n_numbers:,} numbers at "
            "once, such as a table of queries and keys: work on the edges alone"
        )


check_edge_attention = Exercise(
    "edge_attention",
    "Check ``edge_attention(query, key, value, edges)`` of chapter 04.",
    _edge_attention,
    {
        "the edges are read as (source, target); a row is (target, source)": (
            lambda q, k, v, edges: _edge_attention(q, k, v, edges.flip(1))
        ),
        "the products are not divided by sqrt(d_k)": (
            lambda q, k, v, edges: _edge_attention(q * q.shape[1] ** 0.5, k, v, edges)
        ),
        "divides by d_k; it is the square root of d_k": (
            lambda q, k, v, edges: _edge_attention(q / q.shape[1] ** 0.5, k, v, edges)
        ),
        "multiplies by sqrt(d_k); the factor divides": (
            lambda q, k, v, edges: _edge_attention(q * q.shape[1], k, v, edges)
        ),
        "divides by the root of the values' width; it is that of d_k, query.shape[-1]": (
            lambda q, k, v, edges: _edge_attention(
                q * (q.shape[1] / v.shape[1]) ** 0.5, k, v, edges
            )
        ),
        "output[target] += … keeps each target's last edge only; index_add adds them all": (
            _last_wins(sums=False)
        ),
        "total[target] += … keeps each target's last weight only; index_add adds them all": (
            _last_wins(outputs=False)
        ),
        "each target gets the value of its last edge: x[target] += … adds one edge only, in sums "
        "of weights and outputs; index_add adds them all": _last_wins(),
        "the weights of the edges that leave a node sum to one; it is those that end in it": (
            _divided_by(lambda raw: raw.sum(0).clamp(min=1e-300))
        ),
        "the weights are not divided by their sum": _divided_by(lambda raw: 1),
        "one softmax over all edges; each target has its own": _divided_by(lambda raw: raw.sum()),
        "the edges are ignored: every node hears every node": (
            lambda q, k, v, edges: scaled_dot_product_attention(q, k, v)
        ),
        "each target gets the plain mean of its sources: the logits are missing": (
            lambda q, k, v, edges: _edge_attention(0 * q, k, v, edges)
        ),
        "logits without an edge become a finite number, such as -30: others may be smaller": (
            _filled
        ),
        "takes the edges for sorted by target": (
            lambda q, k, v, edges: _edge_attention(
                q, k, v, torch.stack([edges[:, 0].sort().values, edges[:, 1]], dim=1)
            )
        ),
    },
    _edge_attention_cases,
    _run_edge_attention,
    tolerance=1e-4,  # the sums have many orders
    also=_without_a_table,
)
