"""What is there to see of a run, or of a folder of runs, and whether it is new."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from fedblocks.reports.html.gather import Story, gather
from fedblocks.reports.html.page import Content
from fedblocks.runs.grids.grid import PLAN
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.folder import BEFORE_CONFIG, CONFIG, STORE, RunFolder
from fedblocks.runs.storage.store import SUFFIXES
from fedblocks.watch.places import Place

REST = 10  # after a look, rest this many times as long: others need the processor


class Seen(NamedTuple):
    """One look at a folder."""

    version: str
    status: str  # in a few words
    story: Story
    content: Content

    def as_json(self) -> str:
        """What a page needs to renew itself."""
        fresh = {"version": self.version, "status": self.status, "html": self.content.html()}
        return json.dumps({**fresh, "charts": self.content.script_data()}, allow_nan=False)


class Watched:
    """A folder that is looked at again and again, by several readers, and read anew
    only when it has changed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = Place.of(path)
        self._lock = Lock()  # readers come from several threads
        self._seen: Seen | None = None
        self._next = 0.0  # no look before this time

    def look(self) -> Seen:
        """The newest state that is worth reading; raises what `gather` has to say of a
        folder that is no run.
        """
        with self._lock:
            self._place.refuse_moved()
            if self._seen is not None and time.monotonic() < self._next:
                return self._seen
            version = _version(self.path)
            if self._seen is None or self._seen.version != version:
                began = time.monotonic()
                story = gather(self.path, self._seen.story if self._seen is not None else None)
                self._seen = Seen(version, status_of(story), story, Content.of(story))
                self._next = time.monotonic() + REST * (time.monotonic() - began)
            return self._seen


def has_begun(path: Path) -> bool:
    """Whether there is anything to look at; what can never be a run counts, so that its
    error is shown.
    """
    if not path.is_dir():
        return path.exists()
    names = {entry.name for entry in path.iterdir()}
    if PLAN in names:
        return any(path.glob(f"*/*/{CONFIG}"))
    return not names <= BEFORE_CONFIG


def status_of(story: Story) -> str:
    """How the runs of a folder stand, and when that was."""
    runs = [facts.result for by_seed in story.runs.values() for facts in by_seed.values()]
    if len(runs) == 1:
        return f"{runs[0].status}: round {runs[0].rounds} of {runs[0].config.rounds}, seen {now()}"
    states = [run.status for run in runs]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(runs)} runs: {', '.join(counts)}, seen {now()}"


def _version(path: Path) -> str:
    """A text that changes when anything in the records does, or when the process behind
    a run is gone.
    """
    folders = sorted(
        file.parent
        for file in [*path.glob(CONFIG), *path.glob(f"*/{CONFIG}"), *path.glob(f"*/*/{CONFIG}")]
    )
    seen = [(str(folder), *_stamp(folder)) for folder in folders if (folder / STORE).is_file()]
    return sha256(json.dumps(seen).encode()).hexdigest()[:16]


def _stamp(folder: Path) -> list[object]:
    files = [folder / f"{STORE}{suffix}" for suffix in SUFFIXES]
    sizes = [
        (file.stat().st_mtime_ns, file.stat().st_size) for file in files if os.path.exists(file)
    ]
    with RunFolder.open(folder) as opened:
        return [opened.status, *sizes]
