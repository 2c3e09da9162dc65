"""``{exercise-index}``: all exercises of the book, by chapter, with kind, level and minutes.

And what ``automodule`` needs to see that a check is a function.
"""

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc import FunctionDocumenter
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx_exercise.nodes import exercise_subtitle, is_exercise_node

from book.exercises.mistakes import Exercise
from book.sphinx.pages import raw

logger = logging.getLogger(__name__)
KINDS = ("Predict", "Why", "Build")
LEVELS = ("easy", "medium", "hard")
# How an exercise begins.
BEGINS = re.compile(rf"({'|'.join(KINDS)}) · ({'|'.join(LEVELS)}) · (\d+) minutes$")


class index_node(nodes.General, nodes.Element):  # noqa: N801 - docutils writes nodes so
    """The index, filled in when all pages are read."""


class ExerciseIndex(SphinxDirective):
    """The table, which is written when all pages are read."""

    def run(self) -> list[nodes.Node]:
        """Leave its place."""
        self.env.metadata[self.env.docname]["exercise-index"] = True
        return [index_node()]


def note(app: Sphinx, doctree: nodes.document) -> None:
    """Keep what each exercise says of itself."""
    exercises = []
    for exercise in doctree.findall(is_exercise_node):
        first = next(iter(exercise.findall(nodes.emphasis)), None)
        said = BEGINS.match(first.astext() if first is not None else "")
        if not said:
            logger.warning(
                "an exercise begins with its kind, level and time: “*Build · easy · 5 minutes*.”",
                location=exercise,
            )
            continue
        (title,) = exercise.findall(exercise_subtitle)
        exercises.append((exercise["label"], title.astext(), *said.groups()))
    app.env.metadata[app.env.docname]["exercises"] = exercises


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Write the index, also where only other pages have changed."""
    for place in list(doctree.findall(index_node)):
        bodies = "".join(
            chapter(app, docname, page, meta["exercises"])
            for page, meta in sorted(app.env.metadata.items())
            if meta.get("exercises")
        )
        table = (
            '<div class="pst-scrollable-table-container"><table class="table exercises"><thead><tr>'
            "<th>Exercise</th><th>Kind</th><th>Level</th><th>Minutes</th></tr></thead>"
            f"{bodies}</table></div>"
        )
        place.replace_self(raw(choices() + table))


def choices() -> str:
    """Two lists, of which each leaves a part of the rows."""
    lists = "".join(
        f'<label>{name} <select name="{name.lower()}"><option value="">all</option>'
        f"{''.join(f'<option>{each}</option>' for each in options)}</select></label> "
        for name, options in (("Kind", KINDS), ("Level", LEVELS))
    )
    return f'<form class="controls choices needs-script" aria-label="Exercises">{lists}</form>'


def chapter(app: Sphinx, docname: str, page: str, exercises: list[tuple[str, ...]]) -> str:
    """The rows of one chapter."""
    address = app.builder.get_relative_uri(docname, page)
    rows = "".join(
        f'<tr data-kind="{kind}" data-level="{level}">'
        f'<td><a class="reference internal" href="{address}#{label}">{escape(title)}</a></td>'
        f"<td>{kind}</td><td>{level}</td><td>{minutes}</td></tr>"
        for label, title, kind, level, minutes in exercises
    )
    name = escape(app.env.titles[page].astext().partition(":")[0])
    link = f'<a class="reference internal" href="{address}">{name}</a>'
    return f'<tbody><tr><th colspan="4" scope="rowgroup">{link}</th></tr>{rows}</tbody>'


def rewrite(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """The index is written again whenever a page was."""
    return [page for page, meta in env.metadata.items() if "exercise-index" in meta]


class CheckDocumenter(FunctionDocumenter):
    """An ``Exercise`` is called as a function is, and has words of its own."""

    objtype = "check"
    directivetype = "function"

    @classmethod
    def can_document_member(cls, member: Any, membername: str, isattr: bool, parent: Any) -> bool:
        """Whether a member of a module is an exercise."""
        return isinstance(member, Exercise)


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the index, which is written again when any page has changed."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_autodocumenter(CheckDocumenter)
    app.add_node(index_node)
    app.add_directive("exercise-index", ExerciseIndex)
    app.connect("doctree-read", note)
    app.connect("env-updated", rewrite)
    app.connect("doctree-resolved", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
