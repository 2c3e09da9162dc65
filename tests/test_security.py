"""What a stranger's file can't do: run code, reach out of its folder, take all memory."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from attnbook import LanguageModel, ModelConfig, convert, files, train
from attnbook.tasks import bpe_tokenizer
from attnbook.tasks.text import read_tokenizer
from attnbook.training import TrainingConfig, load_model
from attnbook.training.checkpoints import Checkpoint
from attnbook.training.history import History

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "studies", "benchmarks", "chapters")
LAYERS = {"hidden_size": 16, "num_attention_heads": 2, "model_type": "llama"}


# No code


MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "__import__", "os.system", "os.popen", "torch.load", "np.load"}
CALLS |= {"numpy.load", "torch.jit.load", "yaml.load", "yaml.full_load", "yaml.unsafe_load"}
CALLS |= {"pd.read_pickle", "shutil.unpack_archive"}
OPTIONS = {"allow_pickle", "trust_remote_code", "shell"}


def sources() -> Iterator[tuple[str, str]]:
    """Python that the repository has: files, and the cells of chapters."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "specimens" in path.parts:  # bugs are put into these, and the code is run
                continue
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).glob("*.ipynb")):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
            yield str(path.relative_to(ROOT)), "\n".join(code)


def dangers(source: str) -> list[str]:
    """What in a source may run code that came with data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            unsafe = {each.arg for each in node.keywords} & OPTIONS
            found += [name] * (name in CALLS or name.endswith((".extractall", ".read_pickle")))
            found += sorted(map(str, unsafe))
    return found


def test_nothing_loads_a_pickle_or_runs_a_text():
    found = {name: dangers(source) for name, source in sources()}
    assert len(found) > 100
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from pickle import load", "import joblib.numpy_pickle"),
        *("torch.load(path)", "eval(text)", "yaml.load(text, Loader)", "archive.extractall()"),
        *("np.load(path)", "load(path, allow_pickle=True)", "run(words, shell=True)"),
    ],
)
def test_what_loads_a_pickle_or_runs_a_text_would_be_found(source):
    assert dangers(source)


# No network


WATCH = """
import os, sys
LOCAL = (None, "", "localhost", "::1", b"localhost")
def watch(event, values):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = values[1]
        host = address[0] if isinstance(address, tuple) else None  # a path, of a socket in a folder
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = values[0]
    else:
        return
    if host not in LOCAL and not str(host).startswith("127."):
        with open(os.environ["ASKED"], "a") as file:
            print(event, host, file=file)
        raise OSError(f"no network in this test: {event} {host}")
sys.addaudithook(watch)
"""
USES = """
import importlib, pkgutil, sys
import attnbook
for module in pkgutil.walk_packages(attnbook.__path__, "attnbook."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from attnbook import convert, generate, train
from attnbook.doctor.__main__ import main
folder = sys.argv[1]
open(f"{folder}/text", "w").write("to be or not to be, that is the question " * 60)
sizes = ["--vocab-size=280", "--length=16", "--d-model=16", "--n-heads=2", "--n-layers=1"]
train.main(["--text", f"{folder}/text", "--out", f"{folder}/run", "--steps=2", *sizes])
generate.main([f"{folder}/run", "to be", "--tokens=3"])
convert.from_pretrained(folder)
convert.tokenizer(folder).encode("to be")
open(f"{folder}/mine.py", "w").write("from torch import nn\\nmodule = nn.Linear(8, 8)")
main([f"{folder}/mine.py:module", "--vectors", "2,4,8"])
for name in ("openai-community/gpt2", "https://huggingface.co/gpt2"):
    try:
        convert.from_pretrained(name)
    except FileNotFoundError:
        print("refused")
"""


def without_network(folder: Path, code: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run code where no socket leads elsewhere; what was asked for."""
    (folder / "sitecustomize.py").write_text(WATCH)
    asked = folder / "asked"
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=os.environ | {"PYTHONPATH": path, "ASKED": str(asked)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran, asked.read_text() if asked.exists() else ""


@pytest.mark.slow
def test_nothing_asks_for_a_network(tmp_path):
    llama(tmp_path)
    bpe_tokenizer("to be or not to be " * 20, 260).save(str(tmp_path / "tokenizer.json"))
    ran, asked = without_network(tmp_path, USES)
    assert (ran.returncode, asked) == (0, ""), ran.stderr
    assert ran.stdout.count("refused") == 2


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('192.0.2.1', 80), 1)",
        "import urllib.request; urllib.request.urlopen('http://example.invalid')",
        "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 53))",
    ],
)
def test_what_asks_for_a_network_would_be_noticed(code, tmp_path):
    ran, asked = without_network(tmp_path, code)
    assert ran.returncode
    assert asked


