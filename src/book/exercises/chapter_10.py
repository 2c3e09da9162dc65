"""Exercises of chapter 10."""

import math
import re
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from attnbook.attention import scaled_dot_product_attention
from book.exercises.mistakes import Exercise, Function, MistakeError, same, tensor


def _unigram_loss_cases() -> dict[str, tuple[Tensor, Tensor, int]]:
    training = torch.tensor([0, 1, 1, 2, 0, 4, 1, 0, 2, 0, 1, 0])
    # First all held-out tokens are in the training part, then two are not: 3 and 6.
    return {
        f"7 held-out tokens, {known} of them in training": (training, torch.tensor(held_out), 8)
        for known, held_out in (
            ("all", [1, 0, 4, 2, 4, 1, 1]),
            ("all but two", [3, 0, 4, 6, 4, 1, 1]),
        )
    }


def _frequencies(
    training: Tensor,
    vocab_size: int,
    counts: Function = lambda seen: seen + 1,
    total: Function = lambda counts, seen: counts.sum(),
) -> Tensor:
    seen = torch.bincount(training, minlength=vocab_size).double()
    p: Tensor = counts(seen) / total(counts(seen), seen)
    return p


def _unigram_loss(training: Tensor, held_out: Tensor, vocab_size: int, **how: Function) -> Tensor:
    return -_frequencies(training, vocab_size, **how).log()[held_out].mean()


check_unigram_loss = Exercise(
    "unigram_loss",
    "Check ``unigram_loss(training, held_out, vocab_size)`` of chapter 10, in nats per token.",
    _unigram_loss,
    {
        "counts the held-out part; count the training part": lambda t, h, n: _unigram_loss(h, h, n),
        "counts both parts; the held-out part has to be predicted": (
            lambda t, h, n: _unigram_loss(torch.cat([t, h]), h, n)
        ),
        "takes the counts as seen; each is one more, or a token that training does not have "
        "costs infinitely much": partial(_unigram_loss, counts=lambda seen: seen),
        "leaves out the tokens that training does not have; they count, too": (
            lambda t, h, n: _unigram_loss(t, h[torch.isin(h, t)], n)
        ),
        "adds one only to tokens that training does not have": (
            partial(_unigram_loss, counts=lambda seen: seen.clamp(min=1))
        ),
        "adds one to each count and not to their sum: divide by len(training) + vocab_size": (
            partial(_unigram_loss, total=lambda counts, seen: seen.sum())
        ),
        "adds one to the sum of the counts; it grows by one for each token of the vocabulary": (
            partial(_unigram_loss, total=lambda counts, seen: seen.sum() + 1)
        ),
        "adds as many to the sum as training has different tokens; add vocab_size": (
            partial(_unigram_loss, total=lambda counts, seen: seen.sum() + (seen > 0).sum())
        ),
        "adds the largest id + 1 to the sum; add vocab_size": (
            partial(
                _unigram_loss, total=lambda counts, seen: counts[: seen.nonzero()[-1] + 1].sum()
            )
        ),
        "takes the counts as logits; the logits are their logarithms": (
            lambda t, h, n: -torch.bincount(t, minlength=n).double().log_softmax(0)[h].mean()
        ),
        "is the loss of the training part": lambda t, h, n: _unigram_loss(t, t, n),
        "is the entropy of the training part's frequencies": (
            lambda t, h, n: torch.special.entr(_frequencies(t, n)).sum()
        ),
        "is in bits; nats have the natural logarithm": lambda *a: _unigram_loss(*a) / math.log(2),
        "is the sum over the held-out tokens; divide by their number": (
            lambda t, h, n: _unigram_loss(t, h, n) * len(h)
        ),
        "is the mean of log p; the loss is minus that": lambda *a: -_unigram_loss(*a),
        "is the perplexity; the loss is its logarithm": lambda *a: _unigram_loss(*a).exp(),
        "takes the mean of p first, then the logarithm": (
            lambda t, h, n: -_frequencies(t, n)[h].mean().log()
        ),
        "counts each different token once; a token counts as often as it is there": (
            lambda t, h, n: _unigram_loss(t, h.unique(), n)
        ),
    },
    _unigram_loss_cases,
    hints={"all but two": "two tokens are not in training, and all vocab_size tokens have a count"},
)


