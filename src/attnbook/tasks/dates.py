"""Dates: phrases such as "mardi 5 mars 2024", from many languages, to ISO 8601: 2024-03-05."""

import datetime
import re
from collections.abc import Iterable, Sequence
from functools import cache
from random import Random
from typing import NamedTuple

import torch
from babel import Locale
from babel.dates import format_date, format_skeleton
from jaxtyping import Int64
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

PADDING, START, END, UNKNOWN = range(4)

LOCALES = ("en_US", "en_GB", "de", "fr", "es", "it", "nl", "sv", "pl", "tr", "ru", "ja")
NEW_LOCALES = ("nb", "pt", "cs", "fi", "el")
"""Languages to test on, from a neighbour of Swedish to one with other letters."""

FORMATS = ("full", "long", "medium", "short", "yMMMEd", "yMMMM")
"""Four lengths of CLDR and two of its skeletons, of which the last has no day."""
NEW_FORMATS = ("EEEE d MMM y", "d-MMM-y", "MMMM d y", "y MMMM d")
"""Formats to test on, with known parts mixed, new marks, and new orders."""

FIRST, LAST = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
"""A hundred years, so that two digits say which year it is."""


class Phrase(NamedTuple):
    """A date as people write it, and what it means."""

    text: str
    iso: str
    locale: str
    format: str


def write_date(day: datetime.date, locale: str, form: str) -> Phrase:
    """The day as this locale writes it: CLDR's data, by Babel.

    Args:
        day: which.
        locale: as Babel names it.
        form: ``"full"``, ``"long"``, ``"medium"``, ``"short"``, a skeleton or a pattern of CLDR
            (with spaces or hyphens). Without a day in it, the answer has none.

    Example:
        >>> write_date(datetime.date(2024, 3, 5), "fr", "full")
        Phrase(text='mardi 5 mars 2024', iso='2024-03-05', locale='fr', format='full')
        >>> write_date(datetime.date(2024, 3, 5), "en_US", "yMMMM").iso
        '2024-03'
    """
    if form in ("yMMMEd", "yMMMM"):
        text = format_skeleton(form, day, locale=locale)
    else:
        text = format_date(day, form, locale=locale)
    iso = day.isoformat()
    return Phrase(text, iso[:7] if form == "yMMMM" else iso, locale, form)


