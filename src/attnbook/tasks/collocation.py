"""A language whose statistics are known: who meets whom, and who has the same company."""

import itertools
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from attnbook.config import check_choice
from attnbook.tasks.packing import Tokens, as_ids

Repeats = Literal["never", "anew", "same"]

MASK = "[mask]"
# Of each topic: the first words of its clauses, the third ones and the last ones.
FRAMES = (
    (
        ("paid", "owed", "saved", "lost", "found", "lent"),
        ("for", "to", "with", "despite"),
        ("lunch", "rent", "school", "taxes", "friends", "shoes"),
    ),
    (
        ("saw", "drew", "left", "passed", "followed", "heard"),
        ("near", "under", "behind", "beyond"),
        ("rocks", "reeds", "bridges", "mist", "dawn", "hills"),
    ),
)
INTERCHANGEABLE = (
    (("euros", "dollars"), ("doctors", "lawyers")),
    (("trout", "salmon"), ("oaks", "birches")),
)
COLLOCATED = (
    (("credit", "cards"), ("parking", "tickets")),
    (("water", "lilies"), ("camp", "fires")),
)
HOMONYM = "banks"


class CollocationTask:
    r"""Sentences of which it is known which words meet, and which have the same neighbours.

    A sentence has a topic, money or the river, and three clauses of four words. There are five
    kinds of clauses in each topic, the :math:`k`-th drawn in proportion to :math:`1/k` (Zipf):

    - two with an *interchangeable* word: "paid euros for rent". Either of the two words stands in
      all the same places, and they never stand in one clause;
    - two with a *collocation*: "lost credit cards lunch". Neither of its words is ever without the
      other, and they have no neighbour in common;
    - one with the *homonym*, "banks", which both topics have.

    The words around these are drawn evenly from some of the topic's; kinds of clauses share them.

    Args:
        repeats: what of a sentence that says a kind of clause again. ``"never"``: none does, so
            interchangeable words never meet in a sentence and share all contexts at any distance.
            ``"anew"``: each clause draws its word for itself, so they may meet. ``"same"``: a
            sentence stays with one word, so that they never meet, but each predicts itself. The
            neighbours of the two are alike in all three.

    Raises:
        ValueError: if ``repeats`` is not one of the three.

    Example:
        >>> task = CollocationTask()
        >>> ids = task.sentences(1, torch.Generator().manual_seed(1))
        >>> len(task.words), ids.shape
        (50, torch.Size([1, 12]))
        >>> tea, coffee = task.interchangeable[0]
        >>> float(shared_contexts(task.neighbours)[tea, coffee])
        1.0
    """

    CLAUSES = 3
    """Clauses in a sentence."""

    def __init__(self, repeats: Repeats = "never") -> None:
        check_choice("repeats", repeats, Repeats)
        self.repeats = repeats
        special = [
            word
            for topic in (0, 1)
            for pair in (*INTERCHANGEABLE[topic], *COLLOCATED[topic])
            for word in pair
        ]
        frames = [word for topic in FRAMES for words in topic for word in words]
        self.words: tuple[str, ...] = (MASK, *special, HOMONYM, *frames)
        self.interchangeable = self._pairs(INTERCHANGEABLE)
        self.collocated = self._pairs(COLLOCATED)
        self.homonym = self.words.index(HOMONYM)
        self._clauses = torch.stack([self._kinds(topic) for topic in (0, 1)])
        self._plans = self._make_plans()

    @property
    def vocab_size(self) -> int:
        """Number of words, with the mask, which is word 0."""
        return len(self.words)

    def sentences(
        self, n: int, generator: Generator, *, topic: int | None = None
    ) -> Int64[Tensor, "n tokens"]:
        """Draw sentences, of either topic or of one.

        Raises:
            ValueError: if ``n`` is not positive or there is no such topic.
        """
        if n < 1 or topic not in (None, 0, 1):
            raise ValueError(f"n must be positive and topic 0 or 1, got {n} and {topic}")
        topics = torch.randint(2, (n,), generator=generator)
        topics = topics if topic is None else torch.full((n,), topic)
        kinds, chances = self._plans
        plans = kinds[chances.multinomial(n, replacement=True, generator=generator)]  # (n, clauses)
        words = self._clauses[topics[:, None], plans]  # (n, clauses, 4, words)
        ids = words.flatten(0, 2).multinomial(1, generator=generator).view(n, self.CLAUSES, 4)
        if self.repeats == "same":  # the word of the first clause of this kind
            first = (plans[:, :, None] == plans[:, None]).int().argmax(-1)  # (n, clauses)
            of_first = ids[..., 1].gather(1, first)
            ids[..., 1] = torch.where(plans < 2, of_first, ids[..., 1])
        return ids.flatten(1)

    def batch(
        self, batch: int, generator: Generator
    ) -> tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]:
        """Sentences without their last word, and the next word of each of these.

        Raises:
            ValueError: if ``batch`` is not positive.
        """
        ids = self.sentences(batch, generator)
        return ids[:, :-1], ids[:, 1:]

    def masked_batch(
        self, batch: int, generator: Generator, *, share: float = 0.25
    ) -> tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]:
        """Sentences in which words are masked, and these words; the other targets are −100.

        Raises:
            ValueError: if ``batch`` is not positive or ``share`` not between 0 and 1.

        Source: Devlin et al. 2019, section 3.1, without its random and unchanged words.
        """
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, got {share}")
        ids = self.sentences(batch, generator)
        masked = torch.rand(ids.shape, generator=generator) < share
        masked[:, 0] |= ~masked.any(1)
        return ids.masked_fill(masked, 0), ids.masked_fill(~masked, -100)

    @property
    def frequencies(self) -> Float64[Tensor, "words"]:
        """How often each word is at a place, exactly."""
        kinds, chances = self._plans
        of_kind = torch.zeros(5, dtype=torch.float64)
        of_kind.index_add_(0, kinds.flatten(), chances.repeat_interleave(self.CLAUSES))
        of_kind = of_kind / self.CLAUSES
        return torch.einsum("k,tkpw->w", of_kind, self._clauses) / 8

    @property
    def neighbours(self) -> Float64[Tensor, "words words"]:
        """How often word j follows word i, exactly, among the pairs of neighbours of a sentence."""
        kinds, chances = self._plans
        total = torch.zeros(self.vocab_size, self.vocab_size, dtype=torch.float64)
        for plan, chance in zip(kinds.tolist(), chances.tolist(), strict=True):
            for clauses in self._clauses:  # of each topic
                rows = clauses[plan].flatten(0, 1)  # (tokens, words)
                total += (
                    chance / 2 * rows[:-1].mT @ rows[1:]
                )  # given the plan, words are independent
        return total / (4 * self.CLAUSES - 1)

    def _pairs(self, of_topics: tuple[tuple[tuple[str, str], ...], ...]) -> list[tuple[int, int]]:
        index = self.words.index
        return [(index(a), index(b)) for topic in of_topics for a, b in topic]

    def _kinds(self, topic: int) -> Float64[Tensor, "5 4 words"]:
        """The chance of each word at the four places of each kind of clause."""
        first, third, last = FRAMES[topic]
        chances = torch.zeros(5, 4, len(self.words), dtype=torch.float64)

        def even(kind: int, place: int, words: tuple[str, ...]) -> None:
            chances[kind, place, [self.words.index(word) for word in words]] = 1 / len(words)

        seconds = (*INTERCHANGEABLE[topic], *((a,) for a, _ in COLLOCATED[topic]), (HOMONYM,))
        for kind, second in enumerate(seconds):
            even(kind, 0, _some(first, kind, 4))
            even(kind, 1, second)
            even(kind, 2, _some(third, kind, 3))
            even(kind, 3, _some(last, kind, 4))
        for kind, (_, word) in zip((2, 3), COLLOCATED[topic], strict=True):
            chances[kind, 2] = 0
            even(kind, 2, (word,))
        return chances

    def _make_plans(self) -> tuple[Int64[Tensor, "plans clauses"], Float64[Tensor, "plans"]]:
        """All ways to choose the kinds of a sentence's clauses, and the chance of each."""
        zipf = [1 / k for k in range(1, 6)]
        plans, chances = [], []
        for plan in itertools.product(range(5), repeat=self.CLAUSES):
            if self.repeats == "never" and len({*plan}) < self.CLAUSES:
                continue
            chance, left = 1.0, sum(zipf)
            for kind in plan:
                chance *= zipf[kind] / left
                left -= zipf[kind] if self.repeats == "never" else 0
            plans.append(plan)
            chances.append(chance)
        return torch.tensor(plans), torch.tensor(chances, dtype=torch.float64)


