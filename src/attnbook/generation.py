"""Writing with a model: how a token is drawn, one after another, and beam search.

Functions of a model, of which they ask what :class:`attnbook.models.LanguageModel` and
:class:`attnbook.encoder_decoder.Transformer` have; their methods ``generate`` call them.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Generator, Tensor

from attnbook.attention import KeyValueCache
from attnbook.decoding import Captured, Stack, Step, new_step, not_fusible
from attnbook.masks import checked


def sample(
    logits: Float[Tensor, "batch vocab"],
    temperature: float = 1.0,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
) -> Integer[Tensor, "batch"]:
    r"""Draw one token for each row.

    .. math:: t \sim \operatorname{softmax}(\text{logits} / \text{temperature})

    Args:
        logits: over the vocabulary.
        temperature: 0 takes the largest logit (greedy), 1 draws from the model's own distribution.
        top_k: draw among the ``top_k`` largest logits only.
        top_p: draw among the likeliest tokens only, as many as it takes to have this probability.
        generator: source of randomness; torch's global one if none is given.

    Raises:
        ValueError: if ``temperature`` is negative or not finite, ``top_k`` below 1 or ``top_p`` not
            above 0 and at most 1. And if logits are not finite: a model that has gone wrong would
            go on writing.

    Source: Fan et al. 2018, section 5 (top-k); Holtzman et al. 2020, section 3.1 (top-p).

    Example:
        >>> sample(torch.tensor([[1.0, 3.0, 2.0]]), 0.0)
        tensor([1])
    """
    draw = Draw(temperature, top_k, top_p, generator)
    logits = at_least_float32(logits)
    _check_finite(logits.amax(dim=-1))
    return draw(logits)


@dataclass(frozen=True)
class Draw:
    """How a token is drawn from finite logits, as :func:`sample` says.

    Example:
        >>> Draw(temperature=0.0)(torch.tensor([[1.0, 3.0, 2.0]]))
        tensor([1])
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    generator: Generator | None = None

    def __post_init__(self) -> None:
        """Refuse what draws nothing."""
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be at least 0 and finite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(
                f"top_k must be at least 1, or None to draw among all, got {self.top_k}"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def __call__(self, logits: Float[Tensor, "batch vocab"]) -> Integer[Tensor, "batch"]:
        """One token for each row."""
        return _draw(logits, self.temperature, self.top_k, self.top_p, self.generator)


def _draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: Generator | None,
) -> Integer[Tensor, "batch"]:
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is not None and top_k < logits.shape[-1]:
        values, tokens = logits.topk(top_k)
        drawn = _draw(values, temperature, top_k=None, top_p=top_p, generator=generator)
        return tokens.gather(1, drawn[:, None])[:, 0]
    # Relative to the largest, so that at a low temperature none becomes +inf.
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)
    largest = logits.amax(dim=-1, keepdim=True)
    probabilities = ((logits - largest) / temperature).softmax(dim=-1)
    if top_p is not None and top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        before = F.pad(ordered.cumsum(dim=-1)[..., :-1], (1, 0))  # a difference would round
        reached = top_p * (1 - 4 * torch.finfo(logits.dtype).eps)  # to rounding
        beyond = before >= reached  # enough without this one
        probabilities = probabilities.masked_fill(beyond.gather(1, order.argsort(dim=-1)), 0.0)
    # torch.multinomial's way, the same draws, without its checks of the values: the first of
    # exponential waiting times with these rates comes from each with its probability.
    waits = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / waits).argmax(dim=-1)


def _check_finite(largest: Float[Tensor, "batch"]) -> None:
    if not largest.isfinite().all():
        raise ValueError(f"logits must be finite, got {largest.tolist()} as the largest")


def real_tokens(
    padding_mask: Bool[Tensor, "batch ... tokens"] | None,
) -> Bool[Tensor, "batch tokens"] | None:
    """Which tokens are real; ``None`` if all are.

    Raises:
        ValueError: if a sequence has none.
    """
    real = checked(padding_mask)
    if real is None:
        return None
    real = real.flatten(1)
    if empty := (~real.any(dim=1)).nonzero().flatten().tolist():
        raise ValueError(f"each sequence needs a real token, got padding only in {empty}")
    return real


