"""Right answers to the exercises of chapter 03, and typical mistakes."""

import math

import torch


def project(x, weight, bias):
    return x @ weight.T + (0 if bias is None else bias)


def unpack(packed):
    return tuple(part.T for part in packed.chunk(3))


def attend(q, k, v, *, scale=0.5, dim=-1):
    return (scale * q @ k.T).softmax(dim) @ v


def cross_head(x, memory, w_q, w_k, w_v, **options):
    scale = w_q.shape[1] ** -0.5
    return attend(x @ w_q, memory @ w_k, memory @ w_v, **{"scale": scale} | options)


def fewer_biases(q, k, v, o, w):
    return q, o + v @ w


def whitened(w_q, w_k):
    orthonormal, triangular = torch.linalg.qr(w_k)
    return w_q @ triangular.T, orthonormal


def by_inverse(w_q, w_k):
    """Another right answer: the inverse root of the keys' Gram matrix."""
    value, vector = torch.linalg.eigh(w_k.T @ w_k)
    root = vector @ value.sqrt().diag() @ vector.T
    return w_q @ root, w_k @ torch.linalg.inv(root)


RIGHT = [
    ("project", project),
    ("unpack", unpack),
    ("unpack", lambda packed: packed.unflatten(0, (3, -1)).mT.unbind()),
    ("cross_head", cross_head),
    ("fewer_biases", fewer_biases),
    ("whitened", whitened),
    ("whitened", by_inverse),
]

