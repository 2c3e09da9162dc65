import datetime
from functools import cache
from random import Random

import pytest
import torch
from torch import Generator

from attnbook.tasks.dates import (
    END,
    FIRST,
    FORMATS,
    LAST,
    LOCALES,
    NEW_FORMATS,
    NEW_LOCALES,
    PADDING,
    START,
    UNKNOWN,
    DatesTask,
    readings,
    write_date,
)

SETS = {
    "days": (LOCALES, FORMATS),
    "formats": (LOCALES, NEW_FORMATS),
    "locales": (NEW_LOCALES, FORMATS),
}


@pytest.fixture(scope="module")
def task() -> DatesTask:
    return DatesTask(size=500)


@cache
def days(first: int, last: int) -> list[datetime.date]:
    start, end = datetime.date(first, 1, 1), datetime.date(last, 12, 31)
    return [start + datetime.timedelta(days=i) for i in range((end - start).days + 1)]


def drawn(task: DatesTask, n: int, seed: int) -> list[tuple[str, str]]:
    """Phrases and answers of a batch."""
    source, target = task.batch(n, Generator().manual_seed(seed))
    return list(zip(task.decode(source), task.decode(target), strict=True))


# The task


@pytest.mark.slow
def test_same_seed_gives_the_same_sets_and_batches():
    a, b, other = (DatesTask(seed, size=20) for seed in (1, 1, 2))
    assert a.held_out == b.held_out
    assert all(a.held_out[name] != other.held_out[name] for name in SETS)
    assert drawn(a, 20, 3) == drawn(b, 20, 3)
    assert drawn(a, 20, 3) != drawn(a, 20, 4)


def test_two_batches_of_a_generator_differ(task):
    generator = Generator().manual_seed(0)
    first, second = (task.decode(task.batch(20, generator)[0]) for _ in range(2))
    assert first != second


def test_what_is_learned_from_has_no_held_out_answer(task):
    held_out = {phrase.iso for phrases in task.held_out.values() for phrase in phrases}
    learned = {iso for _, iso in drawn(task, 2000, 0)}
    assert len(held_out) > 1000
    assert {len(iso) for iso in learned} == {len(iso) for iso in held_out} == {7, 10}
    assert not learned & held_out


def test_a_tenth_of_the_answers_is_held_out(task):
    held_out = [each.iso for phrases in task.held_out.values() for each in phrases]
    months = [iso for iso in held_out if len(iso) == 7]
    tenth = 120  # of 1,200 months; so many draws leave some of them out
    assert len(set(months)) == pytest.approx(tenth * (1 - (1 - 1 / tenth) ** len(months)), abs=12)


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_all_its_locales_and_formats_and_no_others(task, name):
    locales, formats = SETS[name]
    phrases = task.held_out[name]
    assert len(phrases) == 500
    assert {each.locale for each in phrases} == set(locales)
    assert {each.format for each in phrases} == set(formats)
    for each in phrases:
        day = datetime.date.fromisoformat(f"{each.iso}-01"[:10])
        assert write_date(day, each.locale, each.format) == each


def test_new_locales_and_formats_are_new():
    assert not set(LOCALES) & set(NEW_LOCALES)
    assert not set(FORMATS) & set(NEW_FORMATS)


@pytest.mark.parametrize("name", SETS)
def test_a_phrase_in_a_set_means_its_answer_and_nothing_else(task, name):
    for phrase in task.held_out[name]:
        assert readings(phrase.text) == {phrase.iso}, phrase


# What a phrase means


@pytest.mark.parametrize("form", FORMATS + NEW_FORMATS)
def test_a_written_date_means_its_day(form):
    random = Random(form)
    for locale in LOCALES + NEW_LOCALES:
        for day in random.sample(days(FIRST.year, LAST.year), 40):
            phrase = write_date(day, locale, form)
            assert phrase.iso in readings(phrase.text), phrase


