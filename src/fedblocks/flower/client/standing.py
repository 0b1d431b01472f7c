"""How a client's process stands with its server: a file in its folder, for whoever waits for it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE = "standing.json"


@dataclass(frozen=True)
class Standing:
    """One line of news."""

    state: Literal["trying", "connected", "failed"]
    text: str = ""  # for people
    fix: str = ""
    node: int | None = None  # Flower's number of this client
    process: int = 0
    holds: str = ""  # the examples of this machine, in a sentence

    def write(self, folder: Path) -> None:
        """Tell; a reader never sees half of it."""
        beside = folder / f".{FILE}"
        beside.write_text(json.dumps(asdict(self)))
        os.replace(beside, folder / FILE)

    @staticmethod
    def read(folder: Path) -> Standing | None:
        """The last news, if there ever were any."""
        try:
            return Standing(**json.loads((folder / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None
