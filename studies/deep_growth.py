"""How the stream grows, and how alike tokens become, from 2 to 48 blocks."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from attnbook import BlockConfig, initialize
from attnbook.blocks import Block, Residual
from attnbook.initialization import deepnorm_constants

D, T = 64, 32  # width, tokens
DEPTHS = [2, 4, 6, 12, 24, 48]


def mean_cosine(x):  # of different tokens
    unit = x / x.norm(dim=-1, keepdim=True)
    n = len(x)
    return ((unit.sum(dim=0) ** 2).sum().item() - n) / (n * (n - 1))


def stack(n, scheme, norm="pre", seed=0, width=D):
    """A stack of the package's blocks, drawn by a scheme; heads of 16."""
    torch.manual_seed(seed)
    alpha = deepnorm_constants(n)[0] if norm == "deepnorm" else 1.0
    config = BlockConfig(d_model=width, n_heads=width // 16, norm=norm)
    with torch.device("meta"):  # sizes only; numbers are drawn below, once
        blocks = nn.Sequential(
            *[Block(config, residual_scale=alpha) for _ in range(n)]
        )
    return draw(blocks.to_empty(device="cpu"), scheme, width)


@torch.no_grad()
def draw(model, scheme, d):
    name, _, change = scheme.partition(" ")
    initialize(model, name)
    blocks = [b for b in model.modules() if isinstance(b, Block)]
    if name == "gpt2":  # 0.02 belongs to width 768
        for matrix in (p for p in model.parameters() if p.dim() > 1):
            matrix *= math.sqrt(768 / d)
    root = math.sqrt(2 * len(blocks))
    factor = {"plain": root, "scaled": 1 / root}.get(change, 1.0)
    for block in blocks:  # GPT-2's factor taken out, or put into Glorot
        block.attention.output.weight *= factor
        block.feed_forward.outer.weight *= factor
    return model


@torch.no_grad()
def follow(model, seed):
    """Variance and mean cosine of tokens after each block: two lists."""
    torch.manual_seed(seed + 10**6)
    x, rows = F.layer_norm(torch.randn(1, T, D), (D,)), []  # v = 1
    for block in model:
        x = block(x)
        rows.append((x.pow(2).mean().item(), mean_cosine(x[0])))
    return tuple(zip(*rows, strict=True))


def set_norm(blocks, norm):
    """The same matrices under another norm."""
    for block in blocks:
        block.attention_residual = Residual(D, norm=norm)
        block.feed_forward_residual = Residual(D, norm=norm)
    return blocks


@torch.no_grad()
def divided(seed, output=1.0, outer=1.0):
    """48 blocks from Glorot, with W_O and W_2 divided."""
    blocks = stack(48, "glorot", "pre", seed)
    for block in blocks:
        block.attention.output.weight /= output
        block.feed_forward.outer.weight /= outer
    return blocks


@torch.no_grad()
def literal(seed):
    """48 blocks with 0.02 as it is written, at width 64."""
    blocks = stack(48, "gpt2 plain", "pre", seed)
    for matrix in (p for p in blocks.parameters() if p.dim() > 1):
        matrix *= math.sqrt(D / 768)
    return blocks


CHANGED = {
    "W_O by sqrt(48)": lambda seed: divided(seed, output=48**0.5),
    "W_2 by sqrt(48)": lambda seed: divided(seed, outer=48**0.5),
    "both by sqrt(48)": lambda seed: divided(seed, 48**0.5, 48**0.5),
    "both by sqrt(96)": lambda seed: divided(seed, 96**0.5, 96**0.5),
    "literal 0.02": literal,
}
SEEDS = {
    "glorot, pre": 48,
    "glorot, post": 10,
    "glorot, none": 10,
    "gpt2 plain, pre": 32,
    "small, pre": 12,
    "gpt2, pre": 8,
    "gpt2, post": 8,
    "t_fixup, none": 8,
    "deepnorm, deepnorm": 8,
} | dict.fromkeys(CHANGED, 8)


def run(seed, case):
    """Variance and cosine after each of DEPTHS; where changed, after 48."""
    if case in CHANGED:
        variances, _ = follow(CHANGED[case](seed), seed)
        return {"variance 48": variances[-1]}
    scheme, norm = case.split(", ")
    if scheme in ("glorot", "gpt2 plain", "small"):
        # what does not depend on N: the first 12 of 48 are a model of 12
        found = follow(stack(48, scheme, norm, seed), seed)
        ends = [[each[n - 1] for each in found] for n in DEPTHS]
    else:  # the others are drawn for each depth anew
        models = (stack(n, scheme, norm, seed) for n in DEPTHS)
        ends = [[e[-1] for e in follow(m, seed)] for m in models]
    numbers = {}
    for n, (variance, cosine) in zip(DEPTHS, ends, strict=True):
        numbers |= {f"variance {n}": variance, f"cosine {n}": cosine}
    return numbers
