"""A client's connection to its server, in a file of its folder: trying, connected or failed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fedblocks.core.small_files import read_small

FILE = "standing.json"


@dataclass(frozen=True)
class Standing:
    """The state of the connection, with a line for people."""

    state: Literal["trying", "connected", "failed"]
    text: str = ""  # for people
    fix: str = ""
    node: int | None = None  # Flower's number of this process
    process: int = 0
    holds: str = ""  # the examples of this machine, in a sentence

    def write(self, folder: Path) -> None:
        """Write the file; a reader never sees half of it."""
        beside = folder / f".{FILE}"
        beside.write_text(json.dumps(asdict(self)))
        os.replace(beside, folder / FILE)

    @staticmethod
    def read(folder: Path) -> Standing | None:
        """Read the file, if there is one."""
        try:
            return Standing(**json.loads(read_small(folder / FILE)))
        except (OSError, ValueError, TypeError):
            return None
