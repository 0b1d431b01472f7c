"""What is to be known of a run before it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedblocks.config.model import Config
from fedblocks.runs.result import stored_config
from fedblocks.runs.storage.folder import RunFolder


class Begun(NamedTuple):
    """A run that has begun."""

    config: Config
    status: str


def read_begun(path: str | Path) -> Begun:
    """Configuration and status of a run; `resume` itself looks at its record, and may go on with
    one that no reader takes for whole.
    """
    with RunFolder.open(Path(path)) as folder:
        return Begun(stored_config(folder), folder.status)
