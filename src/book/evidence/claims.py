"""Claims: sentences of the book that are measured, shown and collected.

A claim that does not hold raises, and with it the chapter and the build fail; where a reader runs
the notebook, it is shown, and the notebook goes on. A claim is shown as one line and carries its
numbers in the output's metadata, from which the ledger page is written.
"""

import html
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from book.reader import reads

# A mean of random samples has to clear its bound by this many standard errors,
MARGIN = 3.0
# and by twice as many where it is recorded, so that the next sample clears it, too.
RECORDED_MARGIN = 6.0
# Rounding errors differ between processors: what is smaller is shown as "below 1e-9".
SMALLEST_SHOWN = 1e-9
METADATA_KEY = "attnbook_claim"

Samples = float | Sequence[float]
STATED: "dict[str, Claim]" = {}
"""What was claimed in this process, by label."""


def seeds(n: int) -> list[int]:
    """Return ``n`` different seeds, shifted by the environment variable ``ATTNBOOK_SEED``.

    Every random number of a chapter hangs on one of these, so another value of ``ATTNBOOK_SEED``
    is another sample of the whole book.

    Raises:
        ValueError: if ``n`` is not positive or ``ATTNBOOK_SEED`` is not a whole number >= 0.

    Example:
        >>> len(set(seeds(5)))
        5
    """
    if n < 1:
        raise ValueError(f"expected at least one seed, got n={n}")
    return [1000 * shift() + i for i in range(n)]


def shift() -> int:
    """Return ``ATTNBOOK_SEED``: which sample of the book this is; 0 is the one that is committed.

    Raises:
        ValueError: if it is not a whole number >= 0.
    """
    given = os.environ.get("ATTNBOOK_SEED", "0")
    if not re.fullmatch(r"[0-9]{1,9}", given):
        raise ValueError(f"ATTNBOOK_SEED must be a whole number from 0 to 999999999, got {given!r}")
    return int(given)


def margin() -> float:
    """How many standard errors have to lie on a claim's side."""
    return MARGIN if shift() else RECORDED_MARGIN


class ClaimFailedError(AssertionError):
    """What was claimed is not what was measured; the message says all three."""


@dataclass(frozen=True)
class Claim:
    """A claim and what came of it."""

    statement: str
    label: str
    form: str
    measured: str
    expected: str
    held: bool
    samples: int
    numbers: tuple[float, ...]
    """Every number that the line shows but the standard errors: prose may quote these."""
    errors: tuple[float, ...]
    """The standard errors; prose may quote them behind a ±."""
    room: float | None
    """How many standard errors lie between what was measured and the bound."""
    lead: float | None
    """How far what was measured lies on its side of the bound; of random samples alone."""
    text: str | None
    """Fingerprint of the text that the numbers were measured on, where they hang on one."""

    def __str__(self) -> str:
        """Two lines: the statement with its verdict, then the numbers."""
        return f"{'✓' if self.held else '✗'} {self.statement}\n  {self._numbers_line()}"

    def _numbers_line(self) -> str:
        over = f" ({self.samples} seeds)" if self.samples > 1 else ""
        on = f", on text {self.text}" if self.text else ""
        return f"measured {self.measured}{over}; claimed {self.expected}{on}"

    def _repr_html_(self) -> str:
        colour, mark, verdict = (
            ("#2e9e5b", "✓", "holds") if self.held else ("#d0342c", "✗", "does not hold")
        )
        return (
            f'<div class="claim" id="claim-{html.escape(self.label)}" '
            f'style="border-left: 3px solid {colour}; padding: 0.15em 0.7em; margin: 0.4em 0">'
            f'<span class="claim-mark" role="img" aria-label="{verdict}">{mark}</span> '
            f'<span class="claim-statement">{html.escape(self.statement)}</span><br>'
            f'<span class="claim-numbers">{html.escape(self._numbers_line())}</span></div>'
        )


