"""What a language model writes after so many steps, at which loss (chapter 10)."""

import math
import re
from typing import Any

from attnbook.book.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION
from attnbook.book.interactive.drawing import (
    Bound,
    Drawing,
    Numbers,
    line,
    mark,
    number,
    pick,
    points,
    text,
    words,
)
from attnbook.book.interactive.figure import Choice, Figure, Slider

STEPS = (0, 10, 30, 100, 200, 400, 800, 1500)
"""At which the chapter's study keeps what the model writes."""
LINES, WIDTH = 5, 44  # of the text
BITS = (1, 2, 3, 4)  # marks of the right axis
LEFT, PER_ROOT = 34, 9.6  # steps on a square-root scale
FLOOR, PER_NAT = 202, 26  # a loss of 0 nats lies at FLOOR


def visible(what: str) -> str:
    """A text with ¶ for new lines and ¤ for what is not ASCII: all as wide as a letter."""
    return re.sub("[^\n -~]", "¤", what).replace("\n", "¶")


def wrapped(what: str) -> list[str]:
    r"""Five lines of at most 44 characters; spaces are seen where there are several.

    Example:
        >>> wrapped("The class:\n    self")
        ['The class:¶····self', '', '', '', '']
    """
    dotted = re.sub("  +", lambda run: "·" * len(run[0]), visible(what))
    lines = re.findall(f".{{1,{WIDTH}}}$|.{{0,{WIDTH - 1}}}[ ¶]|.{{{WIDTH}}}", dotted)
    return [*lines, *[""] * LINES][:LINES]


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """What was measured at this step: the chapter passes its study's numbers."""
    at = data["shown"].index(settings["step"])
    lines, loss, bits = data[settings["how"]][at], data["shown_losses"][at], data["bits"][at]
    _, unigram, bigram = data["yardsticks"]
    curve = zip(data["steps"], data["losses"], strict=True)
    found = re.findall("[A-Za-z]{3,}", "".join(lines))
    return {
        **data,
        "loss": loss,
        "bits": bits,
        "lines": lines,
        "roots": [math.sqrt(step) for step in data["steps"]],
        "root": math.sqrt(settings["step"]),
        "ticks": [loss / bits * n for n in BITS],
        "here": [step == settings["step"] for step in data["shown"]],
        "found": len(found),
        "different": len(set(found)),
        "passes": next(step for step, each in curve if each < bigram),
        "case": "less" if loss >= unigram else "single" if loss >= bigram else "pairs",
    }


def label(
    x: float | Bound, y: Bound, what: str, anchor: str | Bound = "start", **more: Any
) -> Drawing:
    """Words that move."""
    return mark("text", text(what), x=x, y=y, text_anchor=anchor, fill=INK, **more)


