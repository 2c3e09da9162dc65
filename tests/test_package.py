import subprocess
import sys
from importlib.metadata import distributions, metadata
from pathlib import Path
from statistics import median

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import attnbook

ROOT = Path(__file__).parents[1]
PINNED = ("requirements.txt", "constraints.txt", "tests/requirements.txt")


@pytest.mark.slow
def test_import_brings_nothing_of_the_books() -> None:
    code = "import sys, attnbook; print(*{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(run.stdout.split())
    assert {"attnbook", "torch", "numpy", "jaxtyping", "safetensors"} <= modules
    assert not modules & {
        *("IPython", "jupyter_core", "ipykernel", "nbformat", "matplotlib"),
        *("tokenizers", "transformers", "keras", "beartype", "sphinx"),
    }


IMPORT = """
from time import process_time

start = process_time()
import torch
middle = process_time()
import attnbook
print((process_time() - start) / (middle - start))
"""


@pytest.mark.slow
def test_import_takes_little_longer_than_torchs() -> None:
    command = [sys.executable, "-c", IMPORT]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    assert 1 < median(float(run.stdout) for run in runs) <= 1.15


def test_everything_public_is_there_and_documented() -> None:
    for name in attnbook.__all__:
        assert getattr(attnbook, name).__doc__


@pytest.mark.parametrize("file", PINNED)
def test_pinned_versions_run_on_the_oldest_python(file: str) -> None:
    # Debian 12 has 3.11.2; the pins are written by whatever Python the author has.
    oldest = f"{metadata('attnbook')['Requires-Python'].removeprefix('>=')}.0"
    installed = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    lines = [line for line in (ROOT / file).read_text().splitlines() if "==" in line]
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pins = [pin for pin in pins if canonicalize_name(pin.name) in installed]  # not other platforms'
    assert len(pins) > 5
    for pin in pins:
        distribution = installed[canonicalize_name(pin.name)]
        assert pin.specifier.contains(distribution.version), f"{pin}, not {distribution.version}"
        needs = distribution.metadata.get("Requires-Python", "")
        assert SpecifierSet(needs).contains(oldest), f"{pin} needs Python {needs}, not {oldest}"


def alone(code: str) -> str:
    """What it prints in a process of its own, without the checks that the tests run under."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


COMPILED = """
import torch
from attnbook import *

whole = {"backend": "aot_eager", "fullgraph": True}
attend = torch.compile(
    lambda q, k: scaled_dot_product_attention(q, k, k, causal=True), dynamic=True, **whole
)
for queries in (1, 3, 5):
    q, k = torch.randn(1, 2, queries, 8), torch.randn(1, 2, 5, 8)
    expected = scaled_dot_product_attention(q, k, k, causal=True)
    torch.testing.assert_close(attend(q, k), expected)

model = LanguageModel(ModelConfig(10, d_model=16, position="rotary")).eval()
ids, cache = torch.randint(10, (1, 12)), model.new_cache()
step = torch.compile(lambda part: model(part, cache=cache), **whole)
with torch.no_grad():  # more steps than dynamo would compile one by one
    steps = torch.cat([step(part) for part in ids.split(1, dim=1)], dim=1)
    torch.testing.assert_close(steps, model(ids))

model = LanguageModel(ModelConfig(10, d_model=16, n_layers=1, position="alibi")).eval()
of_any_length = torch.compile(model, dynamic=True, **whole)
for tokens in (6, 9):
    ids = torch.randint(10, (1, tokens))
    torch.testing.assert_close(of_any_length(ids), model(ids))
tokens = {"ids": {1: torch.export.Dim("tokens", min=2, max=200)}}
exported = torch.export.export(model, (ids[:, :6],), dynamic_shapes=tokens).module()
torch.testing.assert_close(exported(ids), model(ids))

torch.testing.assert_close(torch.compile(model.loss, **whole)(ids, ids), model.loss(ids, ids))
loss = model.loss(ids, ids)
torch.testing.assert_close(torch.compile(pack(model).loss, **whole)(ids, ids), loss)

lengths = torch.tensor([2, 5])
assert torch.compile(padding_mask, **whole)(lengths, 6).equal(padding_mask(lengths, 6))

class Cross(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(16, 4)

    def forward(self, x, memory):
        return self.attention(x, memory)

batch = {0: torch.export.Dim("batch")}
x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
sizes = {"x": batch, "memory": batch}
exported = torch.export.export(Cross(), (x, memory), dynamic_shapes=sizes).module()
print(exported(x[:1].repeat(3, 1, 1), memory[:1].repeat(3, 1, 1)).shape)
"""


@pytest.mark.slow
def test_whole_graphs_are_compiled_and_exported() -> None:
    # The tests' shape checks can't be compiled.
    assert alone(COMPILED) == "torch.Size([3, 5, 16])\n"


TAMPERED = """
import torch
from torch import nn
from attnbook import KeyValueCache, MultiHeadAttention

class Shortened(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear, self.weight = linear, linear.weight

    def forward(self, x):
        return self.linear(x)[:, :3]

def tell(attention, **options):
    for weights in (False, True):
        try:
            attention(x, return_weights=weights, **options)
            print("nothing")
        except Exception as error:
            print(f"{type(error).__name__}: {error}")

x = torch.randn(2, 5, 8)
for part in ("key", "value"):
    attention = MultiHeadAttention(8, 2)
    setattr(attention, part, Shortened(getattr(attention, part)))
    tell(attention)

attention, cache, held = MultiHeadAttention(8, 2), KeyValueCache(), torch.randn(2, 2, 3, 4)
cache.key, cache.value = held, held[:, :, :2]  # keep() would refuse that
tell(attention, cache=cache)
assert cache.key is held
attention.dropout = 1.0
tell(attention)

attention.eval()
torch.testing.assert_close(torch.jit.trace(attention, x)(x), attention(x))
"""


@pytest.mark.slow
def test_what_others_put_into_an_attention_is_checked() -> None:
    # Here, shape checks would speak first. Of different numbers of keys and values torch's own
    # kernel says nothing on a CPU.
    messages = [
        "there are 3 keys but 5 values",
        "there are 5 keys but 3 values",
        "there are 8 keys but 7 values",
        "dropout must be in [0, 1), got 1.0",
    ]
    assert alone(TAMPERED).splitlines() == [
        f"ValueError: {one}" for one in messages for _ in range(2)
    ]
