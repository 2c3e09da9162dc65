"""Models in files: what comes back, what is refused, and what an interrupted save leaves."""

import copy
import dataclasses
import errno
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from attnbook import (
    Block,
    BlockConfig,
    Encoder,
    LanguageModel,
    ModelConfig,
    Rotary,
    RotaryScaling,
    Transformer,
    TransformerConfig,
    files,
)
from attnbook.models import Model

SIZES = {"vocab_size": 7, "d_model": 12, "n_heads": 3}
CONFIG = ModelConfig(**SIZES, d_ff=20, max_tokens=9, norm="pre", position="learned", tied=False)
PLAIN = dataclasses.replace(CONFIG, position="sinusoidal", tied=True)
PAIR = TransformerConfig(**SIZES, n_layers=1, d_ff=20, target_vocab_size=5, padding_id=0)
IDS = torch.tensor([[1, 2, 3]])


def output(model: Model) -> Tensor:
    return model(IDS, IDS) if isinstance(model, Transformer) else model(IDS)


def in_file(model: Model, folder: Path) -> Model:
    model.save(folder / "m")
    return type(model).load(str(folder / "m"))


def in_pickle(model: Model, folder: Path) -> Model:
    return pickle.loads(pickle.dumps(model))


def in_weights(model: Model, folder: Path) -> Model:
    torch.save(model.state_dict(), folder / "m.pt")
    again = type(model)(model.config)
    again.load_state_dict(torch.load(folder / "m.pt", weights_only=True))
    return again


def in_distributed_checkpoint(model: Model, folder: Path) -> Model:
    torch.distributed.checkpoint.save(model.state_dict(), checkpoint_id=folder / "dcp")
    again = type(model)(model.config)
    weights = again.state_dict()
    torch.distributed.checkpoint.load(weights, checkpoint_id=folder / "dcp")
    again.load_state_dict(weights)
    return again


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "again",
    [in_file, in_pickle, in_weights, in_distributed_checkpoint, lambda m, _: copy.deepcopy(m)],
)
@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (Encoder, dataclasses.replace(CONFIG, prediction_head=True, embedding_norm=True)),
        (LanguageModel, CONFIG),
        (
            LanguageModel,
            ModelConfig(**SIZES, position="rotary", rotary_scaling=RotaryScaling(4.0, 8)),
        ),
        (LanguageModel, dataclasses.replace(PLAIN, norm_kind="rms", activation="swiglu", window=2)),
        (Transformer, PAIR),
    ],
)
def test_model_comes_back_as_it_was(model_class, config, again, tmp_path):
    model = model_class(config)
    copied = again(model, tmp_path)
    assert copied.config == model.config
    assert torch.equal(output(copied), output(model))
    assert not {*map(id, copied.parameters())} & {*map(id, model.parameters())}
    assert all(parameter.requires_grad for parameter in copied.parameters())


def test_every_setting_is_in_the_file(tmp_path):
    config = TransformerConfig(
        **SIZES | {"n_layers": 1, "d_ff": 20, "max_tokens": 9, "norm": "deepnorm", "scaled": False},
        **{"embedding_init": "unit", "tied": False, "dropout": 0.25, "n_kv_heads": 1, "d_head": 8},
        **{"position": "rotary", "rotary_base": 50.0, "rotary_fraction": 0.5},
        **{"rotary_scaling": RotaryScaling(2.0, 4, 1.5, 3.5, "pairs", 1.5), "activation": "gelu"},
        **{"attention_bias": "qkv", "feed_forward_bias": False, "norm_bias": False},
        **{"norm_kind": "rms", "norm_eps": 1e-3, "final_norm": True, "qk_norm": True},
        **{"target_vocab_size": 5, "n_decoder_layers": 2, "padding_id": 0},
    )
    plain, refused = TransformerConfig(8), {"window", "embedding_norm", "prediction_head"}
    for field in dataclasses.fields(config):
        differs = getattr(config, field.name) != getattr(plain, field.name)
        assert differs or field.name in refused, field.name
    assert in_file(Transformer(config), tmp_path).config == config
    one = dataclasses.replace(CONFIG, window=2, embedding_norm=True, prediction_head=True)
    assert in_file(Encoder(one), tmp_path).config == one


