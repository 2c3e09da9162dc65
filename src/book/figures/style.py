"""The look of every figure, readable on light and dark pages; its colours are in ``colours``."""

from base64 import b64encode
from io import BytesIO
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure
from PIL import Image

from book.figures.colours import BLUE, OLIVE, ROSE, STREAM
from book.figures.svg import svg

# The page's extension turns these two into the theme's own text and background, so they must not
# be used for anything else.
INK = "#1c1c1e"
PAPER = "#fefefe"

INKED: tuple[Any, ...] = (
    "text.color",
    "axes.edgecolor",
    "axes.labelcolor",
    "axes.titlecolor",
    "xtick.color",
    "ytick.color",
)


def use_style() -> None:
    """Make matplotlib draw as the book does, with the same bytes at every run.

    A notebook gets each figure as SVG, and as PNG for where SVG is not shown, as in LaTeX.

    Example:
        >>> use_style()
        >>> mpl.rcParams["svg.hashsalt"]
        'attnbook'
    """
    mpl.rcdefaults()  # a reader's own matplotlibrc is for the reader's own figures
    mpl.rcParams.update(
        {
            "figure.figsize": (5.6, 3.3),
            "figure.facecolor": PAPER,
            "axes.facecolor": PAPER,
            "savefig.facecolor": PAPER,
            "figure.constrained_layout.use": True,
            "font.size": 10.5,
            "axes.titlesize": 10.5,
            "axes.labelsize": 10.5,
            "legend.frameon": False,
            "legend.fontsize": 9.5,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=[BLUE, ROSE, OLIVE, STREAM]),
            "lines.linewidth": 1.8,
            "mathtext.fontset": "stix",
            "svg.fonttype": "none",
            "svg.hashsalt": "attnbook",
        }
    )
    for name in INKED:
        mpl.rcParams[name] = INK
    from IPython import get_ipython

    if (shell := get_ipython()) is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")
        formatters = shell.display_formatter.formatters
        formatters["image/svg+xml"].for_type(Figure, svg)
        formatters["image/png"].for_type(Figure, small_png)


def small_png(figure: Figure) -> str:
    """The figure in 64 colours, a third of the bytes, as a notebook holds it."""
    drawn, packed = BytesIO(), BytesIO()
    figure.savefig(drawn, dpi=100)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    few.save(packed, "PNG", optimize=True)
    return b64encode(packed.getvalue()).decode()
