"""Chapters are plain notebooks in any viewer; pages read their structure out of them."""

import re
from importlib import import_module

import nbformat
import pytest
from built import CHAPTERS, ROOT, parsed, read
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from pybtex.database import parse_file

from book.evidence.listings import LISTING_KEY, LONG
from book.press.copies import plain, with_captions
from book.sphinx.notebooks import enrich, glossary
from book.sphinx.search import authors

WORKS = parse_file(str(ROOT / "chapters" / "references.bib")).entries
TERMS = glossary(ROOT / "chapters" / "glossary.md")
# {role}`x`, [x]{.class}, (label)=, :option:, a fenced directive
RAW = re.compile(r"\{[a-z:-]+\}`|\]\{\.|^\([\w-]+\)=|^:[a-z-]+:|^[`:]{3,}\{", re.MULTILINE)
FOLDED = {"imports", "harness", "claims", "plot", "bench"}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_reads_as_prose_in_any_viewer(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    assert [raw for text in texts for raw in RAW.findall(text)] == []
    text = "\n\n".join(texts)
    assert text.count("<details><summary>") == text.count("\n\n</details>")
    for words, key in re.findall(r"\[([^]]*)\]\(references\.md#(\w+)\)", text):
        name, year = authors(WORKS[key], short=True), WORKS[key].fields["year"]
        assert words in (f"{name} ({year})", f"{name}, {year}")
    assert {*re.findall(r"\]\(glossary\.md#term-([\w-]+)\)", text)} <= TERMS.keys()


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_is_no_text_is_folded(path):
    for cell in read(path).cells:
        if cell.cell_type == "code":
            shown = not cell.metadata.get("jupyter", {}).get("source_hidden")
            folded = FOLDED & {*cell.metadata.get("tags", ())} or "solution" in cell.metadata.get(
                "book", {}
            )
            assert shown == (not folded), cell.source


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_an_exercise_with_a_check_has_a_cell_for_the_answer(path):
    cells = read(path).cells
    label = [cell.metadata.get("book", {}).get("exercise") for cell in cells]
    for here, cell in enumerate(cells):
        checks = re.findall(r"\bcheck_\w+", cell.source) if cell.cell_type == "markdown" else []
        if checks and label[here]:
            behind = next(i for i in range(here, len(cells)) if label[i] != label[here])
            first, *_ = cells[behind].source.splitlines()
            assert {*checks} <= {*re.findall(r"check_\w+", first)}, cell.source


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_answer_has_the_exercises_name_and_the_solution_another(path):
    cells = read(path).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    for here, cell in enumerate(cells):
        if "answer" in cell.metadata.get("tags", ()) and "check" in cell.source:
            name = re.search(r"\n# your code, then check_\w+\((\w+)\)$", cell.source)[1]
            texts = (c.source for c in reversed(cells[:here]) if c.cell_type == "markdown")
            assert f"`{name}" in next(texts)
            defined = re.compile(rf"^(def|class) {name}\b|^{name} =", re.MULTILINE)
            assert not any(map(defined.search, code)), name


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_notebook_ends_with_what_held_and_what_it_says_to_try_breaks_a_claim(path):
    *_, last = read(path).cells
    assert last.source == "from book import tally\n\ntally()"
    said = re.fullmatch(r"(\d+) of \1 claims hold\.\n", last.outputs[0].text)
    assert int(said[1]) > 0
    breaks = import_module(f"breaks.chapter_{path.stem.split('_')[0]}").BREAKS
    for cell in read(path).cells:
        if change := cell.metadata.get("book", {}).get("lab"):
            assert re.match(r"\*\*Try:\*\* under \[.*?\]\(#[\w-]+\), ", cell.source)
            assert tuple(change) in {(old, new) for _, old, new in breaks}


def places(path):
    cells = with_captions(read(path)).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    texts += [o.get("data", {}).get("text/html", "") for c in cells for o in c.get("outputs", [])]
    return set(re.findall(r' id="([\w-]+)"', "".join(map(str, texts))))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_links_name_the_notebook_in_which_their_place_is(path):
    here = places(path)
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            assert {*re.findall(r"\]\(#([\w-]+)\)", cell.source)} <= here
            for other, place in re.findall(r"\]\((\w+\.ipynb)#([\w-]+)\)", cell.source):
                assert place in places(path.parent / other), (other, place)


def test_pages_in_copies_are_plain_markdown():
    for name, place in (("glossary", "term-Jacobian"), ("references", "vaswani2017")):
        page = plain((ROOT / "chapters" / f"{name}.md").read_text("utf-8"))
        assert f'<a id="{place}"></a>' in page
        assert not re.search(r"(?m)^(```|:::)\{|\{[\w:]+\}`|^---$", page)
    questions = plain((ROOT / "chapters" / "questions.md").read_text("utf-8"))
    assert '<a id="q-scale"></a>\n\n### Why are embeddings' in questions
    assert "<details><summary>How we know</summary>\n\nThe paper [vaswani2017]" in questions


PLAIN = new_notebook(
    cells=[
        new_markdown_cell("# A question?\n\nAn [answer](01_one.ipynb#claim-a)."),
        new_markdown_cell("**You need** nothing · **5 minutes**"),
        new_code_cell('Bench(stage="weights", back=True)', metadata={"tags": ["bench"]}),
        new_markdown_cell(
            '<a id="here"></a>\n## Here\n\nText.', metadata={"book": {"stage": "rows"}}
        ),
        new_markdown_cell(
            "A [head](glossary.md#term-head), [two](glossary.md#term-head), "
            "[Press and Wolf (2017)](references.md#press2017), ([Ba et al., 2016]"
            "(references.md#ba2016); [He et al., 2015](references.md#he2015)), "
            '<span class="query of-Q">$Q$</span> in [the figure](#fig-a).'
        ),
        new_markdown_cell(
            "**Before you try it:** which?\n\n- a\n- b\n\n"
            "<details><summary>What happens</summary>\n\nIt is b.\n\n</details>",
            metadata={"book": {"guess": {"right": 2, "do": "cut 2 1"}}},
        ),
        new_markdown_cell(
            "### Exercise: One\n\nDo it.\n\n<details><summary>Hint</summary>\n\nSo.\n\n</details>",
            metadata={"book": {"exercise": "ex-a"}},
        ),
        new_code_cell("given", metadata={"book": {"exercise": "ex-a"}}),
        new_markdown_cell(
            "<details><summary>Solution</summary>\n\nThus.\n\n</details>",
            metadata={"book": {"solution": "ex-a"}},
        ),
        new_code_cell("done", metadata={"book": {"solution": "ex-a"}}),
        new_markdown_cell("Type.", metadata={"book": {"live": "dates"}}),
        new_markdown_cell("**Try:** b", metadata={"book": {"lab": ["a", "b"]}}),
    ]
)
RICH = """\
# A question?

[An [answer](#claim-a).]{.answer}

[**You need** nothing · **5 minutes**]{.needs}

```{bench}
:stage: weights
:back:
```

(here)=
## Here

```{stage} rows
```

Text.

A {term}`head`, {term}`two <head>`, {cite:t}`press2017`, {cite:p}`ba2016,he2015`, \
[$Q$]{.query .of-Q} in {numref}`fig-a`.

```{predict} which?
:do: cut 2 1
:options: a | b *

It is b.
```

```{exercise-start} One
:label: ex-a
```

Do it.

:::{admonition} Hint
:class: dropdown
So.
:::

given

```{exercise-end}
```

````{solution-start} ex-a
:class: dropdown
````

Thus.

done

````{solution-end}
````

```{live} dates
Type.
```"""


def test_pages_have_the_rich_form():
    notebook = nbformat.from_dict(PLAIN)
    enrich(notebook, {"head": "head"})
    assert "\n\n".join(cell.source for cell in notebook.cells) == RICH


def test_a_kind_that_is_not_known_is_refused():
    cell = new_markdown_cell("Text.", metadata={"book": {"exersise": "ex-a"}})
    with pytest.raises(ValueError, match=r"must be one of .*'exercise'.*, got \['exersise'\]"):
        enrich(new_notebook(cells=[cell]), {})


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_page_asks_before_it_answers(path):
    page = parsed(f"chapters/{path.stem}.html").select_one("article")
    guess = page.select_one(".predict")
    if guess is None or guess.find_previous("h2"):
        return
    shows = {link["href"] for link in guess.select(".happens a[href*='#claim-']")}
    above = {link["href"] for link in guess.find_all_previous("a") if link in page.select("a")}
    assert shows
    assert not shows & above
    assert page.select_one(".needs") in guess.find_all_previous("span")
    (answer,) = page.select(".answer")
    assert guess in answer.find_all_previous("div")
    assert answer.find_previous(["svg", "figure", "div.live"])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_long_listing_is_folded_where_no_page_folds_it(path):
    for cell in read(path).cells:
        for output in cell.get("outputs", ()):
            if LISTING_KEY in output.get("metadata", {}):
                text = output.data["text/markdown"]
                assert (text.count("\n") > LONG + 1) == text.startswith("<details><summary>")
    assert "&lt;details" not in str(parsed(f"chapters/{path.stem}.html").select_one("article"))
