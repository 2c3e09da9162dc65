import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import attnbook

MODULES = ["attnbook"] + [
    module.name for module in pkgutil.walk_packages(attnbook.__path__, "attnbook.")
]


@pytest.mark.parametrize("name", MODULES)
def test_every_docstring_example_runs(name: str) -> None:
    torch.set_default_dtype(torch.float32)  # what a reader has
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted == inspect.getsource(module).count(">>> ")


@pytest.mark.parametrize("name", [n for n in attnbook.__all__ if callable(getattr(attnbook, n))])
def test_everything_public_has_an_example(name: str) -> None:
    assert ">>> " in inspect.getdoc(getattr(attnbook, name))
