"""Flower's `flwr-serverapp` with one defence of the server switched off, if a file says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flwr.superlink.cli import flwr_serverapp

from fedblocks.flower.server.rounds import OpenRound

if (Path(os.environ["FEDBLOCKS_SERVER"]) / "never-ask-again").exists():
    OpenRound.ask_again = lambda self, client: None  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(flwr_serverapp())
