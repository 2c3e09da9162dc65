"""Which arithmetic numbers come from: processors round differently."""

import hashlib
import platform
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

EXECUTED = Path("chapters/executed.json")
"""Under which arithmetic each chapter's committed outputs were made."""


def arithmetic() -> str:
    """Hash of the processor's kind and of some results to the last bit.

    Under another one a long training takes another way, and digits that a chapter measures differ;
    what it claims has to hold all the same.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = [result.numpy() for dtype in FLOATS for result in _torch_results(dtype)]
    finally:
        torch.set_num_threads(threads)
    x, w, *_ = results
    results += [x @ w, np.exp(x), np.tanh(x)]
    kind = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    kind += [processor().get(key, "") for key in ("vendor_id", "cpu family", "model")]
    digest = hashlib.sha256(" ".join(kind).encode())
    for result in results:
        digest.update(result.tobytes())
    return digest.hexdigest()[:12]


FLOATS = (torch.float64, torch.float32)


@torch.no_grad()
def _torch_results(dtype: torch.dtype) -> list[Tensor]:
    generator = Generator().manual_seed(0)
    x, w = (torch.randn(96, 96, generator=generator, dtype=dtype) for _ in range(2))
    q, k, v = torch.randn(3, 2, 4, 16, 8, generator=generator, dtype=dtype)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    rows = [x @ w, x.softmax(-1), x.exp(), F.gelu(x), F.layer_norm(x, (96,))]
    return [x, w, *rows, x.sum(), q @ k.mT, attended]


def processor() -> dict[str, str]:
    """What Linux says of the first one; nothing elsewhere."""
    try:
        first, *_ = Path("/proc/cpuinfo").read_text().split("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): said.strip() for name, _, said in pairs}
