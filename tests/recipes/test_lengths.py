"""The page says what longer training did to the values that were chosen."""

from __future__ import annotations

from typing import Any

from fedblocks.recipes.lengths import length_notes, older_rule


def tried(rate: float, rounds: int, validation: float) -> dict[str, Any]:
    return {"values": {"method.lr": rate}, "rounds": rounds, "validation": validation}


def test_only_the_chosen_values_count_from_the_first_rung_to_the_last() -> None:
    search = [
        tried(0.1, 40, 80.0),
        tried(0.3, 40, 85.0),
        tried(0.1, 200, 78.5),
        tried(0.1, 100, 82),
    ]
    cells = {
        "two/fedavg": {"tuning": search, "chosen": {"method.lr": 0.1}},
        "two/local": {
            "tuning": [tried(1, 20, 50.0), tried(1, 100, 52.0)],
            "chosen": {"method.lr": 1, "rounds": 20},
        },
        "two/once": {"tuning": [tried(1, 20, 50.0)], "chosen": {"method.lr": 1}},
        "ten/open": {"tuning": search},  # nothing is chosen yet
    }
    (line,) = length_notes(cells)
    assert line.startswith("- two: ")
    assert line.endswith("from 40 to 200 or 20 to 100 rounds: fedavg -1.5, local +2.0.")


def test_cells_of_all_rounds_are_named_where_validation_data_ask_for_fewer() -> None:
    seeds = {"0": {}}
    chosen = {"tuning": [], "chosen": {"method.lr": 1, "rounds": 40}, "seeds": seeds}
    falling = [tried(1, 20, 52.0), tried(1, 100, 50.0)]
    rising = [tried(1, 20, 50.0), tried(1, 100, 52.0)]
    older = {"tuning": falling, "chosen": {"method.lr": 1}, "seeds": seeds}
    cells = {
        "two/a": chosen,
        "two/b": older,
        "two/c": {**older, "tuning": rising},
        "two/open": {"tuning": falling, "seeds": {}},
        "two/stale": {**older, "seeds": {}},  # chosen once, and to be run again
    }
    (line,) = older_rule(cells)
    assert line.endswith("ask for: two/b.")
    # a table whose rounds are given has no such rule
    assert older_rule({"two/b": older}) == []
