"""Every page carries a Content-Security-Policy, when all have been written."""

from pathlib import Path

from sphinx.application import Sphinx

from attnbook.book.policy import with_policy


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Put each page's policy into it."""
    if exception is not None or app.builder.name != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if page != (held := with_policy(page)):
            path.write_text(held, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """After all others that write pages."""
    app.connect("build-finished", finish, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
