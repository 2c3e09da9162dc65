"""The bench as a drawing: three words are three lanes, the stream is the line through each.

``look`` says what hangs on the numbers: texts, tints, ribbons. ``picture.js`` says the same in the
page; the rest of the drawing is written here alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import torch

from book.figures.moving import drawing
from book.figures.workbench.model import WORDS, Settings, backward, forward, plain

Look = dict[str, dict[str, str]]
"""Mark -> attribute -> its value; "text" is what the mark says, "tint" how strong its colour is."""

WIDTH, TOP, LANE, GAP, CELL, ROW = 1340, 226, 106, 5, 28, 20
HEIGHT = TOP + 3 * (LANE + GAP) + 20
KIND = {  # whose colour a matrix has
    **dict.fromkeys(("E", "X", "W_O", "D", "Y", "W_1", "b", "H", "W_2", "F", "Z", "U"), "stream"),
    **{"Q": "query", "W_Q": "query", "K": "key", "W_K": "key", "V": "value", "W_V": "value"},
    **{"O": "value", "S": "weight", "A": "weight"},
}
STORED = {  # name -> its upper left corner
    **{"E": (74, 56), "W_Q": (256, 56), "W_K": (376, 56), "W_V": (496, 56), "W_O": (696, 56)},
    **{"W_1": (1012, 48), "b": (1012, 164), "W_2": (1064, 56), "U": (1224, 58)},
}
STORED_ROW = 22
SHARES, SHARE, BAR = 1242, (LANE + GAP) / len(WORDS), 94
"""Where shares of the next word stand, how high one is with its room, how wide its bar can be."""
HANDS = 380
"""Where hands of queries and keys turn, from the left."""
COMPUTED = {  # name -> x, and y within a lane
    **{"X": (74, 6), "Q": (256, 32), "K": (256, 52), "V": (256, 80), "S": (398, 32)},
    **{"A": (504, 32), "O": (696, 80), "D": (842, 80), "Y": (842, 6), "H": (1012, 80)},
    **{"F": (1064, 80), "Z": (1064, 6)},
}
STAGES = (  # title, its x, what is computed, and what is drawn with it
    ("rows", 74, "E X"),
    ("Q, K, V", 256, "Q K V W_Q W_K W_V"),
    ("logits, mask", 398, "S meet ask"),
    ("weights", 504, "A"),
    ("mixing", 606, "O ribbon belt"),
    ("added", 842, "W_O D Y"),
    ("feed-forward", 1012, "W_1 b W_2 H F Z"),
    ("next word", 1180, "U next bar share loss"),
)
# Where the camera looks at each stage, where it may begin, and how wide it is in a text.
CENTRES, GAPS = (35, 330, 400, 480, 640, 800, 1000, 1125), (234, 382, 493, 645, 825, 997, 1052)
ZOOMED, TAG = 800, 46
STAGE = {part: str(k) for k, (_, _, parts) in enumerate(STAGES) for part in parts.split()}


def rounded(x: float, places: int) -> str:
    """With so many digits; a half away from zero, as in JavaScript."""
    return drawing.formatted(x, f".{places}f").replace("−", "-")


def formatted(x: float) -> str:
    """A number in two digits, without a leading zero.

    Example:
        >>> formatted(0.787), formatted(-2), formatted(1e-9)
        ('.79', '−2', '0')
    """
    if abs(x) < 0.005:
        return "0"
    text = rounded(x, 0) if abs(x) >= 9.95 else rounded(x, 2).rstrip("0").rstrip(".")
    return text.replace("-", "−").replace("0.", ".", abs(x) < 0.995)


def tint(name: str, x: float, *, gradient: bool) -> float:
    """How strong the colour of a cell is: nothing for a zero; the digit stays legible on it."""
    size = abs(x)
    if size < 0.005:
        return 0.0
    if name == "A" and not gradient:  # the digit turns white where the cell is dark
        return 0.06 + 0.58 * size if size <= 0.55 else 0.66 + 0.53 * (min(1.0, size) - 0.55)
    return 0.13 + 0.28 * min(1.0, size / (0.3 if gradient else 2.0))


def look(settings: Settings, *, back: bool = False, lane: int = 2) -> Look:
    """Everything in the picture that hangs on its numbers.

    Args:
        settings: of the model.
        back: show gradients in place of the numbers.
        lane: the word whose query meets the keys.
    """
    numbers = plain(forward(settings))
    shown = numbers | plain(backward(settings)) if back else numbers
    return {
        **{
            f"{name},{i},{j}": cell(settings, name, i, j, x, back)
            for name in (*STORED, *COMPUTED)
            for i, row in enumerate(shown[name])
            for j, x in enumerate(row)
        },
        **labels(settings),
        **roads(settings, numbers, shown if back else None, lane),
        **answers(settings, numbers),
    }


def cell(settings: Settings, name: str, i: int, j: int, x: float, back: bool) -> dict[str, str]:
    """What a cell says, its tint and its state."""
    if name in "SA" and not settings.edges[i][j]:
        return {"text": "", "tint": "0", "class": "cell weight closed"}
    strength = tint(name, x, gradient=back)
    states = {
        "zero": not strength,
        "inverted": name == "A" and not back and strength > 0.5,
        "pinned": (name, i, j) in settings.pinned,
        "gradient": back,
        "long": len(formatted(x)) > 3,
    }
    names = ["cell", KIND[name], *(state for state, on in states.items() if on)]
    text = formatted(x)
    if len(text) > 4:  # there is no room for more
        text = rounded(x, 1).replace("-", "−")
    return {"text": text, "tint": rounded(strength, 2), "class": " ".join(names)}


def labels(settings: Settings) -> Look:
    """What the columns are called, over computed numbers and beside stored ones."""
    short = {"article": "art.", "noun seen": "seen"}
    over = dict.fromkeys("XYZ", settings.columns)
    over |= {"Q": settings.asks, "O": settings.columns[:4]}
    found = {
        f"over,{name},{j}": {"text": column}
        for name, columns in over.items()
        for j, column in enumerate(columns)
    }
    for j, column in enumerate(settings.columns):
        found[f"beside,W_Q,{j}"] = {"text": short.get(column, column)}
        found[f"beside,W_1,{j}"] = {"text": column}
    for j, column in enumerate(settings.columns[:4]):
        found[f"beside,W_O,{j}"] = {"text": column}
    for i, k in product(range(3), range(3)):
        found[f"norm,{i},{k}"] = {"opacity": str(int(settings.normed))}
    return found


def roads(
    settings: Settings, numbers: Mapping[str, Any], gradients: Mapping[str, Any] | None, lane: int
) -> Look:
    """Lines as wide or as clear as what they carry, and red where a gradient comes back."""

    def red(names: str, i: int, j: int | None = None) -> str:
        """Does a gradient pass one of these rows, or one number of them?"""
        if gradients is None:
            return ""
        passed = [
            x
            for name in names
            for x in (gradients[name][i] if j is None else [gradients[name][i][j]])
        ]
        return " red" * any(abs(x) >= 0.005 for x in passed)

    found: Look = {
        "ask": {"d": f"M370 {at('Q', lane) + ROW // 2}H396", "class": f"meet query{red('Q', lane)}"}
    }
    for j in range(3):
        size = min(1.0, abs(numbers["S"][lane][j]) / 2) if settings.edges[lane][j] else 0.0
        x, y = 398 + CELL * j + CELL // 2, at("K", j) + ROW // 2
        end = at("S", lane) + (-1 if j < lane else ROW + 1)
        found[f"meet,{j}"] = {
            "d": f"M370 {y}H{x - 6}Q{x} {y} {x} {y + (6 if j < lane else -6)}V{end}",
            "opacity": rounded(0.3 + 0.7 * size, 2) if settings.edges[lane][j] else "0",
            "class": f"meet key{red('S', lane, j)}",
        }
    for i in range(3):
        down = at("O", i) + 1.0
        for j in range(3):
            wide = (ROW - 2) * max(0.0, min(1.0, numbers["A"][i][j]))
            start, end = at("V", j) + ROW / 2, down + wide / 2
            down += wide
            y1, y2 = rounded(start, 1), rounded(end, 1)
            found[f"ribbon,{i},{j}"] = {
                "d": f"M596 {y1}C646 {y1} 646 {y2} 694 {y2}",
                "stroke-width": rounded(wide, 2),
                "class": f"ribbon{' chosen' * (i == lane)}{red('A', i, j)}",
            }
        lower, upper = at("D", i) - 1, at("Y", i) + ROW + 2
        for name in "DF":
            for k, x in enumerate(numbers[name][i]):
                middle, passed = COMPUTED[name][0] + CELL * k + CELL // 2, red(name, i, k)
                rising = f"M{middle} {lower}V{upper}m-4 5l4 -5l4 5"
                falling = f"M{middle} {upper}V{lower}m-4 -5l4 5l4 -5"
                found[f"write,{name},{i},{k}"] = {
                    "d": falling if passed else rising,
                    "opacity": str(int(abs(x) >= 0.005)),
                    "class": f"write{passed}",
                }
        silent = numbers["H"][i][0] <= 0  # nothing passes back through the unit
        for name, (of, path, ahead, back) in branches(i).items():
            passed = "" if name == "H" and silent else red(of, i)
            found[f"branch,{name},{i}"] = {
                "d": path + (back if passed else ahead),
                "class": f"branch{passed}",
            }
        for name in "QK":
            found |= hand(settings, numbers, name, i)
        for name in "XYZ":
            found[f"flow,{name},{i}"] = {"class": f"stream-line{red(name, i)}"}
        found[f"lane,{i}"] = {"class": f"lane{' chosen' * (i == lane)}"}
    return found


def hand(settings: Settings, numbers: Mapping[str, Any], name: str, i: int) -> Look:
    """Where a query or key points, in its columns 1 and 3, and how far its place turned it."""
    east, _, north, _ = numbers[name][i]
    size = math.hypot(east, north)
    end = begin = (8 * east / size, 8 * north / size) if size >= 0.005 else (0.0, 0.0)
    for _ in range(i if settings.turned else 0):
        begin = (begin[1], -begin[0])
    x, y = HANDS, at(name, i) + ROW // 2
    (x1, y1), (x2, y2) = ([rounded(x + a, 1), rounded(y - b, 1)] for a, b in (begin, end))
    shown = {"opacity": str(int(settings.turned or settings.asks[0] == "east"))}
    return {
        f"dial,{name},{i}": shown,
        f"turn,{name},{i}": {"d": f"M{x} {y}L{x1} {y1}A8 8 0 0 0 {x2} {y2}z", **shown},
        f"hand,{name},{i}": {"d": f"M{x} {y}L{x2} {y2}", **shown},
    }


def branches(i: int) -> dict[str, tuple[str, str, str, str]]:
    """To what is computed in a lane: whose gradient comes back, a path, its head on and back."""
    stream, query, key, value = (at(name, i) + ROW // 2 for name in "XQKV")
    right = "m-5 -4l5 4l-5 4"

    def up(x: int) -> str:
        return f"M{x - 4} {stream + 7}l4 -5l4 5"

    level = {"A": ("S", 484, query, 17), "D": ("O", 812, value, 25), "F": ("H", 1043, value, 17)}
    return {
        "Q": ("Q", f"M224 {query}h10", "", ""),
        "K": ("K", f"M224 {key}h10", "", ""),
        "V": ("QKV", f"M224 {stream}V{value - 6}q0 6 6 6h4", "", up(224)),
        "H": ("H", f"M992 {stream}V{value - 8}q0 8 8 8h7", right, up(992)),
        **{
            name: (of, f"M{x} {y}h{wide}", right, f"M{x + 5} {y - 4}l-5 4l5 4")
            for name, (of, x, y, wide) in level.items()
        },
    }


def answers(settings: Settings, numbers: Mapping[str, Any]) -> Look:
    """What follows each word, as bars, and the loss."""
    found: Look = {}
    for i, p in enumerate(probabilities(numbers["L"])):
        found[f"word,{i}"] = {"text": WORDS[settings.ids[i]]}
        found[f"id,{i}"] = {"text": f"id {settings.ids[i]}"}
        for name in "SA":
            found[f"head,{name},{i}"] = {"text": WORDS[settings.ids[i]]}
        for w, share in enumerate(p):
            big = " aim" * (i == 2 and w == settings.aim)
            found[f"bar,{i},{w}"] = {
                "width": rounded(1 + (BAR - 1) * share, 1),
                "class": f"share-bar{big}",
            }
            found[f"share,{i},{w}"] = {
                "text": f"{rounded(100 * share, 0)} %",
                "class": f"share{big}",
            }
            found[f"next,{i},{w}"] = {"class": f"next{big}"}
    if settings.every:
        found["loss"] = {"text": f"mean loss of all words: {formatted(numbers['loss'])} nats"}
    else:
        aimed = probabilities(numbers["L"])[2][settings.aim]
        found["loss"] = {
            "text": f"loss of “{WORDS[settings.aim]}”: −ln {formatted(aimed)} = "
            f"{formatted(numbers['loss'])} nats"
        }
    return found


def probabilities(logits: Sequence[Sequence[float]]) -> list[list[float]]:
    """Softmax of each row."""
    return torch.tensor(logits, dtype=torch.float64).softmax(-1).tolist()


def at(name: str, lane: int) -> int:
    """Where a row of computed numbers begins, from above."""
    return TOP + lane * (LANE + GAP) + COMPUTED[name][1]


def view(stage: int) -> str:
    """The part around a stage that a text's width has room for; the script's camera goes on."""
    left = min(CENTRES[stage], WIDTH - ZOOMED / 2) - ZOOMED / 2
    gap = min(GAPS, key=lambda gap: abs(gap - left - TAG))
    return f"{0 if left < 20 else gap - TAG} 20 {ZOOMED} {HEIGHT - 20}"


def svg(settings: Settings | None = None, stage: int | None = None, *, back: bool = False) -> str:
    """The drawing, whole or zoomed to a stage, as an element of a page.

    Example:
        >>> svg()[:49]
        '<svg class="bench-picture" viewBox="0 0 1340 579"'
    """
    seen_box = f"0 0 {WIDTH} {HEIGHT}" if stage is None else view(stage)
    parts = Drawing(settings or Settings(), back=back).parts()
    return (
        f'<svg class="bench-picture" viewBox="{seen_box}" role="group" '
        'aria-label="A small model reads “the cat sat”, from words to the next word">'
        f"{''.join(parts)}</svg>"
    )


class Drawing:
    """Pieces of the picture, each of which has what :func:`look` says of its key."""

    def __init__(self, settings: Settings, *, back: bool) -> None:
        self.look = look(settings, back=back)
        self.numbers = forward(settings)

    def mark(self, tag: str, key: str = "", inside: str = "", **attributes: Any) -> str:
        """An element; one with a key has what :func:`look` says."""
        dynamic = dict(self.look[key]) if key else {}
        inside = escape(dynamic.pop("text")) if "text" in dynamic else inside
        said = {"data-key": key} if key else {}
        for part in key.split(",")[:2]:
            if part in STAGE:
                said["data-stage"] = STAGE[part]
        said |= {name.rstrip("_").replace("_", "-"): each for name, each in attributes.items()}
        said |= dynamic
        written = "".join(f' {name}="{value}"' for name, value in said.items())
        return f"<{tag}{written}>{inside}</{tag}>"

    def words(self, x: float, y: float, text: str, class_: str = "small", **more: Any) -> str:
        """A text."""
        return self.mark("text", inside=escape(text), x=x, y=y, class_=class_, **more)

    def letter(self, x: float, y: float, name: str, kind: str) -> str:
        """A matrix's letter, with its index below."""
        base, _, index = name.partition("_")
        below = f'<tspan dy="4" font-size="12">{index}</tspan>' if index else ""
        stage = STAGE[name.upper() if len(name) == 1 and name != "b" else name]
        class_ = f"letter {kind} {name}"
        return self.mark("text", inside=base + below, x=x, y=y, class_=class_, data_stage=stage)

    def cell(self, name: str, i: int, j: int, x: int, y: int, height: int) -> str:
        """A number in its box."""
        key = f"{name},{i},{j}"
        own = self.look[key]
        return (
            f'<g data-key="{key}" class="{own["class"]}" transform="translate({x} {y})">'
            f'<rect class="box" width="{CELL}" height="{height}" rx="3"></rect>'
            f'<rect class="fill" width="{CELL}" height="{height}" rx="3" '
            f'fill-opacity="{own["tint"]}"></rect>'
            f'<text class="digits" x="{CELL / 2}" y="{height / 2 + 0.5}">{own["text"]}</text></g>'
        )

    def matrix(self, name: str) -> Iterator[str]:
        """A stored one, or a row of a computed one in each lane."""
        rows, columns = self.numbers[name].shape
        for i, j in product(range(rows), range(columns)):
            if name in STORED:
                x, y = STORED[name]
                yield self.cell(name, i, j, x + CELL * j, y + STORED_ROW * i, STORED_ROW)
            else:
                yield self.cell(name, i, j, COMPUTED[name][0] + CELL * j, at(name, i), ROW)

    def heads(self, name: str, n: int) -> Iterator[str]:
        """The names of a matrix's columns, over it."""
        for j in range(n):
            place = f"translate({COMPUTED[name][0] + CELL * (j + 0.5) + 4} {TOP - 6}) rotate(-52)"
            yield self.mark("text", f"over,{name},{j}", x=0, y=0, class_="small", transform=place)

    def lane(self, i: int) -> Iterator[str]:
        """A word's lane: its stream, its branches, what follows."""
        top = TOP + i * (LANE + GAP)
        stream, value = (at(name, i) + ROW // 2 for name in "XV")
        yield self.mark("rect", f"lane,{i}", x=2, y=top, width=WIDTH - 4, height=LANE, rx=10)
        for name, start, end in (("X", 62, 224), ("Y", 224, 842), ("Z", 842, 1204)):
            yield self.mark("path", f"flow,{name},{i}", d=f"M{start} {stream}H{end}")
        for name in "XYZ":
            x = COMPUTED[name][0]
            yield self.mark("rect", x=x, y=at(name, i), width=5 * CELL, height=ROW, class_="under")
        y = value - 9
        yield self.mark("rect", x=370, y=y, width=226, height=18, class_="belt", data_stage=4)
        for name in branches(i):
            yield self.mark("path", f"branch,{name},{i}")
        for k, (x, stage) in enumerate(((219, 1), (987, 6), (1208, 7))):  # what reads the stream
            more = {"x": x, "y": stream - 6, "class_": "small", "data_stage": stage}
            yield self.mark("text", f"norm,{i},{k}", "norm", **more)
        for name, kind in (("Q", "query"), ("K", "key"), ("V", "value")):
            yield self.letter(240, at(name, i) + 15, name.lower(), kind)
        yield (
            f'<g class="chip" data-word="{i}">'
            f'<rect x="8" y="{top + 4}" width="54" height="{ROW + 4}" rx="6"></rect>'
            + self.mark("text", f"word,{i}", x=35, y=top + 21, class_="word")
            + "</g>"
            + self.mark("text", f"id,{i}", x=35, y=top + 46, class_="small middle")
        )
        for w, word in enumerate(WORDS):
            y, key = top - GAP / 2 + SHARE * w, f"{i},{w}"  # type: ignore[assignment]
            box = {"x": SHARES, "y": y + 3, "height": SHARE - 6, "rx": 3}
            yield f'<g class="share-of" data-answer="{key}">'
            yield self.mark(
                "rect", x=SHARES, y=y, width=BAR, height=SHARE, fill="none", pointer_events="all"
            )
            yield self.mark("rect", width=BAR, class_="share-room", data_stage=7, **box)  # type: ignore[arg-type]
            yield self.mark("rect", f"bar,{key}", **box)  # type: ignore[arg-type]
            yield self.mark("text", f"next,{key}", word, x=SHARES + 5, y=y + 18.5)
            yield self.mark("text", f"share,{key}", x=SHARES + BAR - 4, y=y + 18.5) + "</g>"

    def writing(self, i: int) -> Iterator[str]:
        """Arrows from what is written up to the stream."""
        for name in "DF":
            for k in range(5):
                yield self.mark("path", f"write,{name},{i},{k}")

    def parts(self) -> Iterator[str]:
        """All of them, from the back to the front."""
        yield (
            '<defs><pattern id="bench-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="6" height="6" class="under"></rect>'
            '<line y2="6" class="hatch"></line></pattern></defs>'
        )
        for i in range(3):
            yield from self.lane(i)
        for j in range(3):
            yield self.mark("path", f"meet,{j}")
        yield self.mark("path", "ask")
        for i in range(3):
            for j in range(3):
                yield self.mark("path", f"ribbon,{i},{j}")
            for name in "QK":
                y = at(name, i) + ROW // 2
                yield self.mark("circle", f"dial,{name},{i}", cx=HANDS, cy=y, r=9.5, class_="dial")
                for what in ("turn", "hand"):
                    yield self.mark("path", f"{what},{name},{i}", class_=f"{what} {KIND[name]}")
            yield from self.writing(i)
        yield from self.names()
        for name in (*STORED, *COMPUTED):
            kind, cells = ' class="stored"' * (name in STORED), "".join(self.matrix(name))
            yield f'<g data-matrix="{name}" data-stage="{STAGE[name]}"{kind}>{cells}</g>'
        yield self.mark("text", "loss", x=WIDTH - 6, y=HEIGHT - 6, class_="small end")

    def names(self) -> Iterator[str]:
        """Of stages, matrices, rows and columns."""
        for k, (title, x, _) in enumerate(STAGES):
            if str(k) not in (STAGE["S"], STAGE["A"]):  # their tables say it
                yield self.words(x, 16, title, "title", data_stage=k)
        for name, (x, y) in STORED.items():
            left, down = {"b": (-18, 16), "U": (-18, 60)}.get(name, (1, -9))  # clear of W_2
            yield self.letter(x + left, y + down, name, KIND[name])
        for w, word in enumerate(WORDS):
            yield self.words(
                STORED["U"][0] + CELL * (w + 0.5), 50, word, "small middle head", data_stage=7
            )
        for i, word in enumerate(WORDS):
            yield self.words(68, 71 + STORED_ROW * i, word, "small end", data_stage=0)
        for name, x, n in (("W_Q", 252, 5), ("W_O", 691, 4), ("W_1", 1007, 5)):
            for i in range(n):
                y = STORED[name][1] + 15 + STORED_ROW * i
                yield self.mark("text", f"beside,{name},{i}", x=x, y=y, class_="small end")
        for name, n in (("X", 5), ("Q", 4), ("O", 4), ("Y", 5), ("Z", 5)):
            yield from self.heads(name, n)
        for name, title in (("S", "logits"), ("A", "weights")):
            middle = COMPUTED[name][0] + 1.5 * CELL
            yield self.words(middle, TOP - 23, title, "small middle", data_stage=STAGE[name])
            for j in range(3):
                x = COMPUTED[name][0] + CELL * j + CELL // 2
                key = f"head,{name},{j}"
                yield self.mark("text", key, x=x, y=TOP - 6, class_="small middle head")
