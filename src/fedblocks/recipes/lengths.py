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


def older_rule(cells: dict[str, dict[str, Any]]) -> list[str]:
    """A line that names cells that trained for all rounds though fewer had a better score, where
    those of others were chosen.
    """
    done = {key: entry for key, entry in cells.items() if entry["seeds"] and entry.get("chosen")}
    if not any("rounds" in entry["chosen"] for entry in done.values()):
        return []
    older = [key for key, entry in done.items() if _is_older(entry)]
    text = "- Of all rounds, not of as many as validation data ask for: "
    return [f"{text}{', '.join(older)}."] if older else []


def _is_older(entry: dict[str, Any]) -> bool:
    if "rounds" in entry["chosen"]:
        return False
    best = max(entry["tuning"], key=lambda one: one["validation"])
    return bool(best["rounds"] < max(one["rounds"] for one in entry["tuning"]))


def _line(setting: str, moves: list[tuple[str, float, str]]) -> str:
    spans = " or ".join(dict.fromkeys(span for *_, span in moves))
    by_method = ", ".join(f"{method} {move:+.1f}" for method, move, _ in moves)
    return (
        f"- {setting}: what longer training does to the validation accuracy of the values that "
        f"were chosen, from {spans} rounds: {by_method}."
    )


def _move(entry: dict[str, Any]) -> tuple[float, str] | None:
    """The last score minus the first one, and the rounds of both."""
    values = {key: value for key, value in (entry.get("chosen") or {}).items() if key != "rounds"}
    if not values:
        return None
    scores = sorted(
        (one["rounds"], one["validation"]) for one in entry["tuning"] if one["values"] == values
    )
    if len(scores) < 2:
        return None
    (few, first), *_, (many, last) = scores
    return last - first, f"{few} to {many}"