def neighbours_in(ids: Tokens, vocab_size: int) -> Float64[Tensor, "words words"]:
    """How often word j follows word i in a text, as a share of all its pairs of neighbours.

    Raises:
        ValueError: if an id is no token, or there are fewer than two.
        TypeError: if ``ids`` are not whole numbers in one dimension.

    Example:
        >>> neighbours_in(torch.tensor([0, 1, 0, 1, 0]), 2)
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]], dtype=torch.float64)
    """
    ids = as_ids(ids)
    if len(ids) < 2 or ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"expected two tokens or more, of 0 to {vocab_size - 1}, got {ids}")
    pairs = ids[:-1] * vocab_size + ids[1:]
    counts = pairs.bincount(minlength=vocab_size**2).view(vocab_size, vocab_size)
    return counts.double() / len(pairs)


def pointwise_information(
    neighbours: Float64[Tensor, "words words"],
) -> Float64[Tensor, "words words"]:
    r"""How much more often two words meet, in either order, than chance would have it, in nats.

    .. math:: \operatorname{PMI}(i, j) = \ln \frac{p(i, j)}{p(i)\, p(j)}

    :math:`-\infty` where they never meet; NaN for a word that has no neighbours.

    Source: Church and Hanks 1990.

    Example:
        >>> pointwise_information(torch.tensor([[0.5, 0.0], [0.0, 0.5]]).double()).exp()
        tensor([[2., 0.],
                [0., 2.]], dtype=torch.float64)
    """
    both = (neighbours + neighbours.mT) / 2
    alone = both.sum(1)
    return (both / (alone[:, None] * alone)).log()


