"""Right answers to the exercises of chapter 06, and typical mistakes."""

import numpy as np


def softmax(gradient, weights):
    return weights * (gradient - (gradient * weights).sum(axis=-1, keepdims=True))


def attention(gradient, query, key, value, weights):
    mean = (gradient * (weights @ value)).sum(axis=1, keepdims=True)
    d_logits = weights * (gradient @ value.T - mean)
    return d_logits @ key / key.shape[1] ** 0.5, weights.T @ gradient


def query_times(factor):
    def wrong(gradient, query, key, value, weights):
        d_query, d_value = attention(gradient, query, key, value, weights)
        return d_query * factor(key, value), d_value

    return wrong


def through(d_logits):
    """Another way from the weights' gradient to the query's."""

    def wrong(gradient, query, key, value, weights):
        d_query = d_logits(gradient @ value.T, weights) @ key / key.shape[1] ** 0.5
        return d_query, weights.T @ gradient

    return wrong


def wrong_value(gradient, query, key, value, weights):
    d_query, _ = attention(gradient, query, key, value, weights)
    return d_query, (gradient @ value.T).T @ gradient


def groups(gradient, n_kv_heads):
    return gradient.reshape(n_kv_heads, -1, *gradient.shape[1:])


def interleaved(gradient, n_kv_heads):
    return gradient.reshape(-1, n_kv_heads, *gradient.shape[1:]).sum(axis=0)


def norm(gradient, normed, sigma, shift=True, along=True, mean=np.mean, axis=-1):
    result = gradient.copy()
    if shift:
        result -= mean(gradient, axis=axis, keepdims=True)
    if along:
        result -= normed * mean(gradient * normed, axis=axis, keepdims=True)
    return result / sigma


def looked_up(d_looked_up, ids, d_logits, hidden, vocab_size):
    result = np.zeros((vocab_size, hidden.shape[1]))
    np.add.at(result, ids, d_looked_up)
    return result


def at_output(d_looked_up, ids, d_logits, hidden, vocab_size):
    return d_logits.T @ hidden


def tied(*given):
    return looked_up(*given) + at_output(*given)


def added_once(d_looked_up, ids, d_logits, hidden, vocab_size):
    result = d_logits.T @ hidden
    result[ids] += d_looked_up
    return result


def in_order(d_looked_up, ids, *rest):
    return tied(d_looked_up, np.arange(len(ids)), *rest)


def attention_in_place(gradient, query, key, value, weights):
    d_value = weights.T @ gradient
    d_weights = gradient @ value.T
    weights *= d_weights - (d_weights * weights).sum(axis=1, keepdims=True)
    return weights @ key / key.shape[1] ** 0.5, d_value


def centre_in_place(gradient, normed, sigma):
    gradient -= gradient.mean(axis=-1, keepdims=True)
    return gradient / sigma


RIGHT = [
    ("softmax_backward", softmax),
    ("attention_backward", attention),
    ("attention_backward", attention_in_place),
    ("sum_groups", lambda g, n: groups(g, n).sum(axis=1)),
    ("layer_norm_backward", norm),
    ("tied_gradient", tied),
]

MISTAKES = [
    ("softmax_backward", lambda g, a: g * a * (1 - a), "its diagonal"),
    ("softmax_backward", lambda g, a: g * a, "leaves out the sum"),
    (
        "softmax_backward",
        lambda g, a: a * (g - g.mean(axis=-1, keepdims=True)),
        "the plain mean",
    ),
    (
        "softmax_backward",
        lambda g, a: a * (g - (g * a).sum(axis=-2, keepdims=True)),
        "sums over queries",
    ),
    ("softmax_backward", lambda g, a: a * (g - (g * a).sum()), "the whole table"),
    (
        "softmax_backward",
        lambda g, a: g - (g * a).sum(axis=-1, keepdims=True),
        "forgets a in front",
    ),
    ("softmax_backward", lambda g, a: -softmax(g, a), "sign turned round"),
    ("softmax_backward", lambda g, a: 2 * softmax(g, a), "finite differences give"),
    ("softmax_backward", lambda g, a: softmax(g, a)[0], "has shape"),
    ("softmax_backward", lambda g, a: None, "must return NumPy arrays, got NoneType"),
    ("attention_backward", query_times(lambda k, v: k.shape[1] ** 0.5), "stands in it again"),
    (
        "attention_backward",
        query_times(lambda k, v: (k.shape[1] / v.shape[1]) ** 0.5),
        "root of d_value",
    ),
    ("attention_backward", through(lambda d, a: d), "without going through the softmax"),
    ("attention_backward", through(lambda d, a: d * a * (1 - a)), "softmax's Jacobian"),
    ("attention_backward", lambda *g: attention(*g)[::-1], "in the other order"),
    ("attention_backward", wrong_value, "the weights' own gradient"),
    ("attention_backward", lambda *g: attention(*g)[0], "two arrays"),
    ("attention_backward", query_times(lambda k, v: 3.0), "query: at"),
    ("sum_groups", lambda g, n: groups(g, n).mean(axis=1), "mean over a group"),
    ("sum_groups", lambda g, n: groups(g, n)[:, 0], "one query head of each group"),
    ("sum_groups", interleaved, "n_kv_heads apart"),
    ("sum_groups", lambda g, n: g, "one gradient for each query head"),
    ("sum_groups", lambda g, n: g.sum(0, keepdims=True).repeat(n, axis=0), "over all heads"),
    ("sum_groups", lambda g, n: groups(g, n).max(axis=1), "key: at"),
    ("layer_norm_backward", centre_in_place, "the part along x̂ is missing"),
    ("layer_norm_backward", lambda *g: norm(*g, shift=False, along=False), "as constants"),
    ("layer_norm_backward", lambda *g: norm(*g, along=False), "part along x̂"),
    ("layer_norm_backward", lambda *g: norm(*g, shift=False), "part along the ones"),
    ("layer_norm_backward", lambda *g: norm(*g, axis=0), "over the tokens"),
    ("layer_norm_backward", lambda g, n, s: norm(g, n, 1 / s), "multiplies by sigma"),
    ("layer_norm_backward", lambda g, n, s: norm(g, n, 1.0), "forgets to divide"),
    ("layer_norm_backward", lambda *g: norm(*g, mean=np.sum), "sums in place of means"),
    ("layer_norm_backward", lambda *g: 2 * norm(*g), "x: at"),
    ("tied_gradient", at_output, "output layer's part only"),
    ("tied_gradient", looked_up, "look-up's part only"),
    ("tied_gradient", added_once, "twice"),
    ("tied_gradient", lambda *g: tied(*g) / 2, "averages"),
    ("tied_gradient", in_order, "all rows in order"),
    ("tied_gradient", lambda *g: 2 * tied(*g), "table: at"),
]
