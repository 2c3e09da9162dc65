"""Is this attention right? Invariants tried, operations observed, one cause and one remedy named.

>>> import torch
>>> from attnbook import MultiHeadAttention
>>> report = diagnose(MultiHeadAttention(16, 2), torch.randn(2, 6, 16), n_heads=2)
>>> report.healthy
True
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnbook.doctor import (
    blocks,
    heads,
    invariants,
    losses,
    positions,
    projections,
    residuals,
    same,
    scale,
    weights,
)
from attnbook.doctor.causes import CAUSES, finding
from attnbook.doctor.claims import Claims, Mask
from attnbook.doctor.manners import restored
from attnbook.doctor.recognise import CallFailed, recognise
from attnbook.doctor.report import Finding, NotJudged, Report, one_cause
from attnbook.doctor.subject import Kind, Subject

__all__ = ["Claims", "Finding", "Mask", "NotJudged", "Report", "diagnose"]

MODELS: tuple[Kind, ...] = ("attention", "tokens", "pooled", "pictures", "encoder-decoder")
ROWS: tuple[Kind, ...] = ("attention", "tokens", "encoder-decoder")
LOSS: tuple[Kind, ...] = ("loss",)


@dataclass(frozen=True)
class Check:
    """What is tried, on what kinds of calls, and the claim without which it can't be judged."""

    run: Callable[[Subject], Iterable[Finding | NotJudged]]
    kinds: tuple[Kind, ...] = (*MODELS, *LOSS)
    needs: str = ""


CHECKS: dict[str, Check] = {
    # With the weights as they are:
    "same as": Check(same.same_as, needs="same_as"),
    "first loss": Check(losses.first_loss, ("tokens", "encoder-decoder", *LOSS)),
    "tying": Check(projections.tying),
    "start": Check(invariants.start),
    # Then, as if it had never been called:
    "calls are independent": Check(invariants.memory),
    # And in the order of what they find:
    "settings untouched": Check(invariants.settings),
    "finite": Check(invariants.finite),
    "evaluation is deterministic": Check(invariants.deterministic),
    "arguments untouched": Check(invariants.untouched),
    "weights": Check(weights.weights),
    "tokens": Check(blocks.channels),
    "heads": Check(heads.heads),
    "number of heads": Check(heads.number_of_heads, needs="n_heads"),
    "projections": Check(projections.projections),
    "layers": Check(projections.layers),
    "groups": Check(heads.groups),
    "scale": Check(scale.scale),
    "masks": Check(weights.masks),
    "mixing": Check(invariants.mixing, MODELS),
    "batch": Check(invariants.batch, MODELS),
    "order of sequences": Check(invariants.order_of_sequences, MODELS),
    "future": Check(invariants.future, ROWS),
    "prefix": Check(invariants.prefix, ROWS),
    "padding": Check(invariants.padding, MODELS),
    "empty rows": Check(invariants.empty_rows, MODELS, "mask"),
    "memory": Check(blocks.memory, ROWS),
    "order": Check(invariants.order, ROWS),
    "positions": Check(positions.positions, MODELS),
    "pairs": Check(positions.pairs, ROWS),
    "window": Check(blocks.window, needs="window"),
    "residual": Check(residuals.residual, (*ROWS, "pooled")),
    "norms": Check(blocks.norms),
    "feed-forward": Check(blocks.activation),
    "norm order": Check(blocks.norm_order),
    "embedding scale": Check(blocks.embedding_scale, needs="embedding_scale"),
    "cache": Check(invariants.cache, ("attention", "tokens"), "cache"),
    "train = eval": Check(invariants.train_and_eval),
    "dropout": Check(invariants.dropout),
    "gradients": Check(invariants.gradients),
    "derivatives": Check(invariants.derivatives, MODELS),
    "half precision": Check(invariants.half_precision, MODELS),
    "masks in the loss": Check(losses.future, LOSS),
    "sequences in the loss": Check(losses.order_of_sequences, LOSS),
    "shift": Check(losses.shift, LOSS),
    "probabilities": Check(losses.probabilities, LOSS),
    "reshaped": Check(losses.reshaped, LOSS),
    "targets": Check(losses.counted, LOSS),
    "padding in the loss": Check(losses.padding_in_loss, LOSS, "padding_id"),
    "training": Check(losses.training, LOSS),  # last: it changes the weights
}
AS_THEY_ARE = ("same as", "first loss", "tying", "start")
TESTED_BY: dict[str, tuple[str, ...]] = {
    "causal": ("future", "masks in the loss", "shift"),
    "n_heads": ("number of heads",),
    "n_kv_heads": ("groups",),
    "scale": ("scale",),
    "mask": ("padding", "empty rows"),
    "window": ("window",),
    "position": ("positions", "order"),
    "rotary_base": ("positions",),
    "norm": ("norm order",),
    "embedding_scale": ("embedding scale",),
    "tied": ("tying",),
    "dropout": ("dropout",),
    "cache": ("cache",),
    "padding_id": ("padding", "padding in the loss"),
    "residual": ("residual",),
    "half": ("half precision",),
    "same_as": ("same as",),
}
"""By which checks a claim is tested: one of them is judged, and none raises."""
NOT_RUN = NotJudged("", "not for such calls")


