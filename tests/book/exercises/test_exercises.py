"""Each check passes the right answer and names each typical mistake."""

from importlib import import_module
from pathlib import Path

import pytest

from attnbook.book import exercises
from attnbook.book.exercises import MistakeError

ANSWERS = [import_module(path.stem) for path in sorted(Path(__file__).parent.glob("answers_*.py"))]
RIGHT = [(name, function) for chapter in ANSWERS for name, function in chapter.RIGHT]
MISTAKES = [mistake for chapter in ANSWERS for mistake in chapter.MISTAKES]


def test_every_check_has_a_right_answer_and_three_mistakes():
    checks = {name.removeprefix("check_") for name in exercises.__all__ if name[:6] == "check_"}
    assert {name for name, _ in RIGHT} == checks
    mistaken = [name for name, _, _ in MISTAKES]
    assert all(mistaken.count(name) >= 3 for name in checks)


@pytest.mark.parametrize(("name", "function"), RIGHT, ids=[name for name, _ in RIGHT])
def test_the_right_answer_passes(name, function, capsys):
    getattr(exercises, f"check_{name}")(function)
    assert capsys.readouterr().out == f"✓ {name} is right\n"


@pytest.mark.parametrize(("name", "function", "words"), MISTAKES)
def test_a_mistake_is_named(name, function, words):
    with pytest.raises(MistakeError, match=words):
        getattr(exercises, f"check_{name}")(function)


def test_a_notebook_shows_the_message_without_a_traceback():
    assert MistakeError("divides")._render_traceback_() == ["✗ divides"]
