"""Figures as SVG whose letters are text, in two layouts: for a page, and for a phone."""

import re
from codecs import getwriter
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from itertools import chain, groupby
from math import cos, radians, sin
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, weight_dict
from matplotlib.text import Text

SANS = "system-ui, sans-serif"
SERIF = "'STIX Two Math', 'Cambria Math', 'Times New Roman', 'Liberation Serif', serif"
PHONE = 3.9
"""Inches across on a phone; a figure without axes is boxes with letters in them, and takes 4.7."""
READABLE = 2.32
"""Points an inch of the width: 11 pixels where a phone shows the width in 342."""
SIGNS = {
    r"\circ": "∘", r"\cdot": "·", r"\ell": "ℓ", r"\times": "×", r"\top": "⊤", r"\Vert": "‖",
    r"\sqrt": "√", r"\;": " ", r"\,": "\u2009",
}  # fmt: skip
UPRIGHT = (r"\mathrm", r"\mathdefault")
TOKEN = re.compile(r"\\[A-Za-z]+|\\.| ?[=+\-−] ?|\s+|.")
SMALLER = 0.8


class Piece(NamedTuple):
    """Letters of one style; ``level`` is -1 below the line, 1 above it."""

    letters: str
    italic: bool = False
    level: int = 0


def pieces(line: str) -> list[Piece]:
    r"""A line with TeX between dollars as letters to be set beside one another.

    Raises:
        KeyError: at a command of TeX that is none of :data:`SIGNS`.

    Example:
        >>> [piece.letters for piece in pieces(r"by $\sqrt{d_k}$ (small)")]
        ['by √', 'd', 'k', ' (small)']
    """
    found: list[Piece] = []
    for i, part in enumerate(line.split("$")):
        found += _set(iter(TOKEN.findall(part))) if i % 2 else [Piece(part)]
    styles = groupby(found, lambda piece: piece[1:])
    joined = (Piece("".join(piece.letters for piece in run), *style) for style, run in styles)
    return [piece for piece in joined if piece.letters]


def _set(tokens: Iterator[str], level: int = 0, *, upright: bool = False) -> Iterator[Piece]:
    """Pieces of TeX up to the brace that closes it."""
    for token in tokens:
        if token == "}":
            return
        if token in ("_", "^"):
            yield from _argument(tokens, -1 if token == "_" else 1, upright=upright)
        elif token in UPRIGHT:
            yield from _argument(tokens, level, upright=True)
        elif token == "{":
            yield from _set(tokens, level, upright=upright)
        elif not token.isspace():
            sign = SIGNS[token] if token[0] == "\\" else token.replace("-", "−")
            yield Piece(sign, italic=sign.isalpha() and not upright, level=level)


def _argument(tokens: Iterator[str], level: int, *, upright: bool) -> Iterator[Piece]:
    """Pieces of what a command or a shift takes: one token, or what is in braces."""
    token = next(tokens)
    if token in UPRIGHT:
        yield from _argument(tokens, level, upright=True)
    else:
        yield from _set(tokens if token == "{" else iter([token]), level, upright=upright)


