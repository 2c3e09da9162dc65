import ast
import inspect
import textwrap

import pytest

import attnbook
from book import show_source

PUBLIC = [each for each in map(vars(attnbook).get, attnbook.__all__) if callable(each)]
METHODS = [attnbook.MultiHeadAttention.forward, attnbook.MultiHeadAttention.__init__]


def statements(source: str) -> str:
    """The code as Python reads it, without docstrings."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or node.body
    return ast.dump(tree)


@pytest.mark.parametrize("shown", [*PUBLIC, *METHODS], ids=lambda each: each.__qualname__)
def test_what_is_shown_is_the_code_without_its_docstrings(shown, capsys):
    show_source(shown)
    listing = capsys.readouterr().out.removeprefix("```python\n").removesuffix("\n```\n")
    assert ast.dump(ast.parse(listing)) == statements(inspect.getsource(shown))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("each", [len, 3, "attention"])
def test_what_has_no_source_is_named(each):
    with pytest.raises(TypeError, match="expected something with Python source, got"):
        show_source(each)
