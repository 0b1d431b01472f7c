"""Starts the server of a federation many times and kills it, with its clients; a program as
tests/runs/kill_server.py is, for runs whose updates travel as Flower's messages.

Arguments: folder, number of kills, rounds between two checkpoints.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tests are no packages

from flower.test_service import Host
from runs.kill_server import kill_often

CLIENTS = 3
CHANGES: dict[str, Any] = {
    "rounds": 8,
    "data": {
        "name": "gaussian",
        "clients": CLIENTS,
        "options": {"rows": 90, "classes": 3, "features": 5},
        "split": [0.6, 0.2, 0.2],
    },
    "net": {"name": "mlp", "hidden": [6]},
    "method": {"name": "pfedmb", "batch_size": 8, "branches": 2},
    "evaluation": {"every": 3},
}


class Served:
    """A server and its clients, which keep their own blocks on disk."""

    def __init__(self) -> None:
        self.hosts: dict[Path, Host] = {}

    def prepare(self, folder: Path) -> None:
        self.hosts[folder] = Host(folder, CHANGES)

    def begin(self, folder: Path) -> None:
        self.hosts[folder].serve(nodes=range(CLIENTS))

    def go_on(self, folder: Path) -> None:
        self.begin(folder)

    def stored(self, folder: Path) -> Path:
        return self.hosts[folder].path


if __name__ == "__main__":
    torch.set_num_threads(1)
    kills, every = map(int, sys.argv[2:4])
    print(json.dumps(kill_often(Served(), Path(sys.argv[1]), kills, every)))
