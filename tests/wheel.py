"""Use the installed package as the README does: ``make wheel`` runs it in an empty environment."""

import re
import sys
from pathlib import Path

import torch

import attnbook

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
assert Path(attnbook.__file__).is_relative_to(sys.prefix), "not the installed package"
(code,) = re.findall(r"(?ms)^## The package$.*?^```python\n(.*?)^```$", README)
names: dict[str, object] = {}
exec(code, names)
loss = names["loss"]
assert isinstance(loss, torch.Tensor)
loss.backward()
print(f"attnbook {attnbook.__version__}: the README's lines run, the loss is {loss.item():.2f}")
