"""The pages of single questions, what machines read of a page, and what a chapter says it runs."""

import gzip
import json
import re
from base64 import b64encode
from statistics import median
from urllib.parse import urljoin

import nbformat
import pytest
from built import ANSWERS, CHAPTERS, HTML, ROOT, parsed
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace
from test_questions import ENTRIES, FOLD

from book.sphinx.answers import DESCRIBED, NEIGHBOURS, first_sentences

TEMPLATES = ROOT / "src" / "book" / "sphinx" / "templates"

INDEX = "chapters/questions.html"


def page_of(entry):
    return f"questions/{entry.label.removeprefix('q-')}.html"


def on_index(entry):
    """The question's section of the index."""
    return parsed(INDEX).find(id=entry.label).find_parent("section")


def text(part):
    """What is read, formulas as characters."""
    return " ".join(part.get_text().removesuffix("#").split())


def said(page):
    """The question and the answer that a page holds for machines."""
    (script,) = page.select("script[type='application/ld+json']")
    data = json.loads(script.text)
    (question,) = data["mainEntity"]
    assert (data["@type"], question["@type"]) == ("FAQPage", "Question")
    return question["name"], question["acceptedAnswer"]["text"]


def test_every_question_has_a_page_and_no_other_page_has_one():
    assert sorted(map(page_of, ENTRIES)) == ANSWERS


def test_page_has_question_and_answer_of_the_index_and_what_shows_it():
    for entry in ENTRIES:
        page, section = parsed(page_of(entry)).article, on_index(entry)
        assert text(page.h1) == text(section.h3)
        answer = page.h1.find_next_sibling("p")
        assert str(answer).count("<a ") == str(section.p).count("<a ")
        assert text(answer) == text(section.p)
        before = FOLD.split(entry.body)[0]
        assert len(page.select(".picture")) == len(re.findall("^```{", before, re.M))
        assert section.select(".picture, pre, details, svg.figure") == []
        assert section.select_one(".own-page a")["href"] == f"../{page_of(entry)}"


def test_index_is_light():
    assert len((HTML / INDEX).read_bytes()) <= 500_000


def test_machines_read_what_readers_read():
    for entry in ENTRIES:
        page = parsed(page_of(entry))
        question, answer = said(page)
        assert question == text(page.h1)
        read = text(page.h1.find_next_sibling("p")).replace("^⊤", "ᵀ")
        assert answer == re.sub(r"(?<=_\w)(?=W_)", " ", read)  # a product of two matrices
        description = page.select_one("meta[name=description]")["content"]
        assert answer.startswith(description)
        assert re.search(r"[.!?”]$", description)


def test_page_says_how_we_know_and_where_to_read_on():
    for entry in ENTRIES:
        page = parsed(page_of(entry))
        labels = set(re.findall(r"#claim-([\w-]+)|\| ([\w-]+)$", entry.body, re.M))
        labels = {label for found in labels for label in found if label}
        shown = page.select("#how-we-know details.claim .claim-card a")
        assert {link.text for link in shown if "#claim-" in link["href"]} == labels
        links = [urljoin(page_of(entry), link["href"]) for link in page.select("#read-on a")]
        named = set(re.findall(r"\]\((\w+)\.ipynb", entry.body))
        *others, last = links
        about = {link for link in others if link.startswith("chapters/subjects.html#")}
        assert 1 <= len(about) <= 3 or not labels
        assert {f"chapters/{name}.html" for name in named} == {
            link for link in others if link.startswith("chapters/")
        } - about
        assert sum(link in ANSWERS for link in others) == NEIGHBOURS
        assert page_of(entry) not in others
        assert last == f"{INDEX}#{entry.label}"


def test_lines_run_as_they_are_copied():
    lines = ".bd-article .highlight-python pre"
    blocks = {e.label: parsed(page_of(e)).select(lines) for e in ENTRIES if e.code}
    assert all(blocks.values())
    for block in blocks.values():
        exec(block[0].get_text(), {})


def test_pages_are_light_and_stand_in_no_contents_and_no_search():
    sent = [len(gzip.compress((HTML / page).read_bytes())) for page in ANSWERS]
    assert median(sent) <= 12_000
    assert max(sent) <= 25_000
    assert len({page for page in ANSWERS if parsed(page).select("svg.figure")}) >= 10
    contents = parsed("intro.html").select("nav a[href]")
    assert [link["href"] for link in contents if "questions/" in link["href"]] == []
    assert '"questions/' not in (HTML / "search" / "index.js").read_text("utf-8")


