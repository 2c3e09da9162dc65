"""What a claim was measured on, in words: what all its settings share, and what varies in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from book.evidence.settings import FIELDS, Setting

WORDS: dict[str, dict[Any, str]] = {
    "norm": {"pre": "pre-norm", "post": "post-norm", "none": "no norm", "deepnorm": "DeepNorm"},
    "tied": {True: "tied", False: "untied"},
    "device": {"cpu": "CPU", "cuda": "GPU"},
}
NONE = {"steps": 0, "warm-up": 0, "start": "as made"}
"""What it means that a field is not there, where others have it."""
SAID = {
    "blocks": "{} blocks",
    "width": "{} wide",
    "heads": "{} heads",
    "key-value heads": "{} key-value heads",
    "positions": "{} positions",
    "batch": "batches of {}",
    "steps": "{} steps",
    "device": "on a {}",
} | dict.fromkeys(("model", "norm", "tied", "task", "format", "optimizer", "activation"), "{}")
SHORT = ("blocks", "width", "norm", "start", "task", "rate", "warm-up", "steps")
"""What stands in the line; the card has all."""
FEW = 3
"""Values that are named one by one."""


@dataclass(frozen=True)
class Measured:
    """What is behind a claim.

    Args:
        kind: what it is where no model of the package is behind it: what its study asks, or
            ``"algebra"``.
        same: field -> value, of all settings.
        varied: field -> values, in which they differ; ``None`` where one has no such field.
        rows: study -> cases that were read.
    """

    kind: str
    same: Setting
    varied: dict[str, list[Any]]
    rows: dict[str, list[str]]

    def line(self) -> str:
        """A line of it."""
        return self._say(SHORT)

    def full(self) -> str:
        """All of it."""
        return self._say(FIELDS)

    def of(self, field: str) -> str:
        """What is said of one field; a dash, if nothing."""
        values = self._values().get(field)
        return said(field, values, alone=True) if values else "–"

    def apart(self, other: "Measured") -> list[str]:
        """The fields in which two claims were not measured alike."""
        mine, its = self._values(), other._values()
        return [field for field in FIELDS if mine.get(field) != its.get(field)]

    def _values(self) -> dict[str, list[Any]]:
        return {field: [value] for field, value in self.same.items()} | self.varied

    def _say(self, fields: Iterable[str]) -> str:
        values = self._values()
        words = [said(field, values[field]) for field in fields if field in values]
        return " · ".join([self.kind] * bool(self.kind) + words)


def measured_on(
    claim: Mapping[str, Any],
    noted: Mapping[str, Any],
    recorded: Mapping[str, Mapping[str, Sequence[Setting]]],
    asks: Mapping[str, str],
) -> Measured:
    """What is behind a claim.

    Args:
        claim: as the build command collects it.
        noted: what :func:`book.evidence.cells.behind` made of the run of its chapter.
        recorded: of each study the settings of each case.
        asks: of each study what it asks.
    """
    found = noted["claims"].get(claim["label"], {"rows": {}, "settings": []})
    rows = found["rows"]
    settings = [noted["settings"][i] for i in found["settings"]]
    for study, cases in rows.items():
        settings += [each for case in cases for each in recorded.get(study, {}).get(case, ())]
    same, varied = compared([_sure(each) for each in settings])
    models = [same.get("model"), *varied.get("model", [])]
    if {"width"} & {*same, *varied}:
        kind = ""
    elif any(models):
        kind = _listed([model for model in models if model])
    elif rows:
        kind = "; ".join(asks[study] for study in rows)
    elif others := [file for file in claim["files"] if not file.startswith("studies/")]:
        kind = f"recorded in {', '.join(others)}"
    elif claim["files"]:  # it may read a record, or only stand beside names that do
        kind = "not noted"
    elif claim["text"]:
        kind = "counted in Python's help texts"
    elif claim["samples"] > 1:
        kind = "random draws, no model of the package"
    else:
        kind = "counted" if claim["form"] == "equals" else "algebra"
    return Measured(kind, same, varied, rows)


def _sure(setting: Setting) -> Setting:
    """Of blocks without a model it is not known how many were used, nor under which norm."""
    unsure = ("blocks", "norm") if setting.get("model") == "Block" else ()
    return {field: value for field, value in setting.items() if field not in unsure}


def compared(settings: Sequence[Setting]) -> tuple[Setting, dict[str, list[Any]]]:
    """What settings share, and the values in which they differ."""
    same: Setting = {}
    varied: dict[str, list[Any]] = {}
    for field in FIELDS:
        values: list[Any] = []
        for setting in settings:
            if (value := setting.get(field)) not in values:
                values.append(value)
        if len(values) == 1 and values[0] is not None:
            same[field] = values[0]
        elif len(values) > 1:
            varied[field] = values
    return same, varied


def said(field: str, values: Sequence[Any], *, alone: bool = False) -> str:
    """A field and its values, as a reader would say them; or the values alone, in a column."""
    if field in NONE:
        values = [NONE[field] if value is None else value for value in values]
    values = [value for value in values if value is not None]
    if field in WORDS:
        values = [WORDS[field].get(value, value) for value in values]
    words = _listed(values)
    if alone:
        return words
    return SAID.get(field, f"{field} {{}}").format(words).removesuffix("s" * (words == "1"))


def _listed(values: Sequence[Any]) -> str:
    """A few are named; of more numbers the range, of more words how many."""
    values = list(dict.fromkeys(values))
    if len(values) <= FEW:
        return ", ".join(f"{value}" for value in values)
    if all(isinstance(value, int | float) for value in values):
        return f"{min(values)} to {max(values)}"
    return f"{values[0]} and {len(values) - 1} others"