def readings(text: str) -> set[str]:
    """All dates that the phrase can mean, punctuation aside.

    The month is a name, in any locale of the task, or a number. Numbers come as day, month, year,
    as month, day, year, or as year, month, day: where more than one of these is a date, there are
    several readings. So has "mar. 5 nov. 2024": "mar." is a Tuesday in French, and a March.

    Example:
        >>> sorted(readings("03/04/05"))
        ['2003-04-05', '2005-03-04', '2005-04-03']
        >>> readings("25/03/97"), readings("5 mars 2024"), readings("maaliskuu 2024")
        ({'1997-03-25'}, {'2024-03-05'}, {'2024-03'})
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    named = {month for word in words for month in month_names().get(word, ())}
    dates: list[tuple[str, int, int | None]] = []  # year, month, day
    match re.findall(r"\d+", text):
        case [a, b, c] if not named:
            dates = [(a, int(b), int(c)), (c, int(b), int(a)), (c, int(a), int(b))]
        case [a, b] if not named:
            dates = [(a, int(b), None), (b, int(a), None)]
        case [a, b]:
            dates = [(y, month, int(d)) for month in named for y, d in ((a, b), (b, a))]
        case [a]:
            dates = [(a, month, None) for month in named]
    return {iso for date in dates if (iso := _iso(*date))}


@cache
def month_names() -> dict[str, set[int]]:
    """Name of a month, of any locale of the task -> its numbers.

    Example:
        >>> month_names()["listopada"]   # Polish; Croatian would be 10
        {11}
    """
    numbers: dict[str, set[int]] = {}
    for locale in LOCALES + NEW_LOCALES:
        for widths in Locale.parse(locale).months.values():
            for width in ("wide", "abbreviated"):
                for month, name in widths[width].items():
                    for word in re.findall(r"[^\W\d_]{2,}", name.lower()):
                        numbers.setdefault(word, set()).add(month)
    return numbers


class DatesTask:
    """Phrases to learn from, and three sets of phrases that nothing was learned from.

    A tenth of all answers is held out. ``held_out`` has these answers: ``"days"``, in the trained
    locales and formats; ``"formats"``, in formats that were never trained; ``"locales"``, in
    languages that were never trained. What has several readings is in no set.

    Args:
        seed: which answers are held out, and which phrases are in the sets.
        size: phrases in each held-out set.

    Source: Ahmed 2017 (keras-attention) had a recurrent encoder-decoder read dates; the phrases
    are those of Unicode's CLDR, by Babel.

    Example:
        >>> task = DatesTask(size=100)
        >>> source, target = task.batch(8, torch.Generator().manual_seed(0))
        >>> task.decode(target)[0] in readings(task.decode(source)[0])
        True
    """

    def __init__(self, seed: int = 0, *, size: int = 1000) -> None:
        n_days = (LAST - FIRST).days + 1
        days = [FIRST + datetime.timedelta(days=i) for i in range(n_days)]
        answers = {day.isoformat()[:n] for day in days for n in (7, 10)}
        random = Random(seed)
        self._apart = set(random.sample(sorted(answers), len(answers) // 10))
        self.days = days
        written = [
            write_date(day, locale, form).text
            for day in days[:365]  # all weekdays and months, so all characters
            for locale in LOCALES
            for form in FORMATS
        ]
        self.characters = sorted(set("0123456789-").union(*written))
        self.vocab_size = len(self.characters) + 4
        self._id = {character: i for i, character in enumerate(self.characters, 4)}
        self.held_out = {
            name: [self._draw(random, locales, forms, apart=True) for _ in range(size)]
            for name, locales, forms in (
                ("days", LOCALES, FORMATS),
                ("formats", LOCALES, NEW_FORMATS),
                ("locales", NEW_LOCALES, FORMATS),
            )
        }

    def batch(
        self, batch: int, generator: Generator
    ) -> tuple[Int64[Tensor, "batch source"], Int64[Tensor, "batch target"]]:
        """Token ids of phrases and answers to learn from."""
        random = Random(int(torch.randint(2**62, (), generator=generator)))
        return self.encode(
            [self._draw(random, LOCALES, FORMATS, apart=False) for _ in range(batch)]
        )

    def encode(
        self, phrases: Sequence[Phrase]
    ) -> tuple[Int64[Tensor, "batch source"], Int64[Tensor, "batch target"]]:
        """Token ids, padded at the end; answers have a start token in front and end with one."""
        source = self.encode_texts(phrase.text for phrase in phrases)
        return source, self.encode_answers(phrase.iso for phrase in phrases)

    def encode_texts(self, texts: Iterable[str]) -> Int64[Tensor, "batch source"]:
        """Token ids of phrases alone: one a character."""
        return _padded(map(self._ids, texts))

    def encode_answers(self, texts: Iterable[str]) -> Int64[Tensor, "batch target"]:
        """Token ids of answers, with the start token in front and the end token behind."""
        return _padded([START, *self._ids(text), END] for text in texts)

    def decode(self, ids: Int64[Tensor, "batch tokens"]) -> list[str]:
        """Texts, without the special tokens; an unknown character is shown as one.

        Raises:
            ValueError: if an id is no token.

        Example:
            >>> task = DatesTask(size=1)
            >>> task.decode(task.encode_texts(["5 März 2024", "Ξ"]))
            ['5 März 2024', '�']
        """
        texts = ["", "", "", "\N{REPLACEMENT CHARACTER}", *self.characters]
        if wrong := ids[(ids < 0) | (ids >= len(texts))].tolist():
            raise ValueError(f"ids must be tokens, 0 to {len(texts) - 1}, got {wrong[0]}")
        return ["".join(texts[i] for i in row) for row in ids.tolist()]

    def _ids(self, text: str) -> list[int]:
        return [self._id.get(character, UNKNOWN) for character in text]

    def _draw(
        self, random: Random, locales: Sequence[str], forms: Sequence[str], *, apart: bool
    ) -> Phrase:
        while True:
            drawn = write_date(
                random.choice(self.days), random.choice(locales), random.choice(forms)
            )
            if (drawn.iso in self._apart) == apart and len(readings(drawn.text)) == 1:
                return drawn


def _padded(rows: Iterable[list[int]]) -> Int64[Tensor, "batch tokens"]:
    ids = [torch.tensor(row) for row in rows]
    return pad_sequence(ids, batch_first=True, padding_value=PADDING)


def _iso(year: str, month: int, day: int | None) -> str:
    """The date in ISO 8601; nothing if there is none. Two digits are a year of the task's."""
    if len(year) not in (2, 4):
        return ""
    number = int(year) if len(year) == 4 else FIRST.year + (int(year) - FIRST.year) % 100
    try:
        iso = datetime.date(number, month, 1 if day is None else day).isoformat()
    except ValueError:
        return ""
    return iso[:7] if day is None else iso
