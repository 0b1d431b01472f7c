"""Charts as plain values: what is drawn, and the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from fedblocks.core.finite import with_finite_numbers

Cells = list[Any]

# Okabe and Ito's colours, which people with colour-blindness can tell apart; the darker ones first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
CELLS = 2_000  # of a table; everything is in the folder of the run


@dataclass(frozen=True)
class Chart:
    """One chart with its table."""

    id: str
    title: str
    note: str
    data: list[dict[str, Any]]  # traces, as the chart library has them
    layout: dict[str, Any]
    columns: Sequence[str]
    rows: list[Cells]
    # positions of the slider: label and z
    steps: list[dict[str, Any]] = field(default_factory=list)
    more: int = 0  # rows that the table leaves out

    @staticmethod
    def of(
        id: str, title: str, note: str, columns: Sequence[str], rows: list[Cells], **plot: Any
    ) -> Chart:
        """A chart whose table is cut where it would be too long to read."""
        most = max(20, CELLS // max(1, len(columns)))
        more = max(0, len(rows) - most)
        return Chart(id, title, note, columns=columns, rows=rows[:most], more=more, **plot)

    def slim(self) -> Chart:
        """The same chart without a slider, and with the first rows of its table only."""
        more = self.more + max(0, len(self.rows) - 20)
        return replace(self, steps=[], rows=self.rows[:20], more=more)

    def script_data(self) -> dict[str, Any]:
        """What the page's script needs."""
        whole = {"id": self.id, "data": self.data, "layout": self.layout, "steps": self.steps}
        data: dict[str, Any] = with_finite_numbers(whole)  # a loss may be endless
        return data


@dataclass(frozen=True)
class Look:
    """How a method looks in every chart."""

    colour: str
    dash: str
    symbol: str

    @staticmethod
    def number(index: int) -> Look:
        """Colours first, then other dashes: no two of 28 are alike."""
        many = len(COLOURS)
        turn = index // many
        symbol = SYMBOLS[(index + turn) % len(SYMBOLS)]
        return Look(COLOURS[index % many], DASHES[turn % len(DASHES)], symbol)


def plain(text: object, most: int = 40) -> str:
    """Text that the chart library shows as it is: it would take tags for markup."""
    shown = "".join(c if c.isprintable() else " " for c in str(text))
    return escape(shown if len(shown) <= most else shown[: most - 1] + "…", quote=False)


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """A layout with titles of axes."""
    return {"xaxis": {"title": {"text": x, "standoff": 6}}, "yaxis": {"title": {"text": y}}, **more}


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the others stays below; always one of the values."""
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


def rgba(colour: str, alpha: float) -> str:
    """A colour that lets others shine through."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
