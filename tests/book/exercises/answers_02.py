"""What chapter 02's checks say beside naming typical mistakes."""

import torch


def alibi_of_four(n_heads, n_tokens):
    """Its exponents 2h are 8h/H and H·h/2 only for four heads."""
    position = torch.arange(n_tokens)
    slopes = 2.0 ** (-2 * torch.arange(1, n_heads + 1))
    return -slopes[:, None, None] * (position[:, None] - position)


def pairs_for_heads(weight, n_heads):
    """Takes the two numbers of a pair for two heads."""
    return weight.view(2, -1, n_heads, weight.shape[1]).transpose(1, 2).flatten(0, 2)


RIGHT = []

MISTAKES = [
    ("alibi", alibi_of_four, "2 heads, .* should be"),
    ("to_half_split", pairs_for_heads, "should be"),
]
