"""What a cell is for: which are folded, and which studies are behind its claims."""

import ast
from collections.abc import Iterable, Iterator

from nbformat import NotebookNode

from attnbook.book.studies import studies_of

FOLDED = {
    "imports": "Imports",
    "plot": "Code of the figure",
    "claims": "Code that checks this",
    "harness": "Code that measures this",
}
"""Tag of a cell -> what its folded code is called on the page. Cells without one stand open."""


def tag_of(cell: NotebookNode) -> str | None:
    """The cell's tag among :data:`FOLDED`."""
    return next((tag for tag in cell.metadata.get("tags", []) if tag in FOLDED), None)


def required_tag(cell: NotebookNode) -> str | None:
    """The tag that a code cell must have by what it does; None: its author decides.

    A cell that draws is a ``plot``; one that mostly states claims, ``claims``; one that mostly
    imports, ``imports``.
    """
    if any(kind.startswith("image/") for each in cell.outputs for kind in each.get("data", {})):
        return "plot"
    statements = ast.parse(cell.source).body
    lines = sum(map(_lines, statements))
    if 2 * sum(_lines(each) for each in statements if _states_claims(each)) > lines:
        return "claims"
    if 2 * sum(_lines(each) for each in statements if _imports(each)) > lines:
        return "imports"
    return None


def studies_behind(cells: Iterable[NotebookNode]) -> Iterator[list[str]]:
    """For each code cell the studies that its claims may hang on: names are followed."""
    behind: dict[str, set[str]] = {}
    for cell in cells:
        found: set[str] = set()
        for statement in ast.parse(cell.source).body:
            names = [each for each in ast.walk(statement) if isinstance(each, ast.Name)]
            read = set(studies_of(statement)).union(*(behind.get(name.id, ()) for name in names))
            made = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            if isinstance(statement, ast.FunctionDef):
                made.add(statement.name)
            behind |= dict.fromkeys(made, read)
            found |= read if _states_claims(statement) else set()
        yield sorted(found)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _states_claims(node: ast.stmt) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "claim"
        for each in ast.walk(node)
    )
