"""Marks behind each headline and summary: the first claims that it rests on."""

from pathlib import Path

import nbformat
from sphinx.application import Sphinx

from book.evidence.short import NOTHING, RESTS, rests_written

MARK, SHOWN = "✓", 4


def mark(app: Sphinx, docname: str, content: list[str]) -> None:
    """Put links to the claims behind the sentences of a chapter."""
    if app.builder.name != "html" or Path(app.env.doc2path(docname)).suffix != ".ipynb":
        return
    named = rests_written(Path(app.srcdir)).get(Path(docname).name, {})
    app.env.note_dependency(str(RESTS))
    notebook = nbformat.reads(content[0], as_version=4)
    for cell in notebook.cells:
        for says, rests in named.items():
            if cell.cell_type == "markdown" and rests != NOTHING:
                marks = "".join(f"[{MARK}](#claim-{label})" for label in rests.split()[:SHOWN])
                cell.source = cell.source.replace(says, f"{says}\u00a0{marks}")
    content[0] = nbformat.writes(notebook)


def setup(app: Sphinx) -> dict[str, bool]:
    """Mark chapters before terms and known letters are put into their text."""
    app.connect("source-read", mark, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
