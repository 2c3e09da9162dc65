import dataclasses
import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch

from attnbook import (
    Encoder,
    LanguageModel,
    ModelConfig,
    Transformer,
    TransformerConfig,
    checkpoint,
)
from attnbook.transformer import Model

CONFIG = ModelConfig(7, 12, 3, 2, 20, max_tokens=9, norm="pre", position="learned", tied=False)
PAIR = TransformerConfig(7, 12, 3, 1, 20, target_vocab_size=5, padding_id=0)


def models() -> list[Model]:
    tied = ModelConfig(7, 12, 3, 1, scaled=False, position="rotary", rotary_base=50.0)
    return [Encoder(CONFIG), LanguageModel(CONFIG), LanguageModel(tied), Transformer(PAIR)]


@pytest.mark.parametrize("number", range(4))
def test_loaded_model_is_the_saved_one(number: int, tmp_path: Path) -> None:
    model = models()[number]
    model.save(tmp_path / "model.safetensors")
    loaded = type(model).load(str(tmp_path / "model.safetensors"))
    assert loaded.config == model.config
    ids = [torch.tensor([[1, 2, 3]])] * (2 if isinstance(model, Transformer) else 1)
    assert torch.equal(loaded(*ids), model(*ids))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_floating_type_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    model = LanguageModel(dataclasses.replace(CONFIG, position="sinusoidal")).to(dtype)
    model.save(tmp_path / "m")
    loaded = LanguageModel.load(tmp_path / "m")
    ids = torch.tensor([[1, 2, 3]])
    assert loaded.embedding.weight.dtype == dtype
    assert torch.equal(loaded(ids), model(ids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_model_is_loaded_to_the_cpu_wherever_others_are_made(
    position: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = LanguageModel(dataclasses.replace(CONFIG, position=position)).to(dtype)
    model.save(tmp_path / "m")
    with torch.device("meta"):
        loaded = LanguageModel.load(tmp_path / "m")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(ids), model(ids))


def test_file_is_readable_by_safetensors_itself(tmp_path: Path) -> None:
    model = LanguageModel(CONFIG)
    model.save(tmp_path / "m")
    tensors = safetensors.torch.load_file(tmp_path / "m")
    assert tensors.keys() == model.state_dict().keys()
    with safetensors.safe_open(tmp_path / "m", framework="pt") as file:
        assert json.loads(file.metadata()["config"])["d_model"] == 12


def test_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    LanguageModel(CONFIG).save(tmp_path / "m")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "m")}
    assert len(modes) == 1


def test_every_setting_is_in_the_file(tmp_path: Path) -> None:
    config = TransformerConfig(
        *(7, 12, 3, 1, 20, 9, "deepnorm", False, "unit", False, 0.25, 1, "rotary", 50.0),
        *("gelu", "qkv", False, False, 5, 2, 0),
    )
    plain = TransformerConfig(8)
    for field in dataclasses.fields(config):
        assert getattr(config, field.name) != getattr(plain, field.name), field.name
    Transformer(config).save(tmp_path / "m")
    assert Transformer.load(tmp_path / "m").config == config


@pytest.mark.parametrize("missing", ["blocks.1.attention_residual.norm.bias", "output.weight"])
def test_a_file_without_one_of_the_weights_is_refused(missing: str, tmp_path: Path) -> None:
    LanguageModel(CONFIG).save(tmp_path / "m")
    tensors, metadata = checkpoint.read(tmp_path / "m")
    del tensors[missing]
    checkpoint.write(tmp_path / "m", tensors, metadata)
    with pytest.raises(ValueError, match=f"m does not fit together.*{missing}"):
        LanguageModel.load(tmp_path / "m")


