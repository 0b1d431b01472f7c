"""More rounds for a run that was to have fewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedblocks.config.code.ingredients import Ingredients
from fedblocks.core.errors import UserError
from fedblocks.runs.patience import SINCE
from fedblocks.runs.result import config_of
from fedblocks.runs.run import check_untouched, refuse_real
from fedblocks.runs.storage.folder import CONFIG, RunFolder, write_atomically


def extend(path: Path, rounds: int | str, ingredients: Ingredients | None = None) -> None:
    """Let a run have so many rounds in all, or with "+20" that many more; `resume` plays them.

    Schedules over the run's own rounds keep the length that they had: further rounds have their
    last value.
    """
    with RunFolder.open(path) as folder:
        folder.claim()
        check_untouched(folder)
        refuse_real(folder)
        config_of(folder, ingredients)  # refuses what could not go on
        before = int(folder.config["rounds"])
        table = {**folder.config, "rounds": _total(rounds, before)}
        if schedules := list(_schedules_over_run(table)):
            table.setdefault("schedule_rounds", before)
            text = f"have the last value of {', '.join(schedules)}"
            folder.store.note(f"rounds after {table['schedule_rounds']} {text}", "warning")
        folder.store.set_meta(SINCE, str(folder.store.last_round() or 0))
        write_atomically(folder.path / CONFIG, tomli_w.dumps(table))
        folder.set_status("interrupted")


def _total(rounds: int | str, before: int) -> int:
    text = str(rounds).strip()
    digits = text.removeprefix("+")
    if isinstance(rounds, bool) or not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise UserError(f"rounds = {text!r}", 'say how many more, "+20", or how many in all, 60')
    total = before + int(digits) if text.startswith("+") else int(digits)
    if total <= before:
        raise UserError(
            f"rounds = {text!r}: the run has {before} rounds already",
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
