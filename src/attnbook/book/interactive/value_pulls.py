"""Which of three logits a gradient raises: those whose values beat the average (chapter 6)."""

import math
from typing import Any

import numpy as np

from attnbook import backprop
from attnbook.book.figures import BLUE, GREEN, INK, ORANGE, PURPLE
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    arrow,
    group,
    line,
    mark,
    move,
    number,
    text,
    words,
)
from attnbook.book.interactive.figure import Figure, Guess, Handle, Slider

SCALE, ACROSS, DOWN = 45, 135, 205  # where the plane's (0, 0) lies in the drawing
LANES, MIDDLE, TALL = (306, 353, 400), 150, 180  # the pushes: places, zero, pixels for a push of 1
COLOURS = (BLUE, ORANGE, GREEN)
SINGLE = "123"
START = ((-2.0, 2.0, 5.0), (1.5, 1.0, 3.0), (1.0, 3.0, 2.0))  # across, up, e^logit


def _clean(numbers: Any) -> Any:
    """Without what rounding leaves of zeros: an arrow would point along it."""
    return np.where(np.abs(numbers) < 1e-9, 0.0, numbers)


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Weights, average, how far each value beats it, and the pushes on the logits."""
    values = np.array([[settings[f"x{j}"], settings[f"y{j}"]] for j in SINGLE], dtype=float)
    exponentials = np.array([[settings[f"e{j}"] for j in SINGLE]], dtype=float)
    weights = backprop.softmax(np.log(exponentials))
    turn = math.radians(settings["angle"])
    wanted = np.array([math.cos(turn), math.sin(turn)])  # minus the output's gradient
    average = (weights @ values)[0]
    pushes = _clean(-backprop.softmax_backward(-(values @ wanted)[None], weights)[0])
    ahead = _clean((values - average) @ wanted)
    feet = values - ahead[:, None] * wanted
    moves = [int(push > 0) - int(push < 0) for push in pushes]
    return {
        "weights": weights[0].tolist(),
        "radii": (6 + 10 * np.sqrt(weights[0])).tolist(),
        "average": average.tolist(),
        "tip": (average + 1.3 * wanted).tolist(),
        "tilt": 90 - settings["angle"],
        "along": (values @ wanted).tolist(),
        "ahead": ahead.tolist(),
        "feet": feet.tolist(),
        "values": values.tolist(),
        "pushes": pushes.tolist(),
        "drawn": np.clip(pushes, -0.62, 0.62).tolist(),
        "rises": [move > 0 for move in moves],
        "moves": [("stays", "rises", "falls")[move] for move in moves],
        "which": " and ".join(j for j, move in zip(SINGLE, moves, strict=True) if move > 0)
        or "none",
    }


def marks() -> list[Drawing]:
    """A plane with values, average and wanted direction; beside it three logits with arrows."""

    def at(path: str) -> str | Any:
        return move(f"{path}.0", f"{path}.1", SCALE, ACROSS, DOWN)

    better = group(
        mark("rect", x=-700, y=-700, width=1400, height=700, fill=PURPLE, fill_opacity=0.13),
        mark("line", x1=-700, x2=700, stroke=PURPLE, stroke_dasharray="5 4"),
        transform=move("average.0", "average.1", SCALE, ACROSS, DOWN, angle="tilt"),
        data_answer="",
    )
    threads = [
        mark("line", x1=number(f"values.{j}.0", SCALE, ACROSS),
             y1=number(f"values.{j}.1", -SCALE, DOWN), x2=number("average.0", SCALE, ACROSS),
             y2=number("average.1", -SCALE, DOWN), stroke=colour, stroke_opacity=0.45,
             stroke_width=number(f"weights.{j}", 12))
        for j, colour in enumerate(COLOURS)
    ]  # fmt: skip
    leads = [
        mark("polygon", fill=INK, data_answer="", pointer_events="none", points=arrow(
            (f"feet.{j}.0", f"feet.{j}.1"), (f"values.{j}.0", f"values.{j}.1"), SCALE, ACROSS,
            DOWN))
        for j in range(3)
    ]  # fmt: skip
    discs = [
        group(mark("circle", r=number(f"radii.{j}"), fill=colour, stroke=INK, stroke_width=1),
              words(12, -12, f"v{'₁₂₃'[j]}"), transform=at(f"values.{j}"),
              data_handle=f"v{SINGLE[j]}")
        for j, colour in enumerate(COLOURS)
    ]  # fmt: skip
    lanes = [
        part
        for j, (x, colour) in enumerate(zip(LANES, COLOURS, strict=True))
        for part in (
            mark("polygon", fill=colour, data_answer="", points=arrow(
                ("", ""), ("", f"drawn.{j}"), TALL, x, MIDDLE, 7)),
            words(x, 36, text(f"{{pushes.{j}:.2f}}"), "middle", data_answer=""),
            words(x, 283, f"logit {j + 1}", "middle"),
            words(x, 300, text(f"{{moves.{j}}}"), "middle", font_weight=600, data_answer=""),
            words(x, 317, text(f"A = {{weights.{j}:.2f}}"), "middle", font_size=11.5),
        )
    ]  # fmt: skip
    room = mark("clipPath", mark("rect", width=272, height=285), id="value-pulls-plane")
    plane = (
        room,
        line(0, DOWN, 272, DOWN, stroke_opacity=0.2),
        line(ACROSS, 0, ACROSS, 285, stroke_opacity=0.2),
        words(267, DOWN - 4, "0", "end"),
        group(better, clip_path="url(#value-pulls-plane)"),
        *threads, *discs, *leads,
        mark("polygon", fill=INK, points=arrow(
            ("average.0", "average.1"), ("tip.0", "tip.1"), SCALE, ACROSS, DOWN, 3)),
        words(-8, 4, "wanted", "end", transform=at("tip"), font_style="italic"),
        group(mark("rect", x=-6, y=-6, width=12, height=12, fill=INK), words(9, 19, "o"),
              transform=at("average")),
    )  # fmt: skip
    return [
        *plane,
        mark("rect", x=0.5, y=0.5, width=271, height=284, fill="none", stroke=INK,
             stroke_opacity=0.25),
        words(0, 303, "o: the average of the values"),
        words(0, 320, "shaded: better than the average", fill=PURPLE, data_answer=""),
        words(353, 16, "push on each logit", "middle", data_answer=""),
        line(284, MIDDLE, 422, MIDDLE),
        *lanes,
    ]  # fmt: skip


value_pulls = Figure(
    name="value_pulls",
    title="Which logits rise?",
    description=(
        "A plane with three values as discs: v1 at the left, weight 0.5; v2 low at the right, "
        "weight 0.3; v3 high at the right, weight 0.2. Lines join them to their average o, a "
        "square. An arrow from o points up, the direction that the loss wants. Above a line "
        "through o the plane is shaded: v1 lies just inside, v3 far inside, v2 outside, although "
        "all three lie above zero. Beside it the pushes on the logits: logit 1 rises by 0.05, "
        "logit 2 falls by 0.27, logit 3 rises by 0.22."
    ),
    size=(430, 326),
    compute=compute,
    marks=marks(),
    says="Ahead of the average: v₁ by {ahead.0:.2f}, v₂ by {ahead.1:.2f}, v₃ by {ahead.2:.2f}. "
    "Times the weights, the logits are pushed by {pushes.0:.2f}, {pushes.1:.2f} and "
    "{pushes.2:.2f}, which sum to zero.",
    table={
        f"{what} {j + 1}": f"{{{name}.{j}:.3f}}"
        for name, what in (
            ("weights", "weight of key"),
            ("along", "g · v, how far value"),
            ("ahead", "g · (v − o), ahead of the average: value"),
            ("pushes", "push on logit"),
        )
        for j in range(3)
    },
    controls=(
        *(
            slider
            for j, (x, y, _) in zip(SINGLE, START, strict=True)
            for slider in (
                Slider(f"x{j}", f"v{'₁₂₃'[int(j) - 1]} across", x, low=-2.6, high=2.6, step=0.1),
                Slider(f"y{j}", f"v{'₁₂₃'[int(j) - 1]} up", y, low=-1.4, high=4.2, step=0.1),
            )
        ),
        *(
            Slider(f"e{j}", f"e^logit {j}", e, low=0.5, high=10, step=0.5)
            for j, (_, _, e) in zip(SINGLE, START, strict=True)
        ),
        Slider("angle", "Wanted", 90, low=-180, high=180, step=5, shown="{angle}°"),
    ),
    handles=[Handle(f"v{j}", f"x{j}", f"y{j}", SCALE, ACROSS, DOWN) for j in SINGLE],
    guess=Guess(
        "The loss wants the average o to move up. All three values lie above zero. Which logits "
        "rise?",
        answer="rises",
        reply="Rising when you answered: {which}. Their values lay in the shaded half, ahead of "
        "the average.",
        options=("logit 1", "logit 2", "logit 3"),
    ),
    examples=(
        {"y3": 1.0},
        {"x1": 2.6, "y1": -1.4, "e1": 0.5, "angle": -35},
        {"e1": 0.5, "e2": 0.5, "e3": 10.0, "angle": 180},
        {"e1": 0.5, "e2": 0.5, "e3": 0.5},
        {"x2": -2.6, "y2": 4.2, "e2": 10.0, "angle": 145},
        {"y1": 1.5, "y2": 1.5, "y3": 1.5},
    ),
)