# Hostile files


def header(entries: object, *, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(*shape: int, start: int = 0, end: int = 8) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


HEADERS = {
    "longer than a file can be": header({}, length=2**64 - 1),
    "longer than the file": header({}, length=10**6),
    "overlapping": header({"a": entry(2), "b": entry(2)}, data=bytes(8)),
    "with a hole": header({"a": entry(2, start=8, end=16)}, data=bytes(16)),
    "out of bounds": header({"a": entry(2**40, end=2**42)}, data=bytes(8)),
    "larger than its data": header({"a": entry(2**40)}, data=bytes(8)),
    "backwards": header({"a": entry(2, start=8, end=0)}, data=bytes(8)),
    "negative": header({"a": entry(-2)}, data=bytes(8)),
    "overflowing": header({"a": entry(2**32, 2**32, 4, end=0)}),
    "beyond 64 bits": header({"a": entry(2**63, 0, end=0)}),
    "with data that nobody owns": header({"a": entry(2)}, data=bytes(16)),
    "of objects": header({"a": entry(2) | {"dtype": "OBJ"}}, data=bytes(8)),
    "nested": header(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_safetensors_is_refused(name, tmp_path):
    (tmp_path / "m").write_bytes(HEADERS[name])
    with pytest.raises(ValueError, match="m is not a safetensors file"):
        files.read(tmp_path / "m")


def test_names_in_a_file_are_no_paths(tmp_path):
    entries = {"__metadata__": {"../../x": "/etc/passwd"}, "../../x": entry(2)}
    (tmp_path / "m").write_bytes(header(entries, data=bytes(8)))
    tensors, metadata = files.read(tmp_path / "m")
    assert (tensors.keys(), metadata) == ({"../../x"}, {"../../x": "/etc/passwd"})
    assert [*tmp_path.iterdir()] == [tmp_path / "m"]


HUGE = 10**9
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("position", "settings"),
    [
        *(("none", {n: HUGE}) for n in ("n_layers", "vocab_size", "d_model", "d_ff", "n_heads")),
        *(("none", {"vocab_size": n}) for n in (10**12, 10**400, -1, float("inf"))),
        ("sinusoidal", {"max_tokens": HUGE}),
        ("learned", {"max_tokens": HUGE}),
        ("alibi", {"n_heads": HUGE, "d_head": 1}),
    ],
)
def test_a_model_larger_than_its_file_is_not_made(position, settings, tmp_path):
    config = ModelConfig(7, d_model=12, n_heads=3, position=position)
    LanguageModel(config).save(tmp_path / "m")
    tensors, metadata = files.read(tmp_path / "m")
    changed = json.dumps(dataclasses.asdict(config) | settings)
    files.write(tmp_path / "m", tensors, metadata | {"config": changed})
    with pytest.raises(ValueError, match="m does not fit together"):
        LanguageModel.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["config", "tables", "dropouts"])
@pytest.mark.parametrize("text", [DEEP, "{", "null", "9" * 5000])
def test_hostile_metadata_of_a_model_is_refused(name, text, tmp_path):
    LanguageModel(ModelConfig(7, d_model=12, n_heads=3)).save(tmp_path / "m")
    tensors, metadata = files.read(tmp_path / "m")
    files.write(tmp_path / "m", tensors, metadata | {name: text})
    with pytest.raises(ValueError, match="m does not fit together"):
        LanguageModel.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["config", "model", "trained", "evaluations"])
@pytest.mark.parametrize("text", [None, DEEP, "1", "null", '{"a": 1}'])
def test_hostile_checkpoint_is_refused(name, text, tmp_path):
    checkpoint = a_checkpoint(tmp_path)
    checkpoint.save(History([], [], {}))
    tensors, metadata = files.read(checkpoint.path)
    changed = {k: v for k, v in (metadata | {name: text}).items() if v is not None}
    files.write(checkpoint.path, tensors, changed)
    with pytest.raises(ValueError):  # noqa: PT011 - each names what it is
        checkpoint.load()
    if name == "model":
        with pytest.raises(ValueError):  # noqa: PT011
            load_model(tmp_path, nn.Linear(2, 1))


def a_checkpoint(folder: Path) -> Checkpoint:
    model = nn.Linear(2, 1)
    adam = torch.optim.AdamW(model.named_parameters())
    return Checkpoint(folder, model, adam, TrainingConfig(steps=3, learning_rate=0.1))


