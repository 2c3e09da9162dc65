import base64
from io import BytesIO

import matplotlib as mpl
import pytest
from built import ROOT
from nbclient import NotebookClient
from nbconvert.exporters import LatexExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from PIL import Image
from traitlets.config import PyFileConfigLoader

from book import use_style

DRAWN = """\
import matplotlib.pyplot as plt
from book import use_style

use_style()
plt.plot([1, 4, 9]);"""
MOVES = """\
from book.figures.moving.scale import scale

scale"""


def test_a_readers_own_settings_are_not_in_the_figures():
    with mpl.rc_context({"axes.grid": True, "font.size": 30, "image.cmap": "gray"}):
        use_style()
        drawn = {key: mpl.rcParams[key] for key in ("axes.grid", "font.size", "image.cmap")}
    assert drawn == {"axes.grid": False, "font.size": 10.5, "image.cmap": "viridis"}


def executed() -> NotebookNode:
    notebook = new_notebook(cells=[new_code_cell(DRAWN), new_code_cell(MOVES)])
    return NotebookClient(notebook, kernel_name="python3").execute()


@pytest.fixture(scope="module")
def notebook() -> NotebookNode:
    return executed()


def test_a_notebook_has_each_figure_as_svg_and_as_a_small_png(notebook):
    (output,) = notebook.cells[0].outputs
    assert output.data["image/svg+xml"].startswith("<?xml")
    png = base64.b64decode(output.data["image/png"])
    assert len(png) < 10_000
    with Image.open(BytesIO(png)) as image:
        assert (image.size, image.info) == ((560, 330), {})


@pytest.mark.slow
def test_every_run_draws_the_same_bytes(notebook):
    assert executed().cells[0].outputs == notebook.cells[0].outputs


def test_latex_needs_no_inkscape(notebook):
    config = PyFileConfigLoader("nbconvert_config.py", path=str(ROOT)).load_config()
    body, resources = LatexExporter(config=config).from_notebook_node(notebook)
    (image,) = [name for name in resources["outputs"] if name in body]
    assert image.endswith(".png")
    assert "Figure: What dividing by" in body
