"""Runs of a real federation: on this machine alone, or on the server that `fedblocks
federation server` runs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, RunFolderError, UserError, count_of, error_of
from fedblocks.flower.client.data_paths import start_paths_at
from fedblocks.flower.client.host import start_client
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely
from fedblocks.flower.hosts.server_watch import ServerWatch
from fedblocks.flower.hosts.setup import node_name, set_up
from fedblocks.flower.keys.private_files import hold_server_folder, private_folder
from fedblocks.flower.server.going_on import check_run
from fedblocks.flower.server.jobs import ServerJob, command_for, load_job
from fedblocks.flower.server.watching import watch
from fedblocks.flower.wire.run_spec import RunSpec, shape_of
from fedblocks.flower.wire.sampling_check import check_sampling
from fedblocks.runs.build import prepare
from fedblocks.runs.engine_choice import device_of
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.result import RunResult, config_of, result_of
from fedblocks.runs.run import free_folder
from fedblocks.runs.storage.constants import store_constants
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import REAL, RunFolder
from fedblocks.runs.storage.frozen import store_frozen
from fedblocks.runs.storage.main_metric import KEY, MainMetric
from fedblocks.runs.storage.record import Note

Choices = Mapping[str, Any]  # of a job: seconds, patience, minimum, more, share


def new_run(config: Config, out: Path | None, notes: list[str]) -> Path:
    """Make the folder of a run for a federation, after all checks that are possible beforehand."""
    if config.faults is not None:
        raise UserError(
            "[faults] is for simulated runs: the clients of a federation have their own",
            "leave it out",
        )
    if config.stopping is not None:
        raise UserError(
            "[stopping] is for simulated runs: clients of a federation may send the scores of a "
            "round with their next update",
            "leave it out, and end the run with: fedblocks federation stop",
        )
    prepared = prepare(config, shape_of(config))
    check_sampling(prepared)
    path = out if out is not None else free_folder(f"{config.method.name}-{config.data.name}")
    with RunFolder.create(path, config.resolved(), environment()) as folder:
        private_folder(path)
        store_constants(path, prepared.experiment.methods)
        store_frozen(folder, prepared.experiment)
        folder.set_status("interrupted")  # until the server's app begins
        folder.store.set_meta("federation", prepared.experiment.data.hash())
        folder.store.set_meta(KEY, MainMetric.of(prepared.experiment.data.task).text())
        name = f"run-{secrets.token_hex(6)}-{path.name}"[:60]
        folder.store.set_meta(REAL, re.sub(r"[^A-Za-z0-9_-]", "-", name))
        for text in notes:
            folder.store.note(text)
    return path.resolve()


def job_for(path: Path, federation: str, **choices: Any) -> ServerJob:
    """Return a job for a run folder."""
    with RunFolder.open(path) as folder:
        run = folder.store.meta(REAL)
        config = config_of(folder)
    if run is None:
        raise RunFolderError(
            f"{path} is a simulated run", "go on with it by: fedblocks resume FOLDER"
        )
    spec = RunSpec.of(config, shape_of(config), federation, run)
    return ServerJob(folder=str(path), spec=spec, **choices)


def local(
    path: Path,
    nodes: int,
    choices: Choices,
    on_round: OnRound,
    on_note: OnNote,
    port: int | None = None,
) -> RunResult:
    """Carry out a run with a whole federation on this machine: certificates, keys, a
    server and its clients.
    """
    launch.need_flower()

    def tell(text: str) -> None:
        on_note(Note(text))

    after = check_run(path)
    base = path / "federation"
    server = base / "server"
    held = deal_out(path, base, nodes, port or launch.free_port())
    variables = {**launch.environment(server), launch.SERVER: str(server)}
    try:
        with (
            ended_politely(),
            hold_run(server),
            ProcessGroup(base / "logs", variables) as processes,
        ):
            forget_connections(server)
            host = running.start_server(processes, server, tell)
            for node in held:
                start_client(processes, base / node, node)
            nodes_here = count_of(len(held), "node")
            tell(f"starting {nodes_here}, and the app that goes through the rounds")
            job = job_for(path, host.federation, kind="train", **choices)
            name = running.submit(server, job).name
            tend = lambda: _tend(processes, server, name, tell)
            return watch(path, on_round, on_note, tend, command_for(server, path), after)
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        raise interruption(path, "local") from error


@contextmanager
def hold_run(server: Path) -> Iterator[None]:
    """Hold a server's folder that is part of a run's: where another process has it, the run is in
    use.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_server_folder(server))
        except UserError as error:
            raise RunFolderError(error.message, "stop that one first, or wait for it") from error
        yield


