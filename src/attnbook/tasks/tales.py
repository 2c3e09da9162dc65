"""Tales: short stories that a program makes up, so that all there is to know of them is known."""

import math
import re
from functools import cache
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Generator, Tensor

from attnbook.tasks.text import Tokenizer, bpe_tokenizer

PLOTS = (
    "Once {a_hero} lived in {a_home}. {Her} name was {name}. {Often} {she} {made}. "
    "One day the {thing} was gone. {name} looked {here}, and {there}, but it was not there. "
    'Then came a {guest} {who}. "I know where your {thing} is," said the {guest}. '
    '"It is {place}." So {name} went, {how}, and there it was, {place}. {It} '
    "{name} gave the {guest} {gift}, and {home} was warm again.",
    "Once {a_hero} lived in {a_home}. {Her} name was {name}. {Often} {she} {made}. "
    "One night somebody knocked at the door. It was a {guest} {who}. "
    '"Have you a {thing}?" asked the {guest}. "No," said {name}, "but I have {gift}." '
    "The {guest} sat down {here} and stayed until morning. When {name} woke up, the {guest} was "
    "gone. But {there} lay a {thing}. {It} {name} took it home to {home}, {how}.",
    "{name} the {hero} had never been {place}. So one morning {she} left {home} and went, {how}. "
    "{She} took along a {thing} and {gift}. On the way {she} met a {guest} {who}. "
    '"What do you want {place}?" asked the {guest}. "To find out what {made_it} is good for," '
    "said {name}. The {guest} laughed and came along. When they were {place}, they ate {gift}, "
    "and the {guest} got the {thing}. {It} And {home} had to wait.",
)
"""What happens. A name in braces is drawn once a tale; what belongs to it comes with it."""

ANIMALS = [
    "bear", "fox", "owl", "mouse", "badger", "otter", "hare", "snail", "goose", "mole", "hedgehog",
    "toad",
]  # fmt: skip
TEMPERS = ["small", "old", "round", "quiet", "proud", "sleepy", "brave", "clumsy"]
HOMES = (
    "a lighthouse", "a teapot", "an empty clock", "a leaking boat", "a windmill", "a piano",
    "a library without a roof", "a letter box", "a house on one leg", "a bathtub",
)  # fmt: skip
MADE = {
    "plum cake": "a plum cake",
    "marmalade": "a jar of marmalade",
    "nettle soup": "a bowl of nettle soup",
    "moss tea": "a cup of moss tea",
    "blue cheese": "a blue cheese",
    "cloud bread": "a loaf of cloud bread",
    "star honey": "a spoon of star honey",
    "pear pudding": "a bowl of pear pudding",
}
PLAIN = {
    "hero": ANIMALS,
    "a_hero": [
        f"a{'n' * (temper[0] in 'aeiou')} {temper} {animal}"
        for temper in TEMPERS
        for animal in ANIMALS
    ],
    "Often": [
        "Every morning", "Every Tuesday", "When it rained,", "At full moon,", "Out of boredom",
    ],
    "thing": [
        "key", "left boot", "trumpet", "shadow", "lamp", "violin", "hat", "bell", "kite",
        "map of the sea", "compass", "ladder",
    ],
    "here": [
        "under the bed", "behind the stove", "in the butter", "between two books", "in the flour",
        "beside the mirror", "on the roof",
    ],
    "there": [
        "up the chimney", "in the sink", "below the carpet", "in the cold oven",
        "on the window sill", "in the other drawer", "on top of the cupboard",
    ],
    "guest": ["heron", "crow", "cat", "goat", "pike", "moth", "beetle", "donkey"],
    "who": [
        "with a cold", "who only whispered", "who had seen everything twice", "in a hurry",
        "with a suitcase", "who believed nothing", "with wet feet", "who could count to nine",
    ],
    "place": [
        "where the river turns", "behind the last bridge", "at the bottom of the well",
        "in the garden of the moon", "under the third stone", "at the railway station",
        "on the hill without a name", "in the mayor's pocket", "in the middle of the sea",
        "at the end of the rainbow", "where the wind sleeps", "in the dark part of the forest",
    ],
    "how": [
        "singing", "on tiptoe", "through the snow", "as fast as a cloud", "without a word",
        "by bicycle", "humming a waltz",
    ],
    "It": [
        "It was fast asleep.", "It had grown.", "It was singing.", "It was quite wet.",
        "It was not sorry at all.", "It had made a friend.", "It smelled of lemons.",
    ],
}  # fmt: skip
CHOICES: dict[str, list[dict[str, str]]] = {
    "name": [
        {"name": name, "she": she, "She": she.title(), "Her": her}
        for she, her, names in (
            ("she", "Her", "Ida Olga Wilma Nell Greta Mabel"),
            ("he", "His", "Otto Basil Hugo Emil Anton Felix"),
        )
        for name in names.split()
    ],
    "home": [{"a_home": home, "home": f"the {home.partition(' ')[2]}"} for home in HOMES],
    "made": [{"made": f"made {it}", "made_it": it, "gift": gift} for it, gift in MADE.items()],
    **{word: [{word: each} for each in options] for word, options in PLAIN.items()},
}
"""The options of each choice, with the words that they stand for in the plots."""
FROM = {word: choice for choice, options in CHOICES.items() for word in options[0]}
BRACES = re.compile(r"\{(\w+)\}")
VOCABULARY = 1024
"""Tokens of the tales' own tokenizer."""


