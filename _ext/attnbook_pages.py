"""What this book adds to Sphinx: claims in prose, the ledger, figures that follow the theme."""

import ast
import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from attnbook.book.arithmetic import EXECUTED
from attnbook.book.build import CLAIMS, executed
from attnbook.book.claims import Claim
from attnbook.book.figures import INK, PAPER
from attnbook.book.studies import FOLDER, summary

logger = logging.getLogger(__name__)


def load_claims(app: Sphinx) -> None:
    """Read what the build command collected: document -> its claims."""
    path = Path(app.srcdir) / CLAIMS
    ledger: dict[str, list[dict[str, Any]]] = {}
    if path.exists():
        ledger = json.loads(path.read_text(encoding="utf-8"))
    else:
        logger.warning("no %s: build with `make book` or `make html`", CLAIMS)
    by_label: dict[str, tuple[str, dict[str, Any]]] = {}
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


def _quoted_numbers(text: str) -> list[str]:
    """The numbers in a text, standard errors with their ±."""
    return re.findall(r"(?:± *)?(?<![\w.])-?\d[\d,]*(?:\.\d+)?", text.replace("−", "-"))


def _shows(quoted: str, claim: dict[str, Any]) -> bool:
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

    Every number among the words must be one that the claim shows, rounded as written. It is a
    plain Markdown link, so it also reads well where a notebook is opened by itself.
    """

    default_priority = 800  # before MyST looks for the target in the page

    def apply(self, **kwargs: object) -> None:
        """Resolve every link of the page that points to a claim."""
        for link in self.document.findall(nodes.reference):
            if link.get("id_link") and link["refuri"].startswith("#claim-"):
                self.resolve(link, link["refuri"].removeprefix("#claim-"))

    def resolve(self, link: nodes.reference, label: str) -> None:
        """Point ``link`` to the page of the claim."""
        depends_on_claims(self.env)
        docname, claim = self.env.attnbook_claims.get(label, ("", None))  # type: ignore[attr-defined]
        if claim is None:
            logger.warning("no claim is labelled %r", label, location=link)
            return
        # On another text than the committed outputs came from, or under another arithmetic, the
        # prose can't know the numbers.
        for quoted in [] if claim["elsewhere"] else _quoted_numbers(link.astext()):
            if not _shows(quoted, claim):
                logger.warning(
                    "the prose says %s, claim %r says: measured %s; claimed %s",
                    quoted,
                    label,
                    claim["measured"],
                    claim["expected"],
                    location=link,
                )
        del link["id_link"]
        if not link.children:
            link += nodes.Text(claim["statement"])
        elif len(link.astext()) < 16:
            link["classes"].append("claim-number")  # does not break between lines
        point_to_claim(link, self.env, docname, claim)


def point_to_claim(
    link: nodes.reference, env: BuildEnvironment, docname: str, claim: dict[str, Any]
) -> None:
    """Make ``link`` lead from the current page to the line of the claim."""
    page = env.app.builder.get_relative_uri(env.docname, docname)
    link["refuri"] = f"{page}#claim-{claim['label']}"
    link["internal"] = True
    link["classes"].append("claim-link")
    link["reftitle"] = f"measured {claim['measured']}; claimed {claim['expected']}"


class ClaimLine(SphinxDirective):
    """``{claim-line} label``: show a claim as its chapter does."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the box."""
        depends_on_claims(self.env)
        label = self.arguments[0]
        _, claim = self.env.attnbook_claims.get(label, ("", None))  # type: ignore[attr-defined]
        if claim is None:
            raise self.error(f"no claim is labelled {label!r}")
        shown = {field.name: claim[field.name] for field in fields(Claim)}
        return [nodes.raw("", Claim(**shown)._repr_html_(), format="html")]


class Ledger(SphinxDirective):
    """``{claims-ledger}``: every claim of the book, chapter by chapter."""

    def run(self) -> list[nodes.Node]:
        """Make one section with a table for each chapter."""
        depends_on_claims(self.env)
        found: list[nodes.Node] = []
        for docname, claims in self.env.attnbook_ledger.items():  # type: ignore[attr-defined]
            if claims:
                found.append(self._chapter(docname, claims))
        return found

    def _chapter(self, docname: str, claims: list[dict[str, Any]]) -> nodes.section:
        rows = []
        for claim in claims:
            link = nodes.reference("", claim["statement"])
            point_to_claim(link, self.env, docname, claim)
            seeds = str(claim["samples"]) if claim["samples"] > 1 else "–"
            on = f" (text {claim['text']})" if claim["text"] else ""
            held = "✓" if claim["held"] else "✗"
            measured, expected = claim["measured"] + on, claim["expected"]
            rows.append([link, measured, expected, seeds, held, claim["other_seeds"]])
        head = ("Claim", "Measured", "Claimed", "Seeds", "Held", "Other seeds")
        title = nodes.title("", f"{chapter_name(self.env, docname)} ({len(claims)} claims)")
        shown = table(head, rows, "claims-ledger")
        return nodes.section("", title, shown, ids=[f"claims-{Path(docname).name}"])


def chapter_name(env: BuildEnvironment, docname: str) -> str:
    """The title of a chapter up to its colon."""
    notebook = nbformat.read(env.doc2path(docname), 4)
    headings = (cell.source for cell in notebook.cells if cell.source.startswith("# "))
    return next(headings, docname).partition("\n")[0].removeprefix("# ").partition(":")[0]


