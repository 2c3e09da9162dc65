"""Text to model: what Python itself ships, or any file; by words or by byte-pair encoding."""

import codecs
import hashlib
import re
from pathlib import Path

import torch
from jaxtyping import Int64
from tokenizers import Regex
from tokenizers import Tokenizer as Tokenizer  # the commands take it from here
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from torch import Generator, Tensor

UNKNOWN = "[unknown]"
LONGEST = 1000
"""The longest piece, in bytes, that byte pairs are merged in. The time grows with its square, and a
sequence of DNA or a page of Chinese without a mark would be one piece."""


def python_topics() -> str:
    """The help texts of the Python that runs this (``pydoc_data.topics``), in alphabetical order.

    Lines without a letter or digit are left out. Most are the rules of tables and the underlines of
    headings, whose marks would be a seventh of all tokens, and most of these the mark before again.

    The texts are installed with every Python and differ from version to version, and with them
    every number measured on them: see :func:`fingerprint`.

    Example:
        >>> len(python_topics()) > 300_000
        True
    """
    from pydoc_data.topics import topics

    lines = "\n".join(topics[name] for name in sorted(topics)).splitlines()
    return "\n".join(line for line in lines if re.search(r"\w|^\s*$", line))


def read_text(path: str | Path) -> str:
    """The contents of a UTF-8 text file, without a byte order mark.

    Raises:
        ValueError: if the file can't be read, is not UTF-8, holds a zero byte as only binary files
            do, or nothing but white space; the message names the file, and what would make it
            UTF-8.
    """
    try:
        content = Path(path).read_bytes()
        text = content.decode().removeprefix("\N{BYTE ORDER MARK}")
    except OSError as error:
        raise ValueError(f"expected a readable text file, got {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        offset = error.start
    else:
        offset = content.find(0)
    if offset >= 0:
        is_utf16 = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or 0 in content[:2]
        encoding = "UTF-16" if is_utf16 else "LATIN1"
        raise ValueError(
            f"expected UTF-8 text, got {path} with byte {content[offset]:#x} at offset {offset}; "
            f"if it is {encoding} text, make it UTF-8: iconv -f {encoding} -t UTF-8"
        )
    if not text.strip():
        raise ValueError(f"expected a file with text, got {path}, which is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def fingerprint(text: str) -> str:
    """The first 12 hexadecimal digits of the text's SHA-256.

    Example:
        >>> fingerprint("attention")
        'e0787d272a43'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def word_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """A tokenizer with the most frequent lower-case words and punctuation marks of ``text``.

    Words are runs of letters, digits and underscores; every other mark but white space is a token
    of its own. What is not among the ``vocab_size - 1`` most frequent becomes ``[unknown]``, token
    0; so does ``[unknown]`` itself, if a text has it.

    Raises:
        ValueError: if ``text`` has no tokens or ``vocab_size`` is below 2.

    Example:
        >>> tokenizer = word_tokenizer("the cat, the dog, the end", 4)
        >>> tokenizer.encode("the fish, the end").tokens
        ['the', '[unknown]', ',', 'the', '[unknown]']
    """
    _check(text, vocab_size, 2)
    tokenizer = Tokenizer(WordLevel({}, unk_token=UNKNOWN))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Split(Regex(r"\w+|[^\w\s]"), behavior="removed", invert=True)
    trainer = WordLevelTrainer(vocab_size=vocab_size, special_tokens=[UNKNOWN], show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def bpe_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """A byte-level byte-pair encoding trained on ``text``.

    It starts from the 256 bytes, so there is no text it can't write, and merges the most frequent
    neighbours until there are ``vocab_size`` tokens or nothing is left to merge. It merges within
    words, and within :data:`LONGEST` bytes of what has no spaces.

    Raises:
        ValueError: if ``text`` is empty or ``vocab_size`` is below 256.

    Source: Sennrich et al. 2016; over bytes: Radford et al. 2019, section 2.2.

    Example:
        >>> tokenizer = bpe_tokenizer("low lower lowest " * 20, 260)
        >>> tokenizer.decode(tokenizer.encode("lowest owl").ids)
        'lowest owl'
    """
    _check(text, vocab_size, 256)
    tokenizer = Tokenizer(BPE())
    pieces = Split(Regex(f".{{1,{LONGEST}}}"), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False), pieces])
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a ``tokenizer.json``, for texts of any length.

    Raises:
        ValueError: if there is none; the message names the file.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ValueError(f"expected a tokenizer in {path}, got: {error}") from None
    tokenizer.no_truncation()  # which some files ask for, as padding
    tokenizer.no_padding()
    return tokenizer


class TextTask:
    """A text as token ids, cut into a part to learn from and a later part to be tested on.

    Args:
        text: what to model.
        tokenizer: from :func:`word_tokenizer` or :func:`bpe_tokenizer`.
        length: tokens in a window.
        held_out: share of the tokens, at the end of the text, that is never trained on.

    Raises:
        ValueError: if ``length`` or ``held_out`` can't be, or a part has not more than ``length``
            tokens.

    Example:
        >>> text = "to be or not to be " * 50
        >>> task = TextTask(text, word_tokenizer(text, 5), length=8)
        >>> ids, targets = task.batch(2, torch.Generator().manual_seed(0))
        >>> ids.shape, bool((ids[:, 1:] == targets[:, :-1]).all())
        (torch.Size([2, 8]), True)
    """

    def __init__(
        self, text: str, tokenizer: Tokenizer, length: int, *, held_out: float = 0.1
    ) -> None:
        if length < 1 or not 0 < held_out < 1:
            raise ValueError(
                f"length must be positive and held_out between 0 and 1, got {length} and {held_out}"
            )
        ids = torch.tensor(tokenizer.encode(text).ids)
        n_training = round(len(ids) * (1 - held_out))
        self.training, self.validation = ids[:n_training], ids[n_training:]
        self.length = length
        self.vocab_size = tokenizer.get_vocab_size()
        for name, part in (("training", self.training), ("validation", self.validation)):
            if len(part) <= length:
                raise ValueError(
                    f"windows of {length} tokens need a {name} text of at least {length + 1}, "
                    f"got {len(part)}"
                )

    def batch(
        self, batch: int, generator: Generator
    ) -> tuple[Int64[Tensor, "batch tokens"], Int64[Tensor, "batch tokens"]]:
        """Windows from random places of the training part, and the same windows one token later.

        Raises:
            ValueError: if ``batch`` is not positive.
        """
        if batch < 1:
            raise ValueError(f"batch must be positive, got {batch}")
        starts = torch.randint(len(self.training) - self.length, (batch, 1), generator=generator)
        window = self.training[starts + torch.arange(self.length + 1)]
        return window[:, :-1], window[:, 1:]

    def validation_windows(
        self, windows: int
    ) -> tuple[Int64[Tensor, "windows tokens"], Int64[Tensor, "windows tokens"]]:
        """Evenly spaced windows of the validation part: the same at every call.

        Raises:
            ValueError: if ``windows`` is not positive.
        """
        if windows < 1:
            raise ValueError(f"windows must be positive, got {windows}")
        last = len(self.validation) - self.length - 1
        starts = torch.linspace(0, last, windows, dtype=torch.float64).long()
        window = self.validation[starts[:, None] + torch.arange(self.length + 1)]
        return window[:, :-1], window[:, 1:]


def _check(text: str, vocab_size: int, at_least: int) -> None:
    if not text.strip():
        raise ValueError("expected a text to build a vocabulary from, got an empty one")
    if vocab_size < at_least:
        raise ValueError(f"vocab_size must be at least {at_least}, got {vocab_size}")
