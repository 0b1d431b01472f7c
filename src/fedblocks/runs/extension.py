"""More rounds for a run that was to have fewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w

from fedblocks.core.errors import UserError
from fedblocks.runs.patience import SINCE
from fedblocks.runs.storage.config_record import extension_facts
from fedblocks.runs.storage.folder import CONFIG, RunFolder, write_atomically
from fedblocks.runs.storage.record import Note


def extend(folder: RunFolder, rounds: int | str) -> None:
    """Let a run have so many rounds in all, or with "+20" that many more than it was to have, or
    than it played if it was stopped early. Nothing is written yet: `write_extension` does it when
    all else has been checked.

    Schedules over the run's own rounds keep the length that they had: further rounds have their
    last value.
    """
    planned = int(folder.config["rounds"])
    before = played(folder) if is_stopped_early(folder) else planned
    table = {**folder.config, "rounds": _total(rounds, before)}
    if any(_schedules_over_run(table)):
        table.setdefault("schedule_rounds", planned)
    folder.config = table


def write_extension(folder: RunFolder) -> None:
    """Store what `extend` decided; a kill in between leaves the run as it was."""
    table = folder.config
    schedules = list(_schedules_over_run(table))
    notes = []
    if schedules and table["rounds"] > table["schedule_rounds"]:
        text = f"have the last value of {', '.join(schedules)}"
        notes = [Note(f"rounds after {table['schedule_rounds']} {text}", "warning")]
    folder.store.write_facts({SINCE: str(played(folder)), **extension_facts(table)}, notes)
    write_atomically(folder.path / CONFIG, tomli_w.dumps(table))


def played(folder: RunFolder) -> int:
    """The rounds on record."""
    return folder.store.last_round() or 0


def is_stopped_early(folder: RunFolder) -> bool:
    """Whether a listener or `stopping` ended the run before its last round."""
    return folder.status == "finished" and played(folder) < int(folder.config["rounds"])


def _total(rounds: int | str, before: int) -> int:
    text = str(rounds).strip()
    digits = text.removeprefix("+")
    if isinstance(rounds, bool) or not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise UserError(f"rounds = {rounds!r}", 'say how many more, "+20", or how many in all, 60')
    total = before + int(digits) if text.startswith("+") else int(digits)
    if total <= before:
        raise UserError(
            f"rounds = {text}: the run has {before} rounds already",
            'say how many more, e.g. "+20"',
        )
    return total


def _schedules_over_run(table: Mapping[str, Any]) -> Iterator[str]:
    """The options of all methods that are schedules over a part of the run, by their paths."""
    methods = {"method": table["method"]}
    groups = table.get("groups", {})
    methods |= {f"groups.{name}.method": group["method"] for name, group in groups.items()}
    for place, method in methods.items():
        for name, value in method.items():
            if isinstance(value, Mapping) and isinstance(value.get("rounds"), float):
                yield f"{place}.{name}"
