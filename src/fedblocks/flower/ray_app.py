"""Both apps of a federation that Flower simulates; they find its folder and their job in what the
run was started with.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedblocks.flower.client import app
from fedblocks.flower.client.prepare import sides_at
from fedblocks.flower.hosts.setup import node_name
from fedblocks.flower.server import service
from fedblocks.flower.server.jobs import load_job


@cache  # a worker of Ray serves many messages, and loads data and nets once
def _sides(server: Path, job: str, node: str) -> app.Sides:
    spec = load_job(server, job).job.spec
    torch.set_num_threads(spec.threads or 1)
    return sides_at(server.parent / node, spec)


def _job_of(context: Context) -> tuple[Path, str]:
    return Path(str(context.run_config["server"])), str(context.run_config["job"])


def _sides_of(context: Context) -> app.Sides:
    return _sides(*_job_of(context), node_name(int(context.node_config["partition-id"])))


def _serve(grid: Grid, context: Context) -> None:
    service.serve(grid, *_job_of(context))


client_app = app.client_app(_sides_of)
server_app = ServerApp()
server_app.main()(_serve)
