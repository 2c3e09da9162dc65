"""Exercises of chapter 03."""

from functools import partial

import torch
from torch import Generator, Tensor

from attnbook.attention import scaled_dot_product_attention
from book.exercises.mistakes import (
    SHAPES,
    Exercise,
    Function,
    MistakeError,
    compare,
    parts,
    same,
    tensor,
)


def _project_cases() -> dict[str, tuple[Tensor, Tensor, Tensor | None]]:
    generator = Generator().manual_seed(0)
    cases: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {}
    for d_out in (4, 3):
        x, weight = (torch.randn(n, 4, generator=generator) for n in (5, d_out))
        bias = torch.randn(d_out, generator=generator)
        cases[f"weight of shape ({d_out}, 4), a bias"] = x, weight, bias
        cases[f"weight of shape ({d_out}, 4), bias=None"] = x, weight, None
    return cases


check_project = Exercise(
    "project",
    "Check ``project(x, weight, bias)`` of chapter 03: what ``nn.Linear`` computes.",
    torch.nn.functional.linear,
    {
        "the bias is left out": lambda x, weight, bias: x @ weight.T,
        "the bias is subtracted": (
            lambda x, weight, bias: x @ weight.T - (0 if bias is None else bias)
        ),
        "the weight is not transposed: nn.Linear stores (out, in)": (
            lambda x, weight, bias: x @ weight + (0 if bias is None else bias)
        ),
        "the bias is added before the matrix; it belongs to the output": (
            lambda x, weight, bias: (x + (0 if bias is None else bias)) @ weight.T
        ),
    },
    _project_cases,
    hints={
        "is ambiguous": "the question is `bias is None`: a tensor is neither true nor false",
        "NoneType": "with bias=None nothing is added",
        SHAPES: "is the weight transposed?",
    },
)


def _unpack(packed: Tensor, order: str = "QKV") -> tuple[Tensor, ...]:
    parts = dict(zip("QKV", packed.chunk(3), strict=True))
    return tuple(parts[letter].T for letter in order)


def _run_unpack(unpack: Function, packed: Tensor) -> Tensor:
    d = packed.shape[1]
    result = parts("unpack", unpack(packed), 3, "three matrices, (W_Q, W_K, W_V)")
    for name, each in zip(("W_Q", "W_K", "W_V"), result, strict=True):
        if tensor("unpack", each, name).shape != (d, d):
            raise MistakeError(
                f"unpack: {name} should have shape ({d}, {d}), got {tuple(each.shape)}: the three "
                "parts lie one below the other"
            )
    return torch.stack(tuple(result))


check_unpack = Exercise(
    "unpack",
    "Check ``unpack(in_proj_weight)`` of chapter 03: torch's packed matrix as W_Q, W_K, W_V.",
    _unpack,
    {
        "the parts are not transposed: torch stores (out, in), Q = X W_Q needs (in, out)": (
            lambda packed: packed.chunk(3)
        ),
        "the order is Q, K, V, not K, Q, V": partial(_unpack, order="KQV"),
        "the order is Q, K, V, not Q, V, K": partial(_unpack, order="QVK"),
        "the order is Q, K, V, not V, K, Q": partial(_unpack, order="VKQ"),
        "takes every third row: the parts are blocks of d rows": (
            lambda packed: tuple(packed[i::3].T for i in range(3))
        ),
        "takes every third row: the parts are blocks of d rows, and each is to be transposed": (
            lambda packed: tuple(packed[i::3] for i in range(3))
        ),
        "cuts the transposed matrix's numbers into rows without regard to the parts": (
            lambda packed: packed.T.reshape(3, *packed.T.shape[:1], -1).unbind()
        ),
    },
    lambda: {
        f"d = {d}, (which matrix, row, column)": (
            torch.randn(3 * d, d, generator=Generator().manual_seed(0)),
        )
        for d in (6, 4)
    },
    _run_unpack,
)


def _cross_head_cases() -> dict[str, tuple[Tensor, ...]]:
    generator = Generator().manual_seed(0)
    cases = {}
    # First everything is alike, so that mistakes with shapes come through and can be named; then
    # everything differs.
    for n_x, n_memory, d_x, d_memory, d_head, d_value in ((6, 6, 4, 4, 4, 4), (3, 5, 6, 7, 4, 2)):
        case = f"x of shape ({n_x}, {d_x}), memory of shape ({n_memory}, {d_memory})"
        shapes = (n_x, d_x), (n_memory, d_memory), (d_x, d_head), (d_memory, d_head)
        cases[case] = tuple(
            torch.randn(shape, generator=generator) for shape in (*shapes, (d_memory, d_value))
        )
    return cases


