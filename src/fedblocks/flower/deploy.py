"""The server's app, as Flower starts it; it finds its folder in its environment."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedblocks.flower.hosts.launch import SERVER
from fedblocks.flower.server import service


def _serve(grid: Grid, context: Context) -> None:
    service.serve(grid, Path(os.environ[SERVER]), str(context.run_config["job"]))


# Flower wants every app to name one; clients run what is installed on them (`node.py`)
client_app = ClientApp()
server_app = ServerApp()
server_app.main()(_serve)
