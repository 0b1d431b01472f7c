"""A federation on Flower's simulation runtime: Ray spreads nodes over cores, GPUs and machines."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fedblocks.core.errors import UserError, count_of
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.federation import (
    Choices,
    deal_out,
    forget_connections,
    hold_run,
    interruption,
    job_for,
)
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely
from fedblocks.flower.server.going_on import check_run
from fedblocks.flower.server.jobs import add_job, command_for
from fedblocks.flower.server.watching import watch
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.result import RunResult
from fedblocks.runs.storage.record import Note

PROCESS = "simulation"
# Ray finds it by this name, too
APP = "import sys; from fedblocks.flower.ray_app import main; main(sys.argv[1])"


class Resources(BaseModel):
    """What Ray needs to know: the job, and the resources of one node; as many nodes work at once
    as fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: float = Field(default=1.0, gt=0)  # for one node
    gpus: float = Field(default=0.0, ge=0)  # for one node; 0.25: four share a GPU
    # of a Ray cluster that is running; without it one is started on this machine
    address: str | None = None
    nodes: int = Field(ge=1)
    server: str  # the server's folder
    job: str  # its name there


def need_ray() -> None:
    """Say what to install where Flower's simulation is missing."""
    launch.need_flower()
    if find_spec("ray") is None:
        message = "simulations on Flower need Ray, which is not installed"
        raise UserError(message, "pip install 'fedblocks[flower-simulation]'")


def simulate(
    path: Path,
    nodes: int,
    choices: Choices,
    on_round: OnRound,
    on_note: OnNote,
    *,
    cpus: float,
    gpus: float,
    address: str | None,
) -> RunResult:
    """Carry out a run on Ray; nodes keep their personal blocks in the run's folder, which all
    machines must see.
    """
    need_ray()
    after = check_run(path)
    base = path / "federation"
    server = base / "server"
    held = deal_out(path, base, nodes, launch.free_port(), insecure=True)
    federation = ServerHost.read(server).federation
    try:
        with (
            ended_politely(),
            hold_run(server),
            ProcessGroup(base / "logs", launch.environment(server)) as processes,
        ):
            forget_connections(server)
            job = add_job(server, job_for(path, federation, kind="train", **choices)).name
            resources = Resources(
                cpus=cpus, gpus=gpus, address=address, nodes=len(held), server=str(server), job=job
            )
            on_note(Note(f"starting Ray and {count_of(len(held), 'node')}"))
            processes.start(PROCESS, [sys.executable, "-c", APP, resources.model_dump_json()])
            again = command_for(server, path)
            return watch(path, on_round, on_note, processes.check, again, after)
    except KeyboardInterrupt as error:
        raise interruption(path, "simulate") from error
