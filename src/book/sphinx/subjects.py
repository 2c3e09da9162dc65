"""What the book knows about …: of each subject all claims, and results that part."""

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from book.evidence.subjects import SUBJECTS, Parting, Subject, read_subjects
from book.sphinx.evidence import KNOWN, Claim, depends_on_claims, numbers_of, setting_of
from book.sphinx.ledger import chapter_name
from book.sphinx.pages import raw

LOOKED_AT = (
    *("norm", "start", "blocks", "width", "task", "rate", "warm-up", "steps"),
    *("positions", "tied", "optimizer", "heads"),
)
NAMED = 3
"""Subjects to which a place leads."""
SYMPTOMS = "not_learning"
COUNTED = ("blocks", "width", "heads", "rate", "warm-up", "steps")
AT_MOST = 5
"""Columns of a table for settings: the first of these in which a subject's claims differ."""
COUNTS = ("runs", "models")  # of so many or of more
PAIRS = 3
"""Of a subject that one sees at once."""
COMPARABLE = 3
"""Numbers of one unit that are drawn on one axis."""

Axes = dict[str, tuple[float, float]]
"""Unit -> the least and the largest number measured in it."""


class KnownSubjects(SphinxDirective):
    """``{known-subjects}``: a section for each subject, with its claims folded."""

    def run(self) -> list[nodes.Node]:
        """Make the list of subjects, and their sections."""
        depends_on_claims(self.env)
        self.env.note_dependency(str(SUBJECTS))
        self.claims: dict[str, tuple[str, Claim]] = self.env.attnbook_claims  # type: ignore[attr-defined]
        documents = {docname for docname, _ in self.claims.values()}
        self.names = {each: chapter_name(self.env, each).partition(".")[0] for each in documents}
        subjects = read_subjects(Path(self.env.srcdir), self.claims)
        items, sections = "", []
        for subject in subjects.by_name.values():
            partings = [each for each in subjects.partings if {*each.labels} & {*subject.labels}]
            count = f"{len(subject.labels)}{f' · ⇆ {len(partings)}' if partings else ''}"
            title = html.escape(subject.title)
            items += f'<li><a href="#{subject.name}">{title}</a> <span>{count}</span></li>'
            sections.append(self._section(subject, partings))
        return [raw(f'<ul class="subjects">{items}</ul>'), *sections]

    def _section(self, subject: Subject, partings: list[Parting]) -> nodes.section:
        # No raw text: for the search.
        also = f" Also: {subject.words}." if subject.words else ""
        says = nodes.paragraph("", f"{subject.says}{also}", classes=["asked"])
        parts = [self._parting(each) for each in partings]
        claims = [self.claims[label] for label in subject.labels]
        columns = columns_of([claim for _, claim in claims])
        axes = axes_of([claim for _, claim in claims])
        rows = "".join(self._row(*each, columns, axes) for each in claims)
        names = ["Claim", "Measured", *columns]
        head = "".join(f'<th scope="col">{name.capitalize()}</th>' for name in names)
        table = (
            f'<div class="scrolled"><table class="table known"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
        n = len(subject.labels)
        shown = (
            _pairs(parts[:PAIRS])
            + _folded(f"{len(parts) - PAIRS} more ⇆", _pairs(parts[PAIRS:]))
            + _folded(f"{n} claim{'s' * (n > 1)}", table)
        )
        title = nodes.title("", subject.title)
        answer = self.parse_text_to_nodes(subject.answer)
        return nodes.section("", title, *answer, says, raw(shown), ids=[subject.name])

    def _parting(self, parting: Parting) -> str:
        named = {label: self.claims[label][1]["statement"] for label in parting.shows}
        named = dict(zip(parting.labels, ("one", "the other"), strict=True)) | named
        links = "; ".join(self._link(*self.claims[label], words) for label, words in named.items())
        words = f"{html.escape(parting.differ)} <em>{html.escape(parting.why)}</em>"
        one, other = (setting_of(self.claims[label][1]) for label in parting.labels)
        differ = [
            f"{field} " * (field in COUNTED)
            + f"{html.escape(one.of(field))} / {html.escape(other.of(field))}"
            for field in one.apart(other)
            if field in LOOKED_AT and "–" not in (one.of(field), other.of(field))
        ]
        settings = f"<br><small>Settings: {' · '.join(differ)}</small>" if differ else ""
        return f"<li>⇆ {words} ({links}){settings}</li>"

    def _row(self, docname: str, claim: Claim, columns: list[str], axes: Axes) -> str:
        measured = setting_of(claim)
        cells = [
            f"{self._link(docname, claim, claim['statement'])} "
            f"<small>{html.escape(self.names[docname])}</small>",
            f"{html.escape(numbers_of(claim))} {dot(claim, axes)}",
        ]
        if measured.same or measured.varied:
            cells += [html.escape(measured.of(field)) for field in columns]
            inside = "".join(f"<td>{cell}</td>" for cell in cells)
        else:
            inside = "".join(f"<td>{cell}</td>" for cell in cells)
            if columns:
                kind = html.escape(measured.line())
                inside += f'<td colspan="{len(columns)}"><small>{kind}</small></td>'
        return f"<tr>{inside}</tr>"

    def _link(self, docname: str, claim: Claim, words: str) -> str:
        page = self.env.app.builder.get_relative_uri(self.env.docname, docname)
        return f'<a href="{page}#claim-{claim["label"]}">{html.escape(words)}</a>'


def _pairs(parts: Sequence[str]) -> str:
    return f'<ul class="partings">{"".join(parts)}</ul>' if parts else ""


def _folded(summary: str, content: str) -> str:
    return (
        f'<details class="fold"><summary>{summary}</summary>{content}</details>' if content else ""
    )


def columns_of(claims: Sequence[Claim]) -> list[str]:
    """The settings in which these claims differ, what tells most first."""
    found = [each for claim in claims if (each := setting_of(claim)).same or each.varied]
    differ = [field for field in LOOKED_AT if len({each.of(field) for each in found}) > 1]
    return differ[:AT_MOST]


def unit_of(claim: Claim) -> str:
    """What stands behind a measured number; nothing, where there is none."""
    found = re.match(r"-?[\d.,]+(?: ± [<\d.]+)? ([^\d,(]+?)(?: against .*)?$", claim["measured"])
    return found[1] if found and claim["numbers"] and found[1] not in COUNTS else ""


def axes_of(claims: Sequence[Claim]) -> Axes:
    """An axis for each unit in which enough was measured to be compared."""
    by_unit: dict[str, list[float]] = {}
    for claim in claims:
        by_unit.setdefault(unit_of(claim), []).append(float((claim["numbers"] or [0])[0]))
    return {
        unit: (min(values), max(values))
        for unit, values in by_unit.items()
        if unit and len(values) >= COMPARABLE and min(values) < max(values)
    }


def dot(claim: Claim, axes: Axes) -> str:
    """Where the measured number stands among those of its unit."""
    if (unit := unit_of(claim)) not in axes:
        return ""
    low, high = axes[unit]
    x = 6 + 84 * (claim["numbers"][0] - low) / (high - low)
    return (
        '<svg class="among" viewBox="0 0 96 14" width="96" height="14" aria-hidden="true">'
        f'<path d="M2 7H94"/><circle cx="{x:.1f}" cy="7" r="4"/></svg>'
    )


def subjects_of(env: BuildEnvironment, labels: Iterable[str], docname: str) -> dict[str, str]:
    """Address -> title of the subjects that most of these claims are about."""
    known: dict[str, tuple[str, Claim]] = env.attnbook_claims  # type: ignore[attr-defined]
    found = (known[label][1]["subjects"].items() for label in labels if label in known)
    counts = Counter(each for subjects in found for each in subjects)
    uri = env.app.builder.get_relative_uri(docname, KNOWN)
    return {f"{uri}#{name}": title for (name, title), _ in counts.most_common(NAMED)}


def known_about(env: BuildEnvironment, labels: Iterable[str], docname: str) -> nodes.paragraph:
    """A line with links to the subjects of these claims; empty, if there is none."""
    line = nodes.paragraph(classes=["known-about"])
    for uri, title in subjects_of(env, labels, docname).items():
        line += nodes.Text(", " if line.children else "What the book knows about: ")
        line += nodes.reference("", title, internal=True, refuri=uri)
    return line


def add_to_symptoms(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Below each symptom of the page that is looked up, what its claims are about."""
    if Path(docname).name != SYMPTOMS:
        return
    for section in doctree.findall(nodes.section):
        if any(name.startswith("s-") for name in section["names"] + section["ids"]):
            links = section.findall(nodes.reference)
            labels = [link["attnbook_claim"] for link in links if "attnbook_claim" in link]
            if line := known_about(app.env, labels, docname).children:
                section += nodes.paragraph("", "", *line, classes=["known-about"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the page's directive; lead to it from symptoms."""
    app.add_directive("known-subjects", KnownSubjects)
    app.connect("doctree-resolved", add_to_symptoms, priority=300)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
