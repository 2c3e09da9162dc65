"""The pages as a web product: light to load, plain to machines, valid.

One stylesheet of what is used, no script that the reader waits for, a head that says what the page
is, and markup that browsers and screen readers agree on.
"""

import base64
import datetime
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tinycss2
import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.writers.html5 import HTML5Translator
from sphinx_exercise.nodes import exercise_enumerable_node, exercise_node, solution_node

from book.press.policy import with_policy

STATIC = Path(__file__).parent / "static"
THEME = ("basic.css", "styles/bootstrap.css", "styles/pydata-sphinx-theme.css")
# Of the theme's files nothing is used but what THEME and the pages name.
UNUSED = (
    *("vendor", "scripts/bootstrap.js", "scripts/bootstrap.js.map", "design-tabs.js"),
    *("webpack-macros.html", "sbt-webpack-macros.html"),
)
# What the theme's script measures one by one, which lays a page out again for each of it;
# static/scroll.js reads all, and then writes.
MEASURED = "pre, .nboutput > .output_area, .cell_output > .output, .jp-RenderedHTMLCommon"
DESCRIPTIONS = {
    "search": "Search the book Attention, Measured.",
    "genindex": "Index of the names of the package attnbook.",
    "py-modindex": "The modules of the package attnbook.",
    "404": "This page does not exist.",
}


class Summary(nodes.Part, nodes.TextElement):
    """What of a fold is always visible."""


def bring(app: Sphinx, config: Config) -> None:
    """The book's own stylesheets and scripts, on every page."""
    config.html_static_path.append(str(STATIC))
    config.html_css_files += sorted(path.name for path in STATIC.glob("*.css"))
    config.html_js_files += sorted(path.name for path in STATIC.glob("*.js"))


