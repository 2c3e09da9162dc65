"""What a diagnosis found, as data, as text and as HTML."""

import html
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found, with one cause and one remedy.

    Args:
        level: ``"error"``: a right module can't do this. ``"warning"``: odd, and right in some
            designs. ``"note"``: good to know.
        check: the check that found it, for instance ``"future"``.
        cause: its likely cause in a few words, from :data:`attnbook.doctor.causes.CAUSES`.
        done: what was done to the module.
        found: what came out.
        right: what a right module gives.
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
        """Five lines."""
        lines = [
            f"{self.level.upper()}  {self.cause}",
            f"  done    {self.done}",
            f"  found   {self.found}",
            f"  right   {self.right}",
            f"  remedy  {self.remedy}",
        ]
        if self.also:
            lines.append(f"  explains  {', '.join(self.also)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class NotJudged:
    """A check that could not be made, and what would let it be made.

    Example:
        >>> print(NotJudged("future", "nobody said that it is causal", "causal=True"))
        future: nobody said that it is causal (claim causal=True)
    """

    check: str
    why: str
    claim: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"{self.check}: {self.why}" + (f" (claim {self.claim})" if self.claim else "")


@dataclass(frozen=True)
class Report:
    """Findings, what was not judged, and what held.

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
    seconds: float = field(default=0.0, compare=False)

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
        """No error: ``assert diagnose(module, x).healthy``."""
        return not self.errors

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of the errors."""
        return tuple(finding.cause for finding in self.errors)

    def __str__(self) -> str:
        """All of it, the errors first."""
        state = "healthy" if self.healthy else "NOT healthy"
        count = f"{_number(self.errors, 'error')}, {_number(self.warnings, 'warning')}"
        parts = [f"{state}: {count} ({self.subject})"]
        parts += [str(x) for x in (*self.errors, *self.warnings, *self.notes)]
        if self.passed:
            parts.append(f"held: {', '.join(self.passed)}")
        if self.not_judged:
            parts.append("not judged:\n" + "\n".join(f"  {x}" for x in self.not_judged))
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: a line for each finding, which opens."""
        state = "healthy" if self.healthy else "not healthy"
        count = f"{_number(self.errors, 'error')}, {_number(self.warnings, 'warning')}"
        rows = "".join(_row(x) for x in (*self.errors, *self.warnings, *self.notes))
        held = f"<p>Held: {html.escape(', '.join(self.passed))}.</p>" if self.passed else ""
        items = "".join(f"<li>{html.escape(str(x))}</li>" for x in self.not_judged)
        rest = f"<details><summary>Not judged</summary><ul>{items}</ul></details>" if items else ""
        title = f"<p><strong>{state}</strong>: {count} ({html.escape(self.subject)})</p>"
        return f'<div class="doctor">{title}{rows}{held}{rest}</div>'

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
    # The cause that explains most comes first.
    rest.sort(
        key=lambda x: (
            x.level,
            "*" not in explains.get(x.cause, ()),
            -len(explains.get(x.cause, ())),
        )
    )
    while rest:
        first, *others = rest
        ours = (*explains.get(first.cause, ()), first.check)
        same = [x for x in others if first.level == "error" and (x.check in ours or "*" in ours)]
        also = tuple(dict.fromkeys(x.check for x in same if x.check != first.check))
        kept.append(replace(first, also=(*first.also, *also)))
        rest = [x for x in others if x not in same]
    return kept


def _number(things: tuple[Finding, ...], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _row(finding: Finding) -> str:
    names = ("done", "found", "right", "remedy")
    cells = "".join(
        f"<tr><th>{name}</th><td>{html.escape(str(getattr(finding, name)))}</td></tr>"
        for name in names
    )
    title = f"<strong>{finding.level}</strong> {html.escape(finding.cause)}"
    opened = " open" if finding.level == "error" else ""
    return f"<details{opened}><summary>{title}</summary><table>{cells}</table></details>"