BATCHES = [(2.5, 640), (3.75, 16), (2.25, 512), (4.5, 40)]


def _sum(batches: list[tuple[float, int]], each: Function) -> float:
    return math.fsum(each(loss, n) for loss, n in batches)


def _mean_loss(batches: list[tuple[float, int]], weight: Function = lambda n: n) -> float:
    return _sum(batches, lambda loss, n: loss * weight(n)) / _sum(batches, lambda _, n: weight(n))


check_mean_loss = Exercise(
    "mean_loss",
    "Check ``mean_loss(batches)`` of chapter 10: the loss per target of all batches.",
    _mean_loss,
    {
        "is the mean of the means: a target of a small batch weighs more than another": (
            partial(_mean_loss, weight=lambda n: 1)
        ),
        "is the sum over all targets; divide by their number": (
            lambda b: _sum(b, lambda loss, n: loss * n)
        ),
        "divides the sum by the number of batches; divide by that of the targets": (
            lambda b: _sum(b, lambda loss, n: loss * n) / len(b)
        ),
        "is the sum of the means": lambda b: _sum(b, lambda loss, n: loss),
        "divides the sum of the means by the number of targets: the means are divided already": (
            lambda b: _sum(b, lambda loss, n: loss) / _sum(b, lambda loss, n: n)
        ),
        "divides each mean by its number of targets; multiply, which gives the batch's sum": (
            lambda b: _sum(b, lambda loss, n: loss / n)
        ),
        "weighs a batch the more, the fewer targets it has": (
            partial(_mean_loss, weight=lambda n: 1 / n)
        ),
        "leaves out the last batch": lambda b: _mean_loss(b[:-1]),
        "is the last batch's loss": lambda b: b[-1][0],
        "is the perplexity; the loss is its logarithm": lambda b: math.exp(_mean_loss(b)),
    },
    lambda: {
        f"batches of {', '.join(str(n) for _, n in batches)} targets": (batches,)
        for batches in (BATCHES, BATCHES[1:])
    },
)


def _positions_cases() -> dict[str, tuple[Tensor]]:
    padding = torch.tensor([(0, 0), (2, 0), (0, 3), (1, 2), (4, 0)])  # before and after the tokens
    before, after = padding[..., None].unbind(1)  # each (batch, 1)
    real = {n: (torch.arange(n) >= before) & (torch.arange(n) < n - after) for n in (7, 5)}
    return {f"5 rows of {n} tokens (row, token)": (each,) for n, each in real.items()}


def _at_real(positions: Function, real: Tensor) -> object:
    """What real tokens get, if it is a table of integers; what padding gets does not matter."""
    result = positions(real.clone())
    if not isinstance(result, Tensor) or result.dtype == torch.bool or result.is_complex():
        return result
    if result.is_floating_point():
        raise MistakeError(f"positions: they are integers, got {result.dtype}")
    if result.ndim < 2 or result.shape[0] == 1:  # the same for all rows
        try:
            result = result.broadcast_to(real.shape)
        except RuntimeError as error:
            raise MistakeError(
                f"positions: each row has its own, so the shape is {tuple(real.shape)}, "
                f"got {tuple(result.shape)}"
            ) from error
    return result.masked_fill(~real, 0).double() if result.shape == real.shape else result


def _not_negative(positions: Function) -> None:
    for (real,) in _positions_cases().values():
        result = positions(real)
        if result.dtype == torch.uint8:
            result = result.view(torch.int8)  # −1 was 255
        lowest = int(result.min())
        if lowest < 0:
            raise MistakeError(
                f"positions: padding gets {lowest}; a table of positions has no such row, so give "
                "it any position from 0 on"
            )