def test_a_file_is_closed_to_others_while_it_is_written_and_on_disk_before_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"x": torch.ones(1)}  # too few to be written before they must
    checkpoint.write(tmp_path / "m", tensors, {})
    (tmp_path / "m").chmod(0o600)
    seen = []

    def fsync(number: int) -> None:
        found = os.fstat(number)
        seen.append((stat.S_IMODE(found.st_mode), found.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.write(tmp_path / "m", tensors, {})
    assert seen == [(0o600, (tmp_path / "m").stat().st_size)]


def test_a_full_disk_leaves_the_good_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LanguageModel(CONFIG).save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        LanguageModel(CONFIG).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_interrupted_save_leaves_the_good_file(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = LanguageModel(CONFIG)
    good.save(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*((os, "fsync") if function == "fsync" else (Path, "replace")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        LanguageModel(CONFIG).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_saves_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    models = [LanguageModel(CONFIG), LanguageModel(CONFIG)]
    started = threading.Barrier(2)

    def save(model: LanguageModel) -> None:
        started.wait()
        for _ in range(20):
            model.save(tmp_path / "m")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, models))  # an error in a thread comes back here
    kept = LanguageModel.load(tmp_path / "m").state_dict()
    assert any(
        all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())
        for model in models
    )
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tmp_path / "m")
    LanguageModel(CONFIG).save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    LanguageModel.load(tmp_path / "m")


def test_long_names_do_no_harm(tmp_path: Path) -> None:
    for name in ("m" * 250, "長" * 80):
        LanguageModel(CONFIG).save(tmp_path / name)
        assert LanguageModel.load(tmp_path / name).config == CONFIG


def test_every_weight_keeps_its_type(tmp_path: Path) -> None:
    model = LanguageModel(CONFIG).bfloat16()
    norm = model.blocks[0].attention_residual.norm.float()
    torch.nn.init.normal_(norm.weight)
    model.save(tmp_path / "m")
    loaded = LanguageModel.load(tmp_path / "m")
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_tables_of_positions_keep_their_type(tmp_path: Path) -> None:
    model = LanguageModel(dataclasses.replace(CONFIG, position="sinusoidal"))
    model.embedding.bfloat16()
    model.save(tmp_path / "m")
    loaded, ids = LanguageModel.load(tmp_path / "m"), torch.tensor([[1, 2, 3]])
    assert loaded.positions.table.dtype == model.positions.table.dtype == torch.get_default_dtype()
    assert torch.equal(loaded(ids), model(ids))


def test_so_do_both_tables_of_an_encoder_decoder(tmp_path: Path) -> None:
    model = Transformer(PAIR)
    model.embedding.bfloat16()
    model.target_positions.float()
    model.save(tmp_path / "m")
    loaded = Transformer.load(tmp_path / "m")
    assert loaded.positions.table.dtype == torch.get_default_dtype() == torch.float64
    assert loaded.target_positions.table.dtype == torch.float32


def test_a_block_that_is_used_twice_is_saved_twice(tmp_path: Path) -> None:
    model = LanguageModel(CONFIG)
    model.blocks[1] = model.blocks[0]
    model.output.weight = model.embedding.weight
    model.save(tmp_path / "m")
    loaded, ids = LanguageModel.load(tmp_path / "m"), torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(ids), model(ids))
    assert loaded.blocks[1] is not loaded.blocks[0]


def test_weights_in_any_order_in_memory_are_saved(tmp_path: Path) -> None:
    model = LanguageModel(CONFIG)
    query = model.blocks[0].attention.query
    query.weight = torch.nn.Parameter(query.weight.detach().T.contiguous().T)
    assert not query.weight.is_contiguous()
    model.save(tmp_path / "m")
    loaded = LanguageModel.load(tmp_path / "m")
    assert torch.equal(loaded.blocks[0].attention.query.weight, query.weight)


def test_who_may_read_a_file_stays_as_it_was(tmp_path: Path) -> None:
    LanguageModel(CONFIG).save(tmp_path / "m")
    (tmp_path / "m").chmod(0o600)
    LanguageModel(CONFIG).save(tmp_path / "m")
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o600


def test_a_loaded_model_needs_its_file_no_more(tmp_path: Path) -> None:
    model = LanguageModel(CONFIG)
    model.save(tmp_path / "m")
    loaded = LanguageModel.load(tmp_path / "m")
    data = bytearray((tmp_path / "m").read_bytes())
    with (tmp_path / "m").open("r+b") as file:  # the same file, written over
        file.write(bytes(len(data)))
    assert torch.equal(loaded.embedding.weight, model.embedding.weight)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing"):
        LanguageModel.load(tmp_path / "nothing")


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere$"):
        LanguageModel(CONFIG).save(tmp_path / "nowhere" / "m")


def test_folder_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match=r"folder is a folder, not a file"):
        LanguageModel.load(folder)
    with pytest.raises(IsADirectoryError, match=r"folder is a folder, not a file"):
        LanguageModel(CONFIG).save(folder)
    assert [*tmp_path.rglob("*")] == [folder]


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    LanguageModel(CONFIG).save(tmp_path / "m")
    before = torch.get_rng_state()
    LanguageModel.load(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a text, and not a model")
    with pytest.raises(ValueError, match=r"text is not a safetensors file"):
        LanguageModel.load(tmp_path / "text")


def test_cut_off_file_is_refused(tmp_path: Path) -> None:
    LanguageModel(CONFIG).save(tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="m is not a safetensors file"):
        LanguageModel.load(tmp_path / "m")


def test_model_of_another_class_is_refused(tmp_path: Path) -> None:
    Encoder(CONFIG).save(tmp_path / "m")
    with pytest.raises(ValueError, match="m holds Encoder, not LanguageModel"):
        LanguageModel.load(tmp_path / "m")
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match=r"holds no model of attnbook$"):
        LanguageModel.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"vocab_size": 7, "d_model": 9}, {"x": torch.zeros(1)}),
        ({"vocab_size": 7, "unknown": 1}, {"x": torch.zeros(1)}),  # a setting of a later version
        ({"vocab_size": 7}, {"x": torch.zeros(1)}),  # other weights
        ({"vocab_size": 7}, {}),
        (None, {"x": torch.zeros(1)}),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    config: dict[str, int] | None, tensors: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    metadata = {"format": "attnbook", "model": "LanguageModel"}
    metadata |= {} if config is None else {"config": json.dumps(config)}
    safetensors.torch.save_file(tensors, tmp_path / "m", metadata)
    with pytest.raises(ValueError, match="m does not fit together"):
        LanguageModel.load(tmp_path / "m")