MISTAKES = [
    ("project", lambda x, w, b: x @ w + (0 if b is None else b), "not transposed"),
    (
        "project",
        lambda x, w, b: x @ (w if w.shape[0] == w.shape[1] else w.T) + (0 if b is None else b),
        "not transposed",
    ),
    ("project", lambda x, w, b: x @ w.T, "left out"),
    ("project", lambda x, w, b: x @ w.T - (0 if b is None else b), "subtracted"),
    ("project", lambda x, w, b: (x + (0 if b is None else b)) @ w.T, "before the matrix"),
    ("project", lambda x, w, b: torch.zeros(2, 3) @ torch.zeros(2, 3), "raise an error"),
    ("project", lambda x, w, b: 2 * project(x, w, b), "should be"),
    ("project", lambda x, w, b: project(x, w, b)[0], "expected shape"),
    ("project", lambda x, w, b: None, "must return a tensor"),
    ("unpack", lambda packed: packed.chunk(3), "not transposed"),
    ("unpack", lambda packed: packed.chunk(3, dim=1), r"should have shape \(6, 6\)"),
    ("unpack", lambda packed: unpack(packed)[:2], "three matrices"),
    ("unpack", lambda packed: packed, "three matrices"),
    ("unpack", lambda packed: 7, "three matrices"),
    ("unpack", lambda packed: (1, 2, 3), "got int"),
    ("unpack", lambda packed: tuple(unpack(packed)[i] for i in (1, 0, 2)), "not K, Q, V"),
    ("unpack", lambda packed: tuple(unpack(packed)[i] for i in (0, 2, 1)), "not Q, V, K"),
    ("unpack", lambda packed: tuple(unpack(packed)[i] for i in (2, 1, 0)), "not V, K, Q"),
    ("unpack", lambda packed: tuple(packed[i::3].T for i in range(3)), "every third row"),
    ("unpack", lambda packed: tuple(packed[i::3] for i in range(3)), "every third row"),
    ("unpack", lambda packed: packed.reshape(6, 3, 6).transpose(0, 1).unbind(), "third row"),
    ("unpack", lambda packed: packed.T.reshape(3, 6, 6).unbind(), "without regard"),
    ("unpack", lambda packed: tuple(-part for part in unpack(packed)), "should be"),
    ("cross_head", lambda *a: cross_head(*a, scale=1), "not divided"),
    ("cross_head", lambda *a: cross_head(*a, scale=1 / a[2].shape[1]), "square root"),
    ("cross_head", lambda *a: cross_head(*a, scale=len(a[1]) ** -0.5), "number of keys"),
    ("cross_head", lambda *a: cross_head(*a, dim=0), "over the queries"),
    (
        "cross_head",
        lambda x, m, q, k, v: x @ q @ (m @ k).T / math.sqrt(q.shape[1]) @ m @ v,
        "no softmax",
    ),
    ("cross_head", lambda x, m, q, k, v: attend(x @ q, m @ k, x @ v), "values come from x"),
    ("cross_head", lambda x, m, q, k, v: attend(x @ q, x @ k, m @ v), "the keys come from x"),
    ("cross_head", lambda x, m, *w: cross_head(x, x, *w), "keys and values come from x"),
    ("cross_head", lambda x, m, *w: cross_head(m, m, *w), "queries come from memory"),
    ("cross_head", lambda x, m, *w: cross_head(m, x, *w), "x and memory have changed"),
    ("cross_head", lambda x, m, q, k, v: attend(x @ q, m @ v, m @ k), "keys and values have"),
    ("cross_head", lambda x, m, q, k, v: attend(m @ k, x @ q, m @ v), "queries and keys have"),
    ("cross_head", lambda x, m, q, k, v: attend(x @ q, m @ k, m), "W_V is left out"),
    ("cross_head", lambda *a: 2 * cross_head(*a), "should be"),
    (
        "cross_head",
        lambda *a: cross_head(*(x.float() for x in a)),
        "right but for rounding: compute in torch.float64, got torch.float32",
    ),
    ("cross_head", lambda x, m, *w: cross_head(x, m.T, *w) * torch.zeros(9), "raise an error"),
    ("fewer_biases", lambda q, k, v, o, w: (q + k, o + v @ w), "b_K is added"),
    ("fewer_biases", lambda q, k, v, o, w: (0 * q, o + v @ w), "is dropped"),
    ("fewer_biases", lambda q, k, v, o, w: (k, o + v @ w), "is the key's"),
    ("fewer_biases", lambda q, k, v, o, w: (q, o), "value's bias is lost"),
    ("fewer_biases", lambda q, k, v, o, w: (q, v @ w), "b_O is lost"),
    ("fewer_biases", lambda q, k, v, o, w: (q, o - v @ w), "subtracted"),
    ("fewer_biases", lambda q, k, v, o, w: (q, o + (v + k) @ w), "b_K is in it"),
    ("fewer_biases", lambda q, k, v, o, w: (q, o + v), "without W_O"),
    ("fewer_biases", lambda q, k, v, o, w: (q, o + w @ v), "transposed"),
    ("fewer_biases", lambda q, k, v, o, w: (q, 3 * o), "should be"),
    ("fewer_biases", lambda q, k, v, o, w: o + v @ w, "must return two"),
    ("whitened", lambda q, k: (q, k), "what it was"),
    ("whitened", lambda q, k: (q, k / k.norm(dim=0)), "not orthonormal"),
    ("whitened", lambda q, k: (q, torch.linalg.qr(k)[0]), "W_Q is what it was"),
    (
        "whitened",
        lambda q, k: (q @ torch.linalg.inv(torch.linalg.qr(k)[1]), torch.linalg.qr(k)[0]),
        "changed like W_K",
    ),
    (
        "whitened",
        lambda q, k: (q @ torch.linalg.qr(k)[1], torch.linalg.qr(k)[0]),
        "not transposed",
    ),
    (
        "whitened",
        lambda q, k: (q @ torch.linalg.inv(torch.linalg.qr(k)[1]).T, torch.linalg.qr(k)[0]),
        "not its inverse",
    ),
    ("whitened", lambda q, k: (torch.linalg.qr(q)[0], torch.linalg.qr(k)[0]), "orthonormal too"),
    ("whitened", lambda q, k: (2 * whitened(q, k)[0], whitened(q, k)[1]), "should be"),
    ("whitened", lambda q, k: (q, torch.eye(len(k)).double()[:, : k.shape[1]]), "another space"),
    ("whitened", lambda q, k: (q.T, whitened(q, k)[1]), "the new W_Q should have shape"),
    ("whitened", lambda q, k: (q, None), "got NoneType"),
    ("whitened", lambda q, k: q, "must return two"),
]
