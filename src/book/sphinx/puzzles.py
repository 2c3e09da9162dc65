"""``{puzzles}``: the bench with goals, a game by its script; ``{puzzle-index}``: all of them."""

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book.figures import workbench
from book.figures.workbench.bench import Bench
from book.figures.workbench.picture import STAGES
from book.figures.workbench.puzzles import FILE, Puzzle, in_words, puzzles
from book.sphinx.bench import FOLDER, placed
from book.sphinx.pages import raw, write_static

SCRIPT = "puzzles.js"
HERE = Path(workbench.__file__).parent


PLAYED = ("name", "chapter", "may", "must", "lanes", "start", "switches", "solution", "ways")


class Game(SphinxDirective):
    """The bench between a place for the task and one for help, and what the script has to know."""

    def run(self) -> list[nodes.Node]:
        """Draw the bench with the switches that some puzzle needs."""
        self.env.note_dependency(str(FILE))
        meta = self.env.metadata[self.env.docname]
        meta["puzzles"], meta["bench"] = True, ["page.css", "puzzles.css"]
        every, stages = puzzles(), [title for title, *_ in STAGES]
        played = [
            {name: getattr(each, name) for name in PLAYED}
            | {"stage": stages.index(each.stage), "says": plain(each.goal)}
            for each in every
        ]
        switches = {name for each in every for name in each.switches}
        bench = Bench(switches=" ".join(name for name in Bench().names if name in switches))
        places = raw('<div class="task needs-script"></div><div class="side needs-script"></div>')
        packed = json.dumps(played, separators=(",", ":"), ensure_ascii=False)
        return [
            nodes.container("", places, placed(bench), classes=["play"]),
            raw(f'<script type="application/json" class="puzzles">{packed}</script>'),
        ]


class Index(SphinxDirective):
    """All puzzles by chapter: goals, hints and solutions, as sections that the script reads."""

    def run(self) -> list[nodes.Node]:
        """Write them as Markdown."""
        self.env.note_dependency(str(FILE))
        folder = Path(self.env.doc2path(self.env.docname)).parent
        return self.parse_text_to_nodes(written(folder), allow_section_headings=True)


def written(chapters: Path) -> str:
    """All puzzles as Markdown, below the chapters of this folder."""
    files = {int(path.name[:2]): path.name for path in chapters.glob("[0-9]*.ipynb")}
    text = ""
    for chapter, group in groupby(puzzles(), key=lambda each: each.chapter):
        text += f"## [Chapter {chapter}]({files[chapter]})\n\n"
        text += "\n\n".join(map(section, group)) + "\n\n"
    return text


def plain(text: str) -> str:
    """Markdown as text that is spoken."""
    return re.sub(r"[$*{}]", "", text.replace(r"\sqrt", "√"))


def section(puzzle: Puzzle) -> str:
    """A puzzle as Markdown, hints and solution folded."""
    dots = "●" * puzzle.level + "<i>" + "●" * (3 - puzzle.level) + "</i>"
    level = f'<span class="level" role="img" aria-label="Level {puzzle.level} of 3">{dots}</span>'
    hints = "\n".join(f"{i}. {hint}" for i, hint in enumerate(puzzle.hints, 1))
    moves = "; ".join(in_words(puzzle, key) for key in puzzle.solution)
    moves = moves[0].upper() + moves[1:]
    says = re.sub(r"\b([A-Z]_[A-Z1-9]|[EX])\b", r"$\1$", puzzle.may["says"])
    return (
        f"({puzzle.name})=\n### {puzzle.goal}\n\n"
        f"{level} Change {says}.\n\n"
        f":::{{dropdown}} Three hints\n{hints}\n:::\n\n"
        f":::{{dropdown}} Solution\n{moves}.\n\n{puzzle.why}\n:::"
    )


def write_files(app: Sphinx) -> None:
    """Put the script where the page looks for it."""
    write_static(app, FOLDER, {SCRIPT: (HERE / SCRIPT).read_text("utf-8")})


def load(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the script on the page that has the puzzles, after the bench's."""
    if "puzzles" in app.env.metadata.get(page, {}):
        app.add_js_file(f"{FOLDER}/{SCRIPT}", loading_method="defer", priority=900)


def setup(app: Sphinx) -> dict[str, bool]:
    """Offer two directives; load their script where a page has them."""
    app.add_directive("puzzles", Game)
    app.add_directive("puzzle-index", Index)
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
