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

from attnbook.doctor.call.claims import Claims, Mask
from attnbook.doctor.call.manners import RAISED, restored
from attnbook.doctor.call.recognise import CallFailed, recognise
from attnbook.doctor.call.subject import KINDS, Kind, Refused, Subject, told
from attnbook.doctor.causes import CAUSES, FOLLOWS, finding
from attnbook.doctor.relations import cached, calls, losses, padded, pairs, same
from attnbook.doctor.report import RENAMED, Finding, NotJudged, Report, one_cause
from attnbook.doctor.stages import (
    blocks,
    heads,
    learning,
    locate,
    positions,
    projections,
    residuals,
    scale,
    weights,
)

__all__ = ["Claims", "Finding", "Mask", "NotJudged", "Report", "diagnose"]

MODELS: tuple[Kind, ...] = ("attention", "tokens", "pooled", "pictures", "encoder-decoder")
ROWS: tuple[Kind, ...] = ("attention", "tokens", "encoder-decoder")
LOSS: tuple[Kind, ...] = ("loss",)


@dataclass(frozen=True)
class Check:
    """What is tried, on what kinds of calls, and which claims are needed or tested."""

    run: Callable[[Subject], Iterable[Finding | NotJudged]]
    kinds: tuple[Kind, ...] = (*MODELS, *LOSS)
    needs: str = ""  # the claim without which it can't be judged, and that it tests
    tests: tuple[str, ...] = ()  # claims that it tests, and can do without
    stage: bool = False  # of an attention: nothing can be said where none was seen


CHECKS: dict[str, Check] = {
    # With the weights as they are:
    "same as": Check(same.same_as, needs="same_as"),
    "first loss": Check(losses.first_loss, ("tokens", "encoder-decoder", *LOSS)),
    "tying": Check(projections.tying, tests=("tied",)),
    "start": Check(learning.start),
    # Then, as if it had never been called:
    "calls are independent": Check(calls.memory),
    # And in the order of what they find:
    "settings untouched": Check(calls.settings),
    "finite": Check(calls.finite),
    "evaluation is deterministic": Check(calls.deterministic),
    "arguments untouched": Check(calls.untouched),
    "weights": Check(weights.weights),
    "tokens": Check(blocks.channels),
    "heads": Check(heads.heads, stage=True),
    "number of heads": Check(heads.number_of_heads, needs="n_heads", stage=True),
    "projections": Check(projections.projections, stage=True),
    "layers": Check(projections.layers, stage=True),
    "groups": Check(heads.groups, tests=("n_kv_heads",), stage=True),
    "scale": Check(scale.scale, tests=("scale",), stage=True),
    "masks": Check(weights.masks, stage=True),
    "mixing": Check(pairs.mixing, MODELS),
    "axes": Check(pairs.axes, ("attention",)),
    "batch": Check(pairs.batch, MODELS),
    "order of sequences": Check(pairs.order_of_sequences, MODELS),
    "future": Check(pairs.future, ROWS, tests=("causal",)),
    "prefix": Check(pairs.prefix, ROWS),
    "equal tokens": Check(pairs.equal_tokens, ROWS),
    "padding": Check(padded.padding, MODELS, tests=("mask", "lengths", "padding_id")),
    "empty rows": Check(padded.empty_rows, MODELS, "mask"),
    "memory": Check(blocks.memory, ROWS, stage=True),
    "order": Check(pairs.order, ROWS, tests=("position",)),
    "positions": Check(positions.positions, MODELS, tests=("position",)),
    "pairs": Check(positions.pairs, ROWS, stage=True),
    "rotary base": Check(positions.base, MODELS, "rotary_base", stage=True),
    "window": Check(blocks.window, needs="window", stage=True),
    "residual": Check(residuals.residual, MODELS, tests=("residual",), stage=True),
    "norms": Check(blocks.norms),
    "feed-forward": Check(blocks.activation),
    "norm order": Check(blocks.norm_order, tests=("norm",), stage=True),
    "embedding scale": Check(blocks.embedding_scale, needs="embedding_scale"),
    "cache": Check(cached.cache, ("attention", "tokens"), "cache"),
    "train = eval": Check(learning.train_and_eval),
    "dropout": Check(learning.dropout, tests=("dropout",)),
    "gradients": Check(learning.gradients),
    "half precision": Check(calls.half_precision, MODELS, tests=("half",)),
    "masks in the loss": Check(losses.future, LOSS, tests=("causal",)),
    "sequences in the loss": Check(losses.order_of_sequences, LOSS),
    "shift": Check(losses.shift, LOSS, tests=("causal",)),
    "probabilities": Check(losses.probabilities, LOSS),
    "reshaped": Check(losses.reshaped, LOSS),
    "targets": Check(losses.counted, LOSS),
    "padding in the loss": Check(losses.padding_in_loss, LOSS, "padding_id"),
    "training": Check(losses.training, LOSS),  # last: it changes the weights
}
AS_THEY_ARE = ("same as", "first loss", "tying", "start")
Outcomes = dict[str, list[Finding | NotJudged]]  # of each check
NOT_RUN = NotJudged("", "not for such calls")
UNSEEN = NotJudged("", "no attention seen")
ONLY = f"; {UNSEEN.why}: only inputs and outputs compared"


