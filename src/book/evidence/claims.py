"""Claims: sentences of the book that are measured, shown and collected.

A claim that does not hold raises, and with it the chapter and the build fail. A claim that holds
is shown as one line and carries its numbers in the output's metadata, from which the ledger page
is written.
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

# A mean of random samples has to clear its bound by this many standard errors,
MARGIN = 3.0
# and by twice as many where it is recorded, so that the next sample clears it, too.
RECORDED_MARGIN = 6.0
# Rounding errors differ between processors: what is smaller is shown as "below 1e-9".
SMALLEST_SHOWN = 1e-9
METADATA_KEY = "attnbook_claim"

Samples = float | Sequence[float]


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
            f'<span class="claim-statement">{html.escape(self.statement)}</span> '
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
        ClaimFailedError: if the claim does not hold; with statement, measured and expected.
        TypeError: if not exactly one form is given, or the values do not go with it.
        ValueError: if there are no samples or the label is not made of letters, digits and hyphens.

    Example:
        >>> claim("Seven is at most eight", 7, label="seven", at_most=8)
        ✓ Seven is at most eight
          measured 7; claimed at most 8
    """
    result = _check(
        statement,
        measured,
        label=label,
        forms={
            "equals": equals,
            "close_to": close_to,
            "at_most": at_most,
            "at_least": at_least,
            "exceeds": exceeds,
        },
        rtol=rtol,
        atol=atol,
        factor=factor,
        unit=unit,
        text=text,
    )
    _show(result)
    if not result.held:
        raise ClaimFailedError(
            f"{result.statement}\n  measured: {result.measured}"
            f"{f' ({result.samples} samples)' if result.samples > 1 else ''}"
            f"\n  expected: {result.expected}"
        )


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