def _cross_head(
    x: Tensor,
    memory: Tensor,
    *weights: Tensor,
    sources: str = "xmm",
    order: tuple[int, ...] = (0, 1, 2),
    scale: Function = lambda query, key: query.shape[1] ** -0.5,
    softmax: Function = lambda logits: logits.softmax(1),
) -> Tensor:
    given = ({"x": x, "m": memory}[source] for source in sources)
    projected = [each @ weight for each, weight in zip(given, weights, strict=True)]
    query, key, value = (projected[i] for i in order)
    attention: Tensor = softmax(scale(query, key) * query @ key.T) @ value
    return attention


check_cross_head = Exercise(
    "cross_head",
    "Check ``cross_head(x, memory, W_Q, W_K, W_V)`` of chapter 03.",
    lambda x, m, W_Q, W_K, W_V: scaled_dot_product_attention(x @ W_Q, m @ W_K, m @ W_V),
    {
        "the logits are not divided by sqrt(d_head)": partial(_cross_head, scale=lambda q, k: 1),
        "divides by d_head; it is the square root": (
            partial(_cross_head, scale=lambda q, k: 1 / q.shape[1])
        ),
        "divides by the root of the number of keys; it is that of d_head": (
            partial(_cross_head, scale=lambda q, k: len(k) ** -0.5)
        ),
        "divides by the root of x's width; it is that of d_head": (
            lambda x, *given: _cross_head(x, *given, scale=lambda q, k: x.shape[1] ** -0.5)
        ),
        "divides by the root of memory's width; it is that of d_head": (
            lambda x, m, *given: _cross_head(x, m, *given, scale=lambda q, k: m.shape[1] ** -0.5)
        ),
        "divides by the root of the values' width; it is that of the queries, d_head": (
            lambda *given: _cross_head(*given, scale=lambda q, k: given[-1].shape[1] ** -0.5)
        ),
        "multiplies by sqrt(d_head); it divides": (
            partial(_cross_head, scale=lambda q, k: q.shape[1] ** 0.5)
        ),
        "the softmax runs over the queries; each query's weights sum to one over the keys": (
            partial(_cross_head, softmax=lambda logits: logits.softmax(0))
        ),
        "there is no softmax": partial(_cross_head, softmax=lambda logits: logits),
        "the values come from x; they come from memory": partial(_cross_head, sources="xmx"),
        "the keys come from x; they come from memory": partial(_cross_head, sources="xxm"),
        "keys and values come from x; they come from memory": partial(_cross_head, sources="xxx"),
        "the queries come from memory; they come from x": partial(_cross_head, sources="mmm"),
        "x and memory have changed places": partial(_cross_head, sources="mxx"),
        "keys and values have changed places": partial(_cross_head, order=(0, 2, 1)),
        "queries and keys have changed places": partial(_cross_head, order=(1, 0, 2)),
        "the values are the memory itself; W_V is left out": (
            lambda x, m, W_Q, W_K, W_V: _cross_head(x, m, W_Q, W_K, torch.eye(m.shape[1]))
        ),
    },
    _cross_head_cases,
)


def _fewer_biases_cases() -> dict[str, tuple[Tensor, ...]]:
    generator = Generator().manual_seed(0)
    return {
        f"b_V of width 6, W_O of shape (6, {d_model})": (
            *torch.randn(3, 6, generator=generator),
            torch.randn(d_model, generator=generator),
            torch.randn(6, d_model, generator=generator),
        )
        for d_model in (6, 4)
    }


def _two_biases(fewer_biases: Function, *biases: Tensor) -> dict[str, object]:
    query, output = parts("fewer_biases", fewer_biases(*biases), 2, "two biases, (b_Q, b_O)")
    return {"the query's bias": query, "the output's bias": output}