def shared_contexts(neighbours: Float64[Tensor, "words words"]) -> Float64[Tensor, "words words"]:
    r"""How alike two words' neighbours are: 1 if they are distributed alike, 0 if they share none.

    .. math:: \tfrac12 \sum_w \sqrt{p(w \mid \text{before } i)\, p(w \mid \text{before } j)} +
              \tfrac12 \sum_w \sqrt{p(w \mid \text{after } i)\, p(w \mid \text{after } j)}

    NaN for a word that lacks neighbours on a side.

    Source: Bhattacharyya 1943 for the coefficient; Harris 1954 for the idea.

    Example:
        >>> a_and_b_before_c = torch.tensor([[0, 0, 0.5], [0, 0, 0.5], [0.0, 0.0, 0.0]]).double()
        >>> both = a_and_b_before_c + a_and_b_before_c.mT  # and after it
        >>> shared_contexts(both / 2)[0, 1]
        tensor(1., dtype=torch.float64)
    """
    sides = [(m / m.sum(1, keepdim=True)).sqrt() for m in (neighbours, neighbours.mT)]
    after, before = (root @ root.mT for root in sides)
    return (before + after) / 2


def _some(words: tuple[str, ...], kind: int, n: int) -> tuple[str, ...]:
    """The ``n`` words that this kind of clause uses, from its own one on."""
    return tuple(words[(kind + i) % len(words)] for i in range(n))
