"""How many keys W_Q and W_K of a size begin with, and how fast they learn (chapter 7)."""

import math
from typing import Any

from attnbook.book.figures import BLUE, INK, ORANGE, VERMILLION
from attnbook.book.interactive.drawing import (
    Drawing,
    Numbers,
    group,
    line,
    mark,
    number,
    pick,
    points,
    shown,
    text,
    words,
)
from attnbook.book.interactive.figure import Figure, Guess, Slider

SIZES = (0.01, 0.0333, 0.1, 0.1667, 0.3333, 0.5, 0.7071, 1.0, 1.4142, 2.0, 2.8284, 4.0)
"""Of W_Q and W_K, times the standard (Xavier's)."""
MODELS, LIMIT = 8, 300


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """What was measured at this size, and at all sizes."""
    at, limit = SIZES.index(settings["size"]), LIMIT
    steps, curves = data["steps"][at], data["losses"][at]
    done = [each < limit for each in steps]
    usual = data["steps"][SIZES.index(1.0)]
    learned = [each for each in steps if each < limit]
    return {
        "place": math.log10(settings["size"]),
        "places": [math.log10(size) for size in SIZES],
        "keys": data["keys"],
        "keys_here": data["keys"][at],
        "by_model": [list(each) for each in zip(*data["steps"], strict=True)],
        "steps": steps,
        "done": done,
        "curves": curves,
        "times": [[data["every"] * (i + 0.5) for i in range(len(curve))] for curve in curves],
        "last": [curve[-1] for curve in curves],
        "n_done": sum(done),
        "first": min(learned, default=limit),
        "slowest": max(learned, default=limit),
        "usual_first": min(usual),
        "usual_span": max(usual) - min(usual),
        "usual_slowest": max(usual),
        "measured": data["measured"],
        "longer": data["longer"],
        "case": "all" if len(learned) == MODELS else "some",
    }