def claim(
    statement: str,
    measured: Samples | Tensor | str | bool,
    *,
    label: str,
    equals: object = None,
    close_to: float | Tensor | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    at_most: float | None = None,
    at_least: float | None = None,
    exceeds: Samples | None = None,
    factor: float = 1.0,
    unit: str = "",
    text: str | None = None,
) -> None:
    r"""State a sentence, check it against a measurement, and show both.

    Exactly one form is given:

    =====================  ========================================================================
    ``equals=x``           the same, exactly: numbers, booleans, strings, or tensors of one dtype
    ``close_to=x``         :math:`|\bar m - x| + zs \le \text{atol} + \text{rtol}\,|x|`; of two
                           tensors of one shape, every entry
    ``at_most=x``          :math:`\bar m + zs \le x`
    ``at_least=x``         :math:`\bar m - zs \ge x`
    ``exceeds=b``          differs by a factor :math:`f`:
                           :math:`\bar m - f\,\bar b \ge z\sqrt{s^2 + f^2 s_b^2}`
    =====================  ========================================================================

    Several samples, one for each seed, have the mean :math:`\bar m` and the standard error
    :math:`s = \sqrt{\tfrac1{n(n-1)}\sum_i (m_i - \bar m)^2}`; a single number has :math:`s = 0`.
    So a claim on random numbers holds only where :math:`z` standard errors lie on its side: three,
    and six for the seeds that are recorded (``ATTNBOOK_SEED`` 0), so that a claim which holds there
    holds for other seeds.

    Args:
        statement: the sentence, as a reader would doubt it.
        measured: a number, or a sequence with one sample for each seed, or a tensor.
        label: a short name in lower case; links point to ``#claim-label``. The build refuses a
            label that the book has twice.
        equals: see above.
        close_to: see above.
        rtol: relative tolerance of ``close_to``.
        atol: absolute tolerance of ``close_to``.
        at_most: see above.
        at_least: see above.
        exceeds: see above, a number or samples.
        factor: :math:`f` of ``exceeds``.
        unit: shown behind the numbers.
        text: fingerprint of the text measured on, if the numbers hang on one
            (:func:`attnbook.tasks.text.fingerprint`): the tests compare them only on the same text.

    Raises:
        ClaimFailedError: if the claim does not hold and no reader runs the notebook; with
            statement, measured and expected.
        TypeError: if not exactly one form is given, or the values do not go with it.
        ValueError: if there are no samples or the label is not made of letters, digits and hyphens.

    Example:
        >>> claim("Seven is at most eight", 7, label="seven", at_most=8)
        ✓ Seven is at most eight
          measured 7; claimed at most 8
    """
    forms = {
        "equals": equals,
        "close_to": close_to,
        "at_most": at_most,
        "at_least": at_least,
        "exceeds": exceeds,
    }
    form = _form(forms, label, tolerances=bool(rtol or atol), factor=factor != 1.0)
    if equals is not None:
        outcome = _equals(measured, equals, unit)
    elif close_to is not None:
        outcome = _close_to(measured, close_to, rtol, atol, unit)
    elif at_most is not None:
        outcome = _at_most(measured, at_most, unit)
    elif at_least is not None:
        outcome = _at_least(measured, at_least, unit)
    else:
        outcome = _exceeds(measured, exceeds, factor, unit)
    result = outcome.of(statement, label, form, text)
    _show(result)
    STATED[label] = result
    if not (result.held or reads()):
        raise ClaimFailedError(
            f"{result.statement}\n  measured: {result.measured}"
            f"{f' ({result.samples} samples)' if result.samples > 1 else ''}"
            f"\n  expected: {result.expected}"
        )


def tally() -> None:
    """Say how many of the claims that were stated hold, if any were, and what others measured.

    Example:
        >>> claim("Seven is at most eight", 7, label="seven", at_most=8)
        ✓ Seven is at most eight
          measured 7; claimed at most 8
        >>> tally()
        1 of 1 claims hold.
    """
    broke = [each for each in STATED.values() if not each.held]
    if STATED:
        print(f"{len(STATED) - len(broke)} of {len(STATED)} claims hold.")
    print(*(f"{each}\n" for each in broke), sep="", end="")


def _show(result: Claim) -> None:
    from IPython import get_ipython

    if get_ipython() is None:
        print(result)
        return
    from IPython.display import display

    display(
        {"text/plain": str(result), "text/html": result._repr_html_()},
        metadata={METADATA_KEY: asdict(result)},
        raw=True,
    )


def _form(forms: dict[str, object], label: str, *, tolerances: bool, factor: bool) -> str:
    """The one form that is given, and nothing beside it that belongs to another."""
    given = [name for name, value in forms.items() if value is not None]
    if len(given) != 1:
        raise TypeError(
            f"a claim has exactly one of {', '.join(forms)}; got {', '.join(given) or 'none'}"
        )
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", label):
        raise ValueError(f"a label is lower-case letters, digits and hyphens, got {label!r}")
    if tolerances and given != ["close_to"]:
        raise TypeError(f"rtol and atol go with close_to, got them with {given[0]}")
    if factor and given != ["exceeds"]:
        raise TypeError(f"factor goes with exceeds, got it with {given[0]}")
    return given[0]


