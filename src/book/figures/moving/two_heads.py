"""Two heads look for one word, and what each finds is added to its row (chapter 5)."""

from typing import Any

import torch

from attnbook.attention import attention_weights
from book.figures.colours import FRAME, STREAM, VALUE, WEIGHT
from book.figures.moving.drawing import Drawing, Numbers, bare, line, mark, number, text, words
from book.figures.moving.figure import Choice, Figure, Slider
from book.figures.style import PAPER
from book.figures.workbench.model import SETS, WORDS, Settings, by_content, forward, matrix

TEXTS = {"cat": (0, 1, 2), "the": (1, 0, 2)}
"""What stands before “sat” -> the text."""
COLUMNS = (("", "article"), ("", "noun"), ("", "verb"), ("noun", "seen"), ("after", "article"))
WRITES = (by_content()["W_O"], matrix(4, 5, (1, 3, 1), (0, 4, 1)))
"""W_O of both heads: a noun is “noun seen”; to the second head an article is “after article”."""
WIDE, HIGH, ROW, LOOKS = 44, 24, 172, 58  # of a cell; where the row begins, and the weights


def of_text(ids: tuple[int, ...]) -> dict[str, Any]:
    """Of “sat”, the last word: its row, both heads' logits, and what each word gives by each."""
    heads = [forward(Settings(ids=ids)), forward(Settings(ids=ids, **SETS["place"]))]
    return {
        "words": [WORDS[i] for i in ids],
        "cat": ids.index(1),
        "row": heads[0]["X"][2].tolist(),
        "logits": [head["S"][2].tolist() for head in heads],
        "offers": [
            (head["V"] @ torch.tensor(w_o, dtype=torch.float64)).tolist()
            for head, w_o in zip(heads, WRITES, strict=True)
        ],
    }


def compute(settings: Numbers, data: Numbers) -> dict[str, Any]:
    """Weights of both heads, what each adds to the row, and their sum with it."""
    own = data[settings["text"]]
    logits = torch.tensor(own["logits"], dtype=torch.float64)
    logits[:, own["cat"]] += torch.tensor([settings["one"], settings["two"]])
    weights = attention_weights(logits)
    adds = torch.einsum("hj,hjc->hc", weights, torch.tensor(own["offers"], dtype=torch.float64))
    return {
        "words": own["words"],
        "row": own["row"],
        "weights": weights.tolist(),
        "written": [[bare(weight) for weight in head] for head in weights.tolist()],
        "adds": adds.tolist(),
        "now": (torch.tensor(own["row"]) + adds.sum(0)).tolist(),
        "case": settings["text"],
    }


def cells(
    name: str, n: int, x: float, y: float, wide: float, colour: str, says: str = ""
) -> list[Drawing]:
    """Numbers in boxes, or what they are written as; the stronger the shade, the larger."""
    drawn = []
    for j in range(n):
        box = {"x": x + wide * j, "y": y, "width": wide - 2, "height": HIGH, "rx": 3}
        drawn += [
            mark("rect", **box, fill=PAPER, stroke=FRAME),
            mark("rect", **box, fill=colour, fill_opacity=number(f"{name}.{j}", 0.26)),
            words(
                x + wide * (j + 0.5) - 1,
                y + 17,
                text(f"{{{says}.{j}}}" if says else f"{{{name}.{j}:.2f}}"),
                "middle",
            ),
        ]
    return drawn


def marks() -> list[Drawing]:
    """A sum as one writes it: the row, what each head adds beside its weights, the row now."""
    drawn = [
        *(
            words(ROW + WIDE * (j + 0.5) - 1, 14 * (k + 1), part, "middle", font_size=12)
            for j, parts in enumerate(COLUMNS)
            for k, part in enumerate(parts)
        ),
        words(0, 51, "“sat” had"),
        *cells("row", 5, ROW, 34, WIDE, STREAM),
    ]
    for h, y in enumerate((84, 134)):
        drawn += [
            words(0, y + 17, f"head {h + 1}", font_weight="bold"),
            *(
                words(LOOKS + 33 * (j + 0.5) - 1, y - 5, text(f"{{words.{j}}}"), "middle",
                      font_size=12)
                for j in range(3)
            ),
            *cells(f"weights.{h}", 3, LOOKS, y, 33, WEIGHT, f"written.{h}"),
            words(ROW - 8, y + 17, "+", "middle", font_weight="bold"),
            *cells(f"adds.{h}", 5, ROW, y, WIDE, VALUE),
        ]  # fmt: skip
    return [
        *drawn,
        line(ROW, 168, ROW + 5 * WIDE - 2, 168),
        words(0, 195, "“sat” has now"),
        *cells("now", 5, ROW, 178, WIDE, STREAM),
    ]


two_heads = Figure(
    name="two_heads",
    title="Two heads add to one row",
    description=(
        "A sum of four rows with five columns. “Sat” had verb, 1. Head 1 gives “cat” 0.79 of its "
        "weight and adds 0.79 to “noun seen”. Head 2 gives “cat” 0.91 and adds 0.91 to the same "
        "column, and 0.05 to “after article”. The row now has verb 1, noun seen 1.70, after "
        "article 0.05."
    ),
    size=(402, 206),
    compute=compute,
    marks=marks(),
    says={
        "cat": "“Noun seen” gets {adds.0.3:.2f} from head 1, which looks for a noun, and "
        "{adds.1.3:.2f} from head 2, which looks one word back: {now.3:.2f} together.",
        "the": "Head 1 looks for a noun and adds {adds.0.3:.2f} to “noun seen”. Head 2 looks one "
        "word back and adds {adds.1.4:.2f} to “after article”. The row has both.",
    },
    table={
        "weights of head 1": "{weights.0.0:.3f}, {weights.0.1:.3f}, {weights.0.2:.3f}",
        "weights of head 2": "{weights.1.0:.3f}, {weights.1.1:.3f}, {weights.1.2:.3f}",
        "noun seen, after article": "{now.3:.3f}, {now.4:.3f}",
    },
    controls=(
        Choice("text", "Text", "cat", {"cat": "the cat sat", "the": "cat the sat"}),
        Slider("one", "Head 1: push “cat” by", 0, -4, 4, 0.5, shown="{one:.1f}"),
        Slider("two", "Head 2: push “cat” by", 0, -4, 4, 0.5, shown="{two:.1f}"),
    ),
    data={name: of_text(ids) for name, ids in TEXTS.items()},
    examples=({"text": "the"}, {"one": -4, "two": 1.5}, {"text": "the", "one": 4, "two": 4}),
)
