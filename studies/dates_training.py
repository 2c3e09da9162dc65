"""An encoder-decoder learns to read dates; then something is left out."""

from functools import cache

import torch
import torch.nn.functional as F

from attnbook import Transformer, TransformerConfig
from attnbook.tasks.dates import END, PADDING, START, DatesTask

SIZE = {"d_model": 64, "n_heads": 4, "d_ff": 128, "n_layers": 1, "tied": True}
STEPS, BATCH, RATE, WARMUP = 1000, 64, 6e-3, 100

CASES = {
    "plain": {},
    "longer": {"steps": 1500},
    "label smoothing 0.1": {"smoothing": 0.1},
    "dropout 0.1": {"dropout": 0.1},
    "no warm-up": {"warmup": 1},
    "post-norm": {"norm": "post"},
    "post-norm, no warm-up": {"norm": "post", "warmup": 1},
    "no source mask": {"padding_id": None},
    "not shifted": {"shift": 0, "steps": 300},
    "no causal mask": {"causal": False, "steps": 600},
    "two layers": {"n_layers": 2, "steps": 600},
    "two layers, level by level": {
        "n_layers": 2,
        "kind": "LevelByLevel",
        "steps": 600,
    },
}
SEEDS = {case: 6 for case in CASES if case != "longer"}


class LevelByLevel(Transformer):
    """Decoder block i reads what encoder block i gives, not the last."""

    def encode_vectors(self, x, mask=None, *, positions=None):
        levels = []
        for block in self.encoder_blocks:
            x = block(x, mask, positions=positions)
            levels.append(self.encoder_norm(x))
        return torch.cat(levels, dim=-1)

    def decode_vectors(
        self, x, memory, mask=None, memory_mask=None, *, positions=None,
        cache=None,
    ):  # fmt: skip
        levels = memory.chunk(len(self.decoder_blocks), dim=-1)
        for i, block in enumerate(self.decoder_blocks):
            seen = None if cache is None else cache[i]
            x = block(
                x, levels[i], mask, memory_mask, positions=positions,
                cache=seen,
            )  # fmt: skip
        return self.decoder_norm(x)


def make_model(seed, kind="Transformer", causal=True, **choices):
    torch.manual_seed(seed)
    make = {"Transformer": Transformer, "LevelByLevel": LevelByLevel}[kind]
    settings = {"norm": "pre", "padding_id": PADDING} | SIZE | choices
    model = make(TransformerConfig(task().vocab_size, **settings))
    if not causal:
        for block in model.decoder_blocks:
            block.attention.forward = _without_causal(block.attention.forward)
    return model


def _without_causal(forward):
    return lambda x, **rest: forward(x, **rest | {"causal": False})


@cache
def task():
    return DatesTask(size=1000)


def loss_of(model, source, target, shift=1, smoothing=0.0):
    """Cross-entropy of each next token; without the shift, of each token."""
    read = target[:, :-1] if shift else target[:, 1:]
    logits = model.decode(read, model.encode(source), source)
    return F.cross_entropy(
        logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PADDING,
        label_smoothing=smoothing,
    )  # fmt: skip


def train(
    model, seed, steps=STEPS, warmup=WARMUP, shift=1, smoothing=0.0,
    every=100, evaluate=None, stop=None,
):  # fmt: skip
    """Adam; the rate rises for `warmup` steps and falls in the second half."""
    draws = torch.Generator().manual_seed(seed)
    adam = torch.optim.Adam(
        model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    rate = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda n: min(1, (n + 1) / warmup, 2.02 - 2 * n / steps)
    )
    losses, found = [], []
    for step in range(1, (stop or steps) + 1):
        source, target = task().batch(BATCH, draws)
        loss = loss_of(model, source, target, shift, smoothing)
        adam.zero_grad()
        loss.backward()
        adam.step()
        rate.step()
        losses.append(loss.item())
        if evaluate and step % every == 0:
            model.eval()
            found.append(evaluate(model, step))
            model.train()
    return losses, found


def answers(model, phrases, **how):
    """What the model writes for each phrase."""
    source, _ = task().encode(phrases)
    ids = model.generate(
        source, start_id=START, end_id=END, n_tokens=12, **how
    )
    return task().decode(ids)


def exact(model, phrases, **how):
    """Share of phrases whose whole answer is right, in percent."""
    written = answers(model, phrases, **how)
    return percent(
        text == each.iso for text, each in zip(written, phrases, strict=True)
    )


def percent(right):
    right = list(right)
    return 100 * sum(right) / len(right)


@torch.no_grad()
def held_out_loss(model, phrases, shift=1):
    return loss_of(model, *task().encode(phrases), shift).item()


PHRASES = ("5 March 2024", "mardi 5 mars 2024", "25.12.1999", "1998年7月14日")


@torch.no_grad()
def checks(model, phrases, shift=1):
    """What the model writes, and three quick looks at how."""
    source = task().encode_texts(PHRASES)
    written = model.generate(source, start_id=START, end_id=END, n_tokens=12)
    found = {"writes": task().decode(written)}
    source, target = task().encode(phrases)
    read = target[:, :-1] if shift else target[:, 1:]
    memory = model.encode(source)
    logits = model.decode(read, memory, source)
    other = read.clone()
    year = 4 if shift else 3  # its last digit
    other[:, year] = read[:, year].roll(1)
    changed = (model.decode(other, memory, source) - logits).abs()
    found["reads ahead"] = changed[:, :year].amax().item()
    real = read != PADDING
    best = logits.argmax(-1)
    found["copies what it reads"] = percent((best == read)[real].tolist())
    written = model.generate(source, start_id=START, end_id=END, n_tokens=12)
    start = target[:, :1]
    again = model(source, torch.cat([start, written[:, :-1]], 1)).argmax(-1)
    real = written != PADDING
    found["agrees with its full pass"] = percent(
        (again == written)[real].tolist()
    )
    return found


def learn(seed, case, steps=None):
    """A trained model; its learning curve and held-out results."""
    settings = dict(CASES[case])
    how = {
        name: settings.pop(name)
        for name in ("warmup", "shift", "smoothing", "steps")
        if name in settings
    }
    shift = how.get("shift", 1)
    model = make_model(seed, **settings)
    if steps:  # the first of them, as a replay
        losses, _ = train(model, seed, **how, stop=steps)
        return model, {"first losses": losses}
    held_out = task().held_out

    def evaluate(model, step):
        few = held_out["days"][:300]
        return held_out_loss(model, few, shift), exact(model, few)

    watch = evaluate if case == "longer" else None  # only its curve is drawn
    losses, found = train(model, seed, evaluate=watch, **how)
    model.eval()
    numbers = {"first losses": losses[:20], "last loss": losses[-1]}
    if found:
        numbers["losses"], numbers["curve"] = map(
            list, zip(*found, strict=True)
        )
    for name, phrases in held_out.items():
        numbers[name] = exact(model, phrases)
        numbers[f"{name} loss"] = held_out_loss(model, phrases, shift)
    return model, numbers | checks(model, held_out["days"][:200], shift)


def run(seed, case, steps=None):
    return learn(seed, case, steps)[1]
