"""The map of a Transformer, drawn as SVG from what ``map_parts`` lists."""

import math
import re
from collections.abc import Callable, Iterator
from html import escape

from book.figures.map.parts import LAYOUTS, PARTS, Box, Layout, Part, arrows, part_of

DESCRIPTION = (
    "Token ids become vectors: embedding times the root of d_model, plus position. These are the "
    "stream, which passes N blocks of one of two forms. In a pre-norm block a branch leaves the "
    "stream, passes LayerNorm and attention, and is added back; a second branch passes LayerNorm "
    "and the feed-forward network, and is added back. In a post-norm block the branches have no "
    "norm; LayerNorm stands on the stream, after each addition. A pre-norm stack ends with one "
    "more LayerNorm. The output layer, which is the embedding's table again, gives logits, and "
    "these the loss; the backward pass goes back from the loss through every arrow. Inside "
    "attention: queries, keys and values by W_Q, W_K and W_V, split into heads; products of "
    "queries and keys, mask, softmax, weighted means of the values; heads merged, and W_O."
)
# Logits of four tokens, for the little pictures on the boxes.
LOGITS = ((1.0, 2.2, 0.2, 1.4), (2.0, 0.9, 1.7, 0.1), (0.2, 2.3, 1.2, 1.9), (1.5, 0.3, 0.8, 2.2))


