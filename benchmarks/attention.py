"""Speed and peak memory of self-attention, beside other people's and beside the products alone.

Run it by ``make bench``; or alone, on a GPU, by
``python -m benchmarks.attention --device cuda --dtype bfloat16``.
"""

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from tqdm import tqdm

from benchmarks import report
from benchmarks.contenders import (
    OURS,
    OURS_BIASED,
    PACKED,
    PACKED_BIASED,
    Contender,
    Size,
    check_equal,
    contenders,
)
from benchmarks.memory import peak_bytes
from benchmarks.timing import Call, Times, environment, quartiles, race, speed_ratio, threads

TOKENS_IN_BATCH = {"cpu": 1024, "cuda": 16384}
"""Tokens in all of a row's sequences together; the sizes go up to as long a sequence."""

D_MODELS = (64, 128, 256, 512, 1024)
TOKENS = (32, 128, 512, 1024)
MEMORY_D_MODEL = 256
MEMORY_TOKENS = (128, 512, 1024, 2048)
MODES = ("forward", "forward+backward")
OF_OURS = (OURS, OURS_BIASED, PACKED, PACKED_BIASED)


def speed_sizes(device: str, *, quick: bool) -> list[Size]:
    """The rows of the speed tables."""
    chosen = [(64, 32), (128, 128)] if quick else [(d, t) for d in D_MODELS for t in TOKENS]
    return [Size(d, t, TOKENS_IN_BATCH[device] // t) for d, t in chosen]


def memory_sizes(*, quick: bool) -> list[Size]:
    """The rows of the memory table: one sequence each."""
    return [Size(MEMORY_D_MODEL, t, 1) for t in (MEMORY_TOKENS[:1] if quick else MEMORY_TOKENS)]


def speed_row(
    size: Size,
    mode: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    seconds: float = 6.0,
    rounds: tuple[int, int] = (15, 101),
) -> dict[str, Any]:
    """Time one size in one mode, after checking that all compute the same."""
    _check(size, device)
    participants = contenders(size, device=device, dtype=dtype)
    x, gradient = _tokens(size, device, dtype)
    products = Products(size, device=device, dtype=dtype)
    for contender in participants:
        contender.module.train(mode != "forward")
    calls = {c.name: _call(c, mode, x, gradient) for c in participants}
    with torch.set_grad_enabled(mode != "forward"):
        times = race(calls, seconds=seconds, rounds=rounds, device=device)
    row = {"mode": mode, **asdict(size), "n_heads": size.n_heads, **compare(times, participants)}
    if mode == "forward":  # apart, so that no peer comes after ours with the weights of ours
        unmasked = {c.name: partial(c.module, x) for c in participants if c.name in (OURS, PACKED)}
        with torch.no_grad():
            times = race(
                {**products.parts, **unmasked}, seconds=seconds / 2, rounds=rounds, device=device
            )
        row["limit"] = products.limit(times, OURS)
        row["packed"]["limit"] = products.limit(times, PACKED)
    return row


def compare(times: Times, participants: Iterable[Contender]) -> dict[str, Any]:
    """Milliseconds, and our speed divided by each peer's, packed and not.

    A peer with biases is compared with ours with biases, all others with ours without.
    """
    peers = [c for c in participants if c.name not in OF_OURS]
    three = {c.name: speed_ratio(times, OURS_BIASED if c.bias else OURS, c.name) for c in peers}
    one = {c.name: speed_ratio(times, PACKED_BIASED if c.bias else PACKED, c.name) for c in peers}
    return {
        "rounds": len(times[OURS]),
        "milliseconds": {name: quartiles(1e3 * seconds) for name, seconds in times.items()},
        "speed": three,
        "packed": {"speed": one},
    }


class Products:
    """The matrix products of an attention, and its softmax: no reshaping, no autograd.

    Those of an attention without a mask: four projections, and Q Kᵀ and A V over all pairs of
    tokens. Ours is timed without a mask too for this comparison, so both do the same products.
    Beside them, what no module of torch's operations can be much faster than: the operations alone.
    """

    def __init__(self, size: Size, *, device: str, dtype: torch.dtype) -> None:
        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, dtype=dtype)

        n_tokens, n_matrices = size.batch * size.tokens, size.batch * size.n_heads
        self.size = size
        self.x = random(n_tokens, size.d_model)
        weights = random(4, size.d_model, size.d_model) / size.d_model**0.5
        self.weights, self.packed = weights.unbind(), weights[:3].flatten(0, 1)
        self.projected = [torch.empty_like(self.x) for _ in range(4)]
        self.query, self.key, self.value, self.heads = (
            random(n_matrices, size.tokens, size.d_head) for _ in range(4)
        )
        self.logits = random(n_matrices, size.tokens, size.tokens)
        self.attention = torch.empty_like(self.logits)

    def project(self) -> None:
        """Four times X W."""
        for weight, out in zip(self.weights, self.projected, strict=True):
            torch.mm(self.x, weight.T, out=out)

    def attend(self) -> None:
        """Q Kᵀ, and as large a product in the place of A V."""
        torch.bmm(self.query, self.key.mT, out=self.logits)
        torch.bmm(self.logits, self.value, out=self.heads)

    def softmax(self) -> None:
        """Of the logits, as torch computes it."""
        torch.softmax(self.logits, dim=-1, out=self.attention)

    def torch_alone(self) -> Tensor:
        """The whole attention in torch's operations: no module, no check."""
        batch, tokens, d_model = self.size.batch, self.size.tokens, self.size.d_model
        parts = F.linear(self.x.view(batch, tokens, d_model), self.packed).split(d_model, dim=-1)
        cut = (batch, tokens, self.size.n_heads, self.size.d_head)
        query, key, value = (part.view(cut).transpose(1, 2) for part in parts)
        heads = F.scaled_dot_product_attention(query, key, value)
        return F.linear(heads.transpose(1, 2).flatten(-2), self.weights[3])

    @property
    def parts(self) -> dict[str, Call]:
        """What is timed, each by itself."""
        return {
            "projections": self.project,
            "attention products": self.attend,
            "softmax": self.softmax,
            "torch alone": self.torch_alone,
        }

    @property
    def operations(self) -> float:
        """Floating-point operations of these products."""
        n_tokens, d_model = self.size.batch * self.size.tokens, self.size.d_model
        projections = 4 * 2 * n_tokens * d_model**2
        between_tokens = 2 * 2 * n_tokens * self.size.tokens * d_model
        return projections + between_tokens

    def limit(self, times: Times, name: str) -> dict[str, Any]:
        """Rates in 10⁹ operations a second, and ours divided by those of the parts alone."""
        shortest = times["projections"] + times["attention products"]
        billions = self.operations / 1e9
        return {
            "ours_gflops": quartiles(billions / times[name]),
            "products_gflops": quartiles(billions / shortest),
            "share": quartiles(shortest / times[name]),
            "share_of_torch": quartiles(shortest / times["torch alone"]),
            "share_with_softmax": quartiles((shortest + times["softmax"]) / times[name]),
        }


def memory_row(
    size: Size, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Peak memory of forward and backward, above parameters and input."""
    x, gradient = _tokens(size, device, dtype)
    peaks = {
        c.name: peak_bytes(_call(c, MODES[1], x, gradient), device)
        for c in contenders(size, device=device, dtype=dtype)
    }
    return {**asdict(size), "n_heads": size.n_heads, "peak_bytes": peaks}


def measure(
    *, device: str = "cpu", dtype: torch.dtype = torch.float32, quick: bool = False
) -> dict[str, Any]:
    """All rows, as they go to the results' file."""
    torch.manual_seed(0)
    result = {
        "benchmark": "attention",
        "device": device,
        "dtype": str(dtype).removeprefix("torch."),
        "environment": environment(device),
    }
    cells = [(size, mode) for mode in MODES for size in speed_sizes(device, quick=quick)]
    pace: dict[str, Any] = {"seconds": 0.2, "rounds": (3, 5)} if quick else {}
    bar = tqdm(cells, f"attention, {threads()} thread(s)", unit="row")
    speed = [speed_row(size, mode, device=device, dtype=dtype, **pace) for size, mode in bar]
    memory = [memory_row(size, device=device, dtype=dtype) for size in memory_sizes(quick=quick)]
    return result | {"speed": speed, "memory": memory}


def _call(contender: Contender, mode: str, x: Tensor, gradient: Tensor) -> Call:
    if mode == "forward":
        return lambda: contender.attend(x)
    return lambda: contender.forward_backward(x, gradient)


def _tokens(size: Size, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The input, and the gradient that comes back from above."""
    generator = Generator().manual_seed(1)
    shape = (2, size.batch, size.tokens, size.d_model)
    both = torch.randn(shape, generator=generator, dtype=torch.float32).to(device, dtype)
    return both[0].clone().requires_grad_(), both[1].clone()


def _check(size: Size, device: str) -> None:
    """In float32, whatever is timed: in bfloat16 nothing is equal to 1e-4."""
    x, gradient = _tokens(size, device, torch.float32)
    check_equal(contenders(size, device=device), x, gradient)


def main(arguments: list[str] | None = None) -> None:
    """Measure on as many threads as the environment says, print the tables, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=tuple(TOKENS_IN_BATCH), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--quick", action="store_true", help="few sizes, few rounds")
    parser.add_argument("--to", type=Path, help="folder for the results")
    chosen = parser.parse_args(arguments)
    result = measure(
        device=chosen.device,
        dtype=getattr(torch, chosen.dtype),
        quick=chosen.quick,
    )
    name = f"attention-{chosen.device}-{chosen.dtype}-{threads()}.json"
    report.save(result, (chosen.to or report.folder(result)) / name)
    print(report.attention_text(result))


if __name__ == "__main__":
    main()