def table(
    head: Sequence[str], rows: Sequence[Sequence[nodes.Node | str]], kind: str
) -> nodes.table:
    """A table of words and links."""

    def row(cells: Sequence[nodes.Node | str]) -> nodes.row:
        made = nodes.row()
        for cell in cells:
            inside = nodes.Text(cell) if isinstance(cell, str) else cell
            made += nodes.entry("", nodes.paragraph("", "", inside))
        return made

    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec() for _ in head]
    group += nodes.thead("", row(head))
    group += nodes.tbody("", *(row(each) for each in rows))
    return nodes.table("", group, classes=[kind])


class ChaptersTable(SphinxDirective):
    """``{chapters-table}``: how long each chapter takes, and when and where it was executed."""

    def run(self) -> list[nodes.Node]:
        """Make the table from what is noted beside the chapters."""
        depends_on_claims(self.env)
        rows = []
        for docname, claims in self.env.attnbook_ledger.items():  # type: ignore[attr-defined]
            noted = executed().get(Path(docname).name)
            if noted is None:
                continue
            link = nodes.reference("", chapter_name(self.env, docname), internal=True)
            link["refuri"] = self.env.app.builder.get_relative_uri(self.env.docname, docname)
            under = noted["under"]["arithmetic"]
            rows.append([link, f"{noted['seconds']:.0f}", str(len(claims)), noted["date"], under])
        return [table(("Chapter", "Seconds", "Claims", "Executed", "Arithmetic"), rows, "checks")]


class StudiesTable(SphinxDirective):
    """``{studies-table}``: what each study asks, its seeds, minutes, date and machine."""

    def run(self) -> list[nodes.Node]:
        """Make the table from the records."""
        depends_on_claims(self.env)
        rows = []
        for path in sorted((Path(self.env.srcdir) / FOLDER).glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            source = path.with_suffix(".py").read_text(encoding="utf-8")
            asks = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
            made = record["made"]
            words = [nodes.literal("", path.stem), asks, *summary(record)]
            rows.append([*words, made["date"], made["processor"]])
        head = ("Study", "What it asks", "Runs", "Time on one core", "Made", "Processor")
        return [table(head, rows, "checks")]


def inline_figures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put drawn figures into the page itself, so that they take the theme's colours."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        if not image["uri"].endswith(".svg"):
            continue
        alt = image.get("alt", "")
        if not alt or alt.endswith(".svg"):
            logger.warning("a figure has no alt text in its cell's metadata", location=image)
        path = Path(app.srcdir) / image["uri"]
        image.replace_self(nodes.raw("", themed_svg(path.read_text("utf-8"), alt), format="html"))


def themed_svg(svg: str, alt: str) -> str:
    """The figure as an element of the page: ink in the text's colour, paper transparent."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"(?s)<metadata>.*?</metadata>", "", svg)
    svg = svg.replace(INK, "currentColor").replace(PAPER, "none")
    # Two figures of a page may use the same names inside.
    prefix = f"f{hashlib.sha256(svg.encode()).hexdigest()[:8]}-"
    svg = re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', prefix, svg)
    return re.sub(
        r'<svg ((?:(?! width| height)[^>])*?)(?: (?:width|height)="[^"]*")+',
        lambda m: f'<svg role="img" aria-label="{html.escape(alt)}" class="figure" {m[1]}',
        svg,
        count=1,
    )


def mend(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Mend what docutils and Sphinx write and screen readers stumble over."""
    body = context.get("body", "")
    # What scrolls must be in reach of the keyboard.
    table = '<div class="pst-scrollable-table-container"'
    body = body.replace(table, f'{table} tabindex="0"')
    # A page's second navigation needs a name.
    body = body.replace('<nav class="contents', '<nav aria-label="On this page" class="contents')
    # A list has to have items, and this role of theirs is deprecated.
    body = body.replace(' role="doc-biblioentry"', ' role="listitem"')
    # A signature's parameters are definitions without terms.
    tags = {"dl": 'span class="sig-lines"', "/dl": "/span", "dd": "span", "/dd": "/span"}
    context["body"] = re.sub(
        r'(?s)(?<=<dt class="sig ).*?(?=</dt>)',
        lambda signature: re.sub("(?<=<)/?d[ld](?=>)", lambda tag: tags[tag[0]], signature[0]),
        body,
    )


def without_thebe(app: Sphinx, config: Config) -> None:
    """Unregister sphinx-thebe, which would fetch its program from elsewhere.

    Jupyter Book loads it in every book; this one has no launch button for it.
    """
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler.__module__.startswith("sphinx_thebe"):
                app.disconnect(listener.id)
    app.registry.css_files[:] = [
        each for each in app.registry.css_files if each[0] != "sphinx-thebe.css"
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    app.add_transform(ClaimLinks)
    app.add_directive("claim-line", ClaimLine)
    app.add_directive("claims-ledger", Ledger)
    app.add_directive("chapters-table", ChaptersTable)
    app.add_directive("studies-table", StudiesTable)
    app.connect("config-inited", without_thebe)
    app.connect("builder-inited", load_claims)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", inline_figures)
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
