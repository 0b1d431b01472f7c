"""The processes of a federation's server: start them, submit jobs, resume jobs that were lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedblocks.core.errors import RunFolderError, UserError, count_of
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.expiry import SAID, expiry_error
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.keys.private_files import locked
from fedblocks.flower.keys.revoked_keys import revoked_keys
from fedblocks.flower.keys.trust import need_authority
from fedblocks.flower.server.going_on import refuse_copy
from fedblocks.flower.server.jobs import (
    JobRecord,
    ServerJob,
    add_job,
    is_worked_on,
    load_job,
    unfinished_jobs,
    update_job,
    write_app,
)
from fedblocks.runs.storage.folder import RunFolder

Tell = Callable[[str], None]
APP = "fedblocks.flower.deploy"
LOOK = 15.0  # seconds between two questions to Flower about jobs that have not begun
MOST = 3  # times that a job is submitted whose app never begins
OVER = ("finished", "unknown")  # what Flower says then
READY = 60.0  # seconds that a SuperLink may take to start on a busy machine


class NotRunningError(UserError):
    """The server of a folder is needed, and is not running."""


def start_server(processes: ProcessGroup, folder: Path, tell: Tell) -> ServerHost:
    """Start the SuperLink, the process that starts apps, and the gateway that lets
    enrolled clients in.
    """
    host = ServerHost.read(folder)
    launch.refuse_used(host.bind, host.port)
    tell("starting the server")
    start_superlink(processes, host, folder)
    gateway = [sys.executable, "-m", "fedblocks.flower.gateway.gateway", str(folder)]
    processes.start("gateway", gateway)
    enrol(host, folder, tell)
    launch.until(lambda: launch.is_open(host), READY, processes.check, "the gateway")
    return host


def start_superlink(processes: ProcessGroup, host: ServerHost, folder: Path, *options: str) -> None:
    """Start the SuperLink, with further options of its own, and the process that starts apps."""
    launch.refuse_used("127.0.0.1", host.inner_port)
    launch.connect(host, folder)
    processes.start("superlink", [*launch.superlink(host, folder), *options])
    launch.until(lambda: launch.healthy(host, folder), READY, processes.check, "the SuperLink")
    seldom = {launch.POLL: "1"}  # runs are not started every second
    processes.start("superexec", launch.superexec(host, folder), **seldom)


def enrol(host: ServerHost, folder: Path, tell: Tell) -> None:
    """Give Flower the keys of `server.toml`, and cut off those that were revoked.

    Flower never takes a key back that it has cut off. So one whose name is only taken out of
    `server.toml` stays in its table: the gateway keeps it out, and it may be put back.
    """
    if host.insecure:
        return
    from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

    with locked(folder), _control(host, folder) as control:
        wanted = _names_by_key(folder, tell)
        nodes = [*control.ListNodes(ListNodesRequest()).nodes_info]
        ended = {bytes(node.public_key) for node in nodes if node.status == "unregistered"}
        known = {bytes(node.public_key): node.node_id for node in nodes}
        for key in wanted.keys() & ended:
            tell(_not_taken_back(wanted[key], folder))
        if new := wanted.keys() - known.keys():
            tell(f"enrolling {', '.join(sorted(wanted[key] for key in new))}")
        for key in new:
            control.RegisterNode(RegisterNodeRequest(public_key=key, name=wanted[key]))
        if gone := (known.keys() & revoked_keys(folder)) - wanted.keys() - ended:
            tell(f"cut off: {count_of(len(gone), 'revoked or replaced key')}")
        for key in gone:
            control.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))


def _names_by_key(folder: Path, tell: Tell) -> dict[bytes, str]:
    """Return the name of each enrolled key; one whose file is missing must not keep the others
    from coming in.
    """
    from fedblocks.flower.keys.client_keys import public_key

    names = {}
    for name in ServerHost.read(folder).clients:
        file = folder / "clients" / f"{name}.pub"
        if os.path.lexists(file):
            names[public_key(file)] = name
        else:
            tell(
                f"warning: {name} is not let in: {file} is missing; bring it back, or take {name} "
                f"out of server.toml"
            )
    return names


def _not_taken_back(name: str, folder: Path) -> str:
    return (
        f"warning: {name} is not let in: its key was cut off before, and Flower never takes such "
        f"a key back; let the client run: fedblocks federation rotate FOLDER, and send {name}.json;"
        f" then: fedblocks federation enrol {folder} {name}.json"
    )


def check_running(folder: Path) -> None:
    """Refuse a folder that is none of a server, and one whose server is not running."""
    list_nodes(ServerHost.read(folder), folder)


def list_nodes(host: ServerHost, folder: Path) -> list[tuple[str, str, str]]:
    """Return the machines that Flower knows: the name that each one's key is enrolled under, its
    status, and Flower's number.
    """
    from flwr.proto.control_pb2 import ListNodesRequest

    names = {} if host.insecure else _names_by_key(folder, lambda text: None)
    with _control(host, folder) as control:
        nodes = [*control.ListNodes(ListNodesRequest()).nodes_info]
    return [
        (names.get(bytes(node.public_key), f"node {node.node_id}"), node.status, str(node.node_id))
        for node in nodes
        if node.status != "unregistered" and (host.insecure or bytes(node.public_key) in names)
    ]


@contextmanager
def _control(host: ServerHost, folder: Path) -> Iterator[Any]:
    """Open the SuperLink's interface for commands, on this machine."""
    from flwr.supercore.control import ControlHttpClient
    from httpx import ConnectError, HTTPError

    trusted = None if host.insecure else need_authority(folder)
    address = f"127.0.0.1:{host.inner_port}"
    control = ControlHttpClient.from_server_address(address, host.insecure, trusted, [])
    try:
        yield control
    except ConnectError as error:
        if SAID in str(error):
            raise expiry_error(folder) from error
        message = f"the server of {folder} is not running: nothing answers at {address}"
        raise NotRunningError(message, f"start it: fedblocks federation server {folder}") from error
    except (HTTPError, ValueError) as error:
        raise UserError(
            f"Flower's table of keys cannot be used: {error}", "see that the server is running"
        ) from error
    finally:
        control.close()


