"""The configuration that a run was started with, kept in its record as well: one that
was edited since belongs to another run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedblocks.core.errors import RunFolderError
from fedblocks.runs.storage.store import RunStore

KEY = "config"
EXTENDED = "config-extended"  # the same with more rounds, written before config.toml is
MOST = 5  # differences that are named


def remember_config(store: RunStore, config: Mapping[str, Any]) -> None:
    """Keep a resolved configuration in the record of its run."""
    store.write_facts(config_facts(config))


def config_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """What the record of a run has of its resolved configuration."""
    return {KEY: _text(config)}


def extension_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """What the record has of the configuration that an extended run is about to have."""
    return {EXTENDED: _text(config)}


def refuse_edited(store: RunStore, config: Mapping[str, Any]) -> None:
    """Refuse a configuration that differs from the one the run was started with; more
    rounds may be asked for.
    """
    text = store.meta(KEY)
    if text is None:  # a run of an earlier version
        return
    if _text(config) == store.meta(EXTENDED):  # after an early stop, maybe with fewer rounds
        return
    before = json.loads(text)
    after = json.loads(_text(config))
    planned = after.get("schedule_rounds")
    if planned is not None and planned == before.get("rounds"):  # it was extended
        before.setdefault("schedule_rounds", planned)
    rounds = before.get("rounds"), after.get("rounds")
    if all(isinstance(number, int) for number in rounds) and rounds[1] >= rounds[0]:
        before["rounds"] = rounds[1]
    differences = list(_differences(before, after, ""))
    if differences:
        more = f" and {len(differences) - MOST} more" if len(differences) > MOST else ""
        raise RunFolderError(
            f"config.toml is not as it was when the run was started: "
            f"{'; '.join(differences[:MOST])}{more}",
            "put that back, or start a run of its own with: fedblocks run CONFIG --out FOLDER",
        )


def as_it_was_read(config: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with what went without saying when it was written: user ids of a
    table were words, and their clients in the order of the alphabet.
    """
    data = config.get("data")
    if not isinstance(data, Mapping) or data.get("name") != "csv":
        return dict(config)
    options = {"ids": "words", **data.get("options", {})}
    return {**config, "data": {**data, "options": options}}


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=str)


def _differences(before: Any, after: Any, place: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({**before, **after}):
            below = f"{place}.{key}" if place else key
            yield from _differences(before.get(key), after.get(key), below)
    elif repr(before) != repr(after):  # NaN is itself here
        yield f"{place} was {_shown(before)}, now {_shown(after)}"


def _shown(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
