"""Formulas, drawn when the book is built: a page needs no script and no font for them."""

import hashlib
import html
import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import mathra
from docutils import nodes
from docutils.utils import get_source_line
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

from book.figures.colours import COLOURS, as_variables

logger = logging.getLogger(__name__)

# The font's: a formula is as large as the text around it if their x are equally high.
UNITS_PER_EX = 473
# What may be too wide for a line on a phone scrolls in a box of its own.
WIDE = 24
SPACE = " \t\n"  # where a line may break, unlike at a no-break space
# Signs that would be read by their names in Unicode, or not at all.
WORDS = str.maketrans(
    {
        "⊤": "transpose",
        "←": "becomes",
        "↦": "maps to",
        "⊕": "circled plus",
        "⊙": "elementwise times",
        "∘": "composed with",
        "∧": "and",
        "∼": "is distributed as",
        "ℓ": "l",
        "⌊": "floor of",
        "⌋": "end floor",
        "‖": "double bar",
    }
)

# Queries, keys and values, and what makes them, with their indices; commands, words and indices
# are passed over.
GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
INDEX = rf"(?:{GROUP}|\\[a-z]+|\w)"
NAMES = re.compile(
    rf"(?P<name>W_[QKV]|[QKV]|[qkv](?=_(?!f))|q(?= ?\\cdot)|(?<=cdot )k)(?:_{INDEX})?(?:\^{INDEX})?"
    rf"|\\(?:text|operatorname|begin|end|mathrm){GROUP}|\\[A-Za-z]+|[_^]{INDEX}"
)
VALUES = re.compile(r"[AOQK]|W_V")  # without these a V is the size of the vocabulary
KIND = {"q": "query", "k": "key", "v": "value-letter"}

# Glyphs and formulas by their ids, as elements: a page holds those that it uses once.
shared: dict[str, str] = {}


@dataclass(frozen=True)
class Formula:
    """A formula in all its forms."""

    svg: str
    width: float  # in ex
    depth: float  # below the line
    text: str  # for search, titles, and what is copied
    problems: tuple[str, ...]


def coloured(tex: str) -> str:
    r"""The formula with the book's colours for queries, keys and values.

    Example:
        >>> coloured(r"q_i \cdot k_j / \sqrt{d_k}")
        '\\textcolor{#7424d6}{q_i} \\cdot \\textcolor{#b84d00}{k_j} / \\sqrt{d_k}'
    """

    def in_colour(match: re.Match[str]) -> str:
        name = match["name"]
        if not name or (name == "V" and not VALUES.search(tex)):
            return match[0]
        return rf"\textcolor{{{COLOURS[KIND[name[-1].lower()]][0]}}}{{{match[0]}}}"

    return NAMES.sub(in_colour, tex)


@cache
def drawn(tex: str, display: bool) -> Formula:
    """Draw a formula; what it consists of is ``shared``."""
    tex = coloured(tex)
    made = mathra.render(tex, display=display)
    # The drawing program sets a prime before an index and not above it.
    above = re.sub(r"'(?=_)|(?<=_\w)'|(?<=})'", r"^{{}\\prime}", tex)
    svg = re.sub("mathra-[0-9a-f]+-", "math-", mathra.render(above, display=display)["svg"])
    for path, key in re.findall(r'(<path id="(math-\w+)"[^>]*>)', svg):
        shared[key] = path
    drawing = as_variables(svg[svg.index("<g ") : svg.rindex("</g>")])
    # Thousandths of an em do without decimals; only factors of size are below 10.
    drawing = re.sub(r' [xy]="0"|(?<=\d\d)\.\d+', "", drawing)
    key = f"math-{hashlib.sha256(drawing.encode()).hexdigest()[:8]}"
    shared[key] = drawing.replace("<g ", f'<g id="{key}" ', 1) + "</g>"
    box = re.search(r'viewBox="([^"]*)"', svg)[1]  # type: ignore[index]
    _, top, width, height = (float(number) for number in box.split())
    words = made["speech"].translate(WORDS).replace("to the transpose", "transpose")
    return Formula(
        svg=f'<svg role="img" aria-roledescription="formula" aria-label="{html.escape(words)}" '
        f'width="{width / UNITS_PER_EX:.2f}ex" height="{height / UNITS_PER_EX:.2f}ex" '
        f'viewBox="{box}"><use href="#{key}"/><text aria-hidden="true" textLength="{width:.0f}" '
        f'lengthAdjust="spacingAndGlyphs">{html.escape(made["text"])}</text></svg>',
        width=width / UNITS_PER_EX,
        depth=(height + top) / UNITS_PER_EX,
        text=made["text"],
        problems=tuple(each["description"] for each in made["warnings"]),
    )


