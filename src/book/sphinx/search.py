"""The book's search: finds sections, questions, terms and functions, not whole pages.

``units`` cuts the book into what a result can lead to. ``write_search`` puts them, with MiniSearch
and ``search/ranking.js``, into one script beside the pages, ``search/index.js``. It is loaded when
the reader searches, as a script and not as data, so that it works for pages opened from disk.
``static/search.js`` shows the results.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from docutils import nodes
from pybtex.richtext import Text
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.search.en import js_porter_stemmer
from sphinx_exercise.nodes import solution_node

from book.sphinx.collect import shorten
from book.sphinx.synonyms import SYNONYMS

HERE = Path(__file__).parent
VENDOR = HERE.parent / "vendor"

# Set around what is not plain words on the page: a mark is looked for between them.
JOIN = "\N{WORD JOINER}"
# What is not prose, or is a unit of its own.
SKIPPED: tuple[type, ...] = (
    nodes.literal_block,
    nodes.doctest_block,
    nodes.field_list,
    nodes.title,
    nodes.rubric,
    nodes.raw,
    nodes.image,
    nodes.Invisible,
    nodes.topic,
    nodes.system_message,
    addnodes.desc,
    addnodes.glossary,
    addnodes.index,
    addnodes.toctree,
    solution_node,
)
APART = {"cell_input", "cell_output", "claims-ledger"}

KINDS = {
    "intro": "front",
    "chapters/questions": "question",
    "chapters/claims": "ledger",
    "chapters/references": "ledger",
}


class Unit(NamedTuple):
    """What a result leads to."""

    url: str
    kind: str
    title: str
    path: str
    text: str  # sentences to show and to lead to
    aside: str = ""  # found, but not shown: cells, the numbers of bars, what is folded


def units(env: BuildEnvironment) -> Iterator[Unit]:
    """Everything that can be found, page by page."""
    for docname in sorted(env.found_docs):
        doctree = env.get_doctree(docname)
        shorten(doctree)  # what stands on another page is found there
        page = env.app.builder.get_target_uri(docname)
        name_citations(env, doctree)
        yield from _sections(env, doctree, docname, page)
        yield from _terms(doctree, page)
        yield from _objects(doctree, page)
    yield from _claims(env)
    yield from _references(env)


def _sections(
    env: BuildEnvironment, doctree: nodes.document, docname: str, page: str
) -> Iterator[Unit]:
    kind = KINDS.get(docname, "section")
    for section in doctree.findall(nodes.section):
        if not isinstance(section[0], nodes.title):
            continue  # the content of an exercise
        above: list[str] = []
        parent = section.parent
        while isinstance(parent, nodes.section):
            above.insert(0, title_of(parent))
            parent = parent.parent
        if above:
            above[0] = above[0].partition(":")[0]
            if number := env.toc_secnumbers.get(docname, {}).get(""):
                above[0] = f"{'.'.join(map(str, number))}. {above[0]}"
        # The author's label, where there is one, outlives a change of the title.
        anchor = section["ids"][-1]
        text, aside = prose(section.children), prose(section.children, aside=True)
        title = title_of(section)
        if section[0].next_node(nodes.reference):  # a chapter's name says where, the page's what
            title, above = above[0], [title]
        # Only a heading above others, or what asks and does not answer.
        shown = kind if text and title != "Exercises" else "front"
        yield Unit(f"{page}#{anchor}", shown, title, " › ".join(above), text, aside)


def _terms(doctree: nodes.document, page: str) -> Iterator[Unit]:
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            terms = [each for each in item.children if isinstance(each, nodes.term)]
            title = ", ".join(prose([term]) for term in terms)
            text = prose(item.children[len(terms) :])
            yield Unit(f"{page}#{terms[0]['ids'][0]}", "term", title, "Glossary", text)


def _objects(doctree: nodes.document, page: str) -> Iterator[Unit]:
    for described in doctree.findall(addnodes.desc):
        if described.get("domain") != "py":
            continue
        signature = described[0]
        if isinstance(signature, nodes.Element) and signature["ids"]:
            module, what = signature.get("module") or "", described["objtype"]
            # What one builds with before its methods and what serves the chapters.
            main = what in ("class", "function", "data") and module.count(".") == 1
            text = prose(cast(nodes.Element, described[-1]).children)
            url = f"{page}#{signature['ids'][0]}"
            kind = "object" if main else "inner"
            yield Unit(url, kind, signature["fullname"], f"{module} › {what}", text)


def _claims(env: BuildEnvironment) -> Iterator[Unit]:
    for docname, claims in getattr(env, "attnbook_ledger", {}).items():
        page = env.app.builder.get_target_uri(docname)
        for claim in claims:
            yield Unit(f"{page}#claim-{claim['label']}", "claim", claim["statement"], "Claim", "")


def _references(env: BuildEnvironment) -> Iterator[Unit]:
    cite: Any = env.get_domain("cite")
    for citation in cite.citations:
        page = env.app.builder.get_target_uri(citation.bibliography_key.docname)
        fields = citation.entry.fields
        title = re.sub(r"[{}]", "", fields["title"])
        url = f"{page}#{citation.citation_id}"
        text = f"{authors(citation.entry)}, {fields['year']}"
        yield Unit(url, "reference", title, "References", text)


def name_citations(env: BuildEnvironment, doctree: nodes.document) -> None:
    """Put names and years where a doctree has only keys: citations are resolved at the end."""
    cite: Any = env.get_domain("cite")
    entries = {citation.key: citation.entry for citation in cite.citations}
    for reference in doctree.findall(addnodes.pending_xref):
        if reference["refdomain"] == "cite":
            found = [entries[key] for key in reference["reftarget"].split(",")]
            cited = [(authors(entry, short=True), entry.fields["year"]) for entry in found]
            text = ", ".join(f"{names} [{year}]" for names, year in cited)
            if reference["reftype"] == "p":
                text = f"[{'; '.join(f'{names}, {year}' for names, year in cited)}]"
            reference[:] = [nodes.Text(text)]


def authors(entry: Any, *, short: bool = False) -> str:
    """The family names behind a work, all of them or as running text has them."""
    people = [
        str(Text.from_latex(" ".join(person.prelast_names + person.last_names)))
        for person in entry.persons["author"]
    ]
    if not short:
        return ", ".join(people)
    return " and ".join(people) if len(people) < 3 else f"{people[0]} et al."


def title_of(section: nodes.section) -> str:
    """A section's title, its mathematics as characters."""
    return prose(cast(nodes.Element, section[0]).children)


