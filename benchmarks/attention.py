"""Speed of causal self-attention compared with other people's."""

from functools import partial

import torch
from torch import Generator, Tensor
from tqdm import tqdm

from benchmarks.contenders import OURS, OURS_BIASED, Size, check_equal, contenders
from benchmarks.timing import Call, Quartiles, Ratios, race, speed_ratio

D_MODELS = (64, 128, 256, 512, 1024)
TOKENS = (32, 128, 512, 1024)
TOKENS_IN_BATCH = 1024
"""Tokens in all of a row's sequences together."""
MODES = ("forward", "forward + backward")


def measure(*, quick: bool = False) -> Ratios:
    """The ratio to each peer, in both modes, for each size."""
    sizes = [Size(d, t, TOKENS_IN_BATCH // t) for d in D_MODELS for t in TOKENS]
    ratios: Ratios = {}
    for mode in MODES:
        for size in tqdm(sizes[:1] if quick else sizes, f"attention, {mode}", unit="size"):
            for peer, ratio in compare(size, mode, seconds=0 if quick else 6).items():
                row = ratios.setdefault(f"attention, {mode} / {peer}", {})
                row[f"{size.d_model} wide, {size.tokens} tokens"] = ratio
    return ratios


def compare(size: Size, mode: str, *, seconds: float) -> dict[str, Quartiles]:
    """Our speed divided by each peer's, after checking that all compute the same.

    A peer with biases is compared with ours with biases, all others with ours without.
    """
    participants = contenders(size)
    x, gradient = tokens(size)
    check_equal(participants, x, gradient)
    backward = mode != "forward"
    calls: dict[str, Call] = {}
    for contender in participants:
        contender.module.train(backward)
        calls[contender.name] = (
            partial(contender.gradients, x, gradient) if backward else partial(contender.attend, x)
        )
    with torch.set_grad_enabled(backward):
        times = race(calls, seconds=seconds)
    peers = [c for c in participants if c.name not in (OURS, OURS_BIASED)]
    return {c.name: speed_ratio(times, OURS_BIASED if c.bias else OURS, c.name) for c in peers}


def tokens(size: Size) -> tuple[Tensor, Tensor]:
    """The input, and the gradient that comes back from above."""
    generator = Generator().manual_seed(1)
    shape = (2, size.batch, size.tokens, size.d_model)
    x, gradient = torch.randn(shape, generator=generator, dtype=torch.float32)
    return x.requires_grad_(), gradient
