"""The table [track] of a configuration: the tools that mirror a run
(`fedblocks.runs.trackers` has them).
"""

from __future__ import annotations

from fedblocks.config.options import Table
from fedblocks.config.sources import Source
from fedblocks.core.errors import UserError, nearest

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


def check_tracker(name: str) -> str:
    """The name of a tracker, or the nearest ones."""
    if name not in TRACKERS:
        raise UserError(f'there is no tracker "{name}"', nearest(name, TRACKERS))
    return name


def trackers_of(table: Table, source: Source) -> list[str]:
    """The trackers that the table [track] of a configuration names, e.g. `to = ["tensorboard"]`."""
    track = table.get("track", {})
    place = f"{source.place(('track', 'to'))}: track"
    names = track.get("to", []) if isinstance(track, dict) and track.keys() <= {"to"} else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{place}: it says something else than `to`",
            'write [track] and below it to = ["tensorboard"]',
        )
    for name in names:
        if name not in TRACKERS:
            raise UserError(f'{place}.to: there is no tracker "{name}"', nearest(name, TRACKERS))
    return names
