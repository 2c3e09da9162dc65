"""Use the installed package as the README does: ``make wheel`` runs it in an empty environment."""

import re
import subprocess
import sys
from pathlib import Path

import torch

import attnbook
from attnbook.doctor import diagnose

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
assert Path(attnbook.__file__).is_relative_to(sys.prefix), "not the installed package"
(code,) = re.findall(r"(?ms)^## The package$.*?^```python\n(.*?)^```$", README)
names: dict[str, object] = {}
exec(code, names)
loss = names["loss"]
assert isinstance(loss, torch.Tensor)
loss.backward()

model = names["model"]
assert isinstance(model, attnbook.LanguageModel)
assert diagnose(model, torch.randint(1000, (3, 7)), causal=True)
sees_the_future = diagnose(attnbook.Encoder(model.config), torch.randint(1000, (3, 7)), causal=True)
said = ""
try:
    sees_the_future.check()
except AssertionError as error:
    said = str(error)
assert "ERROR: no causal mask" in said
for command in ("train", "generate"):
    helped = subprocess.run(
        [sys.executable, "-I", "-m", f"attnbook.{command}", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert helped.stdout.startswith(f"usage: python -m attnbook.{command}"), helped.stdout
print(f"attnbook {attnbook.__version__}: the README's lines run, the loss is {loss.item():.2f}")
