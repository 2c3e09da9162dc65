import itertools

import pytest
import torch
from torch import Generator

from attnbook.tasks import (
    CollocationTask,
    neighbours_in,
    pointwise_information,
    shared_contexts,
)

ALL = ("never", "anew", "same")
MANY = 60_000


def sentences(task, n=MANY, seed=0, **how):
    return task.sentences(n, Generator().manual_seed(seed), **how)


@pytest.mark.parametrize("repeats", ALL)
def test_statistics_are_those_of_what_is_drawn(repeats):
    task = CollocationTask(repeats)
    ids = sentences(task)
    counts = ids.flatten().bincount(minlength=task.vocab_size) / ids.numel()
    torch.testing.assert_close(counts.double(), task.frequencies, rtol=0, atol=2e-3)
    pairs = torch.stack([ids[:, :-1].flatten(), ids[:, 1:].flatten()])
    flat = (pairs[0] * task.vocab_size + pairs[1]).bincount(minlength=task.vocab_size**2)
    drawn = flat.view(task.vocab_size, -1).double() / flat.sum()
    torch.testing.assert_close(drawn, task.neighbours, rtol=0, atol=1e-3)
    assert (drawn[task.neighbours == 0] == 0).all()
    assert task.frequencies.sum() == pytest.approx(1)
    assert task.neighbours.sum() == pytest.approx(1)


def test_neighbours_are_alike_however_words_repeat():
    matrices = [shared_contexts(CollocationTask(repeats).neighbours) for repeats in ALL]
    for shared in matrices:
        for a, b in CollocationTask().interchangeable:
            assert shared[a, b] == pytest.approx(1)
        for a, b in CollocationTask().collocated:
            assert shared[a, b] == 0
    torch.testing.assert_close(matrices[1], matrices[2], equal_nan=True)


def together(ids, a, b):
    return ((ids == a).any(1) & (ids == b).any(1)).any()


@pytest.mark.parametrize("repeats", ALL)
def test_who_meets_whom(repeats):
    task = CollocationTask(repeats)
    ids = sentences(task)
    clauses = ids.view(-1, 4)
    for a, b in task.interchangeable:
        assert together(ids, a, b) == (repeats == "anew")
        assert not together(clauses, a, b)
        twice = ((ids == a).sum(1) > 1).any()
        assert twice == (repeats != "never")
    for a, b in task.collocated:
        assert torch.equal((clauses == a).any(1), (clauses == b).any(1))
        assert ((ids[:, :-1] == a) == (ids[:, 1:] == b)).all()
    for a, b in itertools.combinations(task.collocated, 2):
        assert not together(clauses, a[0], b[1])


def test_homonym_is_in_both_topics_and_no_other_content_word_is():
    task = CollocationTask()
    seen = [set(sentences(task, topic=topic).flatten().tolist()) for topic in (0, 1)]
    assert seen[0] & seen[1] == {task.homonym}
    assert seen[0] | seen[1] == set(range(1, task.vocab_size))


def test_information_is_largest_for_collocations():
    task = CollocationTask()
    information = pointwise_information(task.neighbours)
    for a, b in task.collocated:
        assert information[a, b] > information[a, 1:18].nan_to_num(neginf=0).mean() + 2
    for a, b in task.interchangeable:
        assert information[a, b] == -torch.inf


def test_of_two_independent_words_information_is_zero():
    p = torch.tensor([0.2, 0.3, 0.5]).double()
    torch.testing.assert_close(
        pointwise_information(torch.outer(p, p)), torch.zeros(3, 3).double(), rtol=0, atol=1e-12
    )


def test_contexts_half_shared():
    neighbours = torch.zeros(5, 5).double()
    neighbours[2, 0] = neighbours[3, 0] = 0.5  # before word 0: 2 or 3; after it: 4
    neighbours[2, 1] = 1.0  # before word 1: always 2; after it: 4
    neighbours[0, 4] = neighbours[1, 4] = 1.0
    shared = shared_contexts(neighbours / neighbours.sum())
    assert shared[0, 1] == pytest.approx((0.5**0.5 + 1) / 2)


def test_masked_batch_asks_for_what_it_hides():
    task = CollocationTask()
    ids, targets = task.masked_batch(4000, Generator().manual_seed(3), share=0.25)
    plain = sentences(task, 4000, seed=3)
    assert torch.equal(torch.where(targets == -100, ids, targets), plain)
    assert torch.equal(ids == 0, targets != -100)
    assert (targets != -100).any(1).all()
    assert (targets != -100).double().mean() == pytest.approx(0.25, abs=0.01)


def test_batch_is_shifted_by_one():
    task = CollocationTask()
    ids, targets = task.batch(8, Generator().manual_seed(1))
    plain = sentences(task, 8, seed=1)
    assert torch.equal(ids, plain[:, :-1])
    assert torch.equal(targets, plain[:, 1:])


def test_neighbours_in_counts_pairs():
    ids = torch.tensor([2, 0, 1, 2, 0])
    expected = torch.zeros(3, 3).double()
    expected[2, 0], expected[0, 1], expected[1, 2] = 0.5, 0.25, 0.25
    for dtype in (torch.int64, torch.int32, torch.uint16):
        assert torch.equal(neighbours_in(ids.to(dtype), 3), expected)
    assert torch.equal(neighbours_in(ids.numpy(), 3), expected)
    ids = torch.tensor([199, 0, 1, 199, 0], dtype=torch.uint8)  # whose products do not fit
    assert neighbours_in(ids, 200).nonzero().tolist() == [[0, 1], [1, 199], [199, 0]]
    for wrong in ([0, 3, 0], [0, -1], [1]):
        with pytest.raises(ValueError, match="expected two tokens or more, of 0 to 2, got tensor"):
            neighbours_in(torch.tensor(wrong), 3)


@pytest.mark.usefixtures("without_shape_checks")
def test_refusals():
    with pytest.raises(ValueError, match="repeats must be"):
        CollocationTask("often")
    with pytest.raises(ValueError, match="got 0 and None"):
        CollocationTask().sentences(0, Generator())
    with pytest.raises(ValueError, match="got 1 and 2"):
        CollocationTask().sentences(1, Generator(), topic=2)
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        CollocationTask().masked_batch(1, Generator(), share=1)
