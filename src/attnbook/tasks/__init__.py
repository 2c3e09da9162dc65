"""Small real problems, and the training loop on them."""

from attnbook.tasks.dates import DatesTask, Phrase, readings, write_date
from attnbook.tasks.reversal import reversal_batch
from attnbook.tasks.text import (
    TextTask,
    bpe_tokenizer,
    python_topics,
    read_text,
    word_tokenizer,
)
from attnbook.tasks.training import accuracy, train

__all__ = [
    "DatesTask",
    "Phrase",
    "TextTask",
    "accuracy",
    "bpe_tokenizer",
    "python_topics",
    "read_text",
    "readings",
    "reversal_batch",
    "train",
    "word_tokenizer",
    "write_date",
]
