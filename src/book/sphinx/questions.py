"""Small pictures for pages of plain text: bars whose numbers are claims, and tables of cells."""

import html
from itertools import groupby
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.sphinx.pages import raw

# What a letter in a picture of cells stands for: a weight, or numbers of its own; a dot is an empty
# cell.
COLOURS = {"w": "weight", "b": "blue", "o": "olive", "g": "rose", "p": "stream"}
CELL = 20


class ClaimBars(SphinxDirective):
    """``{claim-bars}``: one bar a line, ``words | number | label of the claim``.

    The number is a link to the claim, so the build checks that the claim shows it.
    """

    has_content = True
    option_spec: ClassVar = {"caption": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Make a list: as text it reads ``words number``."""
        rows = [[part.strip() for part in line.split("|")] for line in self.content if line]
        largest = max(self.size(number) for _, number, _ in rows)
        items = [self.bar(words, number, label, largest) for words, number, label in rows]
        bars = nodes.bullet_list("", *items, classes=["bars"])
        inline, messages = self.parse_inline(self.options["caption"])
        caption = nodes.paragraph("", "", *inline, classes=["picture-caption"])
        return [nodes.container("", bars, caption, classes=["picture"]), *messages]

    @staticmethod
    def size(number: str) -> float:
        """The length of a bar: the number without its unit."""
        return float(number.split()[0].replace(",", ""))

    def bar(self, words: str, number: str, label: str, largest: float) -> nodes.list_item:
        """One item: what was measured, the bar, the number."""
        link = nodes.reference("", number, refuri=f"#claim-{label}", id_link=True)
        part = self.size(number) / largest
        style = f"--part: {part:.4f}"
        drawn = raw(f'<span class="bar" style="{style}"></span>')
        inline, messages = self.parse_inline(words)
        line = nodes.paragraph("", "", nodes.inline("", "", *inline), drawn, link)
        return nodes.list_item("", line, *messages)


class Cells(SphinxDirective):
    """``{cells}``: tables of coloured cells side by side, each a title and rows of letters."""

    has_content = True
    option_spec: ClassVar = {
        "alt": directives.unchanged_required,
        "caption": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Draw the tables; blank lines stand between them."""
        blocks = [list(lines) for some, lines in groupby(self.content, bool) if some]
        drawn = "".join(self.table(title, rows) for title, *rows in blocks)
        alt = html.escape(self.options["alt"])
        picture = raw(f'<div class="cells" role="img" aria-label="{alt}">{drawn}</div>')
        inline, messages = self.parse_inline(self.options["caption"])
        caption = nodes.paragraph("", "", *inline, classes=["picture-caption"])
        return [nodes.container("", picture, caption, classes=["picture"]), *messages]

    @staticmethod
    def table(title: str, rows: list[str]) -> str:
        """One table with its title above it."""
        cells = "".join(
            f'<rect x="{x * CELL + 1}" y="{y * CELL + 1}" width="{CELL - 2}" height="{CELL - 2}" '
            f'style="fill: var(--{COLOURS.get(letter, "faint")})"/>'
            for y, row in enumerate(rows)
            for x, letter in enumerate(row)
        )
        width, height = len(rows[0]) * CELL, len(rows) * CELL
        svg = f'<svg viewBox="0 0 {width} {height}" width="{width}">{cells}</svg>'
        return f"<span><span>{html.escape(title)}</span>{svg}</span>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer two directives, which draw what answers show."""
    app.add_directive("claim-bars", ClaimBars)
    app.add_directive("cells", Cells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