def diagnose(module: Callable[..., Any], *example: Any, **claims: Any) -> Report:
    """Examine a module by calls like the example.

    Args:
        module: an attention, a model, a loss: anything that can be called, a function too.
        example: the arguments of one plain call, two sequences of six tokens for instance.
        claims: what only the author knows; see :class:`attnbook.doctor.call.claims.Claims`.

    Returns:
        The report. ``report.healthy`` says that an attention was seen, that no check found an
        error, and that each claim was tested; ``assert diagnose(...)`` fails with what is wrong.

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
    checked = Claims.of(claims)
    for cause in {*checked.known} - {*CAUSES, *RENAMED}:
        raise ValueError(f"known is of causes, as a report names them; there is none {cause!r}")
    started = time.perf_counter()
    with warnings.catch_warnings(), restored(module):
        warnings.simplefilter("ignore")
        try:
            with restored(module):
                subject = recognise(module, example, checked)
                results = _results(subject, AS_THEY_ARE)
        except CallFailed as failed:
            done, raised, remedy = failed.args
            error = finding("the example can't be called", done, raised, "an output")
            error = replace(error, check="the call", remedy=remedy or error.remedy)
            return Report("not called", (error,))
        stir(subject)
        results |= _results(subject, [name for name in CHECKS if name not in AS_THEY_ARE])
    everything = [result for of_check in results.values() for result in of_check]
    explains = {name: cause.explains for name, cause in CAUSES.items()} | FOLLOWS
    findings = one_cause((x for x in everything if isinstance(x, Finding)), explains)
    known = {RENAMED.get(cause, cause) for cause in checked.known}
    seen = replace(UNSEEN, check="heads") not in everything or subject.kind == "loss"
    return Report(
        KINDS[subject.kind] + subject.cut + ONLY * (not seen),
        tuple(replace(x, level="note") if x.cause in known else x for x in findings),
        tuple(x for x in everything if isinstance(x, NotJudged)),
        tuple(name for name, of_check in results.items() if not of_check),
        (
            *_untested(checked, results),
            *(f"known: {x}" for x in known - {y.cause for y in findings}),
        ),
        seen,
        time.perf_counter() - started,
    )


def _untested(claims: Claims, results: Outcomes) -> Iterator[str]:
    """Names of the claims of which no check was judged, or of which one raised."""
    for claim, value in vars(claims).items():
        if claim == "mask" and claims.lengths:
            continue
        checks = [n for n, check in CHECKS.items() if claim in (check.needs, *check.tests)]
        if value is None or value is False or not checks:
            continue
        missing = [
            [x for x in results.get(name, [NOT_RUN]) if isinstance(x, NotJudged)] for name in checks
        ]
        if all(missing) or any(x.raised for of_check in missing for x in of_check):
            yield claim


def stir(subject: Subject) -> None:
    """Give random values to parameters that are nearly zero, so that what is behind them shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in subject.parameters.items():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            if parameter.abs().max() < 1e-3 or (parameter == -1).all():  # a gain of 1 + p
                subject.stirred[name] = parameter.detach().clone()
                noise = torch.randn(parameter.shape, generator=generator)
                width = parameter.shape[-1] if parameter.dim() > 1 else 10
                parameter.add_((noise * width**-0.5).to(parameter))


def _results(subject: Subject, names: Iterable[str]) -> Outcomes:
    """Run those checks that apply to such calls; one that raises stops no other."""
    outcomes: Outcomes = {}
    with subject.mode(training=False), torch.enable_grad():
        for name in (name for name in names if subject.kind in CHECKS[name].kinds):
            check = CHECKS[name]
            if check.needs and getattr(subject.claims, check.needs) is None:
                outcomes[name] = [NotJudged(name, "not claimed", f"{check.needs}=…")]
                continue
            try:
                if check.stage and not locate.attentions(subject):
                    outcomes[name] = [replace(UNSEEN, check=name)]
                    continue
                outcomes[name] = [replace(x, check=name) for x in check.run(subject)]
            except (Refused, *RAISED) as error:  # the reader's module raised it, or the check
                why = f"the check {told(error)}"
                outcomes[name] = [NotJudged(name, why, raised=True)]
    return outcomes
