"""What the scrubber over training shows: words as points, a head, losses."""

import torch

from attnbook.probes import attended, prefix_score
from attnbook.tasks import CollocationTask, train
from studies import put_induction, put_words

PERIOD = 7  # words, then the same again
STEPS = (
    0, 10, 25, 50, 100, 200, 300, 400, 450, 500, 550, 600, 650, 700, 800,
    1200, 1600,
)  # fmt: skip
CASES = ("words", "heads")
SEEDS = dict.fromkeys(CASES, 1)


def watched(model, batch, look, seed, steps):
    """Train, and call `look` before, and after each of STEPS."""
    at = iter(range(5, STEPS[-1] + 1, 5))

    def evaluate(model):
        if next(at) in STEPS:
            look(model)
        return 0.0

    look(model)
    return train(
        model, batch, steps=steps or STEPS[-1], learning_rate=3e-3, seed=seed,
        evaluate=evaluate, evaluate_every=5,
    )  # fmt: skip


def words(seed, steps):
    """Places of words in the plane in which the last ones vary most."""
    task = CollocationTask()
    torch.manual_seed(seed)
    model = put_words.make_model(task, masked=False, tied=True, change=None)
    pairs = (task.interchangeable[2], task.collocated[0])
    tables, cosines = [], []

    def look(model):
        table = model.embedding.weight.detach()
        tables.append((table[1:18] - table[1:].mean(0)).clone())
        found = put_words.cosines(table)
        cosines.append([found[pair].item() for pair in pairs])

    record = watched(model, lambda g: task.batch(32, g), look, seed, steps)
    axes = torch.linalg.svd(tables[-1])[2][:2]
    axes = axes * axes.gather(1, axes.abs().argmax(1, True)).sign()
    places = torch.stack([table @ axes.T for table in tables])
    return record.losses, {
        "x": places[..., 0].tolist(),
        "y": places[..., 1].tolist(),
        "cosines": torch.tensor(cosines).T.tolist(),
        "loss": [
            torch.tensor(record.losses[max(n - 10, 0) : max(n, 1)])
            .mean()
            .item()
            for n in STEPS
        ],
    }


def heads(seed, steps):
    """What the head of layer 2 that looks up best attends to."""
    torch.manual_seed(seed)
    model = put_induction.make_model()
    draws = torch.Generator().manual_seed(seed + 500)
    test = put_induction.rounds(128, draws)
    ids = torch.arange(PERIOD).repeat(1, 2)
    patterns, losses = [], []

    def look(model):
        patterns.append(attended(model, ids)[1].weights[0])
        losses.append(put_induction.examined(model, *test)[1])

    record = watched(
        model,
        lambda g: put_induction.batch(32, g, put_induction.ANEW),
        look,
        seed,
        steps,
    )
    best = prefix_score(patterns[-1][None], ids).argmax()
    return record.losses, {
        "weights": [pattern[best].tolist() for pattern in patterns],
        "loss": losses,
    }


def run(seed, case, steps=None):
    losses, numbers = {"words": words, "heads": heads}[case](seed, steps)
    first = {"first losses": losses[:20]}
    return first if steps else first | numbers
