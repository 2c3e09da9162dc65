"""``{bench}``: the model that a reader can change, as :mod:`book.figures.workbench` draws it."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.figures import colours, workbench
from book.figures.workbench.model import SETS, Settings
from book.figures.workbench.picture import STAGES, svg
from book.sphinx.pages import raw, write_static

HERE = Path(workbench.__file__).parent
FOLDER = "bench"  # below _static
SCRIPTS = ("model.js", "picture.js")

LINE = (
    "Point at a number to see where it comes from; drag it up or down, or type, "
    "to change all that follows."
)
TOUCH = (
    "Tap a number to see where it comes from; −\u00a0and\u00a0+ change it, and all that follows."
)
SWITCHES = {
    "scaled": "÷ √d<sub>k</sub>",
    "mask": "causal mask",
    "identity": "<i>W</i> = <i>I</i>",
    "same": "<i>W<sub>Q</sub></i> = <i>W<sub>K</sub></i>",
    "rooted": "× √d<sub>model</sub>",
    "normed": "norm",
    "place": "head 2 alone",
    "turned": "positions",
    "trained": "trained",
    "every": "loss of all words",
    "back": "backward",
}
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


class Bench(SphinxDirective):
    """The picture, its line, what was measured for each switch, and the switches.

    ``:switches:`` names those that it needs. With ``:beside:`` it stands beside a text and shows
    the stage that is read about; with ``:stage:`` it stands in a text and begins at that stage,
    with ``:back:`` it begins with gradients, and with ``:set:`` with other numbers.
    """

    option_spec: ClassVar = {
        "beside": directives.flag,
        "switches": directives.unchanged,
        "stage": directives.unchanged,
        "back": directives.flag,
        "set": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Draw it; the script takes the settings from the element."""
        names = self.options.get("switches", " ".join(SWITCHES)).split()
        items = []
        for switch, (words, label) in EVIDENCE.items():
            if switch not in (*names, "cut"):
                continue
            link = nodes.reference("", "Measured ✓", refuri=f"#claim-{label}", id_link=True)
            moved = nodes.strong("", "", classes=["bench-moved"])  # the answer: from what to what
            line = nodes.paragraph("", "", moved, nodes.Text(f"{words} "), link)
            items.append(nodes.list_item("", line, classes=[f"bench-{switch}"]))
        evidence = nodes.bullet_list("", *items, classes=["bench-evidence"])
        beside, back = "beside" in self.options, "back" in self.options
        stage = stage_of(self.options["stage"]) if "stage" in self.options else None
        chosen = self.options.get("set", "")
        settings = {"stage": stage or 0, "back": back, "set": chosen, "pinned": {}, "sets": SETS}
        parts = [
            picture(svg(Settings(**SETS.get(chosen, {})), stage, back=back)),
            evidence,
            raw(controls(names, vars(Settings()) | settings)),
        ]
        sheets = ["page.css"] if stage is None else []
        if sheets:
            sheets += ["beside.css" if beside else "below.css"]
        self.env.metadata[self.env.docname]["bench"] = sheets
        return [nodes.container("", *parts, classes=["bench", *["beside"] * beside])]


class Stage(SphinxDirective):
    """``{stage} weights``: from here on the text is about this stage of the bench."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """A mark that nobody sees."""
        at = stage_of(self.arguments[0])
        return [raw(f'<span data-stage-read="{at}"></span>')]


def stage_of(title: str) -> int:
    """Which of the stages has this title."""
    return [each for each, *_ in STAGES].index(title)


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


def picture(drawing: str) -> nodes.Node:
    """The strip of a narrow page, the drawing, and the line below."""
    return raw(
        '<div class="bench-strip">'
        '<button type="button" value="-1" aria-label="Stage before">‹</button>'
        '<output></output><span class="bench-answer"></span>'
        '<button type="button" value="1" aria-label="Next stage">›</button>'
        '<button type="button" value="stored" aria-label="Stored numbers">W</button>'
        '<button type="button" value="switches" aria-label="Switches">more</button>'
        '<button type="button" value="folded" aria-label="Without the picture">▴</button></div>'
        f"{drawing}"
        f'<p class="bench-line" role="status"><span>{LINE}</span>'
        f'<span class="by-touch">{TOUCH}</span></p>'
        '<p class="bench-step" hidden><button type="button" value="-0.5" aria-label="smaller">−'
        '</button><button type="button" value="0.5" aria-label="larger">+</button></p>'
    )


def controls(names: Sequence[str], settings: Mapping[str, Any]) -> str:
    """The switches of these names, and the settings for the script."""
    on = {"scaled", "mask", settings["set"], *["back"] * settings["back"]}
    if settings["set"] and SETS[settings["set"]].get("turned"):
        on.add("turned")
    buttons = "".join(
        f'<button type="button" name="{name}" aria-pressed="{str(name in on).lower()}">'
        f"{SWITCHES[name]}</button>"
        for name in names
    )
    packed = json.dumps(settings, separators=(",", ":"))
    return (
        '<div class="bench-controls"><button type="button" name="play">▶ Play</button>'
        f"{buttons}"
        '<button type="button" name="reset">↺ reset</button></div>'
        f'<script type="application/json">{packed}</script>'
    )


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
    """Register everything."""
    app.add_directive("bench", Bench)
    app.add_directive("stage", Stage)
    app.add_directive("predict", Predict)
    app.add_css_file(f"{FOLDER}/colours.css")
    app.add_css_file(f"{FOLDER}/bench.css")
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
