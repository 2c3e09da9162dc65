"""Trained readers of dates, examined: masks, positions, edges, beams."""

from contextlib import contextmanager
from random import Random

import torch

from attnbook.attention import attention_logits, attention_weights
from attnbook.masks import token_mask
from attnbook.tasks.dates import (
    END,
    LOCALES,
    NEW_FORMATS,
    NEW_LOCALES,
    PADDING,
    START,
    readings,
    write_date,
)
from studies.dates_training import learn, percent, task

SEEDS = 10
N_TOKENS = 12


def answers(model, source, start=START, **how):
    """What the model writes for each row of ids."""
    ids = model.generate(
        source, start_id=start, end_id=END, n_tokens=N_TOKENS, **how
    )
    return task().decode(ids)


def right(texts, phrases):
    """Share of answers that are right as a whole, in percent."""
    return percent(t == p.iso for t, p in zip(texts, phrases, strict=True))


# Masks and positions


@contextmanager
def left_out(model, *masks):
    """The trained model without some of its masks."""
    encode, decode = model.encode_vectors, model.decode_vectors

    def encoder(x, mask, **rest):
        return encode(x, None if "self" in masks else mask, **rest)

    def decoder(x, memory, mask, memory_mask, **rest):
        mask = None if "target" in masks else mask
        memory_mask = None if "cross" in masks else memory_mask
        return decode(x, memory, mask, memory_mask, **rest)

    model.encode_vectors, model.decode_vectors = encoder, decoder
    try:
        yield
    finally:
        del model.encode_vectors, model.decode_vectors


@contextmanager
def changed_positions(model, name, change):
    """The trained model with its positions changed."""
    table = getattr(model, name)
    forward = table.forward
    table.forward = lambda at: forward(change(at))
    try:
        yield
    finally:
        del table.forward


def padded_left(source):
    """The same ids with the padding in front."""
    order = (source != PADDING).int().argsort(dim=1, stable=True)
    return source.gather(1, order)


def masks_and_positions(model, phrases):
    """Exact match in one batch, with something spoilt."""
    source, _ = task().encode(phrases)
    left = padded_left(source)

    def score(ids=source, **how):
        return right(answers(model, ids, **how), phrases)

    found = {"as trained": score(), "left": score(left),
             "end as start": score(start=END)}  # fmt: skip
    for which in (["self"], ["cross"], ["target"], ["self", "cross"]):
        with left_out(model, *which):
            found["without " + " and ".join(which)] = score()
    with left_out(model, "self", "cross"):
        one_by_one = [answers(model, row[row != PADDING][None])[0]
                      for row in source[:200]]  # fmt: skip
    found["without self and cross, alone"] = right(one_by_one, phrases[:200])
    edge = changed_positions(
        model, "positions", lambda at: torch.arange(at.shape[-1])
    )
    with edge:
        found["left, positions from the edge"] = score(left)
    again = changed_positions(
        model, "target_positions", lambda at: at - at[..., :1]
    )
    with again:
        found["positions restart"] = score()
    return found


# What was learned, and how sure the model is


def by_group(phrases, texts, key, names):
    """Of each locale or format: right answers, years, months, days."""
    found, wrong = {}, []
    for name in names:
        pairs = [(t, p) for t, p in zip(texts, phrases, strict=True)
                 if getattr(p, key) == name]  # fmt: skip
        with_day = [(t, p.iso) for t, p in pairs if len(p.iso) == 10]
        found[f"{name}: exact"] = percent(t == p.iso for t, p in pairs)
        for part, a, b in ("year", 0, 4), ("month", 5, 7), ("day", 8, 10):
            found[f"{name}: {part}"] = percent(
                t[a:b] == y[a:b] for t, y in with_day
            )
        wrong += [[name, p.text, p.iso, t] for t, p in pairs if t != p.iso][:4]
    return found, wrong


def log_probabilities(model, source, texts):
    """Of each whole answer, given its phrase."""
    ids = task().encode_answers(texts)
    logits = model(source, ids[:, :-1])
    each = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return each.masked_fill(ids[:, 1:] == PADDING, 0).sum(1)


def learned(model):
    found = {"wrong": []}
    for name, phrases in task().held_out.items():
        source, _ = task().encode(phrases)
        texts = answers(model, source)
        sure = log_probabilities(model, source, texts).exp()
        iso = [each.iso for each in phrases]
        good = torch.tensor([t == y for t, y in zip(texts, iso, strict=True)])
        found[f"{name}: sure if right"] = sure[good].mean().item()
        if not good.all():
            found[f"{name}: sure if wrong"] = sure[~good].mean().item()
        groups = {"formats": ("format", NEW_FORMATS),
                  "locales": ("locale", NEW_LOCALES)}  # fmt: skip
        if name in groups:
            numbers, wrong = by_group(phrases, texts, *groups[name])
            found |= numbers
            found["wrong"] += wrong
    return found


def ambiguous(model, draws, n=200):
    """Short phrases with several readings: what is each thought to be?"""
    random = Random(draws)
    totals, best, dmy = [], [], []
    while len(totals) < n:
        phrase = write_date(
            random.choice(task().days), random.choice(LOCALES), "short"
        )
        several = sorted(readings(phrase.text))
        if len(several) < 2:
            continue
        source = task().encode_texts([phrase.text] * len(several))
        p = log_probabilities(model, source, several).exp()
        totals.append(p.sum().item())
        best.append(p.max().item())
        dmy.append(several[int(p.argmax())] == phrase.iso)
    return {"readings together": sum(totals) / n,
            "likeliest reading": sum(best) / n,
            "likeliest is the writer's": percent(dmy)}  # fmt: skip


