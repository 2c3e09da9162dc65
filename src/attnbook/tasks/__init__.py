"""Small real problems, and the training loop on them."""

try:
    from attnbook.tasks.collocation import (
        CollocationTask,
        neighbours_in,
        pointwise_information,
        shared_contexts,
    )
    from attnbook.tasks.dates import DatesTask, Phrase, readings, write_date
    from attnbook.tasks.evaluation import token_losses
    from attnbook.tasks.packing import Packed, document_mask, pack
    from attnbook.tasks.reversal import reversal_batch
    from attnbook.tasks.text import (
        TextTask,
        bpe_tokenizer,
        python_topics,
        read_text,
        word_tokenizer,
    )
    from attnbook.tasks.training import accuracy, train
except ModuleNotFoundError as error:
    message = f'{error}: attnbook.tasks needs pip install "attnbook[tasks]"'
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = [
    "CollocationTask",
    "DatesTask",
    "Packed",
    "Phrase",
    "TextTask",
    "accuracy",
    "bpe_tokenizer",
    "document_mask",
    "neighbours_in",
    "pack",
    "pointwise_information",
    "python_topics",
    "read_text",
    "readings",
    "reversal_batch",
    "shared_contexts",
    "token_losses",
    "train",
    "word_tokenizer",
    "write_date",
]