check_fewer_biases = Exercise(
    "fewer_biases",
    "Check ``fewer_biases(b_Q, b_K, b_V, b_O, W_O)`` of chapter 03: the query's and the output's.",
    lambda q, k, v, o, W: (q, o + v @ W),
    {
        "b_K is added to the query's bias; b_K cancels in the softmax and can simply go": (
            lambda q, k, v, o, W: (q + k, o + v @ W)
        ),
        "the query's bias is dropped; it does not cancel": lambda q, k, v, o, W: (0 * q, o + v @ W),
        "the query's bias is the key's; that one cancels, the query's stays": (
            lambda q, k, v, o, W: (k, o + v @ W)
        ),
        "the value's bias is lost; each row of weights sums to one, so b_V reaches every "
        "output, through W_O": lambda q, k, v, o, W: (q, o),
        "b_O is lost": lambda q, k, v, o, W: (q, v @ W),
        "b_V W_O is subtracted; it is what the output had more": (
            lambda q, k, v, o, W: (q, o - v @ W)
        ),
        "b_K is in the output's bias; b_K cancels in the softmax": (
            lambda q, k, v, o, W: (q, o + (v + k) @ W)
        ),
        "b_V is added without W_O; the heads' outputs go through W_O first": (
            lambda q, k, v, o, W: (q, o + v)
        ),
        "W_O is transposed; here it has shape (heads · d_value, d_model)": (
            lambda q, k, v, o, W: (q, o + W @ v)
        ),
    },
    _fewer_biases_cases,
    _two_biases,
)


def _with_queries(new: Function) -> Function:
    """Makes the keys orthonormal, if none are given, and W_Q from the old one and their change."""

    def whitened(W_Q: Tensor, W_K: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor]:
        key = torch.linalg.qr(W_K)[0] if key is None else key
        return new(W_Q, torch.linalg.lstsq(W_K, key).solution), key  # key = W_K @ change

    return whitened


def _keys_and_queries(whitened: Function) -> None:
    """Raise a ``MistakeError`` unless the keys are orthonormal and the queries go with them."""
    generator = Generator().manual_seed(0)
    for d, d_head in ((8, 3), (4, 4)):
        W_Q, W_K = torch.randn(2, d, d_head, generator=generator, dtype=torch.float64)
        case = f"W_Q and W_K of shape ({d}, {d_head})"
        result = check_whitened.guarded(whitened, case)(W_Q.clone(), W_K.clone())
        query, key = parts("whitened", result, 2, "two matrices, (W_Q, W_K)")
        for name, each in (("W_Q", query), ("W_K", key)):
            if tensor("whitened", each, f"the new {name}").shape != (d, d_head):
                raise MistakeError(
                    f"whitened: the new {name} should have shape ({d}, {d_head}), "
                    f"got {tuple(each.shape)}"
                )
            if each.dtype != W_K.dtype:
                raise MistakeError(
                    f"whitened: compute the new {name} in {W_K.dtype}, got {each.dtype}"
                )
        if same(key, W_K):
            raise MistakeError("whitened: W_K is what it was")
        wrong = "the columns of the new W_K are not orthonormal"
        compare("whitened", key.T @ key, torch.eye(d_head), (), wrong, "W_Kᵀ W_K")
        if not same(W_K @ torch.linalg.lstsq(W_K, key).solution, key):
            raise MistakeError(
                "whitened: the columns of the new W_K span another space than the old ones"
            )
        check_whitened.compare(query, case, (W_Q, W_K, key))


check_whitened = Exercise(
    "whitened",
    "Check ``whitened(W_Q, W_K)`` of chapter 03: the same logits, orthonormal keys.",
    _with_queries(lambda W_Q, change: W_Q @ torch.linalg.inv(change).T),
    {
        "W_Q is what it was: what the keys lose, the queries have to take": (
            _with_queries(lambda W_Q, change: W_Q)
        ),
        "W_Q is changed like W_K; it needs the inverse of that, transposed": (
            _with_queries(lambda W_Q, change: W_Q @ change)
        ),
        "W_Q takes the inverse of the keys' change, but not transposed: "
        "in W_Q W_Kᵀ the keys' factor stands transposed": (
            _with_queries(lambda W_Q, change: W_Q @ torch.linalg.inv(change))
        ),
        "W_Q takes the transpose of the keys' change, but not its inverse": (
            _with_queries(lambda W_Q, change: W_Q @ change.T)
        ),
        "W_Q was made orthonormal too; then the logits are others": (
            _with_queries(lambda W_Q, change: torch.linalg.qr(W_Q)[0])
        ),
    },
    dict,  # a case has the reader's keys, which may be any orthonormal ones
    lambda whitened, W_Q, W_K, key: whitened(W_Q, W_K, key)[0],
    also=_keys_and_queries,
)
