"""What longer training does to what was chosen; where a paper gives no rounds, that is open."""

from __future__ import annotations

from typing import Any


def length_notes(cells: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each setting: how far the validation scores of the chosen values move between the
    first rung of the search and the last.
    """
    moves: dict[str, list[tuple[str, float, str]]] = {}
    for key, entry in cells.items():
        setting, _, method = key.partition("/")
        if (move := _move(entry)) is not None:
            moves.setdefault(setting, []).append((method, *move))
    return [_line(setting, of_methods) for setting, of_methods in moves.items()]


def _line(setting: str, moves: list[tuple[str, float, str]]) -> str:
    spans = " or ".join(dict.fromkeys(span for *_, span in moves))
    by_method = ", ".join(f"{method} {move:+.1f}" for method, move, _ in moves)
    return (
        f"- {setting}: what longer training does to the validation accuracy of the values that "
        f"were chosen, from {spans} rounds: {by_method}."
    )


def _move(entry: dict[str, Any]) -> tuple[float, str] | None:
    """The last score minus the first one, and the rounds of both."""
    values = {key: value for key, value in entry.get("chosen", {}).items() if key != "rounds"}
    scores = sorted(
        (one["rounds"], one["validation"]) for one in entry["tuning"] if one["values"] == values
    )
    if len(scores) < 2:
        return None
    (few, first), *_, (many, last) = scores
    return last - first, f"{few} to {many}"