def draw(size: str, href: Callable[[Part], str]) -> str:
    """The map as an SVG element.

    Args:
        size: ``"wide"`` or ``"narrow"``.
        href: gives the address of a part's section.
    """
    layout = LAYOUTS[size]
    height = layout.y(layout.rows) + layout.height / 2 + (24 if size == "wide" else 6)
    shapes = [*_ground(layout), *_lines(layout), *_loops(layout)]
    for name, box in layout.boxes.items():
        if not name.startswith("@"):
            shapes.append(_box(name, box, href))
    if size == "wide":
        hint = "Point at a box for its formula; follow it to the section that measures it."
        shapes.append(_text(layout.width / 2, height - 6, hint, "hint middle"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="map-{size}" role="group" '
        f'aria-label="Map of a Transformer" viewBox="0 0 {layout.width:g} {height:g}">'
        f"<desc>{DESCRIPTION}</desc>{''.join(shapes)}</svg>"
    )


def _ground(layout: Layout) -> Iterator[str]:
    """The frames of both forms and of what is inside attention."""
    boxes, top = layout.boxes, layout.y(layout.block - 0.74)
    titles = {"pre": ("Pre-norm", "x + f(LN(x))"), "post": ("Post-norm", "LN(x + f(x))")}
    for form, last in (("pre", 5.2), ("post", 6.14)):
        x, bottom = layout.streams[form] - 0.62 * layout.gap, layout.y(layout.block + last)
        width = boxes[f"{form}.attention"].x + layout.column + 0.3 * layout.gap - x
        yield _rect(x, top, width, bottom - top, "frame")
        name, formula = titles[form]
        left = layout.streams[form] + 10
        yield _text(left, top - 6, name, "title")
        either = "either" if form == "pre" else "or"
        yield _text(left, boxes["@fork"].y + 15, either, "aside")
        yield _text(x + width, top - 6, formula, "aside end")
        yield _text(x + width - 8, boxes[f"{form}.add2"].y + 12, "× N", "title end")
    x, row, width = layout.panel
    top, bottom = layout.y(row - 0.74), layout.y(row + 7.42)
    if (attention := boxes["post.attention"]).x + attention.width < x:
        right, half = attention.x + attention.width, attention.height / 2
        edge = f"{x - 8:g},{top + 8:g} {x - 8:g},{bottom - 8:g}"
        rays = f"{right:g},{attention.y - half + 4:g} {edge} {right:g},{attention.y + half - 4:g}"
        yield f'<polygon class="zoom" points="{rays}"/>'
    yield _rect(x - 8, top, width + 16, bottom - top, "frame inside")
    yield _text(x - 8, top - 6, "Inside attention", "title")
    yield _text(x + width + 8, top - 6, "in both forms", "aside end")
    back = boxes["inside.add"]
    yield _text(back.x + back.width + 8, back.y + 4, "back to the stream", "aside")


def _lines(layout: Layout) -> Iterator[str]:
    """The arrows of the data."""
    for kind, start, end in arrows():
        a, b = layout.boxes[start], layout.boxes[end]
        if a.y == b.y:  # straight to the right or to the left
            sign = 1 if b.x > a.x else -1
            points = [
                ((a.x + a.width if sign > 0 else a.x), a.y),
                ((b.x if sign > 0 else b.x + b.width), b.y),
            ]
        elif (x := _shared(a, b)) is not None:
            points = [(x, a.y + a.height / 2), (x, b.y - b.height / 2)]
        elif start.startswith("@"):  # a branch leaves its line
            points = [(a.port, a.y), (b.port, a.y), (b.port, b.y - b.height / 2)]
        else:  # and comes back to one
            side = b.x + b.width if b.x < a.port else b.x
            points = [(a.port, a.y + a.height / 2), (a.port, b.y), (side, b.y)]
        yield _path(points, kind, head=not end.startswith("@"))


def _shared(a: Box, b: Box) -> float | None:
    """Where a vertical line meets both boxes, at the port of one of them."""
    if not b.width:
        return a.port if a.port == b.port else None
    for x in (b.port, a.port) if b.width <= a.width else (a.port, b.port):
        if all(box.x <= x <= box.x + box.width for box in (a, b)):
            return x
    return None


def _loops(layout: Layout) -> Iterator[str]:
    """What leads back: the table that is used twice, and the backward pass."""
    table, output, loss, back = (
        layout.boxes[name] for name in ("embedding", "output", "loss", "backward")
    )
    half, side = layout.height / 2, layout.width - 6
    under = table.y + half + 0.16 * layout.pitch
    tied = [(table.x + 10, table.y + half), (table.x + 10, under), (6, under)]
    yield _path([*tied, (6, output.y), (output.x, output.y)], "tied")
    yield _text(12, output.y - half - 4, "tied", "aside")
    right, above = loss.x + loss.width, back.y - half
    up = [(right, loss.y), (side, loss.y), (side, back.y), (back.x + back.width, back.y)]
    yield _path(up, "backward", head=True)
    over = [(back.port, above), (back.port, 5), (table.port, 5), (table.port, table.y - half)]
    yield _path(over, "backward", head=True)


def _path(points: list[tuple[float, float]], kind: str, *, head: bool = False) -> str:
    """A line with round corners, and its arrowhead."""
    long = 9 if kind == "stream" else 7
    (px, py), (x, y) = points[-2:]
    ux, uy = (x > px) - (x < px), (y > py) - (y < py)
    drawn = [*points[:-1], (x - ux * long / 2, y - uy * long / 2)] if head else points
    d = f"M{drawn[0][0]:g} {drawn[0][1]:g}"
    for (x0, y0), (x1, y1), (x2, y2) in zip(drawn, drawn[1:], drawn[2:], strict=False):
        near, far = math.dist((x0, y0), (x1, y1)), math.dist((x1, y1), (x2, y2))
        r = min(8, near / 2, far / 2)
        before = (x1 + (x0 - x1) * r / (near or 1), y1 + (y0 - y1) * r / (near or 1))
        after = (x1 + (x2 - x1) * r / (far or 1), y1 + (y2 - y1) * r / (far or 1))
        d += f"L{before[0]:g} {before[1]:g}Q{x1:g} {y1:g} {after[0]:g} {after[1]:g}"
    d += f"L{drawn[-1][0]:g} {drawn[-1][1]:g}"
    line = f'<path class="line {kind}" d="{d}"/>'
    if not head:
        return line
    back = "" if kind == "backward" else _head(points[1], points[0], long, f"tail {kind}")
    return line + _head((px, py), (x, y), long, f"head {kind}") + back


def _head(start: tuple[float, float], tip: tuple[float, float], long: float, kind: str) -> str:
    """An arrowhead at the tip."""
    (px, py), (x, y) = start, tip
    ux, uy = (x > px) - (x < px), (y > py) - (y < py)
    wing, base = 0.5 * long, (x - ux * long, y - uy * long)
    corners = [(x, y), *((base[0] + s * uy * wing, base[1] + s * ux * wing) for s in (1, -1))]
    shown = " ".join(f"{cx:g},{cy:g}" for cx, cy in corners)
    return f'<polygon class="{kind}" points="{shown}"/>'


def _box(name: str, box: Box, href: Callable[[Part], str]) -> str:
    """A part: a link with its words, and a line about it where there is no script to show it."""
    kind = part_of(name)
    part, top, inside = PARTS[kind], box.y - box.height / 2, []
    if kind in ("add", "sum"):
        r = box.height / 2
        inside.append(f'<circle cx="{box.port:g}" cy="{box.y:g}" r="{r:g}"/>')
        arm = 0.5 * r
        plus = f"M{box.port - arm:g} {box.y:g}h{2 * arm:g}M{box.port:g} {box.y - arm:g}v{2 * arm:g}"
        inside.append(f'<path class="plus" d="{plus}"/>')
    else:
        inside.append(_rect(box.x, top, box.width, box.height, ""))
        cells = [*_cells(kind, box)]
        end = box.x + box.width - (40 if cells else 7)
        inside.append(_text(box.x + 8, box.y - 3, part.label, "name"))
        inside.append(_text(box.x + 8, box.y + 12, part.under or part.shape, "shape"))
        inside.append(_text(end, box.y - 3, part.chapter, "number end"))
        inside += cells
    return (
        f'<a href="{escape(href(part))}" class="part {kind}">'
        f"<title>{escape(about(part))}</title>{''.join(inside)}</a>"
    )


def about(part: Part) -> str:
    """A part in one line."""
    shape = f", {part.shape}" if part.shape else ""
    start = "" if part.start == "–" else f"; initialization: {part.start}"
    where = f"chapter {part.chapter}" if part.chapter != "→" else "Implementations"
    return f"{part.label}: {part.formula}{shape}{start} ({where})"


def _cells(kind: str, box: Box) -> Iterator[str]:
    """A table of four tokens by four: logits, who may attend, weights."""
    if kind not in ("scores", "mask", "softmax"):
        return
    for i, row in enumerate(LOGITS):
        total = sum(math.exp(s) for s in row[: i + 1])
        for j, logit in enumerate(row):
            shade = {"scores": logit / 3, "mask": 0.75, "softmax": math.exp(logit) / total}[kind]
            if kind != "scores" and j > i:
                shade = 0
            x, y = box.x + box.width - 35 + 7 * j, box.y - 14 + 7 * i
            place = f'x="{x:g}" y="{y:g}" width="6" height="6"'
            yield f'<rect class="cell" {place} fill-opacity="{shade:.2f}"/>'


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    where = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"'
    return f'<rect class="{kind}" {where}/>' if kind else f"<rect {where}/>"


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{in_svg(words)}</text>'


def in_svg(words: str) -> str:
    """``W_Q`` with a lowered Q."""
    low = '<tspan class="low" dy="3">\\1</tspan><tspan dy="-3">\u200b</tspan>'
    return re.sub(r"_(\w+)", low, escape(words))


def in_html(words: str) -> str:
    """The same for the text of a page."""
    return re.sub(r"_(\w+)", r"<sub>\1</sub>", escape(words))
