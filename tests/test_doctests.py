import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import attnbook
import book
from attnbook import convert

PUBLIC = {name: one for name in attnbook.__all__ if callable(one := getattr(attnbook, name))}
PUBLIC |= {name: one for name, one in vars(convert).items() if name.startswith(("from_", "to_"))}
MODULES = [
    name
    for package in (attnbook, book)
    for name in (
        package.__name__,
        *(each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")),
    )
]
SLOW = ("attnbook.doctor", "book.evidence.cells", "attnbook.tasks.dates", "book.press.build")
EXAMPLES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW), id=name) for name in MODULES
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_docstring_example_runs(name):
    torch.set_default_dtype(torch.float32)  # what a reader has
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    ran = result.attempted - getattr(result, "skipped", 0)  # Python counts them since 3.13
    source = inspect.getsource(module)
    assert ran == source.count(">>> ") - source.count("# doctest: +SKIP")


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_an_example_and_a_source(name):
    text = inspect.getdoc(PUBLIC[name])
    assert ">>> " in text
    assert "Source: " in text or name == "Table"
