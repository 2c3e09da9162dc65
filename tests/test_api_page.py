"""The recipes on the API pages run, one after the other, as a reader would run them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import attnbook

REFERENCE = Path(__file__).parents[1] / "chapters" / "api"
PAGES = [
    REFERENCE / f"{name}.md"
    for name in ("index", "probes", "backprop", "training", "costs", "doctor")
]


def test_page_names_what_is_imported_from_the_top():
    sentence = re.search(
        r"imported from the top, .*?: (.*?)\. All else", PAGES[0].read_text("utf-8")
    )
    assert sentence is not None
    assert re.findall("`(.*?)`", sentence[1]) == attnbook.__all__


@pytest.mark.slow
def test_recipes_run(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    with_recipes = {path for path in REFERENCE.glob("*.md") if "```python" in path.read_text()}
    assert with_recipes == {*PAGES}
    recipes = [
        recipe
        for path in PAGES
        for recipe in re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    ]
    names: dict[str, object] = {}
    for recipe in recipes:
        exec(recipe, names)
    assert names["longer"].shape == (8, 25)
    assert names["logits"].shape == (8, 3, 100)
    assert names["continued"].shape[0] == 3
    assert names["n_targets"] == 4 + 2 + 1
    assert names["weights"].shape == (2, 4, 10, 10)
    with torch.no_grad():
        reference = names["gpt2"](names["ids"]).logits
    assert torch.allclose(names["ours"](names["ids"]), reference, atol=1e-4)
    assert torch.allclose(names["same"](names["ids"]), reference, atol=1e-4)
    assert names["loss"].isfinite()
    assert names["loss_by_hand"] < 0.9 * np.log(100)
    assert names["loss"].item() == pytest.approx(names["loss_by_hand"], rel=1e-6)
    assert names["errors"].keys() == {"x", "weight"}
    assert len(names["history"].losses) == 30
    assert names["report"].causes == ("softmax over the queries",)
    assert names["held"] == 2 * 12 * 768 * 1024 * 2
    assert (tmp_path / "run/checkpoint.safetensors").exists()