def prose(children: Iterable[nodes.Node], *, aside: bool = False) -> str:
    """The running text, a line for each paragraph, without code, outputs and nested units.

    Args:
        children: what to read.
        aside: read what stands in tables, pictures and folds, and nothing else.
    """
    text = "".join(_text(node, aside, inside=False) for node in children)
    return re.sub(r" ?\n[ \n]*", "\n", re.sub(r"[^\S\n]+", " ", text)).strip()


def _text(node: nodes.Node, aside: bool, inside: bool) -> str:
    """The text of a node that is, or is not, ``inside`` of what stands aside."""
    if isinstance(node, nodes.Text):
        return node.astext().replace("\n", " ") if aside == inside else ""
    node = cast(nodes.Element, node)
    nested = isinstance(node, nodes.section) and isinstance(node[0], nodes.title)
    if nested or isinstance(node, SKIPPED) or APART & set(node.get("classes", ())):
        return " "
    inside = inside or _is_aside(node)
    if isinstance(node, nodes.math | nodes.math_block):
        # A space between W_Q and W_K.
        formula = re.sub(r"(?<=_\w)(?=[A-Z])", " ", node.astext()).replace("^⊤", "ᵀ")
        text = JOIN + formula + JOIN if aside == inside else ""
    elif node.get("refdomain") == "cite":
        text = f"{JOIN}{node.astext()}{JOIN}" if aside == inside else ""
    else:
        text = "".join(_text(child, aside, inside) for child in node.children)
    return text if isinstance(node.parent, nodes.TextElement | nodes.Inline) else f"{text}\n"


def _is_aside(node: nodes.Element) -> bool:
    folded = node.get("design_component") == "dropdown"
    apart = {"dropdown", "happens", "picture", "asked"} & {*node.get("classes", ())}
    return folded or isinstance(node, nodes.table) or bool(apart)


def synonyms(listed: Iterable[Unit]) -> list[list[str]]:
    """The table above and the glossary's "also called"."""
    called = [
        [unit.title, *re.split(", | or ", also[1])]
        for unit in listed
        if unit.kind == "term"
        for also in re.finditer(r"[Aa]lso called (?:an? |the )?([^.;:(]+)", unit.text)
    ]
    return SYNONYMS + called


def write_search(app: Sphinx, exception: Exception | None) -> None:
    """Write the one script that a search loads."""
    if exception is not None or app.builder.name != "html":
        return
    listed = list(units(app.env))
    data = f"const UNITS = {_js(listed)};\nconst SYNONYMS = {_js(synonyms(listed))};\n"
    library = re.sub(
        r"(?s)/\*.*?\*/|//# sourceMappingURL.*", "", (VENDOR / "minisearch.js").read_text("utf-8")
    )
    notice = "// MiniSearch 7.2.0: see minisearch.LICENSE.txt."
    ranking = (HERE / "ranking.js").read_text("utf-8")
    target = Path(app.outdir) / "search"
    target.mkdir(exist_ok=True)
    parts = [notice, library, "(() => {", js_porter_stemmer, data, ranking, "})();\n"]
    (target / "index.js").write_text("\n".join(parts), encoding="utf-8")
    shutil.copy(VENDOR / "minisearch.LICENSE.txt", target)


def _js(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def without_sphinx_search(app: Sphinx) -> None:
    """Sphinx neither indexes the pages nor makes its search page."""
    app.builder.search = False  # type: ignore[attr-defined]


def search_page(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The page that lists all results; ``static/search.js`` fills it."""
    body = (
        '<h1>Search</h1><div id="search-page"><p>The search needs JavaScript. Without it, the '
        '<a href="genindex.html">index</a> lists the functions.</p></div>'
    )
    yield "search", {"title": "Search", "body": body}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the search."""
    app.connect("builder-inited", without_sphinx_search)
    app.connect("html-collect-pages", search_page)
    app.connect("build-finished", write_search)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