def diagnose(module: Callable[..., Any], *example: Any, **claims: Any) -> Report:
    """Examine a module by calls like the example.

    Args:
        module: an attention, a model, a loss: anything that can be called, a function too.
        example: the arguments of one plain call, two sequences of six tokens for instance.
        claims: what only the author knows; see :class:`attnbook.doctor.claims.Claims`.

    Returns:
        The report. ``report.healthy`` says that no check found an error, and each claim was tested.

    Raises:
        TypeError: if a claim is not known, or not of its type.
        ValueError: if its value is not known, or the call has no such argument.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=20, d_model=16, n_heads=2, n_layers=1))
        >>> ids = torch.randint(20, (2, 6))
        >>> diagnose(model, ids, causal=True).healthy
        True
        >>> print(*diagnose(model, ids, causal=True, n_heads=4).causes)
        wrong number of heads
    """
    said = Claims.of(claims)
    started = time.perf_counter()
    with warnings.catch_warnings(), restored(module):
        warnings.simplefilter("ignore")
        try:
            with restored(module):
                subject = recognise(module, example, said)
                results = _results(subject, AS_THEY_ARE)
        except CallFailed as failed:
            return Report("not called", (call_failed(failed),))
        stir(subject)
        results |= _results(subject, [name for name in CHECKS if name not in AS_THEY_ARE])
    found = [x for one in results.values() for x in one]
    explains = {name: cause.explains for name, cause in CAUSES.items()}
    unseen = subject.kind != "loss" and heads.UNSEEN in found
    return Report(
        subject.description + "; no attention seen: only inputs and outputs compared" * unseen,
        tuple(one_cause((x for x in found if isinstance(x, Finding)), explains)),
        tuple(x for x in found if isinstance(x, NotJudged)),
        tuple(name for name, one in results.items() if not one),
        tuple(_untested(said, results)),
        time.perf_counter() - started,
    )


def _untested(said: Claims, results: dict[str, list[Finding | NotJudged]]) -> Iterator[str]:
    """Claims of which no check is judged, or of which one raised."""
    for claim, checks in TESTED_BY.items():
        given = getattr(said, claim)
        missing = [
            [x for x in results.get(check, [NOT_RUN]) if isinstance(x, NotJudged)]
            for check in checks
        ]
        raised = any(x.raised for one in missing for x in one)
        if given is not None and given is not False and (all(missing) or raised):
            yield claim


def call_failed(error: CallFailed) -> Finding:
    """The only finding, if there is nothing to examine."""
    done, found = error.args
    return replace(
        finding("the example can't be called", done, found, "an output"), check="the call"
    )


def stir(subject: Subject) -> None:
    """Give parameters that are (nearly) zero random values, so that what is behind them shows."""
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in subject.parameters.values():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            if parameter.abs().max() < 1e-3 or (parameter == -1).all():  # a gain of 1 + p
                noise = torch.randn(parameter.shape, generator=drawn)
                width = parameter.shape[-1] if parameter.dim() > 1 else 10
                parameter.add_((noise * width**-0.5).to(parameter))


def _results(subject: Subject, names: Iterable[str]) -> dict[str, list[Finding | NotJudged]]:
    """What each check found that is for such calls."""
    with subject.mode(training=False), torch.enable_grad():
        return {n: _tried(n, subject) for n in names if subject.kind in CHECKS[n].kinds}


def _tried(name: str, subject: Subject) -> list[Finding | NotJudged]:
    """What a check found; that it failed, if it did, is told and stops no other."""
    check = CHECKS[name]
    if check.needs and getattr(subject.claims, check.needs) is None:
        return [NotJudged(name, "not claimed", f"{check.needs}=…")]
    try:
        return [replace(x, check=name) for x in check.run(subject)]
    except Exception as error:  # the reader's module raised it, or the check
        said = str(error).partition("\n")[0][:120]
        why = f"the check raised {type(error).__name__}: {said}"
        return [NotJudged(name, why, raised=True)]
