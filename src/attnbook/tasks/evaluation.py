"""The loss of a text that is longer than the model can read at once."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from attnbook.generation import at_least_float32
from attnbook.models import LanguageModel
from attnbook.tasks.packing import as_ids


def token_losses(
    model: LanguageModel,
    ids: Integer[Tensor, "tokens"] | Integer[np.ndarray, "tokens"],
    *,
    length: int | None = None,
    stride: int | None = None,
) -> Float[Tensor, "tokens-1"]:
    r"""What each token but the first costs, in nats, read in windows that overlap.

    .. math:: -\log p(t_i \mid t_{s}, \dots, t_{i-1})

    Windows of ``length`` tokens begin at 0, ``stride``, 2 ``stride``, …, and of each only those
    tokens count that no earlier window has predicted. So each but the first ones is predicted from
    at least ``length - stride + 1`` tokens. At a stride of ``length`` each token is read once, and
    the second of each window is predicted from one alone; at a stride of 1 all from ``length``.

    The mean's exponential is the perplexity per token. It is the average over all tokens, not over
    windows of different size, and depends on the tokenizer; the sum, over the text's bytes and
    divided by ln 2, does not: bits per byte.

    Args:
        model: in whatever mode it is; call ``model.eval()`` before.
        ids: a text, of any integer type, such as an ``np.memmap``.
        length: tokens of a window; the model's ``max_tokens`` if not given.
        stride: tokens between two beginnings; half of the length if not given.

    Raises:
        ValueError: if there are fewer than two tokens, or length or stride can't be.
        TypeError: if ``ids`` are not whole numbers in one dimension.

    Example:
        >>> from attnbook import ModelConfig
        >>> model = LanguageModel(ModelConfig(50, max_tokens=8)).eval()
        >>> losses = token_losses(model, torch.randint(50, (30,)), stride=2)
        >>> losses.shape, bool(losses.mean().exp() > 1)  # the perplexity
        (torch.Size([29]), True)
    """
    ids = as_ids(ids).to(next(model.parameters()).device)
    length = model.config.max_tokens if length is None else length
    if len(ids) < 2:
        raise ValueError(f"a text has at least two tokens, got {len(ids)}")
    if length is None:
        raise ValueError("a model without max_tokens needs a length")
    stride = max(1, length // 2) if stride is None else stride
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be at least 1 and at most the length {length}, got {stride}")
    losses = []
    predicted = 1  # tokens, the first among them
    with torch.no_grad():
        for start in range(0, len(ids) - 1, stride):
            end = min(start + length, len(ids) - 1)
            if end < predicted:
                continue
            logits = at_least_float32(model(ids[None, start:end]))[0, predicted - 1 - start :]
            targets = ids[predicted : end + 1]
            losses.append(F.cross_entropy(logits, targets, reduction="none"))
            predicted = end + 1
    return torch.cat(losses)
