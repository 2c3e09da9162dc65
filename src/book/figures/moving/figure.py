"""A figure with controls, its SVG, and its element of a page."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from book.figures.moving.drawing import Drawing, Numbers, fill, group, mark
from book.figures.style import INK, PAPER
from book.reader import reads

HERE = Path(__file__).parent
MAP = HERE.parent / "map" / "map.js"


@dataclass(frozen=True)
class Slider:
    """A number from ``low`` to ``high``, or one of ``values``; ``shown`` stands beside it.

    With ``plays``, a button moves it along, and rests so many seconds at each value; with ``once``
    it does so when the page's guess is answered, unless the reader wants less motion.
    """

    name: str
    label: str
    value: float
    low: float = 0
    high: float = 1
    step: float = 0.01
    values: Sequence[float] = ()
    shown: str = ""
    plays: float = 0
    once: bool = False

    def html(self, figure: str) -> str:
        """A native range, with its output; before it, the button that plays."""
        low, high, step, at = self.low, self.high, self.step, self.value
        if self.values:
            low, high, step, at = 0, len(self.values) - 1, 1, list(self.values).index(self.value)
        said = escape(fill(self.shown or f"{{{self.name}}}", {self.name: self.value}))
        label = escape(self.label)
        slider = (
            f'<label>{label} <input type="range" name="{self.name}" min="{low:g}" '
            f'max="{high:g}" step="{step:g}" value="{at:g}" aria-valuetext="{said}"> '
            f"<output>{said}</output></label>"
        )
        if not self.plays:
            return slider
        return (
            f'<span class="played"><button type="button" class="play" data-plays="{self.name}" '
            f'data-seconds="{self.plays:g}"{" data-once" * self.once} '
            f'aria-label="Play: {label}">▶ Play</button>'
            f"{slider}</span>"
        )


@dataclass(frozen=True)
class Choice:
    """One of several ``options``: name -> its words. Up to three are buttons, more a list."""

    name: str
    label: str
    value: str
    options: Mapping[str, str]

    def html(self, figure: str) -> str:
        """Native radio buttons, or a native list."""
        label = escape(self.label)
        if len(self.options) < 4:
            radios = "".join(
                f'<label><input type="radio" name="{self.name}" value="{escape(key)}"'
                f"{' checked' * (key == self.value)}>{escape(words)}</label>"
                for key, words in self.options.items()
            )
            return (
                f'<span class="choice" role="radiogroup" aria-label="{label}">'
                f'<span aria-hidden="true">{label}</span>{radios}</span>'
            )
        options = "".join(
            f'<option value="{escape(key)}"{" selected" * (key == self.value)}>'
            f"{escape(words)}</option>"
            for key, words in self.options.items()
        )
        return f'<label>{label} <select name="{self.name}">{options}</select></label>'


@dataclass(frozen=True)
class Switch:
    """On or off."""

    name: str
    label: str
    value: bool = False

    def html(self, figure: str) -> str:
        """A button that stays pressed."""
        return (
            f'<button type="button" name="{self.name}" aria-pressed="{str(self.value).lower()}">'
            f"{escape(self.label)}</button>"
        )


@dataclass(frozen=True)
class Handle:
    """A mark that is dragged: it sets two sliders, which are there for those who don't drag.

    The point (``x``, ``y``) of the plane lies at ``dx + scale * x``, ``dy - scale * y`` of the
    drawing; the mark has ``data_handle=name``.
    """

    name: str
    x: str
    y: str
    scale: float
    dx: float
    dy: float


@dataclass(frozen=True)
class Grid:
    """Cells to walk through with the arrow keys, to point at, and to switch on and off.

    The cell at ``row``, ``column`` (two settings) is said in words by ``says``. Cells are marks
    with ``data_cell="row,column"``. A click, Enter or Space turns the Boolean at
    ``settings[toggles][row * columns + column]``, unless the numbers' ``fixed`` is true there.
    """

    label: str
    rows: int
    columns: int
    row: str
    column: str
    says: str
    toggles: str = ""


@dataclass(frozen=True, repr=False)
class Figure:
    """What a figure shows, and how.

    Args:
        name: of its files, ``name.py`` and ``name.js``.
        title: what it is, a few words.
        description: what its default state shows, for those who don't see it.
        size: width and height of the drawing.
        stacked: its height on a phone, if it has panels that stand below each other there: groups
            whose style says as ``--stacked`` where.
        compute: ``compute(settings, data)`` gives its numbers, with ``attnbook``; plain floats,
            integers, Booleans, texts and lists of them.
        marks: what is drawn, see :func:`~book.figures.moving.drawing.mark`.
        says: a sentence with numbers, below the figure; or several, by the number ``case``.
        table: rows of the table of numbers: what it is -> a text with numbers.
        controls: sliders, choices, switches.
        handles: what can be dragged.
        settings: further settings, without a control of their own (of a grid).
        data: drawn numbers; what a chapter measured comes by :meth:`with_data`; at most 50 KB.
        examples: settings under which the tests compare ``name.js`` with ``compute``.
    """

    name: str
    title: str
    description: str
    size: tuple[int, int]
    compute: Callable[[Numbers, Numbers], Numbers]
    marks: Sequence[Drawing]
    says: str | Mapping[str, str]
    table: Mapping[str, str]
    controls: Sequence[Slider | Choice | Switch]
    stacked: int = 0
    handles: Sequence[Handle] = ()
    grid: Grid | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    examples: Sequence[Mapping[str, Any]] = ()

    def with_data(self, **data: Any) -> "Figure":
        """The same figure with numbers that a chapter measured."""
        return replace(self, data={**self.data, **data})

    def numbers(self, **settings: Any) -> dict[str, Any]:
        """All numbers under these settings (the others as by default), the settings among them."""
        chosen = {control.name: control.value for control in self.controls} | {**self.settings}
        if unknown := sorted(settings.keys() - chosen.keys()):
            raise TypeError(f"no setting is called {unknown[0]!r}; there are {', '.join(chosen)}")
        chosen |= settings
        return {**chosen, **self.compute(chosen, self.data)}

    def svg(self, **settings: Any) -> str:
        """The drawing."""
        numbers, (width, height) = self.numbers(**settings), self.size
        drawn = group(*self.marks)(numbers)
        ground = mark("rect", width=width, height=height, fill=PAPER)({})
        stacked = f";--stacked:{width}/{self.stacked}" if self.stacked else ""
        aligned = 'preserveAspectRatio="xMidYMin" ' if self.stacked else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" data-interactive="{self.name}" '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'style="max-width:{1.3 * width:.0f}px{stacked}" '
            f'{aligned}font-family="sans-serif" font-size="13" fill="{INK}">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>"
            f"<metadata>{escape(json.dumps(self.recipe(), ensure_ascii=False), quote=False)}"
            f"</metadata>{ground}{drawn}</svg>"
        )

    def recipe(self) -> dict[str, Any]:
        """What the page adds to the drawing, and the script needs."""
        numbers = self.numbers()
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "controls": "".join(control.html(self.name) for control in self.controls),
            "values": {
                control.name: list(control.values)
                for control in self.controls
                if isinstance(control, Slider) and control.values
            },
            "shown": {
                control.name: control.shown or f"{{{control.name}}}"
                for control in self.controls
                if isinstance(control, Slider)
            },
            "settings": {key: numbers[key] for key in self._settings()},
            "says": self.says if isinstance(self.says, str) else dict(self.says),
            "said": self.sentence(numbers),
            "longest": self.longest(),
            "table": [[what, value, fill(value, numbers)] for what, value in self.table.items()],
            "handles": [asdict(handle) for handle in self.handles],
            "grid": self.grid and asdict(self.grid),
            "data": dict(self.data),
        }

    def _settings(self) -> list[str]:
        return [control.name for control in self.controls] + list(self.settings)

    def sentence(self, numbers: Numbers) -> str:
        """What the figure says, with its numbers."""
        says = self.says if isinstance(self.says, str) else self.says[str(numbers["case"])]
        return fill(says, numbers)

    def longest(self) -> int:
        """Letters of the longest sentence, as far as the examples show it: its room is kept."""
        says = [self.says] if isinstance(self.says, str) else self.says.values()
        shown = [self.numbers(**settings) for settings in ({}, *self.examples)]
        return max(len(fill(each, numbers)) for each in says for numbers in shown)

    def __repr__(self) -> str:
        return f"Figure: {self.title}"

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str | None:
        """Where a reader runs the notebook: the figure with its controls and scripts."""
        if not reads():
            return None  # the page's own extension adds them
        style = (HERE / "figures.css").read_text("utf-8")
        svg = self.svg().replace("<svg ", f'<svg role="img" aria-label="{escape(self.title)}" ', 1)
        return f"<style>{style}</style>{element(svg, self.recipe())}<script>{script()}</script>"


def element(svg: str, recipe: Mapping[str, Any]) -> str:
    """A figure's element of a page: drawing, sentence, controls, table, and what the script needs.

    Args:
        svg: the drawing as it stands in the page.
        recipe: from the drawing's metadata.
    """
    rows = "".join(
        f"<tr><th scope='row'>{escape(what)}</th><td>{escape(value)}</td></tr>"
        for what, _, value in recipe["table"]
    )
    needed = ("name", "values", "shown", "settings", "says", "table", "handles", "grid")
    needs = {key: recipe[key] for key in (*needed, "data")}
    needs["table"] = [value for _, value, _ in recipe["table"]]
    packed = json.dumps(needs, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    name = escape(recipe["name"])
    # Letters a line: about 84 on a wide page, 42 on a phone.
    wide, narrow = (
        -(-(recipe.get("longest", len(recipe["said"])) + 4) // letters) for letters in (84, 42)
    )
    if recipe["grid"]:
        svg = (
            f'<div class="walk" role="group" aria-label="{escape(recipe["grid"]["label"])}">'
            f'{svg}</div><p class="spoken" role="status"></p>'
        )
    return (
        f'<div class="interactive" data-figure="{name}">{svg}'
        f'<p class="said" role="status" style="--lines:{wide};--narrow:{narrow}">'
        f"{escape(recipe['said'])}</p>"
        f'<form class="controls" aria-label="{escape(recipe["title"])}: controls">'
        f"{recipe['controls']}</form>"
        f"<details class='numbers'><summary>The numbers of this figure</summary>"
        f"<table><tbody>{rows}</tbody></table></details>"
        f'<script type="application/json">{packed}</script></div>'
    )


def script() -> str:
    """The one script of all figures, without its comments, indents, and most line breaks."""
    own = [path for path in HERE.glob("*.js") if path.name != "figures.js"]
    files = [HERE / "figures.js", *sorted([*own, MAP], key=lambda path: path.name)]
    written = "".join(path.read_text("utf-8") for path in files)
    dense = re.sub(r"(?m)^\s*(//.*\n)?|  //.*$", "", written)
    return re.sub(r"(?<=[;,{(])\n", "", dense)
