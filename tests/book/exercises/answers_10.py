"""Right answers to the exercises of chapter 10, and typical mistakes."""

import math
from collections import Counter

import torch
import torch.nn.functional as F


def unigram(training, held_out, vocab_size):
    counts = torch.bincount(training, minlength=vocab_size) + 1
    return F.cross_entropy(counts.double().log().expand(len(held_out), -1), held_out)


def unigram_by_hand(training, held_out, vocab_size):
    counts = Counter(training.tolist())
    total = len(training) + vocab_size
    return -sum(math.log((counts[i] + 1) / total) for i in held_out.tolist()) / len(held_out)


def counted(count, total):
    """A loss from other counts, or with another sum."""

    def unigram_loss(training, held_out, vocab_size):
        counts = count(torch.bincount(training, minlength=vocab_size))
        p = counts / total(training, counts, vocab_size)
        return -p.log()[held_out].mean()

    return unigram_loss


def seen_alone(training, held_out, vocab_size):
    kept = held_out[torch.isin(held_out, training)]
    return counted(lambda n: n, lambda t, n, v: len(t))(training, kept, vocab_size)


def too_few_counts(training, held_out, vocab_size):
    counts = torch.bincount(training) + 1
    return -(counts / (len(training) + vocab_size)).log()[held_out].mean()


def ids_in_training(training, held_out, vocab_size):
    counts = torch.bincount(training) + 1
    return -(counts / counts.sum()).log()[held_out].mean()


def entropy(training, held_out, vocab_size):
    p = torch.bincount(training, minlength=vocab_size) + 1
    p = p / p.sum()
    return -(p * p.log()).sum()


def mean_of_p(training, held_out, vocab_size):
    counts = torch.bincount(training, minlength=vocab_size) + 1
    return -(counts / counts.sum())[held_out].mean().log()


def counts_as_logits(training, held_out, vocab_size):
    counts = torch.bincount(training, minlength=vocab_size).double()
    return F.cross_entropy(counts.expand(len(held_out), -1), held_out)


def mean_loss(batches):
    losses, counts = torch.tensor(batches).T
    return (losses * counts).sum() / counts.sum()


def mean_loss_in_a_loop(batches):
    total = n_targets = 0
    for loss, n in batches:
        total += loss * n
        n_targets += n
    return total / n_targets


def n_all(batches):
    return sum(n for _, n in batches)


def positions(real):
    return (real.cumsum(1) - 1).clamp(min=0)


def arange(real):
    return torch.arange(real.shape[1])


def all_padding_subtracted(real):
    return arange(real) - (~real).sum(1, keepdim=True)


def counted_in_a_loop(real):
    ids = torch.zeros_like(real, dtype=torch.int32)
    for row, mask in enumerate(real.tolist()):
        n = 0
        for column, is_real in enumerate(mask):
            if is_real:
                ids[row, column] = n
                n += 1
    return ids


def until_p(amounts, p, more=0, at_least=0):
    """The largest that have p together, as a mask."""
    ordered, order = amounts.sort(descending=True)
    n = (ordered.cumsum(1) - ordered < p).sum(1, keepdim=True) + more
    return order.argsort() < n.clamp(min=at_least)


def cut(logits, kept, to=-torch.inf):
    return logits.masked_fill(~kept, to)


def top_p(logits, p):
    return cut(logits, until_p(logits.softmax(1), p))


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


def in_ranks(logits, p, back=lambda kept, order: kept):
    ordered, order = logits.softmax(1).sort(descending=True)
    return cut(logits, back(ordered.cumsum(1) - ordered < p, order))


def returned_sorted(logits, p):
    ordered, _ = top_p(logits, p).sort(descending=True)
    return ordered


def not_sorted(logits, p):
    probabilities = logits.softmax(1)
    return cut(logits, probabilities.cumsum(1) - probabilities < p)


def unlikeliest(logits, p):
    ordered, order = logits.softmax(1).sort()
    return cut(logits, (ordered.cumsum(1) - ordered < p).gather(1, order.argsort()))


def like_the_first(logits, p):
    n = (top_p(logits, p)[0] > -torch.inf).sum()
    return cut(logits, logits >= logits.topk(n).values[:, -1:])


