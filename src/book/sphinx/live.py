"""``{live} name``: a model that runs in the page, as soon as a reader turns to it."""

from html import escape
from typing import Any, ClassVar, NamedTuple

import torch
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attnbook.encoder_decoder import Transformer
from attnbook.models import LanguageModel
from attnbook.tasks import tales
from attnbook.tasks.dates import END, START, DatesTask
from book.figures import live
from book.sphinx.pages import raw, write_static

FOLDER = "live"  # below _static


class Field(NamedTuple):
    """What a reader types into: what it asks for, what stands there at first, its longest text."""

    asks: str
    begins: str
    longest: int


FIELDS = {
    "dates": Field("Type a date, as you would write it", "mardi 5 mars 2024", 40),
    "tales": Field("Type a beginning", "Once a sleepy fox", 300),
}


class Live(SphinxDirective):
    """A field, and what the model writes to it; its script then takes the place of the latter.

    ``:card:`` leaves out what one can turn, for a page that shows several.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"card": directives.flag}

    def run(self) -> list[nodes.Node]:
        """The content says what one can do with it."""
        name = self.arguments[0]
        self.env.metadata[self.env.docname]["live"] = True
        size = sum(len(source) for source in sources(name).values()) / 1e6
        field, style = FIELDS[name], " live-card" * ("card" in self.options)
        start = f'<div class="live{style}" data-model="{name}">'
        body = (
            f'<label class="live-ask needs-script">{field.asks} <input type="text" '
            f'maxlength="{field.longest}" value="{field.begins}" autocomplete="off" '
            'autocapitalize="off" spellcheck="false"></label><div class="live-body">'
            f"<p>To “{field.begins}” it writes:</p><p>{escape(written(name))}</p>"
            f'<p class="live-note needs-script"><button type="button">▶ Run it here</button> '
            f"{size:.1f} MB, in your browser; nothing is sent anywhere.</p></div></div>"
        )
        return [raw(start), *self.parse_content_to_nodes(), raw(body)]


@torch.no_grad()
def written(name: str) -> str:
    """What a model writes to what stands in its field at first, each time the likeliest token."""
    model, begins = live.load(name), FIELDS[name].begins
    if isinstance(model, Transformer):
        task = DatesTask(size=1)
        ids = model.generate(
            task.encode_texts([begins]), start_id=START, end_id=END, n_tokens=12, temperature=0
        )
        return task.decode(ids)[0]
    assert isinstance(model, LanguageModel)
    pieces = tales.tokenizer()
    ids = model.generate(torch.tensor([pieces.encode(f"\n{begins}").ids]), 200, temperature=0)
    return pieces.decode(ids[0].tolist()).strip().partition("\n")[0]


def sources(name: str) -> dict[str, str]:
    """The scripts of a model, in the order in which they are loaded."""
    scripts = ("engine.js", f"{name}.js")
    return {each: (live.HERE / each).read_text("utf-8") for each in scripts} | {
        f"{name}-weights.js": live.weights(name)
    }


def write_files(app: Sphinx) -> None:
    """Put scripts, weights and styles where pages look for them."""
    files = {name: (live.HERE / name).read_text("utf-8") for name in ("load.js", "live.css")}
    for name in live.MODELS:
        files |= sources(name)
    write_static(app, FOLDER, files)


def load(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the small script on pages that have a model."""
    if "live" in app.env.metadata.get(page, {}):
        app.add_js_file(f"{FOLDER}/load.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer the directive; load a model's script where a page has one."""
    app.add_directive("live", Live)
    app.add_css_file(f"{FOLDER}/live.css")
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
