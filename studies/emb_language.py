"""What does the factor do to the training of a small language model?"""

import torch

from attnbook import LanguageModel, ModelConfig
from attnbook.tasks import TextTask, python_topics, train, word_tokenizer

text = python_topics()
pages = TextTask(text, word_tokenizer(text, 500), length=32)
ids, targets = pages.validation_windows(100)
counts = torch.bincount(pages.training, minlength=500).double() + 0.02
share = counts / counts.sum()

SIZE = {"d_model": 64, "n_heads": 2, "n_layers": 1, "d_ff": 64}
STARTS = {"N(0, 1/d)": "inverse_sqrt", "N(0, 1)": "unit"}


def language_model(seed, quieter=1, **choices):
    torch.manual_seed(seed)
    config = ModelConfig(vocab_size=500, **SIZE, **choices)
    model = LanguageModel(config)
    if quieter != 1:
        model.positions.table /= quieter
    return model


def loss_of(model):
    """On held-out text, in nats per word."""
    return model.loss(ids, targets).item()


def size(model):
    """RMS of the table, each word weighted by how often it occurs."""
    squares = model.embedding.weight.detach().pow(2).mean(dim=1)
    return (share @ squares).sqrt().item()


def split(model, readers):
    """``readers`` read the token as the residual stream does not have it."""
    attention, places = model.blocks[0].attention, model.positions.table
    factor = 1 / 8 if model.config.scaled else 8

    def otherwise(module, given):
        place = places[: given[0].shape[1]]
        return place + factor * (given[0] - place)

    for name in readers:
        getattr(attention, name).register_forward_pre_hook(otherwise)


def case_name(tied, start, scaled):
    """What a case is called."""
    words = "tied" if tied else "untied", "scaled" if scaled else "not scaled"
    return f"{words[0]}, {start}, {words[1]}"


BOTH = (True, False)
CASES, SEEDS = {}, {}
for tied in BOTH:
    for start, init in STARTS.items():
        for scaled in BOTH:
            case = case_name(tied, start, scaled)
            CASES[case] = {"embedding_init": init}
            CASES[case] |= {"tied": tied, "scaled": scaled}
            CASES[case] |= {"steps": 400 if start == "N(0, 1/d)" else 100}
            SEEDS[case] = 8
    for scaled in BOTH:
        case = case_name(tied, "positions off", scaled)
        CASES[case] = {"tied": tied, "scaled": scaled, "quieter": 1e6}
        SEEDS[case] = 6

CASES["untied, positions / 8, not scaled"] = {
    "tied": False,
    "scaled": False,
    "quieter": 8,
}
for tied, who, readers, scaled in (
    (False, "only W_Q and W_K", ("query", "key"), False),
    (True, "only W_Q and W_K", ("query", "key"), False),
    (False, "all but W_Q and W_K", ("query", "key"), True),
    (True, "all but W_Q and W_K", ("query", "key"), True),
    (False, "only W_V", ("value",), False),
    (False, "only the residual stream", ("query", "key", "value"), True),
):
    case = f"{'tied' if tied else 'untied'}, {who}"
    CASES[case] = {"tied": tied, "scaled": scaled, "readers": readers}
for case in CASES:
    SEEDS.setdefault(case, 6)

ROTARY = {"tied": False, "norm": "pre", "position": "rotary"}
for scaled in BOTH:
    case = case_name(False, "rotary", scaled)
    CASES[case] = ROTARY | {"scaled": scaled}
    SEEDS[case] = 12
    slow = ROTARY | {"scaled": scaled, "rate": 3e-4, "steps": 400}
    CASES[f"slow, {case}"] = slow
    SEEDS[f"slow, {case}"] = 24


def run(seed, case, steps=None):
    """Train; look at the held-out loss every 25 steps."""
    choices = dict(CASES[case])
    rate, readers = choices.pop("rate", 3e-3), choices.pop("readers", ())
    planned = choices.pop("steps", 100)
    model = language_model(seed, **choices)
    if readers:
        split(model, readers)
    sizes = [size(model)]

    def look(model):
        sizes.append(size(model))
        return loss_of(model)

    record = train(
        model,
        lambda g: pages.batch(8, g),
        steps=steps or planned,
        learning_rate=rate,
        seed=seed,
        evaluate=look,
        evaluate_every=25,
    )
    numbers = {"first losses": record.losses[:20]}
    if steps:
        return numbers
    return numbers | {
        "curve": list(record.evaluations.values()),
        "loss": record.evaluations[100],
        "growth": sizes[4] / sizes[0],
    }
