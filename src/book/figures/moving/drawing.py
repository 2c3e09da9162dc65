"""Marks of an SVG whose attributes hang on a figure's numbers."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from html import escape
from re import sub
from typing import Any

from book.figures.style import INK

Numbers = Mapping[str, Any]


def look_up(path: str, numbers: Numbers) -> Any:
    """What stands at ``"weights.3"``.

    Example:
        >>> look_up("weights.1", {"weights": [0.2, 0.8]})
        0.8
    """
    value: Any = numbers
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, Sequence) else value[key]
    return value


def fill(template: str, numbers: Numbers) -> str:
    r"""Put numbers into a text.

    Formats are ``.2f``, ``.0%``, ``,`` (with separators) or none; a half is rounded away from zero,
    as in JavaScript.

    Example:
        >>> fill("key {best}: {weights.1:.0%}", {"best": 1, "weights": [0.2, 0.845]})
        'key 1: 85\xa0%'
    """

    def value(match: Any) -> str:
        return formatted(look_up(match[1], numbers), match[2] or "")

    return sub(r"\{([\w.]+)(?::([^}]*))?\}", value, template)


def formatted(value: Any, spec: str) -> str:
    """A number as text, as ``figures.js`` writes it, too; a "%" behind a no-break space."""
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if not spec:
        return f"{value:g}".replace("-", "−")
    if spec == ",":
        return f"{value:,.0f}".replace("-", "−")
    places, percent = int(spec[1]), spec[2:] == "%"
    exact = Decimal(float(value) * 100 if percent else float(value))
    text = str(exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP))
    if not float(text):
        text = text.removeprefix("-")
    return text.replace("-", "−") + "\xa0%" * percent


def bare(weight: float) -> str:
    """A weight in two digits without a leading zero, which a narrow cell has no room for.

    Example:
        >>> bare(0.125), bare(1.0)
        ('.13', '1')
    """
    return formatted(weight, ".2f").removeprefix("0").removesuffix(".00") or ".00"


@dataclass(frozen=True)
class Bound:
    """An attribute, or a text, that is computed from the figure's numbers.

    ``kind`` names what is done; ``figures.js`` has the same seven functions:

    - ``number``: ``offset + scale * value``
    - ``text``: a template, see :func:`fill`
    - ``pick``: one of several values, by index (a Boolean is 0 or 1)
    - ``points``: of a polyline, from a list of heights (and of places, or a step)
    - ``path``: likewise of a path, which can glide
    - ``arrow``: outline of an arrow from one point to another
    - ``move``: ``translate(x y)``, and ``rotate`` where an angle is given
    """

    kind: str
    arguments: tuple[Any, ...]

    def __call__(self, numbers: Numbers) -> str:
        """The attribute's value."""
        return KINDS[self.kind](numbers, *self.arguments)


def number(path: str, scale: float = 1, offset: float = 0) -> Bound:
    """``offset + scale * value``."""
    return Bound("number", (path, scale, offset))


def text(template: str) -> Bound:
    """A text with numbers."""
    return Bound("text", (template,))


def pick(path: str, *options: str) -> Bound:
    """The option that the value counts off: ``pick("dead", BLUE, ORANGE)``."""
    return Bound("pick", (path, *options))


def shown(path: str) -> Bound:
    """For ``visibility``: shown where the value is true."""
    return pick(path, "hidden", "visible")


def points(
    ys: str,
    scale: float,
    offset: float,
    *,
    xs: str = "",
    x_scale: float = 1,
    x_offset: float = 0,
) -> Bound:
    """A polyline's points: heights from the list at ``ys``; across from ``xs`` or counted."""
    return Bound("points", (ys, scale, offset, xs, x_scale, x_offset))


def path(ys: str, scale: float, offset: float, **across: Any) -> Bound:
    """For a path's ``d``, what :func:`points` is for a polyline."""
    return Bound("path", points(ys, scale, offset, **across).arguments)


def arrow(
    start: tuple[str, str], end: tuple[str, str], scale: float, x: float, y: float, width: float = 2
) -> Bound:
    """For a polygon's ``points``: an arrow between two points of a plane, y up.

    The point (0, 0) of the plane lies at ``x``, ``y`` of the drawing; "" stands for 0.
    """
    return Bound("arrow", (*start, *end, scale, x, y, width))


def move(
    x: str, y: str, scale: float, dx: float = 0, dy: float = 0, y_scale: float | None = None,
    angle: str = "",
) -> Bound:  # fmt: skip
    """For ``transform``: to the point (x, y) of a plane; y goes up unless ``y_scale`` says else."""
    return Bound("move", (x, y, scale, dx, dy, -scale if y_scale is None else y_scale, angle))


