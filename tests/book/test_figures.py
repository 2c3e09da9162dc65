import base64
from io import BytesIO
from xml.etree import ElementTree

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

SVG = "{http://www.w3.org/2000/svg}"
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


LABELLED = """\
import matplotlib.pyplot as plt
from book.figures.svg import svg
from book import use_style

use_style()
fig, axes = plt.subplots(1, 2, figsize=(5.6, 2.6))
axes[0].set(xlabel="what a long label says of $W_Q$ and others", title=r"$\\frac{1}{2}$")
axes[1].text(0.9, 0.5, "reaches beyond the edge", weight="bold")
axes[1].text(0.1, 0.2, "0.0049", fontsize=8)
drawn = svg(fig)"""


@pytest.fixture(scope="module")
def labelled() -> str:
    names: dict[str, str] = {}
    exec(LABELLED, names)
    return names["drawn"]


def layouts(svg: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    phone = root.find(f"{SVG}svg")
    root.remove(phone)
    return [root, phone]


def lines(layout: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {"".join(text.itertext()): text for text in layout.iter(f"{SVG}text")}


def test_letters_are_text_with_the_italics_of_tex(labelled):
    page, _ = layouts(labelled)
    label = lines(page)["what a long label says of WQ and others"]
    letters = [(span.text, span.get("font-style")) for span in label]
    assert ("W", "italic") in letters
    assert ("Q", "italic") in letters
    assert label.get("text-anchor") == "middle"
    assert lines(page)["reaches beyond the edge"].get("font-weight") == "700"
    assert "0.0049" in lines(page)  # numbers that are read keep their digits


def test_tex_that_is_none_of_the_books_is_drawn_as_matplotlib_draws_it(labelled):
    page, _ = layouts(labelled)
    assert [text for text in page.iter(f"{SVG}text") if text.get("x") is None]


def test_a_phone_breaks_long_labels_and_cuts_nothing(labelled):
    page, phone = layouts(labelled)
    assert phone.get("display") == "none"
    width = float(phone.get("viewBox").split()[2])
    assert width < float(page.get("viewBox").split()[2])
    assert "what a long label says of WQ and others" not in lines(phone)
    assert all(
        float(text.get("font-size")) * 342 / width >= 10.9
        for text in lines(phone).values()
        if text.get("x")
    )
    beyond = lines(phone)["reaches beyond the edge"]
    assert float(beyond.get("x")) < 0.5 * width


@pytest.mark.slow
def test_every_run_draws_the_same_bytes(notebook):
    assert executed().cells[0].outputs == notebook.cells[0].outputs


def test_latex_needs_no_inkscape(notebook):
    config = PyFileConfigLoader("nbconvert_config.py", path=str(ROOT)).load_config()
    body, resources = LatexExporter(config=config).from_notebook_node(notebook)
    (image,) = [name for name in resources["outputs"] if name in body]
    assert image.endswith(".png")
    assert "Figure: What dividing by" in body