def _check(
    statement: str,
    measured: Samples | Tensor | str | bool,
    *,
    label: str,
    forms: dict[str, Any],
    rtol: float,
    atol: float,
    factor: float,
    unit: str,
    text: str | None,
) -> Claim:
    given = [name for name, value in forms.items() if value is not None]
    if len(given) != 1:
        raise TypeError(
            f"a claim has exactly one of {', '.join(forms)}; got {', '.join(given) or 'none'}"
        )
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", label):
        raise ValueError(f"a label is lower-case letters, digits and hyphens, got {label!r}")
    (form,) = given
    target = forms[form]
    if (rtol or atol) and form != "close_to":
        raise TypeError(f"rtol and atol go with close_to, got them with {form}")
    if factor != 1.0 and form != "exceeds":
        raise TypeError(f"factor goes with exceeds, got it with {form}")

    def finish(
        held: bool,
        shown: str,
        expected: str,
        n: int,
        *numbers: float,
        errors: Sequence[float] = (),
        lead: float = 0.0,
        error: float = 0.0,
    ) -> Claim:
        """``lead``: by how much it holds; ``error``: the standard error of that."""
        values, spreads = _finite(numbers), _finite(errors)
        held = bool(held) and lead >= margin() * error
        random = bool(errors) and math.isfinite(lead)
        room = round(lead / error, 1) if random else None
        noted = float(f"{lead:.4g}") if random else None
        return Claim(
            statement, label, form, shown, expected, held, n, values, spreads, room, noted, text
        )

    if form == "equals":
        held, shown, expected, numbers = _equal(measured, target, unit)
        return finish(held, shown, expected, 1, *numbers)
    if (isinstance(measured, Tensor) and measured.ndim) or isinstance(target, Tensor):
        if form != "close_to" or not isinstance(measured, Tensor):
            raise TypeError(f"{form} takes numbers, got tensors: claim something about one number")
        dtype = torch.promote_types(measured.dtype, torch.float64)  # whole numbers would cut digits
        measured, target = measured.to(dtype), torch.as_tensor(target, dtype=dtype)
        if measured.shape != target.shape:
            raise TypeError(
                f"tensors of shapes {tuple(measured.shape)} and {tuple(target.shape)} "
                "can't be close"
            )
        if not measured.numel():
            raise ValueError("measured is an empty tensor")
        tolerance = atol + rtol * target.abs().max().item()
        within = (measured - target).abs() <= atol + rtol * target.abs()
        held = math.isfinite(tolerance) and bool(within.all())
        distance = (measured - target).abs().max().item()
        shown = f"all {measured.numel()} entries within {tolerance:g}"
        if not held:
            shown = f"a largest difference of {distance:.2e}"
        return finish(held, shown, f"equal within {tolerance:g}", 1)

    mean, error, n = _moments(measured, "measured")
    shown, errors = _number(mean, error, unit), _errors(mean, error)
    if form == "close_to":
        goal, tolerance = float(target), atol + rtol * abs(float(target))
        held = math.isfinite(tolerance) and math.isfinite(mean)
        lead = tolerance - abs(mean - goal)
        expected = _number(goal, 0, unit) + _tolerance(rtol, atol, unit)
        tolerances = [x for x in (100 * rtol, atol) if x]
        numbers = [mean, goal, *tolerances]
        return finish(held, shown, expected, n, *numbers, errors=errors, lead=lead, error=error)
    if form == "exceeds":
        base, base_error, base_n = _moments(target, "exceeds")
        if factor != 1 and base < 0:
            raise ValueError(f"at least {factor:g} times as much as {base:g} means nothing")
        lead, error = mean - factor * base, math.hypot(error, factor * base_error)
        held = math.isfinite(lead) and (lead >= 0 if factor != 1 else lead > 0)
        numbers = [mean, base]
        expected = "more" if factor == 1 else f"at least {factor:g} times as much"
        if base == 0 == base_error and factor == 1:
            expected = f"more than {_number(0, 0, unit)}"
        else:
            shown += f" against {_number(base, base_error, unit)}"
            errors = [*errors, *_errors(base, base_error)]
            if base >= 0:
                ratio = mean / base if base else math.inf
                shown += f", {_number(ratio, 0, '')} times as much"
                numbers.append(ratio)
        fewest = min((count for count in (n, base_n) if count > 1), default=1)
        numbers += [factor] if factor != 1 else []
        return finish(
            held, shown, expected, fewest, *numbers, errors=errors, lead=lead, error=error
        )
    bound = float(target)
    lead = bound - mean if form == "at_most" else mean - bound
    held = math.isfinite(lead)
    tiny = 0 < abs(bound) < SMALLEST_SHOWN  # a bound is shown as it is, whatever was measured
    limit = f"{bound:g} {unit}".rstrip() if tiny else _number(bound, 0, unit)
    if tiny and held and mean and form == "at_most":
        shown = f"below {limit}"
    words = "at most" if form == "at_most" else "at least"
    expected = f"{words} {limit}"
    return finish(held, shown, expected, n, mean, bound, errors=errors, lead=lead, error=error)


def _equal(measured: object, target: object, unit: str) -> tuple[bool, str, str, list[float]]:
    if isinstance(measured, Tensor) and isinstance(target, Tensor):
        if measured.shape != target.shape or measured.dtype != target.dtype:
            kinds = [f"{t.dtype} of shape {tuple(t.shape)}" for t in (measured, target)]
            raise TypeError(f"tensors can't be equal: {kinds[0]} and {kinds[1]}")
        if not measured.numel():
            raise ValueError("measured is an empty tensor")
        differ = int((measured != target).sum())
        shown = f"all {target.numel()} entries equal" if not differ else f"{differ} entries differ"
        return differ == 0, shown, "equal in every bit", []
    if isinstance(measured, Tensor) or isinstance(target, Tensor):
        raise TypeError(f"equals compares like with like, got {type(measured)} and {type(target)}")
    if isinstance(measured, (list, tuple)):
        raise TypeError(
            "equals takes one value and not samples: samples are close_to, or at_most …"
        )
    numbers = [float(x) for x in (measured, target) if isinstance(x, (int, float))]
    show = [
        _number(float(x), 0, unit)
        if isinstance(x, (int, float)) and not isinstance(x, bool)
        else str(x)
        for x in (measured, target)
    ]
    return measured == target, show[0], f"exactly {show[1]}", numbers


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