def tex_of(node: nodes.Element) -> str:
    """The formula of a node, its lines aligned as Sphinx does it for MathJax."""
    if "tex" in node:
        return str(node["tex"])
    tex = r" \\ ".join(part for part in node.astext().split("\n\n") if part.strip())
    if isinstance(node, nodes.math) or node["nowrap"] or r"\\" not in tex:
        return tex
    return rf"\begin{{split}}{tex}\end{{split}}"


class Formulas(SphinxTransform):
    """Draw every formula of a document when it is read, and report what is wrong with it.

    The node keeps its TeX as an attribute; its text becomes one that can be read and searched,
    since titles, labels and the index are made from it.
    """

    default_priority = 870  # before Sphinx collects titles and labels

    def apply(self, **kwargs: object) -> None:
        """Change the nodes."""
        for kind in (nodes.math, nodes.math_block):
            for node in list(self.document.findall(kind)):
                node["tex"] = tex_of(node)
                formula = drawn(node["tex"], kind is nodes.math_block)
                for problem in formula.problems:
                    where = (self.env.docname, get_source_line(node)[1])
                    logger.warning("formula %r: %s", node["tex"], problem, location=where)
                node.children = [nodes.Text(formula.text)]


def join_signs(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Keep brackets and punctuation with their formula: a line may break beside any drawing."""
    parents = [math.parent for math in doctree.findall(nodes.math)]
    parents += [parent.parent for parent in parents if isinstance(parent, nodes.inline)]
    for parent in dict.fromkeys(parents):
        parts: list[nodes.Node] = []
        for child in parent.children:
            words = (
                re.findall(f"[{SPACE}]+|[^{SPACE}]+", child) if type(child) is nodes.Text else []
            )
            parts += map(nodes.Text, words) if words else [child]
        parent.clear()
        for kind, run in groupby(parts, _kind):
            joined = [*run]
            if kind == "signs" and len(joined) > 1:
                joined = [nodes.inline("", "", *joined, classes=["joined"])]
            parent += joined


def _kind(part: nodes.Node) -> str:
    if isinstance(part, nodes.Text):
        return "signs" if part.strip(SPACE) else "space"
    return "signs" if _is_formula(part) else "other"


def _is_formula(part: nodes.Node) -> bool:
    """A formula, or one in the colour of what it names."""
    if isinstance(part, nodes.inline) and len(part.children) == 1:
        part = part.children[0]
    return isinstance(part, nodes.math)


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line."""
    formula = drawn(tex_of(node), display=False)
    wide = " wide" if formula.width > WIDE else ""
    style = f"--depth: {-formula.depth:.2f}ex"
    self.body.append(self.starttag(node, "span", "", CLASS=f"formula{wide}", style=style))
    self.body.append(f"{formula.svg}</span>")
    raise nodes.SkipNode


def visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own, with its number if it has one."""
    self.body.append(self.starttag(node, "div", CLASS="equation"))
    self.body.append(f'<div class="formula">{drawn(tex_of(node), display=True).svg}</div>')
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def used(markup: str) -> set[str]:
    """What it refers to."""
    return shared.keys() & set(re.findall(r'href="#(math-\w+)"', markup))


def add_shared(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put what formulas consist of into the page; its sidebars may show those of any title."""
    titles = (math for title in app.env.titles.values() for math in title.findall(nodes.math))
    sidebars = "".join(drawn(tex_of(math), display=False).svg for math in titles)
    formulas = [shared[key] for key in sorted(used(context.get("body", "") + sidebars))]
    glyphs = [shared[key] for key in sorted(used("".join(formulas)))]
    if formulas:
        defs = "".join(glyphs + formulas)
        context["glyphs"] = f'<svg class="glyphs"><defs>{defs}</defs></svg>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Draw formulas as a text is read; put the glyphs that they share behind the page."""
    app.add_html_math_renderer("drawn", (visit_inline, None), (visit_display, None))
    app.add_transform(Formulas)
    app.connect("doctree-resolved", join_signs)
    app.connect("html-page-context", add_shared)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
