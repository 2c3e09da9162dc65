"""The package's own source, shown in a chapter: from the installed code, so it can't drift."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

from book.evidence.code import Code

LISTING_KEY = "attnbook_listings"
"""Metadata of an output that shows source: names of what it shows."""
LONG = 30
"""Lines of a listing that a notebook folds; a page folds by what its cell is for."""


def show_source(*objects: Callable[..., object] | type) -> None:
    """Show the source of functions or classes as highlighted code, a long one folded.

    Without docstrings: the API pages have them.

    Args:
        objects: from the package.

    Raises:
        TypeError: if an object has no Python source.

    Example:
        >>> from attnbook import attention_logits
        >>> show_source(attention_logits)
        ```python
        def attention_logits(
        ...
    """
    source = "\n\n\n".join(_source(each) for each in objects)
    markdown = f"```python\n{source}\n```"
    from IPython import get_ipython

    if get_ipython() is None:
        print(markdown)
        return
    from IPython.display import Markdown, display

    if (n_lines := len(source.splitlines())) > LONG:
        shown = ", ".join(each.__qualname__ for each in objects)
        summary = f"<details><summary>{shown}: {n_lines} lines</summary>"
        markdown = f"{summary}\n\n{markdown}\n\n</details>"
    names = [f"{each.__module__}:{each.__qualname__}" for each in objects]
    display(Markdown(markdown), metadata={LISTING_KEY: names})


def listing(name: str, root: Path) -> str | None:
    """Today's text of a listing, read from the file: nothing is imported.

    Args:
        name: ``module:qualified.name``.
        root: of the checkout.
    """
    module, _, path = name.partition(":")
    file = Code(root).file(module)
    if file is None:
        return None
    source = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(source)
    for part in path.split("."):
        inside = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == part]
        if not inside:
            return None
        node = inside[-1]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    lines = source.splitlines()[first - 1 : node.end_lineno]
    return _without_docstrings("\n".join(lines))


def _source(each: Callable[..., object] | type) -> str:
    try:
        source = inspect.getsource(each)
    except (OSError, TypeError) as error:
        raise TypeError(f"expected something with Python source, got {each!r}") from error
    return _without_docstrings(source)


def _without_docstrings(source: str) -> str:
    source = textwrap.dedent(source).rstrip()
    lines = source.splitlines()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        first = node.body[0]
        is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_docstring and len(node.body) > 1 and first.end_lineno is not None:
            end = first.end_lineno
            if end < len(lines) and not lines[end].strip():
                end += 1
            dropped.update(range(first.lineno, end + 1))
    return "\n".join(line for i, line in enumerate(lines, 1) if i not in dropped)
