"""A federation's server and its clients as processes: start them, submit what is to be done, take up what was lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedblocks.core.errors import UserError
from fedblocks.flower import launch, shim
from fedblocks.flower.crew import Crew
from fedblocks.flower.hosts import ClientHost, ServerHost
from fedblocks.flower.orders import Order, write_app
from fedblocks.flower.shim import WARM
from fedblocks.runs.folder import RunFolder, write_atomically

Tell = Callable[[str], None]
WORKER = ("-m", "fedblocks.flower.warm")
READY = 60.0  # seconds that a SuperLink may take to start on a busy machine


def start_server(crew: Crew, folder: Path, tell: Tell) -> ServerHost:
    """SuperLink, the process that starts apps, and a gateway that lets clients in and nobody else."""
    host = ServerHost.read(folder)
    for address, port in ((host.bind, host.port), ("127.0.0.1", host.inner_port)):
        launch.refuse_used(address, port)
    launch.connect(host, folder)
    tell("starting the server")
    crew.start("superlink", launch.superlink(host, folder))
    launch.until(lambda: launch.healthy(host, folder), READY, crew.check, "the SuperLink")
    crew.start("superexec", launch.superexec(host, folder), **{launch.POLL: "1"})  # runs are started seldom
    crew.start("gateway", [sys.executable, "-m", "fedblocks.flower.gateway", str(folder)])
    enrol(host, folder, tell)
    launch.until(lambda: launch.is_open(host), READY, crew.check, "the gateway")
    return host


def enrol(host: ServerHost, folder: Path, tell: Tell) -> None:
    """Register the public keys that are new; nobody else can connect."""
    new = [] if host.insecure else [name for name in host.clients if not _mark(folder, name).exists()]
    if new:
        tell(f"enrolling {len(new)} keys")
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: _register(folder, name), new))


def _register(folder: Path, name: str) -> None:
    launch.ask(folder, "supernode", "register", str(folder / "clients" / f"{name}.pub"))
    _mark(folder, name).touch()


def _mark(folder: Path, name: str) -> Path:
    """A file that says that a key is in Flower's own table."""
    return folder / "clients" / f"{name}.enrolled"


def start_client(crew: Crew, folder: Path, name: str = "supernode", worker: Sequence[str] = WORKER) -> None:
    """The SuperNode of one machine with clients, and the process that works for it."""
    variables = {**launch.environment(folder), launch.CLIENT: str(folder), WARM: f"{crew.mark}-{name}"}
    variables["PATH"] = os.pathsep.join([str(_shim(folder)), variables["PATH"]])
    crew.start(f"{name}-app", [sys.executable, *worker], **variables)
    crew.start(name, launch.supernode(ClientHost.read(folder), folder), **variables)


def _shim(folder: Path) -> Path:
    """A folder for the path in which Flower finds our program under the name of its own."""
    where = folder / "bin"
    where.mkdir(exist_ok=True, mode=0o700)
    program = Path(shim.__file__).resolve()
    (where / "flwr-clientapp").write_text(f'#!/bin/sh\nexec "{sys.executable}" -ES "{program}" "$@"\n')
    (where / "flwr-clientapp").chmod(0o700)
    return where


def submit(folder: Path, order: Order) -> str:
    """Give the server something to do; the number that Flower gives it."""
    if order.kind == "train":
        _settle(Path(order.folder))
    name = order.store(folder)
    app = write_app(folder / "orders" / name, name, order.terms)
    number = str(launch.ask(folder, "run", str(app))["run-id"])
    write_atomically(current(folder), json.dumps({"order": name, "run-id": number, "folder": order.folder}))
    return number


def _settle(path: Path) -> None:
    """A run that stopped or failed waits for the order that is about to be given, and is taken up by no other."""
    with RunFolder.open(path) as folder:
        if folder.status in ("interrupted", "failed"):
            folder.set_status("interrupted")


def current(folder: Path) -> Path:
    """Where the server's last order is noted."""
    return folder / "orders" / "current.json"


def last_order(folder: Path) -> dict[str, Any] | None:
    """The last order, with Flower's number."""
    try:
        found: dict[str, Any] = json.loads(current(folder).read_text())
        return found
    except OSError:
        return None


def take_up(folder: Path, tell: Tell) -> None:
    """Submit the last order again if the process that worked on it is gone and the run is not over."""
    told = last_order(folder)
    if told is None or not Path(told["folder"]).is_dir():
        return
    order = Order.load(folder, told["order"])
    if order.kind == "train" and is_lost(Path(order.folder)):
        tell("the server's app is gone; going on from the last round that it stored")
        submit(folder, order)


def is_lost(path: Path) -> bool:
    """Whether a run says that it is going on, and nobody works on it."""
    with RunFolder.open(path) as folder:
        lost = folder.store.meta("status") == "running" and folder.status == "interrupted"
        if lost:
            folder.set_status("interrupted")  # so that it is taken up once
        return lost


def going_on(told: dict[str, Any], folder: Path) -> str:
    """What Flower says of the last order: pending, starting, running, finished:..."""
    runs = launch.ask(folder, "list", "--run-id", told["run-id"]).get("runs", [])
    if not runs:
        raise UserError(f"Flower knows no run {told['run-id']}", "start it again")
    return f"{runs[0]['status']} {runs[0].get('status-details', '')}".strip()
