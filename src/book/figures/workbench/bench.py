"""The bench as a cell of a notebook shows it, and as a page does."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinycss2 import parse_stylesheet, serialize

from book.figures import colours
from book.figures.workbench.model import SETS, Settings
from book.figures.workbench.picture import STAGES, svg
from book.reader import reads

HERE = Path(__file__).parent
SCRIPTS = ("model.js", "picture.js")
LINE = (
    "Point at a number to see where it comes from; drag it up or down, or type, "
    "to change all that follows."
)
TOUCH = (
    "Tap a number to see where it comes from; −\u00a0and\u00a0+ change it, and all that follows."
)
SWITCHES = {
    "scaled": "÷ √d<sub>k</sub>",
    "mask": "causal mask",
    "identity": "<i>W</i> = <i>I</i>",
    "same": "<i>W<sub>Q</sub></i> = <i>W<sub>K</sub></i>",
    "rooted": "× √d<sub>model</sub>",
    "normed": "norm",
    "place": "head 2 alone",
    "turned": "positions",
    "trained": "trained",
    "every": "loss of all words",
    "back": "backward",
}
EXPLAINED = {
    "identity": "queries, keys and values are the row itself",
    "same": "one matrix for queries and for keys",
    "rooted": "rows of <i>E</i> are larger by √5",
    "normed": "each part reads a normed copy of its row",
    "place": "a head that looks one word back",
    "turned": "queries and keys turn a quarter with each place",
    "trained": "numbers that training found",
    "every": "each word has to say the next one",
}
"""What stands beside a switch behind "more"."""
OPENS = 3
"""Where a narrow page opens that is about the whole: a word asks, others answer."""


@dataclass(frozen=True, repr=False)
class Bench:
    """The model that a reader can change.

    Args:
        beside: it stands beside a text, and shows the stage that is read about.
        switches: names of those that it needs, with spaces between.
        stage: the title of the stage that it begins at, where it stands in a text.
        back: it begins with gradients.
        set: it begins with other numbers: ``"place"`` or ``"trained"``.
        first: names of the switches that one sees at once, if the others stand behind "more"; on a
            reader's first visit such a bench plays once by itself.
    """

    beside: bool = False
    switches: str = " ".join(SWITCHES)
    stage: str = ""
    back: bool = False
    set: str = ""
    first: str = ""

    @property
    def names(self) -> list[str]:
        """Its switches."""
        return self.switches.split()

    @property
    def at(self) -> int | None:
        """Which of the stages it begins at, if it is not the whole."""
        return [title for title, *_ in STAGES].index(self.stage) if self.stage else None

    def svg(self) -> str:
        """The drawing."""
        return svg(Settings(**SETS.get(self.set, {})), self.at, back=self.back)

    def picture(self) -> str:
        """The strip of a narrow page, the drawing, and the line below."""
        return (
            '<div class="bench-strip">'
            '<button type="button" value="-1" aria-label="Stage before">‹</button>'
            '<output></output><span class="bench-answer"></span>'
            '<button type="button" value="1" aria-label="Next stage">›</button>'
            '<button type="button" value="stored" aria-label="Stored numbers">W</button>'
            '<button type="button" value="switches" aria-label="Switches">more</button>'
            '<button type="button" value="folded" aria-label="Without the picture">▴</button></div>'
            f"{self.svg()}"
            f'<p class="bench-line" role="status"><span>{LINE}</span>'
            f'<span class="by-touch">{TOUCH}</span></p>'
            '<p class="bench-step" hidden><button type="button" value="-0.5" aria-label="smaller">−'
            '</button><button type="button" value="0.5" aria-label="larger">+</button></p>'
        )

    def controls(self) -> str:
        """The switches, and the settings for the script."""
        on = {"scaled", "mask", self.set, *["back"] * self.back}
        if self.set and SETS[self.set].get("turned"):
            on.add("turned")
        switches = {
            name: f'<button type="button" name="{name}" aria-pressed="{str(name in on).lower()}">'
            f"{SWITCHES[name]}</button>"
            for name in self.names
        }
        buttons = "".join(switches.pop(name) for name in self.first.split() or self.names)
        if switches:
            more = "".join(
                f"<span>{switch}<small>{EXPLAINED[name]}</small></span>"
                for name, switch in switches.items()
            )
            buttons += (
                f'<details class="bench-more"><summary>more</summary><div>{more}</div></details>'
            )
        stage = self.at if self.stage else 0 if self.beside else OPENS
        chosen = {"stage": stage, "back": self.back, "set": self.set, "shows": bool(self.first)}
        settings = vars(Settings()) | chosen | {"pinned": {}, "sets": SETS}
        packed = json.dumps(settings, separators=(",", ":"))
        return (
            '<div class="bench-controls"><button type="button" name="play">▶ Play</button>'
            f"{buttons}"
            '<button type="button" name="reset">↺ reset</button></div>'
            f'<script type="application/json">{packed}</script>'
        )

    def __repr__(self) -> str:
        return "The bench: a small model reads “the cat sat”, each of its numbers open to change"

    def _repr_svg_(self) -> str:
        """The drawing alone, for viewers that run no script."""
        alone = (
            'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
            'style="background: #fff" '  # its words are dark, the viewer may be
        )
        style = f"<style>{colours.in_light(styles())}</style>"
        drawn = self.svg().replace("<svg ", f"<svg {alone}", 1).replace(">", f">{style}", 1)
        return colours.in_light(drawn)

    def _repr_html_(self) -> str | None:
        """Where a reader runs the notebook: the bench itself."""
        if not reads():
            return None  # a page makes its own of the cell
        sheet = colours.css().replace('html[data-theme="dark"]', "[data-jp-theme-light=false]")
        style = sheet + (HERE / "bench.css").read_text("utf-8")
        script = "".join((HERE / name).read_text("utf-8") for name in SCRIPTS)
        box = f'<div class="bench">{self.picture()}{self.controls()}</div>'
        return f"<style>{style}</style>{box}<script>{script}</script>"


def styles() -> str:
    """How the drawing looks, by rules that every viewer knows."""
    return "\n".join(_drawing())


def _drawing() -> Iterator[str]:
    for rule in parse_stylesheet((HERE / "bench.css").read_text("utf-8")):
        if rule.type != "qualified-rule":
            continue
        if re.match(r"\.bench-picture(?!.*:focus)", serialize(rule.prelude)):
            yield spelled(rule.serialize())


def spelled(rule: str) -> str:
    """A rule with ``:is(a, b)`` spelled out, which e-readers do not know."""
    selectors, _, declarations = rule.partition("{")
    while several := re.search(r":is\(([^()]*)\)", selectors):
        each = (selectors.replace(several[0], name.strip()) for name in several[1].split(","))
        selectors = ", ".join(each)
    return f"{selectors}{{{declarations}"
