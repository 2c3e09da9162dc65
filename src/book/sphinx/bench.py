"""``{bench}``: the model that a reader can change, as :mod:`book.figures.workbench` draws it."""

import json
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.figures import colours, workbench
from book.figures.workbench.bench import SCRIPTS, Bench
from book.figures.workbench.picture import STAGES
from book.sphinx.pages import raw, write_static

HERE = Path(workbench.__file__).parent
FOLDER = "bench"  # below _static

EVIDENCE = {  # switch -> what it does here, and the claim that says what came of training so
    "scaled": (
        "Larger logits: here that helps; a model that starts at random would be as sure of a "
        "wrong word.",
        "aw-forgotten",
    ),
    "mask": (
        "“sat” stands last and sees no more than before; “cat” now sees what it is to predict.",
        "bug-alone-no-causal-mask",
    ),
    "cut": ("“sat” is still a verb, and has no noun to go by.", "one-cut"),
    "identity": (
        "With the identity a word finds its own kind, and no kind is nearer than itself.",
        "qkv-ring-identity",
    ),
    "same": ("With one matrix for both, a word looks for its own kind.", "qkv-reversal-slower"),
    "rooted": (
        "Rows of the table are √5 times as large, so each logit is five times what it was.",
        "lm-left-tied",
    ),
    "normed": (
        "Each part now reads a copy of its row that has mean 0 and variance 1.",
        "deep-none-48",
    ),
    "every": ("Now all three words predict, each from what it sees.", "date-one-pass"),
    "place": (
        "Head 2 alone (a layer adds both heads): with positions it looks one word back; without, "
        "all words look alike.",
        "pos-rotary-1x",
    ),
    "turned": (
        "With each place, queries and keys turn a quarter in columns 1 and 3. Head 1 uses neither.",
        "pos-relative",
    ),
    "trained": (
        "Training found these numbers, from what follows the third word; no column has a name.",
        "one-tiny-learned",
    ),
}


class Place(SphinxDirective):
    """The picture, its line, what was measured for each switch, and the switches.

    The options are the arguments of :class:`~book.figures.workbench.bench.Bench`, which a chapter
    shows; it is a notebook's cell that stands so on a page.
    """

    option_spec: ClassVar = {
        "beside": directives.flag,
        "switches": directives.unchanged,
        "stage": directives.unchanged,
        "back": directives.flag,
        "set": directives.unchanged,
        "first": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Draw it; the script takes the settings from the element."""
        given: dict[str, Any] = {k: True if v is None else v for k, v in self.options.items()}
        bench = Bench(**given)
        sheets = [] if bench.stage else ["page.css", f"{'beside' if bench.beside else 'below'}.css"]
        self.env.metadata[self.env.docname]["bench"] = sheets
        return [placed(bench)]


def placed(bench: Bench) -> nodes.container:
    """The bench as a part of a page."""
    items = []
    for switch, (words, label) in EVIDENCE.items():
        if switch not in (*bench.names, "cut"):
            continue
        link = nodes.reference("", "Measured ✓", refuri=f"#claim-{label}", id_link=True)
        moved = nodes.strong("", "", classes=["bench-moved"])  # the answer: from what to what
        line = nodes.paragraph("", "", moved, nodes.Text(f"{words} "), link)
        items.append(nodes.list_item("", line, classes=[f"bench-{switch}"]))
    evidence = nodes.bullet_list("", *items, classes=["bench-evidence"])
    parts = [raw(bench.picture()), evidence, raw(bench.controls())]
    return nodes.container("", *parts, classes=["bench", *["beside"] * bench.beside])


class Stage(SphinxDirective):
    """``{stage} weights``: from here on the text is about this stage of the bench."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """A mark that nobody sees."""
        at = [title for title, *_ in STAGES].index(self.arguments[0])
        return [raw(f'<span data-stage-read="{at}"></span>')]


class Predict(SphinxDirective):
    """``{predict} Question?``: some answers, and what happens and why.

    ``:options:`` has the answers, the correct one with a ``*``; ``:do:`` says what the bench then
    changes (``cut 2 1``, ``word 0 1; word 1 0``, ``switch scaled``).
    """

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {"do": directives.unchanged, "options": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """The question, its answers as buttons, and the explanation, folded."""
        commands = [
            [int(part) if part.isdigit() else part for part in each.split()]
            for each in self.options.get("do", "").split(";")
            if each
        ]
        buttons = "".join(
            f'<button type="button" aria-pressed="false"{" data-correct" * ("*" in each)}>'
            f"{escape(each.strip(' *'))}</button>"
            for each in self.options["options"].split("|")
        )
        question = nodes.paragraph("", "", nodes.strong("", "Before you try it: "))
        question += self.parse_inline(self.arguments[0])[0]
        start = (
            f'<div class="predict" data-do="{escape(json.dumps(commands))}">',
            f'<p class="options needs-script">{buttons}</p>'
            "<details><summary>What happens</summary>",
        )
        return [
            raw(start[0]),
            question,
            raw(start[1]),
            nodes.container("", *self.parse_content_to_nodes(), classes=["happens"]),
            raw("</details></div>"),
        ]


def write_files(app: Sphinx) -> None:
    """Put scripts and colours where pages look for them."""
    files = {name: (HERE / name).read_text("utf-8") for name in (*SCRIPTS, "bench.css")}
    write_static(app, FOLDER, files | {"colours.css": colours.css()})


def load(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the scripts on pages that have a bench, and lay the page out around it.

    Rules with ``:has(.bench)`` would do for all pages, and make the browser look at the whole page
    again for each number that changes: 50 ms in place of 10.
    """
    has = app.env.metadata.get(page, {})
    if "bench" in has:
        for name in SCRIPTS:
            app.add_js_file(f"{FOLDER}/{name}", loading_method="defer")
    if sheets := has.get("bench"):
        style = "".join((HERE / name).read_text("utf-8") for name in sheets)
        context["metatags"] = f"{context.get('metatags', '')}\n    <style>\n{style}</style>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer three directives; load the picture's script where a page has it."""
    app.add_directive("bench", Place)
    app.add_directive("stage", Stage)
    app.add_directive("predict", Predict)
    app.add_css_file(f"{FOLDER}/colours.css")
    app.add_css_file(f"{FOLDER}/bench.css")
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
