"""What a diagnosis found, as data, as text and as HTML."""

import html
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

Level = Literal["error", "warning", "note"]
ROWS = {"done": "tried", "found": "found", "right": "expected", "remedy": "remedy"}
WIDTH = 100
RENAMED = {
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
        lines = [f"{self.level.upper()}: {self.cause}"]
        lines += [_wrapped(f"  {name:<10}", str(getattr(self, key))) for key, name in ROWS.items()]
        if self.also:
            lines.append(_wrapped("  also      ", _also(self)))
        return "\n".join(lines)


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

    Example:
        >>> report = Report("x → vectors", passed=("batch", "future"))
        >>> assert report.healthy, report
        >>> print(report)
        healthy: 0 errors, 0 warnings (x → vectors)
        held: batch, future
    """

    subject: str
    findings: tuple[Finding, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    passed: tuple[str, ...] = ()
    untested: tuple[str, ...] = ()
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
        """True if there is no error and each claim was tested, for ``assert report.healthy``."""
        return not self.errors and not self.untested

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of the errors."""
        return tuple(finding.cause for finding in self.errors)

    @property
    def raised(self) -> tuple[NotJudged, ...]:
        """The checks that raised, the module does not do what is claimed, or can't be examined."""
        return tuple(x for x in self.not_judged if x.raised)

    def __str__(self) -> str:
        """All of it, the errors first."""
        parts = [self._title(), *map(str, (*self.errors, *self.warnings, *self.notes))]
        if self.passed:
            parts.append(_wrapped("held: ", ", ".join(self.passed)))
        if self.not_judged:
            parts.append(
                "not judged:\n" + "\n".join(_wrapped("  ", str(x)) for x in self._missing())
            )
        return "\n".join(parts)

    __repr__ = __str__

    def _title(self) -> str:
        if any(x.check == "the call" for x in self.findings):
            return "NOT healthy: the example can't be called"
        state = "healthy" if self.healthy else "NOT healthy"
        count = f"{_number(self.errors, 'error')}, {_number(self.warnings, 'warning')}"
        if self.untested:
            count += f", claimed and not tested: {', '.join(self.untested)}"
        if self.raised:
            count += f", {_number(self.raised, 'check')} raised"
        return f"{state}: {count} ({self.subject})"

    def _missing(self) -> list[NotJudged]:
        return sorted(self.not_judged, key=lambda x: not x.raised)  # those that raised first

    def _repr_html_(self) -> str:
        """For notebooks: a line for each finding, which opens."""
        rows = "".join(_row(x) for x in (*self.errors, *self.warnings, *self.notes))
        held = _folded("Held", self.passed) + _folded("Not judged", map(str, self._missing()))
        return f"<div><p><strong>{html.escape(self._title())}</strong></p>{rows}{held}</div>"

    def _of(self, level: Level) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == level)


def one_cause(findings: Iterable[Finding], explains: dict[str, tuple[str, ...]]) -> list[Finding]:
    """Findings without those that another one's cause explains, which it names instead.

    Args:
        findings: in any order.
        explains: for a cause, the checks that fail because of it; ``"*"`` for all.
    """
    kept: list[Finding] = []
    rest = list(dict.fromkeys(findings))
    known = {check for x in rest if x.level == "error" for check in explains.get(x.cause, ())}
    # The cause that explains most comes first, but for what another one explains by name.
    rest.sort(
        key=lambda x: (
            x.level,
            "*" not in explains.get(x.cause, ()) or x.check in known,
            -len(explains.get(x.cause, ())),
        )
    )
    while rest:
        first, *others = rest
        ours = (*explains.get(first.cause, ()), first.check)
        same = [x for x in others if x.cause == first.cause]
        same += [x for x in others if first.level == "error" and (x.check in ours or "*" in ours)]
        also = tuple(dict.fromkeys(x.check for x in same if x.check != first.check))
        kept.append(replace(first, also=(*first.also, *also)))
        rest = [x for x in others if x not in same]
    return kept


def _number(things: tuple[object, ...], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _also(finding: Finding) -> str:
    many = len(finding.also) > 1
    return f"{', '.join(finding.also)} fail{'s' * (not many)} for this reason, too"


def _wrapped(start: str, text: str) -> str:
    """Text in lines that begin below each other."""
    lines = textwrap.wrap(text, WIDTH - len(start), break_on_hyphens=False) or [""]
    return start + ("\n" + " " * len(start)).join(lines)


def _row(finding: Finding) -> str:
    rows = [(name, str(getattr(finding, key))) for key, name in ROWS.items()]
    if finding.also:
        rows.append(("also", _also(finding)))
    cells = "".join(
        f'<tr><th style="text-align:left">{name}</th>'
        f'<td style="text-align:left">{html.escape(text)}</td></tr>'
        for name, text in rows
    )
    title = html.escape(f"{finding.level.capitalize()}: {finding.cause}")
    opened = " open" if finding.level == "error" else ""
    return (
        f"<details{opened}><summary><strong>{title}</strong></summary>"
        f"<table>{cells}</table></details>"
    )


def _folded(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(x)}</li>" for x in lines)
    return f"<details><summary>{title}</summary><ul>{items}</ul></details>" if items else ""
