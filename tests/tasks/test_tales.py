import math
from collections import Counter
from random import Random

import pytest
import torch
from torch import Generator

from attnbook.tasks import tales
from attnbook.tasks.tales import BRACES, CHOICES, FROM, PLOTS, TalesTask, fill, slips, tell


def drawn(plot, random):
    return {choice: random.choice(CHOICES[choice]) for choice in tales.choices_of(plot)}


@pytest.mark.parametrize("plot", PLOTS)
def test_a_tale_shows_each_choice_so_that_its_surprise_is_known(plot):
    """No two options of a choice read the same, and every word of a plot is some choice's."""
    for choice in tales.choices_of(plot):
        words = [word for word in dict.fromkeys(BRACES.findall(plot)) if FROM[word] == choice]
        told = [tuple(option[word] for word in words) for option in CHOICES[choice]]
        assert len(set(told)) == len(told)


def test_surprise_is_minus_the_logarithm_of_how_often_a_tale_is_told(monkeypatch):
    monkeypatch.setattr(tales, "PLOTS", ("{guest}: {guest} and {how}", "a {thing}"))
    random = Random(0)
    told = [tell(random) for _ in range(20_000)]
    often = Counter(told)
    assert len(often) == len(CHOICES["guest"]) * len(CHOICES["how"]) + len(CHOICES["thing"])
    for tale, n in often.items():
        expected = math.exp(-tale.surprise) * len(told)
        assert abs(n - expected) < 5 * expected**0.5


def test_tales_are_true_to_themselves():
    random = Random(1)
    assert all(slips(tell(random).text) == set() for _ in range(500))


@pytest.mark.parametrize("plot", PLOTS)
def test_what_is_forgotten_is_named(plot):
    random = Random(2)
    words = BRACES.findall(plot)
    often = Counter(FROM[word] for word in words)
    for choice, n in often.items():
        if n == 1:
            continue
        options = drawn(plot, random)
        word = next(word for word in words if FROM[word] == choice)
        other = next(each for each in CHOICES[choice] if each[word] != options[choice][word])
        first, rest = plot.split(f"{{{word}}}", 1)
        text = fill(first, options) + other[word] + fill(rest, options)
        assert slips(text) == {choice}


def test_what_has_no_plot_is_no_tale():
    text = tell(Random(3)).text
    assert slips(text + " ") is None
    assert slips(text.replace("a", "o")) is None


def test_batches_begin_with_a_tale_and_are_shifted_by_one():
    task = TalesTask(200)
    ids, targets = task.batch(4, Generator().manual_seed(0))
    assert ids.shape == targets.shape == (4, 200)
    assert torch.equal(ids[:, 1:], targets[:, :-1])
    for row in ids:
        text = task.tokenizer.decode(row.tolist())
        assert text[0] == "\n"
        assert slips(text.split("\n")[1]) == set()
    again, _ = task.batch(4, Generator().manual_seed(0))
    other, _ = task.batch(4, Generator().manual_seed(1))
    assert torch.equal(ids, again)
    assert not torch.equal(ids, other)
