"""Two hands of rotary positions, and the distances that they take for each other (chapter 2)."""

import math
from typing import Any

from book.figures.colours import COLOURS, FRAME, KEY, MUTED, OLIVE, QUERY
from book.figures.moving.drawing import (
    Drawing,
    Numbers,
    group,
    line,
    mark,
    number,
    points,
    shown,
    text,
    words,
)
from book.figures.moving.figure import Choice, Figure, Handle, Slider

WIDTH = 16  # a head's entries; of its eight pairs the two fastest are looked at
TRAINED, LONGEST = 16, 64
FRIEND = 0.75
KINDS = {  # base, and how far back the token stands that is asked for
    "one": (10000, 1, "one back"),
    "small": (1000, 1, "one back, base 1000"),
    "three": (10000, 3, "three back"),
}
RADIUS, CENTRES, MIDDLE = 46, (58, 170), 76
X, STEP, BOTTOM = 32, 5, 264  # of position 0; from one to the next; of no right answer


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Where the hands point, how alike the two distances are, false friends, and the curve."""
    base, back, _ = KINDS[settings["kind"]]
    distance, speeds = settings["distance"], [1, base ** (-2 / WIDTH)]
    similar = [
        sum(math.cos((k - back) * speed) for speed in speeds) / 2 for k in range(LONGEST + 1)
    ]
    friends = [
        k
        for k in range(TRAINED, LONGEST)
        if similar[k] > max(FRIEND, similar[k - 1], similar[k + 1])
    ]
    angles = [
        settings["position"] * speed + turn * speed for turn in (0, distance, back)
        for speed in speeds
    ]  # fmt: skip
    friend = distance in friends
    curve = data["curves"][settings["kind"]]
    return {
        "sines": [math.sin(angle) for angle in angles],
        "cosines": [math.cos(angle) for angle in angles],
        "query": settings["position"] + distance,
        "likeness": similar[distance],
        "friends": friends,
        "friend": friend,
        "listed": ", ".join(map(str, friends)),
        "asked": "one back" if back == 1 else "three back",
        "curve": curve,
        "across": [LONGEST - len(curve) + i for i in range(len(curve))],
        "case": 3 if friend else 2 if distance == back else int(distance >= TRAINED),
    }


def hand(i: int, clock: int, **look: Any) -> Drawing:
    """From a clock's middle to where the angle points: a clock's hand starts at the top."""
    return mark(
        "line", x1=CENTRES[clock], y1=MIDDLE, x2=number(f"sines.{i}", RADIUS, CENTRES[clock]),
        y2=number(f"cosines.{i}", -RADIUS, MIDDLE), stroke_linecap="round", **look,
    )  # fmt: skip


def clock(i: int, name: str) -> list[Drawing]:
    """The key's hand, the query's, and where the query's would be at the distance asked for."""
    face = {"cx": CENTRES[i], "cy": MIDDLE}
    return [
        words(CENTRES[i], 18, name, "middle", font_weight="bold"),
        mark("circle", **face, r=RADIUS + 6, fill=COLOURS["changed"][0],
             visibility=shown("friend")),
        mark("circle", **face, r=RADIUS, fill=COLOURS["cell"][0], stroke=FRAME, stroke_width=1.5),
        hand(i, i, stroke=KEY, stroke_width=4),
        hand(4 + i, i, stroke=QUERY, stroke_width=9, stroke_opacity=0.3),
        hand(2 + i, i, stroke=QUERY, stroke_width=3),
    ]  # fmt: skip


def legend(y: float, colour: str, *lines: Any, **look: Any) -> list[Drawing]:
    """What a hand is."""
    return [
        line(232, y, 248, y, **{"stroke": colour, "stroke_opacity": 1, "stroke_linecap": "round"}
             | look),
        *(words(256, y + 4 + 15 * i, each) for i, each in enumerate(lines)),
    ]  # fmt: skip


rotary = Figure(
    name="rotary",
    title="Rotary's two fastest hands",
    description=(
        "Two clocks, for the two fastest pairs of a head. The query stands 20 tokens after the key "
        "at position 3. On both clocks its hand points nearly where it would one token after the "
        "key, and the clocks are lit: a false friend. Below, the measured share of correct "
        "answers by position falls at 20, 39 and 58."
    ),
    size=(360, 308),
    compute=compute,
    marks=[
        *clock(0, "fastest hand"),
        *clock(1, "second hand"),
        *legend(42, KEY, text("key at {position}"), stroke_width=4),
        *legend(64, QUERY, text("query at {query}"), stroke_width=3),
        *legend(86, QUERY, text("{asked}"), "would be here", stroke_width=9, stroke_opacity=0.3),
        words(232, 130, text("alike: {likeness:.2f}")),
        words(8, 150, "Measured: correct answers (%) by position", font_weight="bold"),
        mark("rect", x=X + STEP * 0.5, y=162, width=STEP * 15, height=BOTTOM - 162, fill=MUTED,
             fill_opacity=0.14),
        words(X + STEP * 8, BOTTOM - 6, "trained", "middle", font_size=12),
        line(X, BOTTOM, X + STEP * 64, BOTTOM),
        *(words(X + STEP * k, BOTTOM + 16, str(k), "middle", font_size=12)
          for k in (1, 16, 32, 48, 63)),
        words(X + STEP * 32, BOTTOM + 35, "position, also the furthest distance back",
              "middle", font_size=12),
        *(words(X - 4, BOTTOM + 4 - share, str(share), "end", font_size=12) for share in (0, 100)),
        mark("polyline", fill="none", stroke=OLIVE, stroke_width=2.5,
             points=points("curve", -1, BOTTOM, xs="across", x_scale=STEP, x_offset=X)),
        group(
            mark("line", x1=number("distance", STEP, X), x2=number("distance", STEP, X),
                 y1=162, y2=BOTTOM, stroke=MUTED, stroke_dasharray="4 4"),
            mark("circle", cx=number("distance", STEP, X), cy=BOTTOM, r=8, fill=QUERY,
                 data_handle="distance"),
        ),
    ],
    says={
        "0": "{distance} back: a distance that training showed.",
        "1": "{distance} back: new to the model; how alike it is to {asked}: {likeness:.2f}.",
        "2": "{distance} back: what the model is asked for.",
        "3": "A false friend: both hands take {distance} back for {asked}. It comes into reach at "
        "position {distance}.",
    },
    table={
        "false friends (tokens back)": "{listed}",
        "how alike: mean cosine of the two hands' angles": "{likeness:.2f}",
    },
    controls=(
        Slider("position", "Key at position", 3, low=0, high=40, step=1),
        Slider("distance", "Query so many later", 20, low=1, high=63, step=1, plays=0.2),
        Choice("kind", "Asked for the token", "one", {k: v[2] for k, v in KINDS.items()}),
    ),
    handles=(Handle("distance", "distance", "", STEP, X, 0),),
    examples=(
        {"kind": "small", "distance": 45},
        {"kind": "three", "distance": 41, "position": 0},
        {"distance": 1},
        {"distance": 27, "position": 40},
        {"distance": 12},
    ),
)  # fmt: skip