def write(
    model: Stack,
    ids: Integer[Tensor, "batch tokens"],
    n_tokens: int,
    draw: Draw,
    stop_ids: Sequence[int],
    real: Bool[Tensor, "batch tokens"] | None,
    cache: list[KeyValueCache] | None,
    fused: bool,
) -> Integer[Tensor, "batch more"]:
    """A language model's continuation: see :meth:`attnbook.models.LanguageModel.generate`."""
    if fused and (reason := not_fusible(model)) is not None:
        warnings.warn(f"generating without fused=True: {reason}", stacklevel=3)
        fused = False
    capture = fused and cache is None and ids.is_cuda
    if cache is None:  # what is captured has its own memory of all keys
        cache = model.new_cache(None if capture else ids.shape[1] + n_tokens - 1)
    new = ids[:, len(cache[0]) :]
    if new.shape[1] == 0:
        raise ValueError(
            f"ids must have a token that is not in the cache yet, got {ids.shape[1]} tokens "
            f"and a cache of {len(cache[0])}"
        )
    read = _Reader(model, cache, n_tokens, real, fused=fused, capture=capture)
    stops = torch.tensor(stop_ids, dtype=ids.dtype, device=ids.device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    largest: Tensor | None = None  # of the logits, and what is not finite stays
    for _ in range(n_tokens):
        logits = at_least_float32(read(new))  # (batch, vocab)
        now = logits.amax(dim=-1)
        largest = now if largest is None else torch.where(largest.isfinite(), now, largest)
        new = torch.where(ended, ids[:, -1], draw(logits).to(ids.dtype))[:, None]
        ids = torch.cat([ids, new], dim=1)
        if len(stops):
            ended = ended | torch.isin(new[:, 0], stops)
            if ended.all():
                break
    if largest is not None:  # at the end: a GPU would be waited for after each token
        _check_finite(largest)
    return ids


class _Reader:
    """Logits after the last real token of each sequence, of which it gets the new ones.

    The first call is the model's own, and so are the others if they are not ``fused``.
    """

    def __init__(
        self,
        model: Stack,
        cache: list[KeyValueCache],
        n_tokens: int,
        real: Bool[Tensor, "batch tokens"] | None,
        *,
        fused: bool,
        capture: bool,
    ) -> None:
        self.model, self.cache, self.n_tokens, self.real = model, cache, n_tokens, real
        self.fused, self.capture = fused, capture
        self.is_first = True
        self.step: Step | Captured | None = None

    def __call__(self, new: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch vocab"]:
        if self.step is None and self.fused and not self.is_first:
            max_tokens = len(self.cache[0]) + self.n_tokens - 1
            self.step = new_step(self.model, self.cache, new, max_tokens, self.real, self.capture)
        if self.step is not None:
            return self.step(new)
        at: Tensor | int = -1
        if self.real is not None and self.is_first:  # the last real one
            at = new.shape[1] - 1 - self.real.flip(1).int().argmax(dim=1)
        elif self.real is not None:
            self.real = F.pad(self.real, (0, 1), value=True)
        self.is_first = False
        return self.model(new, padding_mask=self.real, cache=self.cache, at=at)


@runtime_checkable
class Pair(Protocol):
    """What is asked of an encoder-decoder."""

    def __call__(self, source: Tensor, target: Tensor, **settings: Any) -> Tensor:
        """Logits for the token after each of the target's."""

    def encode(self, source: Tensor) -> Tensor:
        """The memory."""

    def new_cache(self, max_tokens: int | None = None) -> list[Any]:
        """An empty one for each block of the decoder."""


@dataclass(frozen=True)
class Target:
    """What a target begins and ends with, what is filled in behind, and how long it may be."""

    start_id: int
    end_id: int
    padding_id: int | None
    n_tokens: int

    @property
    def filled(self) -> int:
        """What follows the end."""
        return self.end_id if self.padding_id is None else self.padding_id


def translate(
    model: Pair, source: Integer[Tensor, "batch source"], target: Target, draw: Draw
) -> Integer[Tensor, "batch target"]:
    """One token after another: see :meth:`attnbook.encoder_decoder.Transformer.generate`."""
    new = source.new_full((len(source), 1), target.start_id)
    written, ended = new[:, :0], torch.zeros_like(new, dtype=torch.bool)
    memory, cache = model.encode(source), model.new_cache(target.n_tokens)
    for _ in range(target.n_tokens):
        logits = model(source, new, memory=memory, cache=cache)[:, -1]
        if target.padding_id is not None:
            logits[:, target.padding_id] = -torch.inf  # the loss leaves it out: nobody learns it
        logits = at_least_float32(logits)
        _check_finite(logits.amax(dim=-1))
        drawn = draw(logits)[:, None].to(new.dtype)
        new = drawn.masked_fill(ended, target.filled)
        written = torch.cat([written, new], dim=1)
        ended = ended | (new == target.end_id)
        if ended.all():
            break
    return written


def beam_search(
    model: Pair,
    source: Integer[Tensor, "batch source"],
    target: Target,
    beams: int,
    length_penalty: float,
) -> Integer[Tensor, "batch target"]:
    """The likeliest target: see :meth:`attnbook.encoder_decoder.Transformer.generate`."""
    batch, filled = len(source), target.filled

    def score_of(total: Tensor, n: int) -> Tensor:
        return total / float(((5 + n) / 6) ** length_penalty)

    first_row = beams * torch.arange(batch, device=source.device)[:, None]
    memory, cache = (
        model.encode(source).repeat_interleave(beams, dim=0),
        model.new_cache(target.n_tokens),
    )
    source = source.repeat_interleave(beams, dim=0)  # (batch · beams, source)
    new = source.new_full((len(source), 1), target.start_id)
    begun = new[:, :0]
    # log-probability of each beginning
    total = at_least_float32(memory.new_full((batch, beams), -torch.inf))
    total[:, 0] = 0  # all begin alike: one counts
    best = source.new_full((batch, target.n_tokens), filled)
    best_score = total.new_full((batch,), -torch.inf)
    length = torch.zeros(batch, dtype=torch.long, device=source.device)
    among_best = torch.arange(2 * beams, device=source.device) < beams
    for n in range(1, target.n_tokens + 1):
        logits = model(source, new, memory=memory, cache=cache)[:, -1]
        if target.padding_id is not None:
            logits[:, target.padding_id] = -torch.inf
        if not logits.amax(dim=-1).isfinite().all():
            raise ValueError(f"logits must be finite, those of token {n} are not")
        n_vocab = logits.shape[-1]
        # (batch · beams, vocab)
        each = total.flatten()[:, None] + at_least_float32(logits).log_softmax(dim=-1)
        # So many that enough go on, even if half of them end.
        total, index = each.unflatten(0, (batch, beams)).flatten(1).topk(2 * beams)
        row, token = first_row + index // n_vocab, index % n_vocab  # (batch, 2 · beams)
        longer = torch.cat([begun[row], token[..., None].to(begun.dtype)], dim=-1)
        ends = token == target.end_id
        done = among_best & (ends | (n == target.n_tokens)) & total.isfinite()
        score, place = score_of(total, n).masked_fill(~done, -torch.inf).max(dim=1)
        better = score > best_score
        best[better, :n] = longer[better, place[better]]
        best_score, length = score.where(better, best_score), length.masked_fill(better, n)
        total, place = total.masked_fill(ends, -torch.inf).topk(beams)
        # A beginning's total only falls, so its score ends below that of this total, at the
        # length where the penalty helps it most.
        could_be = score_of(total[:, 0], target.n_tokens if length_penalty > 0 else n + 1)
        if (could_be <= best_score).all():
            break
        row = row.gather(1, place).flatten()
        begun = longer[first_row // beams, place].flatten(0, 1)
        new = begun[:, -1:]
        for block in cache:
            block.reorder(row)
    return best[:, : max(length.tolist(), default=0)]


def at_least_float32(logits: Tensor) -> Tensor:
    """Logits for sums over the vocabulary or over tokens: half precision would round, or overflow.

    Example:
        >>> at_least_float32(torch.zeros(2, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def check_length(n_tokens: int, max_tokens: int) -> None:
    """Refuse a sequence that is longer than the model's.

    Example:
        >>> check_length(300, 256)
        Traceback (most recent call last):
        ValueError: the model takes at most 256 tokens, got 300
    """
    if n_tokens > max_tokens:
        raise ValueError(f"the model takes at most {max_tokens} tokens, got {n_tokens}")


def check_new_tokens(n_tokens: int) -> None:
    """Refuse to add a negative number of tokens.

    Example:
        >>> check_new_tokens(-1)
        Traceback (most recent call last):
        ValueError: n_tokens must not be negative, got -1
    """
    if n_tokens < 0:
        raise ValueError(f"n_tokens must not be negative, got {n_tokens}")


def check_id(name: str, token_id: int, vocab_size: int) -> None:
    """Refuse a token that can't occur: waiting for it would never end.

    Example:
        >>> check_id("end_id", 50, 50)
        Traceback (most recent call last):
        ValueError: end_id must be in 0 … 49, got 50
    """
    if not 0 <= token_id < vocab_size:
        raise ValueError(f"{name} must be in 0 … {vocab_size - 1}, got {token_id}")