def fold_solutions(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Exercises without an inner section, all of which had one id; solutions as folds."""
    kinds = (exercise_node, exercise_enumerable_node, solution_node)
    folds: list[Any] = list(doctree.findall(lambda node: isinstance(node, kinds)))
    for node in folds:
        for section in list(node.findall(nodes.section)):
            at = node.index(section)
            node[at : at + 1] = section.children
        if isinstance(node, solution_node):
            node["classes"] = [each for each in node["classes"] if each != "dropdown"]
            node["ids"] = [each.rpartition("/")[2] for each in node["ids"]]
            # The exercise stands just above: no link inside what one clicks on.
            node.children[0].replace_self(Summary("", " ".join(node.children[0].astext().split())))


def visit_solution(self: HTML5Translator, node: nodes.Element) -> None:
    """A solution is a fold."""
    self.body.append(self.starttag(node, "details", CLASS="admonition"))


def writes(text: str) -> Callable[[HTML5Translator, nodes.Element], None]:
    """What docutils calls for a node, where that is one text."""
    return lambda self, node: self.body.append(text)


def head(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Say what the page is, for its head and its foot, and let no script hold it up."""
    tags = context.get("metatags", "")
    given = re.search(r'content="([^"]*)" name="description"', tags)
    words = html.unescape(given[1]) if given else DESCRIPTIONS.get(page, "")
    if not given and words:
        tags += f'\n    <meta name="description" content="{html.escape(words)}" />'
    # The theme's layout has a viewport, and so has docutils.
    context["metatags"] = re.sub(r'<meta name="viewport"[^>]*>', "", tags)
    context["description"] = words
    context["title"] = context.get("title") or "Search"
    context["baseurl"] = base_address(app)
    context["book"], context["book_date"] = about(app)
    if page == app.config.root_doc:
        context["structured"] = context["book"]
    if context["baseurl"]:
        context["picture"] = picture(app, context.get("pictured", page))
    sheets = sorted(context["css_files"], key=lambda sheet: sheet.priority)
    styles = [str(sheet.filename) for sheet in sheets]
    context["site_css"] = note_styles(app, styles)
    if contents := context.get("generate_toctree_html"):
        # The theme's fold of a page's subpages has no name.
        named = '<summary aria-label="Show or hide the pages below">'
        context["generate_toctree_html"] = lambda *given, **options: str(
            contents(*given, **options)
        ).replace("<summary>", named)
    context["script_files"] = needed(context["script_files"], context.get("body", ""))


def needed(scripts: Sequence[Any], body: str) -> list[Any]:
    """The scripts that a page with this body needs; it waits for none of them."""
    needless = ["pagename =", "sphinx_highlight", *([] if has_folds(body) else ["toggle"])]
    kept = []
    for script in scripts:
        says = f"{script.filename} {script.attributes.get('body')}"
        if Path(str(script.filename)).name in UNUSED or any(words in says for words in needless):
            continue
        if script.filename:
            script.attributes["defer"] = "defer"
        kept.append(script)
    return kept


def has_folds(body: str) -> bool:
    """Is there anything that sphinx-togglebutton would give a button?"""
    return bool(
        re.search(r'class="(?:[^"]* )?(?:toggle|dropdown admonition|admonition dropdown)\b', body)
    )


def base_address(app: Sphinx) -> str:
    """Where the pages will be, with a slash at the end; empty if nobody has said so."""
    base: str = app.config.html_baseurl
    return f"{base.rstrip('/')}/" if base else ""


@cache
def picture(app: Sphinx, docname: str) -> str:
    """What a link to the page shows: the first PNG that its notebook has, or the book's picture."""
    notebook = Path(app.srcdir) / f"{docname}.ipynb"
    cells = json.loads(notebook.read_text("utf-8"))["cells"] if notebook.exists() else []
    outputs = (output.get("data", {}) for cell in cells for output in cell.get("outputs", []))
    png = next((data["image/png"] for data in outputs if "image/png" in data), None)
    if png is None:
        return "_static/card.png"
    target = Path(app.outdir) / "_static" / "og" / f"{notebook.stem}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(base64.b64decode("".join(png)))
    return target.relative_to(app.outdir).as_posix()


def about(app: Sphinx) -> tuple[dict[str, Any], str]:
    """The book for machines, as schema.org has it, and its date for readers.

    The date is that of the commit the pages are built from; without git, of the last release.
    """
    cited = yaml.safe_load((Path(app.srcdir) / "CITATION.cff").read_text(encoding="utf-8"))
    git = ["git", "-C", str(app.srcdir), "log", "-1", "--format=%cs"]
    ran = (
        subprocess.run(git, capture_output=True, text=True, check=False)
        if shutil.which("git")
        else None
    )
    date = ran.stdout.strip() if ran and not ran.returncode else str(cited["date-released"])
    day = datetime.date.fromisoformat(date)
    book = {
        "@context": "https://schema.org",
        "@type": "Book",
        "name": cited["title"],
        "description": " ".join(cited["abstract"].split()),
        "author": {"@type": "Organization", "name": cited["authors"][0]["name"]},
        "version": cited["version"],
        "dateModified": date,
        "inLanguage": app.config.language,
        "license": "https://creativecommons.org/licenses/by/4.0/",
    }
    if base := base_address(app):
        book["url"] = base
    return book, f"{day.day} {day:%B %Y}"


def note_styles(app: Sphinx, files: Sequence[str]) -> str:
    """Remember the stylesheets of the pages, of which ``finish`` makes one.

    Returns:
        What tells a browser that they changed.
    """
    static = Path(app.outdir) / "_static"
    known = app.attnbook_styles = [  # type: ignore[attr-defined]
        *(static / name for name in THEME),
        *(Path(app.outdir) / name.partition("?")[0] for name in files),
    ]
    # MyST-NB writes its own at the end, under a name that says what is in it.
    seen = (path.read_bytes() if path.exists() else path.name.encode() for path in known)
    return hashlib.sha256(b"".join(seen)).hexdigest()[:8]


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Put policies into the pages, shorten the stylesheet; write what only a whole site has."""
    if exception is not None or app.builder.name != "html":
        return
    out, static = Path(app.outdir), Path(app.outdir) / "_static"
    shutil.copyfile(out / f"{app.config.root_doc}.html", out / "index.html")
    pages = sorted(path for path in out.rglob("*.html") if "_static" not in path.parts)
    used: set[str] = set()
    for path in pages:
        page = path.read_text(encoding="utf-8")
        for names in re.findall(r'(?:class|id)="([^"]*)"', page):
            used.update(names.split())
        if page != (held := with_policy(page)):
            path.write_text(held, encoding="utf-8")
    for name in UNUSED:
        path = static / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    script = static / "scripts/pydata-sphinx-theme.js"
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace(MEASURED, "[data-measured]"), encoding="utf-8")
    own = ("interactive/figures.js", "bench/picture.js", "live/dates.js", "live/tales.js")
    scripts = ("*.js", "scripts/*.js", *own)
    for path in (path for each in scripts for path in static.glob(each)):
        used.update(re.findall(r"[\w-]+", path.read_text(encoding="utf-8")))
    if styles := getattr(app, "attnbook_styles", None):
        joined = "\n".join(path.read_text(encoding="utf-8") for path in styles)
        rules = tinycss2.parse_stylesheet(joined, skip_comments=False, skip_whitespace=True)
        (static / "site.css").write_text(shortened(rules, used), encoding="utf-8")
    base = base_address(app)
    if base:
        listed = (path.relative_to(out).as_posix() for path in pages)
        (out / "sitemap.xml").write_text(sitemap(base, listed), encoding="utf-8")
    mapped = f"Sitemap: {base}sitemap.xml\n" if base else ""
    (out / "robots.txt").write_text(f"User-agent: *\nAllow: /\n{mapped}", encoding="utf-8")


def sitemap(base: str, pages: Iterable[str]) -> str:
    """The addresses of the pages that a search engine is to know."""
    urls = "".join(
        f"<url><loc>{html.escape(base + page)}</loc></url>\n"
        for page in pages
        if page not in ("index.html", "404.html", "search.html")
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}</urlset>\n'
    )


def shortened(rules: list[Any], used: set[str]) -> str:
    """The rules whose selectors name only classes and ids that are somewhere in ``used``."""
    kept = []
    for rule in rules:
        if rule.type == "comment" and rule.value.startswith("!"):
            kept.append(f"/*{rule.value}*/")
        elif rule.type == "qualified-rule":
            selectors = [each for each in split(rule.prelude) if named(each) <= used]
            if selectors:
                content = tinycss2.serialize(rule.content).strip()
                kept.append(f"{','.join(selectors)}{{{content}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports"):
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            if content := shortened(inner, used):
                kept.append(f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{content}}}")
        elif rule.type == "at-rule":
            kept.append(rule.serialize())
    return "\n".join(kept)


def split(prelude: list[Any]) -> Iterator[str]:
    """The selectors between the commas."""
    part: list[Any] = []
    for token in [*prelude, None]:
        if token is None or token == ",":
            yield tinycss2.serialize(part).strip()
            part = []
        else:
            part.append(token)


def named(selector: str) -> set[str]:
    """The classes and ids that an element must have; what stands in brackets is not counted."""
    while (shorter := re.sub(r"\([^()]*\)|\[[^\]]*\]", "", selector)) != selector:
        selector = shorter
    return set(re.findall(r"[.#]([A-Za-z_-][\w-]*)", selector))


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The page that a host shows for an address that does not exist."""
    body = (
        "<section><h1>This page does not exist</h1><p>It may have moved. "
        f'The <a href="{app.config.root_doc}.html">first page</a> and the '
        '<a href="search.html">search</a> lead to all others.</p></section>'
    )
    yield "404", {"title": "This page does not exist", "body": body}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in a build from its settings to the stylesheet of all that pages use."""
    app.setup_extension("sphinx_exercise")
    title = writes('<summary class="admonition-title">'), writes("</summary>\n")
    app.add_node(Summary, html=title)
    app.add_node(solution_node, override=True, html=(visit_solution, writes("</details>\n")))
    app.connect("config-inited", bring)
    app.connect("doctree-resolved", fold_solutions)
    app.connect("html-collect-pages", pages)
    app.connect("html-page-context", head, priority=900)
    app.connect("build-finished", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
