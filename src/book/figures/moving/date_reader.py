"""An encoder-decoder writes a date, one character after another (chapter 9)."""

from typing import Any

from book.figures.colours import FRAME, QUERY, ROSE, STREAM, WEIGHT
from book.figures.moving.drawing import (
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
from book.figures.moving.figure import Choice, Figure, Handle, Slider, Switch
from book.figures.style import INK

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
CELL, LEFT, READ, WRITE = 28, 86, 22, 98  # cells of the answer; heights of the two rows


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
    wide = min(24, 416 / n)
    lefts = [220 + wide * (k - n / 2) for k in range(READS)]
    padded = [*step["weights"], *[0] * (READS - n)]
    best = padded.index(max(padded))
    (token, p), (next_token, p_next) = step["top"][0], top[0]  # with all edges; as things are
    written = [*answer[:at], next_token, *[""] * (WRITES - at - 1)]
    due = [*iso, "end", *[""] * WRITES]
    return {
        "now": at,
        "wide": wide,
        "lefts": lefts,
        "x": [each + wide / 2 for each in lefts],
        "here": [k < n for k in range(READS)],
        "reads": [*read, *[""] * (READS - n)],
        "weights": padded,
        "edge": [(1 + cut) * (k == best) for k in range(READS)],
        "x_best": lefts[best] + wide / 2,
        "w": padded[best],
        "writes": written,
        "wrong": [iso != "" and k <= at and due[k] != written[k] for k in range(WRITES)],
        "top": top,
        "answer": answer,
        "verdict": "no single correct answer" if iso == ""
        else "✓ correct" if answer == iso else f"✗ it is {iso}",
        "sure": phrase["sure"],
        "trained": data["trained"],
        "after": f"After “{answer[:at]}”" if at else "First",
        "token": quoted(token),
        "whom": read[best],
        "place": best + 1,
        "p": p,
        "p_cut": step["p_cut"],
        "p_next": p_next,
        "instead": quoted(next_token),
        "case": "whole" if not cut else "same" if next_token == token else "cut",
    }  # fmt: skip


def marks() -> list[Drawing]:
    """The phrase with its weights, lines to the answer, what is likeliest, the whole answer."""
    letter: dict[str, Any] = {"font_family": "monospace", "font_size": 15}
    lines, cells = [], []
    for k in range(READS):
        edge, here, weight = f"edge.{k}", shown(f"here.{k}"), f"weights.{k}"
        lines.append(
            mark("line", x1=number(f"x.{k}"), y1=READ + 28, x2=number("now", CELL, LEFT + CELL / 2),
                 y2=WRITE, visibility=here, stroke=WEIGHT, stroke_opacity=0.7,
                 stroke_width=number(weight, 10),
                 stroke_dasharray=pick(edge, "none", "none", "3 9"))
        )  # fmt: skip
        cells.append(group(
            mark("rect", x=number(f"lefts.{k}", 1, 1), y=READ, width=number("wide", 1, -2),
                 height=28, fill=WEIGHT, fill_opacity=number(weight, 0.4, 0.04), stroke=WEIGHT,
                 stroke_width=pick(edge, "0", "2", "2"),
                 stroke_dasharray=pick(edge, "none", "none", "4 3")),
            mark("text", text(f"{{reads.{k}}}"), x=number(f"x.{k}"), y=READ + 19,
                 text_anchor="middle", fill=INK, **letter),
            visibility=here,
        ))  # fmt: skip
    answer = []
    for k in range(WRITES):
        x, wrong = LEFT + CELL * (k + 0.5), f"wrong.{k}"
        answer += [
            mark("rect", x=x - 13, y=WRITE, width=26, height=28, fill="none", stroke=FRAME),
            words(x, WRITE + 19, text(f"{{writes.{k}}}"), "middle",
                  font_weight=pick(wrong, "normal", "bold"), **letter),
            words(x, WRITE + 43, "✗", "middle", visibility=shown(wrong), fill=ROSE),
        ]  # fmt: skip
    likely = []
    for k, y in enumerate((184, 203, 222)):
        likely += [
            words(54, y, text(f"{{top.{k}.0}}"), "end", font_family="monospace"),
            mark("rect", x=60, y=y - 12, width=number(f"top.{k}.1", 100), height=15, fill=STREAM),
            mark("text", text(f"{{top.{k}.1:.1%}}"), x=number(f"top.{k}.1", 100, 66), y=y,
                 fill=INK),
        ]  # fmt: skip
    return [
        *lines,
        *cells,
        mark("text", text("{w:.0%}"), x=number("x_best"), y=READ - 6, text_anchor="middle",
             fill=INK),
        words(12, WRITE + 19, "It writes", font_weight="bold"),
        *answer,
        mark("rect", x=number("now", CELL, LEFT), y=WRITE, width=CELL, height=28, fill=QUERY,
             fill_opacity=0.12, stroke=QUERY, stroke_width=2, data_handle="next"),
        words(12, 164, pick("cut", "Likeliest next", "Likeliest, this edge cut"),
              font_weight="bold"),
        *likely,
        words(240, 164, pick("cut", "The whole answer", "Without the cut"),
              font_weight="bold"),
        words(240, 184, text("{answer}"), **letter),
        words(240, 203, text("{verdict}")),
        words(240, 222, text("{sure:.1%} sure ({trained:,} steps)")),
    ]  # fmt: skip


date_reader = Figure(
    name="date_reader",
    title="A phrase becomes a date, one character after another",
    description=(
        "An encoder-decoder reads “mardi 5 mars 2024”, a row of cells, and has written 2024-03-0, "
        "a second row below. The digit 5 comes next. Lines lead from its cell to the characters of "
        "the phrase, as wide as the attention to them; the heaviest ends at the 5. Below are the "
        "three likeliest characters as bars, and the whole answer, 2024-03-05, with its "
        "probability."
    ),
    size=(440, 230),
    compute=compute,
    marks=marks(),
    says={
        "whole": "{after} it writes {token} ({p:.1%}), and attends most to “{whom}”, character "
        "{place} of the phrase ({w:.0%}).",
        "cut": "{after}, with the edge to character {place} cut, {token} falls from {p:.1%} to "
        "{p_cut:.1%}. It would write {instead} ({p_next:.1%}).",
        "same": "{after}, with the edge to character {place} cut, it still writes {token}: "
        "{p_cut:.1%} instead of {p:.1%}.",
    },
    table={
        "written so far, and next": "{after}: {token}",
        "the three likeliest": ", ".join(f"{{top.{k}.0}} {{top.{k}.1:.1%}}" for k in range(3)),
        "attends most to": "“{whom}”, character {place}, {w:.0%}",
        "the same character with this edge cut": "{p_cut:.1%}",
        "the whole answer": "{answer}, {verdict}, how sure: {sure:.1%}",
    },
    controls=(
        Choice("phrase", "It reads", "0", {
            f"{i}": each + (f" ({NOTES[each]})" if each in NOTES else "")
            for i, each in enumerate(PHRASES)
        }),
        Slider("at", "Already written", 9, low=0, high=WRITES - 1, step=1, plays=0.7),
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
