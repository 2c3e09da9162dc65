"""An encoder-decoder writes a date, one character after another (chapter 9)."""

from typing import Any

from attnbook.book.figures import BLUE, INK, VERMILLION
from attnbook.book.interactive.drawing import (
    Bound,
    Drawing,
    Numbers,
    group,
    mark,
    number,
    pick,
    shown,
    text,
    words,
)
from attnbook.book.interactive.figure import Choice, Figure, Handle, Slider, Switch

PHRASES = {
    "mardi 5 mars 2024": "2024-03-05",
    "2024年3月5日": "2024-03-05",
    "March 2024": "2024-03",
    "25/12/99": "1999-12-25",
    "Tuesday, March 5, 2024": "2024-03-05",
    "вторник, 5 марта 2024 г.": "2024-03-05",
    "2024 March 5": "2024-03-05",
    "5. března 2024": "2024-03-05",
    "03/04/05": "",
    "31 February 2023": "",
    "5. listopada 2024.": "",
}
"""Phrase -> its correct answer, "" where none is, or several are.

The model of the page stops early: the first four phrases it reads correctly, the next two not yet.
"""
NOTES = {
    "Tuesday, March 5, 2024": "not yet learned",
    "вторник, 5 марта 2024 г.": "not yet learned",
    "2024 March 5": "new order",
    "5. března 2024": "Czech",
    "03/04/05": "ambiguous",
    "31 February 2023": "no such day",
    "5. listopada 2024.": "Croatian: October",
}
READS, WRITES = 24, 11  # characters of the longest phrase; of an answer with its end
CELL, LEFT, TOP = 28, 76, 160  # of the answer


def quoted(token: str) -> str:
    """A token in a sentence."""
    return f"the {token}" if len(token) > 1 else f"“{token}”"


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """One step of one phrase: the chapter passes what its model did."""
    phrase, cut = data["phrases"][int(settings["phrase"])], settings["cut"]
    read = phrase["text"].replace(" ", "·")
    iso, answer, steps = phrase["iso"], phrase["answer"], phrase["steps"]
    at, n = min(settings["at"], len(steps) - 1), len(read)
    step = steps[at]
    top = step["cut"] if cut else step["top"]
    wide = min(24, 408 / n)
    x = [215 + wide * (k + 0.5 - n / 2) for k in range(READS)]
    padded = [*step["weights"], *[0] * (READS - n)]
    best = padded.index(max(padded))
    token, next_token = step["top"][0][0], top[0][0]  # with all edges, and as things are
    written = [*answer[:at], next_token, *[""] * (WRITES - at - 1)]
    due = [*iso, "end", *[""] * WRITES]
    return {
        "now": at,
        "wide": wide,
        "x": x,
        "lefts": [each - wide / 2 for each in x],
        "here": [k < n for k in range(READS)],
        "reads": [*read, *[""] * (READS - n)],
        "weights": padded,
        "edge": [(1 + cut) * (k == best) for k in range(READS)],
        "x_best": x[best],
        "w": padded[best],
        "writes": written,
        "wrong": [iso != "" and k <= at and due[k] != written[k] for k in range(WRITES)],
        "top": top,
        "answer": answer,
        "verdict": "no single right answer" if iso == ""
        else "✓ correct" if answer == iso else f"✗ correct: {iso}",
        "sure": phrase["sure"],
        "after": f"After “{answer[:at]}”" if at else "First",
        "token": quoted(token),
        "whom": read[best],
        "place": best + 1,
        "p": step["top"][0][1],
        "p_cut": step["p_cut"],
        "instead": quoted(next_token),
        "case": "whole" if not cut else "same" if step["p_cut"] == step["top"][0][1] else "cut",
    }  # fmt: skip


def label(x: Bound, y: float | Bound, what: Bound, anchor: str = "middle", **more: Any) -> Drawing:
    """Words that move."""
    return mark("text", what, x=x, y=y, text_anchor=anchor, fill=INK, **more)


