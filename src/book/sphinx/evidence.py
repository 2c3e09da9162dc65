"""How evidence is shown: behind one mark beside a paragraph or figure, with the code it needs.

Notebooks hold claims as boxes, for JupyterLab; on a page they are native ``<details>``, which open
without a script, from disk and in print. ``static/book.js`` adds cards to the links in prose and
the switch over the page that opens everything.
"""

import hashlib
import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from book.evidence.arithmetic import EXECUTED
from book.evidence.cells import FOLDED
from book.evidence.measured import Measured
from book.evidence.records import FOLDER
from book.press.render import CLAIMS
from book.sphinx.pages import raw
from book.sphinx.rests import MARK

logger = logging.getLogger(__name__)

LEDGER, KNOWN = "chapters/claims", "chapters/subjects"
ALSO = 2  # lines of what else was measured on a claim's subjects
CASES = 4  # of a study that are named
SHORT = 16  # a link of fewer characters is a number: it does not break, and says what it is of
# By what they count; "one" and "no" also mean other things.
COUNTS = ["none", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
COUNTS += ["eleven", "twelve"]

Claim = dict[str, Any]


def load_claims(app: Sphinx) -> None:
    """Read what the build command collected: document -> its claims."""
    path = Path(app.srcdir) / CLAIMS
    ledger: dict[str, list[Claim]] = {}
    if path.exists():
        ledger = json.loads(path.read_text(encoding="utf-8"))
    else:
        logger.warning("no %s: build with `make book` or `make html`", CLAIMS)
    by_label: dict[str, tuple[str, Claim]] = {}
    for docname, claims in ledger.items():
        for claim in claims:
            label = claim["label"]
            if label in by_label:
                logger.warning("claim %r is in %s and in %s", label, by_label[label][0], docname)
            by_label[label] = (docname, claim)
    app.env.attnbook_ledger = ledger  # type: ignore[attr-defined]
    app.env.attnbook_claims = by_label  # type: ignore[attr-defined]


def depends_on_claims(env: BuildEnvironment) -> None:
    """Remember that the current page shows claims."""
    pages: set[str] = getattr(env, "attnbook_claim_pages", set())
    env.attnbook_claim_pages = pages | {env.docname}  # type: ignore[attr-defined]


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> Sequence[str]:
    """Pages that show claims are read again when a claim, or what is noted beside them, changed."""
    shown = [Path(app.srcdir) / CLAIMS, Path(app.srcdir) / EXECUTED]
    shown += sorted((Path(app.srcdir) / FOLDER).glob("*.json"))
    now = hashlib.sha256(b"".join(path.read_bytes() for path in shown if path.exists())).hexdigest()
    before = getattr(env, "attnbook_shown", None)
    env.attnbook_shown = now  # type: ignore[attr-defined]
    return [] if now == before else sorted(getattr(env, "attnbook_claim_pages", set()))


def quoted_numbers(text: str) -> list[str]:
    """The numbers in a text, standard errors with their ±."""
    return re.findall(r"(?:± *)?(?<![\w.])-?\d[\d,]*(?:\.\d+)?", text.replace("−", "-"))


def _in_digits(text: str, claim: Claim) -> str:
    """A count in a word, ``six`` of twelve, if the claim counts something."""
    counts = re.fullmatch(r"\d+( \w+)?", claim["measured"])
    return str(COUNTS.index(text)) if counts and text in COUNTS else text


def shows(quoted: str, claim: Claim) -> bool:
    """Is ``quoted`` one of the claim's numbers, or errors, rounded as it is written?

    To zero only what was measured, the first, is rounded: a tolerance of 0.3 is not 0.
    """
    error = quoted.startswith("±")
    plain = quoted.removeprefix("±").strip().replace(",", "")
    numbers = claim["errors" if error else "numbers"]
    decimals = len(plain.partition(".")[2])
    if not float(plain):
        numbers = [x for i, x in enumerate(numbers) if x == 0 or (i == 0 and not error)]
    return any(f"{number:.{decimals}f}" == plain for number in numbers)


class ClaimLinks(SphinxTransform):
    """``[some words 2.77](#claim-label)``: link words to a claim, and check their numbers.

    Every number among the words must be one that the claim shows, rounded as written; in a table,
    the claim must be about what the column, or the row, is about. It is a plain Markdown link, so
    it also reads well where a notebook is opened by itself.
    """

    default_priority = 800  # before MyST looks for the target in the page

    def apply(self, **kwargs: object) -> None:
        """Resolve every link of the page that points to a claim."""
        for link in self.document.findall(nodes.reference):
            if link.get("id_link") and link["refuri"].startswith("#claim-"):
                self.resolve(link, link["refuri"].removeprefix("#claim-"))

    def resolve(self, link: nodes.reference, label: str) -> None:
        """Point ``link`` to the line of the claim."""
        depends_on_claims(self.env)
        docname, claim = self.env.attnbook_claims.get(label, ("", None))  # type: ignore[attr-defined]
        if claim is None:
            logger.warning("no claim is labelled %r", label, location=link)
            return
        # On another text than the committed outputs came from, or under another arithmetic, the
        # prose can't know the numbers.
        text = _in_digits(link.astext(), claim)
        for quoted in [] if claim["elsewhere"] else quoted_numbers(text):
            if not shows(quoted, claim):
                logger.warning(
                    "the prose says %s, claim %r says: measured %s; claimed %s",
                    quoted,
                    label,
                    claim["measured"],
                    claim["expected"],
                    location=link,
                )
        own, others = columns_of(link)
        if not words_of(own) & (words := words_of(claim["statement"])) and words & words_of(others):
            logger.warning(
                "claim %r (%s) stands under %r, and speaks of what stands under %s",
                label,
                claim["statement"],
                own,
                others,
                location=link,
            )
        del link["id_link"]
        if not link.children:
            link += nodes.Text(claim["statement"])
        page = self.env.app.builder.get_relative_uri(self.env.docname, docname)
        link["refuri"] = f"{page}#claim-{label}"
        link["attnbook_claim"] = label


def setting_of(claim: Claim) -> Measured:
    """What a claim was measured on."""
    return Measured(*(claim["setting"][field.name] for field in fields(Measured)))


def also_measured(claim: Claim, claims: dict[str, tuple[str, Claim]]) -> list[str]:
    """Two lines of what else is known of a claim's subjects: what points elsewhere, what is near.

    The nearest is of the same words, and then measured on the most alike.
    """
    lines = [f"⇆ {each['differ']} {each['why']}" for each in claim["differs_from"]]
    known = {claim["label"], *(each["label"] for each in claim["differs_from"])}
    words = words_of(claim["statement"])
    others = [
        other
        for _, other in claims.values()
        if claim["subjects"].keys() & other["subjects"].keys() and other["label"] not in known
    ]
    here = setting_of(claim)
    apart = {other["label"]: here.apart(setting_of(other)) for other in others}
    others.sort(
        key=lambda other: len(apart[other["label"]]) - len(words & words_of(other["statement"]))
    )
    for other in others[: ALSO - len(lines)]:
        says = shorten(_beyond(claim["statement"], other["statement"]), 64, placeholder=" …")
        differ = apart[other["label"]]
        said = f" (other {', '.join(differ)})" if 0 < len(differ) <= ALSO else ""
        lines.append(f"Also measured: {says}: {numbers_of(other)}{said}")
    return lines[:ALSO]


def _beyond(statement: str, other: str) -> str:
    """What another statement says after the words with which both begin."""
    parts, here = re.split(r"(?<=[,:]) ", other), re.split(r"(?<=[,:]) ", statement)
    same = next((i for i, part in enumerate(parts) if here[i : i + 1] != [part]), 0)
    return f"{'… ' if same else ''}{' '.join(parts[same:])}"


def columns_of(link: nodes.Node) -> tuple[str, str]:
    """What the column of a link in a table is called, and the other columns that hold claims."""
    entry, table = ancestor(link, nodes.entry), ancestor(link, nodes.table)
    if entry is None or table is None:
        return "", ""
    links = [each for each in table.findall(nodes.reference) if _names_a_claim(each)]
    cells = [cell for each in links if (cell := ancestor(each, nodes.entry))]
    columns = {cell.parent.index(cell) for cell in cells} | {at := entry.parent.index(entry)}
    head = next(iter(table.findall(nodes.thead)))[0]
    names = [cell.astext() for cell in head.children]
    return names[at], ", ".join(names[i] for i in sorted(columns - {at}))


def ancestor(node: nodes.Node | None, kind: type[nodes.Element]) -> nodes.Element | None:
    """The node itself or the nearest around it of a kind."""
    while node is not None and not isinstance(node, kind):
        node = node.parent
    return node


def _names_a_claim(link: nodes.reference) -> bool:
    return "attnbook_claim" in link or str(link.get("refuri", "")).startswith("#claim-")


@cache
def words_of(text: str) -> frozenset[str]:
    """The words of a text, by their first letters."""
    found = {word[:4] for word in re.findall(r"[^\W\d_]{3,}", text.lower())}
    return frozenset(found - {"the", "and", "with", "for"})


def write_links(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Links to claims carry what their card says."""
    for link in list(doctree.findall(nodes.reference)):
        if "attnbook_claim" not in link:
            continue
        _, claim = app.env.attnbook_claims[link["attnbook_claim"]]  # type: ignore[attr-defined]
        text = link.astext()
        kind = " rests" if text == MARK else " claim-number" * (len(text) < SHORT)
        about = [claim["statement"], f"{numbers_of(claim)} (has to be {claim['expected']})"]
        about += [claim["setting"]["line"]]
        about += also_measured(claim, app.env.attnbook_claims)  # type: ignore[attr-defined]
        start = (
            f'<a class="reference internal claim-link{kind}" '
            f'href="{html.escape(link["refuri"])}" data-card="{html.escape(" | ".join(about))}"'
        )
        if len(text) < SHORT:
            start += f' aria-label="{html.escape(text)}: {html.escape(claim["statement"])}"'
        parent = link.parent
        at = parent.index(link)
        parent[at : at + 1] = [raw(f"{start}>"), *link.children, raw("</a>")]


# A claim on its page.


def numbers_of(claim: Claim) -> str:
    """What was measured, and over how many seeds."""
    seeds = f" ({claim['samples']} seeds)" if claim["samples"] > 1 else ""
    return f"{claim['measured']}{seeds}".replace(" ± ", "\u00a0±\u00a0")


def cases_of(claim: Claim) -> str:
    """The rows of records that it reads, by study."""
    named = []
    for study, cases in claim["setting"]["rows"].items():
        more = f" and {len(cases) - CASES} more" if len(cases) > CASES else ""
        named.append(f"{study}{': ' * any(cases)}{'; '.join(cases[:CASES])}{more}")
    return "; ".join(named)


def is_identity(claim: Claim) -> bool:
    """Are two things claimed to be the same? Then there is no number to look at."""
    return str(claim["expected"]).startswith("equal ") or claim["measured"] == "True"


def claim_line(claim: Claim, ledger: str, *, page: str = "", alone: bool = False) -> str:
    """The line of a claim, and the card that it opens; the element is left open for more.

    Args:
        claim: as the build command collected it.
        ledger: address of the ledger from the page.
        page: address of the claim's page, if the line stands on another one, which says itself
            what points in another direction.
        alone: the only one, whose card is open.
    """
    label, same = html.escape(claim["label"]), is_identity(claim)
    subjects = ledger.replace(Path(LEDGER).name, Path(KNOWN).name)
    mark, verdict = ("✓", "holds") if claim["held"] else ("✗", "does not hold")
    if claim["to_run"]:
        mark, verdict = "?", "not of today’s code"
    statement = html.escape(claim["statement"])
    shown = f'<span class="claim-statement">{statement}</span>'
    numbers = f' <span class="claim-numbers">{html.escape(numbers_of(claim))}</span>'
    rows = {
        "Measured": html.escape(numbers_of(claim)),
        "Has to be": html.escape(claim["expected"]),
        "On": html.escape(claim["setting"]["full"]),
        "Cases": html.escape(cases_of(claim)),
        "Margin": "" if claim["room"] is None else f"{claim['room']:g} standard errors",
        "Other seeds": "" if claim["other_seeds"] == "–" else f"held for {claim['other_seeds']}",
        "Recorded in": html.escape(", ".join(claim["files"])),
        "Code": f"changed since: {html.escape(', '.join(claim['to_run']))}" * bool(claim["to_run"]),
        "Text": f"measured on text {claim['text']}" if claim["text"] else "",
        "Subject": ", ".join(
            f'<a href="{subjects}#{name}">{html.escape(title)}</a>'
            for name, title in claim["subjects"].items()
        ),
        "⇆": "<br>".join(
            f"{html.escape(each['differ'])} {html.escape(each['why'])} "
            f'<a href="{ledger}#ledger-{each["label"]}">The other claim</a>'
            for each in claim["differs_from"] * (not page)
        ),
        "Label": f'<a href="{page}#claim-{label}">{label}</a> · '
        f'<a href="{ledger}#ledger-{label}">in the ledger</a>',
    }
    line = shown + numbers * (not same)
    anchor = "" if page else f' id="claim-{label}"'
    card = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in rows.items() if v)
    return (
        f'<details class="claim"{anchor}{" open" * alone}>'
        f'<summary><span class="claim-mark" role="img" aria-label="{verdict}">{mark}</span> '
        f'{line}</summary><dl class="claim-card">{card}</dl>'
    )


class ClaimLine(SphinxDirective):
    """``{claim-line} label``: show a claim as its chapter does."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the line."""
        depends_on_claims(self.env)
        label = self.arguments[0]
        docname, claim = self.env.attnbook_claims.get(label, ("", None))  # type: ignore[attr-defined]
        if claim is None:
            raise self.error(f"no claim is labelled {label!r}")
        uris = self.env.app.builder.get_relative_uri
        ledger, page = (uris(self.env.docname, name) for name in (LEDGER, docname))
        return [raw(claim_line(claim, ledger, page=page) + "</details>")]


# Cells.


def fold_evidence(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Leave what is to be seen in place, and put claims and tagged code behind a mark beside it."""
    claims: dict[str, tuple[str, Claim]] = app.env.attnbook_claims  # type: ignore[attr-defined]
    ledger = app.builder.get_relative_uri(docname, LEDGER)
    cells = [each for each in doctree.findall(nodes.container) if _is(each, "cell_code")]
    for group in _groups(cells):
        stated: list[Claim] = []
        code: list[nodes.Node] = []
        for cell in group:
            parts = list(_outputs(cell, claims))
            stated += [part for part in parts if isinstance(part, dict)]
            others = [part for part in parts if not isinstance(part, dict)]
            listings = [part for part in others if _tag(cell) and _is_listing(part)]
            shown = _wrapped([part for part in others if part not in listings])
            source = _source(cell)
            if tag := _tag(cell):
                code += _fold(source, tag, listings)
                source = []
            cell[:] = [*source, *shown]
        last = group[-1]
        last.parent.insert(last.parent.index(last) + 1, evidence(stated, ledger, code))
        for cell in group:
            if not cell.children:
                cell.parent.remove(cell)


def _is(node: nodes.Node, kind: str) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == kind


def _tag(cell: nodes.container) -> str | None:
    tags = cell["cell_metadata"].get("tags", [])
    return next((tag for tag in tags if tag in FOLDED), None)


def _groups(cells: Sequence[nodes.container]) -> list[list[nodes.container]]:
    """Cells with one mark: neighbours up to a figure or to code that is shown, with its claims."""
    groups: list[list[nodes.container]] = []
    for cell in cells:
        before = groups[-1] if groups else []
        if before and before[-1].next_node(descend=False, siblings=True) is cell:
            if _tag(cell) == "claims" or not any(map(_is_seen, before)):
                before.append(cell)
                continue
            cell["follows"] = True
        groups.append([cell])
    # What shows nothing of its own has no place for a mark: it goes with what stands before it.
    merged: list[list[nodes.container]] = []
    for group in groups:
        if "follows" in group[0] and not any(map(_is_seen, group)):
            merged[-1] += group
        else:
            merged.append(group)
    return merged


def _is_seen(cell: nodes.container) -> bool:
    """Is its code open, or does it show a figure or a text?"""
    return _tag(cell) in (None, "plot")


def _outputs(
    cell: nodes.container, claims: dict[str, tuple[str, Claim]]
) -> Iterator[nodes.Node | Claim]:
    """What a cell shows, in order: claims, and all else as it is."""
    for output in [part for part in cell.children if _is(part, "cell_code_output")]:
        for part in output.children:
            raw = next(iter(part.findall(nodes.raw)), None)
            found = raw and re.match(r'<div class="claim" id="claim-([^"]+)"', raw.astext())
            yield claims[found[1]][1] if found and found[1] in claims else part


def _is_listing(part: nodes.Node | Claim) -> bool:
    """Is it source of the package or of a study, or the line that says a study was run again?"""
    if not isinstance(part, nodes.Node):
        return False
    return any(
        block.get("language") == "python" or block.astext().startswith('<div class="replay"')
        for kind in (nodes.literal_block, nodes.raw)
        for block in part.findall(kind)
    )


def _source(cell: nodes.container) -> list[nodes.Node]:
    return [part for part in cell.children if _is(part, "cell_code_source")]


def _fold(
    source: Sequence[nodes.Node], tag: str, listings: Sequence[nodes.Node]
) -> list[nodes.Node]:
    """The code of a tagged cell, and listings that it shows, folded."""
    n_lines = sum(len(part.astext().splitlines()) for part in [*source, *listings])
    summary = f"{FOLDED[tag]} <span>{n_lines} line{'s' * (n_lines > 1)}</span>"
    start = raw(f'<details class="fold"><summary>{summary}</summary>')
    return [start, *source, *_wrapped(listings), raw("</details>")]


def _wrapped(parts: Sequence[Any]) -> list[nodes.Node]:
    """Outputs as the theme expects them."""
    if not parts:
        return []
    return [nodes.container("", *parts, classes=["cell_output"], nb_element="cell_code_output")]


def evidence(claims: Sequence[Claim], ledger: str, code: Sequence[nodes.Node]) -> nodes.container:
    """A mark in the margin, which opens claims and the code behind them."""
    if not claims and not code:
        return nodes.container()
    held = all(claim["held"] for claim in claims)
    mark = "‹›" if not claims else "✓" if held else "✗"
    about = html.escape(shorten(claims[0]["statement"], 64, placeholder=" …")) if claims else ""
    says = {0: "Code", 1: about}.get(len(claims), f"{len(claims)} claims: {about}")
    lines = "".join(
        f"<li>{claim_line(claim, ledger, alone=len(claims) == 1)}</details></li>"
        for claim in claims
    )
    start = (
        f'<details class="evidence"><summary title="{says}">'
        f'<span class="{"claim-mark" if claims else "code-mark"}" aria-hidden="true">{mark}</span>'
        f'<span class="visually-hidden">{"Holds: " * (held and bool(claims))}{says}</span>'
        f"</summary>{f'<ul>{lines}</ul>' * bool(claims)}"
    )
    return nodes.container("", raw(start), *code, raw("</details>"), classes=["margin-mark"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer lines of claims and links to them; fold first, write links when folds are there."""
    app.add_transform(ClaimLinks)
    app.add_directive("claim-line", ClaimLine)
    app.connect("builder-inited", load_claims)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", fold_evidence)
    app.connect("doctree-resolved", write_links, priority=600)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
