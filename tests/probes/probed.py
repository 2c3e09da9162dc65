"""What the tests of the probes share."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnbook import LanguageModel, ModelConfig
from attnbook.probes import Table

BATCH, TOKENS = 3, 6


class Run(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> object:
        return self.function(*given)


def language_model(**options: object) -> LanguageModel:
    settings = {"vocab_size": 11, "d_model": 16, "n_layers": 2, "n_heads": 2} | options
    return LanguageModel(ModelConfig(**settings))


def batch() -> tuple[Tensor, Tensor]:
    """Ids and the next ones."""
    ids = torch.randint(11, (BATCH, TOKENS + 1))
    return ids[:, :-1], ids[:, 1:]


def loss_of(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).mT, targets)


def row(table: Table, name: str) -> SimpleNamespace:
    (found,) = table.where(name=name)
    return SimpleNamespace(**found)


def near(expected: float | Tensor) -> object:
    return pytest.approx(float(torch.as_tensor(expected).detach()), rel=1e-9, abs=1e-12)


def rms(x: Tensor) -> Tensor:
    return x.detach().double().square().mean().sqrt()
