"""A page for each question, for visitors from a search engine, made of its entry on the index.

Questions are written once, in ``chapters/questions.md``. A page has the question as its title, the
answer, what shows it, the measurements behind it, and where to read on; the index in HTML keeps
questions and answers alone. It is in no contents, in no archive and not in the search, which lead
to the index.
"""

import ast
import html
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx_design.dropdown import dropdown_main

from book.press.contents import chapters
from book.sphinx.evidence import LEDGER, ancestor, claim_line
from book.sphinx.pages import raw, themed_svg
from book.sphinx.search import JOIN, prose, title_of
from book.sphinx.subjects import subjects_of

INDEX = "chapters/questions"
FOLDER = "questions"
NEIGHBOURS = 3
SETTINGS = PARTINGS = 3  # that are named, shown openly
LARGEST = 60_000  # bytes of a figure from a chapter
DESCRIBED = 160  # characters, about what a search engine shows
CONTENTS = (
    '<ul><li><a href="#">The answer</a><ul><li><a href="#how-we-know">How we know</a></li>'
    '<li><a href="#read-on">Read on</a></li></ul></li></ul>'
)


class Figure(NamedTuple):
    """A figure of a chapter."""

    docname: str
    anchor: str
    number: tuple[int, ...]  # none outside of chapters
    svg: Path
    alt: str
    caption: str


class Entry(NamedTuple):
    """A question of the index, which is resolved for HTML."""

    asked: nodes.section
    shown: list[nodes.Node]  # between answer and fold: a picture, or lines of code
    fold: dropdown_main  # "How we know"

    @property
    def label(self) -> str:
        """The question's label on the index."""
        return str(self.asked["ids"][-1])

    @property
    def name(self) -> str:
        """Name of its page."""
        return self.label.removeprefix("q-")

    @property
    def question(self) -> str:
        """The question, as text."""
        return title_of(self.asked).replace(JOIN, "")


def entries(part: nodes.Element) -> list[Entry]:
    """The questions in a part of the index."""
    found = []
    for section in part.findall(nodes.section):
        fold = next((each for each in section.children if isinstance(each, dropdown_main)), None)
        if fold:
            found.append(Entry(section, section.children[2 : section.index(fold)], fold))
    return found


def answers(env: BuildEnvironment) -> dict[str, str]:
    """The answers by their labels, as text. Where links to claims are drawn, theirs is lost."""
    return {
        section["ids"][-1]: prose([section[1]]).replace(JOIN, "")
        for section in env.get_doctree(INDEX).findall(nodes.section)
    }


