"""Keys that are used in several places at once, as the gateway notes them in the server's folder
and as they are told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fedblocks.core.small_files import read_small
from fedblocks.flower.keys.private_files import write_private

FILE = "shared_keys.json"
LASTS = 120.0  # seconds for which a note is news


@dataclass(frozen=True)
class SharedKey:
    """A key that several processes use."""

    processes: int
    addresses: list[str]
    when: float  # seconds since 1970

    def sentence(self, name: str, server: Path) -> str:
        """What is wrong, and what to do."""
        places = ", ".join(self.addresses)
        return (
            f"the key {name} is used by {self.processes} clients at once ({places}): stop all but "
            "one, and let every other machine make a key of its own (fedblocks federation join); "
            "if you do not know the others, the key was stolen: fedblocks federation revoke "
            f"{server} {name}"
        )


def write_shared(server: Path, shared: Mapping[str, SharedKey]) -> None:
    """Note which keys are shared now."""
    table = {name: asdict(key) for name, key in shared.items()}
    write_private(server / FILE, json.dumps(table).encode())


def read_shared(server: Path) -> dict[str, SharedKey]:
    """Read which keys are shared, as far as that is news."""
    try:
        table = json.loads(read_small(server / FILE))
        shared = {name: SharedKey(**entry) for name, entry in table.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {name: key for name, key in shared.items() if time.time() - key.when < LASTS}
