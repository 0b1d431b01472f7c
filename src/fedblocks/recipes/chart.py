"""A table as a picture: published numbers beside ours with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedblocks.recipes.show import Row

WIDTH, ROW, HEAD, LABELS = 230, 18, 34, 110  # pixels: a panel, a method's line, a title, names
STYLE = "font: 11px sans-serif; fill: #24292f"
OURS, PUBLISHED = "#0b62a4", "#c2571a"


def chart_of(rows: Sequence[Row]) -> str:
    """SVG: a panel for each setting, a line for each method; settings without numbers are left
    out.
    """
    measured = [row for row in rows if row["ours"] is not None]
    settings = list(dict.fromkeys(_setting(row) for row in measured))
    methods = list(dict.fromkeys(_method(row) for row in measured))
    panels = [
        _panel([row for row in measured if _setting(row) == setting], methods, LABELS + i * WIDTH)
        for i, setting in enumerate(settings)
    ]
    names = [_text(4, _line(i) + 4, method) for i, method in enumerate(methods)]
    width, height = LABELS + WIDTH * len(settings), _line(len(methods)) + 22
    legend = [
        _mark(12, height - 12, OURS),
        _text(20, height - 8, "ours, 95 % interval over seeds"),
        _diamond(212, height - 12),
        _text(220, height - 8, "published"),
    ]
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    body = "\n".join([*names, *panels, *legend])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} style="{STYLE}">\n{body}\n</svg>\n'


def _panel(rows: Sequence[Row], methods: Sequence[str], left: int) -> str:
    low, high = _range(rows)
    scale = (WIDTH - 40) / (high - low)

    def place(value: float) -> float:
        return left + 10 + (value - low) * scale

    parts = [_text(left + 10, 14, _setting(rows[0]))]
    for tick in (low, (low + high) / 2, high):
        parts += [_text(place(tick) - 10, HEAD - 8, f"{tick:.4g}"), _rule(place(tick), methods)]
    for row in rows:
        y = _line(methods.index(_method(row)))
        half = row["half_width"] or 0.0
        ends = place(row["ours"] - half), place(row["ours"] + half)
        parts += [_interval(*ends, y), _mark(place(row["ours"]), y, OURS)]
        if row["published"] is not None:
            parts.append(_diamond(place(row["published"]), y))
    return "\n".join(parts)


def _range(rows: Sequence[Row]) -> tuple[float, float]:
    """Even numbers around all that is drawn."""
    halves = [(row["ours"], row["half_width"] or 0.0) for row in rows]
    ends = [mean + sign * half for mean, half in halves for sign in (-1, 1)]
    ends += [row["published"] for row in rows if row["published"] is not None]
    return 2.0 * (min(ends) // 2), 2.0 * (max(ends) // 2 + 1)


def _setting(row: Row) -> str:
    return str(row["name"]).partition("/")[0]


def _method(row: Row) -> str:
    return str(row["name"]).partition("/")[2]


def _line(i: int) -> int:
    return HEAD + 10 + i * ROW


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _rule(x: float, methods: Sequence[str]) -> str:
    ends = f'y1="{HEAD}" y2="{_line(len(methods) - 1) + 8}"'
    return f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="#d8dee4"/>'


def _interval(left: float, right: float, y: float) -> str:
    return f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}" stroke="{OURS}"/>'


def _mark(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="3.5" fill="{colour}"/>'


def _diamond(x: float, y: float) -> str:
    points = f"{x - 4:.1f},{y} {x:.1f},{y - 4} {x + 4:.1f},{y} {x:.1f},{y + 4}"
    return f'<polygon points="{points}" fill="none" stroke="{PUBLISHED}" stroke-width="1.5"/>'
