"""GPT-2 small (124 million parameters) on one GPU: ``python -m benchmarks.gpu FILE.json``.

A training step in four kinds of arithmetic, and greedy generation plain and captured, beside other
people's lines with the same weights; and whether a training that goes on from a checkpoint ends in
the same bits.
"""

import argparse
import gc
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import attnbook
from attnbook import LanguageModel, ModelConfig
from attnbook.convert.transformers import from_gpt2
from attnbook.costs import decoding_bytes
from attnbook.decoding import Captured, Step
from attnbook.training import TrainingConfig, train
from benchmarks import report, training
from benchmarks.contenders import OURS
from benchmarks.generation import GPT2, NANOGPT, greedy
from benchmarks.timing import Call, race, speed_ratio

BATCH, TOKENS, N_NEW = 16, 1024, 96
FUSED, STATIC = f"{OURS}, fused", f"{GPT2}, static cache"
PEAK = {"NVIDIA H100": 989e12, "NVIDIA H200": 989e12}
"""Dense bfloat16 operations a second, by NVIDIA's data sheets."""
ARITHMETIC = ("float32", "TF32", "bfloat16", "bfloat16, compiled")


def config() -> ModelConfig:
    """GPT-2 small as nanoGPT trains it: no biases, a vocabulary that 64 divides."""
    return replace(
        training.config(),
        vocab_size=50304,
        d_model=768,
        n_heads=12,
        n_layers=12,
        max_tokens=TOKENS,
    )


def flops_per_token(config: ModelConfig, n_parameters: int) -> float:
    """Multiplications and additions, forward and backward.

    Source: Chowdhery et al. 2022, appendix B: all of the attention matrix counts.
    """
    assert config.max_tokens is not None
    return 6 * n_parameters + 12 * config.n_layers * config.d_model * config.max_tokens


def step_of(model: nn.Module, arithmetic: str) -> Call:
    """Forward, loss, backward, update, and the wait for the GPU."""
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = Generator().manual_seed(1)
    ids = torch.randint(config().vocab_size, (BATCH, TOKENS + 1), generator=generator).cuda()
    loss: Callable[..., Tensor] = model.loss  # type: ignore[assignment]
    if arithmetic.endswith("compiled"):
        loss = torch.compile(loss)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=arithmetic.startswith("bfloat16")):
            mean = loss(ids[:, :-1], ids[:, 1:])
        mean.backward()
        adam.step()
        adam.zero_grad()
        torch.cuda.synchronize()

    return step