class Tale(NamedTuple):
    """A tale, and the surprise of its choices in nats: −ln of the probability that it is told."""

    text: str
    surprise: float


def tell(random: Random) -> Tale:
    """Make one up: a plot, then each choice at its first mention, all equally likely.

    Example:
        >>> tale = tell(Random(0))
        >>> slips(tale.text), tale.surprise > 20
        (set(), True)
    """
    plot = random.choice(PLOTS)
    drawn = {choice: random.choice(CHOICES[choice]) for choice in choices_of(plot)}
    surprise = math.log(len(PLOTS)) + sum(math.log(len(CHOICES[choice])) for choice in drawn)
    return Tale(fill(plot, drawn), surprise)


def choices_of(plot: str) -> list[str]:
    """Which choices a plot makes, in the order in which they show.

    Example:
        >>> choices_of(PLOTS[0])[:3]
        ['a_hero', 'home', 'name']
    """
    return list(dict.fromkeys(FROM[word] for word in BRACES.findall(plot)))


def fill(plot: str, drawn: dict[str, dict[str, str]]) -> str:
    """The plot in words."""
    return BRACES.sub(lambda brace: drawn[FROM[brace[1]]][brace[1]], plot)


def slips(text: str) -> set[str] | None:
    """Which choices a text forgets: what it says of them is not all of one option.

    Returns:
        The empty set for a tale that could be told, and ``None`` for a text without a plot.

    Example:
        >>> text = tell(Random(0)).text
        >>> slips(text), slips(text + " The end.")
        (set(), None)
        >>> slips(text.replace(" beetle", " cat", 1))
        {'guest'}
    """
    for plot in PLOTS:
        if match := _pattern(plot).fullmatch(text):
            left, forgotten = dict(CHOICES), set()
            for word, said in zip(BRACES.findall(plot), match.groups(), strict=True):
                choice = FROM[word]
                if options := [option for option in left[choice] if option[word] == said]:
                    left[choice] = options
                else:
                    forgotten.add(choice)
            return forgotten
    return None


@cache
def _pattern(plot: str) -> re.Pattern[str]:
    """A plot, each choice free at each mention."""
    parts = BRACES.split(plot)  # text, word, text, word …
    parts[::2] = map(re.escape, parts[::2])
    for k, word in enumerate(parts[1::2]):
        options = dict.fromkeys(re.escape(option[word]) for option in CHOICES[FROM[word]])
        parts[2 * k + 1] = f"({'|'.join(options)})"
    return re.compile("".join(parts))


class TalesTask:
    """Tales to learn to write from, one after another; each is new.

    Example:
        >>> ids, targets = TalesTask(length=100).batch(2, torch.Generator().manual_seed(0))
        >>> ids.shape, bool((ids[:, 1:] == targets[:, :-1]).all())
        (torch.Size([2, 100]), True)
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.tokenizer = tokenizer()
        self.vocab_size = self.tokenizer.get_vocab_size()

    def batch(
        self, batch: int, generator: Generator
    ) -> tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]:
        """Token ids from the beginning of a tale on, and the same one token later.

        A line break stands before each tale: the model may begin from it alone.
        """
        random = Random(int(torch.randint(2**62, (), generator=generator)))
        rows = []
        for _ in range(batch):
            ids: list[int] = []
            while len(ids) <= self.length:
                ids += self.tokenizer.encode(f"\n{tell(random).text}").ids
            rows.append(ids[: self.length + 1])
        both = torch.tensor(rows)
        return both[:, :-1], both[:, 1:]


@cache
def tokenizer() -> Tokenizer:
    """A byte-pair encoding of two thousand tales."""
    random = Random(0)
    return bpe_tokenizer("\n".join(tell(random).text for _ in range(2000)), VOCABULARY)
