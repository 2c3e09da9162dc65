"""Each check passes the right answer and names each typical mistake."""

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

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


def test_a_notebook_shows_the_message_without_a_traceback():
    assert MistakeError("divides")._render_traceback_() == ["✗ divides"]
