import hashlib
import random
import re
import string

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbook.tasks import TextTask, bpe_tokenizer, python_topics, read_text, word_tokenizer
from attnbook.tasks.text import LONGEST, UNKNOWN, fingerprint, read_tokenizer

TEXT = "To be, or not to be: that is the question. " * 20


def numbered_words(n: int = 100, length: int = 8, **options: float) -> TextTask:
    """A text in which every word is another token, in the order w000, w001, …."""
    text = " ".join(f"w{i:03}" for i in range(n))
    return TextTask(text, word_tokenizer(text, n + 1), length, **options)


# Reading


def test_topics_are_joined_in_alphabetical_order(monkeypatch):
    monkeypatch.setattr("pydoc_data.topics.topics", {"b": "two", "c": "three", "a": "one"})
    assert python_topics() == "one\ntwo\nthree"


def test_lines_of_marks_alone_are_left_out(monkeypatch):
    page = "Title\n*****\n\n   \n+----+\n| is |\n  ):\n_\né\n日"
    monkeypatch.setattr("pydoc_data.topics.topics", {"page": page})
    assert python_topics() == "Title\n\n   \n| is |\n_\né\n日"


def test_fingerprint_is_the_start_of_sha256():
    assert fingerprint("naïve") == hashlib.sha256("naïve".encode()).hexdigest()[:12]


def test_file_is_read_as_utf8(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("naïve 日本\n".encode())
    assert read_text(file) == read_text(str(file)) == "naïve 日本\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a file with text, got .*text.txt, which is empty"),
        (b" \n\t", "expected a file with text, got .*text.txt, which is empty"),
        (
            b"abc\xffd",
            "expected UTF-8 text, got .*text.txt with byte 0xff at offset 3; if it is LA",
        ),
        (b"\xef\xbb\xbfabc\xffd", "got .*text.txt with byte 0xff at offset 6"),
        ("naïve".encode("latin1"), "if it is LATIN1 text, make it UTF-8: iconv -f LATIN1 -t UTF-8"),
        ("abc".encode("utf-16"), "if it is UTF-16 text, make it UTF-8: iconv -f UTF-16 -t UTF-8"),
        ("abc".encode("utf-16-le"), "byte 0x0 at offset 1; if it is UTF-16 text, make it UTF-8"),
        ("abc".encode("utf-16-be"), "byte 0x0 at offset 0; if it is UTF-16 text, make it UTF-8"),
        (b"\x7fELF\x02\x00", "expected UTF-8 text, got .*text.txt with byte 0x0 at offset 5"),
        (b"\xef\xbb\xbf \n", "expected a file with text, got .*text.txt, which is empty"),
    ],
)
def test_file_without_utf8_text_is_refused(tmp_path, content, message):
    file = tmp_path / "text.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_text(file)


def test_lines_end_in_one_way(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"a\r\nb\rc\n\x0cd\xe2\x80\xa8e\n")
    assert read_text(tmp_path / "text.txt") == "a\nb\nc\n\x0cd\u2028e\n"


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"readable text file, got .*missing\.txt: No such file"):
        read_text(tmp_path / "missing.txt")
    with pytest.raises(ValueError, match=f"readable text file, got {tmp_path}: Is a directory"):
        read_text(tmp_path)


# Words


@given(text=st.text(string.printable))
def test_words_and_marks_become_tokens_or_unknown(text):
    tokenizer = word_tokenizer(TEXT, 8)
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    known = tokenizer.get_vocab()
    encoding = tokenizer.encode(text)
    assert encoding.tokens == [word if word in known else UNKNOWN for word in words]
    assert [i == 0 for i in encoding.ids] == [word not in known for word in words]


def test_known_words_come_back():
    tokenizer = word_tokenizer(TEXT, 50)
    ids = tokenizer.encode("To be, or NOT to be.").ids
    assert tokenizer.decode(ids) == "to be , or not to be ."


def test_vocabulary_is_unknown_and_the_most_frequent_words():
    tokenizer = word_tokenizer("c b b a a a d d d d", 4)
    assert tokenizer.get_vocab() == {UNKNOWN: 0, "d": 1, "a": 2, "b": 3}


def test_the_word_unknown_in_brackets_is_the_token():
    encoding = word_tokenizer("a [unknown] b", 10).encode("[unknown] a [ x")
    assert encoding.tokens == [UNKNOWN, "a", "[", UNKNOWN]
    assert encoding.ids[0] == encoding.ids[3] == 0


def test_text_with_few_words_gives_a_small_vocabulary():
    assert word_tokenizer("a b", 100).get_vocab_size() == 3


# Bytes