def one_wrong(model, phrases):
    """The model is made to write one wrong digit: what comes after it?"""
    source, target = task().encode(phrases)
    right_ids = target[:, 1:]
    found = {}
    for place in (3, 6):  # last digit of the year, of the month
        forced = target.clone()
        digits = task().encode_answers(["0123456789"])[0, 1:-1]
        index = (forced[:, place + 1, None] == digits).int().argmax(1)
        forced[:, place + 1] = digits[(index + 1) % 10]
        best = model(source, forced[:, :-1]).argmax(-1)
        plain = model(source, target[:, :-1]).argmax(-1)
        after = right_ids[:, place + 1 :] != PADDING
        for name, ids in (("forced", best), ("plain", plain)):
            same = (ids == right_ids)[:, place + 1 :] | ~after
            found[f"after digit {place}, {name}"] = percent(
                same.all(1).tolist()
            )
    return found


# Beams


def beams(model, phrases):
    """Four beams against greedy: answers and probabilities."""
    source, _ = task().encode(phrases)
    greedy = answers(model, source)
    found = {"greedy": right(greedy, phrases)}
    p_greedy = log_probabilities(model, source, greedy)
    for penalty in (0.0, 1.0):
        texts = answers(model, source, beams=4, length_penalty=penalty)
        p = log_probabilities(model, source, texts)
        name = f"4 beams, penalty {penalty:g}"
        found[name] = right(texts, phrases)
        found[f"{name}: likelier"] = percent((p > p_greedy + 1e-9).tolist())
        found[f"{name}: less likely"] = percent((p < p_greedy - 1e-9).tolist())
        longer = [len(a) - len(b) for a, b in zip(texts, greedy, strict=True)]
        found[f"{name}: longer"] = percent(n > 0 for n in longer)
    return found


# Edges


def cross_weights(model, source, target):
    """Weights of the only cross-attention: (batch, heads, target, source)."""
    cross, seen = model.decoder_blocks[0].cross_attention, []
    hook = cross.register_forward_pre_hook(lambda _, given: seen.append(given))
    model(source, target)
    hook.remove()
    x, memory, mask = seen[0]
    q, k = (
        each.unflatten(-1, (cross.n_heads, -1)).transpose(1, 2)
        for each in (cross.query(x), cross.key(memory))
    )  # (batch, heads, tokens, d_head)
    return attention_weights(attention_logits(q, k), mask)


def without(model, source, target, j, everywhere):
    """Probabilities of the right tokens if source token j is not attended to.

    By the decoder alone, or by the encoder too.
    """
    real = token_mask(source, PADDING)
    kept = real & (torch.arange(source.shape[1]) != j)
    at = torch.arange(source.shape[1])
    x = model.embedding(source) + model.positions(at)
    memory = model.encode_vectors(x, kept if everywhere else real)
    y = target[:, :-1]
    x = model.embedding(y) + model.target_positions(torch.arange(y.shape[1]))
    x = model.decode_vectors(x, memory, None, kept)
    p = model.embedding.logits(x).softmax(-1)
    return p.gather(-1, target[:, 1:, None])[..., 0]


def edges(model, phrases):
    """Cut each edge of the cross-attention: does the heaviest one matter?"""
    source, target = task().encode([p for p in phrases if len(p.iso) == 10])
    weights = cross_weights(model, source, target[:, :-1]).mean(1)
    weights = weights[:, :10]  # ten characters of the answer
    p = model(source, target[:, :-1]).softmax(-1).gather(
        -1, target[:, 1:, None])[:, :10, 0]  # fmt: skip
    digit = torch.tensor([c != "-" for c in "2024-03-05"])
    top, at = weights.max(-1)
    sharp = (top > 0.5) & digit & (p > 0.9)
    found = {"sharp": percent((top > 0.5)[:, digit].flatten().tolist())}
    other = weights.scatter(-1, at[..., None], 0).argmax(-1)
    for name, everywhere in (("edge", False), ("everywhere", True)):
        drops = torch.stack(
            [p - without(model, source, target, j, everywhere)[:, :10]
             for j in range(source.shape[1])], dim=-1)  # fmt: skip
        cut = drops.gather(-1, at[..., None])[..., 0][sharp]
        second = drops.gather(-1, other[..., None])[..., 0][sharp]
        found[f"{name}: drop"] = cut.mean().item()
        found[f"{name}: no matter"] = percent((cut < 0.1).tolist())
        found[f"{name}: second, drop"] = second.mean().item()
        found[f"{name}: most needed has it"] = percent(
            (drops.argmax(-1) == at)[sharp].tolist()
        )
    return found


@torch.no_grad()
def examine(model):
    """All of it, of one trained model."""
    sets = task().held_out
    days = sets["days"]
    parts = {"masks": masks_and_positions(model, days)}
    parts |= {
        f"{name} by beams": beams(model, sets[name][:300]) for name in sets
    }
    parts |= {"cut": edges(model, days[:200])}
    found = {
        f"{part}, {name}": number
        for part, numbers in parts.items()
        for name, number in numbers.items()
    }
    found |= learned(model) | ambiguous(model, 1)
    return found | one_wrong(model, days[:300])


def run(seed, steps=None):
    model, numbers = learn(seed, "longer", steps)
    return numbers if steps else numbers | examine(model)
