"""What chapter 03's checks say beside naming typical mistakes, and other right answers."""

import torch

from book.exercises.chapter_03 import (
    check_cross_head,
    check_fewer_biases,
    check_project,
    check_unpack,
    check_whitened,
)

project, unpack, cross_head, whitened = (
    exercise.correct for exercise in (check_project, check_unpack, check_cross_head, check_whitened)
)


def by_inverse(w_q, w_k):
    """The inverse root of the keys' Gram matrix."""
    value, vector = torch.linalg.eigh(w_k.T @ w_k)
    root = vector @ value.sqrt().diag() @ vector.T
    return w_q @ root, w_k @ torch.linalg.inv(root)


def by_einsum(x, memory, w_q, w_k, w_v):
    """Sums in another order."""
    query = torch.einsum("td,dk->tk", x, w_q)
    logits = torch.einsum("ik,jd,dk->ij", query, memory, w_k) / w_q.shape[1] ** 0.5
    return torch.einsum("ij,jd,dk->ik", logits.softmax(-1), memory, w_v)


RIGHT = [
    ("unpack", lambda packed: packed.unflatten(0, (3, -1)).mT.unbind()),
    ("unpack", lambda packed: torch.stack(unpack(packed))),
    ("unpack", lambda packed: (part.T for part in packed.chunk(3))),
    ("cross_head", by_einsum),
    ("fewer_biases", lambda *given: list(check_fewer_biases.correct(*given))),
    ("whitened", by_inverse),
    ("whitened", lambda *given: torch.stack(by_inverse(*given))),
]

MISTAKES = [
    (
        "project",
        lambda x, w, b: x @ (w if w.shape[0] == w.shape[1] else w.T) + (0 if b is None else b),
        "not transposed",
    ),
    ("project", lambda x, w, b: torch.zeros(2, 3) @ torch.zeros(2, 3), "Error: .*is the weight"),
    ("project", lambda x, w, b: x @ w.T + (b if b else 0), "ambiguous; .*`bias is None`"),
    ("project", lambda x, w, b: x @ w.T + b, "bias=None, raises TypeError: .*; with bias=None"),
    ("project", lambda *given: project(*given)[0], "expected shape"),
    ("unpack", lambda packed: packed.chunk(3, dim=1), r"should have shape \(6, 6\)"),
    ("unpack", lambda packed: unpack(packed)[:2], "three matrices"),
    ("unpack", lambda packed: packed, "three matrices"),
    ("unpack", lambda packed: (1, 2, 3), "got int"),
    ("unpack", lambda packed: [p.numpy() for p in unpack(packed)], r"W_Q must be a tensor, got nd"),
    ("unpack", lambda packed: (p.nothing for p in packed), "raises AttributeError"),
    ("unpack", lambda packed: packed.reshape(6, 3, 6).transpose(0, 1).unbind(), "third row"),
    ("unpack", lambda packed: tuple(-part for part in unpack(packed)), "should be"),
    (
        "cross_head",
        lambda *given: cross_head(*(x.float() for x in given)),
        "correct but for rounding: compute in torch.float64, got torch.float32",
    ),
    (
        "cross_head",
        lambda *given: cross_head(*given) * torch.zeros(9),
        "raises RuntimeError: The size",
    ),
    ("fewer_biases", lambda q, k, v, o, w: (q, 3 * o), r"entry \(0\) of the output's bias should"),
    ("fewer_biases", lambda q, k, v, o, w: o + v @ w, "must return two"),
    ("whitened", lambda q, k: (q, k), "W_K is what it was"),
    ("whitened", lambda q, k: (q, k / k.norm(dim=0)), "not orthonormal"),
    ("whitened", lambda q, k: (2 * whitened(q, k)[0], whitened(q, k)[1]), "should be"),
    ("whitened", lambda q, k: (q, torch.eye(len(k)).double()[:, : k.shape[1]]), "another space"),
    ("whitened", lambda q, k: (q.T, whitened(q, k)[1]), "the new W_Q should have shape"),
    ("whitened", lambda q, k: (q, None), "got NoneType"),
    ("whitened", lambda q, k: (q.float(), k.float()), "W_Q in torch.float64, got torch.float32"),
    ("whitened", lambda q, k: q, "must return two"),
    ("whitened", lambda q, k: (q, by_inverse(q, k)[1]), "W_Q is what it was"),
]
