"""Right answers to the exercises of chapter 07, and typical mistakes."""

import math

import torch


def gain(fan_in, fan_out, n_parts):
    return math.sqrt((fan_in + n_parts * fan_out) / (fan_in + fan_out))


def logits(d_model, std_q, std_k, rho):
    return d_model**2 * std_q**2 * std_k**2 * (1 - rho)


def mean(weights, value_variance, rho):
    return value_variance * (rho + (1 - rho) * weights.pow(2).sum(-1))


def fold(weight, value, output):
    return output + value @ weight.T


def std(weight, n_heads):
    return math.sqrt(2 / (weight.shape[1] + len(weight) // n_heads))


def uniform_with(deviation):
    """Uniform with this standard deviation, a function of (d_model, d_head, n_heads)."""

    def draw(weight, n_heads):
        bound = math.sqrt(3) * deviation(weight.shape[1], len(weight) // n_heads, n_heads)
        return weight.uniform_(-bound, bound)

    return draw


def same_for_all(weight, n_heads):
    head = torch.empty_like(weight[: len(weight) // n_heads])
    weight.copy_(right_per_head(head, 1).repeat(n_heads, 1))


def one_head_only(weight, n_heads):
    weight.normal_(std=1e-3)
    right_per_head(weight[: len(weight) // n_heads], 1)


right_per_head = uniform_with(lambda d, d_head, n: math.sqrt(2 / (d + d_head)))

RIGHT = [
    ("packed_gain", gain),
    ("logit_variance", logits),
    ("output_variance", mean),
    ("fold_bias", fold),
    ("per_head", right_per_head),
]

MISTAKES = [
    ("packed_gain", lambda *a: gain(*a) ** 2, "factor on the variance"),
    ("packed_gain", lambda *a: 1 / gain(*a), "smaller still"),
    ("packed_gain", lambda i, o, n: math.sqrt(n), "root of the number of parts"),
    ("packed_gain", lambda *a: round(gain(*a), 4), "should be 1.414213562, got 1.4142$"),
    ("packed_gain", lambda i, o, n: n, "is the number of parts"),
    ("packed_gain", lambda i, o, n: math.sqrt(2), "three square matrices only"),
    ("packed_gain", lambda i, o, n: gain(o, i, n), "repeats the fan-in"),
    ("packed_gain", lambda *a: 2 * gain(*a), "should be"),
    ("packed_gain", lambda *a: None, "must return a number"),
    ("logit_variance", lambda d, q, k, r: logits(d, q, k, 0), "leaves rho out"),
    ("logit_variance", lambda d, q, k, r: logits(d, q, k, r) * (1 - r), "from the queries too"),
    ("logit_variance", lambda d, q, k, r: logits(d, q, k, 1 - r), "multiplies by rho"),
    ("logit_variance", lambda *a: math.sqrt(logits(*a)), "is a standard deviation"),
    ("logit_variance", lambda d, q, k, r: d**2 * q * k * (1 - r), "must be squared"),
    ("logit_variance", lambda d, q, k, r: logits(d, q, k, r) / d, "counts d_model once"),
    ("logit_variance", lambda d, q, k, r: d * q**2, "variance of the query"),
    ("logit_variance", lambda *a: 2 * logits(*a), "should be"),
    ("output_variance", lambda a, v, r: mean(a, v, 0), "leaves rho out"),
    ("output_variance", lambda a, v, r: mean(a * 0 + 1 / 7, v, r), "number of keys"),
    ("output_variance", lambda a, v, r: v * (r + (1 - r) * a.pow(2).sum(-2)), "over queries"),
    ("output_variance", lambda a, v, r: v * (r + (1 - r) * a.sum(-1)), "sums the weights"),
    ("output_variance", lambda a, v, r: mean(a, v, 1 - r), "changes rho"),
    ("output_variance", lambda *a: mean(*a).sqrt(), "standard deviations"),
    ("output_variance", lambda a, v, r: mean(a, v**2, r), "squares it"),
    ("output_variance", lambda *a: mean(*a).mean(), "one number"),
    ("output_variance", lambda *a: 5 * mean(*a), "should be"),
    ("fold_bias", lambda w, v, o: o + v @ w, "stored weight"),
    ("fold_bias", lambda w, v, o: v @ w.T, "loses the output's own"),
    ("fold_bias", lambda w, v, o: o + v, "as it is"),
    ("fold_bias", lambda w, v, o: o - v @ w.T, "subtracts"),
    ("fold_bias", lambda w, v, o: v + w @ o, "sends the output's bias through"),
    ("fold_bias", lambda w, v, o: (v + o) @ w.T, "sends both biases"),
    ("fold_bias", lambda w, v, o: o, "as it was"),
    ("fold_bias", lambda w, v, o: 2 * fold(w, v, o), "should be"),
    ("per_head", lambda w, n: w.uniform_(0, 0.1), "the mean is not 0"),
    ("per_head", lambda w, n: uniform_with(lambda *a: 1.0)(w.clone(), n), "as it was"),
    ("per_head", lambda w, n: w.fill_(math.nan), "as it was|not finite"),
    ("per_head", lambda w, n: w.fill_(math.inf), "not finite"),
    ("per_head", one_head_only, "differ in size"),
    ("per_head", same_for_all, "the same numbers"),
    ("per_head", lambda w, n: w.normal_(std=std(w, n)), "not uniform"),
    ("per_head", uniform_with(lambda d, h, n: math.sqrt(2 / (d + n * h))), "as one matrix"),
    ("per_head", lambda w, n: w.uniform_(-std(w, n), std(w, n)), "for the bound"),
    ("per_head", lambda w, n: w.uniform_(-(std(w, n) ** 2), std(w, n) ** 2), "the variance for"),
    ("per_head", uniform_with(lambda d, h, n: math.sqrt(2 / d)), "fan-in alone"),
    ("per_head", uniform_with(lambda d, h, n: math.sqrt(2 / (d / n + h))), "divides the fan-in"),
    ("per_head", uniform_with(lambda d, h, n: math.sqrt(1 / (d + h))), "leaves out the 2"),
    ("per_head", uniform_with(lambda d, h, n: 1.0), "should be"),
]
