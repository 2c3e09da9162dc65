"""Each check passes the right answer and names each typical mistake."""

import pkgutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from book import exercises
from book.exercises import MistakeError
from book.exercises.mistakes import Exercise

# The package has the typical mistakes, with what is said about each.
EXERCISES = [
    value
    for module in pkgutil.iter_modules(exercises.__path__, f"{exercises.__name__}.")
    for value in vars(import_module(module.name)).values()
    if isinstance(value, Exercise)
]
TYPICAL = [(exercise, words) for exercise in EXERCISES for words in exercise.mistakes]

# Beside these tests: other right answers, and what a check finds without such a table.
ANSWERS = [import_module(path.stem) for path in sorted(Path(__file__).parent.glob("answers_*.py"))]
RIGHT = [(exercise.name, exercise.correct) for exercise in EXERCISES] + [
    answer for chapter in ANSWERS for answer in chapter.RIGHT
]
SPECIAL = [mistake for chapter in ANSWERS for mistake in chapter.MISTAKES]


def test_every_check_has_a_right_answer_and_three_mistakes():
    checks = {name.removeprefix("check_") for name in exercises.__all__ if name[:6] == "check_"}
    assert {name for name, _ in RIGHT} == checks
    mistaken = [exercise.name for exercise, _ in TYPICAL] + [name for name, _, _ in SPECIAL]
    assert all(mistaken.count(name) >= 3 for name in checks)


@pytest.mark.parametrize(("name", "function"), RIGHT, ids=[name for name, _ in RIGHT])
def test_the_right_answer_passes(name, function, capsys):
    getattr(exercises, f"check_{name}")(function)
    assert capsys.readouterr().out == f"✓ {name} is correct\n"


@pytest.mark.parametrize(
    ("exercise", "words"), TYPICAL, ids=[f"{exercise.name}: {words}" for exercise, words in TYPICAL]
)
def test_a_typical_mistake_is_named(exercise, words):
    with pytest.raises(MistakeError) as error:
        getattr(exercises, f"check_{exercise.name}")(exercise.mistakes[words])
    assert str(error.value) == f"{exercise.name}: {words}"


@pytest.mark.parametrize(("name", "function", "words"), SPECIAL)
def test_another_mistake_is_described(name, function, words):
    with pytest.raises(MistakeError, match=words):
        getattr(exercises, f"check_{name}")(function)


# No exercise asks for any of these.
JUNK = [
    *(None, {}, {"m": 1.0, "l": 2.0, "o": 3.0}, [], (), "none", 1j, np.array("a"), torch.zeros(0)),
    {key: [] for key in "ABCDE"},
    *([None] * n for n in (2, 3)),
    *([[1.0, 2.0]] * n for n in (2, 3)),
    *((torch.zeros(9),) * n for n in (1, 2, 3, 4)),
]


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_whatever_else_is_returned_is_a_mistake(exercise):
    for junk in JUNK:
        with pytest.raises(MistakeError):
            getattr(exercises, f"check_{exercise.name}")(lambda *given, junk=junk: junk)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", [name for name in exercises.__all__ if name[:6] == "check_"])
def test_what_is_no_function_is_a_mistake(name):
    for junk in (*JUNK, torch.nn.Identity()) if "repaired" in name else JUNK:
        with pytest.raises(MistakeError, match=r"got|none of"):
            getattr(exercises, name)(junk)


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_a_check_says_what_it_is(exercise):
    check = getattr(exercises, f"check_{exercise.name}")
    assert check.__name__ == f"check_{exercise.name}"
    assert check.__doc__.startswith(f"Check ``{exercise.name}")


def test_a_notebook_shows_the_message_without_a_traceback():
    assert MistakeError("divides")._render_traceback_() == ["✗ divides"]