def _without_padding(real: Tensor) -> Tensor:
    return torch.arange(real.shape[1]) - (~real).sum(1, keepdim=True)


check_positions = Exercise(
    "positions",
    "Check ``positions(real)`` of chapter 10: 0 at each row's first real token, then counted on. "
    "What padding gets does not matter, unless it is negative.",
    lambda real: (real.cumsum(1) - 1).clamp(min=0),
    {
        "counts padding, too: with padding on the left, the first real token is not at 0": (
            lambda real: torch.arange(real.shape[1])
        ),
        "counts from 1; the first real token has position 0": lambda real: real.cumsum(1),
        "subtracts all padding of the row; only the padding on the left comes before": (
            _without_padding
        ),
        "subtracts all padding of the row, and makes negative positions 0; only the padding on the "
        "left comes before": lambda real: _without_padding(real).clamp(min=0),
        "counts the padding; count the real tokens": lambda real: (~real).cumsum(1),
        "counts from the end: the first real token has position 0": (
            lambda real: (real.flip(1).cumsum(1) - 1).flip(1)
        ),
        "counts through the rows of the batch; tokens are the second dimension": (
            lambda real: real.cumsum(0) - 1
        ),
        "goes on from row to row; each row begins with 0": (
            lambda real: (real.flatten().cumsum(0) - 1).view_as(real)
        ),
        "is the mask; count the real tokens": lambda real: real.long(),
    },
    _positions_cases,
    _at_real,
    also=_not_negative,
)


def _top_p_cases() -> dict[str, tuple[Tensor, float]]:
    probabilities = torch.tensor(
        [
            [0.06, 0.40, 0.10, 0.25, 0.19],
            [0.72, 0.03, 0.05, 0.08, 0.12],
            [0.15, 0.24, 0.17, 0.23, 0.21],
        ],
        dtype=torch.float64,
    )
    logits = probabilities.log() + torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64)
    return {
        f"p = {p}, {n} tokens, (row, token)": (logits[:, :n], p)
        for p, n in ((0.6, 5), (0.9, 5), (0.05, 5), (0.6, 4))
    }


def _run_top_p(top_p: Function, logits: Tensor, p: float) -> object:
    result = top_p(logits, p)
    if not isinstance(result, Tensor) or result.is_complex():
        return result
    if ((result < -1e3) & result.isfinite()).any():
        raise MistakeError("top_p: gives the others a large negative number; −inf is asked for")
    return 1.0 * result if result.dtype == torch.bool else result


def _kept(amounts: Tensor, p: float, *, descending: bool = True) -> Tensor:
    """Whether the amounts before, the largest first, are less than p together."""
    amounts, order = amounts.sort(descending=descending)
    return (amounts.cumsum(1) - amounts < p).gather(1, order.argsort())


def _cut(logits: Tensor, kept: Tensor, to: float = -math.inf) -> Tensor:
    return logits.masked_fill(~kept, to)


def _top_p(logits: Tensor, p: float) -> Tensor:
    return _cut(logits, _kept(logits.softmax(1), p))


def _first(number: Function) -> Function:
    """Keeps the likeliest tokens: their number is computed from the correct one of each row."""

    def top_p(logits: Tensor, p: float) -> Tensor:
        rank = logits.argsort(descending=True).argsort()
        n_kept = number(_kept(logits.softmax(1), p).sum(1, keepdim=True))
        return _cut(logits, rank < n_kept)

    return top_p


def _by_rank(logits: Tensor, p: float) -> Tensor:
    return torch.arange(logits.shape[1]) < _kept(logits.softmax(1), p).sum(1, keepdim=True)


