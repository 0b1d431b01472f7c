"""The server of a federation at work: it runs until it is told to stop, and does what it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower import launch, running
from fedblocks.flower.crew import Crew, ended_politely
from fedblocks.flower.federation import order_for
from fedblocks.flower.hosts import ServerHost
from fedblocks.runs.folder import RunFolder

Tell = Callable[[str], None]
TEND = 1.0  # seconds between two looks at the processes


def host_server(folder: Path, tell: Tell) -> None:
    """Run the server of a federation until Ctrl-C or SIGTERM; a run that it was killed in is taken up."""
    launch.need_flower()
    folder = folder.resolve()
    variables = {**launch.environment(folder), launch.SERVER: str(folder)}
    with ended_politely(), Crew(folder / "logs", variables) as crew:
        try:
            host = running.start_server(crew, folder, tell)
            tell(f"ready: {len(host.clients)} machines with keys may connect to {host.address}:{host.port}")
            while True:
                for name in crew.revive():
                    tell(f"{name} had ended and was started again")
                running.take_up(folder, tell)
                time.sleep(TEND)
        except KeyboardInterrupt:
            tell("stopping")


def status_of(folder: Path) -> list[dict[str, object]]:
    """The machines that are enrolled, and the last run."""
    launch.need_flower()
    host = ServerHost.read(folder)
    nodes = launch.ask(folder, "supernode", "list").get("nodes", [])
    found: list[dict[str, object]] = [
        {"what": "node", "name": str(node.get("node-id")), "status": node.get("status")} for node in nodes
    ]
    told = running.last_order(folder)
    if told is not None:
        with RunFolder.open(Path(told["folder"])) as run:
            done = run.store.last_round() or 0
            found.append({"what": "run", "name": told["folder"], "status": f"{run.status}, {done} rounds"})
    return [{"what": "federation", "name": host.federation, "status": f"{host.address}:{host.port}"}, *found]


def stop_run(folder: Path) -> str:
    """End the run that is going on; what it has stored stays, and it can be gone on with."""
    launch.need_flower()
    told = running.last_order(folder)
    if told is None:
        raise UserError("the server was not told to do anything", "start with: fedblocks federation run CONFIG")
    launch.ask(folder, "stop", told["run-id"])
    with RunFolder.open(Path(told["folder"])) as run:
        if run.store.meta("status") == "running":
            run.set_status("interrupted")
    return str(told["folder"])


def adapt(server: Path, path: Path, clients: list[int], tell: Tell, seconds: float, patience: float) -> None:
    """Give clients that never took part their models from a trained run, which stays as it is."""
    launch.need_flower()
    host = ServerHost.read(server)
    running.enrol(host, server, tell)
    path = path.resolve()
    with RunFolder.open(path) as folder:
        if folder.store.last_round() is None:
            raise RunFolderError(f"{path} has no rounds yet", "train first")
        before = max((row["rowid"] for row in folder.store.rows("SELECT rowid FROM notes")), default=0)
    order = order_for(path, host.federation, kind="adapt", clients=clients, seconds=seconds, patience=patience)
    number = running.submit(server, order)
    while not (said := running.going_on({"run-id": number}, server)).startswith("finished"):
        time.sleep(TEND)
    with RunFolder.open(path) as folder:
        for row in folder.store.rows("SELECT text FROM notes WHERE rowid > ? ORDER BY rowid", before):
            tell(row["text"])
    if "completed" not in said:
        raise UserError(f"no models were given: {said}", f"see {server / 'logs' / 'superexec.log'}")
