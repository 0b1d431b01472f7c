"""What a trial of engines measured: kept in a file, unless other programs disturbed it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CACHE = "FEDBLOCKS_ENGINES"  # environment variable: where choices are kept
# seconds for which a disturbed trial counts: runs side by side, which disturb each other, choose
# alike, and later ones measure again
DOUBT = 3600.0


@dataclass(frozen=True)
class Measured:
    """Seconds of each engine for the same few steps."""

    seconds: Mapping[str, float]
    is_disturbed: bool = False  # other programs used cores that the trial needed
    at: float = 0.0  # seconds since 1970; 0: just now

    @property
    def when(self) -> str:
        """What is to be known of a trial that was stored, or disturbed; else nothing."""
        day = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M")
        stored = f", measured at {day} UTC" if self.at else ""
        busy = " beside other programs; measured again after an hour" if self.is_disturbed else ""
        return stored + busy


def recall(key: str) -> Measured | None:
    """What was measured before, if that still counts."""
    try:
        stored: Any = json.loads(_file(key).read_text())
        seconds = {str(name): float(value) for name, value in stored["seconds"].items()}
        known = Measured(seconds, bool(stored["is_disturbed"]), float(stored["at"]))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
    is_old = known.is_disturbed and not 0 <= time.time() - known.at < DOUBT
    return None if is_old or "sequential" not in seconds else known


def keep(key: str, measured: Measured) -> Measured:
    """Whoever writes first decides for all, so that runs side by side choose alike."""
    draft = _file(key).with_name(f".{key}-{os.getpid()}")
    try:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(asdict(replace(measured, at=time.time()))))
        if recall(key) is None:
            _file(key).unlink(missing_ok=True)  # it counts no more
        with suppress(FileExistsError):
            os.link(draft, _file(key))
        draft.unlink()
    except OSError:
        return measured  # nowhere to write: it is tried again next time
    known = recall(key)
    return measured if known is None or known.seconds == measured.seconds else known


def folder() -> Path:
    """Where all of them are."""
    named = os.environ.get(CACHE)
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(named or f"{base}/fedblocks/engines").expanduser()


def _file(key: str) -> Path:
    return folder() / f"{key}.json"