@dataclass(frozen=True)
class Outcome:
    """What a comparison found, in words and in numbers."""

    held: bool
    """But for the standard error."""
    measured: str
    expected: str
    numbers: Sequence[float]
    samples: int = 1
    errors: Sequence[float] = ()
    lead: float = 0.0
    """By how much it holds."""
    error: float = 0.0
    """The standard error of that."""

    def of(self, statement: str, label: str, form: str, text: str | None) -> Claim:
        """The claim of which this came."""
        random = bool(self.errors) and math.isfinite(self.lead)
        return Claim(
            statement=statement,
            label=label,
            form=form,
            measured=self.measured,
            expected=self.expected,
            held=bool(self.held) and self.lead >= margin() * self.error,
            samples=self.samples,
            numbers=_finite(self.numbers),
            errors=_finite(self.errors),
            room=round(self.lead / self.error, 1) if random else None,
            lead=float(f"{self.lead:.4g}") if random else None,
            text=text,
        )


def _equals(measured: object, target: object, unit: str) -> Outcome:
    if isinstance(measured, Tensor) and isinstance(target, Tensor):
        if measured.shape != target.shape or measured.dtype != target.dtype:
            kinds = [f"{t.dtype} of shape {tuple(t.shape)}" for t in (measured, target)]
            raise TypeError(f"tensors can't be equal: {kinds[0]} and {kinds[1]}")
        _check_not_empty(measured)
        differ = int((measured != target).sum())
        shown = f"all {target.numel()} entries equal" if not differ else f"{differ} entries differ"
        return Outcome(not differ, shown, "equal in every bit", [])
    if isinstance(measured, Tensor) or isinstance(target, Tensor):
        raise TypeError(f"equals compares like with like, got {type(measured)} and {type(target)}")
    if isinstance(measured, (list, tuple)):
        raise TypeError(
            "equals takes one value and not samples: samples are close_to, or at_most …"
        )
    numbers = [float(x) for x in (measured, target) if isinstance(x, (int, float))]
    shown, expected = (_value(x, unit) for x in (measured, target))
    return Outcome(measured == target, shown, f"exactly {expected}", numbers)


def _close_to(measured: object, target: object, rtol: float, atol: float, unit: str) -> Outcome:
    if isinstance(measured, Tensor) and (measured.ndim or isinstance(target, Tensor)):
        return _close_to_tensor(measured, target, rtol, atol)
    goal = _one_number("close_to", measured, target)
    mean, error, n = _moments(measured, "measured")
    tolerance = atol + rtol * abs(goal)
    return Outcome(
        math.isfinite(tolerance) and math.isfinite(mean),
        _number(mean, error, unit),
        _number(goal, 0, unit) + _tolerance(rtol, atol, unit),
        [mean, goal, *(x for x in (100 * rtol, atol) if x)],
        n,
        _errors(mean, error),
        tolerance - abs(mean - goal),
        error,
    )


def _close_to_tensor(measured: Tensor, target: object, rtol: float, atol: float) -> Outcome:
    dtype = torch.promote_types(measured.dtype, torch.float64)  # whole numbers would cut digits
    measured, goal = measured.to(dtype), torch.as_tensor(target, dtype=dtype)
    if measured.shape != goal.shape:
        raise TypeError(
            f"tensors of shapes {tuple(measured.shape)} and {tuple(goal.shape)} can't be close"
        )
    _check_not_empty(measured)
    tolerance = atol + rtol * goal.abs().max().item()
    difference = (measured - goal).abs()
    held = math.isfinite(tolerance) and bool((difference <= atol + rtol * goal.abs()).all())
    shown = (
        f"all {measured.numel()} entries within {tolerance:g}"
        if held
        else f"a largest difference of {difference.max().item():.2e}"
    )
    return Outcome(held, shown, f"equal within {tolerance:g}", [])


def _at_most(measured: object, target: object, unit: str) -> Outcome:
    bound = _one_number("at_most", measured, target)
    mean, error, n = _moments(measured, "measured")
    shown, limit = _number(mean, error, unit), _bound(bound, unit)
    if 0 < abs(bound) < SMALLEST_SHOWN and mean and math.isfinite(bound - mean):
        shown = f"below {limit}"
    held, errors = math.isfinite(bound - mean), _errors(mean, error)
    return Outcome(held, shown, f"at most {limit}", [mean, bound], n, errors, bound - mean, error)


def _at_least(measured: object, target: object, unit: str) -> Outcome:
    bound = _one_number("at_least", measured, target)
    mean, error, n = _moments(measured, "measured")
    shown, expected = _number(mean, error, unit), f"at least {_bound(bound, unit)}"
    held, errors = math.isfinite(mean - bound), _errors(mean, error)
    return Outcome(held, shown, expected, [mean, bound], n, errors, mean - bound, error)


