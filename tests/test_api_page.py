"""The recipes on the API page run, one after the other, as a reader would run them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

PAGE = Path(__file__).parents[1] / "chapters" / "api.md"


def test_recipes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    recipes = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    for recipe in recipes:
        exec(recipe, names)
    assert names["longer"].shape == (8, 25)
    assert names["logits"].shape == (8, 3, 100)
    assert names["weights"].shape == (2, 4, 10, 10)
    assert names["loss"].isfinite()
    assert names["loss_by_hand"] < 0.9 * np.log(100)
    assert names["loss"].item() < names["loss_by_hand"]
    assert names["errors"].keys() == {"x", "weight"}
