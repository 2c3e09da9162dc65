"""``{bench}``: the model that a reader can change, as :mod:`attnbook.book.bench` draws it."""

import json
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attnbook.book import bench, colours
from attnbook.book.bench.model import Settings
from attnbook.book.bench.picture import svg

HERE = Path(bench.__file__).parent
FOLDER = "bench"  # below _static
SCRIPTS = ("model.js", "picture.js")

LINE = (
    "Press Play, or point at a number to see where it comes from. "
    "Drag it up or down, and all that follows changes."
)
SWITCHES = {
    "scaled": "÷ √d<sub>k</sub>",
    "mask": "causal mask",
    "identity": "<i>W</i> = <i>I</i>",
    "same": "<i>W<sub>Q</sub></i> = <i>W<sub>K</sub></i>",
    "rooted": "× √d<sub>model</sub>",
    "every": "loss of all words",
    "back": "backward",
}
EVIDENCE = {  # switch -> what it does here, and the claim that says what came of training so
    "scaled": ("Without the division the largest weight takes more.", "aw-forgotten"),
    "mask": (
        "Without the mask a word sees what it is to predict; “sat”, the last one, sees no more.",
        "bug-alone-no-causal-mask",
    ),
    "identity": ("With the identity a word finds its own kind.", "qkv-ring-identity"),
    "same": ("With one matrix for both, a word looks for its own kind.", "qkv-reversal-slower"),
    "rooted": ("Each row of the table is larger by the root of its width.", "lm-left-tied"),
}


class Bench(SphinxDirective):
    """The picture, its line, what was measured for each switch, and the switches."""

    def run(self) -> list[nodes.Node]:
        """Draw it; the script takes the settings from the element."""
        items = []
        for switch, (words, label) in EVIDENCE.items():
            link = nodes.reference(
                "", "Trained like this? ✓", refuri=f"#claim-{label}", id_link=True
            )
            line = nodes.paragraph("", "", nodes.Text(f"{words} "), link)
            items.append(nodes.list_item("", line, classes=[f"bench-{switch}"]))
        evidence = nodes.bullet_list("", *items, classes=["bench-evidence"])
        parts = [picture(), evidence, nodes.raw("", controls(), format="html")]
        self.env.metadata[self.env.docname]["bench"] = True
        return [nodes.container("", *parts, classes=["bench"])]


def picture() -> nodes.Node:
    """The strip of a narrow page, the drawing, and the line below."""
    return nodes.raw(
        "",
        '<div class="bench-strip"><button type="button" value="-1" aria-label="Stage before">‹'
        '</button><output></output><button type="button" value="stored" aria-pressed="false">'
        'stored</button><button type="button" value="1" aria-label="Next stage">›</button></div>'
        f"{svg()}"
        f'<p class="bench-line" role="status"><span>{LINE}</span></p>'
        '<p class="bench-step" hidden><button type="button" value="-0.5" aria-label="smaller">−'
        '</button><button type="button" value="0.5" aria-label="larger">+</button></p>',
        format="html",
    )


def controls() -> str:
    """The switches, and the settings for the script."""
    settings = {**vars(Settings()), "pinned": {}}
    on = {"scaled", "mask"}
    buttons = "".join(
        f'<button type="button" name="{name}" aria-pressed="{str(name in on).lower()}">'
        f"{words}</button>"
        for name, words in SWITCHES.items()
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
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    for name in (*SCRIPTS, "bench.css"):
        shutil.copy(HERE / name, target)
    (target / "colours.css").write_text(colours.css(), "utf-8")


def load(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the scripts on pages that have a bench."""
    if app.env.metadata.get(page, {}).get("bench"):
        for name in SCRIPTS:
            app.add_js_file(f"{FOLDER}/{name}", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register everything."""
    app.add_directive("bench", Bench)
    app.add_css_file(f"{FOLDER}/colours.css")
    app.add_css_file(f"{FOLDER}/bench.css")
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