check_top_p = Exercise(
    "top_p",
    "Check ``top_p(logits, p)`` of chapter 10: −inf for all but the likeliest tokens.",
    _top_p,
    {
        "keeps no token; the likeliest is always kept": lambda x, p: _top_p(x, p if p > 0.1 else 0),
        "drops the token that crosses p: those before it do not have probability p": (
            _first(lambda n: n - 1)
        ),
        "drops the token that crosses p, unless it is the first": (
            _first(lambda n: (n - 1).clamp(min=1))
        ),
        "keeps a token more: the one that crosses p is the last": _first(lambda n: n + 1),
        "does not undo the sort: the columns of its mask are ranks and not tokens": (
            lambda x, p: _cut(x, _by_rank(x, p))
        ),
        "undoes the sort with its order; the way back is order.argsort()": (
            lambda x, p: _cut(x, _by_rank(x, p).gather(1, x.argsort(descending=True)))
        ),
        "returns the logits sorted: column t is no longer token t": (
            lambda x, p: _top_p(x.sort(descending=True)[0], p)
        ),
        "adds up logits; probabilities are added up": lambda x, p: _cut(x, _kept(x, p)),
        "adds up exp(logits), which do not sum to one: softmax is missing": (
            lambda x, p: _cut(x, _kept(x.exp(), p))
        ),
        "does not sort: adds up in the order of the vocabulary": (
            lambda x, p: _cut(x, x.softmax(1).cumsum(1) - x.softmax(1) < p)
        ),
        "begins with the unlikeliest token: sort descending": (
            lambda x, p: _cut(x, _kept(x.softmax(1), p, descending=False))
        ),
        "compares each token's probability with p; they are added up": (
            lambda x, p: _cut(x, x.softmax(1) >= p)
        ),
        "the softmax runs over the batch; it runs over the vocabulary": (
            lambda x, p: _cut(x, _kept(x.softmax(0), p))
        ),
        "keeps as many in each row as in the first": _first(lambda n: n[0]),
        "keeps what it should drop": (lambda x, p: _cut(x, ~_kept(x.softmax(1), p))),
        "gives the others 0, which is a logit like any other: −inf": (
            lambda x, p: _cut(x, _kept(x.softmax(1), p), 0)
        ),
        "returns probabilities; logits are asked for": (
            lambda x, p: _cut(x.softmax(1), _kept(x.softmax(1), p), 0)
        ),
        "returns probabilities, made to sum to one; logits are asked for": (
            lambda x, p: _top_p(x, p).softmax(1)
        ),
        "returns logarithms of probabilities; keep the logits as they are": (
            lambda x, p: _top_p(x.log_softmax(1), p)
        ),
        "returns logarithms of the new probabilities; keep the logits as they are": (
            lambda x, p: _top_p(x, p).log_softmax(1)
        ),
        "returns the mask of what is kept": lambda x, p: _kept(x.softmax(1), p),
    },
    _top_p_cases,
    _run_top_p,
)


def _step_cases() -> dict[str, tuple[Tensor, ...]]:
    generator = Generator().manual_seed(0)
    # First all widths are alike, so that mistakes with shapes come through and can be named; then
    # all differ.
    return {
        f"d = {d}, d_head = {d_head}, d_value = {d_value}, (token, column)": (
            torch.randn(5, d, generator=generator, dtype=torch.float64),
            *torch.randn(2, d, d_head, generator=generator, dtype=torch.float64),
            torch.randn(d, d_value, generator=generator, dtype=torch.float64),
        )
        for d, d_head, d_value in ((4, 4, 4), (6, 4, 3))
    }


