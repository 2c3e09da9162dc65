"""Formulas as the build draws them, in a book of one page."""

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from book.figures.colours import COLOURS
from book.sphinx.math import coloured

PAGE = r"""# One page about $\sqrt{d_k}$

$$
A = \operatorname{softmax}(QK^\top)
$$ (weights)

The weights of {eq}`weights` are $A$, and then $A$ again. Not in words: $\sqrt{d_k}$.

Above ($A$/$A$, rows) is $A$ *plainly*.

The line of a mistake: $x + \unknown$.
"""

LAYOUT = '{% extends "!layout.html" %}{% block footer %}{{ glyphs }}{{ super() }}{% endblock %}'


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> SimpleNamespace:
    """The page, its entry in the index of the search, and the warnings."""
    book: Path = tmp_path_factory.mktemp("book")
    (book / "index.md").write_text(PAGE)
    (book / "_templates").mkdir()
    (book / "_templates" / "layout.html").write_text(LAYOUT)
    warnings = io.StringIO()
    settings = {
        # Sphinx's default is one object in a process: another book's parsers would stay in it.
        "source_suffix": {".rst": "restructuredtext"},
        "templates_path": ["_templates"],
        "extensions": ["myst_parser", "book.sphinx.math"],
        "myst_enable_extensions": ["dollarmath"],
        "html_math_renderer": "drawn",
        "html_theme": "basic",
    }
    with docutils_namespace():
        out = str(book / "out")
        Sphinx(str(book), None, out, out, "html", settings, status=None, warning=warnings).build()
    page, index = (book / "out" / name for name in ("index.html", "searchindex.js"))
    texts = {"page": page.read_text(), "index": index.read_text()}
    return SimpleNamespace(**texts, warnings=warnings.getvalue())


def test_a_mistake_is_a_warning_with_its_place(built):
    [warning] = built.warnings.strip().splitlines()
    assert re.search(r"index\.md:11: WARNING: .*\\unknown", warning)


def test_a_formula_with_a_label_has_a_number_and_can_be_referred_to(built):
    assert '<div class="equation" id="equation-weights">' in built.page
    assert re.search(
        r'<span class="eqno">\(1\)<a class="headerlink" href="#equation-weights"', built.page
    )
    assert '<a class="reference internal" href="#equation-weights">(1)</a>' in built.page


def test_a_formula_is_told_in_words(built):
    assert 'aria-label="A equals softmax open paren Q K transpose close paren"' in built.page


def test_a_formula_keeps_the_signs_that_stand_at_it(built):
    kept = BeautifulSoup(built.page, "html.parser").select(".joined")
    assert [part.text for part in kept] == ["A,", "√(d_k).", "(A/A,", "x + \\unknown."]


def test_titles_and_search_hold_readable_text(built):
    assert "<title>One page about √(d_k)" in built.page
    assert r'"One page about \u221a(d_k)": ' in built.index


def test_each_glyph_and_each_formula_is_on_the_page_once(built):
    ids = re.findall(r' id="(math-[^"]+)"', built.page)
    used = re.findall(r'href="#(math-[^"]+)"', built.page)
    assert len(ids) == len(set(ids))
    assert set(ids) == set(used)


def test_queries_keys_and_values_have_their_colours_and_indices_have_none():
    def named(tex):
        return re.findall(r"\\textcolor\{(#\w+)\}\{(.*?)\}(?!\})", coloured(tex))

    query, key, value = (COLOURS[name][0] for name in ("query", "key", "value-letter"))
    assert named(r"QK^\top/\sqrt{d_k}") == [(query, "Q"), (key, r"K^\top")]
    assert named(r"\sum_j A_{ij} v_j") == [(value, "v_j")]
    assert named(r"dW_Q = X^\top dQ") == [(query, "W_Q"), (query, "Q")]
    assert named(r"\sigma_Q k v_f") == []  # an index, a count, a branch
    assert named(r"\ln V") == []  # the vocabulary
