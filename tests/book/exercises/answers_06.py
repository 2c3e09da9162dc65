"""What chapter 06's checks say beside naming typical mistakes, and other right answers."""

import numpy as np

from book.exercises.chapter_06 import (
    check_attention_backward,
    check_layer_norm_backward,
    check_softmax_backward,
    check_tied_gradient,
)

softmax, attention = check_softmax_backward.correct, check_attention_backward.correct


def attention_in_place(gradient, query, key, value, weights):
    d_value = weights.T @ gradient
    d_weights = gradient @ value.T
    weights *= d_weights - (d_weights * weights).sum(axis=1, keepdims=True)
    return weights @ key / key.shape[1] ** 0.5, d_value


def centre_in_place(gradient, normed, sigma):
    gradient -= gradient.mean(axis=-1, keepdims=True)
    return gradient / sigma


def by_jacobians(gradient, weights):
    rows = [da @ (np.diag(a) - np.outer(a, a)) for da, a in zip(gradient, weights, strict=True)]
    return np.array(rows)


def groups_of_the_text(gradient, n_kv_heads):
    return gradient.reshape(2, 3, *gradient.shape[1:]).sum(axis=1)


RIGHT = []

MISTAKES = [
    ("softmax_backward", by_jacobians, "makes a Jacobian of 1,000 × 1,000"),
    ("softmax_backward", lambda *given: 2 * softmax(*given), "finite differences give"),
    ("softmax_backward", lambda *given: softmax(*given)[0], "has shape"),
    ("softmax_backward", lambda *given: None, "must return NumPy arrays, got NoneType"),
    ("attention_backward", attention_in_place, "changes what it is given"),
    ("attention_backward", lambda *given: attention(*given)[0], "two arrays"),
    ("attention_backward", lambda *given: [2 * each for each in attention(*given)], "query: at"),
    ("sum_groups", groups_of_the_text, r"\(4, 3, 6\), raises ValueError: cannot reshape"),
    ("sum_groups", lambda g, n: g.reshape(n, -1, *g.shape[1:]).max(axis=1), "key: at"),
    ("layer_norm_backward", centre_in_place, "changes what it is given"),
    ("layer_norm_backward", lambda *given: 2 * check_layer_norm_backward.correct(*given), "x: at"),
    ("tied_gradient", lambda *given: 2 * check_tied_gradient.correct(*given), "table: at"),
]