class Renderer(RendererSVG):
    """Writes texts as they are read, hung up where they are aligned, with TeX's italics."""

    def __init__(self, *arguments: Any, figure: Figure, **named: Any) -> None:
        super().__init__(*arguments, **named)  # type: ignore[no-untyped-call]
        self.across = getattr(figure, "phone", 0)
        self.alignments = {
            line.replace(r"\$", "$"): text.get_horizontalalignment()
            for text in figure.findobj(Text)
            for line in text.get_text().split("\n")
        }

    def _sized(self, prop: FontProperties) -> FontProperties:
        if self.across:
            prop = prop.copy()
            prop.set_size(max(0.92 * prop.get_size_in_points(), READABLE * self.across))
        return prop

    def get_text_width_height_descent(self, s: str, prop: FontProperties, ismath: Any) -> Any:
        """How much room a line takes."""
        measured: Any = super().get_text_width_height_descent
        prop = self._sized(prop)
        if not ismath:
            return measured(s, prop, ismath=False)
        try:
            line = pieces(s)
        except KeyError:
            return measured(s, prop, ismath)
        sizes = [(measured(each.letters, prop, ismath=False), each.level) for each in line]
        width: float = sum(size[0] * (SMALLER if level else 1) for size, level in sizes)
        _, height, descent = measured("lp", prop, ismath=False)
        return width, height, descent

    def _draw_text_as_text(
        self, gc: Any, x: float, y: float, s: str, prop: FontProperties, angle: float,
        ismath: Any, mtext: Text | None = None,
    ) -> None:  # fmt: skip
        try:
            line = pieces(s) if ismath else [Piece(s)]
        except KeyError:
            plain: Any = super()._draw_text_as_text
            plain(gc, x, y, s, prop, angle, ismath, mtext)
            return
        width = self.get_text_width_height_descent(s, prop, ismath)[0]
        size, hung = self._sized(prop).get_size_in_points(), self._hung(s, mtext, angle)
        if not angle:  # what would be cut at the edge
            x = max(1, min(x, self.width - width - 1))
        along = hung * width
        x, y = x + along * cos(radians(angle)), y - along * sin(radians(angle))
        weight: Any = prop.get_weight()
        weight, writer = weight_dict.get(weight, weight), self.writer
        attributes = {
            "x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": f"{size:g}",
            "fill": to_hex(gc.get_rgb()),
            "text-anchor": {0.5: "middle", 1: "end"}.get(hung),
            "font-weight": None if weight == 400 else str(weight),
            "font-style": None if prop.get_style() == "normal" else prop.get_style(),
            "opacity": None if gc.get_alpha() in (1, None) else f"{gc.get_alpha():g}",
            "transform": f"rotate({-angle:g} {x:.1f} {y:.1f})" if angle else None,
        }  # fmt: skip
        writer.start("text", attrib={k: v for k, v in attributes.items() if v})
        lift = 0.0
        for letters, italic, level in line:
            style = {"font-family": SERIF, "font-style": "italic"} if italic else {}
            if level:
                style["font-size"] = f"{SMALLER * size:.3g}"
            if (now := size * (0.36 if level > 0 else -0.18 if level else 0)) != lift:
                style["dy"], lift = f"{lift - now:.3g}", now
            writer.element("tspan", letters, attrib=style)
        writer.end()

    def _hung(self, line: str, text: Text | None, angle: float) -> float:
        """Where a line is held: 0 at its beginning, 1 at its end."""
        side: str = text.get_horizontalalignment() if text else self.alignments.get(line, "center")
        if text and angle % 180 == 90 and text.get_rotation_mode() != "anchor":
            side = text.get_verticalalignment()
        return {"center": 0.5, "right": 1, "top": 1}.get(side, 0)


class FigureCanvas(FigureCanvasSVG):
    """What matplotlib saves a figure with."""

    def print_svg(self, filename: Any, **_: Any) -> None:
        """Write the figure."""
        dpi, self.figure.dpi = self.figure.dpi, 72
        width, height = self.figure.get_size_inches()
        file = getwriter("utf-8")(filename)
        inner = Renderer(72 * width, 72 * height, file, image_dpi=dpi, figure=self.figure)
        renderer: Any = MixedModeRenderer(self.figure, width, height, dpi, inner)
        self.figure.draw(renderer)
        renderer.finalize()


def layout(figure: Figure) -> str:
    """The figure as SVG, at its size, to the hundredth of a point."""
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", backend=f"module://{__name__}")
    svg = re.sub(r"(?s)<metadata>.*?</metadata>|<style.*?</style>", "", drawn.getvalue().decode())
    svg = re.sub("<[^>]*>", lambda tag: re.sub(r"(?<=\.\d\d)\d+", "", tag[0]), svg)
    svg = re.sub('<g id="[^"]*">', "<g>", svg)
    return re.sub(r">\s+<", "><", svg).strip()  # beside letters they would be spaces


def _room(axes: Axes) -> float:
    """How wide a label of these axes may be."""
    return 1.25 * axes.get_window_extent().width


def on_phone(figure: Any) -> str:
    """The figure as narrow as a phone: letters as large as before, long labels in two lines."""
    width, height = figure.get_size_inches()
    boxes = not any(axes.axison for axes in figure.axes)
    narrow = min(width, 4.7) if boxes else PHONE
    square = not boxes and all(axes.get_aspect() != "auto" for axes in figure.axes)
    labels = {axes: [axes.xaxis.label, axes.title, axes._left_title] for axes in figure.axes}
    for axes, texts in labels.items():
        for text in texts:
            text.set_wrap(True)
            text._get_wrap_line_width = partial(_room, axes)
    figure.phone = narrow
    figure.set_size_inches(narrow, height * narrow / width if square else height)
    figure.draw_without_rendering()  # or labels are broken by the width of a page
    svg = layout(figure)
    figure.set_size_inches(width, height)
    for text in chain(*labels.values()):
        text.set_wrap(False)
        del text._get_wrap_line_width
    del figure.phone
    return svg


def svg(figure: Figure) -> str:
    """The figure for a page, and in it, not shown, the same for a phone."""
    page, phone = layout(figure), on_phone(figure)
    marks = re.sub(r'(?<= id=")|(?<=url\(#)|(?<=href="#)', "phone-", phone)
    face = f'font-family="{SANS}" stroke-linejoin="round"'
    page = page.replace("<svg ", f"<svg {face} ", 1).removesuffix("</svg>")
    phone = f'<svg class="phone" display="none" {face} ' + marks[marks.index("<svg ") + 5 :]
    return f"{page}{phone}</svg>"
