"""Train models that run in the page: ``python -m book.figures.live dates tales``, 20 minutes."""

import json
import re
import sys
from importlib import import_module
from random import Random

import torch

from attnbook.config import ModelConfig
from attnbook.encoder_decoder import Transformer
from attnbook.initialization import initialize
from attnbook.models import LanguageModel
from attnbook.tasks.tales import TalesTask, tell
from attnbook.training import train
from book.figures.live import HERE

SEED = 0
dates_training, lm_text = map(import_module, ("studies.dates_training", "studies.lm_text"))


def dates() -> tuple[Transformer, dict[str, str]]:
    """Chapter 9's reader, trained as in its studies for 1,500 steps."""
    model = dates_training.make_model(SEED)
    dates_training.train(model, SEED, **dates_training.CASES["longer"])
    return model, {"characters": "".join(dates_training.task().characters)}


def tales() -> tuple[LanguageModel, dict[str, object]]:
    """Chapter 10's model of four layers, on tales."""
    task = TalesTask(160)
    config = ModelConfig(
        task.vocab_size, norm="pre", scaled=False, position="rotary", activation="swiglu",
        **lm_text.SIZE,
    )  # fmt: skip
    draws = torch.Generator().manual_seed(SEED)
    model = initialize(LanguageModel(config), "glorot", generator=draws)
    train(model, lambda draws: task.batch(8, draws), lm_text.training(3000, SEED, rate=2e-3))
    told = " ".join(tell(Random(n)).text for n in range(3000)).lower()
    words = sorted(set(re.findall("[a-z]+", told)))
    return model, {"tokenizer": json.loads(task.tokenizer.to_str()), "words": words}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        model, words = globals()[name]()
        model.half().save(HERE / f"{name}.safetensors")
        (HERE / f"{name}.json").write_text(json.dumps(words, ensure_ascii=False), "utf-8")
