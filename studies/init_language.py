"""A small language model, from five starts: what does attention's cost?"""

import math

from torch import Generator

from attnbook import LanguageModel, ModelConfig, initialize
from attnbook.tasks import TextTask, python_topics, train, word_tokenizer

half = math.sqrt(0.5)
STARTS = {  # factors on Glorot's matrices
    "separate": {},
    "fused": {"query": half, "key": half, "value": half},
    "sixth": {"query": 1 / 6, "key": 1 / 6},
    "none": {"output": 0.0},  # and it stays: no attention
    "four": {"query": 4.0, "key": 4.0},
}
SLOW, FAST = 0.005, 0.02
CASES = {f"{name}, {SLOW}": (name, SLOW) for name in STARTS} | {
    f"{name}, {FAST}": (name, FAST) for name in ("separate", "none", "four")
}
SEEDS = {
    case: 12 if name in ("separate", "four") else 8
    for case, (name, _) in CASES.items()
}

text = python_topics()
task = TextTask(text, word_tokenizer(text, 500), length=32)


def run(seed, case, steps=300):
    """Held-out loss after 100, 200, 300 steps; first losses of training."""
    name, rate = CASES[case]
    model = LanguageModel(
        ModelConfig(
            vocab_size=task.vocab_size,
            d_model=32,
            n_heads=4,
            n_layers=2,
            d_ff=64,
            max_tokens=32,
            norm="pre",
        )
    )
    initialize(model, "glorot", generator=Generator().manual_seed(seed))
    for block in model.blocks:
        for matrix, factor in STARTS[name].items():
            weight = getattr(block.attention, matrix).weight
            weight.data *= factor
            weight.requires_grad_(matrix != "output")
    held_out = task.validation_windows(48)
    record = train(
        model,
        lambda g: task.batch(16, g),
        steps=steps,
        learning_rate=rate,
        seed=seed,
        evaluate=lambda model: model.loss(*held_out).item(),
        evaluate_every=100,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps >= 300:
        numbers["held out"] = list(record.evaluations.values())
    return numbers