def test_a_run_does_not_write_where_a_link_leads(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.write_text("mine")
    (run / "tokenizer.json").symlink_to(outside)
    files.write_whole(run / "tokenizer.json", b"{}")
    assert (run / "tokenizer.json").read_text() == "{}"
    (run / "checkpoint.safetensors").symlink_to(outside)
    with pytest.raises(OSError, match="a link is there"):
        a_checkpoint(run).save(History([], [], {}))
    (run / "best.safetensors").symlink_to(outside)
    with pytest.raises(ValueError, match=r"got the link .*best.safetensors"):
        train.prepare(run, {})
    assert outside.read_text() == "mine"


# A folder of Hugging Face's


def llama(folder: Path, **config: object) -> dict[str, torch.Tensor]:
    built = {"norm": "pre", "scaled": False, "position": "rotary", "activation": "swiglu"}
    built |= {"norm_kind": "rms", "feed_forward_bias": False, "norm_bias": False}
    built |= {"d_model": 16, "n_heads": 2, "tied": False}
    state = convert.to_llama(LanguageModel(ModelConfig(280, **built)))
    safetensors.torch.save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LAYERS | {"vocab_size": 280} | config))
    return state


@pytest.mark.parametrize(
    "place", ["../m.safetensors", "/m.safetensors", "a/m", "a\\m", "C:m", "", ["m"], None]
)
def test_an_index_names_files_of_its_folder_only(place, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    state = llama(folder)
    (folder / "model.safetensors").rename(tmp_path / "m.safetensors")
    index = {"weight_map": dict.fromkeys(state, place)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"must name files of its folder|does not fit"):
        convert.from_pretrained(folder)


def test_no_setting_makes_a_model_larger_than_its_files(tmp_path):
    llama(tmp_path)
    assert convert.from_pretrained(tmp_path).config.n_layers == 2
    for name in ("num_hidden_layers", "vocab_size", "num_attention_heads", "hidden_size"):
        for size in (10**9, 10**12, 10**400, float("nan"), -1, [1], {"a": 1}):
            llama(tmp_path, **{name: size})
            with pytest.raises(ValueError, match=f"{name}|hold 16 rows of queries, not those"):
                convert.from_pretrained(tmp_path)
    state = llama(tmp_path)
    layer = next(name for name in state if ".1." in name)
    state[layer.replace(".1.", ".999999999.")] = state.pop(layer)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="expected blocks 0 to 2, got block 999999999"):
        convert.from_pretrained(tmp_path)


def no_embedding(state: dict[str, torch.Tensor], x: torch.Tensor) -> None:
    state["model.embed_tokens.weight"] = x


def no_queries(state: dict[str, torch.Tensor], x: torch.Tensor) -> None:
    state["model.layers.0.self_attn.q_proj.weight"] = x


@pytest.mark.parametrize("shape", [(), (0,), (0, 16), (16, 0), (3,), (3, 3, 3)])
@pytest.mark.parametrize("change", [no_embedding, no_queries])
def test_tensors_of_any_shape_are_refused(change, shape, tmp_path):
    state = llama(tmp_path)
    change(state, torch.ones(shape))
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ValueError):  # noqa: PT011 - each names what does not fit
        convert.from_pretrained(tmp_path)


READERS: dict[str, Callable[[Path], object]] = {
    "config.json": convert.from_pretrained,
    "tokenizer.json": convert.tokenizer,
    "tokenizer.json of a run": lambda folder: read_tokenizer(folder / "tokenizer.json"),
    "settings.json": lambda folder: train.read_run(folder),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", ["", "null", DEEP, '{"a":' * 100_000, f'{{"a": {"9" * 5000}}}'])
def test_hostile_json_is_refused(reader, text, tmp_path):
    llama(tmp_path)
    bpe_tokenizer("low lower lowest " * 20, 260).save(str(tmp_path / "tokenizer.json"))
    name = reader.partition(" ")[0]
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        READERS[reader](tmp_path)


@pytest.mark.parametrize("reader", ["tokenizer.json", "tokenizer.json of a run"])
def test_a_tokenizer_asks_for_no_padding(reader, tmp_path):
    llama(tmp_path)
    words = bpe_tokenizer("low lower lowest " * 20, 260)
    words.enable_padding(length=1000)
    words.enable_truncation(1)
    words.save(str(tmp_path / "tokenizer.json"))
    found = READERS[reader](tmp_path)
    words.no_padding()
    words.no_truncation()
    assert found.encode("lowest owl").ids == words.encode("lowest owl").ids
