"""Each check passes the right answer and names each typical mistake."""

import pkgutil
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from book import exercises
from book.exercises import MistakeError
from book.exercises.mistakes import Exercise, apart

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


@pytest.mark.parametrize(("name", "function"), RIGHT, ids=[name for name, _ in RIGHT])
def test_the_right_answer_passes_in_a_fresh_kernel(name, function):
    torch.set_default_dtype(torch.float32)
    getattr(exercises, f"check_{name}")(function)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(("name", "function", "words"), SPECIAL)
def test_a_mistake_is_described_in_a_fresh_kernel(name, function, words):
    torch.set_default_dtype(torch.float32)
    with pytest.raises(MistakeError, match=words):
        getattr(exercises, f"check_{name}")(function)
    assert torch.get_default_dtype() == torch.float32


def each_part(change, result):
    """What a function returns, each of several changed."""
    if isinstance(result, tuple | list):
        return tuple(each_part(change, each) for each in result)
    return change(result)


def answers(exercise, change):
    """The right answer, changed."""
    return lambda *given: each_part(change, exercise.correct(*given))


def said(exercise, function):
    """The message, if the check finds a mistake."""
    try:
        exercise(function)
    except MistakeError as error:
        return str(error)
    return ""


def nudged(part):
    """A number that is wrong beyond the first six digits."""
    exact = isinstance(part, Tensor) and not part.is_floating_point()
    return part if part is None or exact else part * (1 + 3e-6)


def test_two_numbers_in_a_message_look_different():
    told = []
    for exercise in EXERCISES:  # some give integers, or compare roughly
        message = said(exercise, answers(exercise, nudged))
        told += re.findall(r"(?:should be|gradient is) (\S+), (?:got|.* give) (\S+)", message)
    assert len(told) > 20
    assert all(one != another for one, another in told)


def test_numbers_have_the_digits_that_tell_them_apart():
    assert apart(0.5, 0.25, 6) == ("0.5", "0.25")
    assert apart(-5.705761, -5.705758, 6) == ("-5.705761", "-5.705758")
    assert apart(1.0, 1 + 2**-52, 6) == ("1", "1.0000000000000002")


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_an_error_is_told_in_two_lines_with_its_case(exercise):
    def lost(*given):
        raise LookupError("nowhere\n\nto be found")

    with pytest.raises(MistakeError) as error:
        exercise(lost)
    first, second = str(error.value).split("\n")
    assert re.match(rf"{exercise.name}: .+, raises LookupError: nowhere to be found", first)
    assert second == '  in: raise LookupError("nowhere\\n\\nto be found")'
    assert error.value.__suppress_context__


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_a_case_says_which_argument_is_none(exercise):
    for case, arguments in exercise.cases().items():
        assert ("=None" in case) == any(each is None for each in arguments)


def test_what_is_correct_for_one_shape_alone_is_refused():
    once = {exercise.name for exercise in EXERCISES if len(exercise.cases()) < 2}
    # Of one, the cases have the reader's keys; the other takes 240,000 draws.
    assert once == {"whitened", "per_head"}


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_several_may_be_yielded(exercise):
    def yields(*given):
        result = exercise.correct(*given)
        return iter(result) if isinstance(result, tuple | list) else result

    assert said(exercise, yields) == ""


@pytest.mark.parametrize("exercise", EXERCISES, ids=[exercise.name for exercise in EXERCISES])
def test_a_wrong_type_is_all_that_is_said_of_an_array(exercise):
    def array(part):
        return part.numpy() if isinstance(part, Tensor) and part.ndim else part

    message = said(exercise, answers(exercise, array))
    assert re.search(r"^$|must (be a|return a|return \d) tensors?, got .*ndarray[^:]*$", message)


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


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["embed", "causes", "repaired_mask"])
def test_where_a_reader_runs_it_a_mistake_is_shown_and_the_notebook_goes_on(
    name, monkeypatch, capsys
):
    monkeypatch.setenv("JPY_SESSION_NAME", "one.ipynb")
    getattr(exercises, f"check_{name}")(None)
    assert capsys.readouterr().out.startswith(f"✗ {name}: ")
