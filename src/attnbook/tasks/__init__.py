"""Small real problems, and the training loop on them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        fingerprint,
        python_topics,
        read_text,
        read_tokenizer,
        word_tokenizer,
    )
    from attnbook.tasks.training import accuracy, train

__all__ = [
    "CollocationTask",
    "DatesTask",
    "Packed",
    "Phrase",
    "TextTask",
    "accuracy",
    "bpe_tokenizer",
    "document_mask",
    "fingerprint",
    "neighbours_in",
    "pack",
    "pointwise_information",
    "python_topics",
    "read_text",
    "read_tokenizer",
    "readings",
    "reversal_batch",
    "shared_contexts",
    "token_losses",
    "train",
    "word_tokenizer",
    "write_date",
]

_HOMES = ("collocation", "evaluation", "packing", "reversal", "training", "text", "dates")


def __getattr__(name: str) -> Any:
    """Import what is asked for: a task needs what it uses, and not what the others do.

    Raises:
        ModuleNotFoundError: if that is not installed; says what to do.
    """
    missing = []
    for home in _HOMES if name in __all__ else ():
        try:
            module = importlib.import_module(f"attnbook.tasks.{home}")
        except ModuleNotFoundError as error:
            missing.append(error)
        else:
            if hasattr(module, name):
                return getattr(module, name)
    if missing:
        raise ModuleNotFoundError(
            f'attnbook.tasks.{name} needs pip install -e ".[tasks]" in a checkout: '
            + ", ".join(map(str, missing)),
            name=missing[0].name,
        )
    raise AttributeError(f"module 'attnbook.tasks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
