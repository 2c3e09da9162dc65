"""The recipes on the API page run, one after the other, as a reader would run them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import attnbook
from attnbook import sliding_window_mask

PAGE = Path(__file__).parents[1] / "chapters" / "api.md"


def test_page_names_what_is_imported_from_the_top() -> None:
    sentence = re.search(r"imported from the top, .*?: (.*?)\. All else", PAGE.read_text("utf-8"))
    assert sentence is not None
    assert re.findall("`(.*?)`", sentence[1]) == attnbook.__all__


def test_recipes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    recipes = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for recipe in recipes:
        exec(recipe, names)
    assert names["longer"].shape == (8, 25)
    windowed, beginning = names["windowed"], names["beginning"]
    with torch.no_grad():
        whole = windowed(beginning, sliding_window_mask(11, before=3))
    assert torch.allclose(whole[:, 8:], names["logits"], atol=1e-5)
    assert names["weights"].shape == (2, 4, 10, 10)
    assert names["loss"].isfinite()
    assert names["loss_by_hand"] < 0.9 * np.log(100)
    assert names["loss"].item() == pytest.approx(names["loss_by_hand"], rel=1e-6)
    gpt2, x = names["gpt2"], names["x"]
    assert torch.allclose(gpt2.transformer.h[0].attn(x)[0], names["output"], atol=1e-6)
    assert names["errors"].keys() == {"x", "weight"}
