"""Exercises of chapter 10."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from attnbook.attention import scaled_dot_product_attention
from attnbook.book.exercises.mistakes import MistakeError, compare, passed, same


def check_unigram_loss(unigram_loss: Callable[[Tensor, Tensor, int], Tensor | float]) -> None:
    """Check ``unigram_loss(training, held_out, vocab_size)`` of chapter 10, in nats per token.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def unigram_loss(training, held_out, vocab_size):
        ...     counts = torch.bincount(training, minlength=vocab_size) + 1
        ...     return -(counts / counts.sum()).log()[held_out].mean()
        >>> check_unigram_loss(unigram_loss)
        ✓ unigram_loss is right
    """
    n_vocab = 8
    training = torch.tensor([0, 1, 1, 2, 0, 4, 1, 0, 2, 0, 1, 0])
    # First all held-out tokens are in the training part, then two are not: 3 and 6.
    for held_out in (torch.tensor([1, 0, 4, 2, 4, 1, 1]), torch.tensor([3, 0, 4, 6, 4, 1, 1])):
        seen = torch.bincount(training, minlength=n_vocab).double()
        held_out_seen = torch.bincount(held_out, minlength=n_vocab).double()
        n_seen, n_tokens = len(training), len(held_out)

        def loss(counts: Tensor, total: Tensor | float, ids: Tensor = held_out) -> Tensor:
            return -(counts / total).log()[ids].mean()

        counts = seen + 1
        right = loss(counts, counts.sum())
        from_held_out = held_out_seen + 1
        together = counts + held_out_seen
        p = counts / counts.sum()
        mistakes = {
            "counts the held-out part; count the training part": loss(
                from_held_out, from_held_out.sum()
            ),
            "counts both parts; the held-out part has to be predicted": loss(
                together, together.sum()
            ),
            "takes the counts as seen; each is one more, or a token that training does not have "
            "costs infinitely much": loss(seen, n_seen),
            "leaves out the tokens that training does not have; they count, too": loss(
                seen, n_seen, held_out[seen[held_out] > 0]
            ),
            "adds one only to tokens that training does not have": loss(seen.clamp(min=1), n_seen),
            "adds one to each count and not to their sum: divide by len(training) + vocab_size": (
                loss(counts, n_seen)
            ),
            "adds one to the sum of the counts; it grows by one for each token of the vocabulary": (
                loss(counts, n_seen + 1)
            ),
            "adds as many to the sum as training has different tokens; add vocab_size": loss(
                counts, n_seen + (seen > 0).sum()
            ),
            "adds the largest id + 1 to the sum; add vocab_size": loss(
                counts, n_seen + training.max() + 1
            ),
            "takes the counts as logits; the logits are their logarithms": (
                -seen.log_softmax(0)[held_out].mean()
            ),
            "is the loss of the training part": loss(counts, counts.sum(), training),
            "is the entropy of the training part's frequencies": -(p * p.log()).sum(),
            "is in bits; nats have the natural logarithm": right / math.log(2),
            "is the sum over the held-out tokens; divide by their number": right * n_tokens,
            "is the mean of log p; the loss is minus that": -right,
            "is the perplexity; the loss is its logarithm": right.exp(),
            "takes the mean of p first, then the logarithm": -p[held_out].mean().log(),
            "counts each different token once; a token counts as often as it is there": loss(
                counts, counts.sum(), held_out.unique()
            ),
        }
        try:
            result = unigram_loss(training.clone(), held_out.clone(), n_vocab)
        except (IndexError, KeyError, ValueError, RuntimeError) as error:
            if (seen[held_out] > 0).all():
                raise
            raise MistakeError(
                f"unigram_loss: tokens that training does not have stop it ({error}); all "
                "vocab_size tokens have a count"
            ) from error
        known = "all" if (seen[held_out] > 0).all() else "all but two"
        case = f"{n_tokens} held-out tokens, {known} of them in training"
        compare("unigram_loss", _number(result), right, mistakes, case)
    passed("unigram_loss")


def check_mean_loss(mean_loss: Callable[[list[tuple[float, int]]], Tensor | float]) -> None:
    """Check ``mean_loss(batches)`` of chapter 10: the loss per target of all batches.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def mean_loss(batches):
        ...     return sum(loss * n for loss, n in batches) / sum(n for _, n in batches)
        >>> check_mean_loss(mean_loss)
        ✓ mean_loss is right
    """
    batches = [(2.5, 640), (3.75, 16), (2.25, 512), (4.5, 40)]
    losses, counts = torch.tensor(batches, dtype=torch.float64).unbind(1)
    total = (losses * counts).sum()
    right = total / counts.sum()
    inverse = 1 / counts
    mistakes = {
        "is the mean of the means: a target of a small batch weighs more than another": (
            losses.mean()
        ),
        "is the sum over all targets; divide by their number": total,
        "divides the sum by the number of batches; divide by that of the targets": (
            total / len(batches)
        ),
        "is the sum of the means": losses.sum(),
        "divides the sum of the means by the number of targets: the means are divided already": (
            losses.sum() / counts.sum()
        ),
        "divides each mean by its number of targets; multiply, which gives the batch's sum": (
            (losses * inverse).sum()
        ),
        "weighs a batch the more, the fewer targets it has": (
            (losses * inverse).sum() / inverse.sum()
        ),
        "leaves out the last batch": (losses * counts)[:-1].sum() / counts[:-1].sum(),
        "is the last batch's loss": losses[-1],
        "is the perplexity; the loss is its logarithm": right.exp(),
    }
    case = "batches of " + ", ".join(str(n) for _, n in batches) + " targets"
    compare("mean_loss", _number(mean_loss(list(batches))), right, mistakes, case)
    passed("mean_loss")


def check_positions(positions: Callable[[Tensor], Tensor]) -> None:
    """Check ``positions(real)`` of chapter 10: 0 at each row's first real token, then counted on.

    What padding gets does not matter, unless it is negative.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> check_positions(lambda real: (real.cumsum(1) - 1).clamp(min=0))
        ✓ positions is right
    """
    padding = [(0, 0), (2, 0), (0, 3), (1, 2), (4, 0)]  # before and after the real tokens
    n_tokens = 7
    column = torch.arange(n_tokens).expand(len(padding), -1)
    before, after = torch.tensor(padding)[..., None].unbind(1)  # each (batch, 1)
    real = (column >= before) & (column < n_tokens - after)
    right = column - before
    result = positions(real.clone())
    if isinstance(result, Tensor):
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

    def at_real(ids: Tensor) -> Tensor:
        return ids.masked_fill(~real, 0).double()

    if isinstance(result, Tensor) and result.shape == real.shape and result.dtype != torch.bool:
        compared: object = at_real(result)
    else:
        compared = result
    mistakes = {
        "counts padding, too: with padding on the left, the first real token is not at 0": column,
        "counts from 1; the first real token has position 0": right + 1,
        "subtracts all padding of the row; only the padding on the left comes before": (
            column - before - after
        ),
        "subtracts all padding of the row, and makes negative positions 0; only the padding on the "
        "left comes before": (column - before - after).clamp(min=0),
        "counts the padding; count the real tokens": (~real).cumsum(1),
        "counts from the end: the first real token has position 0": n_tokens - 1 - after - column,
        "counts through the rows of the batch; tokens are the second dimension": (
            real.cumsum(0) - 1
        ),
        "goes on from row to row; each row begins with 0": (
            (real.flatten().cumsum(0) - 1).view_as(column)
        ),
        "is the mask; count the real tokens": real.long(),
    }
    case = f"{len(padding)} rows of {n_tokens} tokens (row, token)"
    named = {mistake: at_real(wrong) for mistake, wrong in mistakes.items()}
    compare("positions", compared, at_real(right), named, case)
    assert isinstance(result, Tensor)
    if result.min() < 0:
        raise MistakeError(
            f"positions: padding gets {int(result.min())}; a table of positions has no such row, "
            "so give it any position from 0 on"
        )
    passed("positions")


def check_top_p(top_p: Callable[[Tensor, float], Tensor]) -> None:
    """Check ``top_p(logits, p)`` of chapter 10: −inf for all but the likeliest tokens.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def top_p(logits, p):
        ...     ordered, order = logits.softmax(-1).sort(descending=True)
        ...     beyond = ordered.cumsum(-1) - ordered >= p
        ...     return logits.masked_fill(beyond.gather(1, order.argsort(-1)), -torch.inf)
        >>> check_top_p(top_p)
        ✓ top_p is right
    """
    probabilities = torch.tensor(
        [
            [0.06, 0.40, 0.10, 0.25, 0.19],
            [0.72, 0.03, 0.05, 0.08, 0.12],
            [0.15, 0.24, 0.17, 0.23, 0.21],
        ],
        dtype=torch.float64,
    )
    logits = probabilities.log() + torch.tensor([[2.0], [-1.0], [0.5]], dtype=torch.float64)
    order = logits.argsort(descending=True)
    rank = order.argsort()  # (batch, vocab): 0 is the likeliest
    for p in (0.6, 0.9, 0.05):

        def cut(kept: Tensor, these: Tensor = logits) -> Tensor:
            return these.masked_fill(~kept, -math.inf)

        def until_p(amounts: Tensor, p: float = p) -> Tensor:
            """Whether the amounts before, the largest first, are less than p together."""
            amounts, order = amounts.sort(descending=True)
            return (amounts.cumsum(1) - amounts < p).gather(1, order.argsort())

        kept = until_p(probabilities)
        n_kept = kept.sum(1, keepdim=True)
        sorted_kept = kept.gather(1, order)
        lowest, ascending = probabilities.sort()
        unlikeliest = (lowest.cumsum(1) - lowest < p).gather(1, ascending.argsort())
        mistakes = {
            "keeps no token; the likeliest is always kept": cut(torch.zeros_like(kept)),
            "drops the token that crosses p: those before it do not have probability p": cut(
                rank < n_kept - 1
            ),
            "drops the token that crosses p, unless it is the first": cut(
                rank < (n_kept - 1).clamp(min=1)
            ),
            "keeps a token more: the one that crosses p is the last": cut(rank < n_kept + 1),
            "does not undo the sort: the columns of its mask are ranks and not tokens": cut(
                sorted_kept
            ),
            "undoes the sort with its order; the way back is order.argsort()": cut(
                sorted_kept.gather(1, order)
            ),
            "returns the logits sorted: column t is no longer token t": cut(
                sorted_kept, logits.gather(1, order)
            ),
            "adds up logits; probabilities are added up": cut(until_p(logits)),
            "adds up exp(logits), which do not sum to one: softmax is missing": cut(
                until_p(logits.exp())
            ),
            "does not sort: adds up in the order of the vocabulary": cut(
                probabilities.cumsum(1) - probabilities < p
            ),
            "begins with the unlikeliest token: sort descending": cut(unlikeliest),
            "compares each token's probability with p; they are added up": cut(probabilities >= p),
            "the softmax runs over the batch; it runs over the vocabulary": cut(
                until_p(logits.softmax(0))
            ),
            "keeps as many in each row as in the first": cut(rank < n_kept[0]),
            "keeps what it should drop": cut(~kept),
            "gives the others 0, which is a logit like any other: −inf": (
                logits.masked_fill(~kept, 0)
            ),
            "returns probabilities; logits are asked for": probabilities.masked_fill(~kept, 0),
            "returns probabilities, made to sum to one; logits are asked for": (
                cut(kept).softmax(1)
            ),
            "returns logarithms of probabilities; keep the logits as they are": cut(
                kept, probabilities.log()
            ),
            "returns logarithms of the new probabilities; keep the logits as they are": (
                cut(kept).log_softmax(1)
            ),
            "returns the mask of what is kept": kept.double(),
        }
        result = top_p(logits.clone(), p)
        if not isinstance(result, Tensor) or result.shape != logits.shape:
            compare("top_p", result, logits, {}, f"p = {p}")
        right = cut(kept)
        if not same(result, right):
            for mistake, wrong in mistakes.items():
                if same(result, wrong):
                    raise MistakeError(f"top_p: {mistake}")
        if ((result < -1e3) & result.isfinite()).any():
            raise MistakeError("top_p: gives the others a large negative number; −inf is asked for")
        case = f"p = {p}, (row, token)"
        dropped = result == -math.inf
        compare("top_p", (~dropped).double(), kept.double(), {}, f"{case}, 1: kept, 0: −inf")
        compare("top_p", result.masked_fill(dropped, 0), right.masked_fill(~kept, 0), {}, case)
    passed("top_p")


def check_step(
    step: Callable[[Tensor, list[tuple[Tensor, Tensor]], Tensor, Tensor, Tensor], Tensor],
) -> None:
    """Check ``step(x, cache, W_Q, W_K, W_V)`` of chapter 10: one token attends, with a cache.

    Raises:
        MistakeError: names what the function does instead.

    Example:
        >>> def step(x, cache, W_Q, W_K, W_V):
        ...     cache.append((x @ W_K, x @ W_V))
        ...     key, value = map(torch.stack, zip(*cache))
        ...     return (key @ (x @ W_Q) / W_K.shape[1] ** 0.5).softmax(0) @ value
        >>> check_step(step)
        ✓ step is right
    """
    generator = Generator().manual_seed(0)
    n_tokens = 5
    # First all widths are alike, so that mistakes with shapes come through and can be named; then
    # all differ.
    for d, d_head, d_value in ((4, 4, 4), (6, 4, 3)):
        x = torch.randn(n_tokens, d, generator=generator, dtype=torch.float64)
        W_Q, W_K = torch.randn(2, d, d_head, generator=generator, dtype=torch.float64)
        W_V = torch.randn(d, d_value, generator=generator, dtype=torch.float64)
        cache: list[Any] = []
        outputs = []
        for t in range(n_tokens):
            try:
                result = step(x[t].clone(), cache, W_Q.clone(), W_K.clone(), W_V.clone())
            except (RuntimeError, IndexError, ValueError) as error:
                hint = ""
                if d != d_value:
                    hint = (
                        f"; x has shape ({d},), W_Q and W_K ({d}, {d_head}), W_V ({d}, {d_value})"
                    )
                elif not cache:
                    hint = "; a token's own key and value are in the cache before it attends"
                raise MistakeError(
                    f"step: token {t}, with {len(cache)} in the cache, raises an error: "
                    f"{error}{hint}"
                ) from error
            if not isinstance(result, Tensor):
                raise MistakeError(f"step must return a tensor, got {type(result).__name__}")
            if result.shape != (d_value,):
                all_rows = result.shape == (t + 1, d_value) and t > 0
                raise MistakeError(
                    f"step: token {t}, expected shape ({d_value},), got {tuple(result.shape)}"
                    + (": it has one query, the new token's" if all_rows else "")
                )
            outputs.append(result)
        _compare_cache_length(len(cache), n_tokens)
        _compare_outputs(torch.stack(outputs), x, W_Q, W_K, W_V)
        _compare_cache(cache, x, W_Q, W_K, W_V)
    passed("step")


def _compare_cache_length(length: int, n_tokens: int) -> None:
    if length == n_tokens:
        return
    after = f"step: after {n_tokens} tokens the cache has {length} entries"
    if length == 0:
        raise MistakeError(
            f"{after}: append to the list that is given; cache = cache + […] makes another list"
        )
    if length == 2 * n_tokens:
        raise MistakeError(f"{after}: append (key, value) as one pair, once")
    raise MistakeError(f"{after}; there is one pair (key, value) for each token")


def _compare_outputs(outputs: Tensor, x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> None:
    q, k, v = x @ W_Q, x @ W_K, x @ W_V
    n_tokens, (d, d_head), d_value = len(x), W_Q.shape, W_V.shape[1]
    causal = torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()
    n_keys = torch.arange(1, n_tokens + 1)[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float = d_head**-0.5) -> Tensor:
        logits = (q @ k.T * scale).masked_fill(~causal, -math.inf)
        return logits.softmax(1) @ v

    without_itself = scaled_dot_product_attention(q[1:], k, v, mask=causal.tril(-1)[1:])
    if same(outputs[1:], without_itself):  # the first token has nothing to attend to then
        raise MistakeError(
            "step: the new token does not attend to itself: append its key and value before it "
            "attends, and mask nothing"
        )
    products = (q @ k.T).tril()
    mistakes = {
        "attends to the new token alone: the weights are over all keys in the cache": v,
        "the logits are not divided by sqrt(d_head)": attend(q, k, v, 1.0),
        "divides by d_head; it is the square root": attend(q, k, v, 1 / d_head),
        "multiplies by sqrt(d_head); it divides": attend(q, k, v, math.sqrt(d_head)),
        "divides by the root of the number of keys; it is that of d_head": (
            attend(q, k, v, n_keys**-0.5)
        ),
        "the softmax runs over the one query, so all weights are 1; it runs over the keys": (
            v.cumsum(0)
        ),
        "there is no softmax": products / math.sqrt(d_head) @ v,
        "is the mean of the values: the query is not used": v.cumsum(0) / n_keys,
        "caches the query in place of the key": attend(q, q, v),
        "uses the key as the query": attend(k, k, v),
        "uses the first token's query; each token has its own": attend(q[:1].expand_as(q), k, v),
        "attends to the first token alone": v[:1].expand_as(v),
    }
    if d != d_head:
        mistakes["divides by the root of x's width; it is that of d_head"] = attend(
            q, k, v, d**-0.5
        )
    if d == d_head == d_value:
        mistakes |= {
            "keys and values have changed places": attend(q, v, k),
            "uses the key as the value": attend(q, k, k),
            "the values are x itself; W_V is left out": attend(q, k, x),
            "the keys are x itself; W_K is left out": attend(q, x, v),
            "the query is x itself; W_Q is left out": attend(x, k, v),
            "multiplies by the matrices from the left, W x; here it is x W": attend(
                x @ W_Q.T, x @ W_K.T, x @ W_V.T
            ),
        }
    right = scaled_dot_product_attention(q, k, v, mask=causal)
    case = f"d = {d}, d_head = {d_head}, d_value = {d_value}, (token, column)"
    compare("step", outputs, right, mistakes, case)


def _compare_cache(cache: list[Any], x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> None:
    """The output is right; is there no more in the cache than it takes?"""
    for entry in cache:
        if not isinstance(entry, tuple | list):
            raise MistakeError(
                f"step: the cache holds pairs (key, value), got one {type(entry).__name__} a token"
            )
        if len(entry) != 2:
            kept = [each.flatten() for each in entry if isinstance(each, Tensor)]
            query = any(same(each, q) for each in kept for q in x @ W_Q)
            raise MistakeError(
                f"step: the cache holds pairs (key, value), got {len(entry)} things"
                + (": the query among them, which no later token needs" if query else "")
            )
    for i, (which, right, wrong) in enumerate(
        (("key", x @ W_K, x @ W_V), ("value", x @ W_V, x @ W_K))
    ):
        found = torch.stack([entry[i].flatten() for entry in cache])
        mistakes = {
            "the pair is (key, value), got (value, key)": wrong,
            f"caches x where the {which} should be: it would be multiplied anew at each step": x,
        }
        compare("step", found, right, mistakes, f"the cache's {which}s (token, column)")


def _number(result: object) -> object:
    """A Python number as a tensor."""
    return torch.tensor(result, dtype=torch.float64) if isinstance(result, int | float) else result