def _round(x: float) -> str:
    return f"{x:.2f}".rstrip("0").rstrip(".").replace("-0", "0" if abs(x) < 0.005 else "-0")


def _number(numbers: Numbers, path: str, scale: float, offset: float) -> str:
    return _round(offset + scale * look_up(path, numbers))


def _pick(numbers: Numbers, path: str, *options: str) -> str:
    return options[int(look_up(path, numbers))]


def _points(
    numbers: Numbers, ys: str, scale: float, offset: float, xs: str, x_scale: float, x_offset: float
) -> str:
    heights = look_up(ys, numbers)
    across = look_up(xs, numbers) if xs else range(len(heights))
    return " ".join(
        f"{_round(x_offset + x_scale * x)},{_round(offset + scale * y)}"
        for x, y in zip(across, heights, strict=True)
        if math.isfinite(y)
    )


def _arrow(
    numbers: Numbers, x0: str, y0: str, x1: str, y1: str, scale: float, x: float, y: float,
    width: float,
) -> str:  # fmt: skip
    ax, ay, bx, by = (look_up(path, numbers) if path else 0 for path in (x0, y0, x1, y1))
    ax, ay, bx, by = x + scale * ax, y - scale * ay, x + scale * bx, y - scale * by
    length = math.hypot(bx - ax, by - ay)
    ux, uy = ((bx - ax) / length, (by - ay) / length) if length else (1.0, 0.0)
    head = min(4 * width + 2, length)
    half, wing = width / 2, min(1.7 * width + 1, head)
    outline = [(0.0, half), (length - head, half), (length - head, wing), (length, 0.0)]
    outline += [(along, -across) for along, across in outline[2::-1]]
    return " ".join(
        f"{_round(ax + ux * along - uy * across)},{_round(ay + uy * along + ux * across)}"
        for along, across in outline
    )


def _move(
    numbers: Numbers, x: str, y: str, scale: float, dx: float, dy: float, y_scale: float, angle: str
) -> str:
    at = _number(numbers, x, scale, dx), _number(numbers, y, y_scale, dy)
    turn = f" rotate({_round(look_up(angle, numbers))})" if angle else ""
    return f"translate({at[0]} {at[1]}){turn}"


KINDS: dict[str, Callable[..., str]] = {
    "number": _number,
    "text": lambda numbers, template: fill(template, numbers),
    "pick": _pick,
    "points": _points,
    "path": lambda *arguments: f"M{_points(*arguments)}",
    "arrow": _arrow,
    "move": _move,
}

Drawing = Callable[[Numbers], str]
"""A mark: given the numbers, its SVG."""


def mark(tag: str, *inside: "Drawing | Bound | str", **attributes: Any) -> Drawing:
    """An element: ``mark("rect", x=3, y=4, width=number("share", 100), height=8, fill=BLUE)``.

    Underscores at the end of a name are dropped, the others become hyphens.
    """

    def draw(numbers: Numbers) -> str:
        said, bound = "", []
        for key, value in attributes.items():
            name = key.rstrip("_").replace("_", "-")
            if isinstance(value, Bound):
                bound.append([name, value.kind, *value.arguments])
                value = value(numbers)
            elif isinstance(value, float):
                value = _round(value)
            said += f' {name}="{escape(str(value))}"'
        content = ""
        for part in inside:
            if isinstance(part, Bound):
                bound.append(["", part.kind, *part.arguments])
                content += escape(part(numbers), quote=False)
            else:
                content += escape(part, quote=False) if isinstance(part, str) else part(numbers)
        if bound:
            packed = json.dumps(bound, ensure_ascii=False, separators=(",", ":"))
            said += f' data-bind="{escape(packed)}"'
        return f"<{tag}{said}>{content}</{tag}>" if content or inside else f"<{tag}{said}/>"

    return draw


def group(*marks: Drawing, **attributes: Any) -> Drawing:
    """Marks together."""
    return mark("g", *marks, **attributes)


def words(x: float, y: float, what: "Bound | str", anchor: str = "start", **more: Any) -> Drawing:
    """A line of text."""
    return mark("text", what, **{"x": x, "y": y, "text_anchor": anchor, "fill": INK} | more)


def line(x1: float, y1: float, x2: float, y2: float, **more: Any) -> Drawing:
    """A straight line, thin and in ink."""
    style = {"stroke": INK, "stroke_opacity": 0.4, "stroke_width": 1}
    return mark("line", **{"x1": x1, "y1": y1, "x2": x2, "y2": y2} | style | more)
