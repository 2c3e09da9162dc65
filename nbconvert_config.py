"""What nbconvert needs to make LaTeX or PDF of a chapter where no Inkscape is.

``jupyter nbconvert --config nbconvert_config.py --to pdf chapters/01_embeddings.ipynb``
"""

from typing import Any

from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode


class WithoutSVG(Preprocessor):
    """Leaves of each drawing its PNG, and of a figure that moves its title."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, Any], index: int
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Take SVG out of the outputs."""
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/svg+xml", None)
        return cell, resources


c = get_config()
c.LatexExporter.preprocessors = [WithoutSVG]
c.SVG2PDFPreprocessor.enabled = False
