"""What chapter 07's checks say beside naming typical mistakes, and other right answers."""

import math

import torch


def bound(weight, n_heads):
    return math.sqrt(6 / (weight.shape[1] + len(weight) // n_heads))


def head_by_head(weight, n_heads):
    for head in weight.view(n_heads, -1):
        head.copy_((2 * torch.rand_like(head) - 1) * bound(weight, n_heads))


def same_for_all(weight, n_heads):
    head_by_head(weight, n_heads)
    weight.copy_(weight[: len(weight) // n_heads].repeat(n_heads, 1))


def one_head_only(weight, n_heads):
    weight.normal_(std=1e-3)
    weight[: len(weight) // n_heads].uniform_(-0.1, 0.1)


RIGHT = [("per_head", head_by_head)]

MISTAKES = [
    ("packed_gain", lambda *a: 1.4142, "should be 1.414213562, got 1.4142$"),
    ("packed_gain", lambda *a: None, "must return a number"),
    ("per_head", lambda w, n: w.uniform_(0, 0.1), "the mean is not 0"),
    ("per_head", lambda w, n: head_by_head(w.clone(), n), "as it was"),
    ("per_head", lambda w, n: w.fill_(math.inf), "not finite"),
    ("per_head", one_head_only, "differ in size"),
    ("per_head", same_for_all, "the same numbers"),
    ("per_head", lambda w, n: w.bernoulli_().sub_(0.5).mul_(2 * bound(w, n) / 3**0.5), "as likely"),
    ("per_head", lambda w, n: w.normal_(), "not uniform: some entries"),
    ("per_head", lambda w, n: w.uniform_(-1, 1), "should be 0.0603"),
]
