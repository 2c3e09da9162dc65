"""GPT-2 small on a GPU: do the small models' answers hold?

And at other widths and depths. The same code as ``size_small``, in bfloat16,
compiled. The most important rows come first.
"""

import torch

from studies.size_small import CASES, SIZES, Size, learn

SIZES = SIZES | {
    "GPT-2": Size(768, 12, 12, 16384, 512, 32, 300, 20),
    "48 layers": Size(768, 48, 12, 16384, 512, 32, 300, 20),
    "256 wide": Size(256, 12, 4, 16384, 512, 32, 300, 20),
    "1280 wide": Size(1280, 12, 20, 16384, 512, 32, 300, 20),
}
ALL, STARTS = list(CASES), list(CASES)[:8]
ROWS = (
    [("GPT-2", 6e-4, case) for case in ALL]
    + [("GPT-2", 2e-3, case) for case in STARTS]
    + [("48 layers", 6e-4, case) for case in STARTS[:2]]
    + [("GPT-2", 2e-3, case) for case in ALL[8:]]
    + [
        (size, 6e-4, case)
        for size in ("256 wide", "1280 wide")
        for case in STARTS[:4]
    ]
)
SEEDS = {f"{size}, {rate}, {case}": 3 for size, rate, case in ROWS}
TINY = {"size": "tiny", "device": "cpu"}


def run(seed, case, size=None, device="cuda"):
    own, rate, name = case.split(", ", 2)
    torch._dynamo.config.recompile_limit = 64  # a graph of each kind is kept
    gpu = device == "cuda"
    size = SIZES[size or own]
    return learn(seed, name, size, float(rate), device=device, compile=gpu)
