"""Tables about the evidence: the ledger of all claims, the chapters, the studies."""

import csv
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from book.evidence.files import as_json, write_whole
from book.evidence.records import FOLDER, asks, summary
from book.evidence.subjects import SUBJECTS, Subject, read_subjects
from book.press.contents import executed
from book.sphinx.evidence import Claim, depends_on_claims, is_identity
from book.sphinx.pages import raw
from book.sphinx.synonyms import SYNONYMS

HEAD = ("Claim", "Measured", "Has to be", "Measured on", "Seeds", "Held", "Other seeds")
KINDS = {
    "": "all kinds",
    "seeds": "means over seeds",
    "same": "identities",
    "one": "single numbers",
}
COLUMNS = (
    *("label", "statement", "measured", "expected", "samples", "held", "other_seeds", "room"),
    *("subjects", "differs_from", "setting"),
)


class Ledger(SphinxDirective):
    """``{claims-ledger}``: every claim of the book, chapter by chapter, to filter and to sort."""

    def run(self) -> list[nodes.Node]:
        """Make the controls, and one section with a table, which is folded, for each chapter."""
        depends_on_claims(self.env)
        ledger: dict[str, list[Claim]] = self.env.attnbook_ledger  # type: ignore[attr-defined]
        self.env.note_dependency(str(SUBJECTS))
        labels = [claim["label"] for claims in ledger.values() for claim in claims]
        subjects = read_subjects(Path(self.env.srcdir), labels).by_name.values()
        return [raw(controls(subjects))] + [
            self._chapter(name, claims) for name, claims in ledger.items() if claims
        ]

    def _chapter(self, docname: str, claims: list[Claim]) -> nodes.section:
        page = self.env.app.builder.get_relative_uri(self.env.docname, docname)
        # Where no claim was tried under other seeds, no column says so a thousand times.
        names = HEAD if any(claim["other_seeds"] != "–" for claim in claims) else HEAD[:-1]
        rows = "".join(row(claim, page, len(names)) for claim in claims)
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        name = chapter_name(self.env, docname)
        shown = (
            f'<details class="ledger"><summary>{len(claims)} claims</summary>'
            f'<table class="claims-ledger table"><caption class="visually-hidden">Claims of '
            f"{html.escape(name)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table></details>"
        )
        title = nodes.title("", name)
        return nodes.section("", title, raw(shown), ids=[f"claims-{Path(docname).name}"])


def controls(subjects: Iterable[Subject]) -> str:
    """The filter of the ledger, which needs the page's script, and the files to take away."""
    kinds = "".join(f'<option value="{key}">{name}</option>' for key, name in KINDS.items())
    about = "".join(
        f'<option value="{each.name}" data-also="{html.escape(each.words)}">'
        f"{html.escape(each.title)}</option>"
        for each in sorted(subjects, key=lambda each: each.name)
    )
    same = html.escape(";".join("|".join(group) for group in SYNONYMS))
    return (
        f'<form class="ledger-filter needs-script" data-same="{same}">'
        '<label>Find <input type="search" name="words" placeholder="words or a label"></label> '
        f'<label>Kind <select name="kind">{kinds}</select></label> '
        '<label>Subject <select name="subject"><option value="">all subjects</option>'
        f'{about}</select></label> <output aria-live="polite"></output></form>'
        '<p>All of it as <a href="../claims.csv" download>CSV</a> or '
        '<a href="../claims.json" download>JSON</a> '
        '(<a href="../_static/claims.schema.json">its fields</a>).</p>'
    )


def row(claim: Claim, page: str, n_columns: int) -> str:
    """A claim in the ledger; its sentence leads to its place in the chapter."""
    label = html.escape(claim["label"])
    kind = "same" if is_identity(claim) else "seeds" if claim["samples"] > 1 else "one"
    seeds = str(claim["samples"]) if claim["samples"] > 1 else "–"
    on = f" (text {claim['text']})" if claim["text"] else ""
    parts = " ⇆" * bool(claim["differs_from"])
    cells = (
        f'<a href="{page}#claim-{label}">{html.escape(claim["statement"])}</a>{parts}',
        html.escape(claim["measured"] + on),
        html.escape(claim["expected"]),
        html.escape(claim["setting"]["line"]),
        seeds,
        "?" if claim["to_run"] else "✓" if claim["held"] else "✗",
        claim["other_seeds"],
    )
    inside = "".join(f"<td>{cell}</td>" for cell in cells[:n_columns])
    about = " ".join(claim["subjects"])
    return f'<tr id="ledger-{label}" data-kind="{kind}" data-subjects="{about}">{inside}</tr>'


def write_files(app: Sphinx, exception: Exception | None) -> None:
    """Put the ledger beside the pages, as CSV and JSON."""
    if exception is not None or app.builder.name != "html":
        return
    ledger: dict[str, list[Claim]] = app.env.attnbook_ledger  # type: ignore[attr-defined]
    rows = [
        {"chapter": Path(docname).name} | {name: claim[name] for name in COLUMNS}
        for docname, claims in ledger.items()
        for claim in claims
    ]
    write_whole(Path(app.outdir) / "claims.json", as_json(rows))
    with (Path(app.outdir) / "claims.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("chapter", *COLUMNS))
        writer.writeheader()
        writer.writerows(
            row
            | {
                "subjects": ", ".join(row["subjects"]),
                "differs_from": ", ".join(each["label"] for each in row["differs_from"]),
                "setting": row["setting"]["full"],
            }
            for row in rows
        )


def chapter_name(env: BuildEnvironment, docname: str) -> str:
    """The number of a chapter and its title up to the colon."""
    notebook = nbformat.read(env.doc2path(docname), 4)
    headings = (cell.source for cell in notebook.cells if cell.source.startswith("# "))
    title = next(headings, docname).partition("\n")[0].removeprefix("# ").partition(":")[0]
    number = Path(docname).name.partition("_")[0].lstrip("0")
    return f"{number}. {title}" if number.isdigit() else title


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
            made = record["made"]
            question = asks(Path(self.env.srcdir), path.stem)
            words = [nodes.literal("", path.stem), question, *summary(record)]
            rows.append([*words, made["date"], made.get("device", made["processor"])])
        head = ("Study", "What it asks", "Runs", "Time on one core", "Made", "Processor or GPU")
        return [table(head, rows, "checks")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer three tables; write the ledger's files when the pages are there."""
    app.add_directive("claims-ledger", Ledger)
    app.add_directive("chapters-table", ChaptersTable)
    app.add_directive("studies-table", StudiesTable)
    app.connect("build-finished", write_files)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
