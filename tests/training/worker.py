"""Small trainings that tests start in processes of their own, to kill or to compare."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from attnbook import LanguageModel, ModelConfig, files
from attnbook.training import History, TrainingConfig, processes, train

MODEL = ModelConfig(
    11,
    d_model=16,
    n_heads=2,
    d_ff=24,
    max_tokens=8,
    norm="pre",
    position="rotary",
    dropout=0.2,
    tied=False,
)
CONFIG = {
    "steps": 20,
    "learning_rate": 0.01,
    "seed": 7,
    "warmup": 4,
    "schedule": "cosine",
    "shards": 4,
    "clip": 1.0,
    "weight_decay": 0.1,
}


def padded_batch(generator: Generator) -> tuple[Tensor, Tensor]:
    """Of each batch, another number of targets counts."""
    ids = torch.randint(11, (3, 9), generator=generator)
    n_real = torch.randint(1, 9, (3, 1), generator=generator)
    return ids[:, :-1], ids[:, 1:].masked_fill(torch.arange(8) >= n_real, -100)


def run(
    dtype: str = "float64",
    dropout: float = 0.2,
    pause: float = 0.0,
    fail_at: int | None = None,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[History, LanguageModel]:
    """Train; each process starts from other parameters, and the first one's have to count."""
    here = processes()
    torch.manual_seed(here.rank)
    model = LanguageModel(replace(MODEL, dropout=dropout)).to(getattr(torch, dtype))
    drawn = []

    def next_batch(generator: Generator) -> tuple[Tensor, Tensor]:
        drawn.append(1)
        if len(drawn) == fail_at and here.rank == here.count - 1:
            raise RuntimeError("the data ended too soon")
        time.sleep(pause)
        return padded_batch(generator)

    config = TrainingConfig(**CONFIG | (config or {}))
    return train(model, next_batch, config, **options), model


def main(out: str, *cases: str) -> None:
    """Write what each case, a dictionary of options as JSON, came to."""
    torch.set_num_threads(1)
    Path(f"{out}.pid.{os.environ.get('RANK', 0)}").write_text(str(os.getpid()))
    tensors = {}
    for i, case in enumerate(cases):
        history, model = run(**json.loads(case))
        tensors |= {f"{i}.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors[f"{i}.losses"] = torch.tensor(history.losses, dtype=torch.float64)
    if processes().rank == 0:
        files.write(out, tensors, {})


if __name__ == "__main__":
    main(*sys.argv[1:])
