"""How many steps does it take to learn to reverse the input?"""

import torch

from attnbook import Encoder, ModelConfig
from attnbook.tasks import accuracy, reversal_batch, train
from studies.emb_language import BOTH, SIZE, STARTS, case_name


def encoder(seed, quieter=1, **choices):
    torch.manual_seed(seed)
    model = Encoder(ModelConfig(vocab_size=8, **SIZE, **choices))
    model.positions.table /= quieter
    return model


UNIT = {"tied": False, "embedding_init": "unit"}
TABLES = {
    case_name(tied, start, scaled): {
        "tied": tied,
        "embedding_init": init,
        "scaled": scaled,
    }
    for tied in BOTH
    for start, init in STARTS.items()
    for scaled in BOTH
}
SIZES = {
    "e + p/8": UNIT | {"scaled": False, "quieter": 8},
    "8e + 8p": UNIT | {"scaled": True, "quieter": 1 / 8},
    "pre-norm, 8e + 8p": UNIT
    | {"scaled": True, "quieter": 1 / 8, "norm": "pre"},
    "pre-norm, 8e + p": UNIT | {"scaled": True, "norm": "pre"},
}
CASES = TABLES | SIZES
SEEDS = dict.fromkeys(TABLES, 16) | dict.fromkeys(SIZES, 12)


def run(seed, case, steps=400):
    """Steps until 99 % are right (400 if never), and the best accuracy."""
    test = reversal_batch(64, 8, 8, torch.Generator().manual_seed(seed + 500))
    record = train(
        encoder(seed, **CASES[case]),
        lambda g: reversal_batch(16, 8, 8, g),
        steps=steps,
        learning_rate=3e-3,
        seed=seed,
        evaluate_every=25,
        stop_at=0.99,
        evaluate=lambda model: accuracy(model, *test),
    )
    numbers = {"first losses": record.losses[:20]}
    if steps < 400:
        return numbers
    return numbers | {
        "steps": record.first_step_with(0.99) or 400,
        "best": 100 * max(record.evaluations.values()),
    }
