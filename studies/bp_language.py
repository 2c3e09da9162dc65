"""A language model of two layers in NumPy, trained with wrong gradients."""

from unittest import mock

import numpy as np
from torch import Generator

from attnbook import ModelConfig, backprop
from attnbook.tasks import TextTask, python_topics, word_tokenizer

text = python_topics()
pages = TextTask(text, word_tokenizer(text, 500), length=32)
small = {
    "vocab_size": 500,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "d_ff": 64,
    "max_tokens": 32,
}


def centred(table, A):
    """Each row minus its plain mean, over the keys it may look at."""
    seen = A > 0
    mean = (table * seen).sum(-1, keepdims=True) / seen.sum(-1, keepdims=True)
    return (table - mean) * seen


def blind_to_values(dA, A):
    return centred(dA, A) * A * (1 - A)


def blind_to_keys(dA, A):
    return centred(dA * A * (1 - A), A)


THROUGH = {  # from dA and A to the logits' gradient
    "right": backprop.softmax_backward,
    "a(1 - a)": lambda dA, A: dA * A * (1 - A),
    "blind to values": blind_to_values,
    "blind to keys": blind_to_keys,
    "none": lambda dA, A: 0 * dA,
    "no factor": lambda dA, A: 8**0.5 * backprop.softmax_backward(dA, A),
}
USUAL, GENTLE = 0.003, 0.001  # rates
CASES = {f"{name}, {USUAL}": (name, USUAL) for name in THROUGH}
CASES |= {
    f"{name}, {GENTLE}": (name, GENTLE)
    for name in ("right", "a(1 - a)", "none")
}
SEEDS = dict.fromkeys(CASES, 12) | {
    "right, 0.003": 36,
    "no factor, 0.003": 36,
    "a(1 - a), 0.003": 20,
    "none, 0.003": 20,
}


def run(seed, case, steps=200):
    """Losses in nats per word: of the first ten steps, over the last 50."""
    name, rate = CASES[case]
    model = backprop.LanguageModel(ModelConfig(**small), seed=seed)
    adam = backprop.Adam(model.parameters(), lr=rate)
    generator, losses = Generator().manual_seed(seed), []
    with mock.patch.object(
        backprop.attention, "softmax_backward", THROUGH[name]
    ):
        for _ in range(steps):
            ids, targets = (t.numpy() for t in pages.batch(8, generator))
            losses.append(model.loss_and_gradients(ids, targets))
            adam.step()
    numbers = {"first losses": losses[:10]}
    if steps >= 200:
        numbers["loss"] = np.mean(losses[-50:])
    return numbers