def submit(server: Path, job: ServerJob) -> JobRecord:
    """Give the server a job."""
    if job.kind == "train":
        refuse_going_on(server, job.folder)
        refuse_copy(server, job)
        _settle(Path(job.folder))
    return _start(server, add_job(server, job))


def _start(server: Path, record: JobRecord) -> JobRecord:
    """Hand a job to Flower, for the first time or again."""
    app = write_app(server / "jobs" / record.name, APP, job=record.name)
    # its app may begin at once
    update_job(server, record.name, status="submitted", submissions=record.submissions + 1)
    try:
        number = str(launch.ask(server, "run", str(app))["run-id"])
    except UserError as error:
        again = {"status": record.status, "submissions": record.submissions}
        changes = again if record.submissions else {"status": "failed", "reason": error.message}
        update_job(server, record.name, **changes)
        raise
    except KeyboardInterrupt:  # if Flower took it all the same, its app finds that it is over
        if load_job(server, record.name).status == "submitted":
            update_job(server, record.name, status="stopped")
        raise
    return update_job(server, record.name, flower_run=number)


def refuse_going_on(server: Path, folder: str) -> None:
    """Refuse a run that the server is training already."""
    training = {r.job.folder for r in unfinished_jobs(server) if r.job.kind == "train"}
    if folder in training:
        fix = (
            f"see it with: fedblocks federation status {server}; end it with: fedblocks "
            f"federation stop {server}"
        )
        raise RunFolderError(f"the server is training {folder} already", fix)


def _settle(path: Path) -> None:
    """Mark a stopped or failed run as interrupted: it is to go on."""
    with RunFolder.open(path) as folder:
        if folder.status in ("interrupted", "failed"):
            folder.set_status("interrupted")


def look_after(processes: ProcessGroup, server: Path, tell: Tell) -> None:
    """Restart processes that have ended, and resume jobs whose apps are gone."""
    for name in processes.revive():
        tell(f"{name} had ended and was started again")
    processes.trim_logs()
    take_up(server, tell)
    if processes.due("jobs", LOOK):
        check_submitted(server, tell)


def take_up(server: Path, tell: Tell) -> None:
    """Submit jobs again whose app had begun and is gone."""
    for record in unfinished_jobs(server):
        if record.status == "running" and not is_worked_on(server, record.name):
            what = "starting it again"
            if record.job.kind == "train":
                what = "going on from the last round that it stored"
            _submit_again(server, record, f"the app of {record.name} is gone; {what}", tell)


def check_submitted(server: Path, tell: Tell) -> None:
    """Start jobs again, a few times, whose app died before it began; only Flower knows of these."""
    for record in unfinished_jobs(server):
        if record.status != "submitted" or not record.flower_run:
            continue
        said = flower_status(server, record.flower_run)
        if said.startswith(OVER) and load_job(server, record.name).status == "submitted":
            if record.submissions < MOST:
                text = f"{record.name} did not begin ({said}); starting it again"
                _submit_again(server, record, text, tell)
            else:
                reason = f"the server's app did not begin {record.submissions} times: {said}"
                update_job(server, record.name, status="failed", reason=reason)
                tell(f"{record.name} failed: {reason}")


def _submit_again(server: Path, record: JobRecord, text: str, tell: Tell) -> None:
    if not Path(record.job.folder).is_dir():
        update_job(server, record.name, status="failed", reason=f"{record.job.folder} is gone")
        return
    try:
        _start(server, record)
        tell(text)
    except UserError as error:  # the SuperLink may be starting; at the next look it is tried again
        tell(f"{record.name} cannot be started yet: {error.message}")


def flower_status(server: Path, number: str) -> str:
    """Return what Flower says of a run: pending, starting, running, finished:...;
    `unknown` if it has forgotten it.
    """
    try:
        runs = launch.ask(server, "list", "--run-id", number).get("runs", [])
    except UserError:
        return "unreachable"
    return f"{runs[0]['status']} {runs[0].get('status-details', '')}".strip() if runs else "unknown"