def test_readings_have_all_days_that_some_locale_writes_so():
    written: dict[str, set[str]] = {}
    for locale in LOCALES + NEW_LOCALES:  # "3/2/01" in American and in Spanish
        for day in days(2001, 2002):
            phrase = write_date(day, locale, "short")
            written.setdefault(phrase.text, set()).add(phrase.iso)
    several = {text: found for text, found in written.items() if len(found) > 1}
    assert len(several) > 200
    for text, found in several.items():
        assert found <= readings(text), text


@pytest.mark.parametrize("year", [1951, 2000, 2004, 2031])
def test_numbers_mean_every_order_that_is_a_date(year):
    """Against all days of the task, written in three orders."""
    written: dict[str, set[str]] = {}
    for day in days(FIRST.year, LAST.year):
        d, m, y = day.day, day.month, day.year % 100
        for text in {f"{d:02}/{m:02}/{y:02}", f"{m:02}/{d:02}/{y:02}", f"{y:02}/{m:02}/{d:02}"}:
            written.setdefault(text, set()).add(day.isoformat())
    for day in days(year, year):
        text = f"{day:%d/%m/%y}"
        assert readings(text) == written[text], text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("March 2024", {"2024-03"}),
        ("Μάρτιος 2024", {"2024-03"}),
        ("2024年3月", {"2024-03"}),
        ("mar. 5 nov. 2024", {"2024-03-05", "2024-11-05"}),  # a Tuesday, or a March
        ("05 March 24", {"2024-03-05", "2005-03-24"}),
        ("25/03/49", {"2049-03-25"}),
        ("25/03/50", {"1950-03-25"}),
        ("2/29/24", {"2024-02-29"}),
        ("29.02.2000", {"2000-02-29"}),
    ],
)
def test_readings_of(text, found):
    assert readings(text) == found


@pytest.mark.parametrize(
    "text",
    ["", "Tuesday", "31.02.2024", "29.02.2023", "13/13/2024", "2024", "5 March", "5 March 324",
     "1 2 3 2024", "March 5 6 2024", "3.0.2024"],
)  # fmt: skip
def test_what_is_not_a_date_has_no_reading(text):
    assert readings(text) == set()


# Token ids


def test_decode_undoes_encode(task):
    phrases = task.held_out["days"] + task.held_out["formats"]
    source, target = task.encode(phrases)
    assert task.decode(source) == [each.text for each in phrases]
    assert task.decode(target) == [each.iso for each in phrases]
    assert not (source == UNKNOWN).any()


def test_answers_have_start_and_end_and_then_padding(task):
    ids = task.encode_answers(["2024-03-05", "2024-03"])
    assert ids.shape == (2, 12)
    assert ids[:, 0].tolist() == [START, START]
    assert (ids == END).int().argmax(1).tolist() == [11, 8]
    assert ids[1, 9:].tolist() == [PADDING] * 3
    assert (ids[0, 1:11] > UNKNOWN).all()
    assert torch.equal(ids[0, :8], ids[1, :8])


def test_phrases_have_no_special_tokens_but_padding_at_the_end(task):
    ids = task.encode_texts(["2024-03-05", "2024"])
    assert ids.shape == (2, 10)
    assert ids[1, 4:].tolist() == [PADDING] * 6
    assert ids[ids != PADDING].min() > UNKNOWN
    assert ids.max() < task.vocab_size


def test_unknown_characters_are_one_token_each(task):
    ids = task.encode_texts(["5 Ξ☃ 2024"])
    assert (ids == UNKNOWN).sum() == 2
    assert task.decode(ids) == ["5 \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} 2024"]


@pytest.mark.parametrize("wrong", [-100, 1000])
def test_ids_that_are_no_tokens_are_not_read(task, wrong):
    with pytest.raises(ValueError, match=rf"ids must be tokens, 0 to \d+, got {wrong}"):
        task.decode(torch.tensor([[4, wrong]]))


def test_every_character_of_new_formats_is_known(task):
    for locale in LOCALES:
        for form in FORMATS + NEW_FORMATS:
            text = "".join(write_date(day, locale, form).text for day in days(2049, 2049)[::5])
            assert set(text) <= set(task.characters), (locale, form)