def marks() -> list[Drawing]:
    """The phrase with its weights, lines to the answer, what is likeliest, the whole answer."""
    now = number("now", CELL, LEFT + CELL / 2)
    lines, cells = [], []
    for k in range(READS):
        edge, here = f"edge.{k}", shown(f"here.{k}")
        box: dict[str, Any] = {"x": number(f"lefts.{k}", 1, 1), "width": number("wide", 1, -2)}
        lines.append(
            mark("line", x1=number(f"x.{k}"), y1=100, x2=now, y2=TOP - 1, visibility=here,
                 stroke=pick(edge, BLUE, BLUE, VERMILLION), stroke_opacity=0.75,
                 stroke_width=number(f"weights.{k}", 10),
                 stroke_dasharray=pick(edge, "none", "none", "5 5"))
        )  # fmt: skip
        cells.append(group(
            mark("rect", y=number(f"weights.{k}", -36, 70), height=number(f"weights.{k}", 36),
                 fill=pick(edge, BLUE, BLUE, VERMILLION), **box),
            mark("rect", y=72, height=28, fill=BLUE, fill_opacity=number(f"weights.{k}", 0.6, 0.07),
                 stroke=pick(edge, "none", INK, VERMILLION), stroke_width=2,
                 stroke_dasharray=pick(edge, "none", "none", "4 3"), **box),
            label(number(f"x.{k}"), 91, text(f"{{reads.{k}}}"), font_size=15,
                  font_family="monospace"),
            visibility=here,
        ))  # fmt: skip
    answer = []
    for k in range(WRITES):
        x, wrong = LEFT + CELL * (k + 0.5), f"wrong.{k}"
        answer += [
            mark("rect", x=LEFT + CELL * k + 1, y=TOP, width=CELL - 2, height=28, fill=BLUE,
                 fill_opacity=0.07, stroke=INK, stroke_opacity=0.25),
            words(x, TOP + 19, text(f"{{writes.{k}}}"), "middle", font_family="monospace",
                  font_size=15, font_weight=pick(wrong, "normal", "bold"),
                  fill=pick(wrong, INK, VERMILLION)),
            words(x, TOP + 43, "✗", "middle", visibility=shown(wrong), fill=VERMILLION),
        ]  # fmt: skip
    likely = []
    for k, y in enumerate((254, 275, 296)):
        likely += [
            words(66, y, text(f"{{top.{k}.0}}"), "end", font_family="monospace"),
            mark("rect", x=72, y=y - 12, width=number(f"top.{k}.1", 100), height=15,
                 fill=pick("cut", BLUE, VERMILLION), fill_opacity=0.8),
            label(number(f"top.{k}.1", 100, 77), y, text(f"{{top.{k}.1:.1%}}"), "start"),
        ]  # fmt: skip
    return [
        words(8, 16, "It reads, and attends", font_weight="bold"),
        *lines,
        *cells,
        label(number("x_best"), number("w", -36, 66), text("{w:.0%}"), font_size=12),
        words(8, TOP + 19, "It writes", font_weight="bold"),
        *answer,
        mark("rect", x=number("now", CELL, LEFT), y=TOP, width=CELL, height=28, fill=BLUE,
             fill_opacity=0.2, stroke=INK, stroke_width=2, data_handle="next"),
        words(8, 230, pick("cut", "Likeliest next", "Likeliest, the edge cut"), font_weight="bold"),
        *likely,
        words(240, 230, pick("cut", "The whole answer", "Without the cut"), font_weight="bold"),
        words(240, 254, text("{answer}"), font_family="monospace", font_size=15),
        words(240, 275, text("{verdict}")),
        words(240, 296, text("how sure: {sure:.1%}")),
    ]  # fmt: skip


date_reader = Figure(
    name="date_reader",
    title="A phrase becomes a date, one character after another",
    description=(
        "An encoder-decoder reads “mardi 5 mars 2024”, a row of cells, and has written 2024-03-0, "
        "a second row below. The digit 5 comes next. Lines lead from its cell to the characters of "
        "the phrase, as wide as the attention to them, and bars above the phrase show the same "
        "weights; the heaviest is outlined. Below are the three likeliest characters as bars, and "
        "the whole answer, 2024-03-05, with its probability."
    ),
    size=(430, 306),
    compute=compute,
    marks=marks(),
    says={
        "whole": "{after}, it writes {token} ({p:.1%}). It attends most to “{whom}”, character "
        "{place} of the phrase, with {w:.0%} of the weight.",
        "cut": "{after}, {token} has {p_cut:.1%} instead of {p:.1%} if the decoder cannot attend "
        "to “{whom}”, character {place} of the phrase, which had {w:.0%} of the weight. The "
        "likeliest is then {instead}.",
        "same": "{after}, {token} keeps its {p:.1%} if the decoder cannot attend to “{whom}”, "
        "character {place} of the phrase, which had {w:.0%} of the weight.",
    },
    table={
        "written so far, and next": "{after}: {token}",
        "the three likeliest": ", ".join(f"{{top.{k}.0}} {{top.{k}.1:.1%}}" for k in range(3)),
        "attends most to": "“{whom}”, character {place}, {w:.0%}",
        "the same character with this edge cut": "{p_cut:.1%}",
        "the whole answer": "{answer}, {verdict}, how sure: {sure:.1%}",
    },
    controls=(
        Choice("phrase", "Phrase", "0", {
            f"{i}": each + (f" ({NOTES[each]})" if each in NOTES else "")
            for i, each in enumerate(PHRASES)
        }),
        Slider("at", "Characters written", 9, low=0, high=WRITES - 1, step=1),
        Switch("cut", "Cut the heaviest edge"),
    ),
    handles=[Handle("next", "at", "", CELL, LEFT + CELL / 2, 0)],
    examples=(
        {"at": 0},
        {"at": 6},
        {"at": 9, "cut": True},
        {"phrase": "5", "at": 10, "cut": True},
        {"phrase": "1", "at": 6, "cut": True},
        {"phrase": "2", "at": 10},
        {"phrase": "6", "at": 10},
        {"phrase": "8", "at": 0, "cut": True},
        {"phrase": "10", "at": 7},
    ),
)  # fmt: skip
