"""Which of three logits a gradient raises: those whose values beat the average (chapter 6)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbook import backprop
from book.figures.colours import GRADIENT, STREAM, VALUE, WEIGHT
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    arrow,
    group,
    line,
    mark,
    move,
    number,
    pick,
    points,
    text,
    words,
)
from book.figures.moving.figure import Figure, Handle, Slider

SCALE, ACROSS, DOWN = 45, 135, 205  # where the plane's (0, 0) lies in the drawing
RING = 1.1  # radius, in the plane
LANES, MIDDLE, TALL = (316, 362, 408), 108, 130  # pushes: places, zero, pixels for a push of 1
FLOOR, HIGH = 268, 66  # of the bars of weights
STEPS, RATE = 20, 1.0  # after twenty the average has nearly reached v3
SINGLE, SMALL = "123", "₁₂₃"
START = ((-2.0, 2.0), (1.5, 1.0), (1.0, 3.0))
FIRST = (5.0, 3.0, 2.0)  # e^logit


@dataclass(frozen=True)
class Dragged(Slider):
    """A slider for those who don't drag; it is seen while it has the focus."""

    def html(self, figure: str) -> str:
        """The slider, with a class."""
        return super().html(figure).replace("<label>", '<label class="dragged">')


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Weights, average and pushes, after some steps that move each logit as it is pushed."""
    values = np.array([[settings[f"x{j}"], settings[f"y{j}"]] for j in SINGLE], dtype=float)
    turn = math.radians(settings["angle"])
    wanted = np.array([math.cos(turn), math.sin(turn)])  # minus the output's gradient
    logits, trail = np.log([FIRST]), []
    for step in range(settings["steps"] + 1):
        weights = backprop.softmax(logits)
        trail.append((weights @ values)[0])
        pushes = -backprop.softmax_backward(-(values @ wanted)[None], weights)[0]
        if step < settings["steps"]:
            logits = logits + RATE * pushes
    pushes = np.where(np.abs(pushes) < 1e-9, 0.0, pushes)  # what rounding leaves of zeros
    average = trail[-1]
    ahead = (values - average) @ wanted
    return {
        "weights": weights[0].tolist(),
        "radii": (6 + 10 * np.sqrt(weights[0])).tolist(),
        "average": average.tolist(),
        "tip": (average + RING * wanted).tolist(),
        "tilt": 90 - settings["angle"],
        "trail_x": [each[0] for each in trail],
        "trail_y": [each[1] for each in trail],
        "ahead": np.where(np.abs(ahead) < 1e-9, 0.0, ahead).tolist(),
        "values": values.tolist(),
        "pushes": pushes.tolist(),
        "drawn": np.clip(pushes, -0.55, 0.55).tolist(),
        "moves": [1 + int(push > 0) - int(push < 0) for push in pushes],
    }


def at(path: str) -> Any:
    """To a point of the plane."""
    return move(f"{path}.0", f"{path}.1", SCALE, ACROSS, DOWN)


def plane() -> list[Drawing]:
    """Three values, their average with its trail and ring, and what lies ahead of it."""
    ahead = group(
        mark("rect", x=-700, y=-700, width=1400, height=700, fill=GRADIENT, fill_opacity=0.08),
        mark("line", x1=-700, x2=700, stroke=GRADIENT, stroke_dasharray="5 4"),
        transform=move("average.0", "average.1", SCALE, ACROSS, DOWN, angle="tilt"),
    )
    threads = [
        mark("line", x1=number(f"values.{j}.0", SCALE, ACROSS),
             y1=number(f"values.{j}.1", -SCALE, DOWN), x2=number("average.0", SCALE, ACROSS),
             y2=number("average.1", -SCALE, DOWN), stroke=WEIGHT, stroke_opacity=0.3,
             stroke_width=number(f"weights.{j}", 12))
        for j in range(3)
    ]  # fmt: skip
    discs = [
        group(mark("circle", r=number(f"radii.{j}"), fill=VALUE),
              words(14, -11, f"v{SMALL[j]}", fill=VALUE, font_weight=600),
              transform=at(f"values.{j}"), data_handle=f"v{SINGLE[j]}")
        for j in range(3)
    ]  # fmt: skip
    return [
        mark("clipPath", mark("rect", width=272, height=285), id="value-pulls-plane"),
        group(ahead, clip_path="url(#value-pulls-plane)"),
        *threads,
        *discs,
        mark("polyline", points=points("trail_y", -SCALE, DOWN, xs="trail_x", x_scale=SCALE,
             x_offset=ACROSS), fill="none", stroke=STREAM, stroke_width=2),
        group(mark("circle", r=RING * SCALE, fill="none", stroke=GRADIENT, stroke_opacity=0.35),
              mark("rect", x=-6, y=-6, width=12, height=12, fill=STREAM),
              words(10, 18, "o", fill=STREAM, font_weight=600), transform=at("average")),
        mark("polygon", fill=GRADIENT, pointer_events="none", points=arrow(
            ("average.0", "average.1"), ("tip.0", "tip.1"), SCALE, ACROSS, DOWN, 3)),
        words(4, 303, "square: the average o; line: its path", fill=STREAM),
        words(4, 321, "tinted: ahead of the average", fill=GRADIENT),
    ]  # fmt: skip


def lanes() -> list[Drawing]:
    """The push on each logit, and its weight."""
    drawn = [
        part
        for j, x in enumerate(LANES)
        for part in (
            mark("polygon", fill=GRADIENT, points=arrow(
                ("", ""), ("", f"drawn.{j}"), TALL, x, MIDDLE, 7)),
            words(x, 186, pick(f"moves.{j}", "falls", "stays", "rises"), "middle",
                  font_weight=600, fill=GRADIENT),
            mark("rect", x=x - 13, width=26, y=number(f"weights.{j}", -HIGH, FLOOR),
                 height=number(f"weights.{j}", HIGH), fill=WEIGHT, fill_opacity=0.45),
            words(x, FLOOR + 17, text(f"{{weights.{j}:.2f}}"), "middle"),
            words(x, FLOOR + 35, f"v{SMALL[j]}", "middle", fill=VALUE, font_weight=600),
        )
    ]  # fmt: skip
    return [
        words(362, 16, "push on each logit", "middle"),
        line(290, MIDDLE, 434, MIDDLE),
        line(290, FLOOR, 434, FLOOR),
        *drawn,
        words(362, FLOOR + 53, "weights", "middle"),
    ]


value_pulls = Figure(
    name="value_pulls",
    title="Which logits rise?",
    description=(
        "A plane with three values as discs: v1 at the left, weight 0.5; v2 low at the right, "
        "weight 0.3; v3 high at the right, weight 0.2. Lines join them to their average o, a "
        "square in a ring. An arrow from o to the ring points up, the direction that the loss "
        "wants. Above a line through o the plane is tinted: v1 lies just inside, v3 far inside, v2 "
        "outside. Beside it the pushes on the logits: 1 rises a little, 2 falls, 3 rises."
    ),
    size=(440, 326),
    compute=compute,
    marks=[*plane(), *lanes()],
    says="Ahead of o: v₁ by {ahead.0:.2f}, v₂ by {ahead.1:.2f}, v₃ by {ahead.2:.2f}. Times the "
    "weights, these are the pushes: {pushes.0:.2f}, {pushes.1:.2f}, {pushes.2:.2f}.",
    table={
        f"{what} {j + 1}": f"{{{name}.{j}:.3f}}"
        for name, what in (
            ("weights", "weight of key"),
            ("ahead", "g · (v − o), ahead of the average: value"),
            ("pushes", "push on logit"),
        )
        for j in range(3)
    },
    controls=(
        Slider("steps", "Steps", 0, high=STEPS, step=1, plays=0.25),
        Slider("angle", "Wanted direction", 90, low=-180, high=180, step=5, shown="{angle}°"),
        *(
            slider
            for j, (x, y) in zip(SINGLE, START, strict=True)
            for slider in (
                Dragged(f"x{j}", f"v{SMALL[int(j) - 1]} across", x, low=-2.6, high=2.6, step=0.1),
                Dragged(f"y{j}", f"v{SMALL[int(j) - 1]} up", y, low=-1.4, high=4.2, step=0.1),
            )
        ),
    ),
    handles=[Handle(f"v{j}", f"x{j}", f"y{j}", SCALE, ACROSS, DOWN) for j in SINGLE],
    examples=(
        {"y3": 1.0, "steps": 3},
        {"x1": 2.6, "y1": -1.4, "angle": -35},
        {"steps": 20, "angle": 180},
        {"x2": -2.6, "y2": 4.2, "angle": 145, "steps": 5},
        {"y1": 1.5, "y2": 1.5, "y3": 1.5},
    ),
)