def shorten(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Leave question and answer on the index, and a link to the page that has the rest."""
    if docname != INDEX or app.builder.name != "html":
        return
    doctree.attnbook_whole = doctree.deepcopy()  # type: ignore[attr-defined]
    for entry in entries(doctree):
        uri = app.builder.get_relative_uri(INDEX, f"{FOLDER}/{entry.name}")
        code = any(isinstance(each, nodes.literal_block) for each in entry.shown)
        words = f"{'Lines to run' if code else 'A picture'}, and how we know"
        label = f"{words}: {html.escape(entry.question)}"
        link = raw(f'<p class="own-page"><a href="{uri}" aria-label="{label}">{words}</a></p>')
        entry.asked[2:] = [link]
    for block in list(doctree.findall(nodes.literal_block)):  # imports: a page has its own
        block.parent.remove(block)


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The pages, in the order of the index."""
    if app.builder.name != "html" or INDEX not in app.env.found_docs:
        return
    shutil.rmtree(Path(app.outdir) / FOLDER, ignore_errors=True)  # or those of removed ones stay
    resolved = app.env.get_and_resolve_doctree(INDEX, app.builder)
    index: nodes.document = resolved.attnbook_whole  # type: ignore[attr-defined]
    # Beside all these pages the contents of the book are the same, and take long to make.
    contents = cache(partial(app.builder._get_local_toctree, f"{FOLDER}/"))  # type: ignore[attr-defined]
    imports = next(index.findall(nodes.literal_block)).astext()
    figures, texts = figures_beside_claims(app.env), answers(app.env)
    whole = next(index.findall(nodes.section))
    for topic in [part for part in whole.children if isinstance(part, nodes.section)]:
        group = entries(topic)
        for i, entry in enumerate(group):
            linked = chapters_of(app, entry.asked)
            beside = (group[i + 1 :] + group[:i])[:NEIGHBOURS]
            read_on = linked | {f"#q-{each.name}": heading(app, each.asked[0]) for each in beside}
            answer = texts[entry.label]
            says = html.escape(first_sentences(answer))
            context = {
                "toctree": contents,
                "title": html.escape(entry.question),
                "metatags": f'<meta content="{says}" name="description" />',
                "pictured": f"chapters/{Path(next(iter(linked))).stem}",
                "structured": structured(entry.question, answer),
                "toc": CONTENTS,
                "body": body(app, entry, topic, read_on, imports, figures),
            }
            yield f"{FOLDER}/{entry.name}", context, "page.html"


def structured(question: str, answer: str) -> dict[str, Any]:
    """A question and its answer for machines, as schema.org has them."""
    accepted = {"@type": "Answer", "text": answer}
    entity = {"@type": "Question", "name": question, "acceptedAnswer": accepted}
    return {"@context": "https://schema.org", "@type": "FAQPage", "mainEntity": [entity]}


def first_sentences(text: str) -> str:
    """As many whole sentences as a search engine shows, and at least one."""
    first, *others = re.split(r"(?<=[.!?]) ", text)
    for sentence in others:
        if len(first) + len(sentence) >= DESCRIBED:
            break
        first += f" {sentence}"
    return first


def chapters_of(app: Sphinx, asked: nodes.section) -> dict[str, str]:
    """The chapters that an entry links to, and their titles with their numbers."""
    pages = {
        app.builder.get_relative_uri(INDEX, path.with_suffix("").as_posix()): title
        for path in chapters()
        if (title := app.env.titles.get(path.with_suffix("").as_posix()))
    }
    linked = {link.get("refuri", "").partition("#")[0] for link in asked.findall(nodes.reference)}
    return {page: heading(app, title) for page, title in pages.items() if page in linked}


def heading(app: Sphinx, title: nodes.Node) -> str:
    """A title as HTML."""
    return app.builder.render_partial(title.deepcopy())["title"]  # type: ignore[attr-defined, no-any-return]


def body(
    app: Sphinx,
    entry: Entry,
    topic: nodes.section,
    read_on: dict[str, str],
    imports: str,
    figures: dict[str, Figure],
) -> str:
    """What the page shows; its links are written as on the index, and led from here at the end."""

    def drawn(*parts: nodes.Node) -> str:
        return "".join(app.builder.render_partial(part)["fragment"] for part in parts)  # type: ignore[attr-defined]

    title, answer = entry.asked.children[:2]
    for block in entry.shown:
        if isinstance(block, nodes.literal_block):
            block.rawsource = with_imports(imports, block.astext())
            block[:] = [nodes.Text(block.rawsource)]
    says, shown, known = drawn(answer), drawn(*entry.shown), drawn(*evidence_of(entry.fold))
    labels = list(dict.fromkeys(re.findall(r'#claim-([\w-]+)"', says + shown + known)))
    picture = "" if 'class="picture' in shown else drawing(app, labels, figures)
    about = subjects(app.env, labels)
    links = "".join(f'<li><a href="{to}">{text}</a></li>' for to, text in (read_on | about).items())
    index = "questions.html"
    return moved(
        f'''<section>
<p class="trail"><a href="{index}#{topic["ids"][-1]}">Questions › {topic[0].astext()}</a></p>
<h1>{heading(app, title)}</h1>
{says}{shown}{picture}
<section id="how-we-know"><h2>How we know</h2>
{known}{partings(app.env, labels)}{settings(app.env, labels)}{claims(app.env, labels)}</section>
<section id="read-on"><h2>Read on</h2>
<ul>{links}<li><a href="{index}#q-{entry.name}">All questions</a></li></ul></section>
</section>'''
    )


def with_imports(imports: str, code: str) -> str:
    """The lines, after those of the index's imports that they need."""
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    needed = [
        ast.unparse(statement)
        for statement in ast.parse(imports).body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        if {alias.asname or alias.name for alias in statement.names} & names
    ]
    return "\n".join([*needed, *[""] * bool(needed), code])


def evidence_of(fold: dropdown_main) -> list[nodes.Node]:
    """What the fold says, without a last line of chapters, which are where one reads on."""
    parts = cast(nodes.Element, fold[-1]).children
    for part in fold.findall(nodes.paragraph):
        part["classes"] = []
    only_chapters = re.fullmatch(r"Chapters? [\d, and]+\.", parts[-1].astext())
    return parts[:-1] if only_chapters else parts


def claims(env: BuildEnvironment, labels: Sequence[str]) -> str:
    """The claims behind the numbers, each a line that opens."""
    known: dict[str, tuple[str, Any]] = env.attnbook_claims  # type: ignore[attr-defined]
    uri = env.app.builder.get_relative_uri
    lines = "".join(
        f"<li>{claim_line(claim, uri(INDEX, LEDGER), page=uri(INDEX, docname))}</details></li>"
        for docname, claim in map(known.__getitem__, labels)
    )
    count = f"{len(labels)} claim{'s' * (len(labels) != 1)}"
    summary = f"<summary>The measurements behind these numbers <span>{count}</span></summary>"
    return f'<details class="aside claims">{summary}<ul>{lines}</ul></details>' if labels else ""


def settings(env: BuildEnvironment, labels: Sequence[str]) -> str:
    """What the numbers were measured on; of many settings the most frequent."""
    known: dict[str, tuple[str, Any]] = env.attnbook_claims  # type: ignore[attr-defined]
    counts = Counter(known[label][1]["setting"]["line"] for label in labels)
    lines = [f"<li>{html.escape(line)}</li>" for line, _ in counts.most_common(SETTINGS)]
    if len(counts) > SETTINGS:
        lines.append(f"<li>and {len(counts) - SETTINGS} more, at each number</li>")
    return f'<p>Measured on:</p><ul class="settings">{"".join(lines)}</ul>' if labels else ""


def subjects(env: BuildEnvironment, labels: Sequence[str]) -> dict[str, str]:
    """Where the subjects of most of the claims are, and what the links say."""
    found = subjects_of(env, labels, INDEX)
    return {uri: f"What the book knows about: {html.escape(title)}" for uri, title in found.items()}


def partings(env: BuildEnvironment, labels: Sequence[str]) -> str:
    """What points in another direction than one of the claims."""
    known: dict[str, tuple[str, Any]] = env.attnbook_claims  # type: ignore[attr-defined]
    counts = Counter(
        (each["differ"], each["why"])
        for label in labels
        for each in known[label][1]["differs_from"]
    )
    pairs = "".join(
        f"<p>⇆ {html.escape(differ)} <em>{html.escape(why)}</em></p>" for differ, why in counts
    )
    if len(counts) <= PARTINGS:
        return pairs
    summary = f"{len(counts)} pairs of results that point in different directions"
    return f'<details class="aside"><summary>{summary}</summary>{pairs}</details>'


def figures_beside_claims(env: BuildEnvironment) -> dict[str, Figure]:
    """For each claim, the nearest figure of its section that does not move, where there is one."""
    nearest: dict[str, Figure] = {}
    for docname in env.attnbook_ledger:  # type: ignore[attr-defined]
        figures: dict[Any, dict[int, Figure]] = defaultdict(dict)  # by section and place
        stated: list[tuple[Any, int, str]] = []
        for place, node in enumerate(env.get_doctree(docname).findall()):
            if isinstance(node, nodes.image) and (drawn := still_figure(env, docname, node)):
                figures[ancestor(node, nodes.section)][place] = drawn
            elif isinstance(node, nodes.raw):
                for label in re.findall(r'^<div class="claim" id="claim-([^"]+)"', node.astext()):
                    stated.append((ancestor(node, nodes.section), place, label))
        for section, place, label in stated:
            near = [(abs(at - place), figure) for at, figure in figures[section].items()]
            if near:
                nearest[label] = min(near)[1]
    return nearest


def still_figure(env: BuildEnvironment, docname: str, image: nodes.image) -> Figure | None:
    """The figure around a drawing; none if it moves, which brings its own words, or is large."""
    figure, svg = ancestor(image, nodes.figure), Path(env.srcdir) / image["uri"]
    if not figure or "alt" not in image or svg.suffix != ".svg" or svg.stat().st_size > LARGEST:
        return None
    anchor = figure["ids"][0]
    number = env.toc_fignumbers.get(docname, {}).get("figure", {}).get(anchor, ())
    caption = prose(figure.findall(nodes.caption)).replace(JOIN, "")
    return Figure(docname, anchor, number, svg, image["alt"], caption)


def drawing(app: Sphinx, labels: Sequence[str], figures: dict[str, Figure]) -> str:
    """The figure beside which half of the claims, or more, were measured, if there is one."""
    beside = Counter(figures[label] for label in labels if label in figures)
    for figure, n in beside.most_common(1):
        if n >= 2 and 2 * n >= len(labels):
            svg = re.sub(r">\n\s*<", "><", figure.svg.read_text("utf-8"))  # light: not indented
            svg = themed_svg(svg, figure.alt)
            uri = app.builder.get_relative_uri(INDEX, figure.docname)
            number = ".".join(map(str, figure.number))
            name = f"Fig. {number}" if number else "From the book:"
            link = f'<a class="caption-number" href="{uri}#{figure.anchor}">{name}</a>'
            caption = f"<figcaption><p>{link} {html.escape(figure.caption)}</p></figcaption>"
            return f'<figure class="align-default">{svg}{caption}</figure>'
    return ""


def moved(markup: str) -> str:
    """With links from a page, what has links from the index; to other questions' own pages."""

    def to(link: re.Match[str]) -> str:
        address = link[1]
        if address.startswith("#q-"):
            return f'href="{address[3:]}.html"'
        inside = address.startswith("#") or "://" in address
        return link[0] if inside else f'href="../chapters/{address}"'

    return re.sub('href="([^"]*)"', to, markup)


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the questions' pages, and leave on the index what leads there."""
    app.connect("doctree-resolved", shorten, priority=900)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