def interruption(path: Path, command: str) -> Interrupted:
    """Return the error for a federation on this machine that was ended by Ctrl-C or SIGTERM."""
    with RunFolder.open(path) as folder:
        done = folder.store.last_round() or 0
        if folder.status == "interrupted":
            folder.set_status("interrupted")  # also where its app was killed before it could say so
    return Interrupted(
        f"stopped after round {done}", f"go on with: fedblocks federation {command} {path}"
    )


def deal_out(path: Path, base: Path, nodes: int, port: int, insecure: bool = False) -> list[str]:
    """Make folders for a server and this many nodes on this machine, and deal the
    clients out to them.
    """
    if (base / "server" / "server.toml").exists():  # the run goes on, its clients where they were
        return sorted(ServerHost.read(base / "server").clients)
    with RunFolder.open(path) as folder:
        config = config_of(folder)
    shape = shape_of(config)
    everybody = range(shape.clients)
    held = {node_name(n): everybody[n::nodes] for n in range(nodes) if everybody[n::nodes]}
    set_up(
        base,
        "127.0.0.1",
        held,
        port,
        launch.free_port(),
        insecure=insecure,
        data=start_paths_at(Path.cwd(), config.resolved()["data"]),
        device=str(device_of(config)[0]),
        pictures=True,
    )
    agreed = {name: int(shape.train.sizes[list(numbers)].sum()) for name, numbers in held.items()}
    ServerHost.read(base / "server").model_copy(update={"examples": agreed}).write(base / "server")
    return sorted(held)


def forget_connections(server: Path) -> None:
    """Remove Flower's table, which would say for a minute that nodes are connected that
    have ended, and jobs that nobody works on; the folder must be held.
    """
    for stale in [*server.glob("flower.db*"), *server.glob("jobs/*.json")]:
        stale.unlink()


def _tend(processes: ProcessGroup, server: Path, job: str, tell: Callable[[str], None]) -> None:
    """Look after the processes and the job."""
    running.look_after(processes, server, tell)
    check_job(server, job)


def check_job(server: Path, name: str) -> None:
    """Stop watching a job that failed before it could write to its run folder, or that
    somebody stopped.
    """
    record = load_job(server, name)
    if record.status == "failed":
        fix = record.fix or f"see {server / 'logs' / 'superexec.log'}"
        raise error_of(record.exit_code, record.reason, fix)
    if record.status == "stopped":
        fix = f"go on with: {command_for(server, record.job.folder)}"
        raise Interrupted("the run was stopped", fix)


def go_on(
    server: Path, path: Path, choices: Choices, on_round: OnRound, on_note: OnNote
) -> RunResult:
    """Carry out a run on a federation's server, new or begun, and watch it."""
    launch.need_flower()
    host = ServerHost.read(server)
    running.refuse_going_on(server, str(path))
    after = check_run(path)
    with RunFolder.open(path) as folder:
        if folder.status == "finished":
            on_note(Note(f"{path} was finished already; it is as it was"))
            return result_of(folder)
    try:
        running.enrol(host, server, lambda text: on_note(Note(text)))
        job = running.submit(server, job_for(path, host.federation, kind="train", **choices)).name
    except KeyboardInterrupt as error:
        again = f"go on with: {command_for(server, path)}"
        raise Interrupted("stopped while the run was handed to the server", again) from error
    away = ServerWatch(host, server, lambda text: on_note(Note(text)))

    def tend() -> None:
        check_job(server, job)
        away.look()

    try:
        return watch(path, on_round, on_note, tend, command_for(server, path), after)
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        fix = (
            f"see it with: fedblocks federation status {server}; end it with: fedblocks "
            f"federation stop {server}"
        )
        raise Interrupted("no longer watching; the run goes on", fix) from error
