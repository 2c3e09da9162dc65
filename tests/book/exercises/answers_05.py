"""What chapter 05's checks say beside naming typical mistakes."""

from book.exercises.chapter_05 import FROM_TILED

RIGHT = []

MISTAKES = [
    (
        "from_tiled",
        lambda *given: FROM_TILED.correct(*given).unflatten(0, (given[1], -1)),
        "below each other again",
    ),
    ("cache_bytes", lambda *given: 5, "should be 30030, got 5"),
    ("cache_bytes", lambda *given: "many", "must return a number, got str"),
]