def test_loaded_model_is_in_evaluation_mode_and_its_dropouts_are_kept(tmp_path):
    model = LanguageModel(dataclasses.replace(CONFIG, dropout=0.5))
    model.blocks[0].attention.dropout = 0.25
    model.dropout = 0.0
    loaded = in_file(model, tmp_path)
    assert not any(part.training for part in loaded.modules())
    assert torch.equal(output(loaded), output(model.eval()))
    assert (loaded.blocks[0].attention.dropout, loaded.dropout) == (0.25, 0.0)
    assert loaded.blocks[1].attention.dropout == 0.5
    model.train()
    model.save(tmp_path / "m")
    assert model.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["learned", "sinusoidal"])
def test_every_tensor_keeps_its_type_and_is_loaded_to_the_cpu(config, dtype, tmp_path):
    model = LanguageModel(config).to(dtype)
    nn.init.normal_(model.blocks[0].attention_residual.norm.float().weight)
    mixed = dict(model.state_dict())
    model.save(tmp_path / "m")
    before = torch.get_rng_state()
    with torch.device("meta"):
        loaded = LanguageModel.load(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)  # and no random number is drawn
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == mixed[name].dtype
        assert torch.equal(tensor, mixed[name])
    assert torch.equal(loaded.input(IDS), model.input(IDS))


def test_tables_of_positions_keep_their_type(tmp_path):
    model = Transformer(PAIR)
    model.embedding.bfloat16()
    model.target_positions.float()
    loaded = in_file(model, tmp_path)
    types = loaded.positions.table.dtype, loaded.target_positions.table.dtype
    assert types == (torch.float64, torch.float32)


def test_compiled_parts_are_saved_as_what_they_are(tmp_path):
    model = LanguageModel(CONFIG)
    expected = output(model)
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    assert torch.equal(output(in_file(model, tmp_path)), expected)
    names = safetensors.torch.load_file(tmp_path / "m").keys()
    assert names == LanguageModel(CONFIG).state_dict().keys()


def test_file_is_readable_by_safetensors_itself(tmp_path):
    model = LanguageModel(CONFIG)
    query = model.blocks[0].attention.query
    query.weight = nn.Parameter(query.weight.detach().T.contiguous().T)  # in any order in memory
    model.save(tmp_path / "m")
    tensors = safetensors.torch.load_file(tmp_path / "m")
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    with safetensors.safe_open(tmp_path / "m", framework="pt") as file:
        assert json.loads(file.metadata()["config"])["d_model"] == 12


# What the configuration can't rebuild


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def set_(path: str, value: object) -> Callable[[Model], None]:
    """Put a value at a path of attributes."""
    *parts, last = path.split(".")

    def change(model: Any) -> None:
        setattr(model.get_submodule(".".join(parts)), last, value)

    return change


def block(**choices: Any) -> Block:
    sizes = {"d_model": 12, "n_heads": 3, "d_ff": 20}
    return Block(BlockConfig(**sizes | {"norm": "pre"} | choices))


