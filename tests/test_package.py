"""What is imported when, pinned versions, and whole graphs in a process without shape checks."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import attnbook

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "tests/requirements.lock")
LIBRARY = ROOT / "src" / "attnbook"
PINNED = ("requirements.txt", "tests/requirements.txt", *LOCKS)


def alone(code: str) -> str:
    """What it prints in a process of its own, without the checks that the tests run under."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_everything_public_is_there_listed_and_documented():
    assert attnbook.__all__ == sorted(attnbook.__all__, key=lambda n: (not n.isupper(), n))
    assert set(attnbook.__all__) <= set(dir(attnbook))
    for name in attnbook.__all__:
        assert getattr(attnbook, name).__doc__
    with pytest.raises(AttributeError, match="'attnbook' has no attribute 'unknown'"):
        attnbook.unknown  # noqa: B018


LAZY = """
import sys
import attnbook
assert "LanguageModel" in dir(attnbook) and "torch" not in sys.modules
from attnbook import LanguageModel
assert LanguageModel is sys.modules["attnbook.models"].LanguageModel
assert "attnbook.convert" not in sys.modules
print(*{name.split('.')[0] for name in sys.modules})
"""


@pytest.mark.slow
def test_import_brings_what_is_asked_for_and_nothing_of_the_books():
    modules = set(alone(LAZY).split())
    assert {"torch", "numpy", "jaxtyping"} <= modules
    assert not modules & {
        *("IPython", "jupyter_core", "ipykernel", "nbformat", "matplotlib"),
        *("tokenizers", "transformers", "keras", "beartype", "sphinx"),
    }


WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "safetensors"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())
import numpy as np
from attnbook import backprop

block = backprop.Block(8, 2, 16)
print(block.forward(np.ones((1, 3, 8)), causal=True)[0].shape)
"""


def test_the_library_is_small_and_knows_nothing_of_the_book():
    files = [
        path for path in LIBRARY.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert {path.suffix for path in files} == {".py", ".typed"}
    code = [path.read_text("utf-8") for path in files]
    not_installed = r"(?m)^ *(?:from|import) (?:book|studies|benchmarks|distributed)\b.*"
    assert [line for text in code for line in re.findall(not_installed, text)] == []


def test_backprop_needs_no_torch():
    assert alone(WITHOUT_TORCH) == "(1, 3, 8)\n"


def pins_of(file: str) -> list[Requirement]:
    """The packages of a fixed version that a file of requirements names."""
    lines = re.findall(r"(?m)^[^#\s]+==.*?(?=\s*\\?$)", (ROOT / file).read_text())
    return list(map(Requirement, lines))


def test_locks_hold_all_that_is_asked_for_with_hashes_and_no_address():
    locked = {}
    for lock in LOCKS:
        text = (ROOT / lock).read_text()
        assert "://" not in text
        for entry in re.split(r"(?m)^(?=[a-z])", text)[1:]:
            assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE), entry
        locked |= {canonicalize_name(pin.name): pin.specifier for pin in pins_of(lock)}
    asked = pins_of("requirements.txt") + pins_of("tests/requirements.txt")
    builds = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for pin in [*asked, *map(Requirement, builds)]:
        assert locked.get(canonicalize_name(pin.name)) == pin.specifier or pin.name == "torch", pin
    assert not [name for name in locked if re.match(r"torch$|triton|cuda-|nvidia-", name)]


@pytest.mark.parametrize("file", PINNED)
def test_pinned_versions_run_on_the_oldest_python(file):
    # Debian 12 has 3.11.2; the pins are written by whatever Python the author has.
    oldest = f"{metadata('attnbook')['Requires-Python'].removeprefix('>=')}.0"
    installed = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    pins = [pin for pin in pins_of(file) if canonicalize_name(pin.name) in installed]
    assert len(pins) > 5  # those of other platforms are not installed
    for pin in pins:
        distribution = installed[canonicalize_name(pin.name)]
        assert pin.specifier.contains(distribution.version), f"{pin}, not {distribution.version}"
        needs = distribution.metadata.get("Requires-Python", "")
        assert SpecifierSet(needs).contains(oldest), f"{pin} needs Python {needs}, not {oldest}"


MODELS = """
import torch
from attnbook import *

same = torch.testing.assert_close
ids = torch.randint(1, 10, (3, 6))
more = torch.randint(1, 10, (5, 6))
more[0, 4:] = 0
pair = Transformer(TransformerConfig(10, d_model=16, n_layers=1, padding_id=0)).eval()

def stack(position):
    return LanguageModel(ModelConfig(10, d_model=16, n_layers=1, position=position)).eval()

class Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, first, second):
        return self.model.loss(first, second)
"""

COMPILED = """
whole = {"backend": "aot_eager", "fullgraph": True}
attend = torch.compile(
    lambda q, k: scaled_dot_product_attention(q, k, k, causal=True), dynamic=True, **whole
)
for queries in (1, 3, 5):
    q, k = torch.randn(1, 2, queries, 8), torch.randn(1, 2, 5, 8)
    same(attend(q, k), scaled_dot_product_attention(q, k, k, causal=True))

model = stack("rotary")
cache = model.new_cache()
step = torch.compile(lambda part: model(part, cache=cache), **whole)
with torch.no_grad():  # more steps than dynamo would compile one by one
    many = torch.randint(10, (1, 12))
    steps = torch.cat([step(part) for part in many.split(1, dim=1)], dim=1)
    same(steps, model(many))

model = stack("alibi")
compiled = torch.compile(model, dynamic=True, **whole)
for one in (ids, more[:, :4]):
    same(compiled(one), model(one))
same(torch.compile(model.loss, **whole)(ids, ids), model.loss(ids, ids))
same(torch.compile(pair.loss, **whole)(ids, ids), pair.loss(ids, ids))
same(compiled(ids, targets=ids), model.loss(ids, ids))

lengths = torch.tensor([2, 5])
assert torch.compile(padding_mask, **whole)(lengths, 6).equal(padding_mask(lengths, 6))
"""

EXPORTED = """
batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=2, max=200)

def exported(model, inputs, *shapes):
    return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False).module()

for position in ("sinusoidal", "learned", "rotary", "alibi", "none"):
    model = stack(position)
    same(exported(model, (ids,), {0: batch, 1: tokens})(more[:, :4]), model(more[:, :4]))
same(exported(pair, (ids, ids), {0: batch}, {0: batch})(more, more), pair(more, more))
for model in (stack("rotary"), pair):
    loss = exported(Loss(model), (ids, ids), {0: batch}, {0: batch})
    same(loss(more, more), model.loss(more, more))
"""

TRACED = """
for model in (stack("rotary"), pair):
    traced = torch.jit.trace(Loss(model), (ids, ids))
    same(traced(more, more), model.loss(more, more))
attention, x = MultiHeadAttention(8, 2).eval(), torch.randn(2, 5, 8)
same(torch.jit.trace(attention, x)(2 * x), attention(2 * x))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [COMPILED, EXPORTED, TRACED], ids=["compile", "export", "trace"])
def test_whole_graphs_compute_the_same(code):
    # The tests' shape checks can't be compiled.
    assert alone(MODELS + code) == ""
