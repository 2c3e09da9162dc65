"""Is this attention right? Invariants tried, operations observed, one cause and one remedy named.

>>> import torch
>>> from attnbook import MultiHeadAttention
>>> report = diagnose(MultiHeadAttention(16, 2), torch.randn(2, 6, 16), n_heads=2)
>>> report.healthy
True
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from attnbook.doctor import invariants, losses, structure
from attnbook.doctor.causes import CAUSES
from attnbook.doctor.claims import Claims, Mask
from attnbook.doctor.manners import restored
from attnbook.doctor.report import Finding, NotJudged, Report, one_cause
from attnbook.doctor.subject import CallFailed, Subject, recognise

__all__ = ["Claims", "Finding", "Mask", "NotJudged", "Report", "diagnose"]

CHECKS: dict[str, Callable[[Subject], Any]] = {
    # With the initial weights as they are:
    "first loss": losses.first_loss,
    "tying": structure.tying,
    # In the order of what they find:
    "finite": invariants.finite,
    "evaluation is deterministic": invariants.deterministic,
    "calls are independent": invariants.memory,
    "arguments untouched": invariants.untouched,
    "weights": structure.weights,
    "heads": structure.heads,
    "projections": structure.projections,
    "heads share": structure.heads_share,
    "masks": structure.masks,
    "groups": structure.groups,
    "scale": structure.scale,
    "mixing": invariants.mixing,
    "batch": invariants.batch,
    "order of sequences": invariants.order_of_sequences,
    "future": invariants.future,
    "prefix": invariants.prefix,
    "padding": invariants.padding,
    "empty rows": invariants.empty_rows,
    "order": invariants.order,
    "positions": structure.positions,
    "sinusoids": structure.sinusoids,
    "window": structure.window,
    "cache": invariants.cache,
    "train = eval": invariants.train_and_eval,
    "dropout": invariants.dropout,
    "gradients": invariants.gradients,
    "half precision": invariants.half_precision,
    "shift": losses.shift,
    "probabilities": losses.probabilities,
    "reshaped": losses.reshaped,
    "padding in the loss": losses.padding_in_loss,
}
AS_THEY_ARE = ("first loss", "tying")


def diagnose(module: Callable[..., Any], *example: Any, **claims: Any) -> Report:
    """Examine a module by calls like the example.

    Args:
        module: an attention, a model, a loss: anything that can be called, a function too.
        example: the arguments of one plain call, two sequences of six tokens for instance.
        claims: what only the author knows; see :class:`attnbook.doctor.Claims`.

    Returns:
        The report. ``report.healthy`` says whether there is no error.

    Raises:
        TypeError: if a claim is not known.

    Example:
        >>> from attnbook import LanguageModel, ModelConfig
        >>> model = LanguageModel(ModelConfig(vocab_size=20, d_model=16, n_heads=2, n_layers=1))
        >>> ids = torch.randint(20, (2, 6))
        >>> diagnose(model, ids, causal=True).healthy
        True
        >>> print(*diagnose(model, ids, causal=True, n_heads=4).causes)
        not so many heads
    """
    said = Claims.of(claims)
    started = time.perf_counter()
    findings: list[Finding] = []
    not_judged: list[NotJudged] = []
    passed: list[str] = []
    with warnings.catch_warnings(), restored(module):
        warnings.simplefilter("ignore")
        try:
            subject = recognise(module, example, said)
        except CallFailed as failed:
            return Report("not called", not_judged=(NotJudged("everything", str(failed)),))
        with subject.mode(training=False), torch.enable_grad():
            stirred = False
            for name, check in CHECKS.items():
                if not stirred and name not in AS_THEY_ARE:
                    stir(subject)
                    stirred = True
                results = _results(name, check, subject)
                found = [x for x in results if isinstance(x, Finding)]
                missing = [x for x in results if isinstance(x, NotJudged)]
                findings += found
                not_judged += missing
                if not results:
                    passed.append(name)
    explains = {name: cause.explains for name, cause in CAUSES.items()}
    return Report(
        subject.description,
        tuple(one_cause(findings, explains)),
        tuple(not_judged),
        tuple(passed),
        time.perf_counter() - started,
    )


def stir(subject: Subject) -> None:
    """Give parameters that are zero small random values, so that what stands behind them shows."""
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in subject.parameters.values():
            if parameter.is_floating_point() and parameter.numel() and not parameter.any():
                noise = torch.randn(parameter.shape, generator=drawn)
                width = parameter.shape[-1] if parameter.dim() > 1 else 10
                parameter.add_((noise * width**-0.5).to(parameter))


def _results(
    name: str, check: Callable[[Subject], Any], subject: Subject
) -> list[Finding | NotJudged]:
    """What a check found; that it failed, if it did, is told and stops no other."""
    try:
        return list(check(subject))
    except Exception as error:  # the reader's module raised it, or the check
        return [NotJudged(name, f"the check raised {type(error).__name__}: {error}")]
