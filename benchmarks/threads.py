"""What ``torch.set_num_threads`` does to torch's fused attention, by way of two settings of MKL."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import command, report
from benchmarks.attention import MODES
from benchmarks.contenders import Size
from benchmarks.timing import environment, quartiles, race, speed_ratio, threads

SIZES = (Size(64, 32, 32), Size(64, 128, 8), Size(256, 32, 32), Size(256, 512, 2))
STARTED = "as started"


def library() -> ctypes.CDLL:
    """The MKL within torch.

    Raises:
        OSError: if this build of torch does not hold it.
    """
    if not torch.backends.mkl.is_available():
        raise OSError("this build of torch does not hold MKL")
    return ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))


def settings(n_threads: int) -> dict[str, Callable[[], object]]:
    """MKL's two settings, each as at the start and as ``torch.set_num_threads`` makes it."""
    mkl = library()

    def both(is_dynamic: int, local: int) -> None:
        mkl.MKL_Set_Dynamic(is_dynamic)
        mkl.MKL_Set_Num_Threads_Local(local)

    def by_torch() -> None:
        both(1, 0)
        torch.set_num_threads(n_threads)

    return {
        STARTED: partial(both, 1, 0),
        "mkl_set_dynamic(false)": partial(both, 0, 0),
        "mkl_set_num_threads_local": partial(both, 1, n_threads),
        "both": partial(both, 0, n_threads),
        "torch.set_num_threads": by_torch,
    }


class Kernel:
    """``F.scaled_dot_product_attention`` alone, causal, in float32."""

    def __init__(self, size: Size) -> None:
        shape = (size.batch, size.n_heads, size.tokens, size.d_head)
        self.qkv = [torch.randn(shape, dtype=torch.float32) for _ in range(3)]
        self.gradient = torch.randn(shape, dtype=torch.float32)

    def forward(self) -> Tensor:
        """Of queries, keys and values that need no gradient."""
        return F.scaled_dot_product_attention(*self.qkv, is_causal=True)

    def forward_backward(self) -> tuple[Tensor, ...]:
        """With the gradients of the three."""
        qkv = [x.detach().requires_grad_() for x in self.qkv]
        output = F.scaled_dot_product_attention(*qkv, is_causal=True)
        return torch.autograd.grad(output, qkv, self.gradient)


def measure(*, seconds: float = 3.0, rounds: tuple[int, int] = (21, 201)) -> dict[str, Any]:
    """Milliseconds under each setting, and the time as started divided by it."""
    torch.manual_seed(0)
    before = environment()
    made = settings(threads())
    rows = []
    for size in SIZES:
        kernel = Kernel(size)
        for mode, call in zip(MODES, (kernel.forward, kernel.forward_backward), strict=True):

            def under(name: str, call: Callable[[], object] = call) -> None:
                made[name]()
                call()

            times = race(
                {name: partial(under, name) for name in made}, seconds=seconds, rounds=rounds
            )
            made[STARTED]()
            rows.append(
                {
                    "mode": mode,
                    "d_model": size.d_model,
                    "tokens": size.tokens,
                    "milliseconds": {name: quartiles(1e3 * t) for name, t in times.items()},
                    "time": {n: speed_ratio(times, STARTED, n) for n in times if n != STARTED},
                }
            )
    return {"benchmark": "threads", "environment": before, "rows": rows}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table, write the file."""
    command.run("threads", measure, report.threads_text, arguments)


if __name__ == "__main__":
    main()