KEYS = (8.0, 8.0, 8.0, 7.99, 7.92, 7.62, 6.75, 5.01, 3.1, 1.93, 1.4, 1.18)
STEPS = """
62 59 56 48 67 51 69 72
59 55 55 49 62 50 62 70
57 53 50 50 61 48 58 58
59 52 50 48 60 47 60 57
61 51 60 47 61 46 70 52
61 50 54 47 66 44 65 50
61 49 50 48 61 44 63 54
61 50 50 51 61 43 70 63
69 56 60 76 64 48 79 66
78 71 92 300 77 69 96 83
95 104 111 300 151 131 131 123
291 187 141 300 300 242 186 300
"""  # a line for each size, a number for each model; 300: not within 300
LOSSES = """
202 177 154 136 111 67 | 205 181 156 118 72 | 200 173 148 122 81 | 202 177 151 120 | 201 177 152
134 100 59 | 199 172 147 124 66 | 201 177 149 120 88 56 | 201 173 149 118 81 53 37

202 177 154 135 105 | 205 181 155 115 69 | 200 173 148 121 78 | 202 177 151 118 | 201 177 152
135 103 60 | 199 172 147 124 68 | 201 176 148 118 84 49 | 201 173 148 116 79 51 35

202 176 152 130 92 | 205 180 154 113 65 | 200 172 148 122 67 | 202 177 149 115 63 | 201 176 153
135 103 61 | 199 171 146 121 | 201 176 148 115 78 | 201 173 148 116 77

202 176 151 129 90 | 205 180 154 113 64 | 200 172 148 125 69 | 202 177 149 113 | 201 176 152 134
100 57 | 199 171 145 117 | 201 175 146 113 78 44 | 201 172 147 115 74

202 175 149 125 90 52 | 205 179 152 111 64 | 200 171 148 127 89 48 | 202 177 148 109 | 201 175
151 131 100 60 | 199 170 143 110 | 201 175 144 112 80 50 34 | 201 172 147 113 66

202 175 149 124 89 52 | 205 179 151 107 58 | 199 170 146 122 79 | 203 177 150 111 | 201 175 150
130 100 68 | 199 169 141 103 | 201 175 144 113 83 52 | 201 172 148 114 65

202 176 150 127 92 53 | 205 179 151 104 | 200 171 145 115 69 | 204 178 152 118 | 202 176 151 128
96 58 | 200 171 140 95 | 202 176 145 116 88 58 | 202 174 149 117 74

205 180 154 133 101 61 | 207 182 154 106 58 | 202 174 146 113 68 | 206 183 158 129 81 | 205 181
154 126 85 49 | 204 177 145 98 | 204 180 152 125 101 76 52 | 205 178 153 122 89 56

211 189 166 144 121 94 | 211 190 168 125 78 | 207 182 155 122 83 50 | 211 192 171 142 112 81 58
| 211 191 168 139 96 57 | 210 188 163 127 | 209 190 167 143 116 85 61 | 212 189 168 137 106 72

217 199 186 171 153 128 89 | 217 198 186 161 128 87 51 | 213 192 173 145 113 84 68 57 45 | 217
199 188 168 145 124 110 101 85 76 66 60 55 50 47 45 44 43 42 42 43 42 41 41 41 40 40 39 40 39 |
219 200 187 173 153 113 69 | 217 198 184 162 133 97 | 216 199 186 172 153 127 109 82 55 | 220
199 188 169 150 122 90 55

222 203 196 187 176 163 141 112 76 | 221 203 196 186 174 154 133 111 84 58 | 216 197 186 170 150
128 106 85 68 55 45 | 221 203 196 188 177 161 144 133 119 108 95 80 70 63 59 56 53 49 50 46 44
45 43 42 43 41 42 42 42 42 | 224 204 195 190 182 170 155 132 106 85 66 61 55 48 40 | 222 204 197
188 172 154 134 112 96 82 66 52 43 | 220 203 196 188 181 166 154 135 116 95 67 54 50 | 224 203
197 187 180 169 154 141 122 103 82 58

224 204 199 193 189 185 176 166 152 132 117 101 89 77 72 67 61 57 55 53 52 50 49 47 43 42 39 36
33 | 224 205 201 195 190 182 172 164 147 136 123 108 95 84 79 72 60 51 | 218 200 193 185 175 164
153 138 124 112 95 80 62 51 | 223 204 199 194 188 181 174 166 154 144 137 131 129 122 116 110
104 96 91 85 82 80 77 74 73 71 72 69 69 68 | 227 206 198 196 193 187 182 177 167 156 147 133 124
112 99 85 79 76 73 72 72 71 72 70 71 72 70 71 70 71 | 224 205 202 198 191 186 178 167 155 143
129 115 103 95 88 80 74 67 63 56 49 44 40 37 | 223 205 199 195 192 183 178 170 164 159 150 138
122 112 95 73 56 46 | 226 205 201 194 190 184 177 172 159 151 140 130 122 121 111 102 96 93 88
86 85 79 78 76 73 69 68 67 66 66
"""  # a paragraph for each size; hundredths, means of ten steps


def known() -> dict[str, Any]:
    """The study's numbers, thinned; the chapter passes finer curves."""
    return {
        "keys": list(KEYS),
        "steps": [[int(each) for each in row.split()] for row in STEPS.strip().splitlines()],
        "losses": [
            [[int(each) / 100 for each in curve.split()] for curve in row.split("|")]
            for row in LOSSES.split("\n\n")
        ],
        "every": 10,
        "longer": 2,  # %, over 48 models
        "measured": "59.6 steps instead of 58.4",
    }


X, PER_DECADE = 56, 138  # size 1/100 stands at X
LEFT, PER_STEP = 56, 1.2


def colour(i: int) -> Any:
    """Of a model: blue if it learned."""
    return pick(f"done.{i}", VERMILLION, BLUE)


