"""A federation on Flower's simulation runtime: Ray spreads nodes over cores, GPUs and machines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fedblocks.core.errors import UserError, count_of
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.federation import (
    Choices,
    check_job,
    deal_out,
    forget_connections,
    hold_run,
    interruption,
    job_for,
)
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely
from fedblocks.flower.server.going_on import check_run
from fedblocks.flower.server.jobs import (
    add_job,
    command_for,
    is_worked_on,
    load_job,
    update_job,
    write_app,
)
from fedblocks.flower.server.watching import watch
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.result import RunResult
from fedblocks.runs.storage.record import Note

APP = "fedblocks.flower.ray_app"
RAY_ADDRESS = "RAY_ADDRESS"  # where Ray finds a cluster that is running; else it starts one


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
    cpus: int,
    gpus: float,
    address: str | None,
) -> RunResult:
    """Carry out a run on Ray, where each node has these cores and GPUs; nodes keep their personal
    blocks in the run's folder, which all machines must see.
    """
    need_ray()
    after = check_run(path)
    base = path / "federation"
    server = base / "server"
    held = deal_out(path, base, nodes, launch.free_port(), insecure=True)
    cluster = {} if address is None else {RAY_ADDRESS: address}
    try:
        with (
            ended_politely(),
            hold_run(server),
            ProcessGroup(base / "logs", {**launch.environment(server), **cluster}) as processes,
        ):
            forget_connections(server)
            host = ServerHost.read(server)
            on_note(Note(f"starting Ray and {count_of(len(held), 'node')}"))
            running.start_superlink(processes, host, server, "--simulation")
            job = add_job(server, job_for(path, host.federation, kind="train", **choices)).name
            _submit(server, job, runtime_settings(len(held), cpus, gpus))
            tend = lambda: _tend(processes, server, job)
            return watch(path, on_round, on_note, tend, command_for(server, path), after)
    except KeyboardInterrupt as error:
        raise interruption(path, "simulate") from error


def runtime_settings(nodes: int, cpus: int, gpus: float) -> str:
    """Return what Flower's simulation runtime is told of a run, as `flwr run` takes it; as many
    nodes work at once as the cores and GPUs of each allow.
    """
    settings = {
        "num-supernodes": nodes,
        "client-resources-num-cpus": cpus,
        "client-resources-num-gpus": float(gpus),
        "init-args-logging-level": '"warning"',
    }
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _submit(server: Path, job: str, settings: str) -> None:
    """Hand a job to Flower; nodes on other machines find it in the server's folder, too."""
    app = write_app(server / "jobs" / job, APP, job=job, server=str(server))
    answer = launch.ask(server, "run", str(app), "--federation-config", settings)
    update_job(server, job, flower_run=str(answer["run-id"]), submissions=1)


def _tend(processes: ProcessGroup, server: Path, job: str) -> None:
    """Stop watching a job that cannot go on: a process ended, or Flower gave it up."""
    processes.check()
    check_job(server, job)
    is_left = not is_worked_on(server, job)  # asked first: an app notes its end, then lets go
    record = load_job(server, job)
    has_gone = is_left and record.status == "running"
    if has_gone or (record.status == "submitted" and processes.due("jobs", running.LOOK)):
        said = running.flower_status(server, record.flower_run)
        if has_gone or said.startswith(running.OVER):
            log = processes.log("simulation")
            log.write_text(launch.log_of(server, record.flower_run))
            words = processes.last_words("simulation")
            again = command_for(server, record.job.folder)
            message = f"Flower's simulation ended before the run ({said}): {words}"
            raise UserError(message, f"see {log}; then go on with: {again}")
