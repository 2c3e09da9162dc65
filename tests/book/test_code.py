"""What code reaches, and when it is the same code."""

from pathlib import Path

import pytest
from built import ROOT

from attnbook.blocks import Residual
from book.evidence.code import Code, code_hash
from book.evidence.listings import listing, show_source

FILES = {
    "src/attnbook/__init__.py": "from attnbook.model import Model\nfrom attnbook.numpy import f\n",
    "src/attnbook/model.py": "from attnbook.masks import causal\n\nclass Model: pass\n",
    "src/attnbook/masks.py": "import torch\n\ndef causal(): pass\n",
    "src/attnbook/numpy/__init__.py": "from attnbook.numpy.layers import f\n\nversion = 1\n",
    "src/attnbook/numpy/layers.py": "def f(): pass\n",
    "studies/__init__.py": "",
    "studies/heads.py": "def run(seed):\n    from attnbook import Model\n",
}


@pytest.fixture
def code(tmp_path: Path) -> Code:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Code(tmp_path)


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("import torch", set()),
        ("from attnbook.masks import causal", {"attnbook.masks"}),
        ("from attnbook import Model", {"attnbook.model", "attnbook.masks"}),
        ("from attnbook.numpy import f", {"attnbook.numpy.layers"}),
        ("from attnbook import f", {"attnbook.numpy.layers"}),
        ("from attnbook.numpy import version", {"attnbook.numpy", "attnbook.numpy.layers"}),
        ("from studies import heads", {"studies.heads", "attnbook.model", "attnbook.masks"}),
        ("import studies.heads as h", {"studies.heads", "attnbook.model", "attnbook.masks"}),
        (
            "import attnbook",
            {"attnbook", "attnbook.model", "attnbook.masks", "attnbook.numpy.layers"},
        ),
    ],
)
def test_imports_lead_to_the_modules_behind_the_names(source, reached, code):
    assert code.hashes(source).keys() == reached


SAME = 'def f(x):\n    """Twice."""\n    return 2 * x\n'


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("def f(x):  # twice\n    return (2\n        * x)\n", True),
        ("def f(x):\n    return 2. * x\n", False),
        ("def f(y):\n    return 2 * y\n", False),
        ("def f(x):\n    'a'; 'b'\n    return 2 * x\n", True),
        ("def f(x=None):\n    return 2 * x\n", False),
        ("async def f(x):\n    return 2 * x\n", False),
    ],
)
def test_only_what_code_does_counts(other, same):
    assert (code_hash(other) == code_hash(SAME)) == same


def test_listing_is_the_source_that_a_page_shows(capsys):
    show_source(Residual.forward)
    shown = capsys.readouterr().out.removeprefix("```python\n").removesuffix("\n```\n")
    assert listing("attnbook.blocks:Residual.forward", ROOT) is not None
    assert "\n".join(line.strip() for line in shown.splitlines()) == "\n".join(
        line.strip() for line in listing("attnbook.blocks:Residual.forward", ROOT).splitlines()
    )


@pytest.mark.parametrize("name", ["attnbook.blocks:Gone.forward", "attnbook.gone:f", "json:loads"])
def test_listing_of_what_is_not_there_is_none(name):
    assert listing(name, ROOT) is None