def swap(**choices: Any) -> Callable[[Model], None]:
    return set_("blocks.0", block(**choices))


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "n_heads": (swap(n_heads=4), "blocks.0.attention"),
    "swapped activation": (swap(activation="gelu"), "blocks.0.feed_forward"),
    "swapped eps": (swap(norm_eps=0.1), "blocks.0.attention_residual.norm"),
    "swapped norm": (swap(norm="post"), "blocks.0.attention_residual"),
    "swapped kind of norm": (swap(norm_kind="rms"), "blocks.0.attention_residual.norm"),
    "position": (set_("blocks.0.attention.position", Rotary(base=5.0)), "blocks.0.attention"),
    "eps": (set_("blocks.1.feed_forward_residual.norm.eps", 0.1), "feed_forward_residual.norm"),
    "activation": (set_("blocks.1.feed_forward.activation", "gelu"), "blocks.1.feed_forward"),
    "scale": (set_("blocks.1.attention_residual.scale", 2.0), "blocks.1.attention_residual"),
    "factor": (set_("embedding.factor", 2.0), "embedding"),
    "wrapped": (
        lambda m: set_("blocks.0.attention.query", nn.Sequential(m.blocks[0].attention.query))(m),
        "blocks.0.attention.query",
    ),
    "one block less": (lambda m: m.blocks.pop(1), "blocks.1"),
    "one block more": (lambda m: m.blocks.append(block()), "blocks.2"),
    "a part more": (set_("extra", nn.Linear(2, 2)), "extra"),
    "parametrized": (
        lambda m: parametrize.register_parametrization(
            m.blocks[0].attention.query, "weight", Doubled()
        ),
        "blocks.0.attention.query",
    ),
    "pruned": (
        lambda m: prune.l1_unstructured(m.blocks[0].attention.query, "weight", 0.5),
        "blocks.0.attention.query.weight_orig",
    ),
    "resized": (
        lambda m: set_("embedding.weight", nn.Parameter(torch.zeros(9, 12)))(m),
        "embedding.weight",
    ),
    "quantized": (
        lambda m: torch.ao.quantization.quantize_dynamic(m.float(), {nn.Linear}),
        "blocks.0.attention.query",
    ),
    "meta": (lambda m: m.to("meta"), "embedding.weight"),
    "shared block": (lambda m: set_("blocks.1", m.blocks[0])(m), "made one"),
    "tied weights": (
        lambda m: set_("blocks.0.attention.key.weight", m.blocks[0].attention.query.weight)(m),
        "made one",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_what_the_configuration_cannot_rebuild_is_not_saved(name, tmp_path):
    change, part = CHANGES[name]
    model = LanguageModel(PLAIN)
    changed = change(model)
    model = changed if isinstance(changed, LanguageModel) else model
    with pytest.raises(ValueError, match=rf"{part}\b"):
        model.save(tmp_path / "m")
    assert not [*tmp_path.iterdir()]


# Files that do not fit


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_(**changes: object) -> Callable[[Path], None]:
    """Write the file again with other metadata; ``None`` leaves an entry out."""

    def change(path: Path) -> None:
        tensors, metadata = files.read(path)
        metadata = {k: v for k, v in (metadata | changes).items() if v is not None}
        files.write(path, tensors, metadata)

    return change


def with_config(**changes: object) -> Callable[[Path], None]:
    settings = json.loads(json.dumps(dataclasses.asdict(CONFIG))) | changes
    return change_(config=json.dumps(settings))


def without(name: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        tensors, metadata = files.read(path)
        del tensors[name]
        files.write(path, tensors, metadata)

    return change


@pytest.mark.parametrize(
    ("spoil", "given"),
    [
        (lambda path: path.write_text("a text, and not a model"), "is not a safetensors file"),
        (cut_off, "is not a safetensors file"),
        (lambda path: Encoder(CONFIG).save(path), "expected a LanguageModel .* got Encoder"),
        (lambda path: safetensors.torch.save_file({"x": IDS}, path), "expected .* another format"),
        (change_(config=None), "does not fit together.*config"),
        (with_config(d_model=24), "does not fit together.*embedding.weight"),
        (with_config(n_heads=5), "does not fit together.*n_heads"),
        (with_config(of_a_later_version=1), "does not fit together.*of_a_later_version"),
        (without("output.weight"), "does not fit together.*output.weight"),
    ],
)
def test_what_is_not_a_whole_model_is_refused(spoil, given, tmp_path):
    LanguageModel(CONFIG).save(tmp_path / "m")
    spoil(tmp_path / "m")
    with pytest.raises(ValueError, match=f"m .*{given}|{given}") as caught:
        LanguageModel.load(tmp_path / "m")
    assert str(tmp_path / "m") in str(caught.value)


def test_paths_that_hold_no_file_are_named(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FileNotFoundError, match="nothing"):
        LanguageModel.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        LanguageModel(CONFIG).save(tmp_path / "nowhere" / "m")
    with pytest.raises(OSError, match="folder is not a file that can be replaced"):
        LanguageModel(CONFIG).save(folder)
    assert [*tmp_path.rglob("*")] == [folder]


def test_a_device_is_not_replaced():
    with pytest.raises(OSError, match="null is not a file that can be replaced"):
        files.write("/dev/null", {"x": torch.ones(1)}, {})


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match=r"model.safetensors .*run git lfs pull"):
        files.read(path)


def test_the_same_content_gives_the_same_bytes(tmp_path):
    tensors, metadata = {"x": torch.ones(3)}, {f"key {i}": "√" for i in range(20)}
    for name in ("a", "b"):
        files.write(tmp_path / name, tensors, metadata)
        assert files.read(tmp_path / name)[1] == metadata
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# Written whole, or not at all


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize(("owner", "function"), [(os, "fsync"), (Path, "replace")])
def test_interrupted_save_leaves_the_good_file_and_nothing_else(
    owner, function, error, tmp_path, monkeypatch
):
    LanguageModel(CONFIG).save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(owner, function, fail)
    with pytest.raises(type(error)):
        LanguageModel(CONFIG).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


KILLED = """
import os, signal, sys
import torch
from attnbook import files

os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
files.write(sys.argv[1], {"x": torch.ones(1000)}, {})
"""


@pytest.mark.slow
def test_killed_save_leaves_the_good_file(tmp_path):
    files.write(tmp_path / "m", {"x": torch.zeros(1)}, {})
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "m")], check=False)
    assert run.returncode == -signal.SIGKILL
    assert torch.equal(files.read(tmp_path / "m")[0]["x"], torch.zeros(1))