def test_a_description_ends_with_a_sentence():
    assert first_sentences("Is it? No.") == "Is it? No."
    long = "word " * (DESCRIBED // 5) + "end."
    assert first_sentences(f"It is. {long}") == "It is."
    assert first_sentences(f"{long} It is.") == long


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_says_what_runs_where(path):
    page = parsed(f"chapters/{path.stem}.html")
    (fold,) = page.select("details.aside")
    assert fold.find_previous_sibling().select(".needs")
    lines = {line.strong.text: line.text for line in fold.select("li")}
    moving, exercises = len(page.select("div.interactive")), len(page.select("div.exercise"))
    here = lines.get("In this page", "")
    assert ("figure" in here, "exercise" in here) == (moving > 0, exercises > 0)
    assert ("figures" in here, "exercises" in here) == (moving > 1, exercises > 1)
    assert ("three words" in here) == bool(page.select("div.bench"))
    noted = json.loads((ROOT / "chapters" / "executed.json").read_text("utf-8"))[path.stem]
    assert f"in {max(1, round(noted['seconds']))} s" in lines["In JupyterLab"]
    assert lines.keys() <= {"In this page", "In JupyterLab"}  # no repository, no launch


# A book of two pages that has an address.

QUESTIONS = """# Questions

```python
import math
```

## Topic

(q-why)=
### Why `"few"`?

Because two do. A third says less.

```python
math.pi  # → 3.14
```

:::{dropdown} How we know
[Chapter 1](01_one.ipynb).
:::
"""
PNG = b"\x89PNG of the figure"
ADDRESS = "https://example.org/book"
HUB = "https://github.com/someone/book"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Where the pages of the small book are."""
    root = tmp_path_factory.mktemp("book")
    (root / "chapters").mkdir()
    figure = new_output("display_data", {"image/png": b64encode(PNG).decode(), "text/plain": "-"})
    needs = new_markdown_cell("# One\n\n[**You need** nothing]{.needs}")
    cells = [needs, new_code_cell("1", outputs=[figure], execution_count=1)]
    nbformat.write(new_notebook(cells=cells), root / "chapters" / "01_one.ipynb")
    (root / "chapters" / "questions.md").write_text(QUESTIONS)
    (root / "chapters" / "executed.json").write_text('{"01_one": {"seconds": 5}}')
    (root / "chapters" / "references.bib").touch()
    (root / "intro.md").write_text("# A book\n\n```{toctree}\n:glob:\nchapters/*\n```")
    (root / "_toc.yml").write_text("root: intro\nchapters: [file: chapters/01_one]\n")
    (root / "CITATION.cff").write_bytes((ROOT / "CITATION.cff").read_bytes())
    settings = {
        "root_doc": "intro",
        "source_suffix": {".rst": "restructuredtext"},  # its own: the default is changed in place
        "extensions": ["myst_nb", "sphinx_design", "sphinx_book_theme"]
        + [f"book.sphinx.{name}" for name in ("answers", "download", "evidence", "web")],
        "exclude_patterns": ["out"],
        "myst_enable_extensions": ["attrs_inline", "colon_fence"],
        "nb_execution_mode": "off",
        "html_theme": "sphinx_book_theme",
        "html_title": "A book",
        "html_baseurl": ADDRESS,
        "html_theme_options": {
            "repository_url": HUB,
            "repository_branch": "main",
            "launch_buttons": {
                "binderhub_url": "https://mybinder.org",
                "colab_url": "https://colab.research.google.com",
            },
        },
        "templates_path": [str(TEMPLATES), str(TEMPLATES / "components")],
    }
    out = str(root / "out")
    with pytest.MonkeyPatch.context() as patch, docutils_namespace():
        patch.chdir(root)
        Sphinx(str(root), None, out, out, "html", settings, status=None, warning=None).build()
    return root / "out"


def head(published, page):
    return parsed(str(published / page)).head


def test_with_an_address_each_page_says_its_own_and_that_of_its_picture(published):
    pictures = {}
    for page in ("intro.html", "chapters/01_one.html", "questions/why.html"):
        found = head(published, page)
        assert found.select_one("link[rel=canonical]")["href"] == f"{ADDRESS}/{page}"
        assert found.select_one("meta[property='og:url']")["content"] == f"{ADDRESS}/{page}"
        picture = found.select_one("meta[property='og:image']")["content"]
        pictures[page] = picture.removeprefix(f"{ADDRESS}/")
        assert f"<loc>{ADDRESS}/{page}</loc>" in (published / "sitemap.xml").read_text()
    assert pictures == {
        "intro.html": "_static/card.png",
        "chapters/01_one.html": "_static/og/01_one.png",
        "questions/why.html": "_static/og/01_one.png",
    }
    assert (published / "_static" / "og" / "01_one.png").read_bytes() == PNG


def test_without_an_address_a_page_says_none():
    for page in (INDEX, ANSWERS[0], f"chapters/{CHAPTERS[0].stem}.html"):
        assert parsed(page).select("link[rel=canonical], meta[property='og:image']") == []
    assert not (HTML / "_static" / "og").exists()


def test_quotes_of_a_question_do_not_end_its_title(published):
    found = head(published, "questions/why.html")
    assert found.select_one("meta[property='og:title']")["content"] == 'Why "few"?'
    assert said(found) == ('Why "few"?', "Because two do. A third says less.")


def test_with_a_repository_a_chapter_launches_elsewhere(published):
    (line,) = [
        line
        for line in parsed(str(published / "chapters/01_one.html")).select("details.aside li")
        if "Colab" in line.text
    ]
    assert line.strong.text == "In Binder or Colab"
    links = {link.text: link["href"] for link in line.select("a")}
    assert links["Colab"].endswith("/someone/book/blob/main/chapters/01_one.ipynb")
    assert "/someone/book/main?urlpath=" in links["Binder"]
    assert f"git clone --depth 1 {HUB} book" in line.text
