"""What this book adds to Sphinx: claims in prose, the ledger, figures that follow the theme."""

import hashlib
import html
import json
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from attnbook.book.build import CLAIMS
from attnbook.book.figures import INK, PAPER

logger = logging.getLogger(__name__)

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
    """Pages that show claims are read again whenever a chapter is."""
    return sorted(getattr(env, "attnbook_claim_pages", set()))


def _quoted_numbers(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?", text.replace("−", "-"))


def _shows(quoted: str, numbers: Sequence[float]) -> bool:
    """Is ``quoted`` one of the numbers, rounded as it is written?"""
    plain = quoted.replace(",", "")
    decimals = len(plain.partition(".")[2])
    return any(f"{number:.{decimals}f}" == plain for number in numbers)


class ClaimRole(SphinxRole):
    """``{claim}`some words 2.77 <label>```: link words to a claim, and check their numbers.

    Every number among the words must be one that the claim shows, rounded as written.
    """

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Make the link."""
        match = re.fullmatch(r"(?s)(.*?)\s*<([a-z0-9-]+)>", self.text)
        words, label = match.groups() if match else ("", self.text)
        docname, claim = self.env.attnbook_claims.get(label, ("", None))  # type: ignore[attr-defined]
        if claim is None:
            logger.warning("no claim is labelled %r", label, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        # On another text than the committed outputs came from, the prose can't know the numbers.
        for quoted in [] if claim["elsewhere"] else _quoted_numbers(words):
            if not _shows(quoted, claim["numbers"]):
                logger.warning(
                    "the prose says %s, claim %r says: measured %s; claimed %s",
                    quoted,
                    label,
                    claim["measured"],
                    claim["expected"],
                    location=self.get_location(),
                )
        depends_on_claims(self.env)
        return [link_to_claim(self.env, docname, claim, words or claim["statement"])], []


def link_to_claim(env: BuildEnvironment, docname: str, claim: Claim, words: str) -> nodes.Node:
    """A link from the current page to the line of the claim."""
    page = env.app.builder.get_relative_uri(env.docname, docname)
    link = nodes.reference(
        "", words, internal=True, refuri=f"{page}#claim-{claim['label']}", classes=["claim-link"]
    )
    link["reftitle"] = f"measured {claim['measured']}; claimed {claim['expected']}"
    return link


class Ledger(SphinxDirective):
    """``{claims-ledger}``: every claim of the book, chapter by chapter."""

    def run(self) -> list[nodes.Node]:
        """Make one table for each chapter."""
        depends_on_claims(self.env)
        found: list[nodes.Node] = []
        for docname, claims in self.env.attnbook_ledger.items():  # type: ignore[attr-defined]
            if claims:
                found += self._chapter(docname, claims)
        return found

    def _chapter(self, docname: str, claims: list[Claim]) -> list[nodes.Node]:
        head = ("Claim", "Measured", "Claimed", "Seeds", "Verdict")
        group = nodes.tgroup(cols=len(head))
        group += [nodes.colspec(colwidth=width) for width in (40, 25, 20, 6, 9)]
        group += nodes.thead("", self._row([nodes.Text(word) for word in head]))
        body = nodes.tbody()
        for claim in claims:
            seeds = str(claim["samples"]) if claim["samples"] > 1 else "–"
            on = f" (text {claim['text']})" if claim["text"] else ""
            body += self._row(
                [
                    link_to_claim(self.env, docname, claim, claim["statement"]),
                    nodes.Text(claim["measured"] + on),
                    nodes.Text(claim["expected"]),
                    nodes.Text(seeds),
                    nodes.Text("✓ holds" if claim["held"] else "✗ fails"),
                ]
            )
        group += body
        title = nodes.paragraph("", "")
        title += nodes.strong("", f"{Path(docname).name}: {len(claims)} claims")
        return [title, nodes.table("", group, classes=["claims-ledger"])]

    @staticmethod
    def _row(cells: Sequence[nodes.Node]) -> nodes.row:
        row = nodes.row()
        for cell in cells:
            row += nodes.entry("", nodes.paragraph("", "", cell))
        return row


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


def copy_mathjax(app: Sphinx, exception: Exception | None) -> None:
    """Put MathJax beside the pages: one file, drawing in SVG.

    Its other output needs web fonts, which browsers do not load for a page opened from disk.
    """
    package = find_spec("sphinx-mathjax-offline")
    if exception is None and package and package.origin:
        source = Path(package.origin).parent / "static" / app.config.mathjax_path
        target = Path(app.outdir) / "_static" / app.config.mathjax_path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    app.add_role("claim", ClaimRole())
    app.add_directive("claims-ledger", Ledger)
    app.connect("config-inited", without_thebe)
    app.connect("builder-inited", load_claims)
    app.connect("env-get-outdated", outdated)
    app.connect("doctree-resolved", inline_figures)
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
