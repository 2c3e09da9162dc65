"""What a diagnosis found, as data, as text and as HTML."""

import html
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

Level = Literal["error", "warning", "note"]
ROWS = {"done": "tried", "found": "found", "right": "expected", "remedy": "remedy"}
WIDTH = 100
FEW = 3
"""More checks than these that raise, and too little was looked at."""
RENAMED = {
    "attention over the batch": "batch and tokens exchanged",
    "no way around the attention": "missing residual connection",
    "no way around a layer": "missing residual connection",
    "a sum with an older x": "residual adds a stale input",
    "padding is pooled": "pooling includes padding",
    "mask of wrong polarity": "inverted mask",
    "empty rows are NaN": "fully masked rows give NaN",
    "positions without effect": "positions have no effect",
    "heads all alike": "identical heads",
    "targets left out": "real targets are ignored",
    "convolution into the future": "non-causal convolution",
    "input without effect": "input has no effect",
    "tokens mixed elsewhere": "tokens mix outside the attention",
    "parameter without gradient": "parameter gets no gradient",
}
"""Former names of causes, which ``Report.has`` still takes."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found, with one cause and one remedy.

    Args:
        level: ``"error"``: a right module can't do this. ``"warning"``: odd, and right in some
            designs. ``"note"``: good to know.
        check: the check that found it, for instance ``"future"``.
        cause: its likely cause in a few words, one of ``attnbook.doctor.causes.CAUSES``.
        done: what was done to the module; printed as ``tried``.
        found: what came out.
        right: what a right module gives; printed as ``expected``.
        remedy: the line to write.
        also: what else this cause explains: other checks that failed.
    """

    level: Level
    check: str
    cause: str
    done: str
    found: str
    right: str
    remedy: str
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Its cause, and a line for each of what was tried, found, expected, and what to write."""
        lines = [_wrapped(f"  {name:<10}", text) for name, text in self.rows()]
        return "\n".join([f"{self.level.upper()}: {self.cause}", *lines])

    def rows(self) -> Iterator[tuple[str, str]]:
        """The lines of the report on it, each with its name."""
        for key, name in ROWS.items():
            yield name, str(getattr(self, key))
        if self.also:
            fail = "fail" if len(self.also) > 1 else "fails"
            yield "also", f"{', '.join(self.also)} {fail} for this reason, too"


@dataclass(frozen=True)
class NotJudged:
    """A check that could not be made, and what would let it be made.

    Example:
        >>> print(NotJudged("future", "not claimed", "causal=True"))
        future: not claimed (claim causal=True)
    """

    check: str
    why: str
    claim: str = ""
    raised: bool = False

    def __str__(self) -> str:
        """One line."""
        return f"{self.check}: {self.why}" + (f" (claim {self.claim})" if self.claim else "")


@dataclass(frozen=True)
class Report:
    """Findings, what was not judged, what held, and the claims that could not be tested.

    Args:
        seen: an attention was observed, not only inputs and outputs.

    Example:
        >>> report = Report("x → vectors", passed=("batch", "future"))
        >>> assert report  # in a test
        >>> print(report)
        healthy: 0 errors, 0 warnings (x → vectors)
        held: batch, future
    """

    subject: str
    findings: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    passed: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
    seen: bool = True
    seconds: float = field(default=0.0, compare=False)

    def has(self, cause: str) -> bool:
        """True if an error has this cause, by its name or by one that it had before.

        Example:
            >>> Report("x → vectors").has("inverted mask")
            False
        """
        return RENAMED.get(cause, cause) in self.causes

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What a right module can't do."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is odd, and right in some designs."""
        return self._of("warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is good to know."""
        return self._of("note")

    @property
    def healthy(self) -> bool:
        """True if an attention was looked at, nothing is wrong, and each claim was tested."""
        return self.seen and self._is_clean

    @property
    def _is_clean(self) -> bool:
        """True if there is no error, each claim was tested, and few checks raised."""
        return not (self.errors or self.untested or len(self.raised) > FEW)

    def __bool__(self) -> bool:
        """For tests, as ``assert diagnose(...)``: true, or it raises, so that the report is shown.

        Raises:
            AssertionError: if there is an error, a claim that was not tested, or more than a few
                checks raised. ``report.healthy`` is for an ``if``.
        """
        __tracebackhide__ = True  # for pytest
        if not self._is_clean:
            said = self.errors or self._missing()
            raise AssertionError("\n".join(map(str, (self._title(), *said))))
        return True

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of the errors."""
        return tuple(finding.cause for finding in self.errors)

    @property
    def raised(self) -> tuple[NotJudged, ...]:
        """Checks that raised, as the module contradicts a claim or can't be examined."""
        return tuple(x for x in self.not_judged if x.raised)

    def __str__(self) -> str:
        """All of it, the errors first."""
        parts = [self._title(), *map(str, (*self.errors, *self.warnings, *self.notes))]
        if self.passed:
            parts.append(_wrapped("held: ", ", ".join(self.passed)))
        if self.not_judged:
            parts += ["not judged:", *(_wrapped("  ", str(x)) for x in self._missing())]
        return "\n".join(parts)

    __repr__ = __str__

    def _title(self) -> str:
        """The first line: the verdict, and what it is of."""
        if any(x.check == "the call" for x in self.findings):
            return "NOT healthy: the example can't be called"
        state = "NOT healthy" if not self._is_clean else "healthy" if self.seen else "no error seen"
        count = f"{_number(self.errors, 'error')}, {_number(self.warnings, 'warning')}"
        if self.untested:
            count += f", claimed and not tested: {', '.join(self.untested)}"
        if self.raised:
            count += f", {_number(self.raised, 'check')} raised"
        return f"{state}: {count} ({self.subject})"

    def _missing(self) -> list[NotJudged]:
        """What was not judged, those that raised first."""
        return sorted(self.not_judged, key=lambda x: not x.raised)

    def _repr_html_(self) -> str:
        """For notebooks: a line for each finding, which opens."""
        findings = "".join(map(_opening, (*self.errors, *self.warnings, *self.notes)))
        held = _folded("Held", self.passed) + _folded("Not judged", map(str, self._missing()))
        return f"<div><p><strong>{html.escape(self._title())}</strong></p>{findings}{held}</div>"

    def _of(self, level: Level) -> tuple[Finding, ...]:
        """The findings of a level."""
        return tuple(finding for finding in self.findings if finding.level == level)


def one_cause(findings: Iterable[Finding], explains: dict[str, tuple[str, ...]]) -> list[Finding]:
    """Findings without those that another one's cause explains, which it names instead.

    Args:
        findings: in any order.
        explains: for a cause, or for a check that fails, the checks that fail because of it;
            ``"*"`` for all.
    """
    rest = list(dict.fromkeys(findings))
    known = {check for x in rest if x.level == "error" for check in explains.get(x.cause, ())}

    def rank(x: Finding) -> tuple[str, bool, int]:
        """The cause that explains most comes first, but for what another one explains by name."""
        explained = explains.get(x.cause, ())
        follow = explains.get(x.check, ()) if x.level == "error" else ()
        return x.level, "*" not in explained or x.check in known, -len((*explained, *follow))

    rest.sort(key=rank)
    kept: list[Finding] = []
    while rest:
        first, *others = rest
        ours = [*explains.get(first.cause, ()), first.check] * (first.level == "error")
        failed = [x.check for x in rest if x.level == "error" and x.check in ours]
        ours += [check for name in failed for check in explains.get(name, ())]
        same = [x for x in others if x.cause == first.cause or x.check in ours or "*" in ours]
        same.sort(key=lambda x: x.cause != first.cause)  # by itself, then what it explains
        also = dict.fromkeys(x.check for x in same if x.check != first.check)
        kept.append(replace(first, also=(*first.also, *also)))
        rest = [x for x in others if x not in same]
    return kept


def _number(things: tuple[object, ...], name: str) -> str:
    """How many there are, for a sentence."""
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _wrapped(start: str, text: str) -> str:
    """Text in lines that begin below each other."""
    lines = textwrap.wrap(text, WIDTH - len(start), break_on_hyphens=False) or [""]
    return start + ("\n" + " " * len(start)).join(lines)


def _opening(finding: Finding) -> str:
    """A finding in HTML: its cause, which opens to the rest."""
    cell = '<t{0} style="text-align:left">{1}</t{0}>'.format
    rows = "".join(
        f"<tr>{cell('h', name)}{cell('d', html.escape(text))}</tr>" for name, text in finding.rows()
    )
    title = html.escape(f"{finding.level.capitalize()}: {finding.cause}")
    summary = f"<summary><strong>{title}</strong></summary>"
    opened = " open" if finding.level == "error" else ""
    return f"<details{opened}>{summary}<table>{rows}</table></details>"


def _folded(title: str, lines: Iterable[str]) -> str:
    """Lines in HTML below a title that opens; nothing if there are none."""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<details><summary>{title}</summary><ul>{items}</ul></details>" if items else ""