def _exceeds(measured: object, target: object, factor: float, unit: str) -> Outcome:
    _check_no_tensors("exceeds", measured, target)
    mean, error, n = _moments(measured, "measured")
    base, base_error, base_n = _moments(target, "exceeds")
    if factor != 1 and base < 0:
        raise ValueError(f"at least {factor:g} times as much as {base:g} means nothing")
    lead = mean - factor * base
    shown, errors, numbers = _number(mean, error, unit), _errors(mean, error), [mean, base]
    expected = "more" if factor == 1 else f"at least {factor:g} times as much"
    if base == 0 == base_error and factor == 1:
        expected = f"more than {_number(0, 0, unit)}"
    else:
        shown += f" against {_number(base, base_error, unit)}"
        errors += _errors(base, base_error)
        if base >= 0:
            ratio = mean / base if base else math.inf
            shown += f", {_number(ratio, 0, '')} times as much"
            numbers.append(ratio)
    return Outcome(
        math.isfinite(lead) and (lead >= 0 if factor != 1 else lead > 0),
        shown,
        expected,
        [*numbers, factor] if factor != 1 else numbers,
        min((count for count in (n, base_n) if count > 1), default=1),
        errors,
        lead,
        math.hypot(error, factor * base_error),
    )


def _one_number(form: str, measured: object, target: Any) -> float:
    """A form's bound."""
    _check_no_tensors(form, measured, target)
    return float(target)


def _check_no_tensors(form: str, measured: object, target: object) -> None:
    if (isinstance(measured, Tensor) and measured.ndim) or isinstance(target, Tensor):
        raise TypeError(f"{form} takes numbers, got tensors: claim something about one number")


def _check_not_empty(measured: Tensor) -> None:
    if not measured.numel():
        raise ValueError("measured is an empty tensor")


def _bound(bound: float, unit: str) -> str:
    """As it is, however small."""
    tiny = 0 < abs(bound) < SMALLEST_SHOWN
    return f"{bound:g} {unit}".rstrip() if tiny else _number(bound, 0, unit)


def _value(x: object, unit: str) -> str:
    number = isinstance(x, (int, float)) and not isinstance(x, bool)
    return _number(float(x), 0, unit) if number else str(x)  # type: ignore[arg-type]


def _moments(samples: object, name: str) -> tuple[float, float, int]:
    """Mean, standard error of the mean, and number of samples."""
    try:
        values = np.asarray(samples)
    except ValueError:
        raise TypeError(f"{name} must be a number or samples, got {samples!r}") from None
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a number or samples, got {samples!r}")
    values = values.astype(np.float64)
    if values.ndim > 1:
        raise TypeError(f"{name} must be a number or samples, got shape {values.shape}")
    if values.size == 0:
        raise ValueError(f"{name} holds no samples")
    if values.ndim == 0 or values.size == 1:
        return values.item(), 0.0, 1
    return values.mean().item(), (values.std(ddof=1) / math.sqrt(values.size)).item(), values.size


def _tolerance(rtol: float, atol: float, unit: str) -> str:
    parts = []
    if rtol:
        parts.append(f"{100 * rtol:g} %" if rtol >= 1e-4 else f"{rtol:.0e} of it")
    if atol:  # of a share, in points: "5 %" of it is a relative tolerance
        parts.append(f"{atol:g} {'points' if unit == '%' else unit}".rstrip())
    return f" within {' + '.join(parts)}" if parts else ""


def _finite(numbers: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{x:.10g}") for x in numbers if math.isfinite(x))


def _errors(mean: float, error: float) -> list[float]:
    """The error, if it is shown: one that is only rounding is not."""
    return [] if error < SMALLEST_SHOWN * max(1.0, abs(mean)) else [error]


def _number(mean: float, error: float, unit: str) -> str:
    """A few digits: as many as the standard error allows, three without one."""
    behind = f" {unit}" if unit else ""
    if not math.isfinite(mean):
        return f"{mean}{behind}"
    if not _errors(mean, error):
        if 0 < abs(mean) < SMALLEST_SHOWN:
            return f"below {SMALLEST_SHOWN:.0e}{behind}"
        whole = round(mean)
        if math.isclose(mean, whole, rel_tol=SMALLEST_SHOWN) and abs(whole) < 1e15:
            return f"{whole if abs(whole) < 1e6 else f'{whole:,}'}{behind}"
        return f"{float(f'{mean:.3g}'):,.10g}{behind}"
    decimals = max(0, -math.floor(math.log10(error)))
    most = max(0, 3 - math.floor(math.log10(abs(mean)))) if mean else decimals
    decimals = min(decimals, most)
    shown = f"{error:.{decimals}f}"
    if not float(shown):
        shown = f"<{10**-decimals:g}"
    return f"{mean:.{decimals}f} ± {shown}{behind}"
