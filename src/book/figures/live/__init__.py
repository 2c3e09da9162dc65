"""Models that run in the page: the weights in 16 bits, read by Python and by a plain script.

``python -m book.figures.live`` trains them and writes the files.
"""

import base64
import json
from pathlib import Path

from attnbook.encoder_decoder import Transformer
from attnbook.models import LanguageModel, Model

HERE = Path(__file__).parent
MODELS: dict[str, type[Model]] = {"dates": Transformer, "tales": LanguageModel}


def load(name: str) -> Model:
    """The model of the page, in float64: these are the numbers that the script computes with.

    Example:
        >>> load("dates").config.d_model
        64
    """
    return MODELS[name].load(HERE / f"{name}.safetensors").double()


def weights(name: str) -> str:
    """The files of a model as a script, which a page can load from a folder, too."""
    file = base64.b64encode((HERE / f"{name}.safetensors").read_bytes()).decode()
    words = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    held = json.dumps({"weights": file} | words, ensure_ascii=False, separators=(",", ":"))
    return f"attnbookLive.files.{name} = {held};\n"
