"""What chapter 10's checks say beside naming typical mistakes, and other right answers."""

import math
from collections import Counter

import torch
import torch.nn.functional as F

from book.exercises.chapter_10 import check_positions, check_step, check_top_p

positions, step, top_p = check_positions.correct, check_step.correct, check_top_p.correct


def unigram(training, held_out, vocab_size):
    counts = torch.bincount(training, minlength=vocab_size) + 1
    return F.cross_entropy(counts.double().log().expand(len(held_out), -1), held_out)


def unigram_by_hand(training, held_out, vocab_size):
    counts = Counter(training.tolist())
    total = len(training) + vocab_size
    return -sum(math.log((counts[i] + 1) / total) for i in held_out.tolist()) / len(held_out)


def too_few_counts(training, held_out, vocab_size):
    counts = torch.bincount(training) + 1
    return -(counts / (len(training) + vocab_size)).log()[held_out].mean()


def ids_in_training(training, held_out, vocab_size):
    counts = torch.bincount(training) + 1
    return -(counts / counts.sum()).log()[held_out].mean()


def mean_loss_of_tensors(batches):
    losses, counts = torch.tensor(batches).T
    return (losses * counts).sum() / counts.sum()


def arange(real):
    return torch.arange(real.shape[1])


def counted_in_a_loop(real):
    ids = torch.zeros_like(real, dtype=torch.int32)
    for row, mask in enumerate(real.tolist()):
        n = 0
        for column, is_real in enumerate(mask):
            if is_real:
                ids[row, column] = n
                n += 1
    return ids


def top_p_by_scatter(logits, p):
    ordered, order = logits.sort(descending=True)
    drop = ordered.softmax(1).cumsum(1) > p
    drop[:, 1:] = drop[:, :-1].clone()
    drop[:, 0] = False
    return logits.masked_fill(drop.scatter(1, order, drop), -torch.inf)


def top_p_in_a_loop(logits, p):
    for row in logits:
        probabilities = row.softmax(0)
        total = 0
        for token in probabilities.argsort(descending=True):
            if total >= p:
                row[token] = -torch.inf
            total += probabilities[token]
    return logits


def step_with_rows(x, cache, w_q, w_k, w_v):
    q, k, v = (x[None] @ w for w in (w_q, w_k, w_v))  # (1, …)
    cache += [[k, v]]
    key, value = torch.cat([k for k, _ in cache]), torch.cat([v for _, v in cache])
    return F.scaled_dot_product_attention(q[None], key[None], value[None])[0, 0]


def step_by_hand(x, cache, w_q, w_k, w_v):
    cache.append((x @ w_k, x @ w_v))
    shares = [math.exp((x @ w_q) @ k / len(k) ** 0.5) for k, _ in cache]
    return sum(share * v for share, (_, v) in zip(shares, cache, strict=True)) / sum(shares)


def appends_after(first):
    """The first token has nothing to attend to: it gets ``first`` of its value."""

    def step_before(x, cache, w_q, w_k, w_v):
        if cache:
            key, value = map(torch.stack, zip(*cache, strict=True))
            out = (key @ (x @ w_q) / w_k.shape[1] ** 0.5).softmax(0) @ value
        else:
            out = first(x @ w_v)
        cache.append((x @ w_k, x @ w_v))
        return out

    return step_before


def keeps(what):
    """A step with the right output, of which ``what(pair, x, w_q)`` is kept in the cache."""

    def step_and_keep(x, cache, w_q, w_k, w_v, pairs=[]):  # noqa: B006
        if not cache:
            pairs.clear()
        out = step(x, pairs, w_q, w_k, w_v)
        cache.extend(what(pairs[-1], x, w_q))
        return out

    return step_and_keep


def two_tensors(x, cache, w_q, w_k, w_v):
    pairs = list(zip(*cache, strict=True))
    out = step(x, pairs, w_q, w_k, w_v)
    cache[:] = map(torch.stack, zip(*pairs, strict=True))
    return out


def all_rows(x, cache, w_q, w_k, w_v):
    cache.append((x @ w_k, x @ w_v, x @ w_q))
    key, value, query = map(torch.stack, zip(*cache, strict=True))
    return (query @ key.T).softmax(-1) @ value if len(cache) > 1 else value[0]


