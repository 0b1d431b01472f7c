"""The two apps that Flower starts on the machines of a federation; each finds its folder in its environment."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedblocks.flower import apps, service
from fedblocks.flower.launch import CLIENT, SERVER
from fedblocks.flower.terms import RunTerms, sides_at


@cache
def _sides(terms: str) -> apps.Sides:
    told = RunTerms.model_validate_json(terms)
    torch.set_num_threads(told.threads or torch.get_num_threads())
    return sides_at(Path(os.environ[CLIENT]), told)


def _sides_of(context: Context) -> apps.Sides:
    return _sides(str(context.run_config["terms"]))


def _serve(grid: Grid, context: Context) -> None:
    service.serve(grid, Path(os.environ[SERVER]), str(context.run_config["job"]))


client_app = apps.client_app(_sides_of)
server_app = ServerApp()
server_app.main()(_serve)