def marks() -> list[Drawing]:
    """Keys by size; steps by size, a line for each model; the loss of each model at this size."""
    here = number("place", PER_DECADE, X + 2 * PER_DECADE)
    by_size: dict[str, Any] = {
        "xs": "places",
        "x_scale": PER_DECADE,
        "x_offset": X + 2 * PER_DECADE,
    }
    thin: dict[str, Any] = {"fill": "none", "stroke_width": 1.2, "stroke_opacity": 0.75}
    sizes = [
        words(X + PER_DECADE * (2 + math.log10(size)), 238, name, "middle")
        for size, name in ((0.01, "1/100"), (0.1, "1/10"), (1, "1"), (4, "4"))
    ]
    return [
        words(8, 16, "Keys that a query attends to before training", font_weight="bold"),
        words(46, 36, "8", "end"),
        words(46, 90, "0", "end"),
        line(X - 4, 86, 424, 86),
        *(
            mark("line", x1=here, x2=here, y1=top, y2=bottom, stroke=ORANGE, stroke_width=2)
            for top, bottom in ((26, 86), (124, 222))
        ),
        mark("polyline", points=points("keys", -6.75, 86, **by_size), fill="none",
             stroke=BLUE, stroke_width=2),
        mark("circle", cx=here, cy=number("keys_here", -6.75, 86), r=5, fill=ORANGE),
        words(8, 114, "Steps until eight models have learned", font_weight="bold"),
        words(46, 136, "300+", "end"),
        words(46, 222, "0", "end"),
        line(X - 4, 222, 424, 222),
        group(
            *(
                mark("polyline", points=points(f"by_model.{i}", -0.3, 222, **by_size),
                     stroke=BLUE, **thin)
                for i in range(MODELS)
            ),
            *(
                mark("circle", cx=here, cy=number(f"steps.{i}", -0.3, 222), r=3.6, fill=colour(i))
                for i in range(MODELS)
            ),
            data_answer="",
        ),
        *sizes,
        words(240, 256, "size of W_Q and W_K, times Xavier", "middle"),
        words(8, 284, "Their loss at this size", font_weight="bold"),
        words(428, 284, text("{n_done} of 8 learn"), "end", data_answer=""),
        mark("rect", x=number("usual_first", PER_STEP, LEFT), y=300, height=70, fill=INK,
             width=number("usual_span", PER_STEP), fill_opacity=0.1, data_answer=""),
        words(428, 306, "grey: where Xavier's size learns", "end", data_answer=""),
        words(46, 311, "2", "end"),
        words(46, 374, "0", "end"),
        line(LEFT - 4, 370, 424, 370),
        group(
            *(
                mark("polyline", points=points(f"curves.{i}", -32, 370, xs=f"times.{i}",
                     x_scale=PER_STEP, x_offset=LEFT), stroke=colour(i), **thin)
                for i in range(MODELS)
            ),
            *(
                mark("circle", cx=number(f"steps.{i}", PER_STEP, LEFT), r=3.6, fill=BLUE,
                     cy=number(f"last.{i}", -32, 370), visibility=shown(f"done.{i}"))
                for i in range(MODELS)
            ),
            data_answer="",
        ),
        *(words(LEFT + PER_STEP * n, 386, f"{n}", "middle") for n in (0, 100, 200)),
        words(430, 386, "300 steps", "end"),
    ]  # fmt: skip


plateau = Figure(
    name="plateau",
    title="How large may W_Q and W_K be at initialization?",
    description=(
        "At a hundredth of Xavier's size. Above, the number of keys that a query attends to: 8 of "
        "8 for small matrices, 5 at Xavier's size, 1.2 at four times that. In the middle, the "
        "steps until each of eight models has learned: about 60 from a hundredth to Xavier's size, "
        "a plateau; from twice the size on they rise steeply, and at four times three models need "
        "more than 300. Below, the loss of the eight models: all fall as fast as from Xavier."
    ),
    size=(440, 394),
    compute=compute,
    marks=marks(),
    says={
        "all": "{size:.2f} times Xavier: a query starts with {keys_here:.1f} of 8 keys, and all "
        "eight models learn, after {first} to {slowest} steps (Xavier: {usual_first} to "
        "{usual_slowest}).",
        "some": "{size:.2f} times Xavier: a query starts with {keys_here:.1f} of 8 keys, and "
        "{n_done} of eight models learn within 300 steps, after {first} to {slowest} (Xavier: "
        "{usual_first} to {usual_slowest}).",
    },
    table={
        "keys that a query attends to, of 8": "{keys_here:.2f}",
        "models that learn within 300 steps, of 8": "{n_done}",
        "steps of the fastest": "{first}",
        "steps of the slowest that learns": "{slowest}",
    },
    controls=(
        Slider("size", "Size of W_Q and W_K", 0.01, values=SIZES, shown="{size:.2f} × Xavier"),
    ),
    guess=Guess(
        "W_Q and W_K start 100 times smaller than Xavier's. How much longer does the layer take "
        "to learn?",
        answer="longer",
        reply="You said {guess} % longer. Over 48 models it took {longer:.0f} % longer: "
        "{measured}.",
        high=500,
        step=5,
        value=100,
        shown="{guess} % longer",
    ),
    data=known(),
    examples=({"size": 1.0}, {"size": 1.4142}, {"size": 2.0}, {"size": 4.0}, {"size": 0.0333}),
)
