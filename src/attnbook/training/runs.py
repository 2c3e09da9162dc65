"""What ``python -m attnbook.train`` has left in a folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from attnbook.models import LanguageModel
from attnbook.training.checkpoints import load_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def load_run(folder: str | Path, *, last: bool = False) -> "tuple[LanguageModel, Tokenizer]":
    """A run's model with the lowest held-out loss, or its last one, and its tokenizer.

    Raises:
        ValueError: if there is no run in the folder, or no model yet.

    Example:
        >>> model, tokenizer = load_run("RUN")  # doctest: +SKIP
        >>> ids = torch.tensor([tokenizer.encode("The").ids])  # doctest: +SKIP
        >>> tokenizer.decode(model.generate(ids, 20)[0].tolist())  # doctest: +SKIP
    """
    from attnbook.train import BEST, build, read_run, settings_of  # which import this package

    folder = Path(folder)
    values, tokenizer = read_run(folder)
    if last:
        model = build(values, tokenizer)
        load_model(folder, model)
        return model, tokenizer
    if not (folder / BEST).exists():
        every = settings_of(values).every
        raise ValueError(f"{folder} has no model yet: train keeps the first after {every} steps")
    return LanguageModel.load(folder / BEST), tokenizer
