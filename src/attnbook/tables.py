"""A small table of numbers with names: what instruments hand back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cell = str | int | float | None


LINES = "o-", "s--", "^:", "D-.", "v-", "P--", "X:", "*-."


@dataclass(frozen=True)
class Table:
    """What a probe has read: named columns, one row for each thing.

    ``table["rms"]`` is a column as an array, ``len(table)`` the number of rows, and a loop gives
    each row as a dictionary. ``print(table)`` aligns it; a notebook shows it as a table.

    Args:
        columns: their names, the first three being ``name``, ``layer`` and ``part``.
        rows: a cell for each column; ``None`` where there is no layer or nothing was read.

    Raises:
        ValueError: if a row has not as many cells as there are columns.

    Example:
        >>> table = Table(("name", "layer", "part", "rms"),
        ...               (("blocks.0", 0, "block", 1.0), ("blocks.1", 1, "block", 1.25)))
        >>> print(table)
        name      layer  part    rms
        blocks.0      0  block     1
        blocks.1      1  block  1.25
        >>> table.where(layer=1)["rms"]
        array([1.25])
        >>> table["rmse"]
        Traceback (most recent call last):
        KeyError: "there is no column 'rmse', only name, layer, part, rms"
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        """Check the rows' lengths."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells for {len(self.columns)} columns")

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        """Each row, by the columns' names."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column: numbers, or names; what is not there is NaN."""
        cells = self._cells(column)
        if any(cell is None for cell in cells):
            return np.array([np.nan if cell is None else cell for cell in cells])
        return np.array(cells) if cells else np.empty(0)

    @property
    def parts(self) -> list[str]:
        """The different parts, in the model's order."""
        return list(dict.fromkeys(str(part) for part in self._cells("part")))

    @property
    def layers(self) -> list[int]:
        """The different layers, from the first to the last."""
        return sorted({layer for layer in self._cells("layer") if isinstance(layer, int)})

    def where(self, **conditions: Cell | Iterable[Cell]) -> "Table":
        """The rows whose cells are as asked.

        Args:
            conditions: for a column, the cell's value; for names a pattern as for files,
                ``part="attention.*"``; or several of them: ``layer=range(2, 4)``.

        Raises:
            KeyError: if there is no such column.
            ValueError: if a column has no such cell, or lacks one of several (a range may go
                beyond), or if no row fits all; names what there is.

        Example:
            >>> rows = ("h.0.attn", 0, "attn"), ("h.0.mlp", 0, "mlp")
            >>> table = Table(("name", "layer", "part"), rows)
            >>> table.where(part="att*", layer=0)["name"].tolist()
            ['h.0.attn']
        """
        kept = list(range(len(self)))
        for column, wanted in conditions.items():
            cells = self._cells(column)
            one = isinstance(wanted, str) or not isinstance(wanted, Iterable)
            options: list[Any] = [wanted] if one else list(wanted)  # type: ignore[arg-type]
            fits = [[_fits(cell, option) for cell in cells] for option in options]
            lost = [option for option, row in zip(options, fits, strict=True) if not any(row)]
            if lost and (not isinstance(wanted, range) or len(lost) == len(options)):
                there = ", ".join(dict.fromkeys(_text(cell, "None") for cell in cells))
                raise ValueError(f"no {column} is {lost[0]!r}; there are {there or 'no rows'}")
            kept = [i for i in kept if any(row[i] for row in fits)]
        if conditions and not kept:
            asked = ", ".join(f"{name}={value!r}" for name, value in conditions.items())
            raise ValueError(f"no row has {asked} at once")
        return Table(self.columns, tuple(self.rows[i] for i in kept))

    def plot(self, column: str, *, ax: Any = None) -> Any:
        """Draw a column over the layers, one line for each part.

        Rows without a layer are left out. The scale is logarithmic where the values span more than
        two decades. With more than a few parts, choose some first:
        ``table.where(part="attention*").plot("rms")``.

        Args:
            column: one of numbers.
            ax: matplotlib's Axes to draw on; new ones if not given. With many parts the legend
                stands to the right of them.

        Returns:
            The Axes.

        Raises:
            KeyError: if there is no such column.
            ValueError: if it holds no numbers, is the layer itself, or was read in no row that
                has a layer.
            ImportError: if matplotlib is not installed.
        """
        values = self[column]
        if values.dtype.kind not in "fi" or column == "layer":
            raise ValueError(f"column {column!r} holds no numbers to draw over the layers")
        if not self.layers:
            raise ValueError("no row has a layer: there is nothing to draw over")
        layers, parts = self["layer"], self._cells("part")
        drawn = values[(layers >= 0) & np.isfinite(values)]
        if not len(drawn):
            raise ValueError(
                f"column {column!r} holds no finite number in a layer: was it read? (Gradients "
                "need a backward pass inside the probe's block.)"
            )
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("plots need matplotlib: pip install 'attnbook[book]'") from None
        if ax is None:
            _, ax = pyplot.subplots(layout="constrained")
        colours = pyplot.rcParams["axes.prop_cycle"].by_key().get("color", ["black"])
        for part in self.parts:
            chosen = [i for i, name in enumerate(parts) if name == part and layers[i] >= 0]
            if chosen:
                again, i = divmod(len(ax.get_lines()), len(colours))
                style = LINES[(i + again) % len(LINES)]  # the colour again, another marker
                ax.plot(
                    *(layers[chosen], values[chosen], style),
                    **{"color": colours[i], "markersize": 4, "label": part},
                )
        if drawn.min() > 0 and drawn.max() > 100 * drawn.min():
            ax.set_yscale("log")
        ax.set_xticks(self.layers)
        ax.set(xlabel="layer", ylabel=column.replace("_", " "))
        many = len(ax.get_lines()) > 6
        beside = {"loc": "upper left", "bbox_to_anchor": (1, 1), "fontsize": "small"}
        ax.legend(**(beside if many else {}))
        return ax

    def __str__(self) -> str:
        """The table as aligned text, three digits a number."""
        lines = [list(self.columns), *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        words = [all(isinstance(row[i], str) for row in self.rows) for i in range(len(widths))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(line, widths, words, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(map(_text, row), "td") for row in self.rows)
        return f"<table><thead>{line(self.columns, 'th')}</thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        """In short: ``print`` shows the table."""
        return f"<Table of {len(self)} rows: {', '.join(self.columns)}>"

    def _cells(self, column: str) -> list[Cell]:
        if not isinstance(column, str):
            raise TypeError(
                f"a table is asked for a column by its name, got {column!r}; "
                "for rows, use where(…), list(table) or a loop"
            )
        if column not in self.columns:
            raise KeyError(f"there is no column {column!r}, only {', '.join(self.columns)}")
        place = self.columns.index(column)
        return [row[place] for row in self.rows]


def _fits(cell: Cell, wanted: Cell) -> bool:
    if isinstance(cell, str) and isinstance(wanted, str):
        return cell == wanted or fnmatchcase(cell, wanted)
    return cell == wanted


def _text(cell: Cell, none: str = "–") -> str:
    if cell is None:
        return none
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