def from_the_left(x, cache, *weights):
    return step(x, cache, *(w.T for w in weights))


RIGHT = [
    ("unigram_loss", unigram),
    ("unigram_loss", unigram_by_hand),
    ("mean_loss", mean_loss_of_tensors),
    ("positions", counted_in_a_loop),
    ("positions", lambda real: positions(real).to(torch.uint8)),
    ("positions", lambda real: (real.cumsum(1) - 1).masked_fill(~real, 1)),
    ("positions", lambda real: real.cumsum(1) - real.long()),
    ("positions", lambda real: (arange(real) - real.int().argmax(1, keepdim=True)).clamp(0)),
    ("top_p", top_p_by_scatter),
    ("top_p", lambda x, p: top_p_in_a_loop(x.clone(), p)),
    ("step", step_with_rows),
    ("step", step_by_hand),
]

MISTAKES = [
    ("unigram_loss", too_few_counts, "all vocab_size tokens have a count"),
    ("unigram_loss", ids_in_training, r"largest id \+ 1"),
    ("unigram_loss", lambda *a: 7.0, "should be"),
    ("positions", lambda real: arange(real) * real, "counts padding, too"),
    ("positions", lambda real: real.cumsum(1) - 1, "padding gets -1"),
    ("positions", lambda real: arange(real) - real.int().argmax(1)[:, None], "padding gets -4"),
    ("positions", lambda real: real.cumsum(1, dtype=torch.uint8) - 1, "padding gets -1"),
    ("positions", lambda real: real, "must return real numbers"),
    ("positions", lambda real: positions(real).double(), "are integers"),
    ("positions", lambda real: positions(real)[:, 1:], "expected shape"),
    ("positions", lambda real: arange(real)[1:], "each row has its own"),
    ("positions", lambda real: None, "must return a tensor"),
    ("top_p", top_p_in_a_loop, "changes what it is given"),
    ("top_p", lambda x, p: top_p(x, p).nan_to_num(neginf=-1e9), "large negative"),
    ("top_p", lambda x, p: top_p(x, p)[0], "expected shape"),
    ("top_p", lambda x, p: None, "must return a tensor"),
    ("top_p", lambda x, p: top_p(x, 0.01), r"entry \(2, 4\) should be -1.06.*, got -inf"),
    ("top_p", lambda x, p: 2 * top_p(x, p), "should be"),
    ("step", appends_after(lambda v: torch.stack([])), "raises RuntimeError: .*before it attends"),
    ("step", appends_after(lambda v: v), "does not attend to itself"),
    ("step", appends_after(torch.zeros_like), "does not attend to itself"),
    ("step", keeps(lambda pair, x, w_q: []), "cache has 0 entries: append to the list"),
    ("step", keeps(lambda pair, x, w_q: [pair, pair]), "10 entries: append .* once"),
    ("step", two_tensors, "2 entries; there is one pair"),
    ("step", keeps(lambda pair, x, w_q: [x]), "got one Tensor"),
    ("step", keeps(lambda pair, x, w_q: [(*pair, x @ w_q)]), "the query among them"),
    (
        "step",
        keeps(lambda pair, x, w_q: [(None, pair[1])]),
        "a key .* must be a tensor, got NoneType",
    ),
    ("step", keeps(lambda pair, x, w_q: [(pair[0], pair[1][:1])]), r"a value .* got .*\(1,\)"),
    ("step", keeps(lambda pair, x, w_q: [(*pair, 0 * x)]), "got 3 things$"),
    ("step", keeps(lambda pair, x, w_q: [(pair[0], 0 * pair[1])]), "of the cache's values should"),
    ("step", lambda x, *a: step(x, *a) if len(x) == 4 else from_the_left(x, *a), "x has shape"),
    ("step", all_rows, "it has one query"),
    ("step", lambda *a: step(*a)[:2], r"expected shape \(4,\), got \(2,\)"),
    ("step", lambda *a: None, "must return a tensor"),
    ("step", lambda *a: 2 * step(*a), "should be"),
]