def steps(seconds: float) -> dict[str, Any]:
    """Tokens per second, their share of the GPU's peak, bytes; ours divided by nanoGPT's."""
    peak = next(v for name, v in PEAK.items() if torch.cuda.get_device_name().startswith(name))
    found: dict[str, Any] = {}
    for arithmetic in ARITHMETIC:
        torch.backends.cuda.matmul.allow_tf32 = arithmetic == "TF32"
        row: dict[str, Any] = {}
        made, calls = {}, {}
        torch.manual_seed(0)
        ours = LanguageModel(config()).float()
        peer = training.TorchModel(config(), training.FusedBlock).float()
        training.copy_weights(ours, peer)
        for name, model in {OURS: ours, NANOGPT: peer}.items():
            made[name] = model.cuda().train()
            calls[name] = step_of(model, arithmetic)
            calls[name]()  # Adam's moments, and what is compiled
            alone = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            calls[name]()
            row[name] = {"bytes of the step": torch.cuda.max_memory_allocated() - alone}
        times = race(calls, seconds=seconds)
        n_parameters = sum(p.numel() for p in ours.parameters())
        flops = flops_per_token(config(), n_parameters) * BATCH * TOKENS
        for name, seconds_each in times.items():
            middle = float(torch.tensor(seconds_each).median())
            row[name] |= {
                "tokens per second": round(BATCH * TOKENS / middle),
                "share of the bfloat16 peak": round(flops / middle / peak, 4),
            }
        row["ratio"] = speed_ratio(times, OURS, NANOGPT)
        del ours, peer, model, made, calls
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()
        found[arithmetic] = row
        print(arithmetic, row, flush=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def bandwidth() -> float:
    """Bytes a second that one gigabyte is read and written with."""
    source = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return 2**31 / float(np.median(race({"copy": copy}, seconds=1)["copy"]))


def rounding(model: LanguageModel, ids: Tensor) -> float:
    """How far a captured step's logits are from the plain ones, relative to their size (RMS)."""
    with torch.inference_mode():
        cache, own = model.new_cache(), model.new_cache()
        for each in (cache, own):
            model(ids[:, :-1], cache=each, at=-1)
        step = Captured(Step(model, cache, ids.shape[1] + 2, fixed=True), ids[:, -1:])
        plain, fused = model(ids[:, -1:], cache=own, at=-1), step(ids[:, -1:])
        return float((fused - plain).float().norm() / plain.float().norm())


def generation(seconds: float) -> dict[str, Any]:
    """Tokens per second of greedy generation after 64 tokens, and their share of the floor.

    The floor: weights and cache are read once for each token, as fast as memory is copied.
    """
    speed = bandwidth()
    found: dict[str, Any] = {"bytes a second": float(f"{speed:.4g}")}
    settings = GPT2Config(bos_token_id=None, eos_token_id=None)
    settings._attn_implementation = "sdpa"
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        theirs = GPT2LMHeadModel(settings).eval()  # type: ignore[no-untyped-call]
        ours = from_gpt2(theirs)
        assert isinstance(ours, LanguageModel)
        theirs.cuda().to(dtype)
        ours.cuda().to(dtype)
        for batch in (1, 8, 64):
            ids = torch.randint(1000, (batch, 64), generator=Generator().manual_seed(1)).cuda()

            def own(ids: Tensor = ids, model: LanguageModel = ours, **more: Any) -> Tensor:
                return model.generate(ids, N_NEW, temperature=0, **more)

            def other(ids: Tensor = ids, model: Any = theirs, **more: Any) -> Tensor:
                written = greedy(model, ids, N_NEW, **more)
                torch.cuda.synchronize()
                return written

            calls: dict[str, Call] = {
                OURS: own,
                FUSED: partial(own, fused=True),
                GPT2: other,
                STATIC: partial(other, cache_implementation="static", disable_compile=True),
            }
            same = {name: float((own() == call()).float().mean()) for name, call in calls.items()}  # type: ignore[attr-defined]
            times = race(calls, seconds=seconds)
            middle = decoding_bytes(ours.config, 64 + N_NEW // 2, batch, itemsize=dtype.itemsize)
            row: dict[str, Any] = {}
            for name, seconds_each in times.items():
                each = float(np.median(seconds_each)) / N_NEW
                row[name] = {
                    "tokens per second": round(batch / each),
                    "share of the floor": round(middle.total / speed / each, 4),
                    "same tokens": round(same[name], 4),
                    "ratio": speed_ratio(times, name, GPT2),
                }
            row["rounding of the logits"] = rounding(ours, ids)
            name = f"{str(dtype).removeprefix('torch.')}, batch {batch}"
            found[name] = row
            print(name, row, flush=True)
    return found


def resumed() -> dict[str, bool]:
    """Whether six steps, and three and three after a checkpoint, give the same bits."""
    small = replace(config(), vocab_size=512, n_layers=4, max_tokens=256, dropout=0.1)

    def batch(generator: Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(512, (8, 257), generator=generator)
        return ids[:, :-1], ids[:, 1:]

    def run(kind: str, pieces: tuple[int, ...]) -> list[Tensor]:
        bfloat16 = kind == "bfloat16"
        settings = TrainingConfig(steps=6, learning_rate=1e-3, shards=2, bfloat16=bfloat16)
        with tempfile.TemporaryDirectory() as folder:
            for until in pieces:
                torch.manual_seed(0)
                dtype = torch.float64 if kind == "float64" else torch.float32
                model = LanguageModel(small).to("cuda", dtype)
                train(
                    model,
                    batch,
                    settings,
                    folder=folder,
                    stop=lambda history, until=until: len(history.losses) >= until,  # type: ignore[misc]
                )
        return [p.detach().cpu() for p in model.parameters()]

    found = {}
    for kind in ("float64", "float32", "bfloat16"):
        whole, again, parts = (run(kind, pieces) for pieces in ((6,), (6,), (3, 6)))
        found[f"{kind}, run again"] = all(map(torch.equal, whole, again))
        found[f"{kind}, resumed"] = all(map(torch.equal, whole, parts))
    print(found, flush=True)
    return found


def main() -> None:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=5, help="for each race")
    chosen = parser.parse_args()
    result = {
        "benchmark": "gpu",
        "environment": {
            "GPU": torch.cuda.get_device_name(),
            "versions": {"attnbook": attnbook.__version__, "torch": torch.__version__},
        },
    }
    result |= {
        "resumed": resumed(),
        "generation": generation(chosen.seconds),
        "training step": steps(chosen.seconds),
    }
    report.save(result, chosen.file)


if __name__ == "__main__":
    main()
