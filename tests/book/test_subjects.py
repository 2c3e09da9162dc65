"""What claims are about: each has a subject, and results that part say so at both ends."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from built import HTML, ROOT, parsed

from book.evidence.subjects import SUBJECTS, SubjectsError, read_subjects
from book.press.render import CLAIMS
from book.sphinx.evidence import quoted_numbers, shows

LABELS = ["warm-a", "warm-b", "post-a"]
WRITTEN = """
subjects:
  warm-up: {title: Warm-up, says: If it helps., answer: It does., claims: "warm-*"}
  post-norm: {title: Post-norm, says: If so., answer: Yes., words: post-LN, claims: post-a warm-b}
differs:
- {claims: [post-a, warm-b], differ: One learned and one did not., why: Why is not known.}
"""


@pytest.fixture
def write(tmp_path: Path):
    (tmp_path / "chapters").mkdir()

    def write(old: str = "", new: str = "") -> Path:
        assert old in WRITTEN
        (tmp_path / SUBJECTS).write_text(WRITTEN.replace(old, new) if old else WRITTEN)
        return tmp_path

    return write


def test_a_claim_knows_its_subjects_and_what_parts_from_it(write):
    found = read_subjects(write(), LABELS)
    assert [each.name for each in found.of("warm-b")] == ["warm-up", "post-norm"]
    assert found.by_name["warm-up"].labels == ("warm-a", "warm-b")
    assert [each.other("warm-b") for each in found.partings_of("warm-b")] == ["post-a"]
    assert found.partings_of("warm-a") == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("post-a warm-b", "warm-b", "claim post-a must have one subject or two, got 0"),
        ("post-a warm-b", "post-a post-c warm-b", "names post-c, and no claim is called so"),
        ("warm-*", "warn-*", "claim warm-a must have one subject or two, got 0"),
        ("[post-a, warm-b]", "[post-a, warm-a]", "post-a and warm-a part, and must share"),
    ],
)
def test_what_does_not_fit_the_claims_is_refused(write, old, new, said):
    with pytest.raises(SubjectsError, match=f"subjects.yml: .*{said}"):
        read_subjects(write(old, new), LABELS)


def test_a_book_without_subjects_has_none(tmp_path):
    assert read_subjects(tmp_path, LABELS).of("warm-a") == []


def test_the_page_has_each_claim_below_its_subjects():
    page = parsed("chapters/subjects.html")
    ledger = json.loads((ROOT / CLAIMS).read_text())
    for claim in (each for claims in ledger.values() for each in claims):
        assert 1 <= len(claim["subjects"]) <= 2, claim["label"]
        for name in claim["subjects"]:
            assert page.select_one(f'#{name} .known a[href$="#claim-{claim["label"]}"]')
    assert 50 <= len(page.select("ul.subjects li")) <= 100
    assert len(page.select("ul.partings li")) >= 10


SETTING = re.compile(
    r"N\(0, 1(?:/d)?\)|1/√|[Cc]hapters? \d+|\d+ (?:wide|steps|blocks|tokens|keys)|of \d+ kept"
    r"|W_\d|(?:rates?|from|head of|layer|literal) [\d.]+"
)
"""Numbers of a sentence that say on what was measured."""


def test_numbers_of_pairs_are_measured_by_the_claims_that_they_name():
    ledger = json.loads((ROOT / CLAIMS).read_text())
    claims = {each["label"]: each for found in ledger.values() for each in found}
    for pair in read_subjects(ROOT, claims).partings:
        named = [claims[label] for label in (*pair.labels, *pair.shows)]
        stated = " ".join(each["statement"] for each in named).replace(",", "")
        for number in quoted_numbers(SETTING.sub("", f"{pair.differ} {pair.why}")):
            plain = number.strip(", ").replace(",", "")
            shown = any(shows(plain, each) for each in named)
            assert shown or plain in re.findall(r"\d+(?:\.\d+)?", stated), (pair, number)


def test_cards_say_what_else_was_measured():
    cards = [link["data-card"] for link in parsed("chapters/08_depth.html").select("[data-card]")]
    assert sum("Also measured: " in card or "⇆ " in card for card in cards) > 0.9 * len(cards)
    assert any("⇆ " in card for card in cards)
    assert all(card.count(" | ") <= 5 for card in cards)
    row = parsed("chapters/08_depth.html").select_one(".claim-card a[href*='subjects.html#']")
    assert row.find_parent("div").dt.text == "Subject"


def test_the_files_to_take_away_have_subjects():
    rows = json.loads((HTML / "claims.json").read_text())
    schema = json.loads((HTML / "_static" / "claims.schema.json").read_text())
    jsonschema.validate(rows, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([rows[0] | {"subjects": {}}], schema)
    parting = [row for row in rows if row["differs_from"]]
    assert {each["label"] for row in parting for each in row["differs_from"]} <= {
        row["label"] for row in parting
    }
