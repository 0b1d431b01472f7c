"""The process that Flower's simulation runs in."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedblocks.flower.client.app import Sides, client_app
from fedblocks.flower.client.prepare import sides_at
from fedblocks.flower.hosts.setup import node_name
from fedblocks.flower.server import service
from fedblocks.flower.server.jobs import load_job
from fedblocks.flower.simulation import Resources
from fedblocks.flower.wire.run_spec import RunSpec


@cache  # a worker of Ray serves many messages, and loads data and nets once
def _sides(folder: Path, spec_json: str) -> Sides:
    spec = RunSpec.model_validate_json(spec_json)
    torch.set_num_threads(spec.threads or 1)
    return sides_at(folder, spec)


def main(resources_json: str) -> None:
    """Run a server and its nodes, each with the folder that it would have on a machine
    of its own.
    """
    resources = Resources.model_validate_json(resources_json)
    server = Path(resources.server)
    spec_json = load_job(server, resources.job).job.spec.model_dump_json()

    def sides_of(context: Context) -> Sides:
        node = node_name(int(context.node_config["partition-id"]))
        return _sides(server.parent / node, spec_json)

    def serve(grid: Grid, context: Context) -> None:
        service.serve(grid, server, resources.job)

    server_app = ServerApp()
    server_app.main()(serve)
    run_simulation(server_app, client_app(sides_of), resources.nodes, "ray", _backend(resources))


def _backend(resources: Resources) -> dict[str, Any]:
    cluster: dict[str, Any] = {} if resources.address is None else {"address": resources.address}
    return {
        "client_resources": {"num_cpus": resources.cpus, "num_gpus": resources.gpus},
        "init_args": {"include_dashboard": False, "logging_level": "warning", **cluster},
    }