def test_file_is_closed_to_others_while_written_and_on_disk_before_it_is_moved(
    tmp_path, monkeypatch
):
    (tmp_path / "plain").touch()
    files.write(tmp_path / "m", {"x": IDS}, {})
    assert (tmp_path / "m").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "m").chmod(0o600)
    seen = []

    def fsync(number: int) -> None:
        found = os.fstat(number)
        seen.append((stat.S_IMODE(found.st_mode), found.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    files.write(tmp_path / "m", {"x": IDS}, {})
    assert seen == [(0o600, (tmp_path / "m").stat().st_size)]
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o600


def test_saves_at_the_same_time_leave_one_whole_file(tmp_path):
    started = threading.Barrier(2)

    def save(value: float) -> None:
        started.wait()
        for _ in range(20):
            files.write(tmp_path / "m", {"x": torch.full((1000,), value)}, {})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, [1.0, 2.0]))  # an error in a thread comes back here
    assert len(files.read(tmp_path / "m")[0]["x"].unique()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_links_stay_links_and_long_names_do_no_harm(tmp_path):
    (tmp_path / "latest").symlink_to(tmp_path / "m")
    files.write(tmp_path / "latest", {"x": IDS}, {})
    assert (tmp_path / "latest").is_symlink()
    for name in ("m", "m" * 250, "長" * 80):
        files.write(tmp_path / name, {"x": IDS}, {})
        assert torch.equal(files.read(tmp_path / name)[0]["x"], IDS)


def test_tensors_in_memory_are_apart_from_each_other_and_from_the_file(tmp_path):
    x = torch.randn(4, 3)
    files.write(tmp_path / "m", {"x": x, "again": x, "row": x[1], "turned": x.T}, {})
    tensors, _ = files.read(tmp_path / "m")
    with (tmp_path / "m").open("r+b") as file:  # the same file, written over
        file.write(bytes((tmp_path / "m").stat().st_size))
    for name, expected in {"x": x, "again": x, "row": x[1], "turned": x.T}.items():
        assert torch.equal(tensors[name], expected)