@pytest.mark.parametrize("vocab_size", [256, 270])
@given(text=st.text())
def test_every_text_comes_back_from_bytes(vocab_size, text):
    tokenizer = bpe_tokenizer(TEXT, vocab_size)
    assert tokenizer.get_vocab_size() == vocab_size
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_merges_make_texts_shorter_until_nothing_is_left_to_merge():
    lengths = [len(bpe_tokenizer(TEXT, size).encode(TEXT).ids) for size in (256, 260, 280)]
    assert lengths[0] == len(TEXT.encode())
    assert lengths[2] < lengths[1] < lengths[0]
    assert bpe_tokenizer("ab ab", 1000).get_vocab_size() == 256 + 2  # "ab", " ab"


def test_run_without_spaces_is_cut():
    # With one piece of 100,000 letters, this takes four seconds; of 400,000, it takes 32.
    text = "".join(random.Random(0).choices("ACGT", k=3 * LONGEST + 5))
    tokenizer = bpe_tokenizer(text, 300)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("a long\nword " + "é" * LONGEST)
    assert [piece for piece, _ in pieces[:4]] == ["a", "Ġlong", "Ċ", "word"]
    assert [len(piece) for piece, _ in pieces[4:]] == [LONGEST, LONGEST, 1]
    assert tokenizer.decode(tokenizer.encode("é" * LONGEST).ids) == "é" * LONGEST


def test_tokenizer_of_a_file_neither_truncates_nor_pads(tmp_path):
    tokenizer = bpe_tokenizer(TEXT, 300)
    ids = tokenizer.encode(TEXT).ids
    tokenizer.enable_truncation(10)
    tokenizer.enable_padding(length=1000)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path / "tokenizer.json").encode(TEXT).ids == ids
    for name in ("missing.json", "broken.json"):
        (tmp_path / "broken.json").write_text("{")
        with pytest.raises(ValueError, match=f"expected a tokenizer in .*{name}, got: "):
            read_tokenizer(tmp_path / name)


@pytest.mark.parametrize(("build", "least"), [(word_tokenizer, 2), (bpe_tokenizer, 256)])
def test_vocabulary_too_small_or_text_empty_is_refused(build, least):
    with pytest.raises(ValueError, match=f"must be at least {least}, got {least - 1}"):
        build(TEXT, least - 1)
    with pytest.raises(ValueError, match="expected a text to build a vocabulary from"):
        build(" \n", least)


# Windows


def test_targets_are_the_windows_one_token_later():
    task = numbered_words()
    for ids, targets in (task.batch(50, Generator()), task.validation_windows(2)):
        assert ids.shape == targets.shape == (len(ids), 8)
        assert torch.equal(targets[:, :-1], ids[:, 1:])
        assert torch.equal(targets - ids, torch.ones_like(ids))  # consecutive words of the text


def test_validation_is_the_end_of_the_text_and_never_trained_on():
    task = numbered_words(held_out=0.2)
    assert torch.equal(torch.cat([task.training, task.validation]), torch.arange(1, 101))
    trained = set(torch.cat(task.batch(1000, Generator())).flatten().tolist())
    tested = set(torch.cat(task.validation_windows(50)).flatten().tolist())
    assert trained == set(range(1, 81))
    assert tested == set(range(81, 101))


def test_validation_windows_are_evenly_spaced_and_always_the_same():
    task = numbered_words(200, held_out=0.25)
    ids, targets = task.validation_windows(4)
    assert ids[:, 0].tolist() == [151, 164, 178, 192]
    assert targets[-1, -1] == 200
    assert torch.equal(ids, task.validation_windows(4)[0])


def test_same_seed_gives_the_same_windows():
    def ids(seed: int) -> torch.Tensor:
        return numbered_words().batch(4, Generator().manual_seed(seed))[0]

    assert torch.equal(ids(1), ids(1))
    assert not torch.equal(ids(1), ids(2))


def test_task_knows_its_vocabulary():
    assert numbered_words().vocab_size == 101


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: numbered_words(30, held_out=0.9),
            "of 8 tokens need a training text of at least 9, got 3",
        ),
        (
            lambda: numbered_words(80, held_out=0.1),
            "of 8 tokens need a validation text of at least 9, got 8",
        ),
        (
            lambda: numbered_words(held_out=0.0),
            "positive and held_out between 0 and 1, got 8 and 0.0",
        ),
        (
            lambda: numbered_words(held_out=1.5),
            "positive and held_out between 0 and 1, got 8 and 1.5",
        ),
        (lambda: numbered_words(length=0), r"length must be positive .* got 0 and 0.1"),
        (lambda: numbered_words().validation_windows(0), "windows must be positive, got 0"),
        (lambda: numbered_words().batch(0, Generator()), "batch must be positive, got 0"),
        (lambda: numbered_words().batch(-1, Generator()), "batch must be positive, got -1"),
    ],
)
def test_windows_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_shortest_text_has_one_window_in_each_part():
    task = numbered_words(18, held_out=0.5)
    assert task.batch(1, Generator())[0].tolist() == [[*range(1, 9)]]
    assert task.validation_windows(1)[1].tolist() == [[*range(11, 19)]]


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfone two")
    assert read_text(path) == "one two"
