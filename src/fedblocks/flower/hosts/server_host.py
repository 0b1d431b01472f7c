"""The server of a federation: run it, stop its jobs, give new clients their models."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedblocks.core.errors import Interrupted, RunFolderError, UserError, count_of, error_of
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.expiry import CertificateWatch
from fedblocks.flower.hosts.federation import job_for
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.key_watch import KeyWatch, check_server
from fedblocks.flower.hosts.process_group import ProcessGroup, ended_politely
from fedblocks.flower.keys.private_files import hold_server_folder
from fedblocks.flower.server.jobs import (
    JobRecord,
    is_worked_on,
    load_job,
    unfinished_jobs,
    update_job,
)
from fedblocks.runs.result import stored_config
from fedblocks.runs.storage.folder import RunFolder

Tell = Callable[[str], None]
GONE = 90.0  # seconds in which Flower has ended the app of a job that is stopped
TEND = 1.0  # seconds between two looks at the processes


def host_server(folder: Path, tell: Tell) -> None:
    """Run the server of a federation until Ctrl-C or SIGTERM; jobs that a kill
    interrupted are resumed.
    """
    launch.need_flower()
    folder = folder.resolve()
    variables = {**launch.environment(folder), launch.SERVER: str(folder)}
    tell = _without_repeats(tell)
    ServerHost.read(folder)
    with (
        ended_politely(),
        hold_server_folder(folder),
        ProcessGroup(folder / "logs", variables) as processes,
    ):
        try:
            check_server(folder, tell)
            keys = KeyWatch(folder, tell)  # before the keys are read: no change is missed
            certificate = CertificateWatch(folder, tell)
            host = running.start_server(processes, folder, tell)
            at = f"{host.address}:{host.port}"
            tell(f"ready: {count_of(len(host.clients), 'machine')} with a key may connect to {at}")
            while True:
                certificate.look()
                keys.follow(processes)
                running.look_after(processes, folder, tell)
                time.sleep(TEND)
        except KeyboardInterrupt:
            left = len(unfinished_jobs(folder))
            later = f"; {count_of(left, 'unfinished job')} will go on when it is started again"
            tell(f"stopping{later if left else ''}")


def _without_repeats(tell: Tell) -> Tell:
    """Return `tell` without repeats: a text is passed on when it differs from the last one."""
    last = ""

    def changed(text: str) -> None:
        nonlocal last
        if text != last:
            tell(text)
        last = text

    return changed


def stop_jobs(server: Path, folder: Path | None = None, tell: Tell = print) -> list[JobRecord]:
    """Stop all jobs, or those of one run folder; what is stored stays, and runs can be
    continued.
    """
    launch.need_flower()
    ServerHost.read(server)
    jobs = [r for r in unfinished_jobs(server) if folder is None or Path(r.job.folder) == folder]
    if not jobs:
        message = f"nothing to stop: no job of {folder or server} is running"
        raise UserError(message, f"see: fedblocks federation status {server}")
    if folder is None and len({record.job.folder for record in jobs}) > 1:
        names = ", ".join(sorted({record.job.folder for record in jobs}))
        raise UserError(
            f"several runs have jobs: {names}",
            f"name one: fedblocks federation stop {server} FOLDER",
        )
    for record in jobs:
        what = "the run" if record.job.kind == "train" else "to give models of"
        tell(f"stopping {what} {record.job.folder}")
        try:
            _stop(server, record)
        except KeyboardInterrupt as error:
            fix = f"see it with: fedblocks federation status {server}"
            raise Interrupted("no longer waiting; the job is being stopped", fix) from error
    return jobs


def _stop(server: Path, record: JobRecord) -> None:
    """Stop a job: first in its file, so that it is not resumed; then in Flower, which
    ends its app.
    """
    update_job(server, record.name, status="stopped")
    try:
        launch.ask(server, "stop", record.flower_run)
    except UserError:
        if is_worked_on(server, record.name):
            update_job(server, record.name, status=record.status)
            raise
    launch.until(
        lambda: not is_worked_on(server, record.name), GONE, lambda: None, "the end of the job"
    )


def _wait_for(server: Path, record: JobRecord) -> JobRecord:
    """Return the record of a job once it is over."""
    try:
        while not record.is_over:
            time.sleep(TEND)
            record = load_job(server, record.name)
    except KeyboardInterrupt as error:
        fix = (
            f"see it with: fedblocks federation status {server}; end it with: fedblocks "
            f"federation stop {server} {record.job.folder}"
        )
        raise Interrupted("no longer waiting; the server goes on giving models", fix) from error
    return record


def _refuse_strangers(host: ServerHost, server: Path, clients: list[int]) -> None:
    known = {number for numbers in host.clients.values() for number in numbers}
    if strangers := sorted({*clients} - known):
        raise UserError(
            f"no key is enrolled for client {', '.join(map(str, strangers))}",
            f"enrol it first: fedblocks federation enrol {server} NAME.pub --client {strangers[0]}",
        )


def _check_newcomers(folder: RunFolder, clients: list[int], tell: Tell) -> None:
    """Refuse numbers that the run does not have, and tell of clients that are not new to it."""
    population = stored_config(folder).data.clients
    if population is not None and max(clients) >= population:
        raise UserError(
            f"client {max(clients)} is none of this run, whose configuration says clients = "
            f"{population}: they are 0 to {population - 1}",
            "a newcomer has a number that `clients` counted when the run began",
        )
    rows = folder.store.rows("SELECT DISTINCT client FROM traffic WHERE direction = 'up'")
    trained = {row["client"] for row in rows}
    for client in sorted(trained & {*clients}):
        tell(
            f"client {client} took part in this run and has a model of its own; it is given "
            f"another one, as to a newcomer, beside that"
        )


def adapt(
    server: Path, path: Path, clients: list[int], tell: Tell, seconds: float, patience: float
) -> None:
    """Give clients that never took part their models from a trained run, which stays as it is."""
    launch.need_flower()
    host = ServerHost.read(server)
    _refuse_strangers(host, server, clients)
    running.enrol(host, server, tell)
    path = path.resolve()
    with RunFolder.open(path) as folder:
        if folder.store.last_round() is None:
            raise RunFolderError(f"{path} has no rounds yet", "train first")
        _check_newcomers(folder, clients, tell)
        notes = folder.store.rows("SELECT rowid FROM notes")
        before = max((row["rowid"] for row in notes), default=0)
    job = job_for(
        path, host.federation, kind="adapt", clients=clients, seconds=seconds, patience=patience
    )
    record = running.submit(server, job)
    wanted = ", ".join(map(str, clients))
    tell(f"asked for models for client {wanted}; waiting until it is there, {patience:g} s at most")
    record = _wait_for(server, record)
    own = tuple(f"client {client} " for client in clients)  # other notes are of its training
    with RunFolder.open(path) as folder:
        new = "SELECT text FROM notes WHERE rowid > ? ORDER BY rowid"
        for row in folder.store.rows(new, before):
            if row["text"].startswith(own):
                tell(row["text"])
    if record.status != "finished":
        said = record.reason or record.status
        fix = record.fix or f"see {server / 'logs' / 'superexec.log'}"
        raise error_of(record.exit_code, f"no models were given: {said}", fix)
