"""Results as small tables: mappings and rows that print well, on a terminal and in a notebook."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedblocks.core.errors import printable
from fedblocks.runs.out_files import check_out_folder

Row = Mapping[str, Any]


class TableRows(Sequence[Row]):
    """Rows of a table; `str` aligns them, a notebook shows them as a table."""

    def __init__(self, rows: Sequence[Row], title: str = "") -> None:
        self._rows, self._title = list(rows), title

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        return self._rows[at]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __str__(self) -> str:
        columns = self._columns
        texts = [columns, *([_cell(row.get(key)) for key in columns] for row in self)]
        widths = [max(len(text[place]) for text in texts) for place in range(len(columns))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(text, widths)) for text in texts
        ]
        return "\n".join([*([self._title] if self._title else []), *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = self._columns
        head = "".join(f"<th>{html.escape(key)}</th>" for key in columns)
        cells = [
            "".join(f"<td>{html.escape(_cell(row.get(key)))}</td>" for key in columns)
            for row in self
        ]
        body = "".join(f"<tr>{line}</tr>" for line in cells)
        return f"<table><caption>{html.escape(self._title)}</caption><tr>{head}</tr>{body}</table>"

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows, with all digits, to a CSV file with a line of column names; where it
        was written.
        """
        check_out_folder(Path(path))
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(self._rows)
        return Path(path)

    @property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys(key for row in self for key in row))


class SummaryTable(dict[str, float | None]):
    """The numbers of one evaluation by name; `str` shows every evaluated part and model
    beside them.
    """

    def __init__(
        self, numbers: Mapping[str, float | None], rows: TableRows, remarks: Sequence[str] = ()
    ) -> None:
        super().__init__(numbers)
        self.table = rows
        self.remarks = [text for text in remarks if text]  # on what is not in the numbers

    def __str__(self) -> str:
        return "\n".join([str(self.table), *self.remarks])

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{html.escape(text)}</p>" for text in self.remarks)
        return self.table._repr_html_() + remarks


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else printable(value)


def describe_run(run: Any) -> str:
    """A run in a line; its settings and numbers are in its attributes."""
    done = f"{run.status} after round {run.rounds} of {run.config.rounds}"
    return f"RunResult({run.config.method.name}, {done}, folder={str(run.folder)!r})"