def nothing_for_small(logits, p):
    return top_p(logits, p) if p > 0.1 else torch.full_like(logits, -torch.inf)


def step(x, cache, w_q, w_k, w_v):
    cache.append((x @ w_k, x @ w_v))
    key, value = map(torch.stack, zip(*cache, strict=True))
    return (key @ (x @ w_q) / math.sqrt(w_k.shape[1])).softmax(0) @ value


def step_with_rows(x, cache, w_q, w_k, w_v):
    q, k, v = (x[None] @ w for w in (w_q, w_k, w_v))  # (1, …)
    cache += [[k, v]]
    key, value = torch.cat([k for k, _ in cache]), torch.cat([v for _, v in cache])
    return F.scaled_dot_product_attention(q[None], key[None], value[None])[0, 0]


def step_by_hand(x, cache, w_q, w_k, w_v):
    cache.append((x @ w_k, x @ w_v))
    shares = [math.exp((x @ w_q) @ k / len(k) ** 0.5) for k, _ in cache]
    return sum(share * v for share, (_, v) in zip(shares, cache, strict=True)) / sum(shares)


def attend(cached, scale=None, weights=lambda logits: logits.softmax(-1), pick=None):
    """A step that caches ``cached(x, w_q, w_k, w_v)``: key, value, and what else."""

    def step(x, cache, w_q, w_k, w_v):
        cache.append(cached(x, w_q, w_k, w_v))
        key, value, *_ = map(torch.stack, zip(*cache, strict=True))
        d_head = w_k.shape[1]
        factor = d_head**-0.5 if scale is None else scale(d_head, len(cache), len(x))
        query = x @ w_q if pick is None else pick(x, cache, w_q, w_k)
        return (weights((query @ key.T * factor)[None]) @ value)[0]

    return step


def pair(x, w_q, w_k, w_v):
    return x @ w_k, x @ w_v


def appends_after(x, cache, w_q, w_k, w_v, first=None):
    own = x @ w_k, x @ w_v
    if cache or first is None:
        key, value = map(torch.stack, zip(*cache, strict=True)) if cache else ((), ())
        out = (torch.stack([*key]) @ (x @ w_q) / len(own[0]) ** 0.5).softmax(0)
        out = out @ torch.stack([*value])
    else:
        out = first(own[1])
    cache.append(own)
    return out


def masks_itself(x, cache, w_q, w_k, w_v):
    cache.append((x @ w_k, x @ w_v))
    key, value = map(torch.stack, zip(*cache, strict=True))
    logits = key @ (x @ w_q) / len(key[0]) ** 0.5
    logits[-1] = -torch.inf
    return logits.softmax(0) @ value


def another_list(x, cache, w_q, w_k, w_v):
    cache = cache.copy()
    return step(x, cache, w_q, w_k, w_v)


def appends_twice(x, cache, w_q, w_k, w_v):
    out = step(x, cache, w_q, w_k, w_v)
    cache.append(cache[-1])
    return out


def two_tensors(x, cache, w_q, w_k, w_v):
    pairs = list(zip(*cache, strict=True))
    out = step(x, pairs, w_q, w_k, w_v)
    cache[:] = map(torch.stack, zip(*pairs, strict=True))
    return out


def no_pairs(x, cache, w_q, w_k, w_v):
    cache.append(x)
    return step(x, [(each @ w_k, each @ w_v) for each in cache[:-1]], w_q, w_k, w_v)


def caches(what):
    """A step with the right output and ``what(x, w_k, w_v)`` in the cache."""

    def step_and_cache(x, cache, w_q, w_k, w_v, xs=[]):  # noqa: B006
        if not cache:
            xs.clear()
        pairs = [(each @ w_k, each @ w_v) for each in xs]
        out = step(x, pairs, w_q, w_k, w_v)
        xs.append(x)
        cache.append(what(x, w_k, w_v))
        return out

    return step_and_cache


def all_rows(x, cache, w_q, w_k, w_v):
    cache.append((x @ w_k, x @ w_v, x @ w_q))
    key, value, query = map(torch.stack, zip(*cache, strict=True))
    return (query @ key.T).softmax(-1) @ value if len(cache) > 1 else value[0]


