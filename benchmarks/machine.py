"""What one core of this machine can do, and what the book's operations make of it.

``python -m benchmarks.machine FILE.json`` measures, in float32 and on one thread: the speed of a
large product and of reading memory; attention and its projections by the number of tokens; the
book's operations with their operations and bytes; a decoded token by the number of texts.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnbook import LanguageModel, ModelConfig, scaled_dot_product_attention
from attnbook.costs import decoding_bytes, forward_operations
from attnbook.decoding import Step
from benchmarks import report
from benchmarks.timing import Call, environment, race

D_MODEL, N_HEADS = 512, 8
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = 4.0
"""For each call."""


def medians(calls: dict[str, Call]) -> dict[str, float]:
    """Seconds of each call, to four digits."""
    times = race(calls, seconds=SECONDS)
    return {name: float(f"{np.median(each):.4g}") for name, each in times.items()}


def limits() -> dict[str, float]:
    """Operations and bytes a second: a product of 1,024³, and a sum over 400 MB."""
    a, b, large = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.randn(10**8)
    seconds = medians({"product": lambda: a @ b, "reading": large.sum})
    return {
        "operations a second": float(f"{2 * 1024**3 / seconds['product']:.4g}"),
        "bytes a second": float(f"{large.nbytes / seconds['reading']:.4g}"),
    }


def by_length() -> dict[str, dict[str, float]]:
    """Four projections; attention by the fused kernel, and by its definition."""
    found = {}
    for tokens in LENGTHS:
        x, weights = torch.randn(tokens, D_MODEL), torch.randn(4, D_MODEL, D_MODEL)
        q, k, v = torch.randn(3, 1, N_HEADS, tokens, D_MODEL // N_HEADS)

        def project(x: Tensor = x, weights: Tensor = weights) -> list[Tensor]:
            return [F.linear(x, weight) for weight in weights]

        attend = partial(scaled_dot_product_attention, q, k, v, causal=True)
        calls = {"projections": project, "fused": attend}
        calls["definition"] = partial(attend, return_weights=True)
        found[str(tokens)] = medians(calls)
    return found


def roofline() -> dict[str, dict[str, float]]:
    """Operations (of a norm or GELU: one a number), bytes in and out, and seconds."""
    d = D_MODEL
    many, wide, inner = torch.randn(1024, d), torch.randn(1024, 4 * d), torch.randn(4 * d, d)
    one, large = torch.randn(1, 4 * d), torch.randn(8 * d, 4 * d)
    query, keys = torch.randn(1, N_HEADS, 1, 64), torch.randn(2, 1, N_HEADS, 4096, 64)
    long = torch.randn(3, 1, N_HEADS, 1024, 64)
    rows: dict[str, tuple[Call, float, float]] = {
        "product, one token": (lambda: F.linear(one, large), 64 * d**2, 4 * 32 * d**2),
        "product, 1,024 tokens": (
            lambda: F.linear(many, inner),
            8 * 1024 * d**2,
            4 * (4 * d**2 + 1024 * 5 * d),
        ),
        "attention, one token": (
            lambda: F.scaled_dot_product_attention(query, *keys),
            4 * 4096 * d,
            4 * 2 * 4096 * d,
        ),
        "attention, 1,024 tokens": (
            lambda: F.scaled_dot_product_attention(*long),
            4 * 1024**2 * d,
            4 * 4 * 1024 * d,
        ),
        "GELU": (lambda: F.gelu(wide), wide.numel(), 8 * wide.numel()),
        "LayerNorm": (lambda: F.layer_norm(many, (d,)), many.numel(), 8 * many.numel()),
    }
    seconds = medians({name: call for name, (call, _, _) in rows.items()})
    return {
        name: {"operations": operations, "bytes": size, "seconds": seconds[name]}
        for name, (_, operations, size) in rows.items()
    }


def by_batch() -> dict[str, dict[str, float]]:
    """A decoded token of each text after 64, 512 wide with 8 layers: seconds, operations, bytes."""
    config = ModelConfig(1000, d_model=D_MODEL, n_heads=N_HEADS, n_layers=8, norm="pre")
    model = LanguageModel(config).eval()
    found, calls = {}, {}
    with torch.inference_mode():
        for batch in BATCHES:
            cache, ids = model.new_cache(66), torch.randint(1000, (batch, 65))
            model(ids[:, :64], cache=cache)
            step = Step(model, cache, 66)

            def decode(step: Step = step, ids: Tensor = ids) -> None:
                with torch.inference_mode():
                    step(ids[:, 64:])
                for block in step.cache:
                    block.cut(64)

            calls[str(batch)] = decode
            found[str(batch)] = {
                "operations": float(forward_operations(config, 1, batch, n_seen=64).total),
                "bytes": float(decoding_bytes(config, 64, batch).total),
            }
        seconds = medians(calls)
    return {batch: row | {"seconds": seconds[batch]} for batch, row in found.items()}


def main() -> None:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.machine", description=__doc__)
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "benchmark": "machine",
        "environment": environment(),
        "limits": limits(),
        "attention, 512 wide": by_length(),
        "roofline": roofline(),
        "token by batch": by_batch(),
    }
    report.save(result, chosen.file)


if __name__ == "__main__":
    main()