def _one_by_one(step: Function, x: Tensor, *weights: Tensor) -> tuple[Tensor, list[Any]]:
    """What the tokens give, one after another, and what the cache has then."""
    (d, d_head), d_value = weights[0].shape, weights[2].shape[1]
    cache: list[Any] = []
    outputs = []
    for t in range(len(x)):
        try:
            result = step(x[t].clone(), cache, *(each.clone() for each in weights))
        except MistakeError as error:
            what, *line = str(error).split("\n")
            what += f", at token {t}, with {len(cache)} in the cache"
            if d != d_value:
                what += f"; x has shape ({d},), W_Q and W_K ({d}, {d_head}), W_V ({d}, {d_value})"
            elif not cache and re.search("raises (Index|Runtime|Value)Error", what):
                what += "; a token's own key and value are in the cache before it attends"
            raise MistakeError("\n".join([what, *line])) from None
        if tensor("step", result).shape != (d_value,):
            all_rows = result.shape == (t + 1, d_value) and t > 0
            raise MistakeError(
                f"step: token {t}, expected shape ({d_value},), got {tuple(result.shape)}"
                + (": it has one query, the new token's" if all_rows else "")
            )
        outputs.append(result)
    return torch.stack(outputs), cache


def _run_step(step: Function, x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
    outputs, cache = _one_by_one(step, x, W_Q, W_K, W_V)
    after = f"step: after {len(x)} tokens the cache has {len(cache)} entries"
    if len(cache) == 0:
        raise MistakeError(
            f"{after}: append to the list that is given; cache = cache + […] makes another list"
        )
    if len(cache) == 2 * len(x):
        raise MistakeError(f"{after}: append (key, value) as one pair, once")
    if len(cache) != len(x):
        raise MistakeError(f"{after}; there is one pair (key, value) for each token")
    before = torch.ones(len(x), len(x), dtype=torch.bool).tril(-1)[1:]
    # the first token has nothing to attend to then
    if same(outputs[1:], scaled_dot_product_attention(x[1:] @ W_Q, x @ W_K, x @ W_V, mask=before)):
        raise MistakeError(
            "step: the new token does not attend to itself: append its key and value before it "
            "attends, and mask nothing"
        )
    return outputs


def _run_step_cache(
    step: Function, x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor
) -> dict[str, Tensor]:
    """Keys and values in the cache, if there is no more in it than it takes."""
    _, cache = _one_by_one(step, x, W_Q, W_K, W_V)
    for entry in cache:
        if not isinstance(entry, tuple | list):
            raise MistakeError(
                f"step: the cache holds pairs (key, value), got one {type(entry).__name__} a token"
            )
        if len(entry) != 2:
            rows = [each.flatten() for each in entry if isinstance(each, Tensor)]
            query = any(same(each, q) for each in rows for q in x @ W_Q)
            raise MistakeError(
                f"step: the cache holds pairs (key, value), got {len(entry)} things"
                + (": the query among them, which no later token needs" if query else "")
            )
    columns = {}
    for i, (one, weight) in enumerate((("key", W_K), ("value", W_V))):
        for pair in cache:
            kept = tensor("step", pair[i], f"a {one} in the cache")
            if kept.numel() != weight.shape[1]:
                raise MistakeError(
                    f"step: a {one} in the cache should have shape ({weight.shape[1]},), got "
                    f"{tuple(kept.shape)}"
                )
        columns[f"the cache's {one}s"] = torch.stack([pair[i].flatten() for pair in cache])
    return columns


def _step(
    keep: Function = lambda x, W_Q, W_K, W_V: (x @ W_K, x @ W_V),
    *,
    read: Function = lambda key, value, W_K, W_V: (key, value),
    query: Function = lambda x, W_Q, cache: x @ W_Q,
    scale: Function = lambda d_head, n_keys, d: d_head**-0.5,
    weights: Function = lambda logits: logits.softmax(0),
) -> Function:
    """Keeps something in the cache, makes keys and values of what is in it, and attends."""

    def step(x: Tensor, cache: list[Any], W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Any:
        cache.append(keep(x, W_Q, W_K, W_V))
        key, value, *_ = map(torch.stack, zip(*cache, strict=True))
        key, value = read(key, value, W_K, W_V)
        logits = key @ query(x, W_Q, cache) * scale(W_K.shape[1], len(cache), len(x))
        return weights(logits) @ value

    return step


STEP_CACHE = Exercise(
    "step",
    "Check the cache of a ``step`` whose outputs are correct.",
    _step(),
    {
        "the pair is (key, value), got (value, key)": _step(
            lambda x, W_Q, W_K, W_V: (x @ W_V, x @ W_K),
            read=lambda key, value, W_K, W_V: (value, key),
        ),
        "caches x where the key should be: it would be multiplied anew at each step": _step(
            lambda x, W_Q, W_K, W_V: (x, x @ W_V),
            read=lambda key, value, W_K, W_V: (key @ W_K, value),
        ),
        "caches x where the value should be: it would be multiplied anew at each step": _step(
            lambda x, W_Q, W_K, W_V: (x @ W_K, x),
            read=lambda key, value, W_K, W_V: (key, value @ W_V),
        ),
    },
    _step_cases,
    _run_step_cache,
)

check_step = Exercise(
    "step",
    "Check ``step(x, cache, W_Q, W_K, W_V)`` of chapter 10: one token attends, with a cache.",
    _step(),
    {
        "attends to the new token alone: the weights are over all keys in the cache": (
            _step(weights=lambda logits: torch.eye(len(logits))[-1].to(logits))
        ),
        "the logits are not divided by sqrt(d_head)": _step(scale=lambda d_head, n, d: 1),
        "divides by d_head; it is the square root": _step(scale=lambda d_head, n, d: 1 / d_head),
        "multiplies by sqrt(d_head); it divides": _step(scale=lambda d_head, n, d: d_head**0.5),
        "divides by the root of the number of keys; it is that of d_head": (
            _step(scale=lambda d_head, n, d: n**-0.5)
        ),
        "divides by the root of x's width; it is that of d_head": (
            _step(scale=lambda d_head, n, d: d**-0.5)
        ),
        "divides by the root of the values' width; it is that of d_head": (
            lambda x, cache, *W: _step(scale=lambda *n: W[2].shape[1] ** -0.5)(x, cache, *W)
        ),
        "the softmax runs over the one query, so all weights are 1; it runs over the keys": (
            _step(weights=torch.ones_like)
        ),
        "there is no softmax": _step(weights=lambda logits: logits),
        "is the mean of the values: the query is not used": (
            _step(weights=lambda logits: (0 * logits).softmax(0))
        ),
        "caches the query in place of the key": _step(lambda x, W_Q, W_K, W_V: (x @ W_Q, x @ W_V)),
        "uses the key as the query": _step(query=lambda x, W_Q, cache: cache[-1][0]),
        "uses the first token's query; each token has its own": _step(
            lambda x, W_Q, W_K, W_V: (x @ W_K, x @ W_V, x @ W_Q),
            query=lambda x, W_Q, cache: cache[0][2],
        ),
        "attends to the first token alone": (
            _step(weights=lambda logits: torch.eye(len(logits))[0].to(logits))
        ),
        "keys and values have changed places": _step(lambda x, W_Q, W_K, W_V: (x @ W_V, x @ W_K)),
        "uses the key as the value": _step(lambda x, W_Q, W_K, W_V: (x @ W_K, x @ W_K)),
        "the values are x itself; W_V is left out": _step(lambda x, W_Q, W_K, W_V: (x @ W_K, x)),
        "the keys are x itself; W_K is left out": _step(lambda x, W_Q, W_K, W_V: (x, x @ W_V)),
        "the query is x itself; W_Q is left out": _step(query=lambda x, W_Q, cache: x),
        "multiplies by the matrices from the left, W x; here it is x W": _step(
            lambda x, W_Q, W_K, W_V: (W_K @ x, W_V @ x), query=lambda x, W_Q, cache: W_Q @ x
        ),
    },
    _step_cases,
    _run_step,
    also=STEP_CACHE.examine,
)
