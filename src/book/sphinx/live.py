"""``{live} name``: a model that runs in the page when a reader asks for it."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.figures import live
from book.sphinx.pages import raw, write_static

FOLDER = "live"  # below _static


class Live(SphinxDirective):
    """A button that says what it loads; the model's script then takes the place of what is here."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """The content says what one can do with it."""
        name = self.arguments[0]
        self.env.metadata[self.env.docname]["live"] = True
        size = sum(len(source) for source in sources(name).values()) / 1e6
        button = (
            f'<p><button type="button">Load the model ({size:.1f} MB)</button> '
            "It runs in your browser, and nothing is sent anywhere.</p></div>"
        )
        start = f'<div class="live needs-script" data-model="{name}">'
        return [raw(start), *self.parse_content_to_nodes(), raw(button)]


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