def from_the_left(x, cache, w_q, w_k, w_v):
    return step(x, cache, *(w.T for w in (w_q, w_k, w_v)))


RIGHT = [
    ("unigram_loss", unigram),
    ("unigram_loss", unigram_by_hand),
    ("unigram_loss", counted(lambda n: n + 1, lambda t, n, v: n.sum())),
    ("mean_loss", mean_loss),
    ("mean_loss", mean_loss_in_a_loop),
    ("positions", positions),
    ("positions", counted_in_a_loop),
    ("positions", lambda real: (real.cumsum(1) - 1).masked_fill(~real, 1)),
    ("positions", lambda real: real.cumsum(1) - real.long()),
    ("positions", lambda real: (arange(real) - real.int().argmax(1, keepdim=True)).clamp(0)),
    ("top_p", top_p),
    ("top_p", top_p_by_scatter),
    ("top_p", top_p_in_a_loop),
    ("step", step),
    ("step", step_with_rows),
    ("step", step_by_hand),
]

MISTAKES = [
    ("unigram_loss", lambda t, h, v: unigram(h, h, v), "counts the held-out part"),
    ("unigram_loss", lambda t, h, v: unigram(torch.cat([t, h]), h, v), "both parts"),
    ("unigram_loss", counted(lambda n: n, lambda t, n, v: n.sum()), "infinitely"),
    ("unigram_loss", counted(lambda n: n.clamp(1), lambda t, n, v: len(t)), "each is one more"),
    (
        "unigram_loss",
        lambda t, h, v: unigram(t, h, v) if torch.isin(h, t).all() else seen_alone(t, h, v),
        "leaves out the tokens",
    ),
    (
        "unigram_loss",
        lambda t, h, v: (
            unigram(t, h, v)
            if torch.isin(h, t).all()
            else counted(lambda n: n.clamp(1), lambda t, n, v: len(t))(t, h, v)
        ),
        "only to tokens",
    ),
    ("unigram_loss", counted(lambda n: n + 1, lambda t, n, v: len(t)), "not to their sum"),
    ("unigram_loss", counted(lambda n: n + 1, lambda t, n, v: len(t) + 1), "grows by one for"),
    (
        "unigram_loss",
        counted(lambda n: n + 1, lambda t, n, v: len(t) + len(t.unique())),
        "different tokens; add vocab_size",
    ),
    ("unigram_loss", ids_in_training, r"largest id \+ 1"),
    ("unigram_loss", too_few_counts, "all vocab_size tokens have a count"),
    ("unigram_loss", counts_as_logits, "as logits"),
    ("unigram_loss", lambda t, h, v: unigram(t, t, v), "loss of the training part"),
    ("unigram_loss", entropy, "entropy"),
    ("unigram_loss", lambda *a: unigram(*a) / math.log(2), "in bits"),
    ("unigram_loss", lambda t, h, v: len(h) * unigram(t, h, v), "sum over the held-out"),
    ("unigram_loss", lambda *a: -unigram(*a), "minus that"),
    ("unigram_loss", lambda *a: unigram(*a).exp(), "perplexity"),
    ("unigram_loss", mean_of_p, "mean of p first"),
    ("unigram_loss", lambda t, h, v: unigram(t, h.unique(), v), "each different token once"),
    ("unigram_loss", lambda *a: 7.0, "should be"),
    ("unigram_loss", lambda *a: None, "must return a number"),
    ("mean_loss", lambda b: sum(loss for loss, _ in b) / len(b), "mean of the means"),
    ("mean_loss", lambda b: sum(loss * n for loss, n in b), "divide by their number"),
    ("mean_loss", lambda b: sum(loss * n for loss, n in b) / len(b), "number of batches"),
    ("mean_loss", lambda b: sum(loss for loss, _ in b), "sum of the means$"),
    ("mean_loss", lambda b: sum(loss for loss, _ in b) / n_all(b), "divided already"),
    ("mean_loss", lambda b: sum(loss / n for loss, n in b), "multiply"),
    (
        "mean_loss",
        lambda b: sum(loss / n for loss, n in b) / sum(1 / n for _, n in b),
        "the fewer targets",
    ),
    ("mean_loss", lambda b: mean_loss(b[:-1]), "leaves out the last"),
    ("mean_loss", lambda b: b[-1][0], "last batch's"),
    ("mean_loss", lambda b: mean_loss(b).exp(), "perplexity"),
    ("mean_loss", lambda b: 0.5, "should be"),
    ("positions", arange, "counts padding, too"),
    ("positions", lambda real: arange(real)[None], "counts padding, too"),
    ("positions", lambda real: arange(real) * real, "counts padding, too"),
    ("positions", lambda real: real.cumsum(1), "from 1"),
    ("positions", lambda real: real.cumsum(1) * real, "from 1"),
    ("positions", lambda real: real.cumsum(1) - 1, "padding gets -1"),
    ("positions", lambda real: arange(real) - real.int().argmax(1)[:, None], "padding gets -4"),
    ("positions", all_padding_subtracted, "only the padding on the left"),
    (
        "positions",
        lambda real: all_padding_subtracted(real).clamp(0),
        "makes negative positions 0; only",
    ),
    ("positions", lambda real: (~real).cumsum(1), "counts the padding"),
    ("positions", lambda real: positions(real.flip(1)).flip(1), "from the end"),
    ("positions", lambda real: (real.cumsum(0) - 1).clamp(0), "second dimension"),
    (
        "positions",
        lambda real: positions(real.flatten()[None]).view_as(real),
        "from row to row",
    ),
    ("positions", lambda real: real.long(), "is the mask"),
    ("positions", lambda real: real, "must return real numbers"),
    ("positions", lambda real: positions(real).double(), "are integers"),
    ("positions", lambda real: positions(real)[:, 1:], "expected shape"),
    ("positions", lambda real: arange(real)[1:], "each row has its own"),
    ("positions", lambda real: 2 * positions(real), "should be"),
    ("positions", lambda real: None, "must return a tensor"),
    ("top_p", lambda x, p: cut(x, until_p(x.softmax(1), p, more=-1)), "drops .* crosses p: those"),
    (
        "top_p",
        lambda x, p: (
            top_p(x, p) if p > 0.8 else cut(x, until_p(x.softmax(1), p, more=-1, at_least=1))
        ),
        "unless it is the first",
    ),
    ("top_p", lambda x, p: cut(x, until_p(x.softmax(1), p, more=1)), "keeps a token more"),
    ("top_p", in_ranks, "does not undo the sort"),
    ("top_p", lambda x, p: in_ranks(x, p, lambda kept, order: kept.gather(1, order)), "way back"),
    ("top_p", returned_sorted, "logits sorted"),
    ("top_p", lambda x, p: cut(x, until_p(x, p)), "adds up logits"),
    ("top_p", lambda x, p: cut(x, until_p(x.exp(), p)), "softmax is missing"),
    ("top_p", not_sorted, "does not sort"),
    ("top_p", unlikeliest, "begins with the unlikeliest"),
    ("top_p", lambda x, p: cut(x, x.softmax(1) >= p), "compares each token's"),
    ("top_p", lambda x, p: cut(x, until_p(x.softmax(0), p)), "over the batch"),
    ("top_p", like_the_first, "as many in each row"),
    ("top_p", lambda x, p: cut(x, top_p(x, p) == -torch.inf), "should drop"),
    ("top_p", nothing_for_small, "keeps no token"),
    ("top_p", lambda x, p: cut(x, until_p(x.softmax(1), p), 0), "gives the others 0"),
    ("top_p", lambda x, p: cut(x, until_p(x.softmax(1), p), -1e9), "large negative"),
    ("top_p", lambda x, p: cut(x.softmax(1), until_p(x.softmax(1), p), 0), "probabilities;"),
    ("top_p", lambda x, p: top_p(x, p).softmax(1), "sum to one"),
    ("top_p", lambda x, p: top_p(x.log_softmax(1), p), "logarithms of probabilities"),
    ("top_p", lambda x, p: top_p(x, p).log_softmax(1), "logarithms of the new"),
    ("top_p", lambda x, p: until_p(x.softmax(1), p), "the mask of what is kept"),
    ("top_p", lambda x, p: top_p(x, p)[0], "expected shape"),
    ("top_p", lambda x, p: None, "must return a tensor"),
    ("top_p", lambda x, p: cut(x, x == x.amax(1, keepdim=True)), "1: kept, 0: −inf, .*be 1, got 0"),
    ("top_p", lambda x, p: 2 * top_p(x, p), "should be"),
    ("step", appends_after, "raises an error: .*before it attends"),
    ("step", lambda *a: appends_after(*a, first=lambda v: v), "does not attend to itself"),
    ("step", lambda *a: appends_after(*a, first=torch.zeros_like), "does not attend to itself"),
    ("step", masks_itself, "does not attend to itself"),
    ("step", another_list, "cache has 0 entries: append to the list"),
    ("step", appends_twice, "10 entries: append .* once"),
    ("step", two_tensors, "2 entries; there is one pair"),
    ("step", no_pairs, "got one Tensor"),
    ("step", attend(pair, lambda d_head, n, d: 1), "not divided"),
    ("step", attend(pair, lambda d_head, n, d: 1 / d_head), "square root"),
    ("step", attend(pair, lambda d_head, n, d: d_head**0.5), "multiplies by sqrt"),
    ("step", attend(pair, lambda d_head, n, d: n**-0.5), "number of keys"),
    ("step", attend(pair, lambda d_head, n, d: d**-0.5), "x's width"),
    ("step", attend(pair, weights=lambda logits: logits.softmax(0)), "over the one query"),
    ("step", attend(pair, weights=lambda logits: logits), "no softmax"),
    (
        "step",
        attend(pair, weights=lambda logits: torch.ones_like(logits) / logits.numel()),
        "query is not used",
    ),
    (
        "step",
        attend(
            pair, weights=lambda logits: F.one_hot(torch.tensor([0]), logits.numel()).to(logits)
        ),
        "first token alone",
    ),
    (
        "step",
        attend(
            pair,
            weights=lambda logits: (torch.arange(logits.numel())[None] == logits.numel() - 1).to(
                logits
            ),
        ),
        "new token alone",
    ),
    ("step", attend(lambda x, q, k, v: (x @ q, x @ v)), "query in place of the key"),
    ("step", attend(pair, pick=lambda x, cache, q, k: x @ k), "key as the query"),
    (
        "step",
        attend(lambda x, q, k, v: (x @ k, x @ v, x @ q), pick=lambda x, cache, q, k: cache[0][2]),
        "first token's query",
    ),
    ("step", attend(lambda x, q, k, v: (x @ v, x @ k)), "changed places"),
    ("step", attend(lambda x, q, k, v: (x @ k, x @ k)), "key as the value"),
    ("step", attend(lambda x, q, k, v: (x @ k, x)), "W_V is left out"),
    ("step", attend(lambda x, q, k, v: (x, x @ v)), "W_K is left out"),
    ("step", attend(pair, pick=lambda x, cache, q, k: x), "W_Q is left out"),
    ("step", from_the_left, "from the left"),
    ("step", lambda x, *a: step(x, *a) if len(x) == 4 else from_the_left(x, *a), "x has shape"),
    ("step", attend(lambda x, q, k, v: (x @ k, x @ v, x @ q)), "the query among them"),
    ("step", attend(lambda x, q, k, v: (x @ k, x @ v, 0 * x)), "got 3 things$"),
    ("step", caches(lambda x, k, v: (x @ v, x @ k)), r"got \(value, key\)"),
    ("step", caches(lambda x, k, v: (x, x @ v)), "caches x where the key"),
    ("step", caches(lambda x, k, v: (x @ k, x)), "caches x where the value"),
    ("step", caches(lambda x, k, v: (x @ k, 0 * (x @ v))), "the cache's values .* should be"),
    ("step", all_rows, "it has one query"),
    ("step", lambda *a: step(*a)[:2], r"expected shape \(4,\), got \(2,\)"),
    ("step", lambda *a: None, "must return a tensor"),
    ("step", lambda *a: 2 * step(*a), "should be"),
]