def marks() -> list[Drawing]:
    """Above, the curve and its yardsticks; below, the text."""
    right, top = LEFT + PER_ROOT * math.sqrt(STEPS[-1]), FLOOR + 54
    across: dict[str, Any] = {"x_scale": PER_ROOT, "x_offset": LEFT}
    curve = [
        mark("polyline", points=points("losses", -PER_NAT, FLOOR, xs="roots", **across),
             fill="none", stroke=BLUE, stroke_width=2.2),
        *(
            mark("circle", cx=LEFT + PER_ROOT * math.sqrt(step),
                 cy=number(f"shown_losses.{i}", -PER_NAT, FLOOR),
                 r=pick(f"here.{i}", "3.5", "6.5"), fill=pick(f"here.{i}", BLUE, VERMILLION))
            for i, step in enumerate(STEPS)
        ),
        label(number("root", PER_ROOT, LEFT), number("loss", -PER_NAT, FLOOR - 11),
              "{loss:.2f}", pick(f"here.{len(STEPS) - 1}", "start", "end"),
              font_weight="bold"),
    ]  # fmt: skip
    yardsticks = []
    for i, (colour, what) in enumerate((
        (PURPLE, "any of 512 tokens, ln V"), (GREEN, "counts of tokens"), (ORANGE, "table of pairs")
    )):  # fmt: skip
        y = number(f"yardsticks.{i}", -PER_NAT, FLOOR)
        yardsticks += [
            mark("line", x1=LEFT, x2=right, y1=y, y2=y, stroke=colour, stroke_width=1.6,
                 stroke_dasharray="6 4"),
            label(right - 2, number(f"yardsticks.{i}", -PER_NAT, FLOOR - 4),
                  f"{what}: {{yardsticks.{i}:.2f}}", "end"),
        ]  # fmt: skip
    return [
        words(8, 15, "Held-out loss, nats per token", font_weight="bold"),
        words(432, 15, "bits per character", "end"),
        *yardsticks,
        line(LEFT, FLOOR, right, FLOOR),
        *(words(LEFT - 8, FLOOR + 4 - PER_NAT * n, f"{n}", "end") for n in (0, 2, 4, 6)),
        *(
            label(right + 10, number(f"ticks.{i}", -PER_NAT, FLOOR + 4), f"{n}")
            for i, n in enumerate(BITS)
        ),
        *(
            words(LEFT + PER_ROOT * math.sqrt(n), FLOOR + 17, f"{n}", "middle")
            for n in (0, 30, 100, 200, 400, 800)
        ),
        words(432, FLOOR + 17, "1500 steps", "end"),
        *curve,
        words(8, top - 8, text("What it writes after {step} steps"), font_weight="bold"),
        mark("rect", x=8, y=top, width=424, height=19 * LINES + 8, fill=INK, fill_opacity=0.06),
        mark("rect", x=12, y=top + 4, width=33, height=19, fill=BLUE, fill_opacity=0.25),
        *(
            words(14, top + 18 + 19 * i, text(f"{{lines.{i}}}"), font_family="monospace",
                  font_size=15)
            for i in range(LINES)
        ),
        words(8, top + 19 * LINES + 24, "shaded: the prompt;   ¶ new line, ·· spaces, ¤ not ASCII"),
    ]  # fmt: skip


after = "After {step} steps: {loss:.2f} nats per token, {bits:.2f} bits per character. "
wrote = " Words in the text: {found}, different ones: {different}."
text_scrubber = Figure(
    name="text_scrubber",
    title="What does it write, at which loss?",
    description=(
        "The loss on held-out text over 1500 steps of training, on a square-root scale. It starts "
        "at the upper dashed line, an even guess among 512 tokens, falls steeply through two more, "
        "counts of tokens and a table of pairs, and flattens. Eight steps are marked, the last one "
        "large. Below, in a few lines, the text that the model writes after this step, when it is "
        "given “The”."
    ),
    size=(440, 382),
    compute=compute,
    marks=marks(),
    says={
        "less": f"{after}Counting how often each token occurs predicts better.{wrote}",
        "single": f"{after}That is better than counting tokens; a table of pairs predicts "
        f"better.{wrote}",
        "pairs": f"{after}That is better than a table of pairs.{wrote}",
    },
    table={
        "loss, nats per token": "{loss:.3f}",
        "bits per character": "{bits:.3f}",
        "loss of an even guess, of counts of tokens, of a table of pairs": "{yardsticks.0:.3f}, "
        "{yardsticks.1:.3f}, {yardsticks.2:.3f}",
        "words of three letters or more, different ones": "{found}, {different}",
        "better than a table of pairs from step": "{passes}",
    },
    controls=(
        Slider("step", "Steps", STEPS[-1], values=STEPS),
        Choice("how", "Next token", "drawn", {
            "drawn": "drawn, temperature 0.8", "greedy": "the likeliest (greedy)",
        }),
    ),
    examples=(
        {"step": 0},
        {"step": 0, "how": "greedy"},
        {"step": 10},
        {"step": 100, "how": "greedy"},
        {"step": 400},
        {"how": "greedy"},
    ),
)  # fmt: skip
