"""A small table of numbers with names: what a probe hands back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from math import isfinite
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

Cell = str | int | float | None
MARKERS = "os^Dv<>P"


@dataclass(frozen=True)
class Table:
    """Named columns and one row for each thing; a loop gives each row as a dictionary.

    Args:
        columns: their names, the first three being ``name``, ``layer`` and ``part``.
        rows: a cell for each column; ``None`` where there is no layer or nothing was read.
        note: a line that is printed below the rows.

    Example:
        >>> table = Table(("name", "layer", "part", "rms"),
        ...               (("blocks.0", 0, "block", 1.0), ("blocks.1", 1, "block", 1.25)))
        >>> print(table)
        name      layer  part    rms
        blocks.0      0  block     1
        blocks.1      1  block  1.25
        >>> table["rms"]
        array([1.  , 1.25])
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        """Each row, by the columns' names."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column: numbers, or names; what is not there is NaN."""
        cells = self._cells(column)
        return np.array([np.nan if cell is None else cell for cell in cells])

    @property
    def parts(self) -> list[str]:
        """The different parts, in the model's order."""
        return list(dict.fromkeys(str(part) for part in self._cells("part")))

    @property
    def layers(self) -> list[int]:
        """The different layers, from the first to the last."""
        return sorted({layer for layer in self._cells("layer") if isinstance(layer, int)})

    def where(self, **conditions: Cell | SupportsIndex | Iterable[Cell | SupportsIndex]) -> "Table":
        """The rows whose cells are as asked.

        Args:
            conditions: for a column, the cell's value; for names a pattern as for files,
                ``part="attention.*"``; or several of them: ``layer=range(2, 4)``.

        Raises:
            KeyError: if there is no such column.
            ValueError: if no row fits, naming what there is.

        Example:
            >>> rows = ("h.0.attn", 0, "attn"), ("h.0.mlp", 0, "mlp")
            >>> table = Table(("name", "layer", "part"), rows)
            >>> table.where(part="att*", layer=0)["name"].tolist()
            ['h.0.attn']
        """
        table = self
        for column, wanted in conditions.items():
            several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
            several = several and getattr(wanted, "ndim", 1) > 0  # argmax gives an array of one
            options: list[Any] = list(wanted) if several else [wanted]  # type: ignore[arg-type]
            fits = [any(_fits(cell, option) for option in options) for cell in table._cells(column)]
            if not any(fits):
                cells = ", ".join(dict.fromkeys(map(str, table._cells(column))))
                raise ValueError(f"no {column} is {wanted!r}; there are {cells or 'no rows'}")
            rows = tuple(row for row, fit in zip(table.rows, fits, strict=True) if fit)
            table = Table(self.columns, rows, self.note)
        return table

    def plot(self, column: str, *, ax: Any = None) -> Any:
        """Draw a column over the layers, one line for each part; rows without a layer are left out.

        Args:
            column: one of numbers; logarithmic if they span more than two decades.
            ax: matplotlib's Axes to draw on; new ones if not given.

        Returns:
            The Axes.

        Raises:
            ValueError: if the column holds no finite number in a layer.
        """
        from matplotlib import pyplot

        rows = [row for row in self if isinstance(row["layer"], int)]
        drawn = [y for row in rows if isinstance(y := row[column], int | float) and isfinite(y)]
        if not drawn:
            raise ValueError(f"column {column!r} holds no finite number in a layer: was it read?")
        if ax is None:
            _, ax = pyplot.subplots(layout="constrained")
        for i, part in enumerate(dict.fromkeys(row["part"] for row in rows)):
            points = [(row["layer"], row[column]) for row in rows if row["part"] == part]
            style = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "label": part}
            ax.plot(*np.array(points, dtype=float).T, **style)
        if min(drawn) > 0 and max(drawn) > 100 * min(drawn):
            ax.set_yscale("log")
        ax.set_xticks(self.layers)
        ax.set(xlabel="layer", ylabel=column.replace("_", " "))
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
        return ax

    def __str__(self) -> str:
        """The table as aligned text, three digits a number."""
        columns = []
        for name in self.columns:
            cells = self._cells(name)
            texts = [name, *map(_text, cells)]
            align = str.ljust if all(isinstance(cell, str) for cell in cells) else str.rjust
            columns.append([align(text, max(map(len, texts))) for text in texts])
        lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
        return "\n".join([*lines, self.note] if self.note else lines)

    def __repr__(self) -> str:
        """In short: ``print`` shows the table."""
        note = f"; {self.note}" if self.note else ""
        return f"<Table of {len(self)} rows: {', '.join(self.columns)}{note}>"

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        rows = [line(self.columns, "th"), *(line(map(_text, row), "td") for row in self.rows)]
        return f"<table>{''.join(rows)}</table><p>{escape(self.note)}</p>"

    def _cells(self, column: str) -> list[Cell]:
        if column not in self.columns:
            raise KeyError(f"there is no column {column!r}, only {', '.join(self.columns)}")
        i = self.columns.index(column)
        return [row[i] for row in self.rows]


def _fits(cell: Cell, wanted: Cell | SupportsIndex) -> bool:
    if isinstance(cell, str) and isinstance(wanted, str):
        return cell == wanted or fnmatchcase(cell, wanted)
    return bool(cell == wanted)


def _text(cell: Cell) -> str:
    if cell is None:
        return "–"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
